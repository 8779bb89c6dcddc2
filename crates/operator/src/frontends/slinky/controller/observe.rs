//! Observes what a Controller refers to, and its child objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use engine::{
    config::{Files, NodeSetLine},
    daemons::{
        keyring::{HasRead, KEY, KeyUser, LiveRing, SlurmKey},
        keys::KeyState,
        monitor::Monitor,
        shared::{Daemon, LOGIN, SLURMCTLD, SLURMD, SLURMDBD},
        trial::TRIAL,
    },
    gres::Demand,
    hash::hash,
    plan::{Fingerprint, ObjectVersion},
    podset::{SlurmObservation, Snapshot, is_stale, silent_pods},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource, ResourceExt, api::ListParams, core::DeserializeGuard};
use slurm::version::SlurmVersion;
use slurm_operator_api::{
    common::{
        shared::{ExternalConfig, SecretKeySelector},
        storage::StateVolume,
    },
    slinky::{
        Accounting, Controller, VOCABULARY,
        names::{self, annotation, label},
        nodeset::NodeSetBrief,
    },
};

use tokio::{net::TcpStream, time::timeout};

use super::{
    model::{config_maps, gres_demand, node_set_line},
    plan::{AccountingFacts, Facts, Ping, SlurmFacts},
    plan_accounting::has_state,
    plan_keys::{KeyFacts, RingSecret, needs_users},
    plan_trial::SlurmdTemplate,
};
use crate::{
    failure::Failure,
    frontends::slinky::{cluster_key, keys::keeps_ring},
    kube_view::read::{Reader, Use, labelled},
    slurm_view::ClusterStatus,
    sources::Sources,
};

/// How many pods are read at once. There may be ten thousand workers.
const PAGE: u32 = 500;

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
        read.entry(spec.slurm_key_ref.as_ref()),
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
    let keys = keys(controller, &slurm_key, &read).await?;
    let slurm_key = slurm_key.map_or_else(|state| state, |bytes| Use::Slurm.state(&bytes));
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
        keys,
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

/// What daemons have of Slurm's key.
async fn keys(
    controller: &Controller,
    key: &Result<Vec<u8>, KeyState>,
    read: &Reader<'_>,
) -> Result<KeyFacts, Failure> {
    let Some(reference) = controller.spec.slurm_key_ref.as_ref().filter(|_| !controller.spec.external) else {
        return Ok(KeyFacts::default());
    };
    let ring = names::key_ring(reference);
    let wanted = key.as_ref().ok().and_then(|key| SlurmKey::new(key.clone()));
    let secret = read.get::<Secret>(&ring).await?.map(|secret| RingSecret {
        seen: Fingerprint::of(&secret),
        live: LiveRing::of(&VOCABULARY, &secret),
        object: Secret { data: None, ..secret },
    });
    let controllers = read.list::<DeserializeGuard<Controller>>(&ListParams::default()).await?;
    let controllers: Vec<Controller> = controllers.into_iter().filter_map(|guard| guard.0.ok()).collect();
    let sharing: Vec<&Controller> = controllers.iter().filter(|other| keeps_ring(other, reference)).collect();
    let owner = |controller: &Controller| {
        let reference = controller.controller_owner_ref(&())?;
        Some(OwnerReference { controller: None, block_owner_deletion: None, ..reference })
    };
    let alive = sharing.iter().copied().filter(|other| other.metadata.deletion_timestamp.is_none());
    let others = alive.filter(|other| other.uid() != controller.uid()).filter_map(owner);
    let mut owners: Vec<OwnerReference> = owner(controller).into_iter().chain(others).collect();
    owners.sort_by(|a, b| a.uid.cmp(&b.uid));
    let live = secret.as_ref().and_then(|secret| secret.live.as_ref());
    let (mut users, mut obstacle, mut users_secret) = (None, None, None);
    if live.is_none() {
        let secret = read.get::<Secret>(&reference.name).await?.and_then(|secret| secret.data);
        users_secret = secret.map(|data| hash(data.iter().map(|(entry, bytes)| (entry.as_str(), &bytes.0[..]))));
    }
    if needs_users(live, wanted.as_ref()) {
        let clusters: BTreeSet<String> = sharing.iter().map(|other| other.name_any()).collect();
        users = Some(key_users(reference, &ring, &clusters, read).await?);
        obstacle = accounting_obstacle(reference, &controllers, read).await?;
    }
    Ok(KeyFacts { wanted, users_secret, secret, owners, users, obstacle })
}

