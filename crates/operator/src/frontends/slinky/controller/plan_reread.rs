//! Makes slurmctld reread a changed configuration, and follows the change to every slurmd.
//!
//! slurmctld sends what it has reread to every slurmd, and a slurmd that cannot read it ends with its jobs. So a change is reread only
//! if every slurmd is known to have the part that slurmd acts on. Any other change restarts slurmctld, which tells no slurmd.
//!
//! The annotations of the `ConfigMap` say which configuration it has, when it was changed, and which change was reread. What is to be
//! reread is what the live `ConfigMap` has: a later change that is refused does not stop it.

use std::{collections::BTreeMap, time::Duration};

use engine::{
    conditions::{ConditionStatus, NewCondition},
    daemons::{
        progress::{Progress, of_stateful_set},
        shared::{SLURMCTLD, StringMap},
    },
    plan::{MetadataPatch, Next as When, ObjectVersion, Plan, RereadFiles, Step},
    podset::{SlurmNode, Snapshot},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use slurm::{hostlist, states::NodeState};
use slurm_operator_api::{
    common::conditions::{CONFIGURATION_IN_EFFECT, reason},
    slinky::{
        Controller, ControllerStatus,
        names::annotation::{self, hash},
    },
};

use super::{
    model::{OwnFiles, rereads},
    plan::{Facts, owned_pods},
};

/// How often to look at a change that is on its way.
const RECHECK: Duration = Duration::from_secs(1);

/// How often to look at a slurmd that has not reread its files for long.
const RECHECK_SLOW: Duration = Duration::from_secs(20);

/// After this time something is wrong.
const SLOW: SignedDuration = SignedDuration::from_secs(60);

/// How far the clocks of workers may be behind.
const CLOCKS: SignedDuration = SignedDuration::from_secs(5);

const REREADING: &str = "Rereading";

/// The configuration that is written, and how slurmctld gets it.
pub(super) struct Version {
    /// What slurmctld is started with: it restarts if this changes. The hash of the first configuration, or the name of a change.
    pub(super) started_with: String,
    /// The annotations of the `ConfigMap`.
    pub(super) annotations: StringMap,
}

impl Version {
    /// Compares the files with those of the live `ConfigMap`.
    pub(super) fn of(controller: &Controller, facts: &Facts, files: &OwnFiles, now: Timestamp) -> Self {
        if !rereads(&controller.spec) {
            return Self { started_with: files.hash.clone(), annotations: StringMap::new() };
        }
        let live = facts.config_map.as_ref().map(ResourceExt::annotations);
        let text = |key: &str| live.and_then(|live| live.get(key)).cloned();
        let (Some(hash), Some(started_with)) = (text(hash::SLURM_CONFIG), text(annotation::CONFIG_STARTED)) else {
            // Workers of an earlier release may have other files.
            let slurmd_has = facts.stateful_set.is_none().then(|| files.hash_for_slurmd.clone());
            return Self::new(files, None, files.hash.clone(), slurmd_has);
        };
        let slurmd_has = text(hash::SLURMD_HAS);
        if hash == files.hash {
            let changed = text(annotation::CONFIG_CHANGED);
            let made = changed.as_ref().and_then(|changed| changed.parse().ok());
            let is_everywhere = made.is_some_and(|made| all_started_with_it(facts.snapshot.as_deref(), made));
            let slurmd_has = if is_everywhere { Some(files.hash_for_slurmd.clone()) } else { slurmd_has };
            return Self::new(files, changed, started_with, slurmd_has);
        }
        let changed = now.to_string();
        let can_reread = facts.stateful_set.is_some() && slurmd_has.as_ref() == Some(&files.hash_for_slurmd);
        let started_with = if can_reread { started_with } else { changed.clone() };
        Self::new(files, Some(changed), started_with, slurmd_has)
    }

    /// `changed` is when it was changed, which also names the change. `slurmd_has` is what every slurmd is known to have.
    fn new(files: &OwnFiles, changed: Option<String>, started_with: String, slurmd_has: Option<String>) -> Self {
        let all = [
            (hash::SLURM_CONFIG, Some(files.hash.clone())),
            (hash::ETC, Some(files.hash_of_etc.clone())),
            (hash::SLURMD_HAS, slurmd_has),
            (annotation::CONFIG_STARTED, Some(started_with.clone())),
            (annotation::CONFIG_CHANGED, changed),
        ];
        let annotations = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        Self { started_with, annotations }
    }
}

/// Adds what is to be done, and says how far it is. `wanted` is the hash of the files that users ask for, if they are valid.
pub(super) fn add(
    plan: &mut Plan<ControllerStatus>,
    controller: &Controller,
    facts: &Facts,
    wanted: Option<&str>,
    now: Timestamp,
) {
    let Some(change) = Change::of(controller, facts) else { return };
    let is_outdated = wanted.is_some_and(|wanted| wanted != change.hash);
    let mut condition = NewCondition::new(
        CONFIGURATION_IN_EFFECT,
        false,
        "NotWritten",
        "the configuration has changed, and is not written yet",
    );
    if !is_outdated || !is_written(plan, change.config_map) {
        let Next { status, reason, message, stage, delay } = change.next(facts, now);
        // Not in one pass with the labels of the same pod.
        if !stage.is_empty() && !plan.stages.iter().flatten().any(|step| matches!(step, Step::PatchMetadata(_))) {
            plan.stages.push(stage);
        }
        if let Some(delay) = delay.filter(|delay| !matches!(plan.next, When::After(earlier) if earlier < *delay)) {
            plan.next = When::After(delay);
        }
        if !is_outdated {
            condition = NewCondition::new(CONFIGURATION_IN_EFFECT, status, reason, message);
        }
    }
    plan.conditions.push(condition);
}

/// Whether the plan writes this object.
fn is_written(plan: &Plan<ControllerStatus>, config_map: &ConfigMap) -> bool {
    let is_it = |step: &Step| matches!(step, Step::Apply(desired) if desired.resource.kind == "ConfigMap" && desired.object.name_any() == config_map.name_any());
    plan.stages.iter().flatten().any(is_it)
}

/// What is to be done for a change, and how far it is.
struct Next {
    status: ConditionStatus,
    reason: &'static str,
    message: String,
    stage: Vec<Step>,
    delay: Option<Duration>,
}

impl Next {
    fn new(status: impl Into<ConditionStatus>, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: status.into(), reason, message: message.into(), stage: Vec::new(), delay: None }
    }

    fn after(self, delay: Duration) -> Self {
        Self { delay: Some(delay), ..self }
    }
}

