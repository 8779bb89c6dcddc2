//! Plans a `NodeSet`: the engine decides about workers, this module adds what all workers share, and the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use engine::{
    conditions::{ConditionStatus, NewCondition},
    daemons::{
        keyring::Phase,
        progress::Problem,
        shared::{self, Parent, SLURMD},
        slurmd,
    },
    plan::{Desired, MetadataPatch, Needs, Next, ObjectVersion, Plan, Step},
    podset::{self, Decision, StepBuilder},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use slurm_operator_api::{
    common::conditions::{DRAIN_ON_DELETE, reason},
    slinky::{
        Controller, NodeSet, NodeSetStatus, VOCABULARY,
        names::{self, annotation, label},
    },
};

use super::{
    model::{self, Parsed},
    observe,
    plan_revision::{self, Chosen},
};
use crate::frontends::slinky::{cluster_key, keys::Ring};

/// How long to wait for a store to show our own writes.
const LAG: SignedDuration = SignedDuration::from_secs(5);

/// How often to look for the admission policy again.
const POLICY_AGAIN: SignedDuration = SignedDuration::from_mins(10);

/// What is observed for a `NodeSet`.
#[derive(Debug)]
pub struct Facts {
    /// The cluster that the workers join; `None` if the Controller does not exist.
    pub cluster: Option<Cluster>,
    /// The workers, and what decides about them.
    pub podset: podset::Facts,
    /// The `ControllerRevisions` of the set.
    pub revisions: Vec<Revision>,
    /// Owner references to all sets of the cluster, for the objects that they share.
    pub siblings: Vec<OwnerReference>,
    /// The other child objects.
    pub live: LiveChildren,
    /// Whether the policy is in force that keeps workers from the garbage collector until they are drained; `None` if unknown or
    /// not needed.
    pub has_drain_policy: Option<bool>,
    /// The hash of sssd.conf, if ssh is enabled and the Secret exists.
    pub sssd_hash: Option<String>,
    /// Types of Kubernetes node conditions to include in the reason of a drain.
    pub propagated_conditions: Vec<String>,
    /// The DNS domain of the Kubernetes cluster.
    pub domain: String,
}

/// The cluster that workers join.
#[derive(Debug)]
pub struct Cluster {
    pub controller: Box<Controller>,
    /// Whether the key that workers need exists.
    pub has_key: bool,
    /// Where workers read it.
    pub ring: Ring,
    /// Read only if the workers hold generic resources.
    pub gres_types: GresTypes,
}

impl Cluster {
    /// Whether workers without the key ring must be replaced.
    pub fn is_changing_key(&self) -> bool {
        self.ring.live().is_some_and(|ring| ring.live.phase == Phase::Replacing)
    }
}

/// `GresTypes` that slurmctld has because of the `NodeSets`.
#[derive(Debug, Default)]
pub struct GresTypes {
    pub names: BTreeSet<String>,
    /// Whether every slurmctld has them already.
    pub is_rolled_out: bool,
}

impl GresTypes {
    /// Those of a slurmctld.
    pub fn of(slurmctld: &StatefulSet) -> Self {
        let annotations =
            slurmctld.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref()?.annotations.as_ref());
        let types = annotations.and_then(|annotations| annotations.get(annotation::GRES_TYPES));
        let status = slurmctld.status.clone().unwrap_or_default();
        Self {
            names: types.into_iter().flat_map(|types| types.split(',')).map(str::to_owned).collect(),
            // These become the same when all pods have the template and are ready, and stay so until it changes again.
            is_rolled_out: status.observed_generation >= slurmctld.metadata.generation
                && status.current_revision == status.update_revision
                && status.update_revision.is_some(),
        }
    }
}

/// A `ControllerRevision`: a template that the set has or had.
#[derive(Clone, Debug)]
pub struct Revision {
    pub object: ObjectVersion,
    /// The revision label of pods created from it.
    pub hash: String,
    /// A higher number is newer.
    pub number: i64,
    pub data: Value,
    /// The claim templates that the set had, unless the revision was written by an earlier release or the Go operator.
    pub claim_templates: Option<String>,
}

/// Child objects other than workers.
#[derive(Debug, Default)]
pub struct LiveChildren {
    /// Shared by all sets of the cluster.
    pub service: Option<Service>,
    /// Shared by all sets of the cluster.
    pub budget: Option<PodDisruptionBudget>,
    /// Of this set only.
    pub ssh_config: Option<ConfigMap>,
}

