//! Who is replaced because its template is old (budget).

use jiff::Timestamp;
use slurm::states::NodeState;
use slurm_operator_api::names;

use super::{
    cases::{Case, is_update},
    decision::Cause,
    model::{Budget, Model, Update},
    order,
    pass::{Draft, Pass},
    scale::{Scale, count, indexes},
    seen::{Cordon, Hold, Slurmd},
    trust::Look,
};

/// Decides who goes because of its template.
pub(super) fn decide(pass: &Pass<'_>, cases: &mut [Case<'_>], scale: &Scale, draft: &mut Draft) {
    let model = pass.model;
    let chosen = match &model.update {
        Update::OnDelete => Vec::new(),
        Update::Rolling { max_unavailable } => rolling(pass, cases, scale, *max_unavailable, draft),
        Update::Scheduled(_) => {
            let reservation = names::reservation(&model.name);
            indexes(cases, |case| is_old(model, case) && (is_broken(case) || is_reserved(case, &reservation)))
        }
    };
    for index in chosen {
        if let Some(case) = cases.get_mut(index) {
            case.goes = Some(Cause::Update);
        }
    }
}

fn rolling(pass: &Pass<'_>, cases: &[Case<'_>], scale: &Scale, budget: Budget, draft: &mut Draft) -> Vec<usize> {
    let model = pass.model;
    if budget.of(scale.desired) == 0 {
        return Vec::new();
    }
    // What we drain for the update is spent, also if it has broken since: taking it back would only waste it.
    let is_draining = |case: &Case<'_>| case.look.drained_for().is_some_and(is_update);
    let draining = indexes(cases, |case| is_old(model, case) && is_draining(case));
    // What is broken already makes nobody else unavailable.
    let mut chosen = indexes(cases, |case| is_old(model, case) && is_broken(case) && !is_draining(case));
    let is_sound = |case: &Case<'_>| is_old(model, case) && !is_broken(case) && !is_draining(case);
    // What we wrote to lately may be in any state, so it counts as out of service.
    let is_unsettled = |case: &Case<'_>| case.is_leaving_slurm() || matches!(case.look, Look::Pending(..));
    let reverting = count(cases.iter().filter(|case| is_sound(case) && is_unsettled(case)).count());
    let fresh = cases.iter().filter(|case| case.stays() && !is_old(model, case) && !serves(model, case, pass.now));
    let unavailable = scale.missing + count(fresh.count()) + count(draining.len()) + reverting;
    let left = budget.of(scale.desired).saturating_sub(unavailable);
    let waiting = indexes(cases, |case| is_sound(case) && !is_unsettled(case));
    let held = |index: &usize| cases.get(*index).is_none_or(is_held);
    draft.troubles.held_back = names(cases, waiting.iter().copied().filter(held));
    let candidates = waiting.into_iter().filter(|index| !held(index)).collect();
    chosen.extend(draining);
    if pass.view.snapshot().is_some() {
        chosen.extend(order::pick(pass, cases, candidates, usize::try_from(left).unwrap_or(usize::MAX), draft));
    }
    chosen
}

fn names(cases: &[Case<'_>], indexes: impl Iterator<Item = usize>) -> Vec<String> {
    indexes.filter_map(|index| cases.get(index)).map(|case| case.worker.name.clone()).collect()
}

/// Whether its template is not the newest.
pub(super) fn is_old(model: &Model, case: &Case<'_>) -> bool {
    case.stays() && case.worker.revision.as_deref() != Some(&model.revision)
}

/// Whether it does no work and will not by itself. What a user has cordoned is left as it is for the user to see.
fn is_broken(case: &Case<'_>) -> bool {
    let worker = case.worker;
    if worker.is_healthy() || worker.cordon == Cordon::User {
        return false;
    }
    let is_silent = match case.look {
        Look::Blind | Look::Pending(..) => false,
        Look::Absent => !worker.has_registered(),
        Look::Known(node) => !node.states.is_busy() && !node.states.is_available() && node.hold() != Hold::Foreign,
    };
    worker.phase.is_over() || worker.slurmd == Slurmd::Stopped || is_silent
}

/// Whether somebody keeps it out of service: replacing it would lose what they asked for, or gain nothing.
fn is_held(case: &Case<'_>) -> bool {
    let is_foreign = case.look.node().is_some_and(|node| node.states.is_drain() && node.hold() == Hold::Foreign);
    is_foreign || case.is_cordoned() || case.is_lost()
}

/// Whether it takes jobs, or only does not because somebody asked for that.
fn serves(model: &Model, case: &Case<'_>, now: Timestamp) -> bool {
    let knows = match case.look {
        Look::Known(node) => {
            // One that does not answer may be what its predecessor left.
            let is_silent = node.states.has(NodeState::NotResponding);
            node.states.is_registered() && !is_silent && !node.states.is_down() && !case.is_leaving_slurm()
        }
        Look::Blind | Look::Pending(..) | Look::Absent => false,
    };
    knows && case.worker.is_available(model.min_ready, now)
}

fn is_reserved(case: &Case<'_>, reservation: &str) -> bool {
    let holds = |node: &super::seen::SlurmNode| {
        node.states.has(NodeState::Maintenance) && node.reservation.split(',').any(|name| name == reservation)
    };
    case.look.node().is_some_and(holds)
}
