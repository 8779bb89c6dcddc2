//! Scaling: which workers are created and which are removed.

use std::collections::{BTreeMap, HashSet};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{
    claims::is_earlier_set,
    context::{Context, DecisionBuilder},
    decision::{Cause, Identity},
    facts::{Facts, KubeNode, OtherSet, Phase},
    identity,
    model::{Mode, Model, Ordinals, RemovalOrder, Scaling},
    placement::fit,
    removal_order,
    status::Problems,
    trust::NodeObservation,
    worker_state::{WorkerState, by_home},
};

/// Minimum age of a terminated pod before it is replaced, so that a pod that always fails does not cause a hot loop.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// How often to look whether a claim is gone.
const CLAIM_GONE: SignedDuration = SignedDuration::from_secs(5);

/// How often to look whether another set still has a name. We are not triggered by its workers.
pub(super) const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// The result of scaling.
#[derive(Debug, Default)]
pub(super) struct Scale {
    pub(super) desired: u32,
    pub(super) create: Vec<Identity>,
    /// Desired workers without a pod that stays.
    pub(super) missing: u32,
}

/// Marks the workers to remove because of scaling, and returns the workers to create.
pub(super) fn decide(context: &Context<'_>, workers: &mut [WorkerState<'_>], builder: &mut DecisionBuilder) -> Scale {
    let mode = context.model.scaling.mode();
    // While no worker can be created, do not remove workers that would only be replaced.
    let is_other_mode = |state: &WorkerState<'_>| state.worker.mode() != mode && context.model.blocked.is_none();
    for state in workers.iter_mut().filter(|state| state.is_alive() && is_other_mode(state)) {
        state.removal = Some(Cause::Mode);
    }
    for state in workers.iter_mut().filter(|state| state.stays() && state.worker.phase.is_over()) {
        match state.worker.created.map(|created| created + RETRY).filter(|ripe| context.now < *ripe) {
            Some(ripe) => builder.wake(ripe),
            None => state.removal = Some(Cause::Finished),
        }
    }
    let mut scale = match context.model.scaling {
        Scaling::Numbered { ordinals: Ordinals::Count(replicas), padding, removal: RemovalOrder::Cheapest } => {
            numbered(context, workers, builder, replicas, padding)
        }
        Scaling::PerNode => per_node(context, workers, builder),
    };
    if is_switching(context) {
        scale.create.clear();
    }
    leave_names_of_others(context, &mut scale, builder);
    // We are triggered by claims that we own only.
    if !builder.problems.leaving_claims.is_empty() {
        builder.wake(context.now + CLAIM_GONE);
    }
    scale
}

/// Drops new workers whose Slurm node name another set has: the second slurmd of a name ends the jobs of the first one. Workers
/// that run are never judged.
fn leave_names_of_others(context: &Context<'_>, scale: &mut Scale, builder: &mut DecisionBuilder) {
    let Context { model, facts, .. } = context;
    if let Some(owner) = node_with_our_name(context).filter(|_| !scale.create.is_empty()) {
        builder.problems.taken_names.entry(owner).or_default().push(model.slurm_name.clone());
        builder.wake(context.now + LOOK_AGAIN);
        scale.create.clear();
        return;
    }
    if scale.create.is_empty() {
        return;
    }
    let on_nodes: Vec<HashSet<&str>> =
        facts.others.iter().map(|other| other.names_on(model.vocabulary, &facts.nodes)).collect();
    // Who has a name, or will have it. Without oversubscription the scheduler keeps a worker off the node `home` if one of another
    // set is there.
    let taken = |name: &str, home: Option<&str>| {
        if model.slurm_name == name || facts.others.iter().any(|other| other.slurm_name == name) {
            return Some(format!("the Slurm NodeSet {name}"));
        }
        let is_apart = |other: Option<&str>| other.is_some() && other == home && !model.oversubscribes;
        let uses = |(other, names): &(&OtherSet, &HashSet<&str>)| {
            (names.contains(name) && !is_apart(Some(name)))
                || other.will_have(name)
                || other.worker(name).is_some_and(|worker| !is_apart(worker.home()))
        };
        let owner = facts.others.iter().zip(&on_nodes).find(uses);
        owner.map(|(other, _)| of_set(model, other))
    };
    if model.naming.host_network && model.scaling.mode() == Mode::Numbered {
        // The scheduler chooses the node, and so the name.
        let possible = facts.nodes.values().filter(|node| fit(model, node).runs);
        let clashes: BTreeMap<&str, String> =
            possible.filter_map(|node| Some((&*node.name, taken(&node.name, Some(&node.name))?))).collect();
        scale.create.retain(|identity| match &identity.node {
            Some(node) => !clashes.contains_key(node.as_str()),
            None => clashes.is_empty(),
        });
        for (name, owner) in clashes {
            builder.problems.taken_names.entry(owner).or_default().push(name.to_owned());
        }
    } else {
        scale.create.retain(|identity| {
            let Some(owner) = taken(&identity.hostname, None) else { return true };
            builder.problems.taken_names.entry(owner).or_default().push(identity.hostname.clone());
            false
        });
    }
    if !builder.problems.taken_names.is_empty() {
        builder.wake(context.now + LOOK_AGAIN);
    }
}

