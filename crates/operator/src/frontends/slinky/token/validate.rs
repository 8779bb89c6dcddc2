//! What is wrong with the spec of a Token, as far as it alone shows.

use slurm_operator_api::{common::validation::FieldError, slinky::Token};

pub(super) fn validate(token: &Token) -> Vec<FieldError> {
    let lifetime = token.spec.lifetime().err().map(|error| FieldError::new("spec.lifetime", error.to_string()));
    let key = token.spec.key_ref().is_none();
    let key = key.then(|| FieldError::new("spec.jwtKeyRef", "set it to the Secret with the signing key"));
    lifetime.into_iter().chain(key).collect()
}
