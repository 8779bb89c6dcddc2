//! Conditions and replica counts for the status.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use slurm::{hostlist, states::NodeState};
use slurm_operator_api::common::conditions::{DEGRADED, PROGRESSING, READY, reason};

use super::{
    context::Context,
    decision::{Cause, Counts},
    facts::{AttemptResult, Hold, Phase, SlurmCounts, SlurmNode, Written},
    model::{Life, Mode, Model, OnTimeout, Update},
    register,
    removal_safety::{Blocker, registers_until},
    scale::{Scale, count},
    trust::{NodeObservation, TrustedSlurm},
    update::is_old,
    worker_state::WorkerState,
};
use crate::{
    conditions::{ConditionStatus, NewCondition},
    daemons::pods::SCHEDULED_WITHIN,
};

/// Maximum length of a list of names in a message, in characters.
const MAX_NAMES: usize = 200;

/// Problems that need user action, collected while planning.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// Kubernetes nodes whose name is not a valid hostname.
    pub(super) bad_hostnames: Vec<String>,
    /// Hostnames claimed by more than one worker.
    pub(super) shared_hostnames: BTreeSet<String>,
    /// Node names that new workers cannot have, by who has them.
    pub(super) taken_names: BTreeMap<String, Vec<String>>,
    /// Claims that a new worker needs but that are being deleted.
    pub(super) leaving_claims: Vec<String>,
    /// Slurm nodes with jobs still running after the drain timeout.
    pub(super) outlasting: Vec<String>,
    /// Whether those jobs should be requeued but this Slurm version does not support it.
    pub(super) cannot_requeue: bool,
    /// Outdated workers that are not updated because a user, an admin or a cordon keeps them out of service.
    pub(super) held_back: Vec<String>,
    /// Whether the update needs reservations but this Slurm version has none in its REST API.
    pub(super) cannot_reserve: bool,
    /// Whether Kubernetes nodes have a topology annotation but this Slurm version cannot set a node's topology.
    pub(super) cannot_place: bool,
}

/// Replica counts. The Slurm counts keep their last value while Slurm is not trusted.
pub(super) fn counts(
    context: &Context<'_>,
    workers: &[WorkerState<'_>],
    desired: u32,
    current: Option<&str>,
) -> Counts {
    let model = context.model;
    let of = |holds: &dyn Fn(&WorkerState<'_>) -> bool| count(workers.iter().filter(|state| holds(state)).count());
    let has = |state: &WorkerState<'_>, revision: &str| {
        state.is_alive() && state.worker.revision.as_deref() == Some(revision)
    };
    let available = of(&|state| state.worker.is_available(model.min_ready, context.now));
    Counts {
        desired,
        replicas: count(workers.len()),
        updated: of(&|state| has(state, &model.revision)),
        current: current.map_or(0, |current| of(&|state| has(state, current))),
        ready: of(&|state| state.worker.is_healthy()),
        available,
        unavailable: desired.saturating_sub(available),
        slurm: context.slurm.snapshot().map_or(context.facts.recall.slurm, |snapshot| {
            let mut counts = SlurmCounts::default();
            for states in workers
                .iter()
                .filter_map(|state| state.name.and_then(|name| snapshot.nodes.get(name)))
                .map(|n| &n.states)
            {
                let base = states.base();
                counts.registered += u32::from(states.is_registered());
                counts.idle += u32::from(base == Some(NodeState::Idle));
                counts.allocated += u32::from(matches!(base, Some(NodeState::Allocated | NodeState::Mixed)));
                counts.down += u32::from(base == Some(NodeState::Down));
                counts.drain += u32::from(states.has(NodeState::Drain));
            }
            counts
        }),
    }
}

/// The revision that all workers had before the current update.
pub(super) fn current(context: &Context<'_>, workers: &[WorkerState<'_>]) -> Option<String> {
    let (model, facts) = (context.model, context.facts);
    let alive = || workers.iter().filter(|state| state.is_alive()).map(|state| state.worker.revision.as_deref());
    if alive().all(|revision| revision == Some(&model.revision)) {
        return Some(model.revision.clone());
    }
    let oldest = || alive().flatten().find(|revision| *revision != model.revision).map(str::to_owned);
    facts.recall.current.clone().or_else(oldest)
}

/// A condition reason and a message.
type Finding = (&'static str, String);

/// The input of the conditions.
pub(super) struct Report<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) workers: &'a [WorkerState<'a>],
    pub(super) scale: &'a Scale,
    pub(super) problems: &'a Problems,
    pub(super) blockers: &'a [(String, Blocker)],
    pub(super) gres: Option<NewCondition>,
}

