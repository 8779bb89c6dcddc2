//! Observes what a Controller refers to, and its child objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use engine::{
    config::{Files, NodeSetLine},
    daemons::{
        keys::KeyState,
        monitor::Monitor,
        shared::{SLURMCTLD, SLURMD},
        trial::TRIAL,
    },
    gres::Demand,
    podset::{SlurmObservation, Snapshot, is_stale, silent_pods},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod},
};
use kube::{ResourceExt, api::ListParams};
use slurm::version::SlurmVersion;
use slurm_operator_api::{
    common::{shared::ExternalConfig, storage::StateVolume},
    slinky::{
        Accounting, Controller, VOCABULARY,
        names::{self, label},
        nodeset::NodeSetBrief,
    },
};

use tokio::{net::TcpStream, time::timeout};

use super::{
    model::{config_maps, gres_demand, node_set_line},
    plan::{AccountingFacts, Facts, Ping, SlurmFacts},
    plan_accounting::has_state,
    plan_trial::SlurmdTemplate,
};
use crate::{
    failure::Failure,
    frontends::slinky::cluster_key,
    kube_view::read::{Reader, Use, labelled},
    slurm_view::ClusterStatus,
    sources::Sources,
};

/// How long to wait for an external slurmdbd.
const CONNECT: Duration = Duration::from_secs(2);

