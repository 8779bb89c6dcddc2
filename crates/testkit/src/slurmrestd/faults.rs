//! What goes wrong on demand.

use std::time::Duration;

/// Faults of slurmrestd and of the way to it. Those of slurmctld are made in the [`Cluster`](super::Cluster).
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Each answer takes this much longer.
    pub latency: Duration,
    /// While slurmctld is down, each answer that needs it takes this much longer. The real one tries for 9 to 10 seconds,
    /// twice that for a single job.
    pub down_latency: Duration,
    /// Every token is refused, as after a change of the key.
    pub refuse_tokens: bool,
    /// Lists of nodes and jobs are empty, whatever there is: what a slurmctld shows that has just lost its state.
    pub empty_lists: bool,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    path: String,
    kind: Fault,
    left: u32,
}

/// What happens to a request instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// HTTP 500 with a plain text.
    Error,
    /// The connection ends before a byte of the answer.
    Cut,
    /// No answer ever.
    Hang,
    /// JSON that ends in the middle.
    Garbage,
}

impl Faults {
    /// The next `times` requests whose path contains `path` meet this fault.
    pub fn next(&mut self, times: u32, path: &str, kind: Fault) {
        self.rules.push(Rule { path: path.to_owned(), kind, left: times });
    }

    /// No faults from now on.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn meet(&mut self, path: &str) -> Option<Fault> {
        let rule = self.rules.iter_mut().find(|rule| rule.left > 0 && path.contains(&rule.path))?;
        rule.left -= 1;
        Some(rule.kind)
    }
}
