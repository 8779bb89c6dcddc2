//! What the status says.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use slurm::{hostlist, states::NodeState};
use slurm_operator_api::conditions::{DEGRADED, PROGRESSING, READY, reason};

use super::{
    cases::{Case, Deadline},
    decision::{Cause, Counts},
    model::{Life, Model, Update},
    pass::Pass,
    scale::{Scale, count},
    seen::{Hold, SlurmCounts, Slurmd},
    trust::{Look, View},
    update::is_old,
};
use crate::machine::{Judgement, Verdict};

/// The longest list of names in a message.
const MAX_NAMES: usize = 200;

/// What needs a human, gathered on the way.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// Kubernetes nodes whose name makes no hostname.
    pub(super) bad_hostnames: Vec<String>,
    /// Hostnames that more than one worker would have.
    pub(super) shared_hostnames: BTreeSet<String>,
    /// Claims that are needed and are being deleted.
    pub(super) leaving_claims: Vec<String>,
    /// Slurm nodes whose jobs go on after the drain timeout.
    pub(super) outlasting: Vec<String>,
    /// Whether their jobs should be requeued and this Slurm cannot.
    pub(super) cannot_requeue: bool,
    /// Workers with an old template that somebody keeps out of service.
    pub(super) held_back: Vec<String>,
    /// Whether the update needs reservations and this Slurm has none by REST.
    pub(super) cannot_reserve: bool,
    /// Whether Kubernetes nodes have a place in the topology and this Slurm takes none by REST.
    pub(super) cannot_place: bool,
}

