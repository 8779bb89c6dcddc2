//! Known mistakes, planted around the real plan to see that the simulation finds them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::core::ApiResource;
use serde_json::json;
use slurm::wire::NodeUpdate;
use slurm_operator::{
    engine::podset::{Hold, Sight, Snapshot, Worker},
    kinds::nodeset::plan::Seen,
    machine::{Amend, Doomed, Errand, Plan, SlurmDeed, Step},
};
use slurm_operator_api::{NodeSet, NodeSetStatus, names::annotation, nodeset::RollingUpdate};
use testkit::Rng;

use crate::{
    api::{Api, NAMESPACE},
    scenario::{CONTROLLER, OTHER},
};

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Whoever is drained is deleted at once.
    DeleteBusy,
    /// What was written to Slurm counts as seen.
    IgnorePending,
    /// All workers may be updated at once.
    IgnoreBudget,
    /// Any drain is lifted.
    LiftForeign,
    /// The record of a worker that runs is deleted.
    ForgetLive,
    /// Pods have random names, and what was made is not remembered.
    RandomName,
    /// What was written to Kubernetes is not remembered.
    IgnoreMemory,
    /// An old list of nodes is as good as a new one.
    TrustOldList,
    /// The annotation of a user is taken away.
    DropNote,
    /// Claims are given to the set whatever the policy is.
    OwnClaims,
    /// A pod of somebody else is deleted.
    DeleteForeign,
}

fn doomed(worker: &Worker) -> Doomed {
    Doomed {
        resource: ApiResource::erase::<Pod>(&()),
        namespace: NAMESPACE.to_owned(),
        name: worker.name.clone(),
        uid: worker.uid.clone(),
        resource_version: worker.resource_version.clone(),
    }
}

fn slurm(deed: SlurmDeed) -> Step {
    Step::Slurm(Box::new(Errand { cluster: CONTROLLER.to_owned(), deed }))
}

fn clear(seen: &mut Seen, change: impl FnOnce(&mut Snapshot)) {
    if let Sight::Clear(snapshot) = &mut seen.slurm {
        change(Arc::make_mut(snapshot));
    }
}

impl Bug {
    /// Whether the operator remembers nothing of what it wrote.
    pub fn forgets(self) -> bool {
        matches!(self, Self::IgnoreMemory | Self::RandomName)
    }

    /// What the operator believes.
    pub fn spoil_facts(self, set: &mut NodeSet, seen: &mut Seen, now: Timestamp) {
        match self {
            Self::IgnorePending => clear(seen, |snapshot| snapshot.pending = HashMap::new()),
            Self::TrustOldList => clear(seen, |snapshot| snapshot.read_at = now),
            Self::IgnoreBudget => {
                let strategy = set.spec.update_strategy.get_or_insert_default();
                strategy.rolling_update =
                    Some(RollingUpdate { max_unavailable: IntOrString::String("100%".to_owned()) });
            }
            _ => {}
        }
    }

    /// What the operator does.
    pub fn spoil_plan(self, plan: &mut Plan<NodeSetStatus>, seen: &Seen, api: &Api, rng: &mut Rng) {
        let of = |host: &str| seen.workers.iter().find(|worker| worker.slurm_node() == Some(host));
        let mut extra = Vec::new();
        match self {
            Self::DeleteBusy => {
                for step in plan.stages.iter().flatten() {
                    let Step::Slurm(errand) = step else { continue };
                    let SlurmDeed::Update { nodes, change } = &errand.deed else { continue };
                    if change.drain_reason().is_some_and(|reason| reason.contains("NodeSet (")) {
                        let pods = nodes.iter().filter_map(|node| of(node));
                        extra.extend(pods.map(|worker| Step::Delete(Box::new(doomed(worker)))));
                    }
                }
            }
            Self::LiftForeign => {
                if let Sight::Clear(snapshot) = &seen.slurm {
                    let mut held: Vec<_> = snapshot
                        .nodes
                        .iter()
                        .filter(|(name, node)| node.hold() == Hold::Foreign && of(name).is_some())
                        .map(|(name, _)| name.clone())
                        .collect();
                    held.sort_unstable();
                    let change = || Box::new(NodeUpdate::new().undrain());
                    extra.extend(
                        held.into_iter().map(|node| slurm(SlurmDeed::Update { nodes: vec![node], change: change() })),
                    );
                }
            }
            Self::ForgetLive if rng.percent(10) => {
                let host = seen.workers.first().and_then(|worker| worker.slurm_node());
                extra.extend(host.map(|host| slurm(SlurmDeed::Forget { node: host.to_owned() })));
            }
            Self::DropNote => {
                let workers = seen.workers.iter().filter(|worker| worker.deletion_cost.is_some());
                let change = || [(annotation::POD_DELETION_COST.to_owned(), None)].into();
                extra.extend(workers.map(|worker| {
                    let amend = Amend { target: doomed(worker), labels: BTreeMap::new(), annotations: change() };
                    Step::Amend(Box::new(amend))
                }));
            }
            Self::OwnClaims => {
                for claim in seen.claims.values() {
                    extra.push(Step::Own(Box::new(claim.doomed.clone()), seen.siblings.clone()));
                }
            }
            Self::DeleteForeign => {
                let version = api.pods.get(OTHER).map(|pod| pod.version.to_string()).unwrap_or_default();
                let (name, uid) = (OTHER.to_owned(), OTHER.to_owned());
                let other = Worker { name, uid, resource_version: version, ..Worker::default() };
                extra.push(Step::Delete(Box::new(doomed(&other))));
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
        Step::Create(stamp) if stamp.resource.kind != ApiResource::erase::<PersistentVolumeClaim>(&()).kind => {
            let name = format!("{}-{}", stamp.name(), rng.below(1_000_000));
            stamp.own["metadata"]["name"] = json!(name);
        }
        Step::Chain(steps) => steps.iter_mut().for_each(|step| rename(step, rng)),
        _ => {}
    }
}
