//! Plans a Controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use engine::{
    component::Component,
    config::{Files, NodeSetLine, external_slurm_conf},
    daemons::{
        claim_templates, failback,
        keys::KeyState,
        monitor::{self, Monitor},
        pods::{PodProblem, is_outdated, pod_problem},
        progress::{Problem, Progress, insecure, of_stateful_set},
        shared::{Parent, SLURMCTLD, StringMap, is_applied, taken, unless_former},
        slurmctld,
    },
    gres::Demand,
    plan::{Desired, GeneratedSecret, Needs, Next, Plan, SecretContent, ServiceState, SlurmCall, SlurmWrite, Step},
    podset::{DEFAULT_BURST, Snapshot, orphans},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service},
};
use kube::{ResourceExt, api::ObjectMeta};
use slurm::version::{Feature, SlurmVersion};
use slurm_operator_api::{
    common::{
        conditions::reason,
        shared::{ExternalConfig, Metadata, SecretKeySelector},
        storage::StateVolume,
    },
    slinky::{
        Accounting, Controller, ControllerStatus, VOCABULARY, controller,
        names::{annotation, label},
    },
};

use super::{
    change::Change,
    model, plan_accounting,
    plan_conditions::{
        active, believe_active, believe_slurm, configuration_valid, insecurities, reachable, status, warning,
    },
    plan_files::{OwnFiles, own_files},
    plan_keys::{KeyFacts, Keys},
    plan_reread::{self, Version},
    plan_trial::{SlurmdTemplate, Trial},
    validate::validate,
};
use crate::frontends::slinky::cluster_key;

/// How often to look at Slurm while something depends on its jobs.
const RECHECK: Duration = Duration::from_secs(5);

/// How often to look whether slurmdbd answers, before the first start.
const RECHECK_ACCOUNTING: Duration = Duration::from_secs(5);

/// How often to look whether `ServiceMonitors` can be created.
const RECHECK_MONITOR: Duration = Duration::from_mins(1);

/// How often to look whether the workers of a `NodeSet` that is gone have ended.
const RECHECK_ORPHANS: Duration = Duration::from_secs(20);

/// The longest name whose `StatefulSet` can create pods: they have a label with its name and a hash.
const MAX_NAME: usize = 41;

/// What is observed for a Controller.
#[derive(Debug)]
pub struct Facts {
    /// The key of auth/slurm.
    pub slurm_key: KeyState,
    /// What daemons have of the key of auth/slurm.
    pub keys: KeyFacts,
    /// The key that signs JSON web tokens.
    pub jwt_key: KeyState,
    pub accounting: AccountingFacts,
    /// The `NodeSets` of this Controller, the oldest first.
    pub node_sets: Vec<NodeSetLine>,
    /// The prefix and the number of the Slurm node names of `NodeSets` with ordinals, by the origin of their line.
    pub node_names: BTreeMap<String, (String, u32)>,
    /// The releases of slurmd in these `NodeSets`, as far as their image tags say.
    pub slurmd_versions: BTreeSet<SlurmVersion>,
    /// slurmd of those of these `NodeSets` that have workers that run.
    pub slurmd: Vec<SlurmdTemplate>,
    /// What the workers of these `NodeSets` hold.
    pub gres: Demand,
    /// The UIDs of all `NodeSets` of the namespace.
    pub node_set_uids: BTreeSet<String>,
    /// The `ConfigMaps` that the spec refers to; `None` if one is missing.
    pub config_maps: BTreeMap<String, Option<Files>>,
    /// The claim with the state of slurmctld.
    pub claim: Option<PersistentVolumeClaim>,
    /// The Service.
    pub service: Option<Service>,
    /// The headless Service.
    pub internal_service: Option<Service>,
    /// The `ConfigMap` with the generated configuration.
    pub config_map: Option<ConfigMap>,
    /// The copies of the user's `ConfigMaps`, and other `ConfigMaps` with the names of such copies.
    pub config_copies: Vec<ConfigMap>,
    /// slurmctld.
    pub stateful_set: Option<StatefulSet>,
    pub monitor: Monitor,
    /// The slurmctld pods.
    pub pods: Vec<Pod>,
    /// Trials of configurations.
    pub trial_pods: Vec<Pod>,
    /// The files of these trials.
    pub trial_config_maps: Vec<ConfigMap>,
    /// Whether slurmctld has run before, as far as its claim shows. Only looked up while there is no slurmctld.
    pub has_claim: bool,
    /// Whether there are workers that run with the cluster's key. Only looked up while a key is missing.
    pub has_workers: bool,
    /// What Slurm reports, if the operator has ever connected to it.
    pub slurm: Option<SlurmFacts>,
    /// The last answer of Slurm, if it is recent.
    pub snapshot: Option<Arc<Snapshot>>,
    /// The pods of `NodeSets` that are gone whose slurmd does not respond.
    pub silent_pods: BTreeSet<String>,
}

