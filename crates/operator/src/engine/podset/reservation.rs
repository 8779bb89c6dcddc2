//! The maintenance reservation of a scheduled update.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use slurm::{
    hostlist,
    version::{Feature, supports},
};
use slurm_operator_api::{
    conditions::{RESERVATION_CREATED, reason},
    names,
};

use super::{
    context::{Context, DecisionBuilder},
    decision::{Booking, WorkerAction},
    facts::Reservation,
    model::{Life, Model, Schedule, Update},
    worker_state::WorkerState,
};
use crate::machine::{ConditionStatus, NewCondition};

/// Flags that every reservation of ours has.
const FLAGS: [&str; 2] = ["MAINT", "IGNORE_JOBS"];

/// Lets Slurm make a reservation that has begun. It may not stand in the reservation afterwards.
const FORCE_START: &str = "FORCE_START";

/// Plans the reservation. Says whether the set must stay until it is gone; `None` if nobody knows.
pub(super) fn decide(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    desired: u32,
    builder: &mut DecisionBuilder,
) -> Option<bool> {
    let name = names::reservation(&context.model.name);
    if context.model.life == Life::Deleted && context.facts.yields {
        return Some(false);
    }
    let schedule = wanted(context.model, desired);
    let snapshot = context.slurm.snapshot()?;
    if !supports(snapshot.version, Feature::RestReservations) {
        builder.problems.cannot_reserve = schedule.is_some();
        return Some(false);
    }
    let found = snapshot.reservations.as_ref()?.get(&name);
    match (schedule, found) {
        (None, None) => Some(false),
        (None, Some(_)) => {
            builder.actions.push(WorkerAction::Unreserve { reservation: name });
            Some(true)
        }
        (Some(schedule), found) => {
            let booking = book(schedule, found, &nodes(workers), context.now);
            let stays = found.is_some() || booking.is_some();
            builder.actions.extend(booking.map(|booking| WorkerAction::Reserve(Box::new(Booking { name, ..booking }))));
            Some(stays)
        }
    }
}

fn wanted(model: &Model, desired: u32) -> Option<&Schedule> {
    match &model.update {
        Update::Scheduled(schedule) if desired > 0 && model.life != Life::Deleted => Some(schedule),
        _ => None,
    }
}

/// What the status says of it, where there should be one.
pub(super) fn new_condition(context: &Context<'_>) -> Option<NewCondition> {
    if !matches!(context.model.update, Update::Scheduled(_)) {
        return None;
    }
    let name = names::reservation(&context.model.name);
    let all = context.slurm.snapshot().and_then(|snapshot| snapshot.reservations.as_ref());
    let (status, reason, message) = match all.map(|all| all.contains_key(&name)) {
        Some(true) => (ConditionStatus::True, reason::CREATED, format!("Slurm holds the reservation {name}")),
        Some(false) => (ConditionStatus::False, reason::NOT_EXISTS, format!("Slurm has no reservation {name}")),
        None => {
            (ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, "the reservations of Slurm are not known".to_owned())
        }
    };
    Some(NewCondition { type_: RESERVATION_CREATED, status, reason, message })
}

/// The Slurm nodes of all workers that stay.
fn nodes(workers: &[WorkerState<'_>]) -> BTreeSet<String> {
    let registered =
        |state: &&WorkerState<'_>| state.observation.node().is_some_and(|node| node.states.is_registered());
    workers
        .iter()
        .filter(|state| state.is_alive())
        .filter(registered)
        .filter_map(|state| state.name.map(str::to_owned))
        .collect()
}

/// What to tell Slurm, if it differs. The name is left to the caller.
fn book(schedule: &Schedule, found: Option<&Reservation>, nodes: &BTreeSet<String>, now: Timestamp) -> Option<Booking> {
    if nodes.is_empty() {
        return None;
    }
    let flags = flags(schedule);
    let booking = |time, flags| Booking { name: String::new(), nodes: nodes.iter().cloned().collect(), time, flags };
    let Some(found) = found else {
        return next_start(schedule, now).map(|start| booking(Some((start, schedule.minutes)), flags));
    };
    let listed = hostlist::expand(&found.nodes).unwrap_or_default();
    let has_nodes = listed.into_iter().collect::<BTreeSet<_>>() == *nodes;
    let has_begun = found.start.is_some_and(|start| start <= now);
    if has_begun {
        // Only its nodes may change now.
        return (!has_nodes).then(|| booking(None, Vec::new()));
    }
    let has_flags = flags.iter().filter(|flag| *flag != FORCE_START).all(|flag| found.flags.contains(flag));
    let has_time = is_same_time(schedule, found);
    let time = next_start(schedule, now).filter(|_| !has_time).map(|start| (start, schedule.minutes));
    (!has_nodes || !has_flags || time.is_some()).then(|| booking(time, flags))
}

fn flags(schedule: &Schedule) -> Vec<String> {
    let mut flags: Vec<String> = FLAGS.into_iter().map(str::to_owned).collect();
    flags.extend(schedule.flags.iter().filter(|flag| !FLAGS.contains(&flag.as_str())).cloned());
    flags
}

/// How often it comes again.
fn period(schedule: &Schedule) -> Option<SignedDuration> {
    schedule.flags.iter().find_map(|flag| match flag.as_str() {
        "HOURLY" => Some(SignedDuration::from_hours(1)),
        "DAILY" | "WEEKDAY" | "WEEKEND" => Some(SignedDuration::from_hours(24)),
        "WEEKLY" => Some(SignedDuration::from_hours(24 * 7)),
        _ => None,
    })
}

/// When a new reservation starts; `None` if its time is over.
fn next_start(schedule: &Schedule, now: Timestamp) -> Option<Timestamp> {
    if schedule.start > now {
        return Some(schedule.start);
    }
    let may_be_late = schedule.flags.iter().any(|flag| flag == FORCE_START);
    if may_be_late && now < schedule.start + length(schedule) {
        return Some(schedule.start);
    }
    let period = period(schedule)?.as_secs();
    let elapsed = now.duration_since(schedule.start).as_secs();
    schedule.start.checked_add(SignedDuration::from_secs((elapsed / period + 1) * period)).ok()
}

fn length(schedule: &Schedule) -> SignedDuration {
    SignedDuration::from_mins(schedule.minutes.into())
}

/// Whether it is at the time that the user asked for. Slurm moves one that comes again from one time to the next.
fn is_same_time(schedule: &Schedule, found: &Reservation) -> bool {
    let (Some(start), Some(end)) = (found.start, found.end) else { return false };
    let moved = start.duration_since(schedule.start).as_secs();
    let on_time = moved == 0 || period(schedule).is_some_and(|period| moved > 0 && moved % period.as_secs() == 0);
    on_time && end.duration_since(start).as_secs() == length(schedule).as_secs()
}
