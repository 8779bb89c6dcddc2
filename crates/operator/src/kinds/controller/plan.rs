//! What to do for a Controller.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Pod, Secret, Service},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{ResourceExt, api::ObjectMeta};
use slurm::version::Feature;
use slurm_operator_api::{
    Accounting, Controller, ControllerStatus,
    conditions::{READY, SLURM_REACHABLE, reason},
    controller::SlurmctldStatus,
    names::{self, label},
    shared::{ExternalConfig, SecretKeySelector},
};

use super::model;
use crate::{
    engine::{
        config::{Files, NodeSetLine, external_slurm_conf},
        daemons::{
            claim_templates,
            keys::KeyState,
            pods::{PodProblem, is_outdated, pod_problem, summary},
            progress::{Problem, Progress, daemon_conditions, of_stateful_set},
            shared::{Parent, StringMap, is_applied, is_owned, taken},
            slurmctld,
        },
    },
    machine::{
        ConditionStatus, Desired, GeneratedSecret, NewCondition, Next, ObjectVersion, Plan, SecretContent, Step,
    },
};

/// The facts.
#[derive(Debug)]
pub struct Facts {
    /// Slurm's own key.
    pub slurm_key: KeyState,
    /// The key that signs tokens.
    pub jwt_key: KeyState,
    /// The Accounting.
    pub accounting: AccountingFacts,
    /// The `NodeSets` of this Controller, sorted by name.
    pub node_sets: Vec<NodeSetLine>,
    /// The `ConfigMaps` that the object refers to; nothing for one that is missing.
    pub config_maps: BTreeMap<String, Option<Files>>,
    /// How the claim that the object names may be mounted, if it names one that is there.
    pub claim_modes: Option<Vec<String>>,
    /// The Service.
    pub service: Option<Service>,
    /// The headless Service.
    pub internal_service: Option<Service>,
    /// The configuration.
    pub config_map: Option<ConfigMap>,
    /// slurmctld
    pub stateful_set: Option<StatefulSet>,
    /// The slurmctld pods, while not all of them are ready.
    pub pods: Vec<Pod>,
    /// Whether there are workers that run with the cluster's key. Looked up only while a key is missing.
    pub has_workers: bool,
    /// What Slurm says, if somebody asks it.
    pub slurm: Option<SlurmFacts>,
}

/// What was found of the Accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountingFacts {
    /// The object names none.
    NotNamed,
    /// It does not exist.
    Missing,
    /// It runs here.
    Here {
        /// The port of its Service.
        service_port: i32,
    },
    /// It runs somewhere else.
    Elsewhere(ExternalConfig),
}

impl AccountingFacts {
    /// What a Controller must know of an Accounting.
    pub fn of(accounting: &Accounting) -> Self {
        let here = || Self::Here { service_port: accounting.spec.service_port() };
        accounting.spec.elsewhere().cloned().map_or_else(here, Self::Elsewhere)
    }
}

/// What Slurm says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmFacts {
    /// Whether it answers; if not, why.
    pub reachable: Result<(), String>,
    /// Its version.
    pub slurm_version: Option<String>,
    /// The version of its REST API that we speak.
    pub rest_version: Option<String>,
    /// Each slurmctld, the first one first.
    pub pings: Vec<Ping>,
}

/// What one slurmctld answers to a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Its host, as slurm.conf names it.
    pub host: String,
    /// Whether it answers.
    pub responding: bool,
    /// Whether it is the one that schedules jobs.
    pub active: bool,
}

pub(super) fn plan(controller: &Controller, facts: &Facts, now: Timestamp) -> Plan<ControllerStatus> {
    let parent = Parent::of(controller);
    let mut work = Work::default();
    match controller.spec.elsewhere() {
        Some(elsewhere) => work.elsewhere(controller, elsewhere, facts, &parent),
        None if controller.spec.external => work
            .problems
            .push(Problem::invalid("say where slurmctld is in spec.externalConfig, or set spec.external to false")),
        None => work.here(controller, facts, &parent),
    }
    let stages = [work.first, work.second, work.third].into_iter().filter(|stage| !stage.is_empty()).collect();
    let pod_problems: Vec<PodProblem> = facts.pods.iter().filter_map(pod_problem).collect();
    let mut conditions =
        daemon_conditions("slurmctld", &work.progress, &work.problems, summary(&pod_problems).as_ref());
    conditions.push(reachable(controller, facts.slurm.as_ref()));
    if controller.spec.external {
        believe_slurm(&mut conditions, facts.slurm.as_ref());
    }
    Plan {
        stages,
        status: status(controller, facts.slurm.as_ref(), now),
        conditions,
        events: work.problems.iter().map(Problem::event).collect(),
        next: work.next,
        ..Plan::default()
    }
}

/// A plan in the making.
struct Work {
    /// Keys.
    first: Vec<Step>,
    /// Services and configuration.
    second: Vec<Step>,
    /// slurmctld
    third: Vec<Step>,
    problems: Vec<Problem>,
    progress: Progress,
    next: Next,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            first: Vec::new(),
            second: Vec::new(),
            third: Vec::new(),
            problems: Vec::new(),
            progress: Progress::Absent("something must be mended first".to_owned()),
            next: Next::OnChange,
        }
    }
}

