//! Makes slurmctld reread a changed configuration, and follows the change to every slurmd.
//!
//! slurmctld sends what it has reread to every slurmd, and a slurmd that cannot read it ends with its jobs. So a change is reread only
//! if every slurmd is known to have the part that slurmd acts on. Any other change restarts slurmctld, which tells no slurmd; it is
//! reread when all of them have been replaced.
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
    model::rereads,
    plan::{Facts, owned_pods},
    plan_files::OwnFiles,
};

/// How often to look at a change that is on its way.
const RECHECK: Duration = Duration::from_secs(1);

/// How often to look at a slurmd that has not reread its files for long.
const RECHECK_SLOW: Duration = Duration::from_secs(20);

/// After this time something is wrong.
const SLOW: SignedDuration = SignedDuration::from_secs(60);

/// How far the clocks of workers may be behind. slurmd reports its start in whole seconds.
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
    /// Compares the files with those of the live `ConfigMap`. If they are proven, every slurmd can be told of them.
    pub(super) fn of(
        controller: &Controller,
        facts: &Facts,
        files: &OwnFiles,
        is_proven: bool,
        now: Timestamp,
    ) -> Self {
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
        let slurmd_has = if is_proven { Some(files.hash_for_slurmd.clone()) } else { text(hash::SLURMD_HAS) };
        if hash == files.hash {
            let changed = text(annotation::CONFIG_CHANGED);
            let made = changed.as_ref().and_then(|changed| changed.parse().ok());
            let is_everywhere = made.is_some_and(|made| all_started_with_it(facts, made));
            let slurmd_has = if is_everywhere { Some(files.hash_for_slurmd.clone()) } else { slurmd_has };
            return Self::new(files, changed, started_with, slurmd_has);
        }
        let changed = now.to_string();
        let can_reread = facts.stateful_set.is_some() && slurmd_has.as_ref() == Some(&files.hash_for_slurmd);
        let started_with = if can_reread { started_with } else { changed.clone() };
        Self::new(files, Some(changed), started_with, slurmd_has)
    }

    /// `changed` is when it was changed, which also names the change. `slurmd_has` is what every slurmd is known to have, or to be
    /// able to read.
    fn new(files: &OwnFiles, changed: Option<String>, started_with: String, slurmd_has: Option<String>) -> Self {
        let all = [
            (hash::SLURM_CONFIG, Some(files.hash.clone())),
            (hash::ETC, Some(files.hash_of_etc.clone())),
            (hash::FOR_SLURMD, Some(files.hash_for_slurmd.clone())),
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

    fn with(self, stage: Vec<Step>) -> Self {
        Self { stage, ..self }
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

    fn text(&self, key: &str) -> Option<&'a str> {
        self.config_map.annotations().get(key).map(String::as_str)
    }

    fn is(&self, key: &str) -> bool {
        self.made.is_some_and(|(name, _)| self.text(key) == Some(name))
    }

    /// Whether every slurmd is known to have the part that slurmd acts on.
    fn is_safe(&self) -> bool {
        self.text(hash::FOR_SLURMD).is_some_and(|part| self.text(hash::SLURMD_HAS) == Some(part))
    }

    /// Whether it is to be reread: by slurmctld, or, if that was started with it, by every slurmd.
    fn is_to_be_reread(&self) -> bool {
        let is_needed = !self.is(annotation::CONFIG_STARTED) || self.is_safe();
        self.made.is_some() && !self.is(annotation::CONFIG_REREAD) && is_needed
    }

    fn next(&self, facts: &Facts, now: Timestamp) -> Next {
        let is_ready = of_stateful_set(facts.stateful_set.as_ref(), true) == Progress::Ready;
        let pods = owned_pods(facts);
        let Some((name, made)) = self.made.filter(|_| is_ready) else {
            return if is_ready { as_expected() } else { self.wait_for_slurmctld(&pods) };
        };
        let snapshot = facts.snapshot.as_deref();
        let all_started_with_it = || {
            self.is(annotation::CONFIG_STARTED)
                && snapshot.is_some_and(|snapshot| late(snapshot, started_with_it(facts, made)).is_empty())
        };
        if self.is_to_be_reread() && !all_started_with_it() {
            // Otherwise its start would not tell which of two changes a slurmd has. Some workers may always be starting.
            if now.duration_since(made) < CLOCKS * 2 && snapshot.is_some_and(|snapshot| has_just_started(snapshot, now))
            {
                let message = "it is reread in a few seconds, because slurmd has just started or reread another change";
                return Next::new(false, REREADING, message).after(RECHECK);
            }
            let message = "the kubelet brings the files to slurmctld, which then rereads them";
            return Next::new(false, REREADING, message).with(self.reread(&pods, name, name, now)).after(RECHECK);
        }
        let slow = |since| if now.duration_since(since) > SLOW { RECHECK_SLOW } else { RECHECK };
        let Some(snapshot) = snapshot else {
            let message = "slurmctld uses it; whether every slurmd does is not known, because Slurm cannot be asked";
            return Next::new(ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, message).after(slow(made));
        };
        if !self.is(annotation::CONFIG_REREAD) {
            let late = late(snapshot, started_with_it(facts, made));
            if late.is_empty() {
                return as_expected();
            }
            let message = format!(
                "slurmctld uses it. What slurmd may read has changed, and a mistake there would end slurmd and its jobs, so these get it \
                 when their pods are replaced: {}",
                hostlist::text(late.into_iter())
            );
            return Next::new(false, "WorkersNotTold", message).after(RECHECK_SLOW);
        }
        let asked = self.text(annotation::CONFIG_ASKED).and_then(|asked| asked.parse().ok()).unwrap_or(made);
        let late = late(snapshot, Some(asked - CLOCKS));
        if late.is_empty() {
            return as_expected();
        }
        // It may have ended before it told all of them. It is asked again after one minute, then two, four and so on.
        let waited = now.duration_since(asked);
        let stage = if waited > SLOW && waited > asked.duration_since(made) {
            self.reread(&pods, name, &format!("{name} {asked}"), now)
        } else {
            Vec::new()
        };
        let help = if now.duration_since(made) > SLOW {
            ". If that does not change, see the log of slurmd there, or replace its pod"
        } else {
            ""
        };
        let count = late.len();
        let names = hostlist::text(late.into_iter());
        let message = format!("slurmctld uses it; {count} slurmd have not reread it yet: {names}{help}");
        Next::new(false, REREADING, message).with(stage).after(slow(asked))
    }

    /// slurmctld is not ready.
    fn wait_for_slurmctld(&self, pods: &[Pod]) -> Next {
        // It cannot start with what it had, and Kubernetes would wait for minutes before it tries again.
        let is_failing = |pod: &&Pod| self.is_to_be_reread() && self.is_later_than(pod) && keeps_failing(pod);
        let why = "slurmctld does not start, and the configuration has changed since";
        let delete = |pod: &Pod| Step::Delete(Box::new(ObjectVersion::of::<Pod>(pod)), why);
        let stage = pods.iter().filter(is_failing).map(delete).collect();
        Next::new(false, reason::PODS_NOT_READY, "slurmctld reads the files when it is ready").with(stage)
    }

    fn is_later_than(&self, pod: &Pod) -> bool {
        let created = pod.creation_timestamp();
        created.is_some_and(|created| self.made.is_some_and(|(_, at)| created.0 < at))
    }

    /// Asks the kubelet for the files, then slurmctld to reread them, then notes that it has. slurmctld is asked once for each
    /// `request`.
    fn reread(&self, pods: &[Pod], name: &str, request: &str, now: Timestamp) -> Vec<Step> {
        let annotate = |target, annotations: &[(&str, &str)]| {
            let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned())));
            let patch = MetadataPatch { target, labels: BTreeMap::new(), annotations: annotations.collect() };
            Step::PatchMetadata(Box::new(patch))
        };
        let now = now.to_string();
        let chain = |pod: &Pod| {
            let files = RereadFiles {
                pod: ObjectVersion::of::<Pod>(pod),
                container: SLURMCTLD.program,
                hash: self.etc.to_owned(),
                change: request.to_owned(),
            };
            let noted = [(annotation::CONFIG_REREAD, name), (annotation::CONFIG_ASKED, now.as_str())];
            Step::Chain(vec![
                annotate(ObjectVersion::of::<Pod>(pod), &[(annotation::CONFIG_SYNC, &now)]),
                Step::Reread(Box::new(files)),
                annotate(ObjectVersion::of::<ConfigMap>(self.config_map), &noted),
            ])
        };
        pods.iter().map(chain).collect()
    }
}

