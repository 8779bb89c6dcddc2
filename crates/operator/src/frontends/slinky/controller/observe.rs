//! Observes what a Controller refers to, and its child objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use engine::{
    config::{Files, NodeSetLine},
    daemons::{
        keys::KeyState,
        progress::{Progress, of_stateful_set},
        shared::{SLURMCTLD, SLURMD},
    },
    podset::{SlurmObservation, Snapshot, is_stale},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::{ResourceExt, api::ListParams};
use slurm::version::SlurmVersion;
use slurm_operator_api::{
    common::storage::StateVolume,
    slinky::{
        Accounting, Controller, VOCABULARY,
        names::{self, label},
        nodeset::NodeSetBrief,
    },
};

use super::{
    model::{config_maps, node_set_line},
    plan::{AccountingFacts, Facts, Ping, SlurmFacts},
};
use crate::{
    failure::Failure,
    frontends::slinky::cluster_key,
    kube_view::read::{Reader, Use, labelled},
    slurm_view::ClusterStatus,
    sources::Sources,
};

pub(super) async fn observe(controller: &Controller, sources: &Sources, now: Timestamp) -> Result<Facts, Failure> {
    let namespace = controller.namespace().unwrap_or_default();
    let name = controller.name_any();
    let read = Reader { client: &sources.kube.client, namespace: &namespace };
    let spec = &controller.spec;

    let (main, internal) = (names::controller(&name), names::controller_internal(&name));
    let config = names::controller_config(&name);
    let (slurm_key, jwt_key, accounting, NodeSets { lines, slurmd_versions, uids }, config_maps, claim_modes) = tokio::try_join!(
        read.key(spec.slurm_key_ref.as_ref(), Use::Slurm),
        read.key(spec.jwt_key(), Use::Signing),
        accounting(controller, &read),
        node_sets(&name, &read),
        user_files(controller, &read),
        claim_modes(controller, &read),
    )?;
    let (service, internal_service, config_map, stateful_set) =
        tokio::try_join!(read.get(&main), read.get(&internal), read.get(&config), read.get(&main),)?;
    let config_copies = config_copies(controller, &config, &read).await?;
    let all_ready = of_stateful_set(stateful_set.as_ref(), true) == Progress::Ready;
    let pods = match &stateful_set {
        Some(_) if !all_ready => read.pods(&SLURMCTLD.selector(&VOCABULARY, &name)).await?,
        _ => Vec::new(),
    };
    let lacks_key = [&slurm_key, &jwt_key].contains(&&KeyState::NoSecret);
    let has_workers = lacks_key && has_workers(&name, &read).await?;
    let cluster_status = sources.slurm.cluster_status(&cluster_key(&namespace, &name));
    Ok(Facts {
        slurm_key,
        jwt_key,
        accounting,
        node_sets: lines,
        slurmd_versions,
        node_set_uids: uids,
        config_maps,
        claim_modes,
        service,
        internal_service,
        config_map,
        config_copies,
        stateful_set,
        pods,
        has_workers,
        snapshot: recent(&cluster_status.observation, now),
        slurm: slurm(cluster_status),
    })
}

/// The last answer of Slurm, if it is recent.
fn recent(observation: &SlurmObservation, now: Timestamp) -> Option<Arc<Snapshot>> {
    let SlurmObservation::Clear(snapshot) = observation else { return None };
    let is_recent = !is_stale(now.duration_since(snapshot.read_at), snapshot.period);
    is_recent.then(|| Arc::clone(snapshot))
}

/// Whether any `NodeSet` has worker pods in this cluster.
async fn has_workers(controller: &str, read: &Reader<'_>) -> Result<bool, Failure> {
    let selector = [(label::NAME, SLURMD.program), (label::CLUSTER, controller)];
    let selector = selector.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    // One of ten thousand is enough to know.
    let pods = read.list::<Pod>(&labelled(&selector).limit(1)).await?;
    Ok(!pods.items.is_empty())
}

