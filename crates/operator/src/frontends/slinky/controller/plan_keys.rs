//! The key ring that a Controller keeps for the daemons of its cluster, and how a new key of the user's gets there.

use std::time::Duration;

use engine::{
    conditions::NewCondition,
    daemons::{
        keyring::{self, HasRead, KeyUser, LiveRing, Phase, SlurmKey},
        keys::hash_of,
        login::STAGED_KEYS,
        progress::Problem,
        shared::{ETC, LOGIN, SLURMD, StringMap},
    },
    plan::{Desired, Fingerprint, Next, Plan, ReadKeys, Step},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{ResourceExt, core::ObjectMeta};
use slurm::conf::Extra;
use slurm_operator_api::{
    common::{
        conditions::{SLURM_KEY_IN_USE, reason},
        shared::SecretKeySelector,
    },
    slinky::{
        Controller, ControllerStatus, VOCABULARY,
        names::{
            self,
            annotation::{self, hash},
            label,
        },
    },
};

use super::{model::summary, plan::Facts};
use crate::frontends::slinky::keys::ObservedRing;

/// How often to look at daemons that are to read new keys.
const RECHECK: Duration = Duration::from_secs(2);

/// How many daemons are asked in one pass, those first that were not asked for longest.
const BURST: usize = 200;

const REFUSED: &str = "KeyNotChanged";

/// What is observed of the keys of auth/slurm.
#[derive(Debug, Default)]
pub struct KeyFacts {
    /// The user's key, if a key ring can have it.
    pub wanted: Option<SlurmKey>,
    /// The hash of all entries of the user's Secret, by which the Go operator knows the key. Only looked up while there is no ring.
    pub users_secret: Option<String>,
    /// What has the name of the key ring.
    pub secret: Option<RingSecret>,
    /// All Controllers with this key.
    pub owners: Vec<OwnerReference>,
    /// All pods with the key. Only listed while something depends on them.
    pub users: Option<Vec<KeyUser>>,
    /// Why the key cannot be changed step by step.
    pub obstacle: Option<String>,
}

/// The Secret with the name of the key ring.
#[derive(Debug)]
pub struct RingSecret {
    /// Without its content.
    pub object: Secret,
    pub seen: Fingerprint,
    /// `None` if it is not a key ring.
    pub live: Option<LiveRing>,
}

/// What to do about keys.
#[derive(Default)]
pub(super) struct Keys {
    /// The ring that daemons read. Without one they read the user's Secret.
    pub(super) ring: Option<ObservedRing>,
    /// How to write it.
    pub(super) secret: Option<Desired>,
    /// Why slurmctld must stay as it is.
    pub(super) blocked: Option<Problem>,
    /// A problem with the user's key, which changes nothing.
    pub(super) problem: Option<Problem>,
    /// How far a change is.
    condition: Option<NewCondition>,
    steps: Vec<Step>,
    next: Option<Duration>,
    /// Whether jobs decide.
    pub(super) needs_jobs: bool,
}

/// Whether it must be known which pods have the key.
pub(super) fn needs_users(live: Option<&LiveRing>, wanted: Option<&SlurmKey>) -> bool {
    live.is_none_or(|live| live.phase != Phase::None || wanted.is_some_and(|wanted| *wanted != live.ring.default))
}

impl Keys {
    pub(super) fn of(controller: &Controller, facts: &Facts, now: Timestamp) -> Self {
        let Some(reference) = controller.spec.slurm_key_ref.as_ref().filter(|_| !controller.spec.external) else {
            return Self::default();
        };
        let (keys, name) = (&facts.keys, names::key_ring(reference));
        let live = match &keys.secret {
            Some(RingSecret { live: None, .. }) => return Self::blocked("NameTaken", taken(&name)),
            Some(RingSecret { live: Some(live), .. }) => Some(live),
            None => None,
        };
        if let (None, Some(wanted)) = (live, &keys.wanted) {
            let used = facts.stateful_set.as_ref().and_then(used_key);
            let is_wanted = |used: &str| used == wanted.hash() || keys.users_secret.as_deref() == Some(used);
            if used.is_some_and(|used| !is_wanted(used)) && has_worked(controller, facts.stateful_set.as_ref()) {
                return Self::blocked(REFUSED, changed(reference));
            }
        }
        let obstacle = keys.obstacle.clone().or_else(|| step_managers(controller));
        let wants_other = live.is_some_and(|live| keys.wanted.as_ref().is_some_and(|key| *key != live.ring.default));
        let is_refused = obstacle.is_some() && wants_other && live.is_some_and(|live| live.phase == Phase::None);
        let wanted = keys.wanted.as_ref().filter(|_| !is_refused);
        let Some(mut decision) = keyring::decide(live, wanted, keys.users.as_deref()) else {
            return if keys.wanted.is_some() { Self::blocked("KeyRingLost", lost(&name)) } else { Self::default() };
        };
        let needs_jobs = facts.slurm.is_some() && live.is_some() && needs_users(live, wanted);
        let mut hold = None;
        if let Some(live) = live.filter(|live| decision.live.ring != live.ring) {
            hold = jobs_in_the_way(facts);
            if hold.is_some() {
                decision.live = live.clone();
            }
        }
        let is_new = live != Some(&decision.live);
        let secret = secret(facts, controller.namespace(), &name, &decision.live);
        let mut left: Vec<&KeyUser> = decision.left.iter().collect();
        left.sort_by_key(|user| user.asked.as_deref());
        let steps = left.into_iter().filter_map(|user| read_keys(user, &decision.live, now)).take(BURST).collect();
        let is_moving = is_new || hold.is_some() || decision.live.phase != Phase::None;
        let problem = match hash_of(&facts.slurm_key, Some(reference), "Slurm's key", "spec.slurmKeyRef") {
            Err(problem) => Some(problem),
            // The ring has a longer one.
            Ok(_) if keys.wanted.is_none() => Some(Problem::new("KeyTooShort", too_short(reference))),
            Ok(_) => obstacle.filter(|_| is_refused).map(|why| Problem::new(REFUSED, refused(reference, &why))),
        };
        let condition = match &problem {
            Some(problem) => {
                let message = format!("daemons go on with the key that they have: {}", problem.message);
                NewCondition::new(SLURM_KEY_IN_USE, false, problem.reason, message)
            }
            None => hold.unwrap_or_else(|| condition(reference, &decision, is_new)),
        };
        Self {
            ring: Some(ObservedRing::new(name, decision.live)),
            secret: Some(secret),
            blocked: None,
            problem,
            condition: Some(condition),
            steps,
            next: is_moving.then_some(RECHECK),
            needs_jobs,
        }
    }

    fn blocked(reason: &'static str, message: String) -> Self {
        let condition = NewCondition::new(SLURM_KEY_IN_USE, false, reason, message.as_str());
        Self { blocked: Some(Problem::new(reason, message)), condition: Some(condition), ..Self::default() }
    }

    /// Adds the condition, and what daemons are to do.
    pub(super) fn add_to(self, plan: &mut Plan<ControllerStatus>) {
        plan.conditions.extend(self.condition);
        if !self.steps.is_empty() {
            plan.stages.push(self.steps);
        }
        if let Some(delay) = self.next.filter(|delay| !matches!(plan.next, Next::After(earlier) if earlier < *delay)) {
            plan.next = Next::After(delay);
        }
    }
}

/// The hash of the key that slurmctld was started with.
fn used_key(live: &StatefulSet) -> Option<&str> {
    let annotations = live.spec.as_ref()?.template.metadata.as_ref()?.annotations.as_ref()?;
    annotations.get(hash::SLURM_KEY).map(String::as_str)
}

/// Whether there can be workers.
pub(super) fn has_worked(controller: &Controller, live: Option<&StatefulSet>) -> bool {
    let is_ready = live.and_then(|live| live.status.as_ref()?.ready_replicas).unwrap_or(0) > 0;
    is_ready || controller.status.as_ref().is_some_and(|status| status.slurm_version.is_some())
}

/// Jobs with a step manager have the keys of the time when they started.
fn step_managers(controller: &Controller) -> Option<String> {
    let extra = Extra::new(controller.spec.extra_conf.as_deref().unwrap_or_default());
    let is_set =
        extra.get("SlurmctldParameters").is_some_and(|text| text.to_ascii_lowercase().contains("enable_stepmgr"));
    is_set.then(|| {
        "SlurmctldParameters=enable_stepmgr in spec.extraConf gives every job a step manager, which keeps the key of the time when \
         the job started. Remove it, and wait until all jobs that started before have ended"
            .to_owned()
    })
}

/// Jobs that may lose their steps in the next step of a change. Without a RestApi they cannot be seen.
fn jobs_in_the_way(facts: &Facts) -> Option<NewCondition> {
    facts.slurm.as_ref()?;
    let condition = |reason, message| Some(NewCondition::new(SLURM_KEY_IN_USE, false, reason, message));
    let Some(jobs) = facts.snapshot.as_ref().and_then(|snapshot| snapshot.jobs.read()) else {
        let message = "the next step of the change waits until it is known whether running jobs have a step manager";
        return condition("JobsNotKnown", message.to_owned());
    };
    let ids: Vec<String> = jobs.step_managers.iter().map(ToString::to_string).collect();
    if ids.is_empty() {
        return None;
    }
    let message = format!(
        "the next step of the change waits until these jobs have ended, because their step managers (--stepmgr) keep the keys of the \
         time when the jobs started: {}",
        summary(&ids)
    );
    condition("JobsWithStepManager", message)
}

/// Several Controllers may write it: the version makes sure that none goes back.
fn secret(facts: &Facts, namespace: Option<String>, name: &str, live: &LiveRing) -> Desired {
    let found = facts.keys.secret.as_ref();
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace,
        labels: Some(StringMap::from([(label::MANAGED_BY.to_owned(), "slurm-operator".to_owned())])),
        owner_references: Some(facts.keys.owners.clone()),
        resource_version: found.and_then(|found| found.object.resource_version()),
        ..ObjectMeta::default()
    };
    Desired { seen: found.map(|found| found.seen), ..live.secret(&VOCABULARY, metadata) }
}