/// The Accounting that the spec refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountingFacts {
    /// The spec refers to none.
    NotNamed,
    /// It does not exist.
    Missing,
    /// It is managed by the operator.
    Here {
        /// The port of its Service.
        service_port: i32,
        /// Whether its slurmdbd answers. Only looked up before the first start of slurmctld.
        answers: bool,
    },
    /// It runs outside of the operator.
    Elsewhere {
        place: ExternalConfig,
        /// Why it cannot be reached. Only looked up before the first start of slurmctld.
        unreachable: Option<String>,
    },
}

impl AccountingFacts {
    /// What a Controller needs to know of an Accounting whose slurmdbd answers.
    pub fn of(accounting: &Accounting) -> Self {
        let here = || Self::Here { service_port: accounting.spec.service_port(), answers: true };
        let elsewhere = |place| Self::Elsewhere { place, unreachable: None };
        accounting.spec.elsewhere().cloned().map_or_else(here, elsewhere)
    }
}

/// What Slurm reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmFacts {
    /// Whether it is reachable; if not, why.
    pub reachable: Result<(), String>,
    /// The running Slurm version.
    pub slurm_version: Option<String>,
    /// The REST API version in use.
    pub rest_version: Option<String>,
    /// Each slurmctld, in the order of slurm.conf.
    pub pings: Vec<Ping>,
    /// What slurmdbd answered last, if it was asked: for each of its clusters, the address of a connected slurmctld.
    pub accounting: Option<Result<BTreeMap<String, Option<String>>, String>>,
    /// The QOS of slurmdbd, if it answered last.
    pub qos: Option<Arc<BTreeSet<String>>>,
}

/// The ping result of one slurmctld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The host, as in slurm.conf.
    pub host: String,
    pub responding: bool,
    /// Whether it is the one in charge.
    pub active: bool,
}

