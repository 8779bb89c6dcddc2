//! Keys that daemons need: what was found of them, never what they are.

use slurm_operator_api::{conditions::reason, shared::SecretKeySelector};

use super::verdict::Trouble;

/// What was found where a key should be. Only its hash is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySeen {
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
    seen: &'a KeySeen,
    reference: Option<&SecretKeySelector>,
    what: &str,
    field: &str,
) -> Result<&'a str, Trouble> {
    let (secret, entry) = reference.map_or(("", ""), |reference| (&reference.name, &reference.key));
    match seen {
        KeySeen::Good { hash } => Ok(hash),
        KeySeen::NotNamed => Err(Trouble::invalid(format!("name the Secret with {what} in {field}"))),
        KeySeen::NoSecret => Err(Trouble::new(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} with {what} does not exist: create it, with the key as {entry}"),
        )),
        KeySeen::NoEntry => Err(Trouble::new(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} has no entry {entry}: add {what} there, or correct {field}"),
        )),
        KeySeen::TooShort(error) => {
            Err(Trouble::new("KeyTooShort", format!("{entry} in the Secret {secret}: {error}")))
        }
    }
}
