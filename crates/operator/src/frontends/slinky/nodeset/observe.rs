//! Observes what a plan for a `NodeSet` needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use engine::{
    daemons::shared::SLURMD,
    hash::hash,
    plan::ObjectVersion,
    podset::{self, Claim, OtherSet, Recall, Reserved, SlurmCounts, SlurmObservation, Worker},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, StatefulSet},
        core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use slurm_operator_api::{
    common::shared::SecretKeySelector,
    slinky::{
        Controller, NodeSet, VOCABULARY,
        names::{self, annotation},
        nodeset::NodeSetBrief,
    },
};

use super::{
    model::{self, placement_of},
    plan::{Cluster, Facts, GresTypes, LiveChildren, Revision},
};
use crate::{
    failure::{Failure, call},
    frontends::slinky::{cluster_key, keys::Ring},
    kube_view::{
        own_writes::{ChildrenOf, OwnWrites, StoreEntry, Unconfirmed},
        read::{Reader, labelled},
        stores::Workers,
    },
    sources::Sources,
};

pub(super) async fn observe(set: &NodeSet, sources: &Sources, now: Timestamp) -> Result<Facts, Failure> {
    let namespace = set.namespace().unwrap_or_default();
    let read = Reader { client: &sources.kube.client, namespace: &namespace };
    let cluster = &set.spec.controller_ref.name;
    let (service, budget) = (names::worker_service(cluster), names::worker_disruption_budget(cluster));
    let ssh_config = async {
        let name = names::ssh_config(&set.name_any());
        if set.spec.ssh().is_some() { read.get(&name).await } else { Ok(None) }
    };
    let claims = async {
        if set.spec.volume_claim_templates.is_empty() { Ok(BTreeMap::new()) } else { claims(&read, set).await }
    };
    let sssd = async {
        match set.spec.ssh() {
            Some(ssh) => content(&read, &ssh.sssd_conf_ref).await,
            None => Ok(None),
        }
    };
    let cluster_and_key = async {
        let controller: Option<Controller> = read.get(cluster).await?;
        let key = controller.as_ref().and_then(|controller| controller.spec.slurm_key_ref.as_ref());
        let is_managed = controller.as_ref().is_some_and(|controller| !controller.spec.external);
        let content = read.entry(key).await?;
        let ring = Ring::observe(&read, key, &content, is_managed).await?;
        let has_key = content.is_ok() || ring.live().is_some();
        let is_needed = !model::held(set).is_empty();
        let slurmctld = if is_needed { read.get::<StatefulSet>(&names::controller(cluster)).await? } else { None };
        let gres_types = slurmctld.as_ref().map(GresTypes::of).unwrap_or_default();
        Ok(controller.map(|controller| Cluster { controller: Box::new(controller), has_key, ring, gres_types }))
    };
    let (joined, siblings, (revisions, known_revisions), service, budget, ssh_config, claims, sssd) = tokio::try_join!(
        cluster_and_key,
        siblings(&read, cluster),
        revisions(&read, set),
        read.get(&service),
        read.get(&budget),
        ssh_config,
        claims,
        sssd,
    )?;
    let namespace_terminating =
        set.meta().deletion_timestamp.is_some() && is_terminating(&sources.kube.client, &namespace).await?;
    let has_drain_policy = if set.spec.drain().on_delete {
        sources.kube.drain_policy.is_in_force(&sources.kube.client, &VOCABULARY, now).await
    } else {
        None
    };
    let lost = lost(&read, &sources.kube.workers, set).await?;
    // Before the workers: one that is adopted meanwhile is in both, and not in neither.
    let orphans = sources.kube.workers.orphans(&namespace, &VOCABULARY, &set.name_any());
    let (workers, creating) = workers(set, &sources.kube.workers, &sources.kube.own_writes, now);
    let attempts = sources.kube.own_writes.attempts.of(workers.iter().map(|worker| worker.uid.as_str()));
    let slurm = match joined_elsewhere(set, &workers) {
        // The records of the other cluster say nothing about these workers.
        Some(other) => {
            SlurmObservation::NoClient { why: format!("the workers have joined the cluster of the Controller {other}") }
        }
        None => sources.slurm.cluster_status(&cluster_key(&namespace, cluster)).observation,
    };
    let podset = podset::Facts {
        workers,
        attempts,
        orphans,
        lost,
        known_revisions,
        creating,
        nodes: sources.kube.nodes.all(),
        slurm,
        claims,
        others: others(set, &siblings, &sources.kube.workers, &sources.kube.own_writes, now),
        recall: recall(set),
        may_be_reserved: set.finalizers().iter().any(|found| found == names::finalizer::RESERVATION),
        yields: joined.is_none() || namespace_terminating,
    };
    Ok(Facts {
        cluster: joined,
        podset,
        revisions,
        siblings: shared_owners(&siblings),
        live: LiveChildren { service, budget, ssh_config },
        has_drain_policy,
        sssd_hash: sssd.map(|content| hash([("", content.as_slice())])),
        propagated_conditions: sources.propagated_conditions.to_vec(),
        domain: sources.domain.to_string(),
    })
}