/// Whose node has the name of our Slurm NodeSet, with which slurmctld would not start. The Controller leaves the line out as long
/// as our set has no workers, and without it they would be in no partition.
fn node_with_our_name(context: &Context<'_>) -> Option<String> {
    let Context { model, facts, .. } = context;
    if !facts.workers.is_empty() {
        return None;
    }
    let rule = "and a Slurm NodeSet must not have the name of a node";
    let name = model.slurm_name.as_str();
    let uses = |other: &&OtherSet| {
        let on_nodes = || other.names_on(model.vocabulary, &facts.nodes).contains(name);
        other.will_have(name) || other.worker(name).is_some() || on_nodes()
    };
    let other = facts.others.iter().find(uses);
    let is_node = || matches!(context.slurm.observe(Some(name)), NodeObservation::Known(_));
    match other {
        Some(other) => Some(format!("{}, {rule}", of_set(model, other))),
        None => is_node().then(|| format!("a node that Slurm still knows, {rule}")),
    }
}

/// Another set, for messages.
pub(super) fn of_set(model: &Model, other: &OtherSet) -> String {
    format!("the {} {}", model.vocabulary.set_kind, other.name)
}

/// Whether workers of the other mode are still being created: their Slurm node names are unknown until the pods are visible.
fn is_switching(context: &Context<'_>) -> bool {
    let (model, facts) = (context.model, context.facts);
    if facts.creating.is_empty() {
        return false;
    }
    match model.scaling {
        Scaling::Numbered { .. } => facts.creating.iter().any(|name| identity::ordinal_of_name(model, name).is_none()),
        Scaling::PerNode => {
            let ours: HashSet<String> = facts.nodes.keys().map(|node| identity::pod_name_on(model, node)).collect();
            !facts.creating.iter().all(|name| ours.contains(name))
        }
    }
}

fn numbered(
    context: &Context<'_>,
    workers: &mut [WorkerState<'_>],
    builder: &mut DecisionBuilder,
    replicas: u32,
    padding: u8,
) -> Scale {
    let facts = context.facts;
    let wanted = usize::try_from(replicas).unwrap_or(usize::MAX);
    let is_numbered = |state: &WorkerState<'_>| state.worker.mode() == Mode::Numbered;
    let full = full(context.model, workers);
    // Pinned to a Kubernetes node that another worker occupies now: recreate it so that it can run elsewhere.
    let waits_in_vain = |state: &WorkerState<'_>| {
        let target = state.worker.target.as_deref().filter(|_| state.worker.node.is_none());
        target.is_some_and(|target| full.contains(target))
    };
    for state in workers.iter_mut().filter(|state| is_numbered(state) && state.stays() && waits_in_vain(state)) {
        state.removal = Some(Cause::Duplicate);
    }
    let there = workers.iter().filter(|state| is_numbered(state)).count() + facts.creating.len();
    let living: Vec<usize> = indexes(workers, |state| is_numbered(state) && state.is_alive());
    let excess = (living.len() + facts.creating.len()).saturating_sub(wanted);
    for index in removal_order::pick(context, workers, living.clone(), excess, builder) {
        if let Some(state) = workers.get_mut(index) {
            state.removal = Some(Cause::ScaleIn);
        }
    }
    // A terminated pod is replaced under its own name, so it does not count.
    let staying = living.iter().filter_map(|index| workers.get(*index)).filter(|state| state.stays()).count();
    let slots = wanted.saturating_sub(there).min(context.model.burst);
    Scale {
        desired: replicas,
        create: fill(context, workers, &full, builder, slots, padding),
        missing: count(wanted.saturating_sub(staying)),
    }
}

