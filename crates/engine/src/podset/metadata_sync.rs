//! Copies worker state from Slurm to pod metadata and conditions, and node metadata from Kubernetes to Slurm.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use slurm::{
    states::{NodeState, NodeStates, Word},
    version::{Feature, supports},
};
use slurm_operator_api::common::vocabulary::{AUTOSCALERS, TRUE};

use super::{
    context::{Context, DecisionBuilder},
    decision::{Description, WorkerAction},
    drain::cordon_of_pod,
    facts::{Cordon, KubeNode, OtherSet, SetBy, SlurmNode, SlurmdState},
    identity,
    model::{Mode, Model},
    node_records::{PodInfo, pod_info},
    scale::{LOOK_AGAIN, of_set},
    trust::NodeObservation,
    worker_state::{Deadline, NO_LIMIT, WorkerState},
};

/// Slurm node flags that are shown as pod conditions.
const FLAGS: [NodeState; 8] = [
    NodeState::Completing,
    NodeState::Drain,
    NodeState::Fail,
    NodeState::Invalid,
    NodeState::InvalidReg,
    NodeState::Maintenance,
    NodeState::NotResponding,
    NodeState::Undrain,
];

/// The message of the condition of a worker that slurmctld does not know any more.
const NOT_KNOWN: &str = "Slurm does not know this node";

/// Plans an update for everything that differs.
pub(super) fn decide(context: &Context<'_>, workers: &[WorkerState<'_>], builder: &mut DecisionBuilder) {
    let topology = context.slurm.snapshot().is_some_and(|snapshot| supports(snapshot.version, Feature::NodeTopology));
    let mut descriptions = Vec::new();
    for state in workers.iter().filter(|state| state.is_alive()) {
        if !state.worker.pending {
            builder.actions.extend(patch(context, state, &mut builder.needs_jobs));
            builder.actions.extend(conditions(state));
        }
        match rival(context, state) {
            // Two workers have one name: writing would go on for ever, as each would undo what the other wrote.
            Some(rival) => {
                let name = state.name.unwrap_or_default().to_owned();
                builder.problems.taken_names.entry(of_set(context.model, rival)).or_default().push(name);
                builder.wake(context.now + LOOK_AGAIN);
            }
            None => descriptions.extend(describe(context, state, topology)),
        }
        // The version is unknown until it has been read.
        let is_old = context.slurm.snapshot().is_some_and(|snapshot| snapshot.version.is_some()) && !topology;
        builder.problems.cannot_place |= is_old && state.node.is_some_and(|node| place(context.model, node).is_some());
    }
    builder.actions.extend(descriptions.into_iter().map(Box::new).map(WorkerAction::Describe));
}

/// The Slurm node of this pod. Before its slurmd has run, the Slurm node belongs to its predecessor.
pub(super) fn own_node<'a>(state: &WorkerState<'a>) -> Option<&'a SlurmNode> {
    let has_run = state.worker.slurmd != SlurmdState::Stopped || state.worker.has_registered();
    state.observation.node().filter(|_| has_run)
}

/// Changes of labels or annotations; `None` removes one.
type Changes = BTreeMap<&'static str, Option<String>>;

fn patch(context: &Context<'_>, state: &WorkerState<'_>, needs_jobs: &mut bool) -> Option<WorkerAction> {
    let mut labels = lost_labels(context.model, state);
    let mut annotations = Changes::new();
    if let Some(protected) = protection(context, state, needs_jobs) {
        if protected != state.worker.protected {
            labels.insert(context.model.vocabulary.label.pod_protect, protected.then(|| TRUE.to_owned()));
        }
        keep_from_autoscalers(state, protected, &mut annotations);
    }
    date(context, state, &mut annotations);
    locate(context, state, &mut annotations);
    show_cordon(context.model, state, &mut annotations);
    take_over(context.model, state, &mut annotations);
    let is_needed = !labels.is_empty() || !annotations.is_empty();
    is_needed.then(|| WorkerAction::Patch { pod: state.key(), labels, annotations })
}

