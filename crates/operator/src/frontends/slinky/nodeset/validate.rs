//! What is wrong with the spec of a `NodeSet`, as far as it alone shows.

use slurm_operator_api::{common::validation::FieldError, slinky::NodeSet};

use super::model::Parsed;

pub(super) fn validate(set: &NodeSet) -> Vec<FieldError> {
    errors(set, &Parsed::of(set))
}

pub(super) fn errors(set: &NodeSet, parsed: &Parsed) -> Vec<FieldError> {
    let Parsed { pod, drain_timeout, update, conf } = parsed;
    let image = set.spec.slurmd.text("image").is_none().then(|| FieldError::required("spec.slurmd.image"));
    let invalid = [pod.as_ref().err(), drain_timeout.as_ref().err(), update.as_ref().err(), conf.as_ref().err()];
    invalid.into_iter().flatten().cloned().chain(image).collect()
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
            ]
        );
    }
}
