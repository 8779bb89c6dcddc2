//! What is counted, and how it is told.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicU64},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::{
    lock::lock,
    machine::{Failure, Kind, Step, WorkerMetrics},
};

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

/// What was last measured of a set of workers.
struct Measured {
    set: OfSet,
    draining_since: Option<Timestamp>,
    workers: Vec<&'static str>,
    /// Workers that were counted already.
    counted: HashSet<String>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfCluster {
    namespace: String,
    controller: String,
}

/// All series of the process. Cheap to clone.
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
    /// By the set's UID; nothing of one that is gone.
    measured: Arc<Mutex<HashMap<String, Option<Measured>>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let buckets = || Histogram::new([0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0]);
        let seconds: Family<OfKind, Histogram> = Family::new_with_constructor(buckets);
        let (reconciles, failures, steps, backoff, leader) =
            (Family::default(), Family::default(), Family::default(), Family::default(), Gauge::default());
        let mut registry = Registry::with_prefix("slurm_operator");
        registry.register("reconciles", "Passes over an object", Family::clone(&reconciles));
        registry.register("reconcile_seconds", "How long a pass takes", seconds.clone());
        registry.register("failures", "Passes that failed, by what went wrong", Family::clone(&failures));
        registry.register("steps", "Writes that plans asked for", Family::clone(&steps));
        registry.register("backoff_objects", "Objects that wait after a failure", Family::clone(&backoff));
        registry.register("leader", "Whether this process leads", Gauge::clone(&leader));
        registry.register("build", "What runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        let slurm_seconds: Family<OfCall, Histogram> = Family::new_with_constructor(buckets);
        let (slurm_failures, snapshot_age) = (Family::default(), Family::default());
        registry.register("slurm_call_seconds", "How long a call to slurmrestd takes", slurm_seconds.clone());
        registry.register("slurm_call_failures", "Calls to slurmrestd that failed", Family::clone(&slurm_failures));
        registry.register(
            "slurm_snapshot_age_seconds",
            "How old what is known of a Slurm cluster is",
            Family::clone(&snapshot_age),
        );
        let workers = Family::default();
        let oldest_drain = Family::default();
        let drain_seconds: Family<OfSet, Histogram> = Family::new_with_constructor(|| {
            Histogram::new([2.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0])
        });
        let register_seconds: Family<OfSet, Histogram> =
            Family::new_with_constructor(|| Histogram::new([0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0]));
        registry.register("workers", "Workers by state; one may be in several", Family::clone(&workers));
        registry.register(
            "oldest_drain_seconds",
            "For how long the oldest drain before a removal goes on; 0 if there is none",
            Family::clone(&oldest_drain),
        );
        registry.register(
            "drain_seconds",
            "From the drain of a worker that is to go until its last job is gone",
            drain_seconds.clone(),
        );
        registry.register(
            "register_seconds",
            "From a worker's pod being ready until Slurm knows it",
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
    /// A pass ended.
    pub fn reconciled<K: Kind>(&self, took: Duration, failure: Option<&Failure>) {
        let kind = OfKind { kind: K::NAME };
        self.seconds.get_or_create(&kind).observe(took.as_secs_f64());
        self.reconciles.get_or_create(&kind).inc();
        if let Some(failure) = failure {
            self.failures.get_or_create(&OfFailure { kind: K::NAME, class: failure.class() }).inc();
        }
    }

    /// A plan was made.
    pub fn planned<'a, K: Kind>(&self, steps: impl Iterator<Item = &'a Step>) {
        for step in steps {
            self.steps.get_or_create(&OfStep { kind: K::NAME, step: step.name() }).inc();
        }
    }

    /// This many objects wait after a failure.
    pub fn waiting<K: Kind>(&self, objects: usize) {
        self.backoff.get_or_create(&OfKind { kind: K::NAME }).set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    /// Whether this process leads. Who does not knows nothing of workers.
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

    /// A set of workers was looked at. Each worker is counted once, however often it is told of.
    pub fn measured_workers(&self, set: &ObjectMeta, worker_metrics: WorkerMetrics) {
        let of = OfSet {
            namespace: set.namespace.clone().unwrap_or_default(),
            nodeset: set.name.clone().unwrap_or_default(),
        };
        let mut sets = self.measured();
        let nothing =
            || Measured { set: of.clone(), draining_since: None, workers: Vec::new(), counted: HashSet::new() };
        // A pass that was under way when its set went comes too late.
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

    /// A set of workers is gone.
    pub fn gone(&self, uid: &str) {
        if let Some(last) = self.measured().insert(uid.to_owned(), None).flatten() {
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

    /// How long drains go on by now.
    pub fn drain_ages(&self, now: Timestamp) {
        for last in self.measured().values().flatten() {
            let age = last.draining_since.map_or(0.0, |since| now.duration_since(since).as_secs_f64().max(0.0));
            self.oldest_drain.get_or_create(&last.set).set(age);
        }
    }

    /// A call to slurmrestd ended.
    pub fn slurm_call(&self, call: &'static str, took: Duration, failure: Option<&'static str>) {
        self.slurm_seconds.get_or_create(&OfCall { call }).observe(took.as_secs_f64());
        if let Some(class) = failure {
            self.slurm_failures.get_or_create(&OfCallFailure { call, class }).inc();
        }
    }

    /// How old what is known of each Slurm cluster is.
    pub fn snapshot_ages(&self, ages: Vec<((String, String), f64)>) {
        self.snapshot_age.clear();
        for ((namespace, controller), age) in ages {
            self.snapshot_age.get_or_create(&OfCluster { namespace, controller }).set(age);
        }
    }

    /// Everything, in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            // Writing to a string does not fail; a scraper that gets half of it says so.
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
    use super::*;
    use jiff::SignedDuration;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn set() -> ObjectMeta {
        let text = |text: &str| Some(text.to_owned());
        ObjectMeta { namespace: text("slurm"), name: text("gpu"), uid: text("u"), ..ObjectMeta::default() }
    }

    /// The values of a series, by what stands before it.
    fn value(metrics: &Metrics, series: &str) -> Option<String> {
        metrics.drain_ages(NOW);
        metrics.text().lines().find_map(|line| line.strip_prefix(series).map(|rest| rest.trim().to_owned()))
    }

    #[test]
    fn workers_are_counted_once_and_forgotten_with_their_set() {
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
        metrics.measured_workers(&set(), worker_metrics.clone());
        metrics.measured_workers(&set(), worker_metrics.clone());
        let of = |name: &str, state: &str| {
            let state = if state.is_empty() { String::new() } else { format!(",state=\"{state}\"") };
            value(&metrics, &format!("slurm_operator_{name}{{namespace=\"slurm\",nodeset=\"gpu\"{state}}}"))
        };
        assert_eq!(of("workers", "idle").as_deref(), Some("2"));
        assert_eq!(of("oldest_drain_seconds", "").as_deref(), Some("90.0"));
        assert_eq!([of("drain_seconds_sum", ""), of("drain_seconds_count", "")].map(Option::unwrap), ["30.0", "1"]);
        assert_eq!(
            [of("register_seconds_sum", ""), of("register_seconds_count", "")].map(Option::unwrap),
            ["4.0", "2"]
        );
        metrics.measured_workers(&set(), WorkerMetrics { workers: vec![("ready", 3)], ..WorkerMetrics::default() });
        assert_eq!(of("workers", "idle"), None, "Slurm is away");
        assert_eq!(of("oldest_drain_seconds", "").as_deref(), Some("0.0"));
        metrics.measured_workers(&set(), worker_metrics);
        assert_eq!(of("drain_seconds_count", "").as_deref(), Some("2"), "it was drained again");
        metrics.gone("u");
        metrics.measured_workers(&set(), WorkerMetrics { workers: vec![("ready", 3)], ..WorkerMetrics::default() });
        assert!(!metrics.text().contains("gpu"), "{}", metrics.text());
    }
}