/// The last change of the configuration.
struct Change<'a> {
    config_map: &'a ConfigMap,
    /// Hash of the configuration.
    hash: &'a str,
    /// Hash of the files in the pod.
    etc: &'a str,
    /// Its name, and when it was made; `None` for the first configuration of a cluster.
    made: Option<(&'a str, Timestamp)>,
}

impl<'a> Change<'a> {
    fn of(controller: &Controller, facts: &'a Facts) -> Option<Self> {
        let config_map = facts.config_map.as_ref().filter(|_| rereads(&controller.spec))?;
        facts.stateful_set.as_ref()?;
        let is_ours = config_map.owner_references().iter().any(|owner| Some(&owner.uid) == controller.uid().as_ref());
        let text = |key: &str| config_map.annotations().get(key).map(String::as_str);
        let made = text(annotation::CONFIG_CHANGED).and_then(|name| Some((name, name.parse().ok()?)));
        let (hash, etc) = (text(hash::SLURM_CONFIG).filter(|_| is_ours)?, text(hash::ETC)?);
        Some(Self { config_map, hash, etc, made })
    }

    fn is(&self, key: &str) -> bool {
        let value = self.config_map.annotations().get(key);
        self.made.is_some_and(|(name, _)| value.is_some_and(|value| value == name))
    }

    /// Whether slurmctld neither was started with it nor has reread it.
    fn is_to_be_reread(&self) -> bool {
        self.made.is_some() && !self.is(annotation::CONFIG_STARTED) && !self.is(annotation::CONFIG_REREAD)
    }

    fn next(&self, facts: &Facts, now: Timestamp) -> Next {
        let is_ready = of_stateful_set(facts.stateful_set.as_ref(), true) == Progress::Ready;
        if is_ready && !self.is_to_be_reread() {
            return self.on_workers(facts.snapshot.as_deref(), now);
        }
        let pods = owned_pods(facts);
        if is_ready {
            let message = "the kubelet brings the files to slurmctld, which then rereads them";
            let stage = pods.iter().map(|pod| self.reread(pod, now)).collect();
            return Next { stage, ..Next::new(false, REREADING, message).after(RECHECK) };
        }
        // It cannot start with what it had, and Kubernetes would wait for minutes before it tries again.
        let is_failing = |pod: &&Pod| self.is_to_be_reread() && self.is_later_than(pod) && keeps_failing(pod);
        let why = "slurmctld does not start, and the configuration has changed since";
        let delete = |pod: &Pod| Step::Delete(Box::new(ObjectVersion::of::<Pod>(pod)), why);
        let stage = pods.iter().filter(is_failing).map(delete).collect();
        Next { stage, ..Next::new(false, reason::PODS_NOT_READY, "slurmctld reads the files when it is ready") }
    }

