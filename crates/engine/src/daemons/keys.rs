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
    Good {
        hash: String,
        /// Why the key is weak, if it is.
        weakness: Option<String>,
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
        KeyState::Good { hash, .. } => Ok(hash),
        KeyState::NotNamed => Err(Problem::invalid(format!("set {field} to the Secret with {what}"))),
        KeyState::NoSecret => Err(Problem::new(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} with {what} does not exist: create it with the key {entry}"),
        )),
        KeyState::NoEntry => Err(Problem::new(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} has no entry {entry}: add {what} there, or correct {field}"),
        )),
    }
}

/// A warning about a key that is used although it is weak.
pub fn weak_key(state: &KeyState, reference: Option<&SecretKeySelector>) -> Option<Problem> {
    let (KeyState::Good { weakness: Some(weakness), .. }, Some(reference)) = (state, reference) else { return None };
    Some(key_too_short(reference, weakness))
}

/// The warning about a key of which this is the weakness.
pub fn key_too_short(reference: &SecretKeySelector, weakness: &str) -> Problem {
    Problem::new("KeyTooShort", format!("{} in the Secret {}: {weakness}", reference.key, reference.name))
}

/// A text whose `Debug` output is redacted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}
