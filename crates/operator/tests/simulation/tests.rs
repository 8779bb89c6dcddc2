//! The simulation's tests.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    bugs::Bug,
    scenario::{Outcome, run},
};

/// Without `SIM_SCENARIOS`, scenarios run for at most this long.
const BOUND: Duration = Duration::from_mins(1);

/// The number of trace lines to show for one of many scenarios.
const LAST: usize = 40;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

/// The first failing seed, if any.
fn search(seeds: Range<u64>, bug: Option<Bug>, until: Option<Instant>) -> Option<u64> {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(u64::MAX));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            if is_over || seed >= seeds.end.min(failed.load(Ordering::Relaxed)) {
                return;
            }
            if run(seed, bug, false).violation.is_some() {
                failed.fetch_min(seed, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    if bug.is_none() {
        println!("{} scenarios", next.load(Ordering::Relaxed).saturating_sub(seeds.start));
    }
    Some(failed.into_inner()).filter(|failed| *failed < u64::MAX)
}

/// The violation and the last events before it.
fn report(seed: u64, outcome: &Outcome, lines: usize) -> String {
    let violation = outcome.violation.as_ref().unwrap();
    let last = outcome.trace.len().saturating_sub(lines);
    format!(
        "seed {seed}, step {}: {} violated: {}\nSIM_SEED={seed} replays it; last events:\n{}",
        violation.step,
        violation.invariant,
        violation.what,
        outcome.trace[last..].join("\n")
    )
}

#[test]
fn every_invariant_holds_in_every_scenario() {
    let (first, wanted) = (number("SIM_SEED"), number("SIM_SCENARIOS"));
    let count = wanted.unwrap_or(if first.is_some() { 1 } else { u64::from(u32::MAX) });
    let until = wanted.is_none().then(|| Instant::now() + BOUND);
    let first = first.unwrap_or(0);
    if let Some(seed) = search(first..first + count, None, until) {
        let lines = if count == 1 { usize::MAX } else { LAST };
        panic!("{}", report(seed, &run(seed, None, true), lines));
    }
    if count == 1 {
        println!("seed {first}: no violation\n{}", run(first, None, true).trace.join("\n"));
    }
}

#[test]
fn a_seed_always_gives_the_same_scenario() {
    for seed in 0..20 {
        assert_eq!(run(seed, None, false).digest, run(seed, None, true).digest, "seed {seed}");
    }
}

/// Each injected bug must violate one of these invariants within this many scenarios.
fn finds(bug: Bug, within: u64, invariants: &[&str]) {
    let seed = search(0..within, Some(bug), None);
    let seed = seed.unwrap_or_else(|| panic!("{bug:?} is not found in {within} scenarios"));
    let outcome = run(seed, Some(bug), true);
    let found = outcome.violation.as_ref().unwrap().invariant;
    println!("{bug:?}: {found} after {seed} scenarios");
    assert!(invariants.contains(&found), "{bug:?}: {}", report(seed, &outcome, LAST));
}

#[test]
fn a_busy_worker_that_is_deleted_is_found() {
    finds(Bug::DeleteBusy, 300, &["no-job-lost"]);
}

#[test]
fn a_write_that_counts_as_confirmed_is_found() {
    finds(Bug::IgnorePending, 30_000, &["budget", "converges", "no-job-lost"]);
}

#[test]
fn an_ignored_budget_is_found() {
    finds(Bug::IgnoreBudget, 300, &["budget"]);
}

#[test]
fn a_removed_drain_of_an_admin_is_found() {
    // A node that is down stays down, but loses the reason.
    finds(Bug::LiftForeign, 300, &["converges", "foreign-drain-kept"]);
}

#[test]
fn a_deleted_record_of_a_running_worker_is_found() {
    finds(Bug::ForgetLive, 300, &["converges", "foreign-drain-kept", "no-job-lost"]);
}

#[test]
fn random_names_are_found() {
    finds(Bug::RandomName, 300, &["unique-node"]);
}

#[test]
fn a_stale_list_that_is_trusted_is_found() {
    finds(Bug::TrustOldList, 1_000, &["blind-means-wait", "no-job-lost"]);
}

#[test]
fn a_lost_annotation_of_a_user_is_found() {
    finds(Bug::DropAnnotation, 300, &["user-intent-kept"]);
}

#[test]
fn a_claim_that_would_be_deleted_is_found() {
    finds(Bug::OwnClaims, 300, &["claims-kept"]);
}

#[test]
fn a_claim_that_is_lost_with_its_pod_and_used_is_found() {
    finds(Bug::UseLostClaims, 3_000, &["converges"]);
}

#[test]
fn a_deleted_pod_of_another_owner_is_found() {
    finds(Bug::DeleteForeign, 300, &["owned-only"]);
}

#[test]
fn a_suspended_job_that_is_overlooked_is_found() {
    // A record that a job names is not deleted after a last look, and its worker is then not created either.
    finds(Bug::IgnoreJobs, 3_000, &["converges", "no-job-lost"]);
}

#[test]
fn a_label_that_is_not_set_is_found() {
    finds(Bug::NoProtection, 300, &["protected"]);
}

#[test]
fn a_spec_that_is_refused_and_stops_everything_is_found() {
    finds(Bug::RefuseAll, 2_000, &["converges", "protected"]);
}

#[test]
fn a_drain_of_an_admin_that_is_overwritten_is_found() {
    finds(Bug::WriteUnseen, 3_000, &["converges", "foreign-drain-kept"]);
}

#[test]
fn a_worker_that_is_deleted_without_a_last_look_is_found() {
    finds(Bug::DeleteUnseen, 3_000, &["no-job-lost"]);
}

#[test]
fn a_record_that_a_job_names_and_that_is_deleted_is_found() {
    finds(Bug::ForgetNamed, 3_000, &["no-job-lost"]);
}

#[test]
fn rebooted_workers_that_stay_down_are_found() {
    finds(Bug::LeaveRebooted, 1_000, &["converges"]);
}

#[test]
fn reasons_with_words_of_slurmctld_that_are_not_understood_are_found() {
    finds(Bug::ExactReasons, 3_000, &["budget", "converges", "foreign-drain-kept"]);
}

#[test]
fn finds_leave_lost() {
    finds(Bug::LeaveLost, 1_000, &["converges"]);
}

#[test]
fn finds_no_budget() {
    finds(Bug::NoBudget, 3_000, &["protected"]);
}

#[test]
fn finds_ignore_others() {
    finds(Bug::IgnoreOthers, 3_000, &["unique-node"]);
}

#[test]
fn finds_ignore_rivals() {
    finds(Bug::IgnoreRivals, 3_000, &["unique-node"]);
}

#[test]
fn finds_delete_shared() {
    finds(Bug::DeleteShared, 3_000, &["protected"]);
}

#[test]
fn finds_refuse_missing() {
    finds(Bug::RefuseMissing, 3_000, &["converges", "protected"]);
}

#[test]
fn finds_no_drain_finalizer() {
    finds(Bug::NoDrainFinalizer, 3_000, &["no-job-lost"]);
}

#[test]
fn finds_early_timeout() {
    finds(Bug::EarlyTimeout, 1_000, &["no-job-lost"]);
}

#[test]
fn finds_ignore_names() {
    finds(Bug::IgnoreNames, 3_000, &["no-job-lost"]);
}

#[test]
fn finds_no_adoption() {
    finds(Bug::NoAdoption, 1_000, &["converges"]);
}

#[test]
fn finds_ignore_lease() {
    finds(Bug::IgnoreLease, 1_000, &["one-leader"]);
}

#[test]
fn finds_register_busy() {
    finds(Bug::RegisterBusy, 1_000, &["no-job-lost"]);
}

#[test]
fn a_forgotten_write_is_found() {
    finds(Bug::IgnoreMemory, 3_000, &["budget", "converges", "no-job-lost", "unique-node"]);
}
