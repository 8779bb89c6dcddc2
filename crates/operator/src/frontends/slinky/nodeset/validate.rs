//! What is wrong with the spec of a `NodeSet`, as far as it alone shows.

use engine::{
    config::{ConfigError, NodeSetLine, check_line},
    gres::{NONE, is_valid},
};
use slurm_operator_api::{common::validation::FieldError, slinky::NodeSet};

use super::model::{Parsed, version};

pub(super) fn validate(set: &NodeSet) -> Vec<FieldError> {
    errors(set, &Parsed::of(set))
}

pub(super) fn errors(set: &NodeSet, parsed: &Parsed) -> Vec<FieldError> {
    let Parsed { pod, drain_timeout, update, conf } = parsed;
    let image = set.spec.slurmd.text("image").is_none().then(|| FieldError::required("spec.slurmd.image"));
    let invalid = [pod.as_ref().err(), drain_timeout.as_ref().err(), update.as_ref().err(), conf.as_ref().err()];
    invalid.into_iter().flatten().cloned().chain(image).chain(partition(set)).chain(gres(set)).collect()
}

fn gres(set: &NodeSet) -> Option<FieldError> {
    let (resource, wrong) = set.spec.gres.iter().find(|(_, gres)| !is_valid(gres))?;
    let message = format!(
        "`{wrong}` must be a generic resource without a count, for example gpu or gpu:h100, or {NONE} for none"
    );
    Some(FieldError::new(format!("spec.gres[{resource}]"), message))
}

/// Slurm must be able to read the partition: otherwise the Controller leaves the set out of slurm.conf.
fn partition(set: &NodeSet) -> Option<FieldError> {
    let parameters = set.spec.partition()?.config.clone().unwrap_or_default();
    // The name is checked with the features of the nodes.
    let line = NodeSetLine { origin: String::new(), name: "name".to_owned(), partition: Some(parameters) };
    let text = match check_line(&line, version(set)).err()? {
        ConfigError::Notation { error, .. } => error.to_string(),
        ConfigError::Refused { text, .. } => text,
        ConfigError::SameName { .. } | ConfigError::Fixed { .. } => return None,
    };
    Some(FieldError::new("spec.partition.config", text))
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
                "gres": {"nvidia.com/gpu": "gpu:8"},
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
                "spec.gres[nvidia.com/gpu]",
            ]
        );
    }
    #[test]
    fn keys_that_slurm_does_not_know_are_reported() {
        let found = |image: &str, extra: &str, partition: &str| -> Vec<String> {
            let set: NodeSet = serde_json::from_value(json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"name": "gpu"},
                "spec": {
                    "controllerRef": {"name": "slurm"}, "slurmd": {"image": image}, "extraConf": extra,
                    "partition": {"enabled": true, "config": partition},
                },
            }))
            .unwrap();
            validate(&set).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            found("slurmd:24.11", "Weigth=1", "MaxTiem=1"),
            [
                "spec.extraConf: Weigth is not known to Slurm 24.11; did you mean Weight?",
                "spec.partition.config: MaxTiem is not known to Slurm 24.11; did you mean MaxTime?",
            ]
        );
        assert_eq!(found("slurmd:25.05", "Topology=t:s", "Topology=t"), [""; 0]);
        assert_eq!(found("slurmd:latest", "Weigth=1", "MaxTiem=1"), [""; 0], "the version is not known");
    }
}
