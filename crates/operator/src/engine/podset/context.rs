//! What every part of a decision looks at, and what it adds to.

use std::collections::HashSet;

use jiff::Timestamp;

use super::{decision::WorkerAction, facts::Facts, model::Model, status::Problems, trust::TrustedSlurm};

/// What a decision depends on.
pub(super) struct Context<'a> {
    pub(super) model: &'a Model,
    pub(super) facts: &'a Facts,
    pub(super) slurm: TrustedSlurm<'a>,
    pub(super) now: Timestamp,
}

/// What was decided so far.
#[derive(Default)]
pub(super) struct DecisionBuilder {
    pub(super) actions: Vec<WorkerAction>,
    pub(super) problems: Problems,
    pub(super) next: Option<Timestamp>,
    pub(super) needs_jobs: bool,
    /// UIDs of workers whose pods go now, or as soon as the burst allows.
    pub(super) leaving: HashSet<String>,
}

impl DecisionBuilder {
    /// Look again at this time, or before.
    pub(super) fn wake(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}
