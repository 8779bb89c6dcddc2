//! `cargo bench -p slurm-operator --bench plan`: the cost of a complete plan, compared with a budget and with the
//! number of workers.
//!
//! Fails only if the limits are exceeded by far, because machines differ and are shared. `cargo test` also runs it,
//! without checking the times.

use std::{
    collections::HashMap,
    hint::black_box,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use engine::{
    plan::{ObjectVersion, Step},
    podset::{self, Jobs, KubeNode, Mode, Phase, PodInfo, SlurmNode, SlurmObservation, SlurmdState, Snapshot, Worker},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use slurm::{states::NodeState, version::SlurmVersion};
use slurm_operator::frontends::slinky::{
    keys::Ring,
    nodeset::plan::{Cluster, Facts, GresTypes, LiveChildren, Revision, plan},
};
use slurm_operator_api::{
    common::template::Overlay,
    slinky::{NodeSet, nodeset::ScalingMode},
};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Even the small size exceeds the processor's private caches; otherwise the growth would be overstated.
const FEW: u32 = 2_500;
const MANY: u32 = 10_000;

/// For 10,000 workers when there is nothing to do.
const BUDGET: Duration = Duration::from_millis(20);

/// Only fail if the budget is exceeded by this factor.
const MARGIN: u32 = 3;

/// Four times the workers should cost about four times as much, plus cache effects; a quadratic algorithm would cost
/// sixteen times as much.
const GROWTH: u32 = 12;

/// The minimum of this many runs counts: other load only adds time.
const RUNS: usize = 20;

fn main() -> ExitCode {
    let mut is_well = true;
    println!("{:<24} {:>10} {:>10} {:>10}", "a plan", "2,500", "10,000", "growth");
    for (what, change, budget) in CASES {
        let Some((few, many)) = cost(FEW, *change).zip(cost(MANY, *change)) else {
            println!("{what}: the initial state is not stable: the plan would change workers");
            return ExitCode::FAILURE;
        };
        let growth = many.as_secs_f64() / few.as_secs_f64().max(f64::EPSILON);
        println!("{what:<24} {:>7.2} ms {:>7.2} ms {growth:>8.1} ×", millis(few), millis(many));
        is_well &= many <= few * GROWTH && budget.is_none_or(|budget| many <= budget * MARGIN);
    }
    println!("budget of the first two: {} ms", BUDGET.as_millis());
    // `cargo test` only checks that it runs.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    if is_well || !is_measured { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Change = fn(&mut NodeSet, &mut Facts);

/// Changes to a set of idle workers, and the budget of a plan.
const CASES: &[(&str, Change, Option<Duration>)] = &[
    ("nothing to do", |_, _| {}, Some(BUDGET)),
    ("Slurm unreachable", |_, facts| facts.podset.slurm = away(), Some(BUDGET)),
    ("new template", |set, _| set.spec.slurmd = container("registry.example/slurmd:26.05.1"), None),
    ("scale in by half", |set, _| set.spec.replicas /= 2, None),
    ("scale out to double", |set, _| set.spec.replicas *= 2, None),
    ("switch to one per node", |set, _| set.spec.scaling_mode = ScalingMode::DaemonSet, None),
];

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

fn away() -> SlurmObservation {
    SlurmObservation::Blind { since: NOW, why: "slurmrestd does not answer".to_owned() }
}

fn container(image: &str) -> Overlay {
    serde_json::from_value(json!({"image": image})).unwrap_or_default()
}

/// The shortest time of one plan; `None` if the initial state is not stable.
fn cost(workers: u32, change: Change) -> Option<Duration> {
    let (mut set, mut facts) = cluster_of(workers)?;
    change(&mut set, &mut facts);
    let once = || {
        let start = Instant::now();
        black_box(plan(black_box(&set), black_box(&facts), NOW));
        start.elapsed()
    };
    (0..RUNS).map(|_| once()).min()
}

/// A set of idle workers; `None` if a plan would change them.
fn cluster_of(workers: u32) -> Option<(NodeSet, Facts)> {
    let set: NodeSet = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": {"name": "gpu", "namespace": "slurm", "uid": "set-uid", "generation": 1},
        "spec": {
            "controllerRef": {"name": "slurm"}, "replicas": workers,
            "slurmd": {"image": "registry.example/slurmd:26.05"},
        },
    }))
    .ok()?;
    let controller = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": {"name": "slurm", "namespace": "slurm", "uid": "controller-uid"},
        "spec": {"slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "jwtKeyRef": {"name": "keys", "key": "jwt.key"}},
    }))
    .ok()?;
    let mut facts = Facts {
        cluster: Some(Cluster {
            controller: Box::new(controller),
            has_key: true,
            ring: Ring::NotUsed,
            gres_types: GresTypes::default(),
        }),
        podset: podset::Facts::default(),
        revisions: Vec::new(),
        siblings: Vec::new(),
        live: LiveChildren::default(),
        has_drain_policy: None,
        sssd_hash: None,
        propagated_conditions: Vec::new(),
        domain: "cluster.local".to_owned(),
    };
    facts.revisions = plan(&set, &facts, NOW).stages.iter().flatten().filter_map(revision).collect();
    let hash = facts.revisions.first()?.hash.clone();
    let name = |index: u32| format!("gpu-{index}");
    facts.podset.workers = (0..workers).map(|index| Arc::new(worker(name(index), &hash))).collect();
    let nodes = (0..workers).map(|index| format!("node-{}", name(index)));
    let node = |name: String| (name.clone(), Arc::new(KubeNode { name, ready: true, ..KubeNode::default() }));
    facts.podset.nodes = nodes.map(node).collect();
    facts.podset.slurm = SlurmObservation::Clear(Arc::new(Snapshot {
        nodes: Arc::new((0..workers).map(|index| (name(index), record(&name(index)))).collect()),
        read_at: NOW,
        period: SignedDuration::from_secs(1),
        ctld_started: Some(NOW - SignedDuration::from_hours(1)),
        clock_ahead: Some(SignedDuration::ZERO),
        version: SlurmVersion::from_image("slurmd:26.05"),
        pending: HashMap::new(),
        jobs: Jobs::Unread,
        reservations: None,
    }));
    let steps = plan(&set, &facts, NOW).stages;
    steps.iter().flatten().all(|step| matches!(step, Step::Apply(_))).then_some((set, facts))
}

