//! Known bugs, injected around the real plan to check that the simulation finds them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use engine::{
    plan::{MetadataPatch, ObjectVersion, Plan, ServiceState, SlurmCall, SlurmWrite, Step},
    podset::{Hold, JobList, Jobs, SlurmObservation, Snapshot, Worker},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::core::ApiResource;
use serde_json::json;
use slurm::wire::NodeUpdate;
use slurm_operator::frontends::slinky::{cluster_key, nodeset::plan::Facts};
use slurm_operator_api::slinky::{
    NodeSet, NodeSetStatus, VOCABULARY,
    names::annotation,
    nodeset::{MaxUnavailable, RollingUpdate},
};
use testkit::Rng;

use crate::{
    api::{Api, NAMESPACE, SETS},
    scenario::{CONTROLLER, OTHER},
};

/// An injected bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Drained workers are deleted at once.
    DeleteBusy,
    /// Writes to Slurm count as confirmed.
    IgnorePending,
    /// All workers may be updated at once.
    IgnoreBudget,
    /// Any drain is removed.
    LiftForeign,
    /// The record of a running worker is deleted.
    ForgetLive,
    /// Pods have random names, and created pods are not remembered.
    RandomName,
    /// Writes to Kubernetes are not remembered.
    IgnoreMemory,
    /// A stale node list is trusted.
    TrustOldList,
    /// An annotation of a user is removed.
    DropAnnotation,
    /// Claims are owned by the set, whatever the policy.
    OwnClaims,
    /// Claims that are about to be deleted are used, and never made again.
    UseLostClaims,
    /// A pod of another owner is deleted.
    DeleteForeign,
    /// Nodes that are drained have no jobs, whatever the jobs say.
    IgnoreJobs,
    /// Busy workers are not labelled.
    NoProtection,
    /// With an invalid spec nothing is done at all.
    RefuseAll,
    /// A write does not check that the node is as the plan saw it.
    WriteUnseen,
    /// A drained worker is deleted without looking at Slurm again.
    DeleteUnseen,
    /// Jobs may name any node that is deleted.
    ForgetNamed,
    /// Workers that were rebooted stay down.
    LeaveRebooted,
    /// Reasons are compared as if slurmctld appended nothing to them.
    ExactReasons,
    /// Workers that slurmctld has lost are left alone.
    LeaveLost,
    /// Workers are made to register again, whatever runs there.
    RegisterBusy,
    /// There is no disruption budget.
    NoBudget,
    /// Node names of other sets are used.
    IgnoreOthers,
    /// Node names of the other set are used that is simulated.
    IgnoreRivals,
    /// A set that is deleted takes with it what it shares with another one.
    DeleteShared,
    /// Without a key nothing is done at all.
    RefuseMissing,
    /// Sets that are to be drained can be deleted at once.
    NoDrainFinalizer,
    /// Jobs are ended at once, whatever the timeout.
    EarlyTimeout,
    /// A slurmd with another name does not exist.
    IgnoreNames,
    /// Workers without an owner are left alone.
    NoAdoption,
    /// A process goes on although its lease has expired.
    IgnoreLease,
}

fn pod_version(worker: &Worker) -> ObjectVersion {
    ObjectVersion {
        resource: ApiResource::erase::<Pod>(&()),
        namespace: Some(NAMESPACE.to_owned()),
        name: worker.name.clone(),
        uid: worker.uid.clone(),
        resource_version: worker.resource_version.clone(),
    }
}

fn slurm(call: SlurmCall) -> Step {
    Step::Slurm(Box::new(SlurmWrite { cluster: cluster_key(NAMESPACE, CONTROLLER), call }))
}

fn clear(facts: &mut Facts, change: impl FnOnce(&mut Snapshot)) {
    if let SlurmObservation::Clear(snapshot) = &mut facts.podset.slurm {
        change(Arc::make_mut(snapshot));
    }
}

impl Bug {
    /// Whether the operator remembers none of its writes.
    pub fn forgets(self) -> bool {
        matches!(self, Self::IgnoreMemory | Self::RandomName)
    }

