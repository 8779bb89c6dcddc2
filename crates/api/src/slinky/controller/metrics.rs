//! Prometheus metrics of slurmctld.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::shared::null_as_default;

/// Pattern of a Prometheus duration.
const PROMETHEUS_DURATION: &str =
    "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$";

/// Paths at which slurmctld serves metrics.
const DEFAULT_PATHS: [&str; 4] = ["/metrics/jobs", "/metrics/nodes", "/metrics/partitions", "/metrics/scheduler"];

/// Prometheus metrics of slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Whether slurmctld serves metrics. Defaults to false. Requires Slurm 25.11 or newer.
    #[serde(default)]
    pub enabled: bool,

    /// `ServiceMonitor` that makes the Prometheus operator scrape the metrics. None if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitor>,
}

/// A `ServiceMonitor` for slurmctld.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Whether to create the `ServiceMonitor`. Defaults to false. Requires the CRDs of the Prometheus operator.
    #[serde(default)]
    pub enabled: bool,

    /// Labels of the `ServiceMonitor`. Prometheus is often configured to select by them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Annotations of the `ServiceMonitor`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Scrape interval, for example 30s. Defaults to that of Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub interval: Option<String>,

    /// Scrape timeout. Defaults to that of Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub scrape_timeout: Option<String>,

    /// Endpoints to scrape. Defaults to jobs, nodes, partitions and scheduler.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
}

/// One metrics path.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Path of the metrics, for example /metrics/jobs.
    pub path: String,

    /// Scrape interval of this path. Defaults to that of the `ServiceMonitor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub interval: Option<String>,

    /// Scrape timeout of this path. Defaults to that of the `ServiceMonitor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PROMETHEUS_DURATION))]
    pub scrape_timeout: Option<String>,
}

impl ServiceMonitor {
    /// Endpoints to scrape, with the defaults of the `ServiceMonitor` filled in.
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
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_inherit_the_settings_of_the_monitor() {
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
