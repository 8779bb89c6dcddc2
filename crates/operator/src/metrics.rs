//! Prometheus metrics.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicU64},
    time::Duration,
};

use engine::{
    plan::{ClusterKey, Step},
    podset::WorkerMetrics,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::lock::lock;

/// The number of deleted `NodeSets` that are remembered.
const MAX_GONE: usize = 1_000;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfFailure {
    kind: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfStep {
    kind: &'static str,
    step: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfCall {
    call: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfCallFailure {
    call: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfSet {
    namespace: String,
    nodeset: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfWorkers {
    namespace: String,
    nodeset: String,
    state: &'static str,
}

/// The last reported metrics of a `NodeSet`.
struct Measured {
    set: OfSet,
    draining_since: Option<Timestamp>,
    workers: Vec<&'static str>,
    /// Observations already recorded, so that each is counted once.
    counted: HashSet<String>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfCluster {
    namespace: String,
    controller: String,
}

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Family<OfKind, Counter>,
    seconds: Family<OfKind, Histogram>,
    failures: Family<OfFailure, Counter>,
    steps: Family<OfStep, Counter>,
    backoff: Family<OfKind, Gauge>,
    leader: Gauge,
    slurm_seconds: Family<OfCall, Histogram>,
    slurm_failures: Family<OfCallFailure, Counter>,
    snapshot_age: Family<OfCluster, Gauge<f64, AtomicU64>>,
    workers: Family<OfWorkers, Gauge>,
    oldest_drain: Family<OfSet, Gauge<f64, AtomicU64>>,
    drain_seconds: Family<OfSet, Histogram>,
    register_seconds: Family<OfSet, Histogram>,
    /// By UID of the `NodeSet`; `None` after it was deleted.
    measured: Arc<Mutex<HashMap<String, Option<Measured>>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let buckets = || Histogram::new([0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0]);
        let seconds: Family<OfKind, Histogram> = Family::new_with_constructor(buckets);
        let (reconciles, failures, steps, backoff, leader) =
            (Family::default(), Family::default(), Family::default(), Family::default(), Gauge::default());
        let mut registry = Registry::with_prefix("slurm_operator");
        registry.register("reconciles", "Reconciles", Family::clone(&reconciles));
        registry.register("reconcile_seconds", "Duration of a reconcile", seconds.clone());
        registry.register("failures", "Failed reconciles by class of failure", Family::clone(&failures));
        registry.register("steps", "Planned writes", Family::clone(&steps));
        registry.register("backoff_objects", "Objects in backoff after a failed reconcile", Family::clone(&backoff));
        registry.register("leader", "Whether this process is the leader", Gauge::clone(&leader));
        registry.register("build", "Build information", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        let slurm_seconds: Family<OfCall, Histogram> = Family::new_with_constructor(buckets);
        let (slurm_failures, snapshot_age) = (Family::default(), Family::default());
        registry.register("slurm_call_seconds", "Duration of a call to slurmrestd", slurm_seconds.clone());
        registry.register("slurm_call_failures", "Failed calls to slurmrestd", Family::clone(&slurm_failures));
        registry.register(
            "slurm_snapshot_age_seconds",
            "Age of the last successful read of a Slurm cluster, or the time that the operator has tried to read it",
            Family::clone(&snapshot_age),
        );
        let workers = Family::default();
        let oldest_drain = Family::default();
        let drain_seconds: Family<OfSet, Histogram> = Family::new_with_constructor(|| {
            Histogram::new([2.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0])
        });
        let register_seconds: Family<OfSet, Histogram> =
            Family::new_with_constructor(|| Histogram::new([0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0]));
        registry.register("workers", "Workers by state; a worker may be in several states", Family::clone(&workers));
        registry.register(
            "oldest_drain_seconds",
            "Age of the oldest drain that precedes a removal; 0 if there is none",
            Family::clone(&oldest_drain),
        );
        registry.register(
            "drain_seconds",
            "Time from draining a worker for removal until its last job ended",
            drain_seconds.clone(),
        );
        registry.register(
            "register_seconds",
            "Time from pod readiness until the worker is registered in Slurm",
            register_seconds.clone(),
        );
        Self {
            registry: Arc::new(registry),
            reconciles,
            seconds,
            failures,
            steps,
            backoff,
            leader,
            slurm_seconds,
            slurm_failures,
            snapshot_age,
            workers,
            oldest_drain,
            drain_seconds,
            register_seconds,
            measured: Arc::default(),
        }
    }
}

impl Metrics {
    /// Records a finished reconcile.
    pub fn reconciled(&self, kind: &'static str, took: Duration, failure: Option<&'static str>) {
        let of = OfKind { kind };
        self.seconds.get_or_create(&of).observe(took.as_secs_f64());
        self.reconciles.get_or_create(&of).inc();
        if let Some(class) = failure {
            self.failures.get_or_create(&OfFailure { kind, class }).inc();
        }
    }

    /// Counts the steps of a plan.
    pub fn planned<'a>(&self, kind: &'static str, steps: impl Iterator<Item = &'a Step>) {
        for step in steps {
            self.steps.get_or_create(&OfStep { kind, step: step.name() }).inc();
        }
    }

    /// Sets the number of objects in backoff.
    pub fn in_backoff(&self, kind: &'static str, objects: usize) {
        self.backoff.get_or_create(&OfKind { kind }).set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    /// Sets whether this process leads. Only the leader reports worker metrics.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        if !leads {
            let all = std::mem::take(&mut *self.measured());
            all.into_values().flatten().for_each(|last| self.unmeasure(&last));
        }
    }

    fn measured(&self) -> MutexGuard<'_, HashMap<String, Option<Measured>>> {
        lock(&self.measured)
    }

    /// Updates the worker metrics of a `NodeSet`. Each worker is counted once, however often it is reported.
    pub fn measured_workers(&self, set: &ObjectMeta, worker_metrics: WorkerMetrics) {
        let of = OfSet {
            namespace: set.namespace.clone().unwrap_or_default(),
            nodeset: set.name.clone().unwrap_or_default(),
        };
        let mut sets = self.measured();
        let nothing =
            || Measured { set: of.clone(), draining_since: None, workers: Vec::new(), counted: HashSet::new() };
        // A reconcile that finishes after its `NodeSet` was deleted is ignored.
        let entry = sets.entry(set.uid.clone().unwrap_or_default()).or_insert_with(|| Some(nothing()));
        let Some(last) = entry else { return };
        let mut counted = HashSet::new();
        for (event, family, times) in [
            ("drained", &self.drain_seconds, worker_metrics.drained),
            ("registered", &self.register_seconds, worker_metrics.registered),
        ] {
            for (worker, took) in times {
                let key = format!("{event} {worker}");
                if !last.counted.contains(&key) {
                    family.get_or_create(&of).observe(took.as_secs_f64().max(0.0));
                }
                counted.insert(key);
            }
            // With 0, before anything is observed: a rate does not see the first observation of a new series.
            drop(family.get_or_create(&of));
        }
        let states: Vec<&'static str> = worker_metrics.workers.iter().map(|(state, _)| *state).collect();
        for state in last.workers.iter().filter(|state| !states.contains(state)) {
            self.workers.remove(&of_workers(&of, state));
        }
        for (state, number) in worker_metrics.workers {
            self.workers.get_or_create(&of_workers(&of, state)).set(number.into());
        }
        *last = Measured { set: of, draining_since: worker_metrics.draining_since, workers: states, counted };
    }

    /// Removes the series of a deleted `NodeSet`.
    pub fn gone(&self, uid: &str) {
        let mut measured = self.measured();
        // A reconcile may still be under way, which must not bring the series back: the last ones are remembered.
        if measured.values().filter(|last| last.is_none()).count() >= MAX_GONE {
            measured.retain(|_, last| last.is_some());
        }
        let last = measured.insert(uid.to_owned(), None).flatten();
        drop(measured);
        if let Some(last) = last {
            self.unmeasure(&last);
        }
    }

    fn unmeasure(&self, last: &Measured) {
        for state in &last.workers {
            self.workers.remove(&of_workers(&last.set, state));
        }
        self.oldest_drain.remove(&last.set);
        self.drain_seconds.remove(&last.set);
        self.register_seconds.remove(&last.set);
    }

    /// Updates the age of the oldest drain of each `NodeSet`.
    pub fn drain_ages(&self, now: Timestamp) {
        for last in self.measured().values().flatten() {
            let age = last.draining_since.map_or(0.0, |since| now.duration_since(since).as_secs_f64().max(0.0));
            self.oldest_drain.get_or_create(&last.set).set(age);
        }
    }

    /// Records a call to slurmrestd.
    pub fn slurm_call(&self, call: &'static str, took: Duration, failure: Option<&'static str>) {
        self.slurm_seconds.get_or_create(&OfCall { call }).observe(took.as_secs_f64());
        if let Some(class) = failure {
            self.slurm_failures.get_or_create(&OfCallFailure { call, class }).inc();
        }
    }

    /// Updates the snapshot age of each Slurm cluster.
    pub fn snapshot_ages(&self, ages: Vec<(ClusterKey, f64)>) {
        self.snapshot_age.clear();
        for (ClusterKey { namespace, name: controller, .. }, age) in ages {
            self.snapshot_age.get_or_create(&OfCluster { namespace, controller }).set(age);
        }
    }

    /// All metrics in the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            // Writing to a String cannot fail; if it did, the scraper would reject the incomplete text.
            let _ = write!(text, "# incomplete");
        }
        text
    }
}

fn of_workers(set: &OfSet, state: &'static str) -> OfWorkers {
    OfWorkers { namespace: set.namespace.clone(), nodeset: set.nodeset.clone(), state }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn set() -> ObjectMeta {
        let text = |text: &str| Some(text.to_owned());
        ObjectMeta { namespace: text("slurm"), name: text("gpu"), uid: text("u"), ..ObjectMeta::default() }
    }

    /// The value of the series with this prefix.
    fn value(metrics: &Metrics, series: &str) -> Option<String> {
        metrics.drain_ages(NOW);
        metrics.text().lines().find_map(|line| line.strip_prefix(series).map(|rest| rest.trim().to_owned()))
    }

    #[test]
    fn workers_are_counted_once_and_removed_with_their_set() {
        let metrics = Metrics::default();
        let worker_metrics = WorkerMetrics {
            workers: vec![("ready", 3), ("idle", 2)],
            draining_since: Some(NOW - SignedDuration::from_secs(90)),
            drained: vec![("w-0".into(), SignedDuration::from_secs(30))],
            registered: vec![
                ("w-1".into(), SignedDuration::from_secs(-1)),
                ("w-2".into(), SignedDuration::from_secs(4)),
            ],
        };
        let of = |name: &str, state: &str| {
            let state = if state.is_empty() { String::new() } else { format!(",state=\"{state}\"") };
            value(&metrics, &format!("slurm_operator_{name}{{namespace=\"slurm\",nodeset=\"gpu\"{state}}}"))
        };
        metrics.measured_workers(&set(), WorkerMetrics::default());
        assert_eq!([of("drain_seconds_count", ""), of("register_seconds_count", "")].map(Option::unwrap), ["0", "0"]);
        metrics.measured_workers(&set(), worker_metrics.clone());
        metrics.measured_workers(&set(), worker_metrics.clone());
        assert_eq!(of("workers", "idle").as_deref(), Some("2"));
        assert_eq!(of("oldest_drain_seconds", "").as_deref(), Some("90.0"));
        assert_eq!([of("drain_seconds_sum", ""), of("drain_seconds_count", "")].map(Option::unwrap), ["30.0", "1"]);
        assert_eq!(
            [of("register_seconds_sum", ""), of("register_seconds_count", "")].map(Option::unwrap),
            ["4.0", "2"]
        );
        metrics.measured_workers(&set(), WorkerMetrics { workers: vec![("ready", 3)], ..WorkerMetrics::default() });
        assert_eq!(of("workers", "idle"), None, "Slurm is unreachable");
        assert_eq!(of("oldest_drain_seconds", "").as_deref(), Some("0.0"));
        metrics.measured_workers(&set(), worker_metrics);
        assert_eq!(of("drain_seconds_count", "").as_deref(), Some("2"), "it was drained again");
        for number in 0..3 * MAX_GONE {
            metrics.gone(&format!("other-{number}"));
        }
        assert!(metrics.measured().len() <= MAX_GONE + 1, "memory does not grow with each deleted object");
        metrics.gone("u");
        metrics.measured_workers(&set(), WorkerMetrics { workers: vec![("ready", 3)], ..WorkerMetrics::default() });
        assert!(!metrics.text().contains("gpu"), "{}", metrics.text());
    }
}
