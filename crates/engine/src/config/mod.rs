//! slurm.conf and cgroup.conf of a cluster, and slurmdbd.conf.

pub mod in_use;
mod slurm_conf;
mod slurmdbd_conf;
#[cfg(test)]
mod tests;
mod trial;

use std::collections::{BTreeMap, BTreeSet};

use slurm::{
    conf::{ConfBuilder, ConfError, Finding, check_partition, unknown_qos},
    version::SlurmVersion,
};
use thiserror::Error;

pub(crate) use slurm_conf::state_folder;
pub use slurm_conf::{GRES_TYPES, external_slurm_conf, extra, slurm_conf};
pub use slurmdbd_conf::{SlurmdbdModel, Storage, TLS_FOLDER, slurmdbd_conf};
pub use trial::{TRIAL_FOLDER, TRIAL_HOST, TrialFiles, trial_files};

/// File contents by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The input for the configuration of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterModel {
    /// `ClusterName`
    pub name: String,
    /// All slurmctld hosts, the primary first.
    pub hosts: Vec<Host>,
    /// `SlurmctldAddr`: one address for whichever slurmctld is active. Without it, clients try the hosts in order.
    pub address: Option<String>,
    pub port: u16,
    /// The address of slurmdbd; `None` without accounting.
    pub accounting: Option<Place>,
    /// Whether slurmctld serves metrics, if its version supports that.
    pub metrics: bool,
    /// Whether there is a JWKS file, for tokens signed by others.
    pub jwks: bool,
    pub auth: AuthPlugin,
    pub delivery: ConfigDelivery,
    /// `None` if unknown.
    pub version: Option<SlurmVersion>,
    pub scripts: Scripts,
    /// `GresTypes` that follow from the workers, unless the user sets them.
    pub gres_types: BTreeSet<String>,
    /// NodeSet lines, in this order.
    pub node_sets: Vec<NodeSetLine>,
    /// The user's lines for the end of slurm.conf.
    pub extra: String,
}

/// How the daemons authenticate to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthPlugin {
    /// auth/slurm, with a key that all daemons share.
    #[default]
    Slurm,
}

/// How slurmd gets the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigDelivery {
    /// From slurmctld.
    #[default]
    Configless,
}

/// A slurmctld host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub address: String,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub host: String,
    pub port: u16,
}

/// File names of prolog and epilog scripts in /etc/slurm, each list sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    pub prolog: Vec<String>,
    pub epilog: Vec<String>,
    pub prolog_slurmctld: Vec<String>,
    pub epilog_slurmctld: Vec<String>,
}

/// A NodeSet line for the nodes with a feature, and optionally its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSetLine {
    /// The object that requires the line, for messages.
    pub origin: String,
    /// The name in Slurm.
    pub name: String,
    /// The parameters of the partition; `None` without a partition.
    pub partition: Option<String>,
}

/// Why the configuration is invalid, and what to do about it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A value does not follow Slurm's syntax.
    #[error("{at}: {error}")]
    Notation {
        /// The field or file.
        at: String,
        error: ConfError,
    },
    /// The user overrides what must stay.
    #[error("spec.extraConf: line {line}: {key} is set by the operator: remove the line")]
    Fixed { key: String, line: usize },
    /// Two sets have the same name in Slurm.
    #[error(
        "{first} and {second} have the same name {name} in Slurm: change spec.template.spec.hostname of one of them"
    )]
    SameName { first: String, second: String, name: String },
    /// Slurm does not know a key, or cannot read a value.
    #[error("{at}: {text}")]
    Refused {
        /// The field.
        at: String,
        text: String,
    },
}

impl ConfigError {
    /// Two sets have the same name in Slurm.
    pub fn same_name(first: &NodeSetLine, second: &NodeSetLine) -> Self {
        Self::SameName { first: first.origin.clone(), second: second.origin.clone(), name: second.name.clone() }
    }
}

/// Whether a NodeSet and its partition can be written to slurm.conf of this version. Returns warnings.
pub fn check_line(line: &NodeSetLine, version: Option<SlurmVersion>) -> Result<Vec<String>, ConfigError> {
    slurm_conf::node_set(&mut ConfBuilder::new(), line)?;
    let at = format!("{}, spec.partition.config", line.origin);
    let found = check_partition(line.partition.as_deref().unwrap_or_default(), version);
    let (errors, warnings): (Vec<_>, Vec<_>) = found.into_iter().partition(Finding::is_error);
    match errors.into_iter().next() {
        Some(error) => Err(ConfigError::Refused { at, text: error.text }),
        None => Ok(warnings.into_iter().map(|warning| format!("{at}: {}", warning.text)).collect()),
    }
}

/// Whether the QOS of a partition exist. `known` are those of slurmdbd.
pub fn check_qos(line: &NodeSetLine, known: &BTreeSet<String>) -> Result<(), ConfigError> {
    let found = unknown_qos(line.partition.as_deref().unwrap_or_default(), known).into_iter().next();
    let at = || format!("{}, spec.partition.config", line.origin);
    found.map_or(Ok(()), |text| Err(ConfigError::Refused { at: at(), text }))
}

/// cgroup.conf with the settings that containers need.
pub fn cgroup_conf() -> Result<String, ConfigError> {
    let mut conf = ConfBuilder::new();
    // Hosts may use cgroup v1 or v2, and there is no systemd in the containers.
    let written = conf.name("CgroupPlugin", "autodetect").and_then(|conf| conf.name("IgnoreSystemd", "yes"));
    written.map_err(|error| ConfigError::Notation { at: "cgroup.conf".to_owned(), error })?;
    Ok(conf.to_string())
}