pub(super) fn plan(controller: &Controller, facts: &Facts, now: Timestamp) -> Plan<ControllerStatus> {
    let parent = Parent::of(controller, &VOCABULARY);
    let mut needs_jobs = false;
    let wait = plan_accounting::waits_for(controller, facts, now);
    let (mut validity, mut written) = (None, None);
    let keys = Keys::of(controller, facts, now);
    let component = match controller.spec.elsewhere() {
        Some(elsewhere) => external(controller, elsewhere, facts, &parent),
        None if controller.spec.external => {
            let mut component = Component::new(&parent, SLURMCTLD, of_stateful_set(None, false));
            if let Some(problem) = Problem::of_fields(&validate(controller)) {
                component.problem(problem);
            }
            component
        }
        None => {
            let files = own_files(controller, facts);
            let trial = files.as_ref().ok().map(|files| Trial::of(controller, facts, &parent, files, now));
            validity = Some(configuration_valid(&files, trial.as_ref()));
            written = files.as_ref().ok().map(|files| files.hash.clone());
            let files = files.and_then(|files| Ok((files, trial.ok_or_else(|| Problem::invalid(""))?)));
            let wanted = Wanted { wait: wait.as_deref(), files, keys: &keys };
            managed(controller, facts, &parent, wanted, &mut needs_jobs, now)
        }
    };
    let pod_problems: Vec<PodProblem> = facts.pods.iter().filter_map(|pod| pod_problem(pod, now)).collect();
    let mut plan = component.finish(&pod_problems, status(controller, facts.slurm.as_ref(), now));
    plan.conditions.push(reachable(controller, facts.slurm.as_ref()));
    if let Some(validity) = validity {
        plan.events.extend(warning(&validity));
        plan.conditions.push(validity);
    }
    plan.conditions.extend(plan_accounting::registered(controller, facts, wait.as_deref()));
    let warnings = insecurities(controller, facts);
    plan.events.extend(warnings.iter().map(Problem::event));
    plan.conditions.extend(insecure(&warnings));
    needs_jobs |= keys.needs_jobs;
    keys.add_to(&mut plan);
    if let Some(snapshot) = &facts.snapshot {
        // Workers of another Kubernetes cluster may be in an external Slurm cluster.
        let silent = (!controller.spec.external).then_some((&facts.silent_pods, now));
        let orphans = orphans(&VOCABULARY, &parent.namespace, &facts.node_set_uids, snapshot, silent);
        needs_jobs |= orphans.needs_jobs;
        if orphans.is_waiting && plan.next == Next::OnChange {
            plan.next = Next::After(RECHECK_ORPHANS);
        }
        if let (Some(until), Next::OnChange) = (orphans.silent_until, plan.next) {
            plan.next = Next::After(until.duration_since(now).try_into().unwrap_or(RECHECK_ORPHANS));
        }
        plan.stages.extend(forget(&parent, orphans.removable));
    }
    // Jobs decide what may be removed or restarted. A Controller is not triggered by them.
    if needs_jobs {
        let cluster = cluster_key(&parent.namespace, &parent.name);
        plan.needs = Some(Needs { cluster, jobs: true, reservations: false });
        if !matches!(plan.next, Next::After(delay) if delay < RECHECK) {
            plan.next = Next::After(RECHECK);
        }
    }
    if controller.spec.external {
        believe_slurm(&mut plan.conditions, facts.slurm.as_ref());
    } else {
        let active = active(facts.slurm.as_ref());
        believe_active(&mut plan.conditions, facts, active);
        let pods = owned_pods(facts);
        let mut steps = slurmctld::label_active(&VOCABULARY, &pods, active);
        // Not in one pass with the labels: both need the observed version of a pod.
        if steps.is_empty() && controller.spec.replicas() > 1 {
            steps = failback::steps(&pods, active, now);
        }
        // With the first stage: a Service must follow the active slurmctld even if something else cannot be written.
        match plan.stages.first_mut() {
            Some(stage) => stage.extend(steps),
            None if steps.is_empty() => {}
            None => plan.stages.push(steps),
        }
        plan_reread::add(&mut plan, controller, facts, written.as_deref(), now);
    }
    plan
}

/// The pods of the `StatefulSet` that stay.
pub(super) fn owned_pods(facts: &Facts) -> Vec<Pod> {
    let Some(live) = &facts.stateful_set else { return Vec::new() };
    let is_owned =
        |pod: &Pod| pod.owner_references().iter().any(|owner| Some(&owner.uid) == live.metadata.uid.as_ref());
    // The plan deletes outdated ones as they were observed.
    let stays = |pod: &Pod| pod.metadata.deletion_timestamp.is_none() && !is_outdated(pod, live);
    facts.pods.iter().filter(|pod| is_owned(pod) && stays(pod)).cloned().collect()
}

/// Deletes the Slurm nodes of workers whose `NodeSet` is gone, and with it the plan that would.
fn forget(parent: &Parent, nodes: BTreeMap<String, ServiceState>) -> Option<Vec<Step>> {
    let step = |(node, state)| {
        let cluster = cluster_key(&parent.namespace, &parent.name);
        Step::Slurm(Box::new(SlurmWrite { cluster, call: SlurmCall::Forget { node, state } }))
    };
    (!nodes.is_empty()).then(|| nodes.into_iter().take(DEFAULT_BURST).map(step).collect())
}

