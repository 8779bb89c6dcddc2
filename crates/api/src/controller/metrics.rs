//! What Prometheus reads from slurmctld.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::null_as_default;

/// Durations as Prometheus writes them.
const PROMETHEUS_DURATION: &str =
    "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$";

/// The paths that slurmctld serves metrics at.
const DEFAULT_PATHS: [&str; 4] = ["/metrics/jobs", "/metrics/nodes", "/metrics/partitions", "/metrics/scheduler"];

/// Metrics that slurmctld serves for Prometheus.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Whether slurmctld serves metrics; false if not set. It can from Slurm 25.11 on.
    #[serde(default)]
    pub enabled: bool,

    /// A `ServiceMonitor`, which tells the Prometheus operator to read the metrics. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitor>,
}

/// A `ServiceMonitor` for slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Whether to make one; false if not set. The cluster must know the kind, which comes with the Prometheus operator.
    #[serde(default)]
    pub enabled: bool,

    /// Labels of the `ServiceMonitor`. A Prometheus often picks by them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the `ServiceMonitor`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// How often to read, for example 30s. As Prometheus is set up if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub interval: Option<String>,

    /// How long one reading may take. As Prometheus is set up if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub scrape_timeout: Option<String>,

    /// What to read. Jobs, nodes, partitions and scheduler if not set.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
}

/// One path that Prometheus reads.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The path, for example /metrics/jobs.
    pub path: String,

    /// How often to read this path. As for all paths if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub interval: Option<String>,

    /// How long one reading of this path may take. As for all paths if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub scrape_timeout: Option<String>,
}

impl ServiceMonitor {
    /// What to read, with what each path takes from the whole filled in.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let usual = || DEFAULT_PATHS.map(|path| Endpoint { path: path.to_owned(), ..Endpoint::default() }).to_vec();
        let asked = if self.endpoints.is_empty() { usual() } else { self.endpoints.clone() };
        let fill = |endpoint: Endpoint| Endpoint {
            interval: endpoint.interval.or_else(|| self.interval.clone()),
            scrape_timeout: endpoint.scrape_timeout.or_else(|| self.scrape_timeout.clone()),
            path: endpoint.path,
        };
        asked.into_iter().map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_take_what_they_lack_from_the_whole() {
        let monitor: ServiceMonitor = serde_json::from_value(json!({
            "interval": "30s",
            "endpoints": [{"path": "/metrics/jobs"}, {"path": "/metrics/nodes", "interval": "1m", "scrapeTimeout": "5s"}],
        }))
        .unwrap();
        let expected = json!([
            {"path": "/metrics/jobs", "interval": "30s"},
            {"path": "/metrics/nodes", "interval": "1m", "scrapeTimeout": "5s"},
        ]);
        assert_eq!(serde_json::to_value(monitor.endpoints()).unwrap(), expected);
    }

    #[test]
    fn all_that_slurmctld_has_is_read_by_default() {
        let monitor: ServiceMonitor =
            serde_json::from_value(json!({"endpoints": null, "scrapeTimeout": "5s"})).unwrap();
        let endpoints = monitor.endpoints();
        let paths: Vec<&str> = endpoints.iter().map(|endpoint| endpoint.path.as_str()).collect();
        assert_eq!(paths, DEFAULT_PATHS);
        assert!(endpoints.iter().all(|endpoint| endpoint.scrape_timeout.as_deref() == Some("5s")));
    }
}
