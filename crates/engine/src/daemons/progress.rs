//! Conditions of a daemon, from the state of its workload.

use k8s_openapi::{
    api::apps::v1::{Deployment, StatefulSet},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use slurm_operator_api::common::{
    conditions::{DEGRADED, INSECURE, PROGRESSING, READY, reason},
    validation::FieldError,
};

use super::pods::PodProblem;
use crate::{conditions::NewCondition, plan::Event};

/// A problem that needs user action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The condition reason.
    pub reason: &'static str,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Problem {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// A problem with reason `InvalidSpec`.
    pub fn invalid(message: impl std::fmt::Display) -> Self {
        Self::new(reason::INVALID_SPEC, message.to_string())
    }

    /// All invalid fields as one problem; `None` if there are none.
    pub fn of_fields(errors: &[FieldError]) -> Option<Self> {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| Self::invalid(texts.join("; ")))
    }

    /// The problem as a warning event.
    pub fn event(&self) -> Event {
        Event { is_warning: true, reason: self.reason, text: self.message.clone() }
    }
}

/// The condition for what works, but is easier to attack than it has to be.
pub fn insecure(warnings: &[Problem]) -> Option<NewCondition> {
    let texts: Vec<&str> = warnings.iter().map(|warning| warning.message.as_str()).collect();
    warnings.first().map(|first| NewCondition::new(INSECURE, true, first.reason, texts.join("; ")))
}

/// The rollout state of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Does not exist yet; the text says why.
    Absent(String),
    /// Is being replaced; the text says why.
    Replacing(String),
    /// The rollout of the desired spec is not complete.
    Updating,
    /// Rolled out, but some pods are not ready.
    NotReady { ready: i32, wanted: i32 },
    /// All pods are up to date and ready.
    Ready,
}

/// The fields that `StatefulSet` and Deployment have in common.
struct ReplicaCounts<'a> {
    metadata: &'a ObjectMeta,
    observed: i64,
    wanted: i32,
    updated: i32,
    ready: i32,
    /// Whether pods of an older revision, or surplus pods, still exist.
    old: bool,
}

/// Returns the progress of a `StatefulSet`. `is_applied` says whether it has the desired spec.
pub fn of_stateful_set(live: Option<&StatefulSet>, is_applied: bool) -> Progress {
    let Some(live) = live else { return starting() };
    let status = live.status.clone().unwrap_or_default();
    let wanted = live.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let counts = ReplicaCounts {
        metadata: &live.metadata,
        observed: status.observed_generation.unwrap_or(0),
        wanted,
        updated: status.updated_replicas.unwrap_or(0),
        ready: status.ready_replicas.unwrap_or(0),
        old: status.replicas > wanted,
    };
    progress(is_applied, &counts)
}

/// Returns the progress of a Deployment. `is_applied` says whether it has the desired spec.
pub fn of_deployment(live: Option<&Deployment>, is_applied: bool) -> Progress {
    let Some(live) = live else { return starting() };
    let status = live.status.clone().unwrap_or_default();
    let wanted = live.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let counts = ReplicaCounts {
        metadata: &live.metadata,
        observed: status.observed_generation.unwrap_or(0),
        wanted,
        updated: status.updated_replicas.unwrap_or(0),
        ready: status.ready_replicas.unwrap_or(0),
        old: status.replicas.unwrap_or(0) > status.updated_replicas.unwrap_or(0),
    };
    progress(is_applied, &counts)
}

fn starting() -> Progress {
    Progress::Absent("it is being created".to_owned())
}

fn progress(is_applied: bool, counts: &ReplicaCounts) -> Progress {
    if !is_applied {
        return Progress::Updating;
    }
    if counts.metadata.generation.is_some_and(|generation| counts.observed < generation) {
        return Progress::Updating;
    }
    if counts.ready < counts.wanted && counts.updated >= counts.wanted {
        return Progress::NotReady { ready: counts.ready, wanted: counts.wanted };
    }
    if counts.updated < counts.wanted || counts.old {
        return Progress::Updating;
    }
    Progress::Ready
}

/// Returns the conditions Ready, Progressing and Degraded.
///
/// A daemon that runs well despite a problem is both Ready and Degraded: the problem blocks the next change.
pub fn daemon_conditions(
    program: &str,
    progress: &Progress,
    problems: &[Problem],
    pod_problem: Option<&PodProblem>,
) -> Vec<NewCondition> {
    let problem = merged(problems);
    let (is_ready, why, mut text) = describe(program, progress);
    if let (false, Some(pod_problem)) = (is_ready, pod_problem) {
        text = format!("{text}: {}", pod_problem.text);
    }
    let blocked = problem.as_ref().filter(|_| !is_ready);
    let ready = match blocked {
        Some(problem) => NewCondition::new(READY, false, problem.reason, problem.message.as_str()),
        None => NewCondition::new(READY, is_ready, why, text.as_str()),
    };
    let progressing = match (is_ready, &blocked) {
        (false, None) => NewCondition::new(PROGRESSING, true, why, text.as_str()),
        _ => NewCondition::new(PROGRESSING, false, reason::AS_EXPECTED, ""),
    };
    let stuck = pod_problem.filter(|pod_problem| pod_problem.is_stuck && !is_ready);
    let degraded = match (problem, stuck) {
        (Some(problem), _) => NewCondition::new(DEGRADED, true, problem.reason, problem.message.as_str()),
        (None, Some(pod_problem)) => {
            NewCondition::new(DEGRADED, true, reason::PODS_NOT_READY, pod_problem.text.as_str())
        }
        (None, None) => NewCondition::new(DEGRADED, false, reason::AS_EXPECTED, ""),
    };
    vec![ready, progressing, degraded]
}

fn describe(program: &str, progress: &Progress) -> (bool, &'static str, String) {
    match progress {
        Progress::Absent(why) => (false, "Starting", format!("{program} is not running yet: {why}")),
        Progress::Replacing(why) => (false, "Replacing", format!("{program} is being replaced: {why}")),
        Progress::Updating => (false, reason::UPDATING, format!("{program} is being updated")),
        Progress::NotReady { ready, wanted } => {
            (false, reason::PODS_NOT_READY, format!("{ready} of {wanted} {program} pods are ready"))
        }
        Progress::Ready => (true, reason::AS_EXPECTED, format!("{program} is ready")),
    }
}

fn merged(problems: &[Problem]) -> Option<Problem> {
    let first = problems.first()?;
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    Some(Problem::new(first.reason, messages.join("; ")))
}
