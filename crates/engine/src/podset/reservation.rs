//! The maintenance reservation of a scheduled update.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp, civil::Weekday, tz::TimeZone};
use slurm::{
    hostlist,
    version::{Feature, supports},
};
use slurm_operator_api::common::conditions::{RESERVATION_CREATED, reason};

use super::{
    context::{Context, DecisionBuilder},
    decision::{Booking, WorkerAction},
    facts::{Reservation, SlurmNode},
    model::{Life, Model, Schedule, Update},
    node_records::PodInfo,
    worker_state::WorkerState,
};
use crate::conditions::{ConditionStatus, NewCondition};

/// Flags of all our reservations.
const FLAGS: [&str; 2] = ["MAINT", "IGNORE_JOBS"];

/// Allows a reservation whose start is in the past. Slurm may not report the flag afterwards.
const FORCE_START: &str = "FORCE_START";

/// Plans the reservation. Returns whether the set needs the finalizer for it; `None` if unknown.
pub(super) fn decide(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    desired: u32,
    builder: &mut DecisionBuilder,
) -> Option<bool> {
    let name = (context.model.vocabulary.name.reservation)(&context.model.name);
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
            let mut nodes = registered(workers);
            nodes.extend(found.into_iter().flat_map(|found| staying(context, found, workers, builder)));
            let booking = book(schedule, found, &nodes, context.now);
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

/// The `ReservationCreated` condition, only for scheduled updates.
pub(super) fn new_condition(context: &Context<'_>) -> Option<NewCondition> {
    if !matches!(context.model.update, Update::Scheduled(_)) {
        return None;
    }
    let name = (context.model.vocabulary.name.reservation)(&context.model.name);
    let all = context.slurm.snapshot().and_then(|snapshot| snapshot.reservations.as_ref());
    let (status, reason, message) = match all.map(|all| all.contains_key(&name)) {
        Some(true) => (ConditionStatus::True, reason::CREATED, format!("reservation {name} exists in Slurm")),
        Some(false) => {
            (ConditionStatus::False, reason::NOT_EXISTS, format!("reservation {name} does not exist in Slurm"))
        }
        None => {
            (ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, "the reservations in Slurm are unknown".to_owned())
        }
    };
    Some(NewCondition { type_: RESERVATION_CREATED, status, reason, message })
}

/// The Slurm nodes in the reservation whose workers are being replaced or were just written to. If they left it, they would
/// run ordinary jobs as soon as they are back, in the middle of the maintenance.
fn staying(
    context: &Context<'_>,
    found: &Reservation,
    workers: &[WorkerState<'_>],
    builder: &DecisionBuilder,
) -> Vec<String> {
    let Some(snapshot) = context.slurm.snapshot() else { return Vec::new() };
    let mut names: BTreeSet<&str> = workers.iter().filter_map(|state| state.name).collect();
    names.extend(builder.actions.iter().filter_map(|action| match action {
        WorkerAction::Create(identity) => Some(identity.hostname.as_str()),
        _ => None,
    }));
    // The worker of a record of ours comes back, or the record is deleted.
    let is_of_set =
        |node: &SlurmNode| PodInfo::parse(&node.comment).is_some_and(|info| info.node_set_uid == context.model.uid);
    let has_begun = found.start.is_some_and(|start| start <= context.now);
    let stays = |name: &String| {
        let record = snapshot.nodes.get(name);
        record.is_some_and(|node| names.contains(name.as_str()) || has_begun && is_of_set(node))
    };
    hostlist::expand(&found.nodes).unwrap_or_default().into_iter().filter(stays).collect()
}

/// The registered Slurm nodes of all pods that are not being deleted.
fn registered(workers: &[WorkerState<'_>]) -> BTreeSet<String> {
    let registered =
        |state: &&WorkerState<'_>| state.observation.node().is_some_and(|node| node.states.is_registered());
    workers
        .iter()
        .filter(|state| state.is_alive())
        .filter(registered)
        .filter_map(|state| state.name.map(str::to_owned))
        .collect()
}

/// The reservation to create or update; `None` if it is up to date. The caller sets the name.
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
        // Only the nodes of a reservation that has started may change.
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

/// The period of a recurring reservation.
fn period(schedule: &Schedule) -> Option<SignedDuration> {
    schedule.flags.iter().find_map(|flag| match flag.as_str() {
        "HOURLY" => Some(SignedDuration::from_hours(1)),
        "DAILY" | "WEEKDAY" | "WEEKEND" => Some(SignedDuration::from_hours(24)),
        "WEEKLY" => Some(SignedDuration::from_hours(24 * 7)),
        _ => None,
    })
}

/// The start of a new reservation; `None` if its time has passed.
fn next_start(schedule: &Schedule, now: Timestamp) -> Option<Timestamp> {
    let may_be_late = schedule.flags.iter().any(|flag| flag == FORCE_START);
    let is_open = schedule.start > now || may_be_late && now < schedule.start + length(schedule);
    let Some(period) = period(schedule).map(|period| period.as_secs()) else {
        return is_open.then_some(schedule.start);
    };
    let first = if is_open { 0 } else { now.duration_since(schedule.start).as_secs() / period + 1 };
    let start = |periods: i64| schedule.start.checked_add(SignedDuration::from_secs(periods * period)).ok();
    // A week has a day that fits.
    (first..first + 7).filter_map(start).find(|start| is_on_its_day(schedule, *start))
}

/// Whether a recurring reservation takes place on this day. Slurm goes by the time zone of slurmctld, which is UTC unless the
/// image says otherwise.
fn is_on_its_day(schedule: &Schedule, start: Timestamp) -> bool {
    let is_weekend = matches!(start.to_zoned(TimeZone::UTC).weekday(), Weekday::Saturday | Weekday::Sunday);
    let has = |flag: &str| schedule.flags.iter().any(|found| found == flag);
    !(has("WEEKDAY") && is_weekend || has("WEEKEND") && !is_weekend)
}

fn length(schedule: &Schedule) -> SignedDuration {
    SignedDuration::from_mins(schedule.minutes.into())
}

/// Whether the reservation has the requested time. Slurm moves a recurring one to its next occurrence.
fn is_same_time(schedule: &Schedule, found: &Reservation) -> bool {
    let (Some(start), Some(end)) = (found.start, found.end) else { return false };
    let moved = start.duration_since(schedule.start).as_secs();
    let on_time = moved == 0 || period(schedule).is_some_and(|period| moved > 0 && moved % period.as_secs() == 0);
    on_time && end.duration_since(start).as_secs() == length(schedule).as_secs()
}
