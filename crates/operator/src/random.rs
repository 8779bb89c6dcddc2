//! Random numbers from the TLS library.

use aws_lc_rs::rand;
use thiserror::Error;

/// The system has no randomness available.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the system random number generator failed")]
pub struct NoRandomness;

/// Random bytes suitable for a key.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// A unique identifier: 128 bits, in hexadecimal.
pub fn id() -> Result<String, NoRandomness> {
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes()?)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn identifiers_differ_and_have_one_length() {
        let ids = [super::id().unwrap(), super::id().unwrap()];
        assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 32), "{ids:?}");
    }
}
