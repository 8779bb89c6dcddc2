//! The `ServiceMonitor` of slurmctld, with which the Prometheus operator scrapes its metrics.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use slurm_operator_api::common::shared::Metadata;

use super::shared::{Parent, SLURMCTLD, desired};
use crate::plan::Desired;

/// The spec of a `ServiceMonitor`, of which the operator only writes fields.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[kube(group = "monitoring.coreos.com", version = "v1", kind = "ServiceMonitor", namespaced, schema = "disabled")]
pub struct ServiceMonitorSpec {
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The `ServiceMonitor` of a cluster, as it is found.
#[derive(Clone, Debug, Default)]
pub enum Monitor {
    /// Its CRD is not installed, or the operator may not read such objects.
    #[default]
    NotInstalled,
    Missing,
    Live(Box<ServiceMonitor>),
}

impl Monitor {
    pub fn live(&self) -> Option<&ServiceMonitor> {
        match self {
            Self::Live(live) => Some(live),
            Self::NotInstalled | Self::Missing => None,
        }
    }
}

/// One path to scrape.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub path: String,
    pub interval: Option<String>,
    pub timeout: Option<String>,
}

/// The `ServiceMonitor` of slurmctld.
pub fn service_monitor(parent: &Parent, metadata: &Metadata, endpoints: &[Endpoint]) -> Desired {
    let service = (parent.vocabulary.name.slurmctld)(&parent.name);
    let relabelings = json!([
        // The headless Service has the same labels: everything would be scraped twice.
        {"sourceLabels": ["__meta_kubernetes_service_name"], "regex": service, "action": "keep"},
        // The pages are on one port, and would have one series `up` together.
        {"sourceLabels": ["__metrics_path__"], "targetLabel": "metrics_path"},
    ]);
    let endpoint = |endpoint: &Endpoint| {
        let mut fields = json!({
            "port": SLURMCTLD.program, "scheme": "http", "path": endpoint.path, "relabelings": relabelings,
        });
        let durations = [("interval", &endpoint.interval), ("scrapeTimeout", &endpoint.timeout)];
        if let Some(fields) = fields.as_object_mut() {
            let set = durations.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value.as_ref()?))));
            fields.extend(set);
        }
        fields
    };
    let spec = json!({
        "selector": {"matchLabels": parent.selector(SLURMCTLD)},
        "namespaceSelector": {"matchNames": [parent.namespace]},
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    });
    desired::<ServiceMonitor>(parent.metadata(service.clone(), SLURMCTLD, &[metadata]), json!({ "spec": spec }))
}
