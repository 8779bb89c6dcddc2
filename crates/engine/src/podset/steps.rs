//! Turns the actions of a decision into the steps of a plan.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::core::ApiResource;
use serde_json::{Map, Value, json};
use slurm::wire::{JobId, NodeUpdate, ReservationSpec};

use super::{
    decision::{Booking, ClaimUse, Decision, Identity, PodKey, Removal, WorkerAction},
    facts::{Claim, SlurmObservation},
};
use crate::{
    daemons::shared::{Parent, SLURMD},
    overlay::Fields,
    plan::{
        ClusterKey, DrainedWorker, DrainedWorkers, FromTemplate, JobsOnNodes, MetadataPatch, ObjectVersion,
        PodConditionPatch, RegisterWorker, ServiceState, SlurmCall, SlurmWrite, Step,
    },
};

/// What steps need beyond the actions.
pub struct StepBuilder<'a> {
    /// The set.
    pub parent: &'a Parent,
    pub cluster: &'a ClusterKey,
    /// The template of its pods; `None` if it cannot be rendered, and no pod is created.
    pub template: Option<Arc<Value>>,
    /// The templates of its claims.
    pub claim_templates: Vec<&'a Fields>,
    /// Its claims, by name.
    pub claims: &'a BTreeMap<String, Claim>,
    /// The Slurm nodes that the actions are based on.
    pub slurm: &'a SlurmObservation,
    pub now: Timestamp,
}

/// The name of a claim template.
pub fn claim_template_name(template: &Fields) -> Option<&str> {
    template.get("metadata")?.get("name")?.as_str()
}

/// The steps that add finalizers, which come before the first action, and those that remove them, which come after the
/// last.
pub fn finalizers(parent: &Parent, set: &ObjectMeta, decision: &Decision) -> (Vec<Step>, Vec<Step>) {
    let has = |name: &str| set.finalizers.iter().flatten().any(|found| found == name);
    let names = &parent.vocabulary.finalizer;
    [(names.reservation, decision.finalizers.reservation), (names.drain, Some(decision.finalizers.drain))]
        .into_iter()
        // Unknown: leave the finalizer as it is.
        .filter_map(|(name, wanted)| Some((name, wanted?)))
        .filter(|(name, wanted)| has(name) != *wanted)
        // The API server refuses new finalizers on an object that is being deleted.
        .filter(|(_, wanted)| !wanted || set.deletion_timestamp.is_none())
        .map(|(name, wanted)| Step::Finalizer { name, wanted })
        .partition(|step| matches!(step, Step::Finalizer { wanted: true, .. }))
}

/// Priority of an action, because the steps of a stage do not all run at once: first what protects jobs, then new
/// workers, then what is only informational.
fn urgency(action: &WorkerAction) -> u8 {
    match action {
        WorkerAction::Create(_) => 1,
        WorkerAction::Conditions { .. } | WorkerAction::Describe(_) => 2,
        // A kubelet may take long to answer.
        WorkerAction::Register { .. } => 3,
        _ => 0,
    }
}

