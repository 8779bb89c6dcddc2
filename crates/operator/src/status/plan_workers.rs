//! The workers of a set: from what its pods show to lines, progress and what needs attention.

use std::{collections::BTreeMap, sync::Arc};

use engine::podset::{
    self, Blocker, Cause, Deadline, Explanation, Life, Model, SlurmNode, SlurmObservation, Snapshot, Standing, Why,
    Worker, states_of,
};
use jiff::{SignedDuration, Timestamp};
use slurm::{hostlist, states::NodeStates};
use slurm_operator_api::{
    common::conditions::{self, SLURM_REACHABLE},
    slinky::NodeSet,
};

use super::model::{Attention, Facts, Health, Object, Pod, Progress, Workers};
use crate::frontends::slinky::nodeset::lifecycle_of_viewer;

/// Workers that leave have a line each, up to this number.
const MOST_LINES: usize = 20;

/// The workers of a set.
pub struct SetFacts<'a> {
    /// All its pods.
    pub pods: Vec<&'a Pod>,
    /// As far as the set and its status show.
    pub model: Model,
    pub explanation: Explanation,
}

/// The pods that a set owns.
fn pods_of<'a>(set: &Object, facts: &'a Facts) -> Vec<&'a Pod> {
    let uid = set.text("/metadata/uid");
    let is_own = |pod: &&Pod| pod.worker.as_ref().is_some_and(|worker| worker.set == uid);
    facts.pods.iter().filter(is_own).collect()
}

/// Explains where the workers of a set are, or says why that cannot be told.
pub fn explain<'a>(
    set: &Object,
    controller: Option<&Object>,
    facts: &'a Facts,
    now: Timestamp,
) -> Result<SetFacts<'a>, String> {
    let decoded: NodeSet = serde_json::from_value(set.value.clone())
        .map_err(|error| format!("its workers cannot be explained, as its spec cannot be decoded: {error}"))?;
    let model = lifecycle_of_viewer(&decoded);
    let pods = pods_of(set, facts);
    let workers: Vec<Arc<Worker>> =
        pods.iter().filter_map(|pod| pod.worker.as_ref()).map(|found| Arc::clone(&found.worker)).collect();
    let seen = podset::Facts {
        slurm: slurm(controller, &workers, now),
        workers,
        nodes: facts.nodes.clone(),
        ..podset::Facts::default()
    };
    let explanation = podset::explain(&model, &seen, now);
    Ok(SetFacts { pods, model, explanation })
}

/// Slurm, as the Controller and the conditions of worker pods report it.
fn slurm(controller: Option<&Object>, workers: &[Arc<Worker>], now: Timestamp) -> SlurmObservation {
    let Some(controller) = controller else {
        return SlurmObservation::NoClient { why: "its Controller could not be read".to_owned() };
    };
    let conditions = controller.conditions();
    match conditions::find(&conditions, SLURM_REACHABLE) {
        Some(found) if found.status == "True" => SlurmObservation::Clear(Arc::new(snapshot(workers, now))),
        Some(found) if found.status == "False" => {
            SlurmObservation::Blind { since: found.last_transition_time.0, why: found.message.clone() }
        }
        Some(found) => SlurmObservation::NoClient { why: found.message.clone() },
        None => SlurmObservation::NoClient { why: "the operator has not reported on Slurm yet".to_owned() },
    }
}

fn snapshot(workers: &[Arc<Worker>], now: Timestamp) -> Snapshot {
    let node = |worker: &Arc<Worker>| {
        let (states, reason) = states_of(&worker.conditions)?;
        let node = SlurmNode { states, reason: reason.to_owned(), ..SlurmNode::default() };
        Some((worker.slurm_node()?.to_owned(), node))
    };
    Snapshot {
        nodes: Arc::new(workers.iter().filter_map(node).collect()),
        read_at: now,
        period: SignedDuration::from_secs(1),
        // The operator has decided whether slurmctld knows its nodes again; the conditions say what it found.
        ctld_started: Some(Timestamp::UNIX_EPOCH),
        clock_ahead: None,
        version: None,
        pending: std::collections::HashMap::new(),
        jobs: podset::Jobs::Unread,
        reservations: None,
    }
}