fn apply(desired: Desired) -> Step {
    Step::Apply(Box::new(desired))
}

impl Work {
    /// The result, or one more problem.
    fn try_<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.problems.push(problem)).ok()
    }

    /// slurmctld runs somewhere else: only those who must know it get a configuration.
    fn elsewhere(&mut self, controller: &Controller, elsewhere: &ExternalConfig, facts: &Facts, parent: &Parent) {
        self.progress = Progress::Ready;
        let taken = taken(facts.config_map.as_ref(), parent);
        let Some(()) = self.try_(taken) else { return };
        let text = model::cluster_elsewhere(controller, elsewhere, facts)
            .and_then(|cluster| external_slurm_conf(&cluster).map_err(Problem::invalid));
        if let Some(text) = self.try_(text) {
            let files = StringMap::from([("slurm.conf".to_owned(), text)]);
            self.second.push(apply(slurmctld::config_map(parent, &files).seeing(facts.config_map.as_ref())));
        }
        self.remove_what_ran_here(facts, parent);
    }

    /// What we ran before the object said that slurmctld is elsewhere. Two slurmctld of one cluster would fight.
    fn remove_what_ran_here(&mut self, facts: &Facts, parent: &Parent) {
        if let Some(live) = facts.stateful_set.as_ref().filter(|live| is_owned(*live, parent)) {
            self.third.push(Step::Delete(Box::new(ObjectVersion::of::<StatefulSet>(live))));
        }
        for live in
            [&facts.service, &facts.internal_service].into_iter().flatten().filter(|live| is_owned(*live, parent))
        {
            self.third.push(Step::Delete(Box::new(ObjectVersion::of::<Service>(live))));
        }
    }

    fn here(&mut self, controller: &Controller, facts: &Facts, parent: &Parent) {
        self.progress = match of_stateful_set(None, facts.stateful_set.as_ref()) {
            Progress::Absent(_) => Progress::Absent("something must be mended first".to_owned()),
            other => other,
        };
        let taken = taken(facts.service.as_ref(), parent)
            .and_then(|()| taken(facts.internal_service.as_ref(), parent))
            .and_then(|()| taken(facts.config_map.as_ref(), parent))
            .and_then(|()| taken(facts.stateful_set.as_ref(), parent));
        let Some(()) = self.try_(taken) else { return };
        // Whatever else is wrong, those who look for slurmctld find where it will be.
        self.second.push(apply(slurmctld::internal_service(parent).seeing(facts.internal_service.as_ref())));
        let service = slurmctld::main_service(parent, &controller.spec.service).map_err(Problem::invalid);
        if let Some(service) = self.try_(service) {
            self.second.push(apply(service.seeing(facts.service.as_ref())));
        }
        let makes_keys = self.keys(controller, facts);
        let Some(files) = self.try_(model::own_files(controller, facts)) else { return };
        self.second.push(apply(slurmctld::config_map(parent, &files).seeing(facts.config_map.as_ref())));
        if makes_keys {
            // The Secret wakes us; only then is its hash known. What runs meanwhile goes on.
            if facts.stateful_set.is_none() {
                self.progress = Progress::Absent("its keys are being made".to_owned());
            }
            self.next = Next::After(Duration::from_secs(2));
            return;
        }
        let wanted = model::slurmctld(controller, facts, parent, &files)
            .and_then(|slurmctld| slurmctld::stateful_set(&slurmctld).map_err(Problem::invalid));
        if let Some(wanted) = self.try_(wanted) {
            self.stateful_set(wanted, facts, parent);
        }
        self.metrics(controller);
    }

    /// Generates missing keys of a new cluster, if that is asked for. True if there are some to generate.
    fn keys(&mut self, controller: &Controller, facts: &Facts) -> bool {
        let spec = &controller.spec;
        if !spec.generate_keys || model::has_run(facts) {
            return false;
        }
        let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (reference, key) in [(spec.slurm_key_ref.as_ref(), &facts.slurm_key), (spec.jwt_key(), &facts.jwt_key)] {
            let Some(SecretKeySelector { name, key: entry, .. }) = reference else { continue };
            if *key == KeyState::NoSecret {
                let entries = missing.entry(name).or_default();
                if !entries.contains(entry) {
                    entries.push(entry.clone());
                }
            }
        }
        for (name, entries) in missing {
            let secret = Desired::of(&key_secret(controller, name));
            let generated = GeneratedSecret { secret, entry: String::new(), content: SecretContent::Keys { entries } };
            self.first.push(Step::GenerateSecret(Box::new(generated)));
        }
        !self.first.is_empty()
    }

    fn stateful_set(&mut self, mut wanted: Desired, facts: &Facts, parent: &Parent) {
        self.progress = of_stateful_set(Some(&wanted), facts.stateful_set.as_ref());
        if let Some(live) = &facts.stateful_set {
            let service = live.spec.as_ref().and_then(|spec| spec.service_name.as_deref());
            let other_service = service != Some(&names::controller_internal(&parent.name));
            if live.metadata.deletion_timestamp.is_some() || other_service {
                self.replace(live);
                return;
            }
            if claim_templates::keep(&mut wanted, live) {
                self.problems.push(Problem::new(
                    "ClaimKept",
                    "spec.persistence differs from the claim that slurmctld has, which cannot be changed: it stays. To \
                     have another one, delete the StatefulSet and the claim; that loses all jobs",
                ));
            }
        }
        if self.progress != Progress::Ready {
            // What keeps pods from being ready changes without a word from the StatefulSet.
            self.next = Next::After(Duration::from_secs(10));
        }
        if let Some(live) = facts.stateful_set.as_ref().filter(|live| is_applied(*live, &wanted)) {
            self.delete_outdated_pods(live, &facts.pods);
        }
        self.third.push(apply(wanted.seeing(facts.stateful_set.as_ref())));
    }

    /// A `StatefulSet` does not update its pods while one of them is not ready, so a pod that cannot become ready would keep
    /// its old template for ever.
    fn delete_outdated_pods(&mut self, live: &StatefulSet, pods: &[Pod]) {
        let outdated = pods.iter().filter(|pod| is_outdated(pod, live));
        self.third.extend(outdated.map(|pod| Step::Delete(Box::new(ObjectVersion::of::<Pod>(pod)))));
    }

    /// A `StatefulSet` that cannot be changed to what we want goes first.
    fn replace(&mut self, live: &StatefulSet) {
        self.progress = Progress::Replacing("its StatefulSet cannot be changed to what it must be".to_owned());
        self.next = Next::After(Duration::from_secs(5));
        if live.metadata.deletion_timestamp.is_none() {
            self.third.push(Step::Delete(Box::new(ObjectVersion::of::<StatefulSet>(live))));
        }
    }

    fn metrics(&mut self, controller: &Controller) {
        let Some(version) = model::version(controller) else { return };
        if controller.spec.metrics_enabled() && !version.supports(Feature::Metrics) {
            self.problems.push(Problem::new(
                reason::SLURM_TOO_OLD,
                format!("Slurm {version} has no metrics, 25.11 and later do: set spec.metrics.enabled to false"),
            ));
        }
    }
}

