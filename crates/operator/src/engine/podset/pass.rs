//! What every part of a decision looks at, and what it adds to.

use std::collections::HashSet;

use jiff::Timestamp;

use super::{decision::Deed, model::Model, seen::Seen, status::Troubles, trust::View};

/// What a decision depends on.
pub(super) struct Pass<'a> {
    pub(super) model: &'a Model,
    pub(super) seen: &'a Seen,
    pub(super) view: View<'a>,
    pub(super) now: Timestamp,
}

/// What was decided so far.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) deeds: Vec<Deed>,
    pub(super) troubles: Troubles,
    pub(super) next: Option<Timestamp>,
    pub(super) needs_jobs: bool,
    /// UIDs of workers whose pods go now, or as soon as the burst allows.
    pub(super) leaving: HashSet<String>,
}

impl Draft {
    /// Look again at this time, or before.
    pub(super) fn wake(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}
