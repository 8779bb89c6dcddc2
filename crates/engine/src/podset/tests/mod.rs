//! Tests of the planner: decision tables, the invariants by name, and fake clusters that are run until they are stable.

mod adopt;
mod events;
mod explain;
mod fake_cluster;
mod gres;
mod invariants;
mod known_bugs;
mod outputs;
mod problems;
mod random;
mod register;
mod removal_safety;
mod scenarios;
mod tables;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::OwnerReference};
use slurm::{
    states::{NodeState, NodeStates, Word},
    version::SlurmVersion,
};
use slurm_operator_api::slinky::VOCABULARY;

use super::*;
use crate::{conditions::NewCondition, plan::ObjectVersion};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
const OURS: &str = "slurm-operator: NodeSet (slurm/gpu) is scaling in";
const UPDATE: &str = "slurm-operator: NodeSet (slurm/gpu) is being updated";

fn ago(seconds: i64) -> Timestamp {
    NOW - SignedDuration::from_secs(seconds)
}

fn model(replicas: u32) -> Model {
    Model {
        vocabulary: &VOCABULARY,
        namespace: "slurm".into(),
        name: "gpu".into(),
        uid: "set-uid".into(),
        slurm_name: "gpu".into(),
        scaling: numbered(replicas, 0),
        registration: Registration::Dynamic,
        naming: Naming::default(),
        placement: Placement::default(),
        pins_to_node: false,
        oversubscribes: false,
        protects_workload: true,
        min_ready: SignedDuration::ZERO,
        update: Update::Rolling { max_unavailable: Budget::Percent(25) },
        drain: DrainPolicy::default(),
        claims: Vec::new(),
        retention: Retention::default(),
        prunes_records: false,
        resumes_rebooted: true,
        revision: "new".into(),
        needs_key_ring: false,
        life: Life::Active,
        propagated_conditions: Vec::new(),
        burst: DEFAULT_BURST,
        gres: None,
        blocked: None,
    }
}

fn numbered(replicas: u32, padding: u8) -> Scaling {
    Scaling::Numbered { ordinals: Ordinals::Count(replicas), padding, removal: RemovalOrder::Cheapest }
}

/// The claim of a worker, with these UIDs of owners.
fn claim(owners: &[&str]) -> Claim {
    let owner = |uid: &&str| OwnerReference { uid: (*uid).to_owned(), ..OwnerReference::default() };
    let object = ObjectVersion::of::<PersistentVolumeClaim>(&PersistentVolumeClaim::default());
    Claim { object, owners: owners.iter().map(owner).collect(), deleting: false }
}

fn rolling(replicas: u32, max_unavailable: Budget) -> Model {
    Model { update: Update::Rolling { max_unavailable }, ..model(replicas) }
}

/// A ready, registered and up-to-date worker.
fn worker(ordinal: u32) -> Worker {
    let name = format!("gpu-{ordinal}");
    Worker {
        uid: format!("uid-{ordinal}"),
        resource_version: "7".into(),
        node: Some(format!("node{ordinal}")),
        hostname: Some(name.clone()),
        phase: Phase::Running,
        ready: Some(ago(3600)),
        created: Some(ago(3700)),
        slurmd: SlurmdState::Running { since: Some(ago(3650)) },
        mode: Some(Mode::Numbered),
        index: Some(ordinal.to_string()),
        revision: Some("new".into()),
        conditions: conditions_of("IDLE", ""),
        name,
        ..Worker::default()
    }
}

/// A worker that has only been created.
fn unborn(ordinal: u32) -> Worker {
    let node = None;
    let conditions = BTreeMap::new();
    Worker { node, conditions, phase: Phase::Pending, ready: None, slurmd: SlurmdState::Stopped, ..worker(ordinal) }
}