/// Without an owner: workers and users run with these keys, whatever becomes of the Controller.
fn key_secret(controller: &Controller, name: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: controller.namespace(),
            labels: Some(StringMap::from([(label::MANAGED_BY.to_owned(), "slurm-operator".to_owned())])),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn reachable(controller: &Controller, slurm: Option<&SlurmFacts>) -> NewCondition {
    let type_ = SLURM_REACHABLE;
    match slurm.map(|slurm| &slurm.reachable) {
        None => {
            let name = controller.name_any();
            let message = format!("no RestApi names the Controller {name} yet: the operator cannot see into Slurm");
            NewCondition { type_, status: ConditionStatus::Unknown, reason: "NoRestApi", message }
        }
        Some(Ok(())) => NewCondition {
            type_,
            status: ConditionStatus::True,
            reason: reason::AS_EXPECTED,
            message: "Slurm answers".to_owned(),
        },
        Some(Err(error)) => NewCondition {
            type_,
            status: ConditionStatus::False,
            reason: reason::SLURM_UNREACHABLE,
            message: error.clone(),
        },
    }
}

/// Of a slurmctld somewhere else we know only what it says itself.
fn believe_slurm(conditions: &mut [NewCondition], slurm: Option<&SlurmFacts>) {
    let ready = conditions.iter_mut().find(|new_condition| new_condition.type_ == READY);
    let Some(ready) = ready.filter(|ready| ready.status == ConditionStatus::True) else { return };
    match slurm.map(|slurm| &slurm.reachable) {
        Some(Err(error)) => {
            ready.status = ConditionStatus::Unknown;
            ready.reason = reason::SLURM_UNREACHABLE;
            ready.message.clone_from(error);
        }
        _ => "slurmctld runs somewhere else".clone_into(&mut ready.message),
    }
}

/// What Slurm last said stays until it says something else.
fn status(controller: &Controller, slurm: Option<&SlurmFacts>, now: Timestamp) -> ControllerStatus {
    let old = controller.status.clone().unwrap_or_default();
    let Some(slurm) = slurm else { return old };
    let reported = |ping: &Ping| {
        let before = old.slurmctld.iter().find(|other| other.host == ping.host && other.responding == ping.responding);
        // Whole seconds, as the API server keeps them.
        let moment = || Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
        SlurmctldStatus {
            host: ping.host.clone(),
            responding: ping.responding,
            active: ping.active,
            since: before.map_or_else(moment, |before| before.since.clone()),
        }
    };
    ControllerStatus {
        slurm_version: slurm.slurm_version.clone().or(old.slurm_version.clone()),
        rest_version: slurm.rest_version.clone().or(old.rest_version.clone()),
        slurmctld: if slurm.pings.is_empty() {
            old.slurmctld.clone()
        } else {
            slurm.pings.iter().map(reported).collect()
        },
        ..old
    }
}