/// Kubernetes nodes that have a worker and accept no second one.
fn full<'a>(model: &Model, workers: &[WorkerState<'a>]) -> HashSet<&'a str> {
    if !model.pins_to_node || model.oversubscribes {
        return HashSet::new();
    }
    let living = workers.iter().filter(|state| state.is_alive()).map(|state| state.worker);
    living.filter_map(|worker| worker.node.as_deref()).collect()
}

/// Identities for the lowest free ordinals. An ordinal whose name or claim is still in use is waited for, not skipped.
fn fill(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    full: &HashSet<&str>,
    builder: &mut DecisionBuilder,
    slots: usize,
    padding: u8,
) -> Vec<Identity> {
    let (model, facts) = (context.model, context.facts);
    if slots == 0 {
        return Vec::new();
    }
    let names = Names::of(facts, workers);
    let creating = facts.creating.iter().filter_map(|name| identity::ordinal_of_name(model, name));
    let used: HashSet<u32> = workers.iter().filter_map(|state| state.ordinal).chain(creating).collect();
    let free = (0..=u32::MAX).filter(|ordinal| !used.contains(ordinal)).take(slots);
    let identities = free.map(|ordinal| {
        let node = facts.recall.pinned.get(&ordinal).filter(|_| model.pins_to_node);
        let node = node.filter(|node| !full.contains(node.as_str())).and_then(|node| facts.nodes.get(node));
        let node = node.filter(|node| continues(model, node));
        identity::numbered(model, facts, ordinal, padding, node.map(|node| node.name.as_str()))
    });
    let ready = identities.filter(|identity| {
        let is_hostname_free = model.naming.host_network || !names.hosts.contains(identity.hostname.as_str());
        is_hostname_free && names.is_free(identity) && has_claims(model, facts, identity, &mut builder.problems)
    });
    ready.collect()
}

/// Whether a worker may keep running on this node, or return to it.
pub(super) fn continues(model: &Model, node: &KubeNode) -> bool {
    fit(model, node).continues
}

fn per_node(context: &Context<'_>, workers: &mut [WorkerState<'_>], builder: &mut DecisionBuilder) -> Scale {
    let (model, facts) = (context.model, context.facts);
    let mut scale = Scale::default();
    if facts.nodes.is_empty() {
        // A cluster always has nodes, so the node list has not been read yet.
        return scale;
    }
    let names = Names::of(facts, workers);
    let homes = by_home(workers, Mode::PerNode);
    let mut planned: HashSet<String> = HashSet::new();
    for node in facts.nodes.values() {
        let fit = fit(model, node);
        let here = homes.get(node.name.as_str()).map_or(&[][..], Vec::as_slice);
        let keeper = sort_out(context, workers, here, node, fit.continues);
        // A worker that stays is wanted, also on a node that accepts no new one, for example because it is not ready.
        scale.desired += u32::from(fit.runs || keeper);
        scale.missing += u32::from(fit.runs && !keeper);
        if !fit.runs || !here.is_empty() || scale.create.len() >= model.burst {
            continue;
        }
        let hostname = identity::hostname_on(model.vocabulary, node);
        if !identity::is_hostname(hostname) {
            builder.problems.bad_hostnames.push(node.name.clone());
            continue;
        }
        let identity = identity::for_node(model, facts, node);
        if facts.creating.contains(&identity.name) {
            continue;
        }
        if names.hosts.contains(hostname) || !names.is_free(&identity) || !planned.insert(hostname.to_owned()) {
            builder.problems.shared_hostnames.insert(hostname.to_owned());
        } else if has_claims(model, facts, &identity, &mut builder.problems) {
            scale.create.push(identity);
        }
    }
    let is_strange =
        |state: &&mut WorkerState<'_>| state.stays() && state.worker.mode() == Mode::PerNode && state.node.is_none();
    for state in workers.iter_mut().filter(is_strange) {
        state.removal = Some(if state.worker.home().is_some() { Cause::Vanished } else { Cause::Misplaced });
    }
    scale
}

