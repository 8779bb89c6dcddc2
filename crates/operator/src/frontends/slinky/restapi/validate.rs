//! What is wrong with the spec of a `RestApi`, as far as it alone shows.

use kube::ResourceExt;
use slurm_operator_api::{
    common::validation::FieldError,
    slinky::{RestApi, names},
};

/// The longest name of a Service.
const MAX_NAME: usize = 63;

pub(super) fn validate(rest_api: &RestApi) -> Vec<FieldError> {
    let image = rest_api.spec.slurmrestd.text("image").is_none().then(|| FieldError::required("spec.slurmrestd.image"));
    let length = names::rest_api(&rest_api.name_any()).len();
    let is_long = (length > MAX_NAME).then(|| {
        let message = format!(
            "too long by {} characters for the name of a Service: create one with a shorter name",
            length - MAX_NAME
        );
        FieldError::new("metadata.name", message)
    });
    image.into_iter().chain(is_long).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_that_is_too_long_is_reported() {
        let errors = |length: usize| {
            let object = json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "RestApi", "metadata": {"name": "n".repeat(length)},
                "spec": {"controllerRef": {"name": "slurm"}, "slurmrestd": {"image": "example.com/slurmrestd:26.05"}},
            });
            validate(&serde_json::from_value(object).unwrap())
        };
        let longest = MAX_NAME - names::rest_api("").len();
        assert_eq!(errors(longest), []);
        assert_eq!(errors(longest + 1).first().map(|error| &*error.path), Some("metadata.name"));
    }
}
