//! slurm.conf and cgroup.conf of a cluster, and the hash that tells whether they changed.

mod slurm_conf;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt::Write};

use sha2::{Digest, Sha256};
use slurm::{
    conf::{ConfBuilder, ConfError},
    version::SlurmVersion,
};
use thiserror::Error;

pub(crate) use slurm_conf::state_folder;
pub use slurm_conf::{external_slurm_conf, slurm_conf};

/// Files by their names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What Slurm's configuration tells about a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterModel {
    /// What Slurm calls it.
    pub name: String,
    /// Every slurmctld, the first one first.
    pub hosts: Vec<Host>,
    /// One address that stands for whichever slurmctld is there. Without it, clients try one host after the other.
    pub address: Option<String>,
    /// The port of slurmctld.
    pub port: u16,
    /// Where slurmdbd is, if there is accounting.
    pub accounting: Option<Place>,
    /// Whether slurmctld serves metrics, if it can.
    pub metrics: bool,
    /// Whether there is a key set for tokens that others sign.
    pub jwks: bool,
    /// What is known of the version.
    pub version: Option<SlurmVersion>,
    /// Scripts in /etc/slurm.
    pub scripts: Scripts,
    /// Sets of nodes, in the order in which they are written.
    pub node_sets: Vec<NodeSetLine>,
    /// Lines of the user for the end of slurm.conf.
    pub extra: String,
}

/// A slurmctld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its host name.
    pub name: String,
    /// Where others reach it.
    pub address: String,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Names of the files with scripts that run around jobs, each sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    /// On workers, before.
    pub prolog: Vec<String>,
    /// On workers, after.
    pub epilog: Vec<String>,
    /// In slurmctld, before.
    pub prolog_slurmctld: Vec<String>,
    /// In slurmctld, after.
    pub epilog_slurmctld: Vec<String>,
}

/// A set of nodes that share a feature, and perhaps its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSetLine {
    /// The object that asks for it, for messages.
    pub origin: String,
    /// What Slurm calls it.
    pub name: String,
    /// The parameters of the partition, if there is one.
    pub partition: Option<String>,
}

/// Why there can be no configuration, and what to do about it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Something that the user wrote is not Slurm's notation.
    #[error("{at}: {error}")]
    Notation {
        /// The field.
        at: String,
        /// What is wrong.
        error: ConfError,
    },
    /// Two sets would be one in Slurm.
    #[error(
        "{first} and {second} are both called {name} in Slurm: give one of them another spec.template.spec.hostname"
    )]
    SameName {
        /// One of them.
        first: String,
        /// The other one.
        second: String,
        /// The name.
        name: String,
    },
}

/// cgroup.conf: nothing but what containers need.
pub fn cgroup_conf() -> Result<String, ConfigError> {
    let mut conf = ConfBuilder::new();
    // Hosts may have cgroups of either version; nothing in a container is systemd's.
    let written = conf.name("CgroupPlugin", "autodetect").and_then(|conf| conf.name("IgnoreSystemd", "yes"));
    written.map_err(|error| ConfigError::Notation { at: "cgroup.conf".to_owned(), error })?;
    Ok(conf.to_string())
}

/// A hash over contents in the order of their names; of nothing it is empty.
pub fn hash<'a, B: AsRef<[u8]> + ?Sized + 'a>(contents: impl IntoIterator<Item = (&'a str, &'a B)>) -> String {
    let sorted: BTreeMap<&str, &B> = contents.into_iter().collect();
    if sorted.is_empty() {
        return String::new();
    }
    let mut hasher = Sha256::new();
    for content in sorted.values() {
        hasher.update(content);
    }
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