    /// Falsifies what the operator observes.
    pub fn spoil_facts(self, set: &mut NodeSet, facts: &mut Facts, now: Timestamp) {
        match self {
            Self::IgnorePending => clear(facts, |snapshot| snapshot.pending = HashMap::new()),
            Self::IgnoreJobs => clear(facts, |snapshot| {
                snapshot.jobs = Jobs::Read(JobList { nodes: Arc::clone(&snapshot.nodes), ..JobList::default() });
            }),
            Self::ForgetNamed => clear(facts, |snapshot| {
                if let Jobs::Read(list) = &mut snapshot.jobs {
                    Arc::make_mut(&mut list.jobs).named_nodes.clear();
                }
            }),
            Self::LeaveRebooted => {
                if let Some(cluster) = &mut facts.cluster {
                    cluster.controller.spec.extra_conf = Some("ReturnToService=0".to_owned());
                }
            }
            Self::ExactReasons => clear(facts, |snapshot| {
                for node in Arc::make_mut(&mut snapshot.nodes).values_mut() {
                    node.reason = node.reason.replace(" : ", ", ");
                }
            }),
            Self::UseLostClaims => {
                for claim in facts.podset.claims.values_mut() {
                    claim.deleting = false;
                    claim.owners.retain(|owner| owner.kind != "Pod");
                }
            }
            Self::IgnoreOthers => facts.podset.others.clear(),
            Self::IgnoreRivals => facts.podset.others.retain(|other| !SETS.contains(&other.name.as_str())),
            Self::NoAdoption => facts.podset.orphans.clear(),
            Self::EarlyTimeout => {
                set.spec.drain = serde_json::from_value(json!({"timeout": "1s", "onTimeout": "Kill"})).ok();
            }
            Self::IgnoreNames => {
                clear(facts, |snapshot| Arc::make_mut(&mut snapshot.nodes).retain(|name, _| !name.starts_with("old-")));
            }
            Self::TrustOldList => clear(facts, |snapshot| snapshot.read_at = now),
            Self::IgnoreBudget => {
                let strategy = set.spec.update_strategy.get_or_insert_default();
                strategy.rolling_update =
                    Some(RollingUpdate { max_unavailable: MaxUnavailable::String("100%".to_owned()) });
            }
            _ => {}
        }
    }

