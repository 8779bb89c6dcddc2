//! Plans a Controller.

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

/// What is observed for a Controller.
#[derive(Debug)]
pub struct Facts {
    /// The key of auth/slurm.
    pub slurm_key: KeyState,
    /// The key that signs JSON web tokens.
    pub jwt_key: KeyState,
    pub accounting: AccountingFacts,
    /// The `NodeSets` of this Controller, sorted by name.
    pub node_sets: Vec<NodeSetLine>,
    /// The `ConfigMaps` that the spec refers to; `None` if one is missing.
    pub config_maps: BTreeMap<String, Option<Files>>,
    /// Access modes of the existing claim in spec.persistence, if there is one.
    pub claim_modes: Option<Vec<String>>,
    /// The Service.
    pub service: Option<Service>,
    /// The headless Service.
    pub internal_service: Option<Service>,
    /// The `ConfigMap` with the generated configuration.
    pub config_map: Option<ConfigMap>,
    /// slurmctld.
    pub stateful_set: Option<StatefulSet>,
    /// The slurmctld pods, while not all of them are ready.
    pub pods: Vec<Pod>,
    /// Whether there are workers that run with the cluster's key. Only looked up while a key is missing.
    pub has_workers: bool,
    /// What Slurm reports, if the operator has ever connected to it.
    pub slurm: Option<SlurmFacts>,
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
    },
    /// It runs outside of the operator.
    Elsewhere(ExternalConfig),
}

impl AccountingFacts {
    /// What a Controller needs to know of an Accounting.
    pub fn of(accounting: &Accounting) -> Self {
        let here = || Self::Here { service_port: accounting.spec.service_port() };
        accounting.spec.elsewhere().cloned().map_or_else(here, Self::Elsewhere)
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
    let parent = Parent::of(controller);
    let mut work = Work::default();
    match controller.spec.elsewhere() {
        Some(elsewhere) => work.elsewhere(controller, elsewhere, facts, &parent),
        None if controller.spec.external => work
            .problems
            .push(Problem::invalid("spec.external is true: set spec.externalConfig, or set spec.external to false")),
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

/// A plan under construction.
struct Work {
    /// Keys.
    first: Vec<Step>,
    /// Services and configuration.
    second: Vec<Step>,
    /// slurmctld.
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
            progress: Progress::Absent("see the Degraded condition".to_owned()),
            next: Next::OnChange,
        }
    }
}

fn apply(desired: Desired) -> Step {
    Step::Apply(Box::new(desired))
}

impl Work {
    /// Unwraps the result, or records the problem.
    fn try_<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.problems.push(problem)).ok()
    }

    /// slurmctld is external: only write the configuration for clients that cannot fetch it from slurmctld.
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

    /// Removes what was created before spec.external was set: a cluster must not have two independent slurmctld.
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
            Progress::Absent(_) => Progress::Absent("see the Degraded condition".to_owned()),
            other => other,
        };
        let taken = taken(facts.service.as_ref(), parent)
            .and_then(|()| taken(facts.internal_service.as_ref(), parent))
            .and_then(|()| taken(facts.config_map.as_ref(), parent))
            .and_then(|()| taken(facts.stateful_set.as_ref(), parent));
        let Some(()) = self.try_(taken) else { return };
        // Create the Services even if there are other problems, so that clients can already resolve slurmctld.
        self.second.push(apply(slurmctld::internal_service(parent).seeing(facts.internal_service.as_ref())));
        let service = slurmctld::main_service(parent, &controller.spec.service).map_err(Problem::invalid);
        if let Some(service) = self.try_(service) {
            self.second.push(apply(service.seeing(facts.service.as_ref())));
        }
        let makes_keys = self.keys(controller, facts);
        let Some(files) = self.try_(model::own_files(controller, facts)) else { return };
        self.second.push(apply(slurmctld::config_map(parent, &files).seeing(facts.config_map.as_ref())));
        if makes_keys {
            // The Secret triggers the next reconcile, when its hash is known. A running slurmctld is left as it is.
            if facts.stateful_set.is_none() {
                self.progress = Progress::Absent("its keys are being generated".to_owned());
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

    /// Generates the missing keys of a new cluster if requested. Returns whether there are keys to generate.
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
                    "spec.persistence differs from the existing claim, which is immutable and therefore kept. To \
                     replace it, delete the StatefulSet and the claim; this loses all jobs",
                ));
            }
        }
        if self.progress != Progress::Ready {
            // Problems of pods can change without a change of the StatefulSet.
            self.next = Next::After(Duration::from_secs(10));
        }
        if let Some(live) = facts.stateful_set.as_ref().filter(|live| is_applied(*live, &wanted)) {
            self.delete_outdated_pods(live, &facts.pods);
        }
        self.third.push(apply(wanted.seeing(facts.stateful_set.as_ref())));
    }

    /// A `StatefulSet` does not update its pods while one of them is not ready, so a pod that can never become ready
    /// would keep its old template forever.
    fn delete_outdated_pods(&mut self, live: &StatefulSet, pods: &[Pod]) {
        let outdated = pods.iter().filter(|pod| is_outdated(pod, live));
        self.third.extend(outdated.map(|pod| Step::Delete(Box::new(ObjectVersion::of::<Pod>(pod)))));
    }

    /// Deletes a `StatefulSet` whose immutable fields differ, to recreate it.
    fn replace(&mut self, live: &StatefulSet) {
        self.progress = Progress::Replacing("an immutable field of its StatefulSet must change".to_owned());
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
                format!(
                    "Slurm {version} does not support metrics (25.11 or later does): set spec.metrics.enabled to false"
                ),
            ));
        }
    }
}

/// Has no owner: workers and users depend on these keys even if the Controller is deleted.
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
            let message =
                format!("no RestApi refers to the Controller {name}: create one to connect the operator to Slurm");
            NewCondition { type_, status: ConditionStatus::Unknown, reason: "NoRestApi", message }
        }
        Some(Ok(())) => NewCondition {
            type_,
            status: ConditionStatus::True,
            reason: reason::AS_EXPECTED,
            message: "Slurm is reachable".to_owned(),
        },
        Some(Err(error)) => NewCondition {
            type_,
            status: ConditionStatus::False,
            reason: reason::SLURM_UNREACHABLE,
            message: error.clone(),
        },
    }
}

/// For an external slurmctld, readiness follows from whether Slurm is reachable.
fn believe_slurm(conditions: &mut [NewCondition], slurm: Option<&SlurmFacts>) {
    let ready = conditions.iter_mut().find(|new_condition| new_condition.type_ == READY);
    let Some(ready) = ready.filter(|ready| ready.status == ConditionStatus::True) else { return };
    match slurm.map(|slurm| &slurm.reachable) {
        Some(Err(error)) => {
            ready.status = ConditionStatus::Unknown;
            ready.reason = reason::SLURM_UNREACHABLE;
            ready.message.clone_from(error);
        }
        _ => "slurmctld is external".clone_into(&mut ready.message),
    }
}

/// Keeps the last reported values until Slurm reports others.
fn status(controller: &Controller, slurm: Option<&SlurmFacts>, now: Timestamp) -> ControllerStatus {
    let old = controller.status.clone().unwrap_or_default();
    let Some(slurm) = slurm else { return old };
    let reported = |ping: &Ping| {
        let before = old.slurmctld.iter().find(|other| other.host == ping.host && other.responding == ping.responding);
        // Whole seconds, as the API server stores them.
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
