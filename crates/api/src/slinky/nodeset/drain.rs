//! How jobs are drained from workers.

use jiff::SignedDuration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::duration::{self, DurationError};

/// How long to wait for the jobs of a worker before it is removed, and what to do with jobs that are still running
/// then.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.onTimeout == 'Wait' || has(self.timeout)")
        .message("timeout is required when onTimeout is Requeue or Kill")
)]
pub struct Drain {
    /// How long to wait for running jobs, for example 30m or 12h. Without limit if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub timeout: Option<String>,

    /// What to do with jobs that are still running after the timeout. Wait (default) keeps waiting and reports it in
    /// the status. Requeue puts them back into the queue; it requires Slurm 26.05, with older versions it behaves like
    /// Wait. Kill ends them.
    #[serde(default)]
    pub on_timeout: OnTimeout,

    /// Whether workers are also drained when the NodeSet is deleted. Defaults to false: running jobs end with their
    /// pods.
    #[serde(default)]
    pub on_delete: bool,
}

/// What to do with jobs that are still running after the drain timeout.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// Keep waiting.
    #[default]
    Wait,
    /// Put them back into the queue.
    Requeue,
    /// End them.
    Kill,
}

impl Drain {
    /// How long to wait for running jobs. `None` means without limit; a negative value means no wait.
    pub fn timeout(&self) -> Result<Option<SignedDuration>, DurationError> {
        let timeout = self.timeout.as_deref().map(duration::parse).transpose()?;
        Ok(timeout.map(|timeout| timeout.max(SignedDuration::ZERO)))
    }
}