    /// Falsifies what the operator does.
    #[expect(clippy::too_many_lines, reason = "one short arm per bug")]
    pub fn spoil_plan(self, plan: &mut Plan<NodeSetStatus>, facts: &Facts, api: &Api, rng: &mut Rng) {
        let of = |host: &str| facts.podset.workers.iter().find(|worker| worker.slurm_node() == Some(host));
        let mut extra = Vec::new();
        match self {
            Self::DeleteBusy => {
                for step in plan.stages.iter().flatten() {
                    let Step::Slurm(write) = step else { continue };
                    let SlurmCall::SetState { nodes, change } = &write.call else { continue };
                    if change.drain_reason().is_some_and(|reason| reason.contains("NodeSet (")) {
                        let pods = nodes.keys().filter_map(|node| of(node));
                        extra.extend(pods.map(|worker| Step::Delete(Box::new(pod_version(worker)), "a bug")));
                    }
                }
            }
            Self::LiftForeign => {
                if let SlurmObservation::Clear(snapshot) = &facts.podset.slurm {
                    let mut held: Vec<_> = snapshot
                        .nodes
                        .iter()
                        .filter(|(name, node)| node.hold(&VOCABULARY) == Hold::Foreign && of(name).is_some())
                        .map(|(name, node)| (name.clone(), ServiceState::of(&node.reason, &node.states)))
                        .collect();
                    held.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
                    let change = || Box::new(NodeUpdate::new().undrain());
                    let lift = |held| slurm(SlurmCall::SetState { nodes: [held].into(), change: change() });
                    extra.extend(held.into_iter().map(lift));
                }
            }
            Self::ForgetLive if rng.percent(10) => {
                let host = facts.podset.workers.first().and_then(|worker| worker.slurm_node());
                let SlurmObservation::Clear(snapshot) = &facts.podset.slurm else { return };
                extra.extend(host.and_then(|host| {
                    let node = snapshot.nodes.get(host)?;
                    let state = ServiceState::of(&node.reason, &node.states);
                    Some(slurm(SlurmCall::Forget { node: host.to_owned(), state }))
                }));
            }
            Self::DropAnnotation => {
                let workers = facts.podset.workers.iter().filter(|worker| worker.deletion_cost.is_some());
                let change = || [(annotation::POD_DELETION_COST.to_owned(), None)].into();
                extra.extend(workers.map(|worker| {
                    let patch =
                        MetadataPatch { target: pod_version(worker), labels: BTreeMap::new(), annotations: change() };
                    Step::PatchMetadata(Box::new(patch))
                }));
            }
            Self::OwnClaims => {
                for claim in facts.podset.claims.values() {
                    extra.push(Step::SetOwners(Box::new(claim.object.clone()), facts.siblings.clone()));
                }
            }
            Self::UseLostClaims => {
                // Those of workers that are there; a new worker comes with its own.
                let claim = ApiResource::erase::<PersistentVolumeClaim>(&());
                for stage in &mut plan.stages {
                    stage.retain(|step| !matches!(step, Step::Create(object) if object.resource.kind == claim.kind));
                }
            }
            Self::DeleteForeign => {
                let version = api.pods.get(OTHER).map(|pod| pod.version.to_string()).unwrap_or_default();
                let (name, uid) = (OTHER.to_owned(), OTHER.to_owned());
                let other = Worker { name, uid, resource_version: version, ..Worker::default() };
                extra.push(Step::Delete(Box::new(pod_version(&other)), "a bug"));
            }
            Self::NoProtection => {
                for stage in &mut plan.stages {
                    stage.retain(|step| !matches!(step, Step::PatchMetadata(patch) if !patch.labels.is_empty()));
                }
            }
            Self::RefuseAll => {
                let is_refused = plan.conditions.iter().any(|found| found.reason == "InvalidSpec");
                if is_refused {
                    plan.stages.clear();
                }
            }
            Self::NoBudget => {
                for stage in &mut plan.stages {
                    let is_budget = |step: &Step| matches!(step, Step::Apply(desired) if desired.resource.kind == "PodDisruptionBudget");
                    stage.retain(|step| !is_budget(step));
                }
            }
            Self::DeleteShared => {
                for step in plan.stages.iter_mut().flatten() {
                    if let Step::SetOwners(object, _) = step
                        && matches!(object.resource.kind.as_str(), "Service" | "PodDisruptionBudget")
                    {
                        *step = Step::Delete(object.clone(), "a bug");
                    }
                }
            }
            Self::RefuseMissing if plan.conditions.iter().any(|found| found.reason == "ReferenceMissing") => {
                plan.stages.clear();
            }
            Self::NoDrainFinalizer => {
                for stage in &mut plan.stages {
                    stage.retain(|step| !matches!(step, Step::Finalizer { wanted: true, .. }));
                }
            }
            Self::LeaveLost => {
                for stage in &mut plan.stages {
                    stage.retain(|step| !matches!(step, Step::Register(_)));
                }
            }
            Self::RandomName => {
                for step in plan.stages.iter_mut().flatten() {
                    rename(step, rng);
                }
            }
            _ => {}
        }
        plan.stages.push(extra);
    }
}

fn rename(step: &mut Step, rng: &mut Rng) {
    match step {
        Step::Create(object) if object.resource.kind != ApiResource::erase::<PersistentVolumeClaim>(&()).kind => {
            let name = format!("{}-{}", object.name(), rng.below(1_000_000));
            object.overrides["metadata"]["name"] = json!(name);
        }
        Step::Chain(steps) => steps.iter_mut().for_each(|step| rename(step, rng)),
        _ => {}
    }
}