    fn is_later_than(&self, pod: &Pod) -> bool {
        let created = pod.creation_timestamp();
        created.is_some_and(|created| self.made.is_some_and(|(_, at)| created.0 < at))
    }

    /// Asks the kubelet for the files, then slurmctld to reread them, then notes that it has.
    fn reread(&self, pod: &Pod, now: Timestamp) -> Step {
        let name = self.made.map_or("", |(name, _)| name);
        let annotate = |target, key: &str, value: String| {
            let annotations = BTreeMap::from([(key.to_owned(), Some(value))]);
            Step::PatchMetadata(Box::new(MetadataPatch { target, labels: BTreeMap::new(), annotations }))
        };
        let files = RereadFiles {
            pod: ObjectVersion::of::<Pod>(pod),
            container: SLURMCTLD.program,
            hash: self.etc.to_owned(),
            change: name.to_owned(),
        };
        Step::Chain(vec![
            annotate(ObjectVersion::of::<Pod>(pod), annotation::CONFIG_SYNC, now.to_string()),
            Step::Reread(Box::new(files)),
            annotate(ObjectVersion::of::<ConfigMap>(self.config_map), annotation::CONFIG_REREAD, name.to_owned()),
        ])
    }

    /// Whether every slurmd has it, once slurmctld has.
    fn on_workers(&self, snapshot: Option<&Snapshot>, now: Timestamp) -> Next {
        let as_expected = || Next::new(true, reason::AS_EXPECTED, "slurmctld and every slurmd use it");
        let Some((_, made)) = self.made else { return as_expected() };
        let is_slow = now.duration_since(made) > SLOW;
        let delay = if is_slow { RECHECK_SLOW } else { RECHECK };
        let Some(snapshot) = snapshot else {
            let message = "slurmctld uses it; whether every slurmd does is not known, because Slurm cannot be asked";
            return Next::new(ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, message).after(delay);
        };
        if self.is(annotation::CONFIG_STARTED) {
            let late = late(snapshot, started_with_it(snapshot, made));
            if late.is_empty() {
                return as_expected();
            }
            let message = format!(
                "slurmctld uses it. What slurmd reads has changed, and a mistake there would end slurmd and its jobs, so these get it \
                 when their pods are replaced: {}",
                hostlist::text(late.into_iter())
            );
            return Next::new(false, "WorkersNotTold", message).after(RECHECK_SLOW);
        }
        let late = late(snapshot, Some(made - CLOCKS));
        if late.is_empty() {
            return as_expected();
        }
        let help =
            if is_slow { ". If that does not change, see the log of slurmd there, or replace its pod" } else { "" };
        let count = late.len();
        let names = hostlist::text(late.into_iter());
        Next::new(false, REREADING, format!("slurmctld uses it; {count} slurmd have not reread it yet: {names}{help}"))
            .after(delay)
    }
}

/// A slurmd that started after this time has what slurmctld was started with.
fn started_with_it(snapshot: &Snapshot, made: Timestamp) -> Option<Timestamp> {
    Some(snapshot.ctld_started.filter(|started| *started > made)? + CLOCKS)
}

/// Whether there are workers, and all of them have what slurmctld was started with.
fn all_started_with_it(snapshot: Option<&Snapshot>, made: Timestamp) -> bool {
    let Some(snapshot) = snapshot.filter(|snapshot| snapshot.nodes.values().any(responds)) else { return false };
    late(snapshot, started_with_it(snapshot, made)).is_empty()
}

/// The nodes whose slurmd did not start after this time, or all if that is not known.
fn late(snapshot: &Snapshot, since: Option<Timestamp>) -> Vec<&str> {
    let since = since.map(|since| since + snapshot.clock_ahead.unwrap_or_default());
    let is_in_time = |node: &SlurmNode| since.is_some_and(|since| node.slurmd_started.is_some_and(|at| at >= since));
    let late = snapshot.nodes.iter().filter(|(_, node)| responds(node) && !is_in_time(node));
    let mut names: Vec<&str> = late.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Whether a slurmd can be told. One that cannot gets the files when it starts.
fn responds(node: &SlurmNode) -> bool {
    node.states.is_registered() && !node.states.is_down() && !node.states.has(NodeState::NotResponding)
}

/// Whether slurmctld ends again and again.
fn keeps_failing(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    containers.into_iter().flatten().any(|container| {
        let is_waiting = container.state.as_ref().is_some_and(|state| state.waiting.is_some());
        container.name == SLURMCTLD.program && container.restart_count > 0 && is_waiting
    })
}