fn daemon(node: &str) -> Worker {
    Worker {
        name: format!("gpu-{node}"),
        uid: format!("uid-{node}"),
        node: Some(node.into()),
        target: Some(node.into()),
        hostname: Some(node.into()),
        mode: Some(Mode::PerNode),
        index: None,
        ..worker(0)
    }
}

fn states(text: &str) -> NodeStates {
    let word = |text: &str| NodeState::ALL.iter().find(|(_, name)| *name == text).unwrap_or_else(|| panic!("{text}")).0;
    text.split('+').map(word).collect()
}

/// The pod conditions for a Slurm node state and reason.
fn conditions_of(text: &str, reason: &str) -> BTreeMap<String, String> {
    let words = text.split('+').filter(|word| *word != "DYNAMIC_NORM").map(|word| {
        let parts = word.split('_').map(|part| part[..1].to_owned() + &part[1..].to_lowercase());
        let name: String = parts.collect();
        (format!("SlurmNodeState{name}"), reason.to_owned())
    });
    words.collect()
}

fn record(text: &str, reason: &str) -> SlurmNode {
    SlurmNode { states: states(text), reason: reason.into(), reason_since: Some(ago(600)), ..SlurmNode::default() }
}

/// The Slurm node of a worker, with the expected comment.
fn record_of(worker: &Worker, text: &str, reason: &str) -> SlurmNode {
    let info = PodInfo {
        namespace: "slurm".into(),
        pod_name: worker.name.clone().into(),
        node: worker.node.clone().unwrap_or_default().into(),
        node_set_name: "gpu".into(),
        node_set_uid: "set-uid".into(),
    };
    SlurmNode { comment: info.text(), features: vec!["gpu".into()], ..record(text, reason) }
}

/// These jobs, read just after the nodes of the snapshot.
fn jobs_of(by_node: impl IntoIterator<Item = (String, Vec<Job>)>) -> Jobs {
    let jobs = JobIndex { by_node: by_node.into_iter().collect(), ..JobIndex::default() };
    Jobs::Read(JobList { jobs: Arc::new(jobs), nodes: Arc::default() })
}

/// A snapshot with no jobs.
fn snapshot(nodes: HashMap<String, SlurmNode>) -> Snapshot {
    let nodes = Arc::new(nodes);
    Snapshot {
        jobs: Jobs::Read(JobList { nodes: Arc::clone(&nodes), ..JobList::default() }),
        nodes,
        read_at: ago(1),
        period: SignedDuration::from_secs(2),
        ctld_started: Some(ago(86_400)),
        clock_ahead: Some(SignedDuration::ZERO),
        version: Some(SlurmVersion::new(26, 5)),
        pending: HashMap::new(),
        reservations: Some(Arc::default()),
    }
}

fn kube_node(name: &str) -> KubeNode {
    KubeNode { name: name.into(), ready: true, ..KubeNode::default() }
}

/// Workers, each with a Slurm state and reason, on ready Kubernetes nodes.
fn facts_of(workers: Vec<(Worker, &str, &str)>) -> Facts {
    let mut facts = Facts::default();
    let mut nodes = HashMap::new();
    for (mut worker, text, reason) in workers {
        if let Some(name) = worker.slurm_node().filter(|_| !text.is_empty()) {
            nodes.insert(name.to_owned(), record_of(&worker, text, reason));
            if worker.slurmd != SlurmdState::Stopped {
                worker.conditions = conditions_of(text, reason);
            }
            worker.protected = states(text).is_busy() && worker.slurmd != SlurmdState::Stopped;
            worker.autoscalers = [if worker.protected { SetBy::Operator } else { SetBy::Unset }; 2];
        }
        if let Some(node) = &worker.node {
            facts.nodes.insert(node.clone(), Arc::new(kube_node(node)));
        }
        facts.workers.push(Arc::new(worker));
    }
    facts.slurm = SlurmObservation::Clear(Arc::new(snapshot(nodes)));
    facts.recall.slurm.registered = 0;
    facts
}