impl Report<'_> {
    pub(super) fn conditions(&self) -> Vec<NewCondition> {
        [self.ready(), self.progressing(), self.degraded()].into_iter().chain(self.gres.clone()).collect()
    }

    fn ready(&self) -> NewCondition {
        let desired = self.scale.desired;
        let is_available = |state: &&WorkerState<'_>| {
            state.stays() && state.worker.is_available(self.context.model.min_ready, self.context.now)
        };
        let available = count(self.workers.iter().filter(is_available).count());
        if let (TrustedSlurm::Blind { why, .. }, true) = (&self.context.slurm, available >= desired && desired > 0) {
            let message = format!("{available} pods are ready, but the state of Slurm is unknown: {why}");
            return NewCondition::new(READY, ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, message);
        }
        let serving = count(self.workers.iter().filter(is_available).filter(|state| serves(state)).count());
        if serving >= desired {
            let message = match desired {
                0 => "no workers requested".to_owned(),
                _ => format!("{desired} of {desired} workers can run jobs"),
            };
            return NewCondition::new(READY, ConditionStatus::True, reason::AS_EXPECTED, message);
        }
        if let Some(problem) = &self.context.model.blocked {
            return NewCondition::new(READY, ConditionStatus::False, problem.reason, problem.message.clone());
        }
        let is_drained = |state: &&WorkerState<'_>| state.observation.node().is_some_and(|node| node.states.is_drain());
        let drained: Vec<&str> =
            self.workers.iter().filter(is_available).filter(is_drained).filter_map(|state| state.name).collect();
        let why =
            if drained.is_empty() { String::new() } else { format!("; drained: {}", fold(drained.iter().copied())) };
        let message = format!("{serving} of {desired} workers can run jobs{why}");
        NewCondition::new(READY, ConditionStatus::False, reason::PODS_NOT_READY, message)
    }

    fn progressing(&self) -> NewCondition {
        match self.context.model.life {
            Life::Paused => {
                let message = format!("paused by annotation {}", self.context.model.vocabulary.annotation.paused);
                return NewCondition::new(PROGRESSING, ConditionStatus::False, reason::PAUSED, message);
            }
            Life::Active | Life::Deleted => {}
        }
        let parts: Vec<_> = [self.draining(), self.updating(), self.scaling()].into_iter().flatten().collect();
        let Some((why, _)) = parts.first() else {
            return NewCondition::new(
                PROGRESSING,
                ConditionStatus::False,
                reason::AS_EXPECTED,
                "nothing to do".to_owned(),
            );
        };
        let text: Vec<&str> = parts.iter().map(|(_, text)| text.as_str()).collect();
        NewCondition::new(PROGRESSING, ConditionStatus::True, why, text.join("; "))
    }

    fn draining(&self) -> Option<Finding> {
        let (worst, blocker) = self.blockers.iter().max_by_key(|(_, blocker)| *blocker)?;
        let names = fold(self.blockers.iter().map(|(name, _)| name.as_str()));
        if let TrustedSlurm::Blind { why, .. } = &self.context.slurm {
            let text = format!("workers to be removed wait until the state of Slurm is known: {names}; {why}");
            return Some((reason::SLURM_UNREACHABLE, text));
        }
        let (all, some) = (self.workers.iter().filter(|state| state.is_alive()).count(), self.blockers.len());
        let why = blocker.text(self.context.now);
        Some((reason::DRAINING, format!("waiting for {some} of {all} workers to drain: {names}; {worst}: {why}")))
    }

    fn updating(&self) -> Option<Finding> {
        let removal = |state: &&WorkerState<'_>| state.is_alive() && state.removal == Some(Cause::Update);
        let old = self.workers.iter().filter(|state| is_old(self.context.model, state) || removal(state)).count();
        let Model { update, life, blocked, .. } = self.context.model;
        if old == 0 || matches!(update, Update::OnDelete) || *life == Life::Deleted || blocked.is_some() {
            return None;
        }
        let all = self.workers.iter().filter(|state| state.is_alive()).count();
        let held = &self.problems.held_back;
        let held = if held.is_empty() {
            String::new()
        } else {
            let names = fold(held.iter().map(String::as_str));
            format!("; skipped because a user, an admin or a cordon keeps them out of service: {names}")
        };
        Some((reason::UPDATING, format!("{old} of {all} workers are outdated{held}")))
    }

    fn scaling(&self) -> Option<Finding> {
        let leaving = self.workers.iter().filter(|state| state.worker.terminating).count();
        let removing = self.workers.iter().filter(|state| state.is_alive() && state.removal.is_some()).count();
        let (desired, missing) = (self.scale.desired, self.scale.missing);
        if missing > 0 && self.context.model.blocked.is_none() {
            return Some((reason::SCALING, format!("{missing} of {desired} workers not yet created")));
        }
        let gone = leaving + removing;
        let pods = if gone == 1 { "pod" } else { "pods" };
        (gone > 0).then(|| (reason::SCALING, format!("{gone} {pods} being removed")))
    }

    fn degraded(&self) -> NewCondition {
        let blocked = self.context.model.blocked.as_ref().map(|problem| (problem.reason, problem.message.clone()));
        let gres = self.gres.as_ref().filter(|gres| gres.status == ConditionStatus::True);
        let findings = [
            blocked,
            self.unsupported(),
            self.hostnames(),
            self.taken_names(),
            self.lost(),
            self.timeouts(),
            self.pods(),
            gres.map(|gres| (gres.reason, gres.message.clone())),
            self.down(),
            self.unregistered(),
        ];
        let findings: Vec<Finding> = findings.into_iter().flatten().collect();
        let Some((why, _)) = findings.first() else {
            return NewCondition::new(
                DEGRADED,
                ConditionStatus::False,
                reason::AS_EXPECTED,
                "no problems found".to_owned(),
            );
        };
        let text: Vec<&str> = findings.iter().map(|(_, text)| text.as_str()).collect();
        NewCondition::new(DEGRADED, ConditionStatus::True, why, text.join("; "))
    }

    fn unsupported(&self) -> Option<Finding> {
        let text = if self.problems.cannot_reserve {
            "this version of Slurm does not support reservations in the REST API, which a scheduled update needs: use \
             RollingUpdate or OnDelete"
        } else if self.problems.cannot_requeue {
            "this version of Slurm cannot requeue jobs through the REST API: jobs keep running after the drain timeout"
        } else if self.problems.cannot_place {
            let text = format!(
                "this version of Slurm (before 25.05) cannot set the topology of a single node: the annotation {} on \
                 Kubernetes nodes has no effect",
                self.context.model.vocabulary.annotation.topology
            );
            return Some((reason::SLURM_TOO_OLD, text));
        } else {
            return None;
        };
        Some((reason::SLURM_TOO_OLD, text.to_owned()))
    }

    fn hostnames(&self) -> Option<Finding> {
        let Problems { bad_hostnames, shared_hostnames, .. } = self.problems;
        let ask = format!(
            "set the annotation {} on the Kubernetes nodes",
            self.context.model.vocabulary.annotation.hostname_override
        );
        if !bad_hostnames.is_empty() {
            let names = fold(bad_hostnames.iter().map(String::as_str));
            return Some((
                "HostnameInvalid",
                format!("the names of the Kubernetes nodes {names} are not valid hostnames: {ask}"),
            ));
        }
        if shared_hostnames.is_empty() {
            return None;
        }
        let names = fold(shared_hostnames.iter().map(String::as_str));
        Some(("HostnameTaken", format!("hostnames claimed by more than one Kubernetes node: {names}: {ask}")))
    }

    fn taken_names(&self) -> Option<Finding> {
        let texts = self.problems.taken_names.iter().map(|(owner, names)| {
            let names = fold(names.iter().map(String::as_str));
            format!("the Slurm node names {names} are those of {owner}")
        });
        let texts: Vec<String> = texts.collect();
        let model = self.context.model;
        let ask = if model.scaling.mode() == Mode::PerNode || model.naming.host_network {
            "choose other Kubernetes nodes by spec.template.spec.nodeSelector"
        } else {
            "change spec.template.spec.hostname, or scale in"
        };
        let text = || format!("{}; every node of a Slurm cluster needs its own name: {ask}", texts.join("; "));
        (!texts.is_empty()).then(|| ("HostnameTaken", text()))
    }

    fn lost(&self) -> Option<Finding> {
        let (mut asked, mut busy, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut failure = "";
        for state in register::unknown(self.context, self.workers).filter(|state| state.worker.has_registered()) {
            let Some(name) = state.name else { continue };
            match register::attempt(self.context, state).map(|attempt| &attempt.result) {
                None | Some(AttemptResult::Asked) => asked.push(name),
                Some(AttemptResult::HasSteps) => busy.push(name),
                Some(AttemptResult::Failed(why)) => {
                    failed.push(name);
                    failure = why;
                }
            }
        }
        let asks = match self.context.model.life {
            Life::Active | Life::Deleted => "are asked to register again",
            Life::Paused => "are asked to register again when the set is no longer paused",
        };
        let texts = [
            (asked, asks.to_owned()),
            (
                busy,
                "run jobs that slurmctld does not know, and register again when these have ended; to end the jobs now, delete the \
                 pods"
                    .to_owned(),
            ),
            (
                failed,
                format!("could not be asked to register again ({failure}), which is repeated"),
            ),
        ];
        let texts = texts.into_iter().filter(|(names, _)| !names.is_empty());
        let texts: Vec<String> = texts.map(|(names, what)| format!("{} {what}", fold(names.iter().copied()))).collect();
        let text = || format!("slurmd is running, but slurmctld does not know the nodes: {}", texts.join("; "));
        (!texts.is_empty()).then(|| ("UnknownToSlurm", text()))
    }

    fn timeouts(&self) -> Option<Finding> {
        let names = &self.problems.outlasting;
        let text = || {
            let names = fold(names.iter().map(String::as_str));
            let hint = match self.context.model.drain.on_timeout {
                OnTimeout::Requeue => ": those that cannot be requeued must be cancelled by hand",
                OnTimeout::Wait | OnTimeout::Kill => "",
            };
            format!("jobs still running after the drain timeout on {names}{hint}")
        };
        (!names.is_empty()).then(|| ("DrainTimeout", text()))
    }

    fn pods(&self) -> Option<Finding> {
        let sick: Vec<(&str, &str)> = self
            .workers
            .iter()
            .filter(|state| state.is_alive())
            .filter(|state| scheduled_until(state).is_none_or(|until| self.context.now >= until))
            .filter_map(|state| state.worker.problem.as_deref().map(|problem| (state.worker.name.as_str(), problem)))
            .collect();
        if let Some((_, problem)) = sick.first() {
            let names = fold(sick.iter().map(|(name, _)| *name));
            return Some((reason::PODS_NOT_READY, format!("{names}: {problem}")));
        }
        let claims = &self.problems.leaving_claims;
        let text = || format!("new workers need PersistentVolumeClaims that are being deleted: {}", claims.join(", "));
        (!claims.is_empty()).then(|| (reason::PODS_NOT_READY, text()))
    }

    /// slurmd runs in a ready pod, but has not registered after a while: it will not without help.
    fn unregistered(&self) -> Option<Finding> {
        let is_late = |state: &&WorkerState<'_>| {
            state.stays()
                && state.worker.is_healthy()
                && !state.worker.has_registered()
                && matches!(state.observation, NodeObservation::Absent)
                && registers_until(state).is_some_and(|until| self.context.now >= until)
        };
        let late: Vec<&str> = self.workers.iter().filter(is_late).map(|state| state.worker.name.as_str()).collect();
        let text = || {
            let names = fold(late.iter().copied());
            format!("slurmd is running but has not registered with slurmctld in the pods {names}: see its log")
        };
        (!late.is_empty()).then(|| ("NotRegistered", text()))
    }

    fn down(&self) -> Option<Finding> {
        let down: Vec<(&str, &str)> = self
            .workers
            .iter()
            .filter(|state| state.stays() && state.worker.is_healthy())
            .filter_map(|state| state.name.zip(state.observation.node()))
            .filter(|(_, node)| node.states.is_down() && node.hold(self.context.model.vocabulary) != Hold::Ours)
            .map(|(name, node)| (name, node.reason.as_str()))
            .collect();
        let (_, why) = down.first()?;
        let names = fold(down.iter().map(|(name, _)| *name));
        Some(("SlurmNodeDown", format!("pods are ready, but their Slurm nodes are down: {names} ({why})")))
    }
}