impl SetFacts<'_> {
    pub fn is_paused(&self) -> bool {
        self.model.life == Life::Paused
    }

    /// The pod of a worker.
    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.name == name).copied()
    }

    /// The states of a worker's Slurm node; the last known ones if Slurm cannot be asked.
    pub fn states(&self, standing: &Standing) -> Option<NodeStates> {
        let known =
            || states_of(&self.pod(&standing.pod)?.worker.as_ref()?.worker.conditions).map(|(states, _)| states);
        standing.states.clone().or_else(known)
    }

    /// When the drain of a worker began.
    pub fn drained_since(&self, standing: &Standing) -> Option<Timestamp> {
        self.pod(&standing.pod)?.worker.as_ref()?.drained_since
    }

    /// One line for workers in the same situation, those that leave first.
    pub fn lines(&self, now: Timestamp) -> Vec<Workers> {
        let (mut leaving, others): (Vec<&Standing>, Vec<&Standing>) =
            self.explanation.workers.iter().partition(|found| found.why.blocker().is_some());
        leaving.sort_by_key(|found| std::cmp::Reverse(found.why.blocker()));
        let mut lines: Vec<Workers> =
            leaving.iter().take(MOST_LINES).map(|found| self.line(found, found.why.text(now))).collect();
        let more = leaving.iter().skip(MOST_LINES).map(|found| self.line(found, removal_of(&found.why)));
        let others = others.into_iter().map(|found| self.line(found, why(found, now)));
        let mut groups: BTreeMap<(Health, String, String), Workers> = BTreeMap::new();
        for line in more.chain(others) {
            let key = (line.health, line.state.clone(), line.why.clone());
            match groups.get_mut(&key) {
                None => drop(groups.insert(key, line)),
                Some(group) => {
                    group.nodes.extend(line.nodes);
                    group.jobs_end = group.jobs_end.max(line.jobs_end);
                    group.drained_since = None;
                }
            }
        }
        lines.extend(groups.into_values());
        lines
    }

    fn line(&self, standing: &Standing, why: String) -> Workers {
        let states = self.states(standing);
        Workers {
            nodes: vec![standing.slurm_node.clone().unwrap_or_else(|| standing.pod.clone())],
            state: states.map_or_else(|| "-".to_owned(), |states| states.to_string().to_lowercase()),
            health: health(&standing.why),
            why,
            jobs_end: Some(standing.deadline).filter(|deadline| *deadline != Deadline::Now),
            drained_since: self.drained_since(standing).filter(|_| standing.why.cause().is_some()),
        }
    }

    /// How far an update, a removal and a scale-out are.
    pub fn progress(&self, update: &str) -> Vec<Progress> {
        let Explanation { desired, workers, .. } = &self.explanation;
        let count = |holds: &dyn Fn(&Standing) -> bool| {
            u32::try_from(workers.iter().filter(|found| holds(found)).count()).unwrap_or(u32::MAX)
        };
        let is_of_update = |found: &Standing| found.why.cause() == Some(Cause::Update);
        let old = count(&|found| found.outdated.is_some() || is_of_update(found));
        let leaving = count(&|found| found.why.cause().is_some());
        let ending = count(&|found| found.why == Why::Terminating);
        let in_service = count(&|found| found.why.is_in_service());
        let mut all = Vec::new();
        if old > 0 {
            let done = count(&|found| found.why.is_in_service() && found.outdated.is_none());
            all.push(Progress { what: update.to_owned(), done, all: (*desired).max(done.saturating_add(old)) });
        } else if in_service < *desired {
            all.push(Progress { what: "in service".to_owned(), done: in_service, all: *desired });
        }
        if leaving > 0 {
            let is_empty = |found: &Standing| {
                found.why.cause().is_some() && matches!(found.why.blocker(), None | Some(Blocker::JobsUnread))
            };
            let done = count(&is_empty).saturating_add(ending);
            all.push(Progress { what: "drained".to_owned(), done, all: leaving.saturating_add(ending) });
        }
        all
    }

    /// Workers that only a human brings back, and that no condition of the set reports.
    pub fn attention(&self, object: &str) -> Vec<Attention> {
        let mut found: BTreeMap<(&'static str, String), Vec<&str>> = BTreeMap::new();
        for standing in &self.explanation.workers {
            let (reason, text) = match &standing.why {
                Why::Held { reason } => ("Drained", reason),
                Why::InvalidRegistration { reason } => ("InvalidRegistration", reason),
                _ => continue,
            };
            found
                .entry((reason, text.clone()))
                .or_default()
                .push(standing.slurm_node.as_deref().unwrap_or(&standing.pod));
        }
        let of = |((reason, text), nodes): ((&str, String), Vec<&str>)| {
            let (health, what) = match reason {
                "Drained" => (Health::Warning, "drained by an admin, who must resume"),
                _ => (Health::Bad, "slurmd has registered with less than configured on"),
            };
            let text = if text.is_empty() { text } else { format!(": {text}") };
            let message = format!("{what} {}{text}", hostlist::text(nodes.iter().copied()));
            Attention { health, object: object.to_owned(), reason: reason.to_owned(), message }
        };
        found.into_iter().map(of).collect()
    }
}

fn removal_of(why: &Why) -> String {
    format!("to be removed ({}): waits like those above", why.cause().map_or("", Cause::text))
}

/// Why a worker is where it is, and why it has an old template.
pub fn why(standing: &Standing, now: Timestamp) -> String {
    let why = standing.why.text(now);
    match standing.outdated {
        Some(delay) => format!("{why}; outdated: {}", delay.text()),
        None => why,
    }
}

/// How a worker is.
pub fn health(why: &Why) -> Health {
    match why {
        Why::InService => Health::Good,
        Why::NotRegistered | Why::Down { .. } | Why::InvalidRegistration { .. } => Health::Bad,
        Why::PodNotReady { problem: Some(_) } | Why::UnknownToSlurm | Why::Held { .. } | Why::NotResponding => {
            Health::Warning
        }
        Why::SlurmUnknown => Health::Unknown,
        Why::Terminating
        | Why::Leaving { .. }
        | Why::PodNotReady { problem: None }
        | Why::Registering { .. }
        | Why::Settling
        | Why::Cordoned { .. }
        | Why::Returning
        | Why::OutOfService { .. } => Health::Busy,
    }
}