/// Plans the next steps. Pure.
pub fn plan(set: &NodeSet, facts: &Facts, now: Timestamp) -> Plan<NodeSetStatus> {
    let is_deleted = set.meta().deletion_timestamp.is_some();
    let parent = Parent::of(set, &VOCABULARY);
    let cluster = cluster_key(&parent.namespace, &set.spec.controller_ref.name);
    let parsed = Parsed::of(set);
    let mut model = model::lifecycle(set, &parsed, facts);
    let mut chosen = plan_revision::choose(set, &facts.revisions);
    let template = template(set, &parsed, facts, &chosen.hash);
    let template = template.map_err(|problem| add(&mut model.blocked, problem)).ok();
    // A set that is being deleted needs no template.
    model.blocked = model.blocked.filter(|_| !is_deleted);
    if model.blocked.is_some() {
        chosen = plan_revision::newest(chosen, &facts.revisions);
    }
    if let Err(problem) = taken(facts).and_then(|()| ssh_config_taken(facts, &parent)) {
        add(&mut model.blocked, problem);
    }
    if let Some(cluster) = observe::joined_elsewhere(set, &facts.podset.workers) {
        let message = format!(
            "spec.controllerRef cannot be changed, because workers have joined the cluster of the Controller {cluster}: set it back, \
             and create another NodeSet for the other cluster"
        );
        add(&mut model.blocked, Problem { reason: "ImmutableField", message });
    }
    if let Some(problem) = changed_claim_templates(set, &facts.revisions).filter(|_| !is_deleted) {
        add(&mut model.blocked, problem);
        chosen = plan_revision::newest(chosen, &facts.revisions);
    }
    model.revision.clone_from(&chosen.hash);
    let decision = podset::plan(&model, &facts.podset, now);
    let (mut first, last) = podset::finalizers(&parent, set.meta(), &decision);
    let mut steps: Vec<Step> = Vec::new();
    let is_blocked = model.blocked.is_some();
    // The shared objects protect and name running workers, so they are kept even if the spec is invalid.
    if !is_deleted && (!is_blocked || !facts.podset.workers.is_empty()) {
        steps.extend(children(set, facts, &parent).into_iter().map(|desired| Step::Apply(Box::new(desired))));
    }
    if !last.is_empty() && !decision.finalizers.drain {
        steps.extend(leave_shared(facts, &parent));
    }
    if !is_deleted && !is_blocked {
        first.extend(chosen.step.clone().map(|desired| Step::Apply(Box::new(desired))));
        let old = plan_revision::prune(set, facts, &chosen).into_iter();
        steps.extend(old.map(|object| Step::Delete(Box::new(object), "it is older than spec.revisionHistoryLimit")));
    }
    steps.extend(facts.podset.lost.iter().map(restore_label));
    let builder = StepBuilder {
        parent: &parent,
        cluster: &cluster,
        template: template.map(Arc::new),
        claim_templates: model::claim_templates(set),
        claims: &facts.podset.claims,
        slurm: &facts.podset.slurm,
        now,
    };
    steps.extend(builder.steps(&decision.actions));
    // Recheck once in case another writer undid our write before the watch saw it.
    let lags = !facts.podset.creating.is_empty() || facts.podset.workers.iter().any(|worker| worker.pending);
    // Policies are not watched.
    let policy = facts.has_drain_policy.map(|_| now + POLICY_AGAIN);
    let again = [decision.next, lags.then(|| now + LAG), policy].into_iter().flatten().min();
    let next = again.map_or(Next::OnChange, |at| Next::at(at, now));
    Plan {
        stages: [first, steps, last].into_iter().filter(|stage| !stage.is_empty()).collect(),
        status: status(set, &decision, &chosen),
        conditions: decision.conditions.into_iter().chain(no_drain_policy(facts)).collect(),
        events: model.blocked.iter().map(Problem::event).collect(),
        action_events: decision.events,
        worker_metrics: Some(Box::new(decision.worker_metrics)),
        waiting: decision.blockers,
        needs: Some(Needs { cluster, jobs: decision.needs_jobs, reservations: decision.needs_reservations }),
        next,
    }
}