/// Until when a worker that cannot be scheduled is none of concern: with claims that are created on demand, none can at first.
pub(super) fn scheduled_until(state: &WorkerState<'_>) -> Option<Timestamp> {
    let worker = state.worker;
    let is_waiting = worker.node.is_none() && worker.phase == Phase::Pending && worker.problem.is_some();
    worker.created.filter(|_| is_waiting).map(|created| created + SCHEDULED_WITHIN)
}

/// Whether the worker can run jobs, as far as Slurm knows. An unconfirmed write of ours counts if it is a drain.
fn serves(state: &WorkerState<'_>) -> bool {
    match state.observation {
        NodeObservation::Known(node) => node.states.is_available() && !is_silent(node),
        NodeObservation::Pending(written, _) => *written == Written::Other && state.worker.has_registered(),
        NodeObservation::Blind | NodeObservation::Absent => false,
    }
}

/// Whether its slurmd does not respond, or has registered with an invalid configuration.
fn is_silent(node: &SlurmNode) -> bool {
    node.states.has(NodeState::NotResponding) || node.states.has(NodeState::InvalidReg)
}

/// Formats names as a Slurm host list, truncated to [`MAX_NAMES`].
pub(super) fn fold<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let list = hostlist::text(names);
    if list.chars().count() <= MAX_NAMES {
        return list;
    }
    list.chars().take(MAX_NAMES).chain("…".chars()).collect()
}