/// The pods with a daemon that has the key.
async fn key_users(
    reference: &SecretKeySelector,
    ring: &str,
    clusters: &BTreeSet<String>,
    read: &Reader<'_>,
) -> Result<Vec<KeyUser>, Failure> {
    let daemons = [SLURMCTLD, SLURMDBD, SLURMD, LOGIN];
    let programs = daemons.map(|daemon| daemon.program).join(",");
    let mut page = ListParams::default().labels(&format!("{} in ({programs})", label::NAME)).limit(PAGE);
    let user = |pod: &Pod| {
        let of = |key: &str| pod.labels().get(key).map(String::as_str);
        let daemon = daemons.into_iter().find(|daemon| of(label::NAME) == Some(daemon.program))?;
        let note = |key: &str| pod.annotations().get(key).cloned();
        let is_in_cluster = daemon == SLURMD && of(label::CLUSTER).is_some_and(|cluster| clusters.contains(cluster));
        let has_read = if note(annotation::KEY_RING).as_deref() == Some(ring) {
            note(annotation::KEY_RING_READ).map_or(HasRead::First, HasRead::Ring)
        } else if is_in_cluster || mounts(pod, &reference.name) {
            HasRead::UsersSecret
        } else {
            return None;
        };
        // One that does not run reads the ring when it starts.
        let asked = note(annotation::KEY_RING_ASKED);
        is_running(pod, daemon).then(|| KeyUser { pod: ObjectVersion::of::<Pod>(pod), daemon, has_read, asked })
    };
    let mut users = Vec::new();
    loop {
        let pods = read.list::<Pod>(&page).await?;
        users.extend(pods.iter().filter_map(user));
        page.continue_token = pods.metadata.continue_.filter(|token| !token.is_empty());
        if page.continue_token.is_none() {
            return Ok(users);
        }
    }
}

fn is_running(pod: &Pod, daemon: Daemon) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    containers.into_iter().flatten().any(|container| {
        container.name == daemon.program && container.state.as_ref().is_some_and(|state| state.running.is_some())
    })
}

/// Whether a pod mounts a Secret.
fn mounts(pod: &Pod, secret: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.filter_map(|volume| volume.projected.as_ref()?.sources.as_ref()).flatten();
    let names = sources.filter_map(|source| source.secret.as_ref());
    names.into_iter().any(|source| source.name == secret && source.items.iter().flatten().any(|item| item.path == KEY))
}

/// slurmdbd must have every key of the clusters that it works for.
async fn accounting_obstacle(
    reference: &SecretKeySelector,
    controllers: &[Controller],
    read: &Reader<'_>,
) -> Result<Option<String>, Failure> {
    let accountings = read.list::<DeserializeGuard<Accounting>>(&ListParams::default()).await?;
    for accounting in accountings.iter().filter_map(|guard| guard.0.as_ref().ok()) {
        let name = accounting.name_any();
        let users = controllers.iter().filter(|other| other.spec.accounting() == Some(&name));
        let (with, without): (Vec<_>, Vec<_>) = users.partition(|other| keeps_ring(other, reference));
        let own = accounting.spec.slurm_key_ref.as_ref();
        let has_same = own.is_some_and(|own| (&own.name, &own.key) == (&reference.name, &reference.key));
        let is_concerned = !with.is_empty() || (has_same && !accounting.spec.external);
        if !is_concerned {
            continue;
        }
        if accounting.spec.external {
            return Ok(Some(format!(
                "slurmdbd of the Accounting {name} is external, and the operator cannot give it the new key"
            )));
        }
        if !has_same || !without.is_empty() {
            return Ok(Some(format!(
                "the Accounting {name} and the Controllers that use it read their key from different Secrets: let slurmKeyRef of all of                  them name the same one"
            )));
        }
    }
    Ok(None)
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
        qos: cluster_status.qos,
        pings: pings
            .map(|(number, ping)| Ping {
                host: ping.hostname,
                responding: ping.responding,
                active: active == Some(number),
            })
            .collect(),
    })
}
