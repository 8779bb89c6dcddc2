//! What is wrong with the spec of a Token, as far as it alone shows.

use jiff::SignedDuration;
use slurm_operator_api::{common::validation::FieldError, slinky::Token};

/// A shorter token would be replaced, with a status and an event, every few seconds.
const SHORTEST: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn validate(token: &Token) -> Vec<FieldError> {
    let lifetime = token.spec.lifetime().err().map(|error| FieldError::new("spec.lifetime", error.to_string()));
    let too_short = token.spec.lifetime().is_ok_and(|lifetime| lifetime < SHORTEST);
    let too_short = too_short.then(|| FieldError::new("spec.lifetime", "must be at least 30 seconds"));
    let key = token.spec.key_ref().is_none();
    let key = key.then(|| FieldError::new("spec.jwtKeyRef", "set it to the Secret with the signing key"));
    lifetime.into_iter().chain(too_short).chain(username(token)).chain(secret_name(token)).chain(key).collect()
}

/// Slurm's user names have no spaces and no control characters.
fn username(token: &Token) -> Option<FieldError> {
    let is_wrong = |c: char| c.is_whitespace() || c.is_control();
    let message = "must not contain spaces, line breaks or other control characters";
    token.spec.username().contains(is_wrong).then(|| FieldError::new("spec.username", message))
}

/// The name is made of the name of the Token and the user, unless it is set.
fn secret_name(token: &Token) -> Option<FieldError> {
    let name = token.secret_name();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let has_ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_valid =
        name.len() <= 253 && name.chars().all(is_plain) && name.starts_with(has_ends) && name.ends_with(has_ends);
    let message = || format!("`{}` is not a valid name of a Secret: set spec.secretRef.name", name.escape_debug());
    (!is_valid).then(|| FieldError::new("spec.secretRef.name", message()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(name: &str, spec: serde_json::Value) -> Vec<String> {
        let mut spec = spec;
        spec["jwtKeyRef"] = json!({"name": "auth", "key": "jwt.key"});
        let token: Token = serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token", "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap();
        validate(&token).into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn names_and_lifetimes_that_cannot_work_are_named() {
        assert_eq!(errors("t", json!({"username": "alice"})), Vec::<String>::new());
        assert_eq!(errors("t", json!({"username": "a\nb"})), ["spec.username", "spec.secretRef.name"]);
        assert_eq!(errors("t", json!({"username": "DOMAIN\\alice"})), ["spec.secretRef.name"]);
        let named = json!({"username": "DOMAIN\\alice", "secretRef": {"name": "alice", "key": "k"}});
        assert_eq!(errors("t", named), Vec::<String>::new());
        for lifetime in ["-5m", "0s", "999ms", "29s"] {
            assert_eq!(
                errors("t", json!({"username": "alice", "lifetime": lifetime})),
                ["spec.lifetime"],
                "{lifetime}"
            );
        }
    }
}
