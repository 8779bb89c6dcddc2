//! Plans a `NodeSet`: the engine decides about workers, this module turns its decision into writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::ControllerRevision,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource, ResourceExt, core::ApiResource};
use serde_json::{Map, Value, json};
use slurm::wire::{JobId, NodeUpdate};
use slurm_operator_api::{
    Controller, NodeSet, NodeSetStatus,
    conditions::reason,
    names::{finalizer, label},
};

use super::{
    model,
    plan_revision::{self, Chosen},
};
use crate::{
    engine::{
        daemons::{
            progress::Problem,
            shared::{Parent, SLURMD},
            slurmd,
        },
        podset::{
            self, ClaimUse, Decision, Identity, KubeNode, PodKey, Recall, Removal, SlurmCounts, SlurmObservation,
            Worker, WorkerAction,
        },
    },
    machine::{
        Desired, FromTemplate, MetadataPatch, Next, ObjectVersion, Plan, PodConditionPatch, SlurmCall, SlurmWrite, Step,
    },
};

/// How long to wait for a store to show our own writes.
const LAG: SignedDuration = SignedDuration::from_secs(5);

/// What is observed for a `NodeSet`.
#[derive(Debug)]
pub struct Facts {
    /// The cluster that the workers join; `None` if the Controller does not exist.
    pub cluster: Option<Cluster>,
    /// The set's pods.
    pub workers: Vec<Arc<Worker>>,
    /// Names of pods that were created and are not in the store yet.
    pub creating: BTreeSet<String>,
    /// All Kubernetes nodes.
    pub nodes: BTreeMap<String, Arc<KubeNode>>,
    /// The last known state of Slurm.
    pub slurm: SlurmObservation,
    /// The set's claims, by name.
    pub claims: BTreeMap<String, ClaimFacts>,
    /// The `ControllerRevisions` of the set.
    pub revisions: Vec<Revision>,
    /// Owner references to all sets of the cluster, for the objects that they share.
    pub siblings: Vec<OwnerReference>,
    /// The other child objects.
    pub live: LiveChildren,
    /// The hash of sssd.conf, if ssh is enabled and the Secret exists.
    pub sssd_hash: Option<String>,
    /// Whether the whole namespace is being deleted.
    pub namespace_terminating: bool,
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
}

/// An existing claim.
#[derive(Clone, Debug)]
pub struct ClaimFacts {
    pub object: ObjectVersion,
    pub owners: Vec<OwnerReference>,
    pub deleting: bool,
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
    let mut model = model::lifecycle(set, facts);
    let mut chosen = plan_revision::choose(set, &facts.revisions);
    let template = template(set, facts, &chosen.hash).map_err(|problem| model.blocked = Some(problem)).ok();
    // A set that is being deleted needs no template.
    model.blocked = model.blocked.filter(|_| !is_deleted);
    if model.blocked.is_some() {
        chosen = plan_revision::newest(chosen, &facts.revisions);
    }
    model.revision.clone_from(&chosen.hash);
    let decision = podset::plan(&model, &podset_facts(set, facts), now);
    // Finalizers are added before the first action and removed after the last.
    let (mut first, last): (Vec<Step>, Vec<Step>) =
        finalizers(set, &decision).into_iter().partition(|step| matches!(step, Step::Finalizer { wanted: true, .. }));
    let mut steps: Vec<Step> = Vec::new();
    let is_blocked = model.blocked.is_some();
    // The shared objects protect and name running workers, so they are kept even if the spec is invalid.
    if !is_deleted && (!is_blocked || !facts.workers.is_empty()) {
        steps.extend(shared(set, facts).into_iter().map(|desired| Step::Apply(Box::new(desired))));
    }
    if !is_deleted && !is_blocked {
        first.extend(chosen.step.clone().map(|desired| Step::Apply(Box::new(desired))));
        steps
            .extend(plan_revision::prune(set, facts, &chosen).into_iter().map(|object| Step::Delete(Box::new(object))));
    }
    let builder = StepBuilder { set, facts, template: template.map(Arc::new), now };
    let mut actions: Vec<&WorkerAction> = decision.actions.iter().collect();
    actions.sort_by_key(|action| urgency(action));
    steps.extend(actions.into_iter().filter_map(|action| builder.step(action)));
    // Recheck once in case another writer undid our write before the watch saw it.
    let lags = !facts.creating.is_empty() || facts.workers.iter().any(|worker| worker.pending);
    let again = [decision.next, lags.then(|| now + LAG)].into_iter().flatten().min();
    let next = again.map_or(Next::OnChange, |at| Next::at(at, now));
    Plan {
        stages: [first, steps, last].into_iter().filter(|stage| !stage.is_empty()).collect(),
        status: status(set, &decision, &chosen),
        conditions: decision.conditions,
        events: model.blocked.iter().map(Problem::event).chain(decision.events).collect(),
        worker_metrics: Some(Box::new(decision.worker_metrics)),
        waiting: decision.blockers.iter().map(|(node, blocker)| format!("{node}: {}", blocker.text(now))).collect(),
        next,
    }
}