fn idle(ordinals: impl IntoIterator<Item = u32>) -> Vec<(Worker, &'static str, &'static str)> {
    ordinals.into_iter().map(|ordinal| (worker(ordinal), "IDLE", "")).collect()
}

fn edit_snapshot(facts: &mut Facts, edit: impl FnOnce(&mut Snapshot)) {
    let SlurmObservation::Clear(snapshot) = &mut facts.slurm else { panic!("blind") };
    let snapshot = Arc::make_mut(snapshot);
    edit(snapshot);
    // The jobs are read after the nodes.
    if let Jobs::Read(list) = &mut snapshot.jobs {
        list.nodes = Arc::clone(&snapshot.nodes);
    }
}

fn edit_worker(facts: &mut Facts, name: &str, edit: impl FnOnce(&mut Worker)) {
    let worker = facts.workers.iter_mut().find(|worker| worker.name == name).unwrap();
    edit(Arc::make_mut(worker));
}

fn edit_node(facts: &mut Facts, name: &str, edit: impl FnOnce(&mut KubeNode)) {
    edit(Arc::make_mut(facts.nodes.get_mut(name).unwrap()));
}

fn decide(model: &Model, facts: &Facts) -> Decision {
    plan(model, facts, NOW)
}

/// The actions in short form: verb and target.
fn actions(decision: &Decision) -> Vec<String> {
    decision.actions.iter().map(short).collect()
}

fn short(action: &WorkerAction) -> String {
    match action {
        WorkerAction::Create(identity) => {
            format!("create {}{}", identity.name, if identity.forget { " anew" } else { "" })
        }
        WorkerAction::Delete(removal) => format!("delete {}", removal.name),
        WorkerAction::Patch { pod, labels, annotations } => {
            let changes = labels.iter().chain(annotations);
            let text = |(key, value): (&&str, &Option<String>)| {
                format!("{}={}", key.rsplit('/').next().unwrap(), value.as_deref().unwrap_or("-"))
            };
            format!("patch {} {}", pod.name, changes.map(text).collect::<Vec<_>>().join(" "))
        }
        WorkerAction::Conditions { pod, set, remove } => {
            let bare = |type_: &String| type_.replace("SlurmNodeState", "");
            let set = set.iter().map(|(type_, _)| format!("+{}", bare(type_)));
            let remove = remove.iter().map(|type_| format!("-{}", bare(type_)));
            format!("conditions {} {}", pod.name, set.chain(remove).collect::<Vec<_>>().join(" "))
        }
        WorkerAction::Drain { nodes, reason } => format!("drain {}: {reason}", nodes.join(",")),
        WorkerAction::Undrain { nodes } => format!("undrain {}", nodes.join(",")),
        WorkerAction::Resume { nodes } => format!("resume {}", nodes.join(",")),
        WorkerAction::Describe(description) => format!("describe {}", description.node),
        WorkerAction::Forget { node } => format!("forget {node}"),
        WorkerAction::Adopt { pod, .. } => format!("adopt {}", pod.name),
        WorkerAction::Register { node, .. } => format!("register {node}"),
        WorkerAction::Requeue { job, node } => format!("requeue {job} on {node}"),
        WorkerAction::Kill { job, node } => format!("kill {job} on {node}"),
        WorkerAction::CreateClaim(usage) => format!("create claim {}", usage.claim),
        WorkerAction::OwnClaim { claim, by_set, drop, .. } => {
            format!("own {claim} set={by_set} drop={}", drop.join(","))
        }
        WorkerAction::Reserve(booking) => format!("reserve {} {}", booking.nodes.join(","), booking.flags.join(",")),
        WorkerAction::Unreserve { reservation } => format!("unreserve {reservation}"),
    }
}

fn nothing() -> Vec<String> {
    Vec::new()
}

fn new_condition<'a>(decision: &'a Decision, type_: &str) -> &'a NewCondition {
    decision.conditions.iter().find(|new_condition| new_condition.type_ == type_).unwrap()
}