/// slurmctld is external: only write the configuration for clients that cannot fetch it from slurmctld, and remove
/// what was created before spec.external was set. A cluster must not have two independent slurmctld.
fn external<'a>(
    controller: &Controller,
    elsewhere: &ExternalConfig,
    facts: &Facts,
    parent: &'a Parent,
) -> Component<'a> {
    let mut component = Component::new(parent, SLURMCTLD, Progress::Ready);
    let Some(()) = component.check(taken(facts.config_map.as_ref(), parent)) else { return component };
    let text = model::cluster_elsewhere(controller, elsewhere, facts)
        .and_then(|cluster| external_slurm_conf(&cluster).map_err(Problem::invalid));
    if let Some(text) = component.check(text) {
        let files = StringMap::from([("slurm.conf".to_owned(), text)]);
        component.apply(slurmctld::config_map(parent, &files, &StringMap::new()).seeing(facts.config_map.as_ref()));
    }
    component.remove_orphans(&facts.stateful_set);
    component.remove_orphans(&facts.config_copies);
    component.remove_orphans(facts.monitor.live());
    if controller.spec.service_monitor().is_some() {
        let message = "spec.metrics.serviceMonitor: an external slurmctld has no Service here that could be scraped: set enabled to false";
        component.problem(Problem::new("NoServiceMonitors", message));
    }
    component.remove_orphans([&facts.service, &facts.internal_service].into_iter().flatten());
    component
}

/// What slurmctld should run with.
struct Wanted<'a> {
    /// Why it must not be started or changed yet.
    wait: Option<&'a str>,
    files: Result<(OwnFiles, Trial), Problem>,
    keys: &'a Keys,
}