pub(super) async fn observe(controller: &Controller, sources: &Sources, now: Timestamp) -> Result<Facts, Failure> {
    let namespace = controller.namespace().unwrap_or_default();
    let name = controller.name_any();
    let read = Reader { client: &sources.kube.client, namespace: &namespace };
    let spec = &controller.spec;

    let (main, internal) = (names::controller(&name), names::controller_internal(&name));
    let config = names::controller_config(&name);
    let (slurm_key, jwt_key, node_sets, config_maps, claim) = tokio::try_join!(
        read.key(spec.slurm_key_ref.as_ref(), Use::Slurm),
        read.key(spec.jwt_key(), Use::Signing),
        node_sets(&name, &read),
        user_files(controller, &read),
        claim(controller, &read),
    )?;
    let (service, internal_service, config_map, stateful_set, monitor) = tokio::try_join!(
        read.get(&main),
        read.get(&internal),
        read.get(&config),
        read.get(&main),
        read.optional(&main),
    )?;
    let stateful_set: Option<StatefulSet> = stateful_set;
    let has_claim = claim.is_some() && matches!(spec.state_volume(), StateVolume::Claim(_));
    let has_state = has_state(controller, stateful_set.as_ref(), config_map.as_ref(), has_claim);
    let accounting = accounting(controller, !has_state && !spec.external, &read).await?;
    let config_copies = config_copies(controller, &config, &read).await?;
    let pods = match &stateful_set {
        Some(_) => read.pods(&SLURMCTLD.selector(&VOCABULARY, &name)).await?,
        None => Vec::new(),
    };
    let trials = TRIAL.selector(&VOCABULARY, &name);
    let (mut slurmd, mut trial_pods) = (Vec::new(), Vec::new());
    if stateful_set.is_some() {
        sources.kube.workers.ready().await;
        let runs = |uid: &str| sources.kube.workers.of(uid).iter().any(|worker| worker.is_healthy());
        slurmd.extend(node_sets.slurmd.into_iter().filter(|(uid, _)| runs(uid)).map(|(_, slurmd)| slurmd));
        trial_pods = read.pods(&trials).await?;
    }
    let trial_config_maps = match trial_pods.first() {
        Some(_) => read.list::<ConfigMap>(&labelled(&trials)).await?.items,
        None => Vec::new(),
    };
    let lacks_key = [&slurm_key, &jwt_key].contains(&&KeyState::NoSecret);
    let has_workers = lacks_key && has_workers(&name, &read).await?;
    let cluster_status = sources.slurm.cluster_status(&cluster_key(&namespace, &name));
    let snapshot = recent(&cluster_status.observation, now);
    let silent = snapshot.as_ref().map(|snapshot| silent_pods(&VOCABULARY, &namespace, &node_sets.uids, snapshot));
    let mut silent_pods = silent.unwrap_or_default();
    if !silent_pods.is_empty() {
        sources.kube.workers.ready().await;
        silent_pods.retain(|pod| sources.kube.workers.has(&namespace, pod));
    }
    Ok(Facts {
        slurm_key,
        jwt_key,
        accounting,
        node_sets: node_sets.lines,
        node_names: node_sets.names,
        slurmd_versions: node_sets.slurmd_versions,
        slurmd,
        gres: node_sets.gres,
        node_set_uids: node_sets.uids,
        config_maps,
        claim,
        service,
        internal_service,
        config_map,
        config_copies,
        stateful_set,
        monitor: match monitor {
            None => Monitor::NotInstalled,
            Some(None) => Monitor::Missing,
            Some(Some(live)) => Monitor::Live(Box::new(live)),
        },
        pods,
        trial_pods,
        trial_config_maps,
        has_claim,
        has_workers,
        snapshot,
        silent_pods,
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

/// The Accounting, and before the first start with it whether its slurmdbd answers.
async fn accounting(controller: &Controller, is_first: bool, read: &Reader<'_>) -> Result<AccountingFacts, Failure> {
    let Some(name) = controller.spec.accounting() else { return Ok(AccountingFacts::NotNamed) };
    let Some(found) = read.get::<Accounting>(name).await? else { return Ok(AccountingFacts::Missing) };
    let facts = AccountingFacts::of(&found);
    if !is_first {
        return Ok(facts);
    }
    Ok(match facts {
        AccountingFacts::Here { service_port, .. } => {
            let slurmdbd = read.get::<StatefulSet>(&names::accounting(name)).await?;
            let ready = slurmdbd.and_then(|slurmdbd| slurmdbd.status?.ready_replicas).unwrap_or(0);
            AccountingFacts::Here { service_port, answers: ready > 0 }
        }
        AccountingFacts::Elsewhere { place, .. } => {
            let unreachable = unreachable(&place).await;
            AccountingFacts::Elsewhere { place, unreachable }
        }
        other => other,
    })
}

/// Why an external slurmdbd cannot be reached from here.
async fn unreachable(place: &ExternalConfig) -> Option<String> {
    let Ok(port) = u16::try_from(place.port) else { return None };
    match timeout(CONNECT, TcpStream::connect((place.host.as_str(), port))).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no response within {} s", CONNECT.as_secs())),
    }
}

/// The `NodeSets` of a Controller, and the UIDs of all in the namespace.
struct NodeSets {
    lines: Vec<NodeSetLine>,
    names: BTreeMap<String, (String, u32)>,
    slurmd_versions: BTreeSet<SlurmVersion>,
    /// slurmd, and the UID of the set.
    slurmd: Vec<(String, SlurmdTemplate)>,
    gres: Demand,
    uids: BTreeSet<String>,
}

async fn node_sets(controller: &str, read: &Reader<'_>) -> Result<NodeSets, Failure> {
    let all = read.list::<NodeSetBrief>(&ListParams::default()).await?;
    let mut ours: Vec<&NodeSetBrief> = all.iter().filter(|set| set.spec.controller_ref.name == controller).collect();
    // If two have the same name in Slurm, the older one gets it.
    ours.sort_by_key(|set| (set.creation_timestamp(), set.name_any()));
    let names = ours.iter().filter_map(|set| Some((node_set_line(set).origin, set.node_names()?)));
    Ok(NodeSets {
        names: names.collect(),
        slurmd_versions: ours.iter().filter_map(|set| SlurmVersion::from_image(set.image()?)).collect(),
        slurmd: ours.iter().map(|set| (set.uid().unwrap_or_default(), slurmd(set))).collect(),
        gres: gres_demand(ours.iter().copied()),
        lines: ours.iter().copied().map(node_set_line).collect(),
        uids: all.iter().filter_map(ResourceExt::uid).collect(),
    })
}

fn slurmd(node_set: &NodeSetBrief) -> SlurmdTemplate {
    SlurmdTemplate { container: node_set.spec.slurmd.clone(), template: node_set.spec.template.clone() }
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

/// The claim with the state of slurmctld.
async fn claim(controller: &Controller, read: &Reader<'_>) -> Result<Option<PersistentVolumeClaim>, Failure> {
    match controller.spec.state_volume() {
        StateVolume::Scratch => Ok(None),
        StateVolume::Existing(name) => read.get(name).await,
        StateVolume::Claim(_) => read.get(&names::controller_claim(&controller.name_any())).await,
    }
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
        accounting: cluster_status.accounting,
        pings: pings
            .map(|(number, ping)| Ping {
                host: ping.hostname,
                responding: ping.responding,
                active: active == Some(number),
            })
            .collect(),
    })
}
