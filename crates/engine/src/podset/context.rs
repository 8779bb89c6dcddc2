//! The input and the intermediate output shared by all planning steps.

use std::{cell::OnceCell, collections::HashSet};

use jiff::Timestamp;

use super::{
    decision::WorkerAction, facts::Facts, model::Model, removal_safety::Blocker, status::Problems, trust::TrustedSlurm,
};

/// The input of a decision.
pub(super) struct Context<'a> {
    pub(super) model: &'a Model,
    pub(super) facts: &'a Facts,
    pub(super) slurm: TrustedSlurm<'a>,
    pub(super) now: Timestamp,
    /// Whether workers may have registered under another name, once that was needed.
    pub(super) has_other_names: OnceCell<bool>,
}

impl<'a> Context<'a> {
    pub(super) fn new(model: &'a Model, facts: &'a Facts, now: Timestamp) -> Self {
        Self { model, facts, slurm: TrustedSlurm::of(facts, now), now, has_other_names: OnceCell::new() }
    }
}

/// The decision so far.
#[derive(Default)]
pub(super) struct DecisionBuilder {
    pub(super) actions: Vec<WorkerAction>,
    pub(super) problems: Problems,
    pub(super) next: Option<Timestamp>,
    pub(super) needs_jobs: bool,
    /// Workers that are to be removed and cannot yet, by Slurm node.
    pub(super) blockers: Vec<(String, Blocker)>,
    /// UIDs of pods that are deleted in this pass, or as soon as the burst limit allows.
    pub(super) leaving: HashSet<String>,
}

impl DecisionBuilder {
    /// Plan again at this time or earlier.
    pub(super) fn wake(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}