fn template(set: &NodeSet, facts: &Facts, revision: &str) -> Result<Value, Problem> {
    let name = &set.spec.controller_ref.name;
    let missing = |message| Problem { reason: reason::REFERENCE_MISSING, message };
    let cluster = facts.cluster.as_ref().ok_or_else(|| {
        missing(format!("the Controller {name} does not exist: create it, or correct spec.controllerRef"))
    })?;
    let slurmd = model::slurmd(set, &cluster.controller, facts, revision)?;
    if !cluster.has_key {
        let key = slurmd.slurm_key;
        let what = format!("the Secret {} has no entry {}, which workers need to join the cluster", key.name, key.key);
        return Err(missing(if cluster.controller.spec.generate_keys {
            format!("{what}: see the conditions of the Controller {name}")
        } else {
            format!("{what}: create it, or let the Controller {name} generate it (spec.generateKeys)")
        }));
    }
    if let (Some(sssd), None) = (slurmd.ssh, &facts.sssd_hash) {
        return Err(missing(format!(
            "the Secret {} has no entry {}, which spec.ssh needs: create it",
            sssd.name, sssd.key
        )));
    }
    slurmd::template(&slurmd)
        .map_err(|overlay_error| Problem { reason: reason::INVALID_SPEC, message: format!("{overlay_error}") })
}

fn podset_facts(set: &NodeSet, facts: &Facts) -> podset::Facts {
    let status = set.status.as_ref();
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let recall = status.map_or_else(Recall::default, |status| Recall {
        pinned: status
            .ordinal_to_node
            .iter()
            .filter_map(|(ordinal, node)| Some((ordinal.parse().ok()?, node.clone())))
            .collect(),
        slurm: SlurmCounts {
            registered: count(status.slurm_registered),
            idle: count(status.slurm_idle),
            allocated: count(status.slurm_allocated),
            down: count(status.slurm_down),
            drain: count(status.slurm_drain),
        },
        current: status
            .current_revision
            .as_ref()
            .and_then(|name| name.strip_prefix(&format!("{}-", set.name_any())).map(str::to_owned)),
    });
    podset::Facts {
        workers: facts.workers.clone(),
        creating: facts.creating.clone(),
        nodes: facts.nodes.clone(),
        slurm: facts.slurm.clone(),
        claims: facts
            .claims
            .iter()
            .map(|(name, claim)| {
                let owners = claim.owners.iter().map(|owner| owner.uid.clone()).collect();
                (name.clone(), podset::Claim { uid: claim.object.uid.clone(), owners, deleting: claim.deleting })
            })
            .collect(),
        recall,
        yields: facts.cluster.is_none() || facts.namespace_terminating,
    }
}

/// The steps that add or remove finalizers.
fn finalizers(set: &NodeSet, decision: &Decision) -> Vec<Step> {
    let there = |name: &str| set.finalizers().iter().any(|found| found == name);
    [(finalizer::RESERVATION, decision.finalizers.reservation), (finalizer::DRAIN, Some(decision.finalizers.drain))]
        .into_iter()
        // Unknown: leave the finalizer as it is.
        .filter_map(|(name, wanted)| Some((name, wanted?)))
        .filter(|(name, wanted)| there(name) != *wanted)
        // The API server refuses new finalizers on an object that is being deleted.
        .filter(|(_, wanted)| !wanted || set.meta().deletion_timestamp.is_none())
        .map(|(name, wanted)| Step::Finalizer { name, wanted })
        .collect()
}

/// The child objects other than workers.
fn shared(set: &NodeSet, facts: &Facts) -> Vec<Desired> {
    let namespace = set.namespace().unwrap_or_default();
    let cluster = &set.spec.controller_ref.name;
    let owners = || facts.siblings.clone();
    let mut children = vec![
        slurmd::worker_service(&namespace, cluster, owners()).seeing(facts.live.service.as_ref()),
        slurmd::worker_disruption_budget(&namespace, cluster, owners()).seeing(facts.live.budget.as_ref()),
    ];
    if let Some(ssh) = set.spec.ssh() {
        let config = slurmd::ssh_config(&Parent::of(set), ssh.extra_sshd_config.as_deref());
        children.push(config.seeing(facts.live.ssh_config.as_ref()));
    }
    children
}