/// slurmctld is run by the operator.
fn managed<'a>(
    controller: &Controller,
    facts: &Facts,
    parent: &'a Parent,
    Wanted { wait, files, keys }: Wanted<'_>,
    needs_jobs: &mut bool,
    now: Timestamp,
) -> Component<'a> {
    let mut component = Component::new(parent, SLURMCTLD, of_stateful_set(facts.stateful_set.as_ref(), true));
    let taken = taken(facts.service.as_ref(), parent)
        .and_then(|()| taken(facts.internal_service.as_ref(), parent))
        .and_then(|()| taken(facts.config_map.as_ref(), parent))
        .and_then(|()| facts.config_copies.iter().try_for_each(|copy| taken(Some(copy), parent)))
        .and_then(|()| taken(facts.stateful_set.as_ref(), parent));
    let Some(()) = component.check(taken) else { return component };
    // Even if there are other problems: the other daemons need it.
    if let Some(secret) = &keys.secret {
        component.apply_first(secret.clone());
    }
    // CRDs of earlier releases allow such a name. By chance, one that is a little too long may work.
    if parent.name.len() > MAX_NAME && facts.stateful_set.as_ref().is_none_or(|live| !is_ready(live)) {
        let message = format!(
            "metadata.name: the StatefulSet of slurmctld cannot create pods, because the name has more than {MAX_NAME} characters: \
             create a Controller with a shorter one"
        );
        component.problem(Problem::invalid(message));
    }
    // Create the Services even if there are other problems, so that clients can already resolve slurmctld.
    component.apply(slurmctld::internal_service(parent).seeing(facts.internal_service.as_ref()));
    let service = slurmctld::main_service(parent, &controller.spec.service, controller.spec.replicas());
    let service = service.map_err(Problem::invalid);
    if let Some(service) = component.check(service) {
        component.apply(service.seeing(facts.service.as_ref()));
    }
    monitor(controller, facts, parent, &mut component);
    if wait.is_some() && facts.stateful_set.is_some() {
        // slurmctld runs without slurmdbd so far, and stays as it is until slurmdbd answers.
        component.recheck_after(RECHECK_ACCOUNTING);
        return component;
    }
    for secret in missing_keys(controller, facts) {
        component.generate(secret);
    }
    let Some((files, mut trial)) = component.check(files) else { return component };
    *needs_jobs |= files.needs_jobs;
    let version = Version::of(controller, facts, &files, trial.is_proven(), now);
    for problem in files.refused.into_iter().chain(files.problems) {
        component.problem(problem);
    }
    let mut annotations = hash_annotation(&files.hash_of_slurmd_files);
    annotations.extend(version.annotations);
    annotations.extend(trial.annotation());
    let config_map = slurmctld::config_map(parent, &files.files, &annotations);
    let config_map = config_map.seeing(facts.config_map.as_ref());
    if component.generates() {
        component.apply(config_map);
        // The Secret triggers the next reconcile, when its hash is known. A running slurmctld is left as it is.
        component.wait("its keys are being generated".to_owned());
        component.recheck_after(Duration::from_secs(2));
        return component;
    }
    if let Some(problem) = &keys.problem {
        component.problem(model::or_generate(problem.clone(), &facts.slurm_key, &controller.spec, facts));
    }
    trial.add_to(&mut component);
    let is_allowed = component.check(trial.allows()).unwrap_or_default();
    let wanted = is_allowed.then(|| {
        keys.blocked.clone().map_or(Ok(()), Err)?;
        let slurmctld = model::slurmctld(controller, facts, parent, &version.started_with, keys.ring.as_ref())?;
        let wanted = slurmctld::stateful_set(&slurmctld).map_err(Problem::invalid)?;
        let former = model::slurmctld(controller, facts, parent, &version.started_with, None);
        let former = former.ok().and_then(|former| slurmctld::stateful_set(&former).ok());
        let wanted = unless_former(&VOCABULARY, facts.stateful_set.as_ref(), former, wanted);
        let change =
            Change { controller, facts, wanted: &wanted, slurmd_files: &files.hash_of_slurmd_files, trial: &trial };
        change.check(needs_jobs)?;
        Ok(wanted)
    });
    // Files and pods change together or not at all: a slurmctld that restarts for another reason must find what it had.
    if let Some(wanted) = wanted.and_then(|wanted| component.check(wanted)) {
        component.apply(config_map);
        // Before the ConfigMap, whose hash says that the files are in use.
        for copy in config_copies(controller, facts, parent) {
            component.apply_first(copy);
        }
        if let Some(wait) = wait {
            component.wait(wait.to_owned());
            component.recheck_after(RECHECK_ACCOUNTING);
            return component;
        }
        let is_applied = facts.stateful_set.as_ref().is_some_and(|live| is_applied(&VOCABULARY, live, &wanted));
        component.stateful_set(wanted, facts.stateful_set.as_ref(), &facts.pods);
        if let Some(step) = grow_claim(controller, facts) {
            component.change(step);
        }
        // No new pod mounts the others.
        if is_applied {
            component.remove_orphans(&facts.config_copies);
        }
    } else {
        // slurmrestd may wait for new ones.
        let is_new = |copy: &Desired| copy.seen.is_none() && !is_mounted(facts.stateful_set.as_ref(), copy);
        for copy in config_copies(controller, facts, parent).into_iter().filter(is_new) {
            component.apply_first(copy);
        }
        if facts.stateful_set.is_none() {
            component.apply(config_map);
        }
    }
    component
}

/// Has slurmctld scraped by the Prometheus operator, if the user wants that.
fn monitor(controller: &Controller, facts: &Facts, parent: &Parent, component: &mut Component<'_>) {
    let _ = component.check(metrics(controller));
    let Some(wanted) = controller.spec.service_monitor() else {
        component.remove_orphans(facts.monitor.live());
        return;
    };
    if matches!(facts.monitor, Monitor::NotInstalled) {
        let message = "spec.metrics.serviceMonitor: the CRDs of the Prometheus operator are not installed, or the operator may not \
                       create ServiceMonitors: install them, or set enabled to false";
        component.problem(Problem::new("NoServiceMonitors", message));
        component.recheck_after(RECHECK_MONITOR);
        return;
    }
    let Some(()) = component.check(taken(facts.monitor.live(), parent)) else { return };
    let endpoint = |endpoint: controller::Endpoint| monitor::Endpoint {
        path: endpoint.path,
        interval: endpoint.interval,
        timeout: endpoint.scrape_timeout,
    };
    let endpoints: Vec<monitor::Endpoint> = wanted.endpoints().into_iter().map(endpoint).collect();
    let metadata = Metadata { labels: wanted.labels.clone(), annotations: wanted.annotations.clone() };
    component.apply(monitor::service_monitor(parent, &metadata, &endpoints).seeing(facts.monitor.live()));
}

