//! The server that the suite runs against.

use std::pin::Pin;

use slurm::client::Auth;
use slurm::version::{RestVersion, SlurmVersion};

/// A pending action. Not `Send`: the compiler cannot yet prove it for futures with async closures.
pub type Running<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// The reason of [`Target::silent_node`].
pub const SILENT_REASON: &str = "conformance";

/// Another slurmd for a dynamic node, with other features than the node's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slurmd {
    pub node: String,
    /// Its machine has only one CPU, which is less than those of [`Target::nodes`] have.
    pub is_small: bool,
    /// Its machine has booted since slurmctld last heard of the node (`slurmd -b`).
    pub is_rebooted: bool,
}

impl Slurmd {
    /// One like the node's own.
    #[must_use]
    pub fn of(node: &str) -> Self {
        Self { node: node.to_owned(), is_small: false, is_rebooted: false }
    }

    #[must_use]
    pub fn small(node: &str) -> Self {
        Self { is_small: true, ..Self::of(node) }
    }

    #[must_use]
    pub fn rebooted(node: &str) -> Self {
        Self { is_rebooted: true, ..Self::of(node) }
    }
}

/// A slurmrestd with a Slurm cluster, and what to expect of both.
pub trait Target: Send + Sync {
    /// Name in messages: `fake 24.11`.
    fn name(&self) -> String;

    /// URL: `http://127.0.0.1:6820`.
    fn url(&self) -> String;

    /// Valid tokens of a user with all privileges.
    fn auth(&self) -> anyhow::Result<Auth>;

    fn user(&self) -> &str;

    /// The release that the server must report.
    fn release(&self) -> SlurmVersion;

    /// The REST version to use; if `None`, the newest that server and client have in common.
    fn rest_version(&self) -> Option<RestVersion>;

    /// Two dynamic nodes, each with more than one CPU and one free for a job, that are not used otherwise.
    fn nodes(&self) -> [String; 2];

    /// Whether slurmdbd is available.
    fn has_accounting(&self) -> bool;

    /// A NodeSet in slurm.conf.
    fn node_set(&self) -> &str;

    /// A dynamic node that was drained with [`SILENT_REASON`] and whose slurmd has ended since then.
    fn silent_node(&self) -> &str;

    /// Starts another slurmd on a machine of its own. The one that was started before ends. Returns when slurmctld has
    /// accepted or refused its registration.
    fn start_slurmd(&self, slurmd: Slurmd) -> Running<'_>;

    /// Ends the other slurmd; the own one of this node registers again.
    fn stop_slurmd(&self, node: &str) -> Running<'_>;

    /// Suspends a job, which no version of the REST API can.
    fn suspend(&self, job: u32) -> Running<'_>;

    /// Continues a suspended job.
    fn resume(&self, job: u32) -> Running<'_>;

    /// Stops slurmctld; returns when it has stopped.
    fn stop_slurmctld(&self) -> Running<'_>;

    /// Starts slurmctld again with its previous state; need not wait until it responds.
    fn start_slurmctld(&self) -> Running<'_>;
}