/// Priority of an action, because the steps of a stage do not all run at once: first what protects jobs, then new
/// workers, then what is only informational.
fn urgency(action: &WorkerAction) -> u8 {
    match action {
        WorkerAction::Create(_) => 1,
        WorkerAction::Conditions { .. } | WorkerAction::Describe(_) => 2,
        _ => 0,
    }
}

/// Turns actions into steps.
struct StepBuilder<'a> {
    set: &'a NodeSet,
    facts: &'a Facts,
    template: Option<Arc<Value>>,
    now: Timestamp,
}

impl StepBuilder<'_> {
    fn step(&self, action: &WorkerAction) -> Option<Step> {
        let update = |nodes: &[String], change| SlurmCall::Update { nodes: nodes.to_vec(), change: Box::new(change) };
        Some(match action {
            WorkerAction::Create(identity) => return self.create(identity),
            WorkerAction::Delete(removal) => self.delete(removal),
            WorkerAction::Patch { pod, labels, annotations } => Step::PatchMetadata(Box::new(MetadataPatch {
                target: self.pod(pod),
                labels: owned(labels),
                annotations: owned(annotations),
            })),
            WorkerAction::Conditions { pod, set, remove } => Step::PatchConditions(Box::new(PodConditionPatch {
                target: self.pod(pod),
                set: set.clone(),
                remove: remove.clone(),
                since: self.now,
            })),
            WorkerAction::Drain { nodes, reason } => self.slurm(update(nodes, NodeUpdate::new().drain(reason))),
            WorkerAction::Undrain { nodes } => self.slurm(update(nodes, NodeUpdate::new().undrain().reason(""))),
            WorkerAction::Resume { nodes } => self.slurm(update(nodes, NodeUpdate::new().resume())),
            WorkerAction::Describe(description) => {
                let mut change = NodeUpdate::new();
                if let Some(comment) = &description.comment {
                    change = change.comment(comment);
                }
                if let Some((features, active)) = &description.features {
                    change = change.features(features).active_features(active);
                }
                if let Some(topology) = &description.topology {
                    change = change.topology(topology);
                }
                self.slurm(update(std::slice::from_ref(&description.node), change))
            }
            WorkerAction::Forget { node } => self.slurm(SlurmCall::Forget { node: node.clone() }),
            WorkerAction::Requeue { job } => self.slurm(SlurmCall::Requeue { job: JobId::from(*job) }),
            WorkerAction::Kill { job } => self.slurm(SlurmCall::Cancel { job: JobId::from(*job) }),
            WorkerAction::OwnClaim { claim, by_set, drop, .. } => {
                let by = by_set.then(|| self.set.controller_owner_ref(&())).flatten();
                return self.set_claim_owner(claim, drop, by.as_ref());
            }
            WorkerAction::Reserve(booking) => self.slurm(SlurmCall::Reserve(Box::new(super::reservation(booking)))),
            WorkerAction::Unreserve { reservation } => self.slurm(SlurmCall::Unreserve { name: reservation.clone() }),
        })
    }

    fn slurm(&self, call: SlurmCall) -> Step {
        Step::Slurm(Box::new(SlurmWrite { cluster: self.set.spec.controller_ref.name.clone(), call }))
    }

    fn pod(&self, pod: &PodKey) -> ObjectVersion {
        ObjectVersion {
            resource: ApiResource::erase::<Pod>(&()),
            namespace: self.set.namespace().unwrap_or_default(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            resource_version: String::new(),
        }
    }

    fn create(&self, identity: &Identity) -> Option<Step> {
        let template = self.template.as_ref()?;
        let mut chain: Vec<Step> =
            identity.claims.iter().filter(|claim| claim.is_missing).filter_map(|claim| self.claim(claim)).collect();
        if identity.forget {
            chain.push(self.slurm(SlurmCall::Forget { node: identity.hostname.clone() }));
        }
        let object = FromTemplate {
            resource: ApiResource::erase::<Pod>(&()),
            template: Arc::clone(template),
            overrides: overrides(identity, template),
        };
        chain.push(Step::Create(Box::new(object)));
        Some(in_a_row(chain))
    }

    /// Creates a claim from its template.
    fn claim(&self, claim: &ClaimUse) -> Option<Step> {
        let templates = self.set.spec.volume_claim_templates.iter();
        let template = templates.into_iter().find(|found| model::claim_name(found).as_ref() == Some(&claim.volume))?;
        let mut metadata = template.fields().get("metadata").cloned().unwrap_or_else(|| json!({}));
        let owner = claim.by_set.then(|| self.set.controller_owner_ref(&())).flatten();
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("name".to_owned(), json!(claim.claim));
            metadata.insert("namespace".to_owned(), json!(self.set.namespace()));
            let labels = metadata.entry("labels").or_insert_with(|| json!({}));
            if let Some(labels) = labels.as_object_mut() {
                labels
                    .extend(SLURMD.selector(&self.set.name_any()).into_iter().map(|(key, value)| (key, json!(value))));
            }
            if let Some(owner) = owner {
                metadata.insert("ownerReferences".to_owned(), json!([owner]));
            }
        }
        let template = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": self.set.namespace()},
            "spec": template.fields().get("spec"),
        });
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        Some(Step::Create(Box::new(FromTemplate {
            resource,
            template: Arc::new(template),
            overrides: json!({ "metadata": metadata }),
        })))
    }

    fn delete(&self, removal: &Removal) -> Step {
        let pod = PodKey { name: removal.name.clone(), uid: removal.uid.clone() };
        let object = ObjectVersion { resource_version: removal.resource_version.clone(), ..self.pod(&pod) };
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: removal.name.clone(),
            uid: removal.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let set = self.set.uid().unwrap_or_default();
        let claims = removal.claims.iter();
        let mut chain: Vec<Step> = claims
            .filter_map(|(claim, _)| self.set_claim_owner(claim, std::slice::from_ref(&set), Some(&owner)))
            .collect();
        chain.push(Step::Delete(Box::new(object)));
        in_a_row(chain)
    }

    /// Adds an owner to a claim and removes others.
    fn set_claim_owner(&self, claim: &str, drop: &[String], owner: Option<&OwnerReference>) -> Option<Step> {
        let facts = self.facts.claims.get(claim)?;
        let stays =
            |found: &&OwnerReference| !drop.contains(&found.uid) && owner.is_none_or(|owner| owner.uid != found.uid);
        let owners = facts.owners.iter().filter(stays).chain(owner).cloned().collect();
        Some(Step::SetOwners(Box::new(facts.object.clone()), owners))
    }
}