fn revision(step: &Step) -> Option<Revision> {
    let Step::Apply(desired) = step else { return None };
    let data = desired.object.data.get("data")?.clone();
    let name = desired.object.metadata.name.clone()?;
    let hash = name.strip_prefix("gpu-")?.to_owned();
    let object = ObjectVersion {
        resource: desired.resource.clone(),
        namespace: Some("slurm".to_owned()),
        name,
        uid: "revision-uid".to_owned(),
        resource_version: "1".to_owned(),
    };
    Some(Revision { object, hash, number: 1, data, claim_templates: Some("[]".to_owned()) })
}

fn worker(name: String, hash: &str) -> Worker {
    Worker {
        uid: format!("uid-{name}"),
        resource_version: "1".to_owned(),
        node: Some(format!("node-{name}")),
        hostname: Some(name.clone()),
        phase: Phase::Running,
        ready: Some(NOW),
        created: Some(NOW),
        slurmd: SlurmdState::Running { since: Some(NOW) },
        mode: Some(Mode::Numbered),
        index: name.strip_prefix("gpu-").map(str::to_owned),
        revision: Some(hash.to_owned()),
        conditions: [("SlurmNodeStateIdle".to_owned(), String::new())].into(),
        name,
        ..Worker::default()
    }
}

fn record(name: &str) -> SlurmNode {
    let info = PodInfo {
        namespace: "slurm".into(),
        pod_name: name.into(),
        node: format!("node-{name}").into(),
        node_set_name: "gpu".into(),
        node_set_uid: "set-uid".into(),
    };
    SlurmNode {
        states: [NodeState::Idle, NodeState::DynamicNorm].into_iter().collect(),
        comment: info.text(),
        features: vec!["gpu".to_owned()],
        active_features: vec!["gpu".to_owned()],
        ..SlurmNode::default()
    }
}
