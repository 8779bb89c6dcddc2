//! What is wrong with the spec of a `NodeSet`, as far as it alone shows.

use engine::config::{ConfigError, NodeSetLine, check_line};
use slurm_operator_api::{common::validation::FieldError, slinky::NodeSet};

use super::model::Parsed;

pub(super) fn validate(set: &NodeSet) -> Vec<FieldError> {
    errors(set, &Parsed::of(set))
}

pub(super) fn errors(set: &NodeSet, parsed: &Parsed) -> Vec<FieldError> {
    let Parsed { pod, drain_timeout, update, conf } = parsed;
    let image = set.spec.slurmd.text("image").is_none().then(|| FieldError::required("spec.slurmd.image"));
    let invalid = [pod.as_ref().err(), drain_timeout.as_ref().err(), update.as_ref().err(), conf.as_ref().err()];
    invalid.into_iter().flatten().cloned().chain(image).chain(partition(set)).collect()
}

/// Slurm must be able to read the partition: otherwise the Controller leaves the set out of slurm.conf.
fn partition(set: &NodeSet) -> Option<FieldError> {
    let parameters = set.spec.partition()?.config.clone().unwrap_or_default();
    // The name is checked with the features of the nodes.
    let line = NodeSetLine { origin: String::new(), name: "name".to_owned(), partition: Some(parameters) };
    let ConfigError::Notation { error, .. } = check_line(&line).err()? else { return None };
    Some(FieldError::new("spec.partition.config", error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_invalid_fields_are_reported_at_once() {
        let set: NodeSet = serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"name": "gpu"},
            "spec": {
                "controllerRef": {"name": "slurm"},
                "drain": {"timeout": "soon"},
                "extraConf": "no equals sign",
                "partition": {"enabled": true, "config": "MaxTime=1 day"},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "many"}},
                "template": {"spec": {"nodeSelector": 7}},
            },
        }))
        .unwrap();
        let paths: Vec<String> = validate(&set).into_iter().map(|error| error.path).collect();
        assert_eq!(
            paths,
            [
                "spec.template.spec",
                "spec.drain.timeout",
                "spec.updateStrategy.rollingUpdate.maxUnavailable",
                "spec.extraConf",
                "spec.slurmd.image",
                "spec.partition.config",
            ]
        );
    }
}
