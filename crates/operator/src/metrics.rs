//! What is counted, and how it is told.

use std::{
    fmt::Write as _,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::machine::{Failure, Kind, Step};

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

    /// Whether this process leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
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