/// The numbers. What Slurm said last stays while nobody can ask it.
pub(super) fn counts(pass: &Pass<'_>, cases: &[Case<'_>], desired: u32, current: Option<&str>) -> Counts {
    let model = pass.model;
    let of = |holds: &dyn Fn(&Case<'_>) -> bool| count(cases.iter().filter(|case| holds(case)).count());
    let has = |case: &Case<'_>, revision: &str| case.is_alive() && case.worker.revision.as_deref() == Some(revision);
    let available = of(&|case| case.worker.is_available(model.min_ready, pass.now));
    Counts {
        desired,
        replicas: count(cases.len()),
        updated: of(&|case| has(case, &model.revision)),
        current: current.map_or(0, |current| of(&|case| has(case, current))),
        ready: of(&|case| case.worker.is_healthy()),
        available,
        unavailable: desired.saturating_sub(available),
        slurm: pass.view.snapshot().map_or(pass.seen.recall.slurm, |snapshot| {
            let mut counts = SlurmCounts::default();
            for states in
                cases.iter().filter_map(|case| case.name.and_then(|name| snapshot.nodes.get(name))).map(|n| &n.states)
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

/// The template that all workers had before the running update.
pub(super) fn current(pass: &Pass<'_>, cases: &[Case<'_>]) -> Option<String> {
    let (model, seen) = (pass.model, pass.seen);
    let alive = || cases.iter().filter(|case| case.is_alive()).map(|case| case.worker.revision.as_deref());
    if alive().all(|revision| revision == Some(&model.revision)) {
        return Some(model.revision.clone());
    }
    let oldest = || alive().flatten().find(|revision| *revision != model.revision).map(str::to_owned);
    seen.recall.current.clone().or_else(oldest)
}

/// A reason and a sentence.
type Finding = (&'static str, String);

/// Everything that the conditions are made of.
pub(super) struct Report<'a> {
    pub(super) pass: &'a Pass<'a>,
    pub(super) cases: &'a [Case<'a>],
    pub(super) scale: &'a Scale,
    pub(super) troubles: &'a Troubles,
}

impl Report<'_> {
    /// The conditions.
    pub(super) fn judgements(&self) -> Vec<Judgement> {
        vec![self.ready(), self.progressing(), self.degraded()]
    }

    fn ready(&self) -> Judgement {
        let desired = self.scale.desired;
        let is_available =
            |case: &&Case<'_>| case.stays() && case.worker.is_available(self.pass.model.min_ready, self.pass.now);
        let available = count(self.cases.iter().filter(is_available).count());
        if let (View::Blind { why, .. }, true) = (&self.pass.view, available >= desired && desired > 0) {
            let message = format!("{available} pods are ready, but Slurm cannot be asked: {why}");
            return judge(READY, Verdict::Unknown, reason::SLURM_UNREACHABLE, message);
        }
        let serving = count(self.cases.iter().filter(is_available).filter(|case| serves(case)).count());
        if serving >= desired {
            let message = match desired {
                0 => "no workers are wanted".to_owned(),
                _ => format!("{desired} of {desired} workers can run jobs"),
            };
            return judge(READY, Verdict::True, reason::AS_EXPECTED, message);
        }
        if let Some(trouble) = &self.pass.model.blocked {
            return judge(READY, Verdict::False, trouble.reason, trouble.message.clone());
        }
        let message = format!("{serving} of {desired} workers can run jobs");
        judge(READY, Verdict::False, reason::PODS_NOT_READY, message)
    }

    fn progressing(&self) -> Judgement {
        match self.pass.model.life {
            Life::Paused => {
                let message = "a user stopped all changes with the annotation that pauses the set".to_owned();
                return judge(PROGRESSING, Verdict::False, reason::PAUSED, message);
            }
            Life::Active | Life::Deleted => {}
        }
        let parts: Vec<_> = [self.draining(), self.updating(), self.scaling()].into_iter().flatten().collect();
        let Some((why, _)) = parts.first() else {
            return judge(PROGRESSING, Verdict::False, reason::AS_EXPECTED, "nothing to do".to_owned());
        };
        let text: Vec<&str> = parts.iter().map(|(_, text)| text.as_str()).collect();
        judge(PROGRESSING, Verdict::True, why, text.join("; "))
    }

    fn draining(&self) -> Option<Finding> {
        let is_waited_for = |case: &&Case<'_>| {
            let runs = case.worker.slurmd != Slurmd::Stopped && !case.worker.phase.is_over();
            case.is_alive() && case.goes.is_some() && runs
        };
        let waiting: Vec<&Case<'_>> = self.cases.iter().filter(is_waited_for).collect();
        if waiting.is_empty() {
            return None;
        }
        let names = fold(waiting.iter().map(|case| case.name.unwrap_or(&case.worker.name)));
        if let View::Blind { why, .. } = &self.pass.view {
            let text = format!("waiting for Slurm before workers are removed: {names}; it cannot be asked: {why}");
            return Some((reason::SLURM_UNREACHABLE, text));
        }
        let (all, some) = (self.cases.iter().filter(|case| case.is_alive()).count(), waiting.len());
        let last = waiting.iter().filter(|case| case.look.is_busy()).map(|case| case.deadline).max();
        let until = last.map_or_else(String::new, |last| self.until(last));
        Some((reason::DRAINING, format!("waiting for {some} of {all} workers to drain: {names}{until}")))
    }

    fn until(&self, last: Deadline) -> String {
        match last {
            Deadline::Now => String::new(),
            Deadline::Never => "; a job there has no time limit".to_owned(),
            Deadline::At(end) => {
                let is_soon = end.duration_since(self.pass.now) < SignedDuration::from_hours(20);
                let format = if is_soon { "%H:%M UTC" } else { "%Y-%m-%d %H:%M UTC" };
                format!("; longest job ends {}", end.strftime(format))
            }
        }
    }

    fn updating(&self) -> Option<Finding> {
        let goes = |case: &&Case<'_>| case.is_alive() && case.goes == Some(Cause::Update);
        let old = self.cases.iter().filter(|case| is_old(self.pass.model, case) || goes(case)).count();
        let Model { update, life, blocked, .. } = self.pass.model;
        if old == 0 || matches!(update, Update::OnDelete) || *life == Life::Deleted || blocked.is_some() {
            return None;
        }
        let all = self.cases.iter().filter(|case| case.is_alive()).count();
        let held = &self.troubles.held_back;
        let held = if held.is_empty() {
            String::new()
        } else {
            let names = fold(held.iter().map(String::as_str));
            format!("; left alone while a user, an admin or a cordon keeps them out of service: {names}")
        };
        Some((reason::UPDATING, format!("{old} of {all} workers still have an old template{held}")))
    }

    fn scaling(&self) -> Option<Finding> {
        let leaving = self.cases.iter().filter(|case| case.worker.terminating).count();
        let going = self.cases.iter().filter(|case| case.is_alive() && case.goes.is_some()).count();
        let (desired, missing) = (self.scale.desired, self.scale.missing);
        if missing > 0 && self.pass.model.blocked.is_none() {
            return Some((reason::SCALING, format!("{missing} of {desired} workers are still to be made")));
        }
        let gone = leaving + going;
        (gone > 0).then(|| (reason::SCALING, format!("{gone} pods are going")))
    }

    fn degraded(&self) -> Judgement {
        let blocked = self.pass.model.blocked.as_ref().map(|trouble| (trouble.reason, trouble.message.clone()));
        let complaints =
            [blocked, self.unsupported(), self.hostnames(), self.lost(), self.timeouts(), self.pods(), self.down()];
        let complaints: Vec<Finding> = complaints.into_iter().flatten().collect();
        let Some((why, _)) = complaints.first() else {
            return judge(DEGRADED, Verdict::False, reason::AS_EXPECTED, "nothing needs attention".to_owned());
        };
        let text: Vec<&str> = complaints.iter().map(|(_, text)| text.as_str()).collect();
        judge(DEGRADED, Verdict::True, why, text.join("; "))
    }

    fn unsupported(&self) -> Option<Finding> {
        let text = if self.troubles.cannot_reserve {
            "this version of Slurm makes no reservations by REST, so the scheduled update cannot happen: use \
             RollingUpdate or OnDelete"
        } else if self.troubles.cannot_requeue {
            "this version of Slurm cannot requeue jobs by REST: jobs that outlast the drain timeout go on"
        } else if self.troubles.cannot_place {
            "this version of Slurm (before 25.05) takes no topology of single nodes: the annotation \
             topology.slinky.slurm.net/spec of the Kubernetes nodes has no effect"
        } else {
            return None;
        };
        Some((reason::SLURM_TOO_OLD, text.to_owned()))
    }

    fn hostnames(&self) -> Option<Finding> {
        let Troubles { bad_hostnames, shared_hostnames, .. } = self.troubles;
        let ask = "give them one with the annotation hostname-override";
        if !bad_hostnames.is_empty() {
            let names = fold(bad_hostnames.iter().map(String::as_str));
            return Some((
                "HostnameInvalid",
                format!("no hostname can be made of the Kubernetes nodes {names}: {ask}"),
            ));
        }
        if shared_hostnames.is_empty() {
            return None;
        }
        let names = fold(shared_hostnames.iter().map(String::as_str));
        Some(("HostnameTaken", format!("more than one Kubernetes node would have the Slurm nodes {names}: {ask}")))
    }

    fn lost(&self) -> Option<Finding> {
        let lost: Vec<&str> = self.cases.iter().filter(|case| case.is_lost()).filter_map(|case| case.name).collect();
        let text = || {
            let names = fold(lost.iter().copied());
            format!("slurmd runs, but Slurm no longer knows {names}: delete the pods to have them register again")
        };
        (!lost.is_empty()).then(|| ("UnknownToSlurm", text()))
    }

    fn timeouts(&self) -> Option<Finding> {
        let names = &self.troubles.outlasting;
        let text = || format!("jobs go on after the drain timeout on {}", fold(names.iter().map(String::as_str)));
        (!names.is_empty()).then(|| ("DrainTimeout", text()))
    }

    fn pods(&self) -> Option<Finding> {
        let sick: Vec<(&str, &str)> = self
            .cases
            .iter()
            .filter(|case| case.is_alive())
            .filter_map(|case| case.worker.trouble.as_deref().map(|trouble| (case.worker.name.as_str(), trouble)))
            .collect();
        if let Some((_, trouble)) = sick.first() {
            let names = fold(sick.iter().map(|(name, _)| *name));
            return Some((reason::PODS_NOT_READY, format!("{names}: {trouble}")));
        }
        let claims = &self.troubles.leaving_claims;
        let text = || format!("claims are needed and are being deleted: {}", claims.join(", "));
        (!claims.is_empty()).then(|| (reason::PODS_NOT_READY, text()))
    }

    fn down(&self) -> Option<Finding> {
        let down: Vec<(&str, &str)> = self
            .cases
            .iter()
            .filter(|case| case.stays() && case.worker.is_healthy())
            .filter_map(|case| case.name.zip(case.look.node()))
            .filter(|(_, node)| node.states.is_down() && node.hold() != Hold::Ours)
            .map(|(name, node)| (name, node.reason.as_str()))
            .collect();
        let (_, why) = down.first()?;
        let names = fold(down.iter().map(|(name, _)| *name));
        Some(("SlurmNodeDown", format!("pods are ready, but Slurm says that they are down: {names} ({why})")))
    }
}

/// Whether Slurm counts on it. A write of ours that is under way does not change that.
fn serves(case: &Case<'_>) -> bool {
    match case.look {
        Look::Known(node) => node.states.is_registered() && !node.states.is_down(),
        Look::Pending(..) => case.worker.has_registered(),
        Look::Blind | Look::Absent => false,
    }
}

fn judge(about: &'static str, verdict: Verdict, reason: &'static str, message: String) -> Judgement {
    Judgement { about, verdict, reason, message }
}

/// Names as short as Slurm writes them.
pub(super) fn fold<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let list = hostlist::fold(names.clone()).unwrap_or_else(|_| names.collect::<Vec<_>>().join(","));
    if list.chars().count() <= MAX_NAMES {
        return list;
    }
    list.chars().take(MAX_NAMES).chain("…".chars()).collect()
}
