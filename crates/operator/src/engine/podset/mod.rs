//! The life of workers: which pods there should be, and how those that go get rid of their jobs first.
//!
//! [`plan()`] is a pure function from what the user wants ([`Model`]) and the facts ([`Seen`]) to what to do ([`Decision`]).

mod cases;
mod claims;
mod daemon;
mod decision;
mod drain;
mod identity;
mod measures;
mod mirror;
mod model;
mod notes;
mod order;
mod pass;
mod records;
mod reservation;
mod scale;
mod seen;
mod status;
mod trust;
mod update;

use jiff::Timestamp;

pub use decision::{
    Booking, Cause, ClaimUse, Counts, Decision, Deed, Description, Finalizers, Identity, PodKey, Removal,
};
pub use drain::TERMINATING;
pub use model::{
    Budget, DEFAULT_BURST, DrainPolicy, Life, Match, Mode, Model, Naming, OnTimeout, Placement, Retention, Scaling,
    Schedule, Term, Toleration, Update,
};
pub use records::PodInfo;
pub use seen::{
    Claim, Cordon, Hold, Job, Jobs, KubeNode, NodeCondition, Phase, Recall, Reservation, Seen, Sight, SlurmCounts,
    SlurmNode, Slurmd, Snapshot, Taint, Worker, Written,
};
pub use trust::is_stale;

use cases::Case;
use pass::{Draft, Pass};
use scale::Scale;
use status::Report;
use trust::View;

/// Decides. The same facts give the same decision.
pub fn plan(model: &Model, seen: &Seen, now: Timestamp) -> Decision {
    let pass = Pass { model, seen, view: View::of(seen, now), now };
    let mut cases = cases::gather(&pass);
    let mut draft = Draft::default();
    let mut scale = choose(&pass, &mut cases, &mut draft);
    let finalizers = Finalizers { reservation: act(&pass, &cases, &mut scale, &mut draft), drain: must_stay(&pass) };
    wake_for_availability(&pass, &cases, &mut draft);
    wake_for_sight(&pass, &mut draft);
    let current = status::current(&pass, &cases);
    let report = Report { pass: &pass, cases: &cases, scale: &scale, troubles: &draft.troubles };
    let counts = status::counts(&pass, &cases, scale.desired, current.as_deref());
    Decision {
        measures: measures::of(&pass, &cases, &counts),
        counts,
        pinned: scale::pins(&pass, &cases),
        current,
        finalizers,
        judgements: report.judgements().into_iter().chain(reservation::judgement(&pass)).collect(),
        notes: notes::tell(model, &draft.deeds),
        deeds: draft.deeds,
        next: draft.next,
        needs_jobs: draft.needs_jobs,
    }
}

/// Says for each worker whether it goes, and which ones are to be made.
fn choose(pass: &Pass<'_>, cases: &mut [Case<'_>], draft: &mut Draft) -> Scale {
    if pass.model.life == Life::Deleted {
        cases.iter_mut().filter(|case| case.is_alive()).for_each(|case| case.goes = Some(Cause::Deleted));
        return Scale::default();
    }
    let mut scale = scale::decide(pass, cases, draft);
    if pass.model.blocked.is_some() {
        scale.create.clear();
        return scale;
    }
    update::decide(pass, cases, &scale, draft);
    records::before(pass, &mut scale.create);
    scale
}

/// Plans all deeds. Says whether the set must stay for its reservation.
fn act(pass: &Pass<'_>, cases: &[Case<'_>], scale: &mut Scale, draft: &mut Draft) -> Option<bool> {
    let (model, seen) = (pass.model, pass.seen);
    let create = std::mem::take(&mut scale.create);
    match model.life {
        Life::Active => mirror::decide(pass, cases, draft),
        Life::Paused => {
            mirror::decide(pass, cases, draft);
            draft.needs_jobs = false;
            return None;
        }
        // Its pods go with it, and with them their jobs: so the user wants it, or nobody is left to ask.
        Life::Deleted if seen.yields || !model.drain.on_delete => return reservation::decide(pass, cases, 0, draft),
        Life::Deleted => {}
    }
    drain::decide(pass, cases, draft);
    records::decide(pass, cases, &create, draft);
    draft.deeds.extend(create.into_iter().map(Box::new).map(Deed::Create));
    claims::decide(pass, cases, draft);
    spare(draft);
    reservation::decide(pass, cases, scale.desired, draft)
}

/// Nothing is told of a pod that goes: that would be a write in vain, and the pod would be newer than the one whose deletion
/// was decided.
fn spare(draft: &mut Draft) {
    let Draft { deeds, leaving, .. } = draft;
    deeds.retain(|deed| match deed {
        Deed::Patch { pod, .. } | Deed::Conditions { pod, .. } => !leaving.contains(&pod.uid),
        _ => true,
    });
}

/// Whether the set must stay until its workers are drained.
fn must_stay(pass: &Pass<'_>) -> bool {
    let is_empty = pass.seen.workers.is_empty() && pass.seen.creating.is_empty();
    let is_done = pass.model.life == Life::Deleted && (is_empty || pass.seen.yields);
    pass.model.drain.on_delete && !is_done
}

/// A worker becomes available by mere time.
fn wake_for_availability(pass: &Pass<'_>, cases: &[Case<'_>], draft: &mut Draft) {
    let ready = cases.iter().filter(|case| case.worker.is_healthy()).filter_map(|case| case.worker.ready);
    let soon = ready.map(|ready| ready + pass.model.min_ready).filter(|then| *then > pass.now);
    if let Some(then) = soon.min() {
        draft.wake(then);
    }
}

/// A slurmctld that has started lately may be believed later, also if it says nothing new.
fn wake_for_sight(pass: &Pass<'_>, draft: &mut Draft) {
    if let View::Blind { until: Some(then), .. } = pass.view {
        draft.wake(then);
    }
}

#[cfg(test)]
mod tests;
