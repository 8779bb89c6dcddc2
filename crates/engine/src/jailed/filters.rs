//! Sets of Kubernetes nodes, by name.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slurm_operator_api::common::{template::Overlay, validation::FieldError};

use super::{find, repeated};
use crate::overlay::Fields;

/// A set of Kubernetes nodes, as a pod asks for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFilter {
    pub name: String,
    pub node_selector: BTreeMap<String, String>,
    pub affinity: Option<Overlay>,
    pub tolerations: Vec<Overlay>,
}

/// All sets of a cluster.
#[derive(Clone, Debug, Default)]
pub struct NodeFilters {
    all: Vec<NodeFilter>,
    /// Path of the list in the spec.
    path: String,
}

impl NodeFilters {
    /// `path` is that of the list in the spec. Refuses two filters of one name.
    pub fn new(all: Vec<NodeFilter>, path: &str) -> Result<Self, Vec<FieldError>> {
        let problems = repeated(all.iter().map(|filter| filter.name.as_str()), path);
        if problems.is_empty() { Ok(Self { all, path: path.to_owned() }) } else { Err(problems) }
    }

    /// Fields of the spec of a pod that runs on the nodes of the filter with this name. `path` is that of the field with the
    /// name.
    pub fn pod_fields(&self, name: &str, path: &str) -> Result<Fields, FieldError> {
        let filter = find(&self.all, |filter| &filter.name, name, path, &self.path)?;
        let selector = (!filter.node_selector.is_empty()).then(|| json!(filter.node_selector));
        let affinity = filter.affinity.as_ref().filter(|affinity| !affinity.is_empty());
        let tolerations: Vec<Value> = filter.tolerations.iter().map(|one| one.fields().clone().into()).collect();
        let fields = [
            ("nodeSelector", selector),
            ("affinity", affinity.map(|affinity| affinity.fields().clone().into())),
            ("tolerations", (!tolerations.is_empty()).then(|| tolerations.into())),
        ];
        Ok(fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
    }
}
