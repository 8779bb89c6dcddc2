//! Ping results of the slurmctld hosts.

use serde::Deserialize;

use super::{envelope::Record, fields};

/// One slurmctld, in the order of `SlurmctldHost`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WirePing")]
pub struct Ping {
    pub hostname: String,
    pub responding: bool,
    /// Whether it is the primary, not a backup.
    pub primary: bool,
    /// Response time in microseconds.
    pub latency: u64,
}

impl Record for Ping {
    const KEY: &'static str = "pings";
    const MOST: usize = 1 << 20;

    fn size(&self) -> usize {
        size_of::<Self>() + self.hostname.len()
    }
}

/// v0.0.41 has only `pinged` and `mode`, v0.0.45 only `responding` and `primary`; versions between have all four.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePing {
    #[serde(deserialize_with = "fields::text")]
    hostname: String,
    #[serde(deserialize_with = "fields::text")]
    pinged: String,
    responding: Option<bool>,
    #[serde(deserialize_with = "fields::text")]
    mode: String,
    primary: Option<bool>,
    #[serde(deserialize_with = "fields::number")]
    latency: u64,
}

impl From<WirePing> for Ping {
    fn from(wire: WirePing) -> Self {
        Self {
            responding: wire.responding.unwrap_or(wire.pinged == "UP"),
            primary: wire.primary.unwrap_or(wire.mode == "primary"),
            hostname: wire.hostname,
            latency: wire.latency,
        }
    }
}