/// Whether spec.volumeClaimTemplates is not what it was. CRDs of earlier releases allow that.
fn changed_claim_templates(set: &NodeSet, revisions: &[Revision]) -> Option<Problem> {
    let former = plan_revision::with_other_claim_templates(set, revisions)?;
    let message = format!(
        "spec.volumeClaimTemplates cannot be changed: set it back to what the annotation {} of the ControllerRevision {} has, and \
         create another NodeSet with the other claims",
        annotation::CLAIM_TEMPLATES,
        former.object.name
    );
    Some(Problem { reason: "ImmutableField", message })
}

/// Gives a pod back the label by which workers are found.
fn restore_label(pod: &ObjectVersion) -> Step {
    let (label, value) = VOCABULARY.worker_label;
    let labels = [(label.to_owned(), Some(value.to_owned()))].into();
    Step::PatchMetadata(Box::new(MetadataPatch { target: pod.clone(), labels, annotations: BTreeMap::new() }))
}

/// Says that foreground deletion ends jobs, although the spec asks for a drain.
fn no_drain_policy(facts: &Facts) -> Option<NewCondition> {
    let message = "with foreground deletion the workers are deleted before they are drained: the ValidatingAdmissionPolicy of the \
                   chart slurm-operator is missing; install it with drainPolicy.enabled=true";
    let new = || NewCondition::new(DRAIN_ON_DELETE, ConditionStatus::False, "PolicyMissing", message.to_owned());
    (facts.has_drain_policy == Some(false)).then(new)
}

/// Whether a shared object exists that no `NodeSet` owns: it is left alone, and workers need one of ours.
fn taken(facts: &Facts) -> Result<(), Problem> {
    let problem = |kind: &str, name: String| {
        let message = format!("a {kind} {name} exists and belongs to no NodeSet: delete or rename it");
        Err(Problem { reason: "NameTaken", message })
    };
    match (&facts.live.service, &facts.live.budget) {
        (Some(live), _) if !is_shared(live) => problem("Service", live.name_any()),
        (_, Some(live)) if !is_shared(live) => problem("PodDisruptionBudget", live.name_any()),
        _ => Ok(()),
    }
}

/// Whether the `ConfigMap` for sshd exists and belongs to somebody else.
fn ssh_config_taken(facts: &Facts, parent: &Parent) -> Result<(), Problem> {
    let live = facts.live.ssh_config.as_ref();
    shared::taken(live.filter(|live| !is_lost(*live, Some(parent))), parent)
}

/// Whether an object was made for workers, of this set if one is given, and has no owner.
fn is_lost(live: &impl ResourceExt, of: Option<&Parent>) -> bool {
    let has = |key: &str, value: &str| live.labels().get(key).is_some_and(|found| found == value);
    live.owner_references().is_empty()
        && has(label::NAME, SLURMD.program)
        && of.is_none_or(|parent| has(label::INSTANCE, &parent.name))
}

/// Whether an object is owned by a `NodeSet`, or was made for one and has no owner.
fn is_shared(live: &impl ResourceExt) -> bool {
    live.owner_references().iter().any(|owner| owner.kind == NodeSet::kind(&())) || is_lost(live, None)
}

/// A missing object is more important than an invalid field, which `blocked` already has.
fn add(blocked: &mut Option<Problem>, problem: Problem) {
    if blocked.is_none() || problem.reason != reason::INVALID_SPEC {
        *blocked = Some(problem);
    }
}

fn template(set: &NodeSet, parsed: &Parsed, facts: &Facts, revision: &str) -> Result<Value, Problem> {
    let name = &set.spec.controller_ref.name;
    let missing = |message| Problem { reason: reason::REFERENCE_MISSING, message };
    let cluster = facts.cluster.as_ref().ok_or_else(|| {
        missing(format!("the Controller {name} does not exist: create it, or correct spec.controllerRef"))
    })?;
    let slurmd = model::slurmd(set, parsed, cluster, facts, revision)?;
    if !cluster.has_key {
        let key = cluster.controller.spec.slurm_key_ref.as_ref();
        let (secret, entry) = key.map_or(("", ""), |key| (&key.name, &key.key));
        let what = format!("the Secret {secret} has no entry {entry}, which workers need to join the cluster");
        return Err(missing(if cluster.controller.spec.generate_keys {
            format!("{what}: see the conditions of the Controller {name}")
        } else {
            format!("{what}: create it, or let the Controller {name} generate it (spec.generateKeys)")
        }));
    }
    if let Some(why) = cluster.ring.missing() {
        return Err(missing(why));
    }
    if let (Some(sssd), None) = (slurmd.ssh, &facts.sssd_hash) {
        return Err(missing(format!(
            "the Secret {} has no entry {}, which spec.ssh needs: create it",
            sssd.name, sssd.key
        )));
    }
    slurmd::template(&slurmd).map_err(Problem::invalid)
}