fn in_a_row(mut chain: Vec<Step>) -> Step {
    match chain.len() {
        1 => chain.remove(0),
        _ => Step::Chain(chain),
    }
}

fn owned(texts: &BTreeMap<&'static str, Option<String>>) -> BTreeMap<String, Option<String>> {
    texts.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// The fields that are specific to one worker.
fn overrides(identity: &Identity, template: &Value) -> Value {
    let mut spec = Map::from_iter([("hostname".to_owned(), json!(identity.hostname))]);
    if let Some(node) = &identity.node {
        let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        spec.insert("affinity".to_owned(), json!({"nodeAffinity": required}));
    }
    if !identity.claims.is_empty() {
        let is_claimed = |volume: &&Value| {
            identity.claims.iter().any(|claim| volume.get("name").and_then(Value::as_str) == Some(&claim.volume))
        };
        let others = template.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
        let claims = identity
            .claims
            .iter()
            .map(|claim| json!({"name": claim.volume, "persistentVolumeClaim": {"claimName": claim.claim}}));
        let volumes = others.filter(|volume| !is_claimed(volume)).cloned().chain(claims).collect();
        spec.insert("volumes".to_owned(), volumes);
    }
    let metadata = json!({"name": identity.name, "labels": identity.labels, "annotations": identity.annotations});
    json!({"metadata": metadata, "spec": spec})
}

fn status(set: &NodeSet, decision: &Decision, chosen: &Chosen) -> NodeSetStatus {
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let counts = &decision.counts;
    let name = set.name_any();
    let revision = |hash: &str| slurm_operator_api::names::revision(&name, hash);
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

/// A revision as an API object.
pub(super) fn revision_object(set: &NodeSet, hash: &str, number: i64, data: &Value) -> Desired {
    let parent = Parent::of(set);
    let name = slurm_operator_api::names::revision(&parent.name, hash);
    let mut metadata = parent.metadata(name, SLURMD, &[]);
    metadata.labels.get_or_insert_default().insert(label::REVISION.to_owned(), hash.to_owned());
    crate::engine::daemons::shared::desired::<ControllerRevision>(metadata, json!({"revision": number, "data": data}))
}
