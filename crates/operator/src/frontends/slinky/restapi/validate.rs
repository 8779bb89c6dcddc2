//! What is wrong with the spec of a `RestApi`, as far as it alone shows.

use slurm_operator_api::{common::validation::FieldError, slinky::RestApi};

pub(super) fn validate(rest_api: &RestApi) -> Vec<FieldError> {
    match rest_api.spec.slurmrestd.text("image") {
        Some(_) => Vec::new(),
        None => vec![FieldError::required("spec.slurmrestd.image")],
    }
}
