//! The state of keys that daemons need. Plans get hashes of the keys, never the keys.

use std::fmt;

use slurm_operator_api::common::{conditions::reason, shared::SecretKeySelector};

use super::progress::Problem;

/// The state of a key in a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The spec does not reference a Secret.
    NotNamed,
    /// The Secret does not exist.
    NoSecret,
    /// The Secret has no such key, or it is empty.
    NoEntry,
    /// Too short to be secure.
    TooShort(String),
    Good {
        hash: String,
    },
}

/// Returns the hash of a key, or the problem with it. `what` describes the key, `field` is the field that references it.
pub fn hash_of<'a>(
    state: &'a KeyState,
    reference: Option<&SecretKeySelector>,
    what: &str,
    field: &str,
) -> Result<&'a str, Problem> {
    let (secret, entry) = reference.map_or(("", ""), |reference| (&reference.name, &reference.key));
    match state {
        KeyState::Good { hash } => Ok(hash),
        KeyState::NotNamed => Err(Problem::invalid(format!("set {field} to the Secret with {what}"))),
        KeyState::NoSecret => Err(Problem::new(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} with {what} does not exist: create it with the key {entry}"),
        )),
        KeyState::NoEntry => Err(Problem::new(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} has no entry {entry}: add {what} there, or correct {field}"),
        )),
        KeyState::TooShort(error) => {
            Err(Problem::new("KeyTooShort", format!("{entry} in the Secret {secret}: {error}")))
        }
    }
}

/// A text whose `Debug` output is redacted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}
