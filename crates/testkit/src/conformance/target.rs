//! What the suite is to run against.

use std::pin::Pin;

use slurm::client::Auth;
use slurm::version::{RestVersion, SlurmVersion};

/// An action that is under way. It stays on its thread: the compiler cannot yet see that what waits with async closures
/// could move.
pub type Running<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// A slurmrestd with a Slurm cluster behind it, and what to expect of both.
pub trait Target: Send + Sync {
    /// What to call it in messages: `fake 24.11`.
    fn name(&self) -> String;

    /// Where it listens: `http://127.0.0.1:6820`.
    fn url(&self) -> String;

    /// Good tokens for a user who may do everything.
    fn auth(&self) -> anyhow::Result<Auth>;

    /// That user.
    fn user(&self) -> &str;

    /// The release that it must turn out to be.
    fn release(&self) -> SlurmVersion;

    /// The REST version to use; the newest that server and client have in common if none.
    fn rest_version(&self) -> Option<RestVersion>;

    /// Two dynamic nodes, each with a CPU to spare for a job, that nothing else uses meanwhile.
    fn nodes(&self) -> [String; 2];

    /// Whether slurmdbd is there.
    fn has_accounting(&self) -> bool;

    /// Stops slurmctld; returns when it is gone.
    fn stop_slurmctld(&self) -> Running<'_>;

    /// Starts slurmctld again, with the state it had; need not wait until it answers.
    fn start_slurmctld(&self) -> Running<'_>;
}
