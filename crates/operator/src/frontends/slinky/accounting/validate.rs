//! What is wrong with the spec of an Accounting, as far as it alone shows.

use engine::config::extra;
use slurm::{
    conf::{Finding, check},
    version::SlurmVersion,
};
use slurm_operator_api::{common::validation::FieldError, slinky::Accounting};

pub(super) fn validate(accounting: &Accounting) -> Vec<FieldError> {
    let spec = &accounting.spec;
    if spec.external {
        let message = "required while spec.external is true: set it, or set spec.external to false";
        return match spec.elsewhere() {
            Some(_) => Vec::new(),
            None => vec![FieldError::new("spec.externalConfig", message)],
        };
    }
    let storage = spec.storage_config.as_ref();
    let needed = [
        (spec.slurm_key_ref.is_some(), "spec.slurmKeyRef", "set it to the Secret with Slurm's key"),
        (spec.jwt_key().is_some(), "spec.jwtKeyRef", "set it to the Secret with the key that signs tokens"),
        (storage.is_some(), "spec.storageConfig", "set the host and the password of the database"),
        (storage.is_none_or(|storage| !storage.host.is_empty()), "spec.storageConfig.host", "set the database server"),
    ];
    let missing = needed.into_iter().filter(|(is_set, ..)| !is_set);
    let mut errors: Vec<FieldError> = missing.map(|(_, path, message)| FieldError::new(path, message)).collect();
    if spec.slurmdbd.text("image").is_none() {
        errors.push(FieldError::required("spec.slurmdbd.image"));
    }
    let text = spec.extra_conf.as_deref().unwrap_or_default();
    match extra(text) {
        // The text names the field.
        Err(error) => {
            let message = error.to_string();
            let message = message.strip_prefix("spec.extraConf: ").unwrap_or(&message);
            errors.push(FieldError::new("spec.extraConf", message));
        }
        Ok(extra) if extra.get("DbdPort").is_some() => {
            let message = "DbdPort is fixed, and the Service leads to it: remove it, and set spec.service.port";
            errors.push(FieldError::new("spec.extraConf", message));
        }
        // slurmdbd ends if it does not know a key.
        Ok(_) => {
            let version = spec.slurmdbd.text("image").and_then(SlurmVersion::from_image);
            let found = check("slurmdbd.conf", text, version).into_iter().filter(Finding::is_error);
            errors.extend(found.map(|finding| FieldError::new("spec.extraConf", finding.text)));
        }
    }
    errors
}