impl StepBuilder<'_> {
    /// The steps for these actions, the most urgent ones first.
    pub fn steps(&self, actions: &[WorkerAction]) -> Vec<Step> {
        let is_drained =
            |action: &&WorkerAction| matches!(action, WorkerAction::Delete(removal) if removal.drained.is_some());
        let (drained, mut others): (Vec<&WorkerAction>, Vec<&WorkerAction>) = actions.iter().partition(is_drained);
        others.sort_by_key(|action| urgency(action));
        let first = self.delete_drained(&drained).into_iter().chain(self.end_jobs(actions));
        first.chain(others.into_iter().filter_map(|action| self.step(action))).collect()
    }

    /// One step for all jobs, so that one look at their nodes is enough for them.
    fn end_jobs(&self, actions: &[WorkerAction]) -> Vec<Step> {
        let (mut requeue, mut cancel) = (JobsOnNodes::default(), JobsOnNodes::default());
        for action in actions {
            let (list, job, node) = match action {
                WorkerAction::Requeue { job, node } => (&mut requeue, *job, node),
                WorkerAction::Kill { job, node } => (&mut cancel, *job, node),
                _ => continue,
            };
            list.jobs.insert(JobId::from(job), node.clone());
            list.nodes.entry(node.clone()).or_insert_with(|| self.service_state(node));
        }
        let calls = [SlurmCall::Requeue(requeue), SlurmCall::Cancel(cancel)].into_iter();
        let is_needed = |call: &SlurmCall| match call {
            SlurmCall::Requeue(jobs) | SlurmCall::Cancel(jobs) => !jobs.jobs.is_empty(),
            _ => false,
        };
        calls.filter(is_needed).map(|call| self.slurm(call)).collect()
    }

    /// One step for all drained workers, so that one look at Slurm is enough for them.
    fn delete_drained(&self, actions: &[&WorkerAction]) -> Option<Step> {
        let worker = |action: &&WorkerAction| {
            let WorkerAction::Delete(removal) = action else { return None };
            let node = removal.drained.clone()?;
            Some((node.clone(), DrainedWorker { state: self.service_state(&node), delete: self.delete(removal) }))
        };
        let workers: BTreeMap<String, DrainedWorker> = actions.iter().filter_map(worker).collect();
        let drained = || DrainedWorkers { cluster: self.cluster.clone(), workers };
        (!actions.is_empty()).then(|| Step::DeleteDrained(Box::new(drained())))
    }

    fn service_state(&self, node: &str) -> ServiceState {
        let SlurmObservation::Clear(snapshot) = self.slurm else { return ServiceState::default() };
        let node = snapshot.nodes.get(node);
        node.map(|node| ServiceState::of(&node.reason, &node.states)).unwrap_or_default()
    }

    fn step(&self, action: &WorkerAction) -> Option<Step> {
        let set_state = |nodes: &[String], change| SlurmCall::SetState {
            nodes: nodes.iter().map(|node| (node.clone(), self.service_state(node))).collect(),
            change: Box::new(change),
        };
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
            WorkerAction::Drain { nodes, reason } => self.slurm(set_state(nodes, NodeUpdate::new().drain(reason))),
            WorkerAction::Undrain { nodes } => self.slurm(set_state(nodes, NodeUpdate::new().undrain().reason(""))),
            WorkerAction::Resume { nodes } => self.slurm(set_state(nodes, NodeUpdate::new().resume())),
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
                self.slurm(SlurmCall::Update { node: description.node.clone(), change: Box::new(change) })
            }
            WorkerAction::Forget { node } => self.forget(node),
            WorkerAction::Adopt { pod, resource_version } => {
                let object = ObjectVersion { resource_version: resource_version.clone(), ..self.pod(pod) };
                Step::SetOwners(Box::new(object), vec![self.parent.owner.clone()])
            }
            WorkerAction::Register { pod, node } => Step::Register(Box::new(RegisterWorker {
                pod: self.pod(pod),
                container: SLURMD.program,
                node: node.clone(),
            })),
            // See `end_jobs`.
            WorkerAction::Requeue { .. } | WorkerAction::Kill { .. } => return None,
            WorkerAction::CreateClaim(usage) => return self.claim(usage),
            WorkerAction::OwnClaim { claim, by_set, drop } => {
                return self.set_claim_owner(claim, drop, by_set.then_some(&self.parent.owner));
            }
            WorkerAction::Reserve(booking) => self.slurm(SlurmCall::Reserve(Box::new(self.reservation(booking)))),
            WorkerAction::Unreserve { reservation } => self.slurm(SlurmCall::Unreserve { name: reservation.clone() }),
        })
    }

    fn forget(&self, node: &str) -> Step {
        self.slurm(SlurmCall::Forget { node: node.to_owned(), state: self.service_state(node) })
    }

    fn slurm(&self, call: SlurmCall) -> Step {
        Step::Slurm(Box::new(SlurmWrite { cluster: self.cluster.clone(), call }))
    }

    /// The reservation of a scheduled update, in the form that Slurm expects.
    fn reservation(&self, booking: &Booking) -> ReservationSpec {
        let user = self.parent.vocabulary.slurm_user;
        let mut spec = ReservationSpec::new(&booking.name).nodes(booking.nodes.iter().cloned()).users([user]);
        if let Some((start, minutes)) = booking.time {
            spec = spec.start(start).duration(minutes.into());
        }
        spec.flags(booking.flags.iter().cloned())
    }

    fn pod(&self, pod: &PodKey) -> ObjectVersion {
        ObjectVersion {
            resource: ApiResource::erase::<Pod>(&()),
            namespace: Some(self.parent.namespace.clone()),
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
            chain.push(self.forget(&identity.hostname));
        }
        let object = FromTemplate {
            resource: ApiResource::erase::<Pod>(&()),
            template: Arc::clone(template),
            overrides: overrides(identity, template),
            exclusive: Some(format!("{} {}", self.cluster, identity.hostname)),
        };
        chain.push(Step::Create(Box::new(object)));
        Some(in_a_row(chain))
    }

    /// Creates a claim from its template.
    fn claim(&self, claim: &ClaimUse) -> Option<Step> {
        let template =
            self.claim_templates.iter().find(|template| claim_template_name(template) == Some(&claim.volume))?;
        let mut metadata = template.get("metadata").cloned().unwrap_or_else(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("name".to_owned(), json!(claim.claim));
            metadata.insert("namespace".to_owned(), json!(self.parent.namespace));
            let labels = metadata.entry("labels").or_insert_with(|| json!({}));
            if let Some(labels) = labels.as_object_mut() {
                labels.extend(self.parent.selector(SLURMD).into_iter().map(|(key, value)| (key, json!(value))));
            }
            if claim.by_set {
                metadata.insert("ownerReferences".to_owned(), json!([self.parent.owner]));
            }
        }
        let template = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": self.parent.namespace},
            "spec": template.get("spec"),
        });
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        Some(Step::Create(Box::new(FromTemplate {
            resource,
            template: Arc::new(template),
            overrides: json!({ "metadata": metadata }),
            exclusive: None,
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
        let set = std::slice::from_ref(&self.parent.owner.uid);
        let claims = removal.claims.iter();
        let mut chain: Vec<Step> = claims.filter_map(|claim| self.set_claim_owner(claim, set, Some(&owner))).collect();
        chain.push(Step::Delete(Box::new(object), removal.why.text()));
        in_a_row(chain)
    }

    /// Adds an owner to a claim and removes others.
    fn set_claim_owner(&self, claim: &str, drop: &[String], owner: Option<&OwnerReference>) -> Option<Step> {
        let facts = self.claims.get(claim)?;
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