/// The child objects other than workers.
fn children(set: &NodeSet, facts: &Facts, parent: &Parent) -> Vec<Desired> {
    let namespace = &parent.namespace;
    let cluster = &set.spec.controller_ref.name;
    let owners = || facts.siblings.clone();
    let (service, budget) = (facts.live.service.as_ref(), facts.live.budget.as_ref());
    let mut children = Vec::new();
    // Our watch may be late: a set that is gone must not leave objects without an owner.
    let is_gone = !facts.siblings.iter().any(|owner| owner.uid == parent.owner.uid);
    if !is_gone && service.is_none_or(is_shared) {
        children.push(slurmd::worker_service(&VOCABULARY, namespace, cluster, owners()).seeing(service));
    }
    if !is_gone && budget.is_none_or(is_shared) {
        children.push(slurmd::worker_disruption_budget(&VOCABULARY, namespace, cluster, owners()).seeing(budget));
    }
    if let Some(ssh) = set.spec.ssh().filter(|_| ssh_config_taken(facts, parent).is_ok()) {
        let config = slurmd::ssh_config(parent, ssh.extra_sshd_config.as_deref());
        children.push(config.seeing(facts.live.ssh_config.as_ref()));
    }
    children
}

/// Gives up the objects that all sets share, before the set is gone: with foreground deletion it would wait for the garbage
/// collector to delete them, which was refused that while there were workers, and tries again only after minutes.
fn leave_shared(facts: &Facts, parent: &Parent) -> Vec<Step> {
    let service = facts.live.service.as_ref().map(|live| (ObjectVersion::of::<Service>(live), live.owner_references()));
    let budget = facts
        .live
        .budget
        .as_ref()
        .map(|live| (ObjectVersion::of::<PodDisruptionBudget>(live), live.owner_references()));
    let leave = |(object, owners): (ObjectVersion, &[OwnerReference])| {
        let others: Vec<OwnerReference> =
            owners.iter().filter(|owner| owner.uid != parent.owner.uid).cloned().collect();
        if others.len() == owners.len() {
            return None;
        }
        Some(if others.is_empty() {
            Step::Delete(Box::new(object), "the last NodeSet of its cluster is deleted")
        } else {
            Step::SetOwners(Box::new(object), others)
        })
    };
    service.into_iter().chain(budget).filter_map(leave).collect()
}

fn status(set: &NodeSet, decision: &Decision, chosen: &Chosen) -> NodeSetStatus {
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let counts = &decision.counts;
    let name = set.name_any();
    let revision = |hash: &str| names::revision(&name, hash);
    NodeSetStatus {
        desired: number(counts.desired),
        replicas: number(counts.replicas),
        updated_replicas: number(counts.updated),
        current_replicas: number(counts.current),
        ready_replicas: number(counts.ready),
        available_replicas: number(counts.available),
        unavailable_replicas: number(counts.unavailable),
        slurm_registered: number(counts.slurm.registered),
        slurm_idle: number(counts.slurm.idle),
        slurm_allocated: number(counts.slurm.allocated),
        slurm_down: number(counts.slurm.down),
        slurm_drain: number(counts.slurm.drain),
        node_set_hash: chosen.hash.clone(),
        current_revision: decision.current.as_deref().map(revision),
        update_revision: Some(revision(&chosen.hash)),
        ordinal_to_node: decision.pinned.iter().map(|(ordinal, node)| (ordinal.to_string(), node.clone())).collect(),
        selector: selector(&name),
        ..NodeSetStatus::default()
    }
}

/// The label selector of the set's pods, for kubectl and autoscalers.
fn selector(name: &str) -> String {
    format!("{}={name},{}={}", label::INSTANCE, label::NAME, SLURMD.program)
}
