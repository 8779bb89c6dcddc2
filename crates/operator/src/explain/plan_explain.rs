//! Why an object is as it is: from what was read to an answer. Pure.

use engine::podset::{Budget, Cordon, Deadline, OnTimeout, Standing, Update};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::status::{
    model::{Event, Facts, Health, Object, Unread},
    plan_tree::{self, controller_of, overall, pods_of, program_of},
    plan_workers::{self, SetFacts, health, why},
};

/// How many events are shown.
const EVENTS: usize = 10;

/// Why an object is as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub health: Health,
    pub summary: String,
    pub conditions: Vec<Found>,
    /// What its spec asks for, and other findings.
    pub notes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerAnswer>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodAnswer>,
    pub events: Vec<Event>,
    pub unread: Vec<Unread>,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Timestamp,
    #[serde(skip)]
    pub health: Health,
}

/// Why a worker is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerAnswer {
    pub pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_node: Option<String>,
    pub state: String,
    pub health: Health,
    /// A word for programs, such as `Busy`.
    pub reason: &'static str,
    /// Why it is to be removed, such as `ScaleIn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    pub message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A pod of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodAnswer {
    pub name: String,
    pub health: Health,
    pub message: String,
}

/// Explains an object.
pub fn answer(object: &Object, facts: &Facts, now: Timestamp) -> Answer {
    let conditions = object.conditions();
    let (health, summary) = overall(&conditions);
    let mut notes = Vec::new();
    if object.is_deleted() {
        notes.push(finalizers(object));
    }
    if object.is_behind() {
        let text = "the operator has not acted on the last change: what follows is older than the spec";
        notes.push(text.to_owned());
    }
    let mut workers = Vec::new();
    if object.kind == "NodeSet" {
        match plan_workers::explain(object, controller_of(object, facts), facts, now) {
            Ok(set) => {
                notes.extend(wishes(object, &set));
                let all = &set.explanation.workers;
                workers = all.iter().map(|standing| worker(&set, standing, facts, now)).collect();
            }
            Err(why) => notes.push(why),
        }
    }
    Answer {
        kind: object.kind.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        health,
        summary,
        conditions: conditions.into_iter().map(found).collect(),
        notes,
        workers,
        pods: pods(object, facts),
        events: events(object, facts),
        unread: facts.unread.clone(),
    }
}

fn found(condition: Condition) -> Found {
    let health = if plan_tree::is_finding(&condition) || (condition.type_ == "Ready" && condition.status != "True") {
        Health::Warning
    } else if condition.type_ == "Progressing" && condition.status == "True" {
        Health::Busy
    } else {
        Health::Good
    };
    Found {
        type_: condition.type_,
        status: condition.status,
        reason: condition.reason,
        message: condition.message,
        since: condition.last_transition_time.0,
        health,
    }
}

fn finalizers(object: &Object) -> String {
    let all = object.value.pointer("/metadata/finalizers").and_then(|found| found.as_array());
    let names: Vec<&str> = all.into_iter().flatten().filter_map(|name| name.as_str()).collect();
    if names.is_empty() {
        "it is being deleted".to_owned()
    } else {
        format!("it is being deleted, and waits for its finalizers: {}", names.join(", "))
    }
}

/// What the spec of a set asks for.
fn wishes(set: &Object, facts: &SetFacts<'_>) -> Vec<String> {
    let model = &facts.model;
    let desired = facts.explanation.desired;
    let update = match &model.update {
        Update::Rolling { max_unavailable } => {
            let percent = match max_unavailable {
                Budget::Percent(percent) => format!(" ({percent}%)"),
                Budget::Number(_) => String::new(),
            };
            format!("at most {}{percent} out of service", max_unavailable.of(desired))
        }
        Update::OnDelete => "a worker is replaced when its pod is deleted".to_owned(),
        Update::Scheduled(schedule) => {
            format!("in a reservation from {:.0} on, for {} minutes", schedule.start, schedule.minutes)
        }
    };
    let drain = match (model.drain.timeout, model.drain.on_timeout) {
        (None, _) => "jobs may take as long as they like".to_owned(),
        (Some(timeout), OnTimeout::Wait) => format!("after {timeout:#} a running job is reported"),
        (Some(timeout), OnTimeout::Requeue) => format!("after {timeout:#} jobs are requeued"),
        (Some(timeout), OnTimeout::Kill) => format!("after {timeout:#} jobs are cancelled"),
    };
    let mut notes = vec![
        format!("wanted: {desired} workers, {} there, {} without a pod", facts.pods.len(), facts.explanation.missing),
        format!("{}: {update}; drain: {drain}", plan_tree::update_of(set)),
    ];
    if facts.is_paused() {
        notes.push(format!("paused by the annotation {}", model.vocabulary.annotation.paused));
    }
    if let Some(problem) = &model.blocked {
        notes.push(format!("no worker is created or updated ({}): {}", problem.reason, problem.message));
    }
    notes
}