fn as_expected() -> Next {
    Next::new(true, reason::AS_EXPECTED, "slurmctld and every slurmd use it")
}

/// A slurmd that started after this time has what slurmctld was started with. The pod before had ended when this one was created.
fn started_with_it(facts: &Facts, made: Timestamp) -> Option<Timestamp> {
    let created = owned_pods(facts).iter().filter_map(|pod| Some(pod.creation_timestamp()?.0)).max()?;
    // In whole seconds.
    (created + SignedDuration::from_secs(1) > made).then(|| created + CLOCKS)
}

/// Whether there are workers, and all of them have what slurmctld was started with. One that does not respond may be back soon, with
/// what it had.
fn all_started_with_it(facts: &Facts, made: Timestamp) -> bool {
    let Some(snapshot) = facts.snapshot.as_deref() else { return false };
    let mut running =
        snapshot.nodes.values().filter(|node| node.states.is_registered() && !node.states.is_down()).peekable();
    let is_any = running.peek().is_some();
    is_any && running.all(responds) && late(snapshot, started_with_it(facts, made)).is_empty()
}

/// Whether a slurmd started a moment ago.
fn has_just_started(snapshot: &Snapshot, now: Timestamp) -> bool {
    let now = now + snapshot.clock_ahead.unwrap_or_default();
    let is_new = |node: &SlurmNode| node.slurmd_started.is_some_and(|at| at >= now - CLOCKS && at <= now + CLOCKS);
    snapshot.nodes.values().any(|node| responds(node) && is_new(node))
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
pub(super) fn responds(node: &SlurmNode) -> bool {
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
