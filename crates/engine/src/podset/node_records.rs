//! Deletes the Slurm nodes of removed workers.
//!
//! This matters: a new worker with the same name would inherit the state and the resources of a leftover Slurm node.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use slurm::states::NodeState;
use slurm_operator_api::common::vocabulary::Vocabulary;

use super::{
    context::{Context, DecisionBuilder},
    decision::{Identity, WorkerAction},
    facts::{Hold, SlurmNode, Snapshot, original},
    identity::ordinal_of_hostname,
    model::{Model, Registration, Scaling},
    worker_state::{WorkerState, taken},
};
use crate::plan::ServiceState;

/// A worker whose set and pod are gone and that has not responded for this long does not come back.
const SILENT_FOR: SignedDuration = SignedDuration::from_hours(24);

/// The pod information in the comment of a Slurm node. The JSON keys are those of the Go operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInfo<'a> {
    pub namespace: Cow<'a, str>,
    pub pod_name: Cow<'a, str>,
    /// The Kubernetes node.
    #[serde(default)]
    pub node: Cow<'a, str>,
    #[serde(default)]
    pub node_set_name: Cow<'a, str>,
    #[serde(default, rename = "nodeSetUID")]
    pub node_set_uid: Cow<'a, str>,
}

impl PodInfo<'_> {
    /// Parses a comment; `None` if it is not ours.
    pub fn parse(comment: &str) -> Option<PodInfo<'static>> {
        if comment.starts_with('{') { serde_json::from_str(comment).ok() } else { None }
    }

    /// Whether the comment is exactly our serialized form. Cheaper than parsing; an equivalent JSON text does not match.
    pub(super) fn is(&self, comment: &str) -> bool {
        let parts = [
            (r#"{"namespace":""#, &self.namespace),
            (r#"","podName":""#, &self.pod_name),
            (r#"","node":""#, &self.node),
            (r#"","nodeSetName":""#, &self.node_set_name),
            (r#"","nodeSetUID":""#, &self.node_set_uid),
        ];
        let rest =
            parts.into_iter().try_fold(comment, |rest, (key, value)| rest.strip_prefix(key)?.strip_prefix(&**value));
        rest == Some(r#""}"#)
    }

    /// Serializes it for a comment.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Marks the new workers whose predecessor left a Slurm node, so that it is deleted first.
pub(super) fn before(context: &Context<'_>, create: &mut Vec<Identity>, builder: &mut DecisionBuilder) {
    let Some(snapshot) = context.slurm.snapshot() else { return };
    let Registration::Dynamic = context.model.registration;
    if context.model.naming.host_network && context.model.scaling != Scaling::PerNode {
        // The name is unknown until the pod is scheduled.
        return;
    }
    let jobs = snapshot.jobs.read();
    create.retain_mut(|identity| {
        let is_settled = !snapshot.pending.contains_key(&identity.hostname);
        let record = snapshot.nodes.get(&identity.hostname).filter(|_| is_settled);
        if !record.is_some_and(|node| is_left(context, &identity.hostname, node)) {
            return true;
        }
        // slurmctld ends jobs that name a node that it does not know, so the jobs decide; until they are read, the worker waits.
        builder.needs_jobs |= jobs.is_none();
        identity.forget = jobs.is_some_and(|jobs| !jobs.names(&identity.hostname));
        jobs.is_some()
    });
}

/// When to look again at a Slurm node that a worker of another set has.
const USED_BY_OTHERS: SignedDuration = SignedDuration::from_secs(15);

/// Plans the deletion of Slurm nodes whose worker is gone and is not being recreated.
pub(super) fn decide(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    create: &[Identity],
    builder: &mut DecisionBuilder,
) {
    let Some(snapshot) = context.slurm.snapshot() else { return };
    let Registration::Dynamic = context.model.registration;
    // A worker without a known name may get any of these names, so wait until its name is known.
    let is_nameless = |state: &WorkerState<'_>| state.name.is_none();
    let takes_any = !create.is_empty() && context.model.naming.host_network;
    if !context.facts.creating.is_empty() || takes_any || workers.iter().any(is_nameless) {
        return;
    }
    let mut kept: HashSet<&str> = taken(workers);
    kept.extend(create.iter().map(|identity| identity.hostname.as_str()));
    kept.extend(context.facts.orphans.iter().filter_map(|orphan| orphan.slurm_node()));
    let records = snapshot.nodes.iter().filter(|(name, _)| !kept.contains(name.as_str()));
    let settled = records.filter(|(name, _)| !snapshot.pending.contains_key(*name));
    let mut left: Vec<&String> =
        settled.filter(|(name, node)| is_left(context, name, node)).map(|(name, _)| name).collect();
    // A worker of another set has the name now, or may have just got it, and the comment is still that of ours. The end of that
    // worker does not trigger this set.
    let others = &context.facts.others;
    let is_creating = others.iter().any(|other| other.is_creating);
    let others: HashSet<&str> =
        others.iter().flat_map(|other| &other.workers).filter_map(|worker| worker.slurm_node()).collect();
    let found = left.len();
    left.retain(|name| !is_creating && !others.contains(name.as_str()));
    if left.len() < found {
        builder.wake(context.now + USED_BY_OTHERS);
    }
    // slurmctld ends jobs that name a node that it does not know, so such a record stays.
    builder.needs_jobs |= !left.is_empty();
    let Some(jobs) = snapshot.jobs.read() else { return };
    left.retain(|name| !jobs.names(name));
    left.sort_unstable();
    left.truncate(context.model.burst);
    builder.actions.extend(left.into_iter().map(|node| WorkerAction::Forget { node: node.clone() }));
}

/// Whether a Slurm node belongs to a removed worker of this set and is safe to delete.
fn is_left(context: &Context<'_>, name: &str, node: &SlurmNode) -> bool {
    // A node in service may have a slurmd that we do not know of. Slurm refuses to delete a node with a reservation.
    let is_needed = node.states.is_busy() || node.states.is_available() || !node.reservation.is_empty();
    !is_needed && is_ours(context.model, name, node) && !is_held(context, node)
}

/// Whether an admin's drain would be lost with the Slurm node.
fn is_held(context: &Context<'_>, node: &SlurmNode) -> bool {
    let is_foreign = node.states.is_drain() && node.hold(context.model.vocabulary) == Hold::Foreign;
    let is_gone =
        || PodInfo::parse(&node.comment).is_some_and(|info| !context.facts.nodes.contains_key(info.node.as_ref()));
    is_foreign && !node.is_refused() && !(context.model.prunes_records && is_gone())
}

/// Whether a Slurm node provably belongs to a worker of this set.
fn is_ours(model: &Model, name: &str, node: &SlurmNode) -> bool {
    let has_ended = node.reason == model.vocabulary.terminating_reason && node.states.is_down();
    if node.comment.is_empty() {
        // It terminated before we could set the comment.
        let is_named = model.scaling != Scaling::PerNode && ordinal_of_hostname(model, name).is_some();
        return has_ended && is_named && node.features.contains(&model.slurm_name);
    }
    if !node.comment.contains(&model.name) {
        return false;
    }
    PodInfo::parse(&node.comment).is_some_and(|info| {
        // A set with the same name in another Kubernetes cluster has a different UID, and so has an earlier set of ours.
        let is_same = info.node_set_uid == model.uid || has_ended;
        is_same && info.namespace == model.namespace && info.node_set_name == model.name
    })
}

/// The set of this Slurm node, if it is of a worker of this namespace whose set is gone.
fn of_gone_set(namespace: &str, sets: &BTreeSet<String>, node: &SlurmNode) -> Option<PodInfo<'static>> {
    PodInfo::parse(&node.comment)
        .filter(|info| info.namespace == namespace && !sets.contains(info.node_set_uid.as_ref()))
}

/// Whether slurmctld has given up a node.
fn is_silent(vocabulary: &Vocabulary, node: &SlurmNode) -> bool {
    node.states.has(NodeState::NotResponding) && node.is_given_up(vocabulary)
}

/// The pods of workers whose set is gone and whose slurmd does not respond: whether they exist must be looked up.
pub fn silent_pods(
    vocabulary: &Vocabulary,
    namespace: &str,
    sets: &BTreeSet<String>,
    snapshot: &Snapshot,
) -> BTreeSet<String> {
    let silent = snapshot.nodes.values().filter(|node| is_silent(vocabulary, node));
    silent.filter_map(|node| Some(of_gone_set(namespace, sets, node)?.pod_name.into_owned())).collect()
}

/// The Slurm nodes of workers whose set is gone. `sets` are the UIDs of all sets of the namespace. `silent` are those of
/// [`silent_pods`] that exist, and the time; without, a worker that does not respond is not given up.
pub fn orphans(
    vocabulary: &Vocabulary,
    namespace: &str,
    sets: &BTreeSet<String>,
    snapshot: &Snapshot,
    silent: Option<(&BTreeSet<String>, Timestamp)>,
) -> Orphans {
    let jobs = snapshot.jobs.read();
    let is_free = |name: &String| jobs.is_some_and(|jobs| !jobs.names(name)) && !snapshot.pending.contains_key(name);
    // By our clock.
    let given_up = |node: &SlurmNode| node.reason_since?.checked_add(SILENT_FOR - snapshot.clock_ahead?).ok();
    let mut orphans = Orphans::default();
    for (name, node) in snapshot.nodes.iter() {
        let Some(info) = of_gone_set(namespace, sets, node) else { continue };
        let is_unused = !node.states.is_busy() && node.reservation.is_empty();
        // Another Kubernetes cluster may have workers in this Slurm cluster, in a namespace of the same name. Its own operator
        // deletes the records of those that have ended.
        let has_ended = node.states.is_down() && original(&node.reason) == vocabulary.terminating_reason;
        let lost = silent.filter(|(pods, _)| is_silent(vocabulary, node) && !pods.contains(info.pod_name.as_ref()));
        let until = lost.and_then(|(_, now)| Some((given_up(node)?, now)));
        let is_lost = until.is_some_and(|(until, now)| until <= now);
        if is_unused && (has_ended || is_lost) {
            orphans.needs_jobs = true;
            if is_free(name) {
                orphans.removable.insert(name.clone(), ServiceState::of(&node.reason, &node.states));
            }
        } else if let Some((until, _)) = until {
            orphans.silent_until = orphans.silent_until.into_iter().chain([until]).min();
        } else {
            orphans.is_waiting |= node.hold(vocabulary) != Hold::Foreign;
        }
    }
    orphans
}

/// Slurm nodes whose set is gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Those that can be deleted.
    pub removable: BTreeMap<String, ServiceState>,
    /// Whether jobs decide about some.
    pub needs_jobs: bool,
    /// Whether there are others, whose workers may still be ending.
    pub is_waiting: bool,
    /// When the first of those that do not respond is given up.
    pub silent_until: Option<Timestamp>,
}

/// The pod information that a worker's Slurm node should have.
pub(super) fn pod_info<'a>(model: &'a Model, state: &WorkerState<'a>) -> PodInfo<'a> {
    PodInfo {
        namespace: Cow::Borrowed(&model.namespace),
        pod_name: Cow::Borrowed(&state.worker.name),
        node: Cow::Borrowed(state.worker.node.as_deref().unwrap_or_default()),
        node_set_name: Cow::Borrowed(&model.name),
        node_set_uid: Cow::Borrowed(&model.uid),
    }
}
