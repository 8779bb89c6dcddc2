//! Metadata, errors and warnings of a response.

use serde::Deserialize;

use super::fields;
use crate::version::SlurmVersion;

/// The server that responded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WireMeta")]
pub struct Meta {
    /// Version of slurmrestd, if it could be parsed.
    pub version: Option<SlurmVersion>,
    /// Version as text: `26.05.5`.
    pub release: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Plugin that wrote the response: `data_parser/v0.0.45`.
    pub data_parser: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireMeta {
    plugin: Option<WirePlugin>,
    // v0.0.40 and older spell it with a capital letter.
    #[serde(alias = "Slurm")]
    slurm: Option<WireSlurm>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePlugin {
    #[serde(deserialize_with = "fields::text")]
    data_parser: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireSlurm {
    version: WireVersion,
    #[serde(deserialize_with = "fields::text")]
    release: String,
    #[serde(deserialize_with = "fields::text")]
    cluster: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireVersion {
    #[serde(deserialize_with = "fields::text")]
    major: String,
    #[serde(deserialize_with = "fields::text")]
    minor: String,
    #[serde(deserialize_with = "fields::text")]
    micro: String,
}

impl From<WireMeta> for Meta {
    fn from(wire: WireMeta) -> Self {
        let slurm = wire.slurm.unwrap_or_default();
        let WireVersion { major, minor, micro } = slurm.version;
        let version = format!("{major}.{minor}.{micro}").parse().or_else(|_| slurm.release.parse()).ok();
        let data_parser = wire.plugin.unwrap_or_default().data_parser;
        Self { version, release: slurm.release, cluster: slurm.cluster, data_parser }
    }
}

/// One entry of `errors`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ErrorEntry {
    /// Slurm's error code. Zero is not a success: some calls fail with it.
    #[serde(rename = "error_number")]
    pub code: i64,
    /// Meaning of the error code.
    #[serde(deserialize_with = "fields::text")]
    pub error: String,
    /// What the server was doing.
    #[serde(deserialize_with = "fields::text")]
    pub description: String,
    /// Function or field where the error occurred.
    #[serde(deserialize_with = "fields::text")]
    pub source: String,
}

/// One entry of `warnings`: something that slurmrestd complained about but accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Warning {
    #[serde(deserialize_with = "fields::text")]
    pub description: String,
    /// Function or field that the warning concerns.
    #[serde(deserialize_with = "fields::text")]
    pub source: String,
}
