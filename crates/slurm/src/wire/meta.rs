//! What comes with every answer.

use serde::Deserialize;

use super::fields;
use crate::version::SlurmVersion;

/// Who answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WireMeta")]
pub struct Meta {
    /// The release of slurmrestd, if it said one that we can read.
    pub version: Option<SlurmVersion>,
    /// The release as it was written: `26.05.5`.
    pub release: String,
    /// The name of the cluster.
    pub cluster: String,
    /// The plugin that wrote the answer: `data_parser/v0.0.45`.
    pub data_parser: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireMeta {
    plugin: Option<WirePlugin>,
    // v0.0.40 and older spell it with a capital.
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
    /// Slurm's number of the error. Zero is no success here: some calls fail with it.
    #[serde(rename = "error_number")]
    pub code: i64,
    /// What that number means.
    #[serde(deserialize_with = "fields::text")]
    pub error: String,
    /// What was being done.
    #[serde(deserialize_with = "fields::text")]
    pub description: String,
    /// The function or field where it happened.
    #[serde(deserialize_with = "fields::text")]
    pub source: String,
}

/// One entry of `warnings`: what slurmrestd did not like and did anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Warning {
    /// What it did not like.
    #[serde(deserialize_with = "fields::text")]
    pub description: String,
    /// The function or field where it happened.
    #[serde(deserialize_with = "fields::text")]
    pub source: String,
}
