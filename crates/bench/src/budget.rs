//! Limits for the cost of an operator, and whether a run meets them.

use serde::{Deserialize, Serialize};

use crate::{
    audit::is_write,
    phases,
    report::{Phase, Report, Run, is_event, is_lease, is_slurm_write, median_time, sum},
};

/// A measured value and its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the budget.
    pub budget: String,
    /// The measured value; missing if the phase did not end.
    pub value: Option<f64>,
    /// The maximum; without one the value is only shown.
    pub limit: Option<f64>,
    /// Unit of both.
    pub unit: String,
}

impl Verdict {
    /// Whether the value is within the limit.
    pub fn is_met(&self) -> bool {
        self.limit.is_none_or(|limit| self.value.is_some_and(|value| value <= limit))
    }
}

/// From this size on, the cost of workers outweighs fixed costs.
const LARGE: u32 = 1_000;

/// The largest size with limits for memory and idle CPU.
const LARGEST: u32 = 10_000;

/// CPU times below this are mostly rounding: the kernel counts hundredths of a second.
const MIN_CPU_SECONDS: f64 = 0.2;

/// Checks all budgets of one size: the median of what each run shows. Not what the medians of its phases show: what moves
/// from one phase to the next between runs would count twice.
pub fn check_all(workers: u32, runs: &[Run]) -> Vec<Verdict> {
    let each: Vec<Vec<Verdict>> = runs.iter().map(|run| check(workers, run)).collect();
    let mut verdicts = each.first().cloned().unwrap_or_default();
    for verdict in &mut verdicts {
        let same = each.iter().flatten().filter(|other| other.budget == verdict.budget);
        verdict.value = median_time(same.map(|other| other.value));
    }
    verdicts
}

/// Checks all budgets of one run.
pub fn check(workers: u32, run: &Run) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut add = |budget: &str, value: Option<f64>, limit: Option<f64>, unit: &str| {
        verdicts.push(Verdict { budget: budget.to_owned(), value, limit, unit: unit.to_owned() });
    };
    // With more workers, times depend on the control plane too much for a limit.
    let up_to_large = |limit: f64| (workers <= LARGE).then_some(limit);
    if workers <= LARGEST {
        let usual = run.phases.iter().filter(|phase| !phases::WITH_MANY_JOBS.contains(&phase.name.as_str()));
        let peaks = usual.map(|phase| phase.peak_rss_mb);
        let limit = if workers <= LARGE { 60.0 } else { 150.0 };
        add("memory", peaks.reduce(f64::max), Some(limit), "MB");
    }
    if let Some(jobs) = run.phase(phases::MANY_JOBS) {
        let lists = f64::from(sum(&jobs.slurm, |what| what.starts_with("GET ") && what.contains("/jobs")));
        // The first one is read at once.
        let rate = jobs.seconds.map(|seconds| (lists - 1.0).max(0.0) * 10.0 / seconds);
        add("lists of 20,000 jobs in 10 s", rate, Some(1.0), "");
        add("memory with 20,000 jobs", Some(jobs.peak_rss_mb), Some(150.0), "MB");
    }
    if let Some((before, after)) = run.noise_rss_mb {
        add("memory with unrelated objects", ratio(after, before), Some(1.05), "×");
    }
    let per = f64::from(workers.max(1));
    let scale_out: Vec<&Phase> = phases::SCALE_OUT.iter().filter_map(|name| run.phase(name)).collect();
    let count = |of: &dyn Fn(&Phase) -> u32| f64::from(scale_out.iter().map(|phase| of(phase)).sum::<u32>()) / per;
    let without_events = |what: &str| is_write(what) && !is_lease(what) && !is_event(what);
    add("API writes per new worker", Some(count(&|phase| sum(&phase.api, without_events))), Some(3.0), "");
    add("API writes per new worker with events", Some(count(&Phase::writes)), Some(3.1), "");
    add("Slurm writes per new worker", Some(count(&|phase| sum(&phase.slurm, is_slurm_write))), Some(1.0), "");
    let idle = run.phase(phases::IDLE);
    add("API writes while nothing happens", idle.map(|phase| f64::from(phase.writes())), Some(0.0), "");
    if workers <= LARGEST {
        add("CPU while nothing happens", idle.map(|phase| phase.cpu_seconds), Some(0.6), "s");
    }
    if workers >= LARGE {
        add(
            "creation against a bare loop",
            maybe_ratio(run.create_seconds, run.bare_create_seconds),
            up_to_large(1.3),
            "×",
        );
    }
    add("status after the last pod is ready", run.ready_lag_seconds, Some(2.0), "s");
    let protection = run.phase(phases::JOBS_START).and_then(|phase| phase.seconds);
    add("protection of busy workers", protection, up_to_large(3.0), "s");
    let scale_in = run.phase(phases::SCALE_IN);
    let is_removal = |what: &str| what.starts_with("DELETE ");
    let slurm = |of: &dyn Fn(&str) -> bool| scale_in.map(|phase| f64::from(sum(&phase.slurm, of)) / per);
    add("Slurm writes to drain a worker", slurm(&|what| is_slurm_write(what) && !is_removal(what)), Some(1.0), "");
    add("Slurm records removed per worker", slurm(&is_removal), Some(1.0), "");
    if workers >= LARGE {
        add(
            "scale-in against a bare loop",
            maybe_ratio(run.delete_seconds, run.bare_delete_seconds),
            up_to_large(2.0),
            "×",
        );
    }
    verdicts
}

