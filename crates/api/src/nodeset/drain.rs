//! How workers get rid of their jobs.

use jiff::SignedDuration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::{self, DurationError};

/// How long a worker may take to get rid of its jobs before it is removed, and what happens then.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.onTimeout == 'Wait' || has(self.timeout)")
        .message("timeout is required when onTimeout is Requeue or Kill")
)]
pub struct Drain {
    /// How long to wait for running jobs, for example 30m or 12h. As long as they take if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub timeout: Option<String>,

    /// What happens to jobs that still run after the timeout. Wait, also if not set, leaves them alone and says so in the
    /// status. Requeue puts them back into the queue; it needs Slurm 26.05, and waits with older ones. Kill ends them.
    #[serde(default)]
    pub on_timeout: OnTimeout,

    /// Whether workers are drained also when the `NodeSet` itself is deleted. Otherwise, and if not set, their jobs end with
    /// them.
    #[serde(default)]
    pub on_delete: bool,
}

/// What happens to jobs that outlast a drain.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// Nothing: the drain goes on.
    #[default]
    Wait,
    /// They go back into the queue.
    Requeue,
    /// They end.
    Kill,
}

impl Drain {
    /// How long to wait for running jobs. `None` means as long as they take. A negative time is none at all.
    pub fn timeout(&self) -> Result<Option<SignedDuration>, DurationError> {
        let timeout = self.timeout.as_deref().map(duration::parse).transpose()?;
        Ok(timeout.map(|timeout| timeout.max(SignedDuration::ZERO)))
    }
}