/// The Controller whose cluster workers have joined, if spec.controllerRef names another one now. CRDs of earlier releases allow
/// that.
pub(super) fn joined_elsewhere<'a>(set: &NodeSet, workers: &'a [Arc<Worker>]) -> Option<&'a str> {
    let clusters = workers.iter().filter(|worker| !worker.terminating).filter_map(|worker| worker.cluster.as_deref());
    clusters.into_iter().find(|cluster| *cluster != set.spec.controller_ref.name)
}

/// What the status of the set keeps.
pub fn recall(set: &NodeSet) -> Recall {
    let Some(status) = &set.status else { return Recall::default() };
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let pinned = status.ordinal_to_node.iter();
    Recall {
        pinned: pinned.filter_map(|(ordinal, node)| Some((ordinal.parse().ok()?, node.clone()))).collect(),
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
    }
}

/// The set's pods from the store, corrected by our own recent writes, and the names of created pods that are not in
/// the store yet.
pub fn workers(
    set: &NodeSet,
    store: &Workers,
    own_writes: &OwnWrites,
    now: Timestamp,
) -> (Vec<Arc<Worker>>, BTreeSet<String>) {
    let uid = set.uid().unwrap_or_default();
    // Read first: the pods read below may be newer than this, never older.
    let newest = store.newest(&set.namespace().unwrap_or_default());
    let mut workers = store.of(&uid);
    let shown = workers.iter().map(|worker| StoreEntry {
        name: &worker.name,
        uid: &worker.uid,
        version: &worker.resource_version,
        is_terminating: worker.terminating,
    });
    let unconfirmed = own_writes.children.unconfirmed(&ChildrenOf::new(&uid, "Pod"), shown, newest, now);
    if unconfirmed != Unconfirmed::default() {
        for worker in &mut workers {
            let (old, terminating) =
                (unconfirmed.old.contains(&worker.name), unconfirmed.terminating.contains(&worker.name));
            if old || terminating {
                let worker = Arc::make_mut(worker);
                // Also for a deleted pod: a delete that timed out may have to be repeated.
                worker.pending = true;
                worker.terminating |= terminating;
            }
        }
    }
    (workers, unconfirmed.unseen)
}

/// Pods that left the watch and still exist: somebody removed the label by which workers are found.
async fn lost(read: &Reader<'_>, store: &Workers, set: &NodeSet) -> Result<Vec<ObjectVersion>, Failure> {
    let owner = set.uid().unwrap_or_default();
    let mut lost = Vec::new();
    for (name, uid) in store.lost(&owner) {
        let pod = read.get::<Pod>(&name).await?.filter(|pod| pod.uid() == Some(uid));
        let unlabelled = pod.filter(|pod| !pod.labels().contains_key(VOCABULARY.worker_label.0));
        lost.extend(unlabelled.map(|pod| ObjectVersion::of::<Pod>(&pod)));
    }
    if lost.is_empty() {
        store.forget_lost(&owner);
    }
    Ok(lost)
}

/// All sets of a cluster.
async fn siblings(read: &Reader<'_>, cluster: &str) -> Result<Vec<NodeSetBrief>, Failure> {
    let sets = read.list::<NodeSetBrief>(&ListParams::default()).await?;
    Ok(sets.into_iter().filter(|set| set.spec.controller_ref.name == cluster).collect())
}

/// The sets whose Slurm node names must not be used. `all` are the sets of the cluster.
pub fn others(
    set: &NodeSet,
    all: &[NodeSetBrief],
    store: &Workers,
    own_writes: &OwnWrites,
    now: Timestamp,
) -> Vec<OtherSet> {
    let namespace = set.namespace().unwrap_or_default();
    // Read before the pods, which may be newer than this and never older.
    let newest = store.newest(&namespace);
    let uid = set.uid();
    let age = |meta: &ObjectMeta| (meta.creation_timestamp.clone().map(|time| time.0), meta.name.clone());
    let siblings = all.iter().filter(|other| other.uid() != uid);
    let mut others: Vec<OtherSet> = siblings
        .map(|other| {
            let uid = other.uid().unwrap_or_default();
            // Of two that are created at the same time, one must wait. One that is being deleted makes no more workers.
            let goes_first = age(other.meta()) < age(set.meta()) && other.meta().deletion_timestamp.is_none();
            // The names of workers that have just been created are not known yet, and may be more than it wants by now.
            let is_creating = own_writes.children.has_unseen(&ChildrenOf::new(&uid, "Pod"), newest, now);
            // Those that it will adopt have names as well.
            let mut workers = store.orphans(&namespace, &VOCABULARY, &other.name_any());
            workers.extend(store.of(&uid));
            OtherSet {
                name: other.name_any(),
                slurm_name: other.slurm_name(),
                workers,
                reserved: (goes_first || is_creating).then(|| reserved(other, is_creating)),
                is_creating,
            }
        })
        .collect();
    others.extend(left(set, all, store));
    others
}

