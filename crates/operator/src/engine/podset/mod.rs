//! The life of workers: which pods there should be, and how those that go get rid of their jobs first.
//!
//! [`plan()`] is a pure function from what the user wants ([`Model`]) and the facts ([`Seen`]) to what to do ([`Decision`]).

mod cases;
mod daemon;
mod decision;
mod drain;
mod identity;
mod model;
mod order;
mod pass;
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
pub use seen::{
    Claim, Cordon, Hold, Job, Jobs, KubeNode, NodeCondition, Phase, Recall, Reservation, Seen, Sight, SlurmCounts,
    SlurmNode, Slurmd, Snapshot, Taint, Worker,
};

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
    let scale = choose(&pass, &mut cases, &mut draft);
    if model.life == Life::Active {
        drain::decide(&pass, &cases, &mut draft);
        draft.deeds.extend(scale.create.iter().cloned().map(Box::new).map(Deed::Create));
    }
    let current = status::current(&pass, &cases);
    let report = Report { pass: &pass, cases: &cases, scale: &scale, troubles: &draft.troubles };
    Decision {
        counts: status::counts(&pass, &cases, scale.desired, current.as_deref()),
        pinned: scale::pins(&pass, &cases),
        current,
        finalizers: Finalizers::default(),
        judgements: report.judgements(),
        deeds: draft.deeds,
        notes: draft.notes,
        next: draft.next,
        needs_jobs: draft.needs_jobs,
    }
}

/// Says for each worker whether it goes, and which ones are to be made.
fn choose(pass: &Pass<'_>, cases: &mut [Case<'_>], draft: &mut Draft) -> Scale {
    let scale = scale::decide(pass, cases, draft);
    update::decide(pass, cases, &scale, draft);
    scale
}
