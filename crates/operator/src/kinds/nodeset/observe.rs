//! Gathers what a decision about a set of workers needs.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::ControllerRevision,
        core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Secret, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use slurm_operator_api::{Controller, NodeSet, conditions, names};

use super::plan::{ClaimSeen, Cluster, Live, Revision, Seen};
use crate::{
    engine::{daemons::shared::SLURMD, podset::Worker},
    machine::{Doomed, Failure, Lag, Shown, call},
    sources::Sources,
};

pub(super) async fn observe(set: &NodeSet, sources: &Sources) -> Result<Seen, Failure> {
    let (client, now) = (&sources.client, Timestamp::now());
    let namespace = set.namespace().unwrap_or_default();
    let cluster = &set.spec.controller_ref.name;
    let controller: Option<Controller> = read(client, &namespace, cluster).await?;
    // Plans that wait for jobs to end want to know when that will be.
    if set.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::PROGRESSING)) {
        sources.slurm.want_jobs(&namespace, cluster, now);
    }
    if set.spec.update_strategy().scheduled().is_some() {
        sources.slurm.want_reservations(&namespace, cluster, now);
    }
    let (siblings, revisions) =
        tokio::try_join!(siblings(client, &namespace, cluster), revisions(client, &namespace, set))?;
    let (service, budget) = (names::worker_service(cluster), names::worker_disruption_budget(cluster));
    let ssh_config = names::ssh_config(&set.name_any());
    let (service, budget, ssh_config) = tokio::try_join!(
        read::<Service>(client, &namespace, &service),
        read::<PodDisruptionBudget>(client, &namespace, &budget),
        read_if::<ConfigMap>(set.spec.ssh().is_some(), client, &namespace, &ssh_config),
    )?;
    let claims = if set.spec.volume_claim_templates.is_empty() { BTreeMap::new() } else { claims(client, set).await? };
    let sssd = match set.spec.ssh() {
        Some(ssh) => content(client, &namespace, &ssh.sssd_conf_ref.name, &ssh.sssd_conf_ref.key).await?,
        None => None,
    };
    let key = match controller.as_ref().and_then(|controller| controller.spec.slurm_key_ref.as_ref()) {
        Some(key) => content(client, &namespace, &key.name, &key.key).await?.is_some(),
        None => false,
    };
    let namespace_goes = set.meta().deletion_timestamp.is_some() && is_going(client, &namespace).await?;
    let (workers, creating) = workers(set, sources, now);
    Ok(Seen {
        cluster: controller.map(|controller| Cluster { controller, has_key: key }),
        workers,
        creating,
        nodes: sources.nodes.all(),
        slurm: sources.slurm.known(&namespace, cluster).sight,
        claims,
        revisions,
        siblings,
        live: Live { service, budget, ssh_config },
        sssd_hash: sssd.map(|content| crate::engine::config::hash([("", content.as_slice())])),
        namespace_goes,
        propagated_conditions: sources.propagated_conditions.to_vec(),
        domain: sources.domain.to_string(),
    })
}

/// The pods, as the store shows them and as we know better.
fn workers(set: &NodeSet, sources: &Sources, now: Timestamp) -> (Vec<Arc<Worker>>, Vec<String>) {
    let uid = set.uid().unwrap_or_default();
    let mut workers = sources.workers.of(&uid);
    let shown = workers.iter().map(|worker| Shown {
        name: &worker.name,
        uid: &worker.uid,
        version: &worker.resource_version,
        is_going: worker.terminating,
    });
    let lag = sources.memory.lag(&uid, shown, now);
    if lag != Lag::default() {
        for worker in &mut workers {
            let (old, going) = (lag.old.contains(&worker.name), lag.going.contains(&worker.name));
            if old || going {
                let worker = Arc::make_mut(worker);
                worker.pending |= old;
                worker.terminating |= going;
            }
        }
    }
    (workers, lag.unseen)
}

fn api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

async fn read<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Failure>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let title = || format!("{} {namespace}/{name}", K::kind(&()));
    call("reading", title, api::<K>(client, namespace).get_opt(name)).await
}

async fn read_if<K>(wanted: bool, client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Failure>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    if wanted { read(client, namespace, name).await } else { Ok(None) }
}

async fn list<K>(client: &Client, namespace: &str, params: &ListParams) -> Result<Vec<K>, Failure>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let title = || format!("{} of {namespace}", K::plural(&()));
    Ok(call("listing", title, api::<K>(client, namespace).list(params)).await?.items)
}

/// How the objects that all sets of a cluster share name their owners.
async fn siblings(client: &Client, namespace: &str, cluster: &str) -> Result<Vec<OwnerReference>, Failure> {
    let sets: Vec<NodeSet> = list(client, namespace, &ListParams::default()).await?;
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

async fn revisions(client: &Client, namespace: &str, set: &NodeSet) -> Result<Vec<Revision>, Failure> {
    let all: Vec<ControllerRevision> = list(client, namespace, &ListParams::default()).await?;
    let uid = set.uid();
    let ours = all.into_iter().filter(|revision| {
        revision
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == uid.as_ref())
    });
    Ok(ours
        .map(|revision| Revision {
            doomed: Doomed::of::<ControllerRevision>(&revision),
            hash: hash_of(&revision, &set.name_any()),
            number: revision.revision,
            data: revision.data.as_ref().map(|data| data.0.clone()).unwrap_or_default(),
        })
        .collect())
}

/// The hash that pods of a revision have in a label: the end of the revision's name.
fn hash_of(revision: &ControllerRevision, set: &str) -> String {
    let name = revision.name_any();
    name.strip_prefix(&format!("{set}-")).unwrap_or(&name).to_owned()
}

async fn claims(client: &Client, set: &NodeSet) -> Result<BTreeMap<String, ClaimSeen>, Failure> {
    let selector = SLURMD.selector(&set.name_any());
    let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let namespace = set.namespace().unwrap_or_default();
    let claims: Vec<PersistentVolumeClaim> = list(client, &namespace, &ListParams::default().labels(&labels)).await?;
    Ok(claims
        .into_iter()
        .map(|claim| {
            let seen = ClaimSeen {
                doomed: Doomed::of::<PersistentVolumeClaim>(&claim),
                owners: claim.owner_references().to_vec(),
                deleting: claim.metadata.deletion_timestamp.is_some(),
            };
            (claim.name_any(), seen)
        })
        .collect())
}

/// An entry of a Secret.
async fn content(client: &Client, namespace: &str, name: &str, entry: &str) -> Result<Option<Vec<u8>>, Failure> {
    let secret: Option<Secret> = read(client, namespace, name).await?;
    Ok(secret.and_then(|secret| secret.data?.remove(entry)).map(|bytes| bytes.0))
}

async fn is_going(client: &Client, namespace: &str) -> Result<bool, Failure> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = call("reading", || format!("Namespace {namespace}"), namespaces.get_opt(namespace)).await?;
    Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
}
