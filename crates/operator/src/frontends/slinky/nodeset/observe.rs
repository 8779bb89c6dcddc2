//! Observes what a plan for a `NodeSet` needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::ControllerRevision,
        core::v1::{Namespace, PersistentVolumeClaim, Secret},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use slurm_operator_api::{Controller, NodeSet, conditions, names, nodeset::ScalingMode, shared::SecretKeySelector};

use super::plan::{ClaimFacts, Cluster, Facts, LiveChildren, Revision};
use crate::{
    engine::{daemons::shared::SLURMD, podset::Worker},
    kube_view::{
        read::{Reader, labelled},
        stores::Workers,
    },
    machine::{ChildrenOf, Failure, ObjectVersion, StoreEntry, Unconfirmed, WriteCache, call},
    sources::Sources,
};

pub(super) async fn observe(set: &NodeSet, sources: &Sources) -> Result<Facts, Failure> {
    let now = Timestamp::now();
    let namespace = set.namespace().unwrap_or_default();
    let read = Reader { client: &sources.client, namespace: &namespace };
    let cluster = &set.spec.controller_ref.name;
    if wants_jobs(set) {
        sources.slurm.want_jobs(&namespace, cluster, now);
    }
    // An existing reservation must also be found in order to remove it.
    let has_reserved = set.finalizers().iter().any(|found| found == names::finalizer::RESERVATION);
    if has_reserved || set.spec.update_strategy().scheduled().is_some() {
        sources.slurm.want_reservations(&namespace, cluster, now);
    }
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
        let has_key = match controller.as_ref().and_then(|controller| controller.spec.slurm_key_ref.as_ref()) {
            Some(key) => content(&read, key).await?.is_some(),
            None => false,
        };
        Ok(controller.map(|controller| Cluster { controller: Box::new(controller), has_key }))
    };
    let (joined, siblings, revisions, service, budget, ssh_config, claims, sssd) = tokio::try_join!(
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
        set.meta().deletion_timestamp.is_some() && is_terminating(&sources.client, &namespace).await?;
    let (workers, creating) = workers(set, &sources.workers, &sources.write_cache, now);
    Ok(Facts {
        cluster: joined,
        workers,
        creating,
        nodes: sources.nodes.all(),
        slurm: sources.slurm.cluster_status(&namespace, cluster).observation,
        claims,
        revisions,
        siblings,
        live: LiveChildren { service, budget, ssh_config },
        sssd_hash: sssd.map(|content| crate::engine::config::hash([("", content.as_slice())])),
        namespace_terminating,
        propagated_conditions: sources.propagated_conditions.to_vec(),
        domain: sources.domain.to_string(),
    })
}

/// Whether running jobs are needed: to choose which workers to remove, and to report how long a drain takes.
pub fn wants_jobs(set: &NodeSet) -> bool {
    let Some(status) = &set.status else { return false };
    let is_numbered = set.spec.scaling_mode == ScalingMode::StatefulSet;
    let has_too_many = is_numbered && i64::from(status.replicas) > i64::from(set.spec.replicas());
    has_too_many || conditions::is_true(&status.conditions, conditions::PROGRESSING)
}

/// The set's pods from the store, corrected by our own recent writes, and the names of created pods that are not in
/// the store yet.
pub fn workers(
    set: &NodeSet,
    store: &Workers,
    write_cache: &WriteCache,
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
    let unconfirmed = write_cache.unconfirmed(&ChildrenOf::new(&uid, "Pod"), shown, newest, now);
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

/// Owner references for the objects that all sets of a cluster share.
async fn siblings(read: &Reader<'_>, cluster: &str) -> Result<Vec<OwnerReference>, Failure> {
    let sets = read.list::<NodeSet>(&ListParams::default()).await?;
    let alive =
        sets.iter().filter(|set| set.spec.controller_ref.name == cluster && set.meta().deletion_timestamp.is_none());
    let owner = |set: &NodeSet| {
        let reference = set.controller_owner_ref(&())?;
        Some(OwnerReference { controller: None, block_owner_deletion: Some(true), ..reference })
    };
    let mut owners: Vec<OwnerReference> = alive.filter_map(owner).collect();
    owners.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(owners)
}

async fn revisions(read: &Reader<'_>, set: &NodeSet) -> Result<Vec<Revision>, Failure> {
    let all = read.list::<ControllerRevision>(&ListParams::default()).await?;
    let uid = set.uid();
    let ours = all.into_iter().filter(|revision| {
        revision
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == uid.as_ref())
    });
    Ok(ours
        .map(|revision| Revision {
            object: ObjectVersion::of::<ControllerRevision>(&revision),
            hash: hash_of(&revision, &set.name_any()),
            number: revision.revision,
            data: revision.data.as_ref().map(|data| data.0.clone()).unwrap_or_default(),
        })
        .collect())
}

/// The revision label of its pods: the suffix of the revision's name.
fn hash_of(revision: &ControllerRevision, set: &str) -> String {
    let name = revision.name_any();
    name.strip_prefix(&format!("{set}-")).unwrap_or(&name).to_owned()
}

async fn claims(read: &Reader<'_>, set: &NodeSet) -> Result<BTreeMap<String, ClaimFacts>, Failure> {
    let selector = SLURMD.selector(&set.name_any());
    let claims = read.list::<PersistentVolumeClaim>(&labelled(&selector)).await?;
    Ok(claims
        .into_iter()
        .map(|claim| {
            let facts = ClaimFacts {
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