/// Shows that the Kubernetes node is cordoned, for tools that look at the pod, as the Go operator does. What others have set
/// stays, except for what the Go operator left of a scale-in.
fn show_cordon(model: &Model, state: &WorkerState<'_>, annotations: &mut Changes) {
    let key = model.vocabulary.annotation.pod_cordon;
    match (state.worker.cordon, state.node.map(|node| node.unschedulable)) {
        (Cordon::None, Some(true)) => drop(annotations.insert(key, Some(TRUE.to_owned()))),
        (Cordon::Node, Some(false)) => drop(annotations.insert(key, None)),
        (Cordon::Operator, _) if state.is_cordoned_by_go_operator() => drop(annotations.insert(key, None)),
        _ => {}
    }
}

/// Decides once about the cordon annotation of a worker that the former operator has made. It also set the annotation for its own
/// purposes, and later nobody can tell: other programs have the same field manager, and this operator drains with the same reasons.
fn take_over(model: &Model, state: &WorkerState<'_>, annotations: &mut Changes) {
    let is_observed = matches!(state.observation, NodeObservation::Known(_) | NodeObservation::Absent);
    let Some(node) = state.node.filter(|_| state.worker.is_of_former && is_observed) else { return };
    annotations.insert(model.vocabulary.annotation.taken_over, Some(TRUE.to_owned()));
    let is_its_own = match state.drained_for() {
        Some(reason) => reason != cordon_of_pod(model, state),
        None => node.unschedulable,
    };
    if state.worker.cordon == Cordon::Operator && is_its_own {
        annotations.insert(model.vocabulary.annotation.pod_cordon, None);
    }
}

/// Labels that somebody removed.
fn lost_labels(model: &Model, state: &WorkerState<'_>) -> Changes {
    let (worker, label) = (state.worker, &model.vocabulary.label);
    let index = || worker.name.strip_prefix(&model.name).and_then(|rest| rest.strip_prefix('-'));
    let is_numbered = identity::ordinal_of_name(model, &worker.name).is_some();
    let value = |key: &str| match key {
        key if key == label.instance => Some(model.name.clone()),
        key if key == label.pod_name => Some(worker.name.clone()),
        key if key == label.pod_hostname => worker.hostname.clone(),
        key if key == label.pod_index => index().filter(|_| is_numbered).map(str::to_owned),
        key if key == label.scaling_mode => {
            Some(if is_numbered { Mode::Numbered } else { Mode::PerNode }.as_str().to_owned())
        }
        _ => None,
    };
    worker.missing_labels.iter().filter_map(|key| Some((*key, Some(value(key)?)))).collect()
}

/// Whether the pod should have the protection label; `None` if unknown: leave it as it is.
fn protection(context: &Context<'_>, state: &WorkerState<'_>, needs_jobs: &mut bool) -> Option<bool> {
    if !context.model.protects_workload {
        return Some(false);
    }
    let node = own_node(state)?;
    if node.states.is_busy() {
        return Some(true);
    }
    // A node whose job is suspended can be idle, so the jobs decide when the protection ends. If only the label is gone, somebody
    // has removed it.
    let was_protected = state.worker.protected || state.worker.autoscalers.contains(&SetBy::Operator);
    *needs_jobs |= was_protected;
    match context.slurm.jobs() {
        Some(jobs) => Some(state.name.is_some_and(|name| !jobs.on(name).is_empty())),
        None if was_protected => None,
        None => Some(false),
    }
}

/// Asks node autoscalers to leave busy workers alone. A value that a user has set is kept.
fn keep_from_autoscalers(state: &WorkerState<'_>, protected: bool, annotations: &mut Changes) {
    for ((key, value), found) in AUTOSCALERS.into_iter().zip(state.worker.autoscalers) {
        match (found, protected) {
            (SetBy::Unset, true) => drop(annotations.insert(key, Some(value.to_owned()))),
            (SetBy::Operator, false) => drop(annotations.insert(key, None)),
            _ => {}
        }
    }
}