/// Grows the claim that was made for slurmctld. A claim of the user's is left alone.
fn grow_claim(controller: &Controller, facts: &Facts) -> Option<Step> {
    let StateVolume::Claim(wanted) = controller.spec.state_volume() else { return None };
    claim_templates::grow(&wanted, facts.claim.as_ref()?)
}

fn is_ready(live: &StatefulSet) -> bool {
    live.status.as_ref().is_some_and(|status| status.ready_replicas.unwrap_or(0) > 0)
}

/// The copies of the user's files.
fn config_copies(controller: &Controller, facts: &Facts, parent: &Parent) -> Vec<Desired> {
    let copy = |name: &String| {
        let files = facts.config_maps.get(name)?.as_ref()?;
        let copy = slurmctld::config_copy(parent, name, files);
        let live = facts.config_copies.iter().find(|live| Some(live.name_any()) == copy.object.metadata.name);
        Some(copy.seeing(live))
    };
    model::config_maps(&controller.spec).iter().filter_map(copy).collect()
}

/// Whether slurmctld mounts this `ConfigMap`, even if it does not exist: somebody may have deleted it.
fn is_mounted(live: Option<&StatefulSet>, copy: &Desired) -> bool {
    let volumes = live.and_then(|live| live.spec.as_ref()?.template.spec.as_ref()?.volumes.as_ref());
    let sources = volumes.into_iter().flatten().filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
    let mut names = sources.flatten().filter_map(|source| Some(&source.config_map.as_ref()?.name));
    names.any(|name| Some(name) == copy.object.metadata.name.as_ref())
}

/// Records which files of slurmd are in use.
fn hash_annotation(hash: &str) -> StringMap {
    StringMap::from([(annotation::hash::SLURMD_FILES.to_owned(), hash.to_owned())])
}

/// The Secrets to generate: the missing keys of a new cluster, if requested.
fn missing_keys(controller: &Controller, facts: &Facts) -> Vec<GeneratedSecret> {
    let spec = &controller.spec;
    if !spec.generate_keys || model::has_run(facts) {
        return Vec::new();
    }
    let annotations = spec.key_annotations.clone().unwrap_or_default();
    let keys = [
        (spec.slurm_key_ref.as_ref(), &facts.slurm_key, annotations.slurm_key),
        (spec.jwt_key(), &facts.jwt_key, annotations.jwt_key),
    ];
    let mut missing: BTreeMap<&str, (Vec<String>, StringMap)> = BTreeMap::new();
    for (reference, key, annotations) in keys {
        let Some(SecretKeySelector { name, key: entry, .. }) = reference else { continue };
        if *key == KeyState::NoSecret {
            let (entries, all) = missing.entry(name).or_default();
            if !entries.contains(entry) {
                entries.push(entry.clone());
            }
            all.extend(annotations);
        }
    }
    let generated = |(name, (entries, annotations)): (&str, (Vec<String>, StringMap))| GeneratedSecret {
        secret: Desired::of(&key_secret(controller, name, annotations)),
        entry: String::new(),
        content: SecretContent::Keys { entries },
        manager: None,
    };
    missing.into_iter().map(generated).collect()
}

/// Whether the Slurm version has the requested metrics.
fn metrics(controller: &Controller) -> Result<(), Problem> {
    let version = model::version(controller).filter(|version| !version.supports(Feature::Metrics));
    match version.filter(|_| controller.spec.metrics_enabled()) {
        None => Ok(()),
        Some(version) => Err(Problem::new(
            reason::SLURM_TOO_OLD,
            format!(
                "Slurm {version} does not support metrics (25.11 or later does): set spec.metrics.enabled to false"
            ),
        )),
    }
}

/// Has no owner: workers and users depend on these keys even if the Controller is deleted.
fn key_secret(controller: &Controller, name: &str, annotations: StringMap) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: controller.namespace(),
            labels: Some(StringMap::from([(label::MANAGED_BY.to_owned(), "slurm-operator".to_owned())])),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}