async fn accounting(controller: &Controller, read: &Reader<'_>) -> Result<AccountingFacts, Failure> {
    let Some(name) = controller.spec.accounting() else { return Ok(AccountingFacts::NotNamed) };
    Ok(read.get::<Accounting>(name).await?.map_or(AccountingFacts::Missing, |found| AccountingFacts::of(&found)))
}

/// What is needed of `NodeSets`.
struct NodeSets {
    /// The lines of this Controller's `NodeSets`.
    lines: Vec<NodeSetLine>,
    slurmd_versions: BTreeSet<SlurmVersion>,
    /// The UIDs of all in the namespace.
    uids: BTreeSet<String>,
}

async fn node_sets(controller: &str, read: &Reader<'_>) -> Result<NodeSets, Failure> {
    let all = read.list::<NodeSetBrief>(&ListParams::default()).await?;
    let mut ours: Vec<&NodeSetBrief> = all.iter().filter(|set| set.spec.controller_ref.name == controller).collect();
    // If two have the same name in Slurm, the older one gets it.
    ours.sort_by_key(|set| (set.creation_timestamp(), set.name_any()));
    Ok(NodeSets {
        slurmd_versions: ours.iter().filter_map(|set| SlurmVersion::from_image(set.image()?)).collect(),
        lines: ours.into_iter().map(node_set_line).collect(),
        uids: all.iter().filter_map(ResourceExt::uid).collect(),
    })
}

/// The files of every `ConfigMap` that the spec refers to.
async fn user_files(controller: &Controller, read: &Reader<'_>) -> Result<BTreeMap<String, Option<Files>>, Failure> {
    let jwks = controller.spec.jwks_key_ref.as_ref().map(|reference| reference.name.clone());
    let mut found = BTreeMap::new();
    for name in config_maps(&controller.spec).into_iter().chain(jwks) {
        let files = read.files(&name).await?;
        found.insert(name, files);
    }
    Ok(found)
}

/// The copies of the user's `ConfigMaps`, and what else has the name of one that is wanted.
async fn config_copies(controller: &Controller, config: &str, read: &Reader<'_>) -> Result<Vec<ConfigMap>, Failure> {
    let name = controller.name_any();
    let selector = labelled(&SLURMCTLD.selector(&VOCABULARY, &name));
    let mut found = read.list::<ConfigMap>(&selector).await?.items;
    let is_ours =
        |map: &ConfigMap| map.owner_references().iter().any(|owner| Some(&owner.uid) == controller.uid().as_ref());
    found.retain(|map| map.name_any() != config && is_ours(map));
    for wanted in config_maps(&controller.spec) {
        let wanted = names::controller_config_copy(&name, &wanted);
        if !found.iter().any(|map| map.name_any() == wanted) {
            found.extend(read.get::<ConfigMap>(&wanted).await?);
        }
    }
    Ok(found)
}

/// The access modes of the claim that several slurmctld share.
async fn claim_modes(controller: &Controller, read: &Reader<'_>) -> Result<Option<Vec<String>>, Failure> {
    let StateVolume::Existing(name) = controller.spec.state_volume() else { return Ok(None) };
    let claim = read.get::<PersistentVolumeClaim>(name).await?;
    Ok(claim.map(|claim| claim.spec.and_then(|spec| spec.access_modes).unwrap_or_default()))
}

/// What Slurm reports, if the operator has ever connected to it.
fn slurm(cluster_status: ClusterStatus) -> Option<SlurmFacts> {
    let reachable = match cluster_status.observation {
        SlurmObservation::NoClient { .. } => return None,
        SlurmObservation::Blind { why, .. } => Err(why),
        SlurmObservation::Clear(_) => Ok(()),
    };
    // The first slurmctld that responds is active; the others are standbys.
    let active = cluster_status.pings.iter().position(|ping| ping.responding);
    let pings = cluster_status.pings.into_iter().enumerate();
    Some(SlurmFacts {
        reachable,
        slurm_version: cluster_status.slurm_version.map(|version| version.to_string()),
        rest_version: cluster_status.rest_version,
        pings: pings
            .map(|(number, ping)| Ping {
                host: ping.hostname,
                responding: ping.responding,
                active: active == Some(number),
            })
            .collect(),
    })
}
