//! What is wrong with the spec of a `LoginSet`, as far as it alone shows.

use slurm_operator_api::{common::validation::FieldError, slinky::LoginSet};

pub(super) fn validate(login_set: &LoginSet) -> Vec<FieldError> {
    let spec = &login_set.spec;
    let required = [
        ("spec.controllerRef.name", Some(spec.controller_ref.name.as_str())),
        ("spec.login.image", spec.login.text("image")),
        ("spec.sssdConfRef.name", Some(spec.sssd_conf_ref.name.as_str())),
        ("spec.sssdConfRef.key", Some(spec.sssd_conf_ref.key.as_str())),
    ];
    let is_missing = |value: Option<&str>| value.is_none_or(str::is_empty);
    required.into_iter().filter(|(_, value)| is_missing(*value)).map(|(path, _)| FieldError::required(path)).collect()
}