/// Updates the deadline annotation: the end of the last job. If that is unknown, the annotation is left as it is.
fn date(context: &Context<'_>, state: &WorkerState<'_>, annotations: &mut Changes) {
    let Some(node) = own_node(state) else { return };
    if node.states.is_busy() && context.slurm.jobs().is_none() {
        return;
    }
    let wanted = match state.deadline {
        Deadline::Now => None,
        Deadline::At(end) => Some(seconds(end)),
        Deadline::Never => Some(NO_LIMIT.to_owned()),
    };
    if wanted != state.worker.deadline {
        annotations.insert(context.model.vocabulary.annotation.pod_deadline, wanted);
    }
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Copies the topology annotation from the Kubernetes node to the pod.
fn locate(context: &Context<'_>, state: &WorkerState<'_>, annotations: &mut Changes) {
    let Some(node) = state.node.filter(|_| state.worker.node.is_some()) else { return };
    let (wanted, found) =
        (place(context.model, node), state.worker.topology.as_deref().filter(|text| !text.is_empty()));
    if wanted != found {
        annotations.insert(context.model.vocabulary.annotation.topology, wanted.map(str::to_owned));
    }
}

fn place<'a>(model: &Model, node: &'a KubeNode) -> Option<&'a str> {
    node.annotations.get(model.vocabulary.annotation.topology).map(String::as_str).filter(|text| !text.is_empty())
}

fn conditions(state: &WorkerState<'_>) -> Option<WorkerAction> {
    let found = &state.worker.conditions;
    let (wanted, message) = wanted_conditions(state)?;
    let is_reported = |type_: &&str| found.get(*type_).is_some_and(|text| text == message);
    // Fast path without allocations: nearly always nothing has changed.
    if found.len() == wanted.clone().count() && wanted.clone().all(|type_| is_reported(&type_)) {
        return None;
    }
    let wanted: Vec<&str> = wanted.collect();
    let remove: Vec<String> = found.keys().filter(|type_| !wanted.contains(&type_.as_str())).cloned().collect();
    let unreported = wanted.iter().filter(|type_| !is_reported(type_));
    let mut set: Vec<(String, String)> = unreported.map(|type_| ((*type_).to_owned(), message.to_owned())).collect();
    set.sort_unstable();
    // A state from a newer Slurm release may map to no condition; then keep the existing conditions.
    (!wanted.is_empty()).then(|| WorkerAction::Conditions { pod: state.key(), set, remove })
}

/// The condition types that the pod should have, and their message; `None` if unknown.
fn wanted_conditions<'a>(
    state: &WorkerState<'a>,
) -> Option<(impl Iterator<Item = &'static str> + Clone + use<'a>, &'a str)> {
    let (states, message) = match state.observation {
        // Keep a condition: it records that the worker was registered, even if Slurm lost the node.
        NodeObservation::Absent if state.is_lost() => (None, NOT_KNOWN),
        NodeObservation::Absent => return None,
        _ => own_node(state).map(|node| (Some(&node.states), node.reason.as_str()))?,
    };
    let base = states.map_or(Some(NodeState::Unknown), NodeStates::base);
    let flags = FLAGS.into_iter().filter(move |flag| states.is_some_and(|states| states.has(*flag)));
    Some((base.into_iter().chain(flags).map(condition), message))
}

/// The pod condition type for a Slurm node state.
fn condition(state: NodeState) -> &'static str {
    match state {
        NodeState::Allocated => "SlurmNodeStateAllocated",
        NodeState::Down => "SlurmNodeStateDown",
        NodeState::Error => "SlurmNodeStateError",
        NodeState::Future => "SlurmNodeStateFuture",
        NodeState::Idle => "SlurmNodeStateIdle",
        NodeState::Mixed => "SlurmNodeStateMixed",
        NodeState::Completing => "SlurmNodeStateCompleting",
        NodeState::Drain => "SlurmNodeStateDrain",
        NodeState::Fail => "SlurmNodeStateFail",
        NodeState::Invalid => "SlurmNodeStateInvalid",
        NodeState::InvalidReg => "SlurmNodeStateInvalidReg",
        NodeState::Maintenance => "SlurmNodeStateMaintenance",
        NodeState::NotResponding => "SlurmNodeStateNotResponding",
        NodeState::Undrain => "SlurmNodeStateUndrain",
        _ => "SlurmNodeStateUnknown",
    }
}

/// The states and the reason of a Slurm node as the conditions of its pod report them, for those who cannot ask Slurm. `None` if it
/// has never registered, or slurmctld does not know it any more.
pub fn states_of(conditions: &BTreeMap<String, String>) -> Option<(NodeStates, &str)> {
    let reason = conditions.values().next().map(String::as_str)?;
    let shown = NodeState::ALL.iter().map(|(state, _)| *state).filter(|state| {
        // All states without a condition of their own share one.
        let type_ = condition(*state);
        (*state == NodeState::Unknown || type_ != condition(NodeState::Unknown)) && conditions.contains_key(type_)
    });
    let states: NodeStates = shown.collect();
    (reason != NOT_KNOWN && !states.is_empty()).then_some((states, reason))
}