/// Growth of CPU per worker from 1,000 to 10,000 workers, for each phase. Empty unless both sizes were measured.
///
/// The phases of the scale-out overlap (the longer the creation of pods takes, the more of them register meanwhile), so they count as one.
pub fn growth(report: &Report) -> Vec<Verdict> {
    let (Some(small), Some(large)) = (report.size(LARGE), report.size(LARGEST)) else { return Vec::new() };
    let mut verdicts = Vec::new();
    let mut add = |name: &str, before: Option<f64>, after: Option<f64>| {
        let Some(after) = after.filter(|seconds| *seconds >= MIN_CPU_SECONDS) else { return };
        let per_worker = |seconds: f64, workers: u32| seconds.max(0.01) / f64::from(workers);
        let value = before.and_then(|before| ratio(per_worker(after, LARGEST), per_worker(before, LARGE)));
        let budget = format!("growth of CPU per worker: {name}");
        verdicts.push(Verdict { budget, value, limit: Some(1.5), unit: "×".to_owned() });
    };
    let scale_out = |run: &Run| phases::SCALE_OUT.iter().map(|name| Some(run.phase(name)?.cpu_seconds)).sum();
    add("created to settled", scale_out(&small.median), scale_out(&large.median));
    for phase in large.median.phases.iter().filter(|phase| !phases::SCALE_OUT.contains(&phase.name.as_str())) {
        let before = small.median.phase(&phase.name);
        add(&phase.name, before.map(|before| before.cpu_seconds), Some(phase.cpu_seconds));
    }
    verdicts
}

fn maybe_ratio(value: Option<f64>, reference: Option<f64>) -> Option<f64> {
    value.zip(reference).and_then(|(value, reference)| ratio(value, reference))
}