/// slurmd and sackd read new keys without a restart. The other daemons restart with a new template.
fn read_keys(user: &KeyUser, live: &LiveRing, now: Timestamp) -> Option<Step> {
    let (program, folder) = match user.daemon {
        SLURMD => ("slurmd", ETC),
        LOGIN => ("sackd", STAGED_KEYS),
        _ => return None,
    };
    (user.has_read != HasRead::UsersSecret).then(|| {
        Step::ReadKeys(Box::new(ReadKeys {
            pod: user.pod.clone(),
            container: user.daemon.program,
            program,
            folder,
            hash: live.ring.hash(),
            asked: (annotation::KEY_RING_ASKED, now.to_string()),
            read: annotation::KEY_RING_READ,
        }))
    })
}

fn condition(reference: &SecretKeySelector, decision: &keyring::Decision, is_new: bool) -> NewCondition {
    let SecretKeySelector { name, key, .. } = reference;
    let (reason, what) = match decision.live.phase {
        Phase::None => {
            let message = format!("all daemons use {key} of the Secret {name}");
            return NewCondition::new(SLURM_KEY_IN_USE, true, reason::AS_EXPECTED, message);
        }
        Phase::Replacing => (
            "ReplacingPods",
            format!(
                "{key} of the Secret {name} is new. Pods that read this Secret itself, because an earlier release has made them, are \
                 replaced first, workers when they are drained"
            ),
        ),
        Phase::Adding => ("AddingKey", "step 1 of 3: daemons learn the new key".to_owned()),
        Phase::Switching => ("SwitchingKey", "step 2 of 3: daemons begin to use the new key".to_owned()),
        Phase::Removing => ("RemovingKey", "step 3 of 3: daemons forget the old key".to_owned()),
    };
    let left: Vec<String> = decision.left.iter().map(KeyUser::name_and_problem).collect();
    let left = match left.as_slice() {
        [] if is_new => "no daemon has been asked yet".to_owned(),
        [] => "all daemons have".to_owned(),
        left => format!("{} left: {}", left.len(), summary(left)),
    };
    NewCondition::new(SLURM_KEY_IN_USE, false, reason, format!("{what}; {left}"))
}

fn taken(name: &str) -> String {
    format!("a Secret {name} exists and is not a key ring of the operator: delete or rename it")
}

fn changed(reference: &SecretKeySelector) -> String {
    format!(
        "{} of the Secret {} is not the key that the daemons use, and they cannot be given another one step by step, because the operator \
         does not have the old one: set the old key back, and change it when the condition {SLURM_KEY_IN_USE} is True",
        reference.key, reference.name
    )
}

fn lost(name: &str) -> String {
    format!(
        "the Secret {name} was deleted while the key was changed, so it is not known which keys daemons have: restore it from a backup. \
         Without one, end all jobs and delete the pods of all daemons with the annotation {}",
        annotation::KEY_RING
    )
}

fn too_short(reference: &SecretKeySelector) -> String {
    format!(
        "{} of the Secret {} has fewer than {} bytes: set a longer one",
        reference.key,
        reference.name,
        keyring::MIN_LENGTH
    )
}

fn refused(reference: &SecretKeySelector, why: &str) -> String {
    format!(
        "{} of the Secret {} is new, and is not used: {why}; or set the old key back",
        reference.key, reference.name
    )
}