fn describe(context: &Context<'_>, state: &WorkerState<'_>, topology: bool) -> Option<Description> {
    let (node, name) = own_node(state).zip(state.name)?;
    if !state.worker.is_healthy() || !node.states.is_registered() {
        return None;
    }
    let description = Description {
        comment: comment(context, state, node),
        features: state.node.and_then(|kube| features(context.model, kube, node)),
        topology: state.node.filter(|_| topology).and_then(|kube| slurm_topology(context.model, state, kube, node)),
        node: String::new(),
    };
    let is_needed = description != Description::default();
    is_needed.then(|| Description { node: name.to_owned(), ..description })
}

/// The other set whose living worker the comment of the Slurm node names.
fn rival<'a>(context: &Context<'a>, state: &WorkerState<'_>) -> Option<&'a OtherSet> {
    if context.facts.others.is_empty() {
        return None;
    }
    let (node, name) = own_node(state).zip(state.name)?;
    if pod_info(context.model, state).is(&node.comment) {
        return None;
    }
    let info = PodInfo::parse(&node.comment).filter(|info| info.namespace == context.model.namespace)?;
    let is_alive = |other: &&OtherSet| {
        other.worker(name).is_some_and(|worker| worker.name == info.pod_name && !worker.terminating)
    };
    context.facts.others.iter().filter(|other| other.name == info.node_set_name).find(is_alive)
}

/// The comment that identifies the pod, if it must be updated. A comment that is not ours is kept.
fn comment(context: &Context<'_>, state: &WorkerState<'_>, node: &SlurmNode) -> Option<String> {
    let wanted = pod_info(context.model, state);
    if wanted.is(&node.comment) {
        return None;
    }
    let found = PodInfo::parse(&node.comment);
    let is_free = node.comment.is_empty() || found.as_ref().is_some_and(|found| *found != wanted);
    is_free.then(|| wanted.text())
}

/// Replaces the features that come from Kubernetes and keeps all others. `None` if nothing changes.
fn features(model: &Model, kube: &KubeNode, node: &SlurmNode) -> Option<(Vec<String>, Vec<String>)> {
    let prefix = model.vocabulary.feature_prefix;
    let text = kube.annotations.get(model.vocabulary.annotation.features).map_or("", String::as_str);
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let wanted: BTreeSet<String> = words.map(|word| format!("{prefix}{word}")).collect();
    let is_ours = |feature: &&String| feature.starts_with(prefix);
    let differs = |found: &[String]| {
        !found.iter().filter(is_ours).eq(wanted.iter()) && {
            let found: BTreeSet<&String> = found.iter().filter(is_ours).collect();
            !found.into_iter().eq(wanted.iter())
        }
    };
    let merge = |found: &[String]| -> Vec<String> {
        found.iter().filter(|feature| !is_ours(feature)).chain(wanted.iter()).cloned().collect()
    };
    (differs(&node.features) || differs(&node.active_features))
        .then(|| (merge(&node.features), merge(&node.active_features)))
}

/// The topology to set in Slurm, empty if the annotation was removed. A topology that never came from the annotation is kept.
fn slurm_topology(model: &Model, state: &WorkerState<'_>, kube: &KubeNode, node: &SlurmNode) -> Option<String> {
    if let Some(wanted) = place(model, kube) {
        return (!is_same_place(wanted, &node.topology)).then(|| wanted.to_owned());
    }
    let was_ours = state.worker.topology.as_deref().is_some_and(|text| !text.is_empty());
    (was_ours && !node.topology.is_empty()).then(String::new)
}

/// Whether two topology specs are equal. Slurm may add the levels between the topology name and the leaf.
fn is_same_place(wanted: &str, found: &str) -> bool {
    let ends = |text: &str| -> BTreeSet<(String, String)> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let ends = parts.map(|part| (part.split(':').next().unwrap_or(part), part.rsplit(':').next().unwrap_or(part)));
        ends.map(|(first, last)| (first.to_owned(), last.to_owned())).collect()
    };
    wanted == found || ends(wanted) == ends(found)
}
