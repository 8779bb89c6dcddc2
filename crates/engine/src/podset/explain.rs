//! Where each worker is, and why: for people. It tells what [`super::plan()`] would decide, and decides nothing itself.

use jiff::Timestamp;
use slurm::states::{NodeState, NodeStates};

use super::{
    choose,
    context::{Context, DecisionBuilder},
    decision::Cause,
    facts::{Cordon, Facts, Hold, SlurmNode},
    model::{Budget, Life, Model, Update},
    removal_safety::{Blocker, RemovalDecision, may_remove, registers_until, time},
    trust::NodeObservation,
    update::{is_held, is_old},
    worker_state::{self, Deadline, WorkerState},
};

/// The workers of a set, and how many there should be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    pub desired: u32,
    /// Wanted workers without a pod that stays.
    pub missing: u32,
    /// Sorted by ordinal and name.
    pub workers: Vec<Standing>,
}

/// Where one worker is.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    pub pod: String,
    /// The name of its Slurm node, once it is known.
    pub slurm_node: Option<String>,
    /// The Kubernetes node where it runs.
    pub kube_node: Option<String>,
    /// The states of its Slurm node, as far as they can be trusted.
    pub states: Option<NodeStates>,
    /// When its last job ends.
    pub deadline: Deadline,
    pub why: Why,
    /// Why it still has an old template. `None` if it has the newest one, or is to be removed.
    pub outdated: Option<Delay>,
}

/// Why a worker is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Jobs can run there.
    InService,
    /// Its pod is being deleted.
    Terminating,
    /// It is to be removed, and the blocker says what that waits for.
    Leaving { cause: Cause, blocker: Option<Blocker> },
    /// Its pod is not ready; the kubelet or the scheduler may say why.
    PodNotReady { problem: Option<String> },
    /// slurmd runs and should register until this time.
    Registering { until: Option<Timestamp> },
    /// slurmd runs and should have registered.
    NotRegistered,
    /// It was registered, and slurmctld does not know it any more.
    UnknownToSlurm,
    /// Slurm cannot be asked.
    SlurmUnknown,
    /// A write of the operator is not confirmed yet.
    Settling,
    /// It is drained because its Kubernetes node is cordoned, or a user has cordoned its pod.
    Cordoned { reason: String },
    /// An admin or another program has drained it.
    Held { reason: String },
    /// Slurm has set it down.
    Down { reason: String },
    /// A drain of the operator that is over.
    Returning,
    /// slurmctld does not reach slurmd.
    NotResponding,
    /// slurmd has registered with less than slurm.conf says, so slurmctld has drained it.
    InvalidRegistration { reason: String },
    /// Another state in which no job starts there.
    OutOfService { reason: String },
}

/// Why an outdated worker is not replaced yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Others are replaced first; at most this many may be out of service.
    Turn {
        max_unavailable: u32,
    },
    /// No worker may be out of service.
    NoBudget,
    /// A user, an admin or a cordon keeps it out of service.
    Held,
    /// A user must delete the pod.
    OnDelete,
    /// It is replaced in a reservation.
    Scheduled {
        start: Timestamp,
    },
    /// The spec is refused, or something that it needs is missing.
    Blocked,
    Paused,
    SlurmUnknown,
}

impl Why {
    /// Whether jobs can run there.
    pub fn is_in_service(&self) -> bool {
        *self == Self::InService
    }

    /// One of a fixed set of words, for programs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InService => "InService",
            Self::Terminating => "Terminating",
            Self::Leaving { blocker: Some(blocker), .. } => blocker.reason(),
            Self::Leaving { blocker: None, .. } => "Leaving",
            Self::PodNotReady { .. } => "PodNotReady",
            Self::Registering { .. } => "Registering",
            Self::NotRegistered => "NotRegistered",
            Self::UnknownToSlurm => "UnknownToSlurm",
            Self::SlurmUnknown => "SlurmUnknown",
            Self::Settling => "Unconfirmed",
            Self::Cordoned { .. } => "Cordoned",
            Self::Held { .. } => "Held",
            Self::Down { .. } => "Down",
            Self::Returning => "Returning",
            Self::NotResponding => "NotResponding",
            Self::InvalidRegistration { .. } => "InvalidRegistration",
            Self::OutOfService { .. } => "OutOfService",
        }
    }

    /// Why it is to be removed.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Leaving { cause, .. } => Some(*cause),
            _ => None,
        }
    }

    /// What its removal waits for.
    pub fn blocker(&self) -> Option<Blocker> {
        match self {
            Self::Leaving { blocker, .. } => *blocker,
            _ => None,
        }
    }

    /// For messages to users.
    pub fn text(&self, now: Timestamp) -> String {
        let with = |text: &str, reason: &str| match reason {
            "" => text.to_owned(),
            _ => format!("{text}: {reason}"),
        };
        match self {
            Self::InService => "in service".to_owned(),
            Self::Terminating => "its pod is being deleted".to_owned(),
            Self::Leaving { cause, blocker: Some(blocker) } => {
                format!("to be removed ({}): {}", cause.text(), blocker.text(now))
            }
            Self::Leaving { cause, blocker: None } => format!("is removed now ({})", cause.text()),
            Self::PodNotReady { problem: Some(problem) } => format!("its pod is not ready: {problem}"),
            Self::PodNotReady { problem: None } => "its pod is starting".to_owned(),
            Self::Registering { until: Some(until) } => {
                format!("waits until slurmd has registered, at the latest until {}", time(*until, now))
            }
            Self::Registering { until: None } => "waits until slurmd has registered".to_owned(),
            Self::NotRegistered => "slurmd is running but has not registered: see its log".to_owned(),
            Self::UnknownToSlurm => "slurmd is running, but slurmctld does not know it".to_owned(),
            Self::SlurmUnknown => "the state of Slurm is unknown".to_owned(),
            Self::Settling => "waiting for Slurm to confirm the last change".to_owned(),
            Self::Cordoned { reason } => with("drained because of a cordon", reason),
            Self::Held { reason } => with("drained by an admin, who must resume it", reason),
            Self::Down { reason } => with("down", reason),
            Self::Returning => "returns to service".to_owned(),
            Self::NotResponding => "slurmctld does not reach slurmd".to_owned(),
            Self::InvalidRegistration { reason } => with("slurmd has registered with less than configured", reason),
            Self::OutOfService { reason } => with("no job starts there", reason),
        }
    }
}

