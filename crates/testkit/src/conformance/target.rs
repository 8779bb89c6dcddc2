//! The server that the suite runs against.

use std::pin::Pin;

use slurm::client::Auth;
use slurm::version::{RestVersion, SlurmVersion};

/// A pending action. Not `Send`: the compiler cannot yet prove it for futures with async closures.
pub type Running<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

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

    /// Two dynamic nodes, each with a free CPU for a job, that are not used otherwise.
    fn nodes(&self) -> [String; 2];

    /// Whether slurmdbd is available.
    fn has_accounting(&self) -> bool;

    /// Suspends a job, which no version of the REST API can.
    fn suspend(&self, job: u32) -> Running<'_>;

    /// Continues a suspended job.
    fn resume(&self, job: u32) -> Running<'_>;

    /// Stops slurmctld; returns when it has stopped.
    fn stop_slurmctld(&self) -> Running<'_>;

    /// Starts slurmctld again with its previous state; need not wait until it responds.
    fn start_slurmctld(&self) -> Running<'_>;
}
