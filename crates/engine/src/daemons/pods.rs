//! Why a pod is not ready, for status messages.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus},
};
use kube::ResourceExt;

/// Why a pod is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProblem {
    /// The pod and its problem, for a message.
    pub text: String,
    /// Whether the pod is unlikely to become ready without user action.
    pub is_stuck: bool,
}

/// A pod that is not scheduled after this time will not be without help.
pub(crate) const SCHEDULED_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// Waiting reasons of a container that starts normally.
const USUAL: &[&str] = &["ContainerCreating", "PodInitializing"];

/// How much of a container's last words is shown.
const MAX_WORDS: usize = 300;

/// Returns why a pod is not ready, or `None` if it is ready.
pub fn pod_problem(pod: &Pod, now: Timestamp) -> Option<PodProblem> {
    let status = pod.status.clone().unwrap_or_default();
    if holds(&status, "Ready") {
        return None;
    }
    let (what, is_stuck) = if pod.metadata.deletion_timestamp.is_some() {
        ("is being deleted".to_owned(), false)
    } else {
        problem(&status).unwrap_or_else(|| ("is not ready yet".to_owned(), false))
    };
    // With a claim that is created on demand, every pod is unschedulable for some seconds.
    let is_young = pod.creation_timestamp().is_some_and(|created| now < created.0 + SCHEDULED_WITHIN);
    let is_stuck = is_stuck && !(is_young && is_unscheduled(&status));
    Some(PodProblem { text: format!("pod {} {what}", pod.name_any()), is_stuck })
}

/// Whether a pod of this `StatefulSet` is not ready and does not have the update revision. Always false until the
/// `StatefulSet` controller has observed the current generation: before that, `updateRevision` is out of date.
pub fn is_outdated(pod: &Pod, of: &StatefulSet) -> bool {
    let status = of.status.clone().unwrap_or_default();
    let is_observed = status.observed_generation >= of.metadata.generation;
    let is_owned = pod.owner_references().iter().any(|owner| Some(&owner.uid) == of.metadata.uid.as_ref());
    let is_old = status
        .update_revision
        .is_some_and(|newest| pod.labels().get("controller-revision-hash").is_some_and(|revision| *revision != newest));
    let is_ready = pod.status.as_ref().is_some_and(|status| holds(status, "Ready"));
    is_observed && is_owned && is_old && !is_ready && pod.metadata.deletion_timestamp.is_none()
}

/// Summarizes pod problems in one line: stuck pods first, at most three.
pub fn summary(pod_problems: &[PodProblem]) -> Option<PodProblem> {
    let mut sorted: Vec<&PodProblem> = pod_problems.iter().collect();
    sorted.sort_by_key(|pod_problem| (!pod_problem.is_stuck, pod_problem.text.clone()));
    let is_stuck = sorted.first()?.is_stuck;
    let shown: Vec<&str> = sorted.iter().take(3).map(|pod_problem| pod_problem.text.as_str()).collect();
    let more =
        if sorted.len() > shown.len() { format!("; and {} more", sorted.len() - shown.len()) } else { String::new() };
    Some(PodProblem { text: format!("{}{more}", shown.join("; ")), is_stuck })
}

fn holds(status: &PodStatus, condition: &str) -> bool {
    status.conditions.iter().flatten().any(|found| found.type_ == condition && found.status == "True")
}

fn unscheduled(status: &PodStatus) -> Option<&PodCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

fn is_unscheduled(status: &PodStatus) -> bool {
    unscheduled(status).is_some()
}

fn problem(status: &PodStatus) -> Option<(String, bool)> {
    if let Some(condition) = unscheduled(status) {
        let message = condition.message.clone().unwrap_or_default();
        return Some((format!("cannot be scheduled: {message}"), true));
    }
    let inits = status.init_container_statuses.iter().flatten();
    let containers: Vec<&ContainerStatus> = inits.chain(status.container_statuses.iter().flatten()).collect();
    containers.iter().find_map(|container| waiting(container)).or_else(|| containers.iter().find_map(|c| ended(c)))
}

fn waiting(container: &ContainerStatus) -> Option<(String, bool)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !USUAL.contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let last = last_words(container);
    Some((format!("is waiting in container {}, {reason}: {message}{last}", container.name), true))
}

fn ended(container: &ContainerStatus) -> Option<(String, bool)> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    if ended.exit_code == 0 {
        return None;
    }
    let words = words(ended);
    Some((format!("failed in container {} with exit code {}{words}", container.name, ended.exit_code), true))
}

/// The last exit code of a restarting container.
fn last_words(container: &ContainerStatus) -> String {
    let ended = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    ended.map_or_else(String::new, |ended| format!(" (last exit code {}{})", ended.exit_code, words(ended)))
}

/// What a container said when it ended: the last line about a fatal error, or the last line. Only containers with
/// `FallbackToLogsOnError` have such a message.
fn words(ended: &ContainerStateTerminated) -> String {
    let lines = ended.message.as_deref().unwrap_or_default().lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.collect();
    let fatal = lines.iter().rfind(|line| line.contains("fatal: "));
    fatal
        .or(lines.last())
        .map_or_else(String::new, |line| format!(": {}", line.chars().take(MAX_WORDS).collect::<String>()))
}
