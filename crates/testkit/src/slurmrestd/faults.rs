//! Fault injection.

use std::time::Duration;

/// Faults of slurmrestd and the network. For faults of slurmctld see [`Cluster`](super::Cluster).
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Additional latency of each response.
    pub latency: Duration,
    /// Additional latency of each response that needs slurmctld while it is down. The real slurmrestd tries for 9 to 10
    /// seconds, twice that for a single job.
    pub down_latency: Duration,
    /// Rejects every token, as after a key change.
    pub refuse_tokens: bool,
    /// Lists of nodes and jobs are empty, like those of a slurmctld that has just lost its state.
    pub empty_lists: bool,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    path: String,
    kind: Fault,
    left: u32,
}

/// What happens to a request instead of a normal response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// HTTP 500 with plain text.
    Error,
    /// The connection is closed before the first byte of the response.
    Cut,
    /// Never responds.
    Hang,
    /// Truncated JSON.
    Garbage,
}

impl Faults {
    /// Injects this fault into the next `times` requests whose path contains `path`.
    pub fn next(&mut self, times: u32, path: &str, kind: Fault) {
        self.rules.push(Rule { path: path.to_owned(), kind, left: times });
    }

    /// Removes all faults.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn meet(&mut self, path: &str) -> Option<Fault> {
        let rule = self.rules.iter_mut().find(|rule| rule.left > 0 && path.contains(&rule.path))?;
        rule.left -= 1;
        Some(rule.kind)
    }
}
