//! What is wrong with the spec of a Controller, as far as it alone shows.

use slurm::conf::{Finding, check};
use slurm_operator_api::{common::validation::FieldError, slinky::Controller};

use super::model::version;

pub(super) fn validate(controller: &Controller) -> Vec<FieldError> {
    let spec = &controller.spec;
    if spec.external {
        let message = "required while spec.external is true: set it, or set spec.external to false";
        return match spec.elsewhere() {
            Some(_) => Vec::new(),
            None => vec![FieldError::new("spec.externalConfig", message)],
        };
    }
    let mut errors = running(controller);
    let found = check("slurm.conf", spec.extra_conf.as_deref().unwrap_or_default(), version(controller));
    let refused = found.into_iter().filter(Finding::is_error);
    errors.extend(refused.map(|finding| FieldError::new("spec.extraConf", finding.text)));
    errors
}

/// What slurmctld needs to run.
pub(super) fn running(controller: &Controller) -> Vec<FieldError> {
    let spec = &controller.spec;
    let keys = [
        (spec.slurm_key_ref.is_some(), "spec.slurmKeyRef", "set it to the Secret with Slurm's key"),
        (spec.jwt_key().is_some(), "spec.jwtKeyRef", "set it to the Secret with the key that signs tokens"),
    ];
    let missing = keys.into_iter().filter(|(is_set, ..)| !is_set);
    let mut errors: Vec<FieldError> = missing.map(|(_, path, message)| FieldError::new(path, message)).collect();
    if spec.slurmctld.text("image").is_none() {
        errors.push(FieldError::required("spec.slurmctld.image"));
    }
    errors
}
