//! Keys that daemons need: what was found of them, never what they are.

use slurm_operator_api::{conditions::reason, shared::SecretKeySelector};

use super::progress::Problem;

/// What was found where a key should be. Only its hash is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Nothing names it.
    NotNamed,
    /// The Secret is not there.
    NoSecret,
    /// The Secret has no such entry, or it is empty.
    NoEntry,
    /// It is too short to be safe.
    TooShort(String),
    /// It will do.
    Good {
        /// Changes with it.
        hash: String,
    },
}

/// The hash of a key that is there; otherwise what to do. `what` is the key in words, `field` is where it is named.
pub fn hash_of<'a>(
    state: &'a KeyState,
    reference: Option<&SecretKeySelector>,
    what: &str,
    field: &str,
) -> Result<&'a str, Problem> {
    let (secret, entry) = reference.map_or(("", ""), |reference| (&reference.name, &reference.key));
    match state {
        KeyState::Good { hash } => Ok(hash),
        KeyState::NotNamed => Err(Problem::invalid(format!("name the Secret with {what} in {field}"))),
        KeyState::NoSecret => Err(Problem::new(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} with {what} does not exist: create it, with the key as {entry}"),
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