impl Delay {
    /// For messages to users.
    pub fn text(self) -> String {
        match self {
            Self::Turn { max_unavailable } => {
                format!("waits for its turn, as at most {max_unavailable} may be out of service")
            }
            Self::NoBudget => "is not replaced, as maxUnavailable is 0".to_owned(),
            Self::Held => "is not replaced while a user, an admin or a cordon keeps it out of service".to_owned(),
            Self::OnDelete => "is replaced when its pod is deleted (OnDelete)".to_owned(),
            Self::Scheduled { start } => format!("is replaced in the reservation from {start:.0} on"),
            Self::Blocked => "is not replaced while the set has a problem".to_owned(),
            Self::Paused => "is not replaced while the set is paused".to_owned(),
            Self::SlurmUnknown => "is not replaced while the state of Slurm is unknown".to_owned(),
        }
    }
}

/// Explains where the workers of a set are.
pub fn explain(model: &Model, facts: &Facts, now: Timestamp) -> Explanation {
    let context = Context::new(model, facts, now);
    let mut workers = worker_state::gather(&context);
    let scale = choose(&context, &mut workers, &mut DecisionBuilder::default());
    Explanation {
        desired: scale.desired,
        missing: scale.missing,
        workers: workers.iter().map(|state| standing(&context, state, scale.desired)).collect(),
    }
}

fn standing(context: &Context<'_>, state: &WorkerState<'_>, desired: u32) -> Standing {
    let worker = state.worker;
    Standing {
        pod: worker.name.clone(),
        slurm_node: state.name.map(str::to_owned),
        kube_node: worker.node.clone(),
        states: state.observation.node().map(|node| node.states.clone()),
        deadline: state.deadline,
        why: why(context, state),
        outdated: is_old(context.model, state).then(|| delay(context, state, desired)),
    }
}

fn why(context: &Context<'_>, state: &WorkerState<'_>) -> Why {
    let worker = state.worker;
    if worker.terminating {
        return Why::Terminating;
    }
    if let Some(cause) = state.removal {
        let blocker = match may_remove(context, state, cause) {
            RemovalDecision::Now => None,
            RemovalDecision::Wait(blocker) => Some(blocker),
        };
        return Why::Leaving { cause, blocker };
    }
    if !worker.is_healthy() {
        return Why::PodNotReady { problem: worker.problem.clone() };
    }
    match state.observation {
        NodeObservation::Blind => Why::SlurmUnknown,
        NodeObservation::Pending(..) => Why::Settling,
        NodeObservation::Absent if worker.has_registered() => Why::UnknownToSlurm,
        NodeObservation::Absent => match registers_until(state) {
            Some(until) if context.now >= until => Why::NotRegistered,
            until => Why::Registering { until },
        },
        NodeObservation::Known(node) => why_of_node(context.model, state, node),
    }
}

fn why_of_node(model: &Model, state: &WorkerState<'_>, node: &SlurmNode) -> Why {
    let (states, reason) = (&node.states, || node.reason.clone());
    let hold = node.hold(model.vocabulary);
    // Who may not read Kubernetes nodes sees the cordon in the annotation.
    let is_cordoned = state.is_cordoned() || state.worker.cordon == Cordon::Node;
    match hold {
        Hold::Foreign if states.has(NodeState::InvalidReg) => Why::InvalidRegistration { reason: reason() },
        Hold::Foreign if states.is_drain() => Why::Held { reason: reason() },
        _ if states.is_down() => Why::Down { reason: reason() },
        Hold::Ours if states.is_drain() && is_cordoned => Why::Cordoned { reason: reason() },
        _ if states.has(NodeState::InvalidReg) => Why::InvalidRegistration { reason: reason() },
        Hold::Ours if states.is_drain() => Why::Returning,
        _ if states.has(NodeState::NotResponding) => Why::NotResponding,
        _ if !states.is_registered() => Why::Registering { until: None },
        _ if states.is_available() => Why::InService,
        _ => Why::OutOfService { reason: reason() },
    }
}

/// Why an outdated worker that stays is not replaced.
fn delay(context: &Context<'_>, state: &WorkerState<'_>, desired: u32) -> Delay {
    let model = context.model;
    if model.life == Life::Paused {
        return Delay::Paused;
    }
    if model.blocked.is_some() {
        return Delay::Blocked;
    }
    let budget = |max: Budget| max.of(desired);
    match &model.update {
        Update::OnDelete => Delay::OnDelete,
        Update::Scheduled(schedule) => Delay::Scheduled { start: schedule.start },
        Update::Rolling { max_unavailable } if budget(*max_unavailable) == 0 => Delay::NoBudget,
        Update::Rolling { .. } if context.slurm.snapshot().is_none() => Delay::SlurmUnknown,
        Update::Rolling { .. } if is_held(state) => Delay::Held,
        Update::Rolling { max_unavailable } => Delay::Turn { max_unavailable: budget(*max_unavailable) },
    }
}