/// Sets that are gone while their workers still run or end: one without an owner stays for good.
fn left(set: &NodeSet, siblings: &[NodeSetBrief], store: &Workers) -> Vec<OtherSet> {
    let ids = siblings.iter().map(|other| (other.uid().unwrap_or_default(), other.name_any()));
    let ids: Vec<(String, String)> = ids.chain([(set.uid().unwrap_or_default(), set.name_any())]).collect();
    let ids = ids.iter().map(|(uid, name)| (uid.as_str(), name.as_str()));
    let namespace = set.namespace().unwrap_or_default();
    let mut sets: BTreeMap<String, OtherSet> = BTreeMap::new();
    for worker in store.left(&namespace, &VOCABULARY, &set.spec.controller_ref.name, ids) {
        let name = worker.name.rsplit_once('-').map_or(&*worker.name, |(set, _)| set).to_owned();
        let left = sets.entry(name.clone()).or_insert_with(|| OtherSet { name, ..OtherSet::default() });
        left.workers.push(worker);
    }
    sets.into_values().collect()
}

fn reserved(other: &NodeSetBrief, all: bool) -> Reserved {
    other.node_names().map_or_else(
        || Reserved::PerNode(placement_of(other.template())),
        |(prefix, count)| Reserved::Numbered { prefix, count: if all { u32::MAX } else { count } },
    )
}

/// Owner references for the objects that all sets of a cluster share.
pub fn shared_owners(siblings: &[NodeSetBrief]) -> Vec<OwnerReference> {
    let alive = siblings.iter().filter(|set| set.meta().deletion_timestamp.is_none());
    let owner = |set: &NodeSetBrief| {
        let reference = set.controller_owner_ref(&())?;
        Some(OwnerReference { controller: None, block_owner_deletion: Some(true), ..reference })
    };
    let mut owners: Vec<OwnerReference> = alive.filter_map(owner).collect();
    owners.sort_by(|a, b| a.name.cmp(&b.name));
    owners
}

/// The revisions of the set, and the hashes of those and of revisions that belong to nobody.
async fn revisions(read: &Reader<'_>, set: &NodeSet) -> Result<(Vec<Revision>, BTreeSet<String>), Failure> {
    let all = read.list::<ControllerRevision>(&ListParams::default()).await?;
    let uid = set.uid();
    let controller = |revision: &ControllerRevision| {
        revision.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
    };
    let prefix = format!("{}-", set.name_any());
    let is_free = |revision: &ControllerRevision| {
        controller(revision).is_none_or(|owner| Some(owner) == uid) && revision.name_any().starts_with(&prefix)
    };
    let known = all.iter().filter(|revision| is_free(revision)).map(|revision| hash_of(revision, &set.name_any()));
    let known = known.collect();
    let ours = all.into_iter().filter(|revision| uid.is_some() && controller(revision) == uid);
    let ours = ours.map(|revision| Revision {
        object: ObjectVersion::of::<ControllerRevision>(&revision),
        hash: hash_of(&revision, &set.name_any()),
        number: revision.revision,
        data: revision.data.as_ref().map(|data| data.0.clone()).unwrap_or_default(),
        claim_templates: revision.annotations().get(annotation::CLAIM_TEMPLATES).cloned(),
    });
    Ok((ours.collect(), known))
}

/// The revision label of its pods: the suffix of the revision's name.
fn hash_of(revision: &ControllerRevision, set: &str) -> String {
    let name = revision.name_any();
    name.strip_prefix(&format!("{set}-")).unwrap_or(&name).to_owned()
}

async fn claims(read: &Reader<'_>, set: &NodeSet) -> Result<BTreeMap<String, Claim>, Failure> {
    let selector = SLURMD.selector(&VOCABULARY, &set.name_any());
    let claims = read.list::<PersistentVolumeClaim>(&labelled(&selector)).await?;
    Ok(claims
        .into_iter()
        .map(|claim| {
            let facts = Claim {
                object: ObjectVersion::of::<PersistentVolumeClaim>(&claim),
                owners: claim.owner_references().to_vec(),
                deleting: claim.metadata.deletion_timestamp.is_some(),
            };
            (claim.name_any(), facts)
        })
        .collect())
}

/// An entry of a Secret.
async fn content(read: &Reader<'_>, reference: &SecretKeySelector) -> Result<Option<Vec<u8>>, Failure> {
    let secret = read.get::<Secret>(&reference.name).await?;
    Ok(secret.and_then(|secret| secret.data?.remove(&reference.key)).map(|bytes| bytes.0))
}

async fn is_terminating(client: &Client, namespace: &str) -> Result<bool, Failure> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = call("reading", || format!("Namespace {namespace}"), namespaces.get_opt(namespace)).await?;
    Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
}