/// The value divided by the reference, unless that is 0.
pub fn ratio(value: f64, reference: f64) -> Option<f64> {
    (reference > 0.0).then(|| value / reference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{counts, phase, size};

    fn good() -> Run {
        let created = Phase {
            api: counts(&[("create pods", 1000), ("create events", 50), ("update leases", 9), ("list pods", 1)]),
            slurm: counts(&[("GET /slurm/{version}/nodes/", 30), ("POST /slurm/{version}/node/{node_name}", 1000)]),
            ..phase(phases::CREATED, 1.5, 0.8)
        };
        let registered = Phase { api: counts(&[("patch pods/status", 1000)]), ..phase(phases::REGISTERED, 3.0, 1.0) };
        let idle = Phase { api: counts(&[("update leases", 20)]), ..phase(phases::IDLE, 60.0, 0.1) };
        let scale_in =
            Phase { slurm: counts(&[("POST /slurm/{version}/nodes/", 4)]), ..phase(phases::SCALE_IN, 3.0, 1.0) };
        let many_jobs = Phase {
            slurm: counts(&[("GET /slurm/{version}/jobs/", 7), ("GET /slurm/{version}/nodes/", 60)]),
            peak_rss_mb: 120.0,
            ..phase(phases::MANY_JOBS, 60.0, 1.0)
        };
        Run {
            phases: vec![created, registered, idle, phase(phases::JOBS_START, 2.0, 0.1), scale_in, many_jobs],
            create_seconds: Some(1.5),
            bare_create_seconds: Some(1.2),
            ready_lag_seconds: Some(0.5),
            delete_seconds: Some(3.0),
            bare_delete_seconds: Some(1.9),
            noise_rss_mb: Some((30.0, 31.0)),
        }
    }

    fn exceeded(workers: u32, run: &Run) -> Vec<String> {
        check(workers, run).into_iter().filter(|verdict| !verdict.is_met()).map(|verdict| verdict.budget).collect()
    }

    #[test]
    fn the_median_of_runs_is_checked_and_not_the_sum_of_medians() {
        let registered = |early: u32, late: u32| {
            let mut run = good();
            run.phases[0].slurm = counts(&[("POST /slurm/{version}/node/{node_name}", early)]);
            run.phases[1].slurm = counts(&[("POST /slurm/{version}/node/{node_name}", late)]);
            run
        };
        let runs = [registered(72, 928), registered(113, 887), registered(64, 936)];
        let verdicts = check_all(1000, &runs);
        let writes = verdicts.iter().find(|verdict| verdict.budget == "Slurm writes per new worker").unwrap();
        assert_eq!(writes.value, Some(1.0));
    }

    #[test]
    fn a_good_run_meets_all_budgets() {
        assert_eq!(exceeded(1000, &good()), [""; 0]);
        assert_eq!(check(1000, &good()).len(), 15);
    }

    #[test]
    fn each_budget_is_enforced() {
        type Case = (&'static str, fn(&mut Run));
        let cases: [Case; 15] = [
            ("lists of 20,000 jobs in 10 s", |run| run.phases[5].slurm = counts(&[("GET /slurm/{version}/jobs/", 8)])),
            ("memory with 20,000 jobs", |run| run.phases[5].peak_rss_mb = 151.0),
            ("memory", |run| run.phases[1].peak_rss_mb = 61.0),
            ("memory with unrelated objects", |run| run.noise_rss_mb = Some((30.0, 32.0))),
            ("API writes per new worker", |run| {
                run.phases[1].api = counts(&[("patch pods", 2001)]);
                run.phases[0].api.remove("create events");
            }),
            ("API writes per new worker with events", |run| {
                run.phases[0].api.insert("create events".into(), 1200);
            }),
            ("Slurm writes per new worker", |run| {
                run.phases[1].slurm = counts(&[("DELETE /slurm/{version}/node/{node_name}", 1)]);
            }),
            ("API writes while nothing happens", |run| run.phases[2].api = counts(&[("patch nodesets/status", 1)])),
            ("CPU while nothing happens", |run| run.phases[2].cpu_seconds = 0.61),
            ("creation against a bare loop", |run| run.create_seconds = Some(1.6)),
            ("status after the last pod is ready", |run| run.ready_lag_seconds = None),
            ("protection of busy workers", |run| run.phases[3].seconds = Some(3.1)),
            ("Slurm writes to drain a worker", |run| {
                run.phases[4].slurm = counts(&[("POST /slurm/{version}/node/{node_name}", 1001)]);
            }),
            ("Slurm records removed per worker", |run| {
                run.phases[4].slurm = counts(&[("DELETE /slurm/{version}/node/{node_name}", 1001)]);
            }),
            ("scale-in against a bare loop", |run| run.bare_delete_seconds = Some(1.4)),
        ];
        for (budget, exceed) in cases {
            let mut run = good();
            exceed(&mut run);
            assert_eq!(exceeded(1000, &run), [budget]);
        }
    }

    #[test]
    fn limits_depend_on_the_size() {
        let mut run = good();
        run.phases[1].peak_rss_mb = 140.0;
        run.phases[3].seconds = Some(9.0);
        run.create_seconds = Some(9.0);
        assert_eq!(exceeded(10_000, &run), [""; 0]);
        let mut small = good();
        small.create_seconds = Some(9.0);
        small.phases[0].slurm.clear();
        small.phases[0].api.clear();
        small.phases[1].api.clear();
        assert_eq!(exceeded(100, &small), [""; 0], "a hundred workers are mostly fixed costs");
    }

    #[test]
    fn growth_needs_both_sizes_and_includes_every_phase() {
        let run = |created, ready, roll, idle| {
            let scale_out = phases::SCALE_OUT.iter().zip([created, ready, 0.0, 0.0]);
            let mut phases: Vec<Phase> = scale_out.map(|(name, cost)| phase(name, 1.0, cost)).collect();
            phases.extend([phase(phases::ROLL, 1.0, roll), phase(phases::IDLE, 60.0, idle)]);
            Run { phases, ..Run::default() }
        };
        let mut report = Report::default();
        report.put(size(1000, run(1.0, 1.0, 1.0, 0.0)));
        assert_eq!(growth(&report), []);
        report.put(size(10_000, run(19.0, 1.0, 16.0, 0.1)));
        let verdicts = growth(&report);
        let values: Vec<_> = verdicts.iter().map(|verdict| (verdict.value, verdict.is_met())).collect();
        assert_eq!(values, [(Some(1.0), true), (Some(1.6), false)], "a tenth of a second of the idle minute is noise");
    }
}