fn worker(set: &SetFacts<'_>, standing: &Standing, facts: &Facts, now: Timestamp) -> WorkerAnswer {
    let states = set.states(standing);
    WorkerAnswer {
        pod: standing.pod.clone(),
        slurm_node: standing.slurm_node.clone(),
        kubernetes_node: standing.kube_node.clone(),
        state: states.map_or_else(|| "-".to_owned(), |states| states.to_string().to_lowercase()),
        health: health(&standing.why),
        reason: standing.why.reason(),
        cause: standing.why.cause().map(|cause| format!("{cause:?}")),
        message: why(standing, now),
        notes: worker_notes(set, standing, facts),
    }
}

/// The facts behind it.
fn worker_notes(set: &SetFacts<'_>, standing: &Standing, facts: &Facts) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(found) = set.pod(&standing.pod).and_then(|pod| pod.worker.as_ref()) else { return notes };
    let worker = &found.worker;
    let annotation = &set.model.vocabulary.annotation;
    if let Some(node) = standing.kube_node.as_ref().and_then(|name| facts.nodes.get(name)) {
        if node.unschedulable {
            notes.push(format!("its Kubernetes node {} is cordoned", node.name));
        }
        if !node.ready {
            notes.push(format!("its Kubernetes node {} is not ready", node.name));
        }
    }
    match worker.cordon {
        Cordon::User => notes.push(format!("a user has set the annotation {}", annotation.pod_cordon)),
        Cordon::Node => notes.push(format!("the annotation {} shows a cordoned node", annotation.pod_cordon)),
        Cordon::None | Cordon::Operator => {}
    }
    let reason = worker.conditions.values().next().filter(|reason| !reason.is_empty());
    if let Some(reason) = reason.filter(|reason| !standing.why.text(Timestamp::UNIX_EPOCH).contains(reason.as_str())) {
        notes.push(format!("reason of its Slurm node: {reason}"));
    }
    if let Some(since) = set.drained_since(standing) {
        notes.push(format!("drained since {since:.0}"));
    }
    match standing.deadline {
        Deadline::At(end) => notes.push(format!("its last job ends at {end:.0} at the latest")),
        Deadline::Never => notes.push("it has a job without a time limit".to_owned()),
        Deadline::Now => {}
    }
    if let Some(cost) = &worker.deletion_cost {
        notes.push(format!("{}: {cost}", annotation.pod_deletion_cost));
    }
    if let (Some(_), Some(revision)) = (standing.outdated, &worker.revision) {
        notes.push(format!("its template is {revision}, the newest one is {}", set.model.revision));
    }
    if worker.protected {
        notes.push("protected from eviction, as Slurm says that it is busy".to_owned());
    }
    notes
}

fn pods(object: &Object, facts: &Facts) -> Vec<PodAnswer> {
    if object.kind == "NodeSet" {
        return Vec::new();
    }
    let of = |pod: &crate::status::model::Pod| {
        let active = if pod.is_active { "ready, in charge" } else { "ready" };
        let mut message = pod.problem.clone().unwrap_or_else(|| active.to_owned());
        if pod.restarts > 0 {
            message = format!("{message}, restarted {} times", pod.restarts);
        }
        PodAnswer { name: pod.name.clone(), health: if pod.is_ready { Health::Good } else { Health::Warning }, message }
    };
    pods_of(object, program_of(&object.kind), facts).map(of).collect()
}

/// The last events of the object and of its pods.
fn events(object: &Object, facts: &Facts) -> Vec<Event> {
    let title = object.title();
    let pods: Vec<String> = pods_of(object, program_of(&object.kind), facts)
        .map(|pod| format!("Pod {}/{}", pod.namespace, pod.name))
        .collect();
    let mut found: Vec<Event> = facts
        .events
        .iter()
        .filter(|event| event.object == title || (event.is_warning && pods.contains(&event.object)))
        .cloned()
        .collect();
    found.sort_by(|a, b| (a.time, &a.message).cmp(&(b.time, &b.message)));
    let first = found.len().saturating_sub(EVENTS);
    found.split_off(first)
}