/// Marks the workers on a node that are to be removed. Returns whether one stays.
fn sort_out(
    context: &Context<'_>,
    workers: &mut [WorkerState<'_>],
    here: &[usize],
    node: &KubeNode,
    continues: bool,
) -> bool {
    let expected = identity::hostname_on(context.model.vocabulary, node);
    for index in here {
        let Some(state) = workers.get_mut(*index).filter(|state| state.stays()) else { continue };
        if !continues {
            state.removal = Some(Cause::Misplaced);
        } else if state.worker.hostname.as_deref() != Some(expected) && context.model.blocked.is_none() {
            state.removal = Some(Cause::Renamed);
        }
    }
    let rank = |state: &WorkerState<'_>| (!state.worker.is_healthy(), state.worker.created, state.worker.name.clone());
    let staying = || here.iter().copied();
    let best = staying()
        .filter_map(|index| workers.get(index).filter(|state| state.stays()).map(|state| (rank(state), index)));
    let Some((_, best)) = best.min() else { return false };
    for index in staying().filter(|index| *index != best) {
        if let Some(state) = workers.get_mut(index).filter(|state| state.stays()) {
            state.removal = Some(Cause::Duplicate);
        }
    }
    true
}

/// Names that are in use.
struct Names<'a> {
    /// Pod names, also of pods that are being created.
    pods: HashSet<&'a str>,
    /// Slurm node names.
    hosts: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(facts: &'a Facts, workers: &[WorkerState<'a>]) -> Self {
        let pods = workers.iter().map(|state| state.worker.name.as_str());
        Self {
            pods: pods.chain(facts.creating.iter().map(String::as_str)).collect(),
            hosts: workers.iter().filter_map(|state| state.name).collect(),
        }
    }

    fn is_free(&self, identity: &Identity) -> bool {
        !self.pods.contains(identity.name.as_str())
    }
}

/// Whether none of its claims is being deleted. A claim that a pod owns is deleted with the pod, or soon after, and one that an
/// earlier set of the same name owns as soon as the garbage collector sees it.
fn has_claims(model: &Model, facts: &Facts, identity: &Identity, problems: &mut Problems) -> bool {
    let is_lost = |owner: &OwnerReference| owner.kind == "Pod" || is_earlier_set(model, owner);
    let leaving =
        |claim: &str| facts.claims.get(claim).is_some_and(|claim| claim.deleting || claim.owners.iter().any(is_lost));
    match identity.claims.iter().find(|usage| leaving(&usage.claim)) {
        None => true,
        Some(usage) => {
            problems.leaving_claims.push(usage.claim.clone());
            false
        }
    }
}

/// The Kubernetes node of each pinned worker, by ordinal.
pub(super) fn pins(context: &Context<'_>, workers: &[WorkerState<'_>]) -> BTreeMap<u32, String> {
    let (model, facts) = (context.model, context.facts);
    if !model.pins_to_node || model.scaling == Scaling::PerNode {
        return BTreeMap::new();
    }
    let still = |node: &String| facts.nodes.get(node).is_some_and(|node| continues(model, node));
    let mut pins = facts.recall.pinned.clone();
    pins.retain(|_, node| still(node));
    for state in workers.iter().filter(|state| state.is_alive() && state.worker.phase == Phase::Running) {
        if let (Some(ordinal), Some(node)) = (state.ordinal, &state.worker.node) {
            pins.insert(ordinal, node.clone());
        }
    }
    pins
}

/// The indexes of all workers for which the predicate holds.
pub(super) fn indexes(workers: &[WorkerState<'_>], holds: impl Fn(&WorkerState<'_>) -> bool) -> Vec<usize> {
    workers.iter().enumerate().filter(|(_, state)| holds(state)).map(|(index, _)| index).collect()
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
