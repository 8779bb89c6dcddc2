//! The conditions and the status of a Controller, beside those of its daemon.

use engine::{
    conditions::{ConditionStatus, NewCondition},
    daemons::{
        keys::weak_key,
        progress::{Problem, Progress, of_stateful_set},
    },
    plan::Event,
};
use jiff::Timestamp;
use kube::ResourceExt;
use slurm_operator_api::{
    common::conditions::{CONFIGURATION_VALID, DEGRADED, READY, SLURM_REACHABLE, reason},
    slinky::{
        Controller, ControllerStatus,
        controller::{self, SlurmctldStatus},
    },
};

use super::{
    model::summary,
    plan::{Facts, Ping, SlurmFacts},
    plan_files::OwnFiles,
    plan_trial::{Outcome, Trial},
};
use crate::machine::seconds;

/// Why the configuration is valid, but Slurm ignores a part of it or may not know it.
const WARNINGS: &str = "Warnings";

/// What works, but is easier to attack than it has to be.
pub(super) fn insecurities(controller: &Controller, facts: &Facts) -> Vec<Problem> {
    let is_plain = controller.spec.external_rest_api.as_ref().is_some_and(controller::ExternalRestApi::is_plain);
    let plain = is_plain.then(|| {
        let message = "spec.externalRestApi.url: the operator sends a token of SlurmUser to it without encryption: use https, or make \
                       sure that nobody else can read on the way";
        Problem::new("PlainHttp", message)
    });
    weak_key(&facts.jwt_key, controller.spec.jwt_key()).into_iter().chain(plain).collect()
}

/// The host of the slurmctld in charge, if Slurm can be asked.
pub(super) fn active(slurm: Option<&SlurmFacts>) -> Option<&str> {
    let slurm = slurm.filter(|slurm| slurm.reachable.is_ok())?;
    Some(slurm.pings.iter().find(|ping| ping.active)?.host.as_str())
}

/// With backups, the cluster works as long as one slurmctld does: it is Ready, and Degraded because of the others.
pub(super) fn believe_active(conditions: &mut [NewCondition], facts: &Facts, active: Option<&str>) {
    let progress = of_stateful_set(facts.stateful_set.as_ref(), true);
    let (Some(active), Progress::NotReady { ready: ready @ 1.., wanted }) = (active, progress) else { return };
    let message = format!("{ready} of {wanted} slurmctld pods are ready, and {active} is in charge");
    for condition in conditions {
        match (condition.type_, condition.status, condition.reason) {
            (READY, ConditionStatus::False, reason::PODS_NOT_READY) => {
                *condition = NewCondition::new(READY, true, reason::AS_EXPECTED, message.as_str());
            }
            (DEGRADED, ConditionStatus::False, _) => {
                *condition = NewCondition::new(DEGRADED, true, reason::PODS_NOT_READY, message.as_str());
            }
            _ => {}
        }
    }
}

/// Whether Slurm can read what users have written. What is refused is not written: the files in use stay.
pub(super) fn configuration_valid(files: &Result<OwnFiles, Problem>, trial: Option<&Trial>) -> NewCondition {
    let condition = |status, reason, message: String| NewCondition::new(CONFIGURATION_VALID, status, reason, message);
    let files = match files {
        Ok(files) => files,
        // It is not there to be checked.
        Err(problem) if problem.reason == reason::REFERENCE_MISSING => {
            return condition(ConditionStatus::Unknown, problem.reason, problem.message.clone());
        }
        Err(problem) => {
            let message = format!("{}. The last good configuration is kept", problem.message);
            return condition(ConditionStatus::False, "InvalidConfiguration", message);
        }
    };
    if let Some(first) = files.refused.first() {
        let texts: Vec<String> = files.refused.iter().map(|problem| problem.message.clone()).collect();
        return condition(ConditionStatus::False, first.reason, summary(&texts));
    }
    let not_tried = trial.map(|trial| &trial.not_tried).filter(|not_tried| !not_tried.is_empty());
    if let Some(trial) = trial {
        match &trial.outcome {
            Outcome::NotNeeded | Outcome::Passed { .. } => {}
            Outcome::Trying => {
                let message = format!("the configuration is tried in the pod {}, and is not in use yet", trial.pod);
                return condition(ConditionStatus::Unknown, "Trying", message);
            }
            Outcome::Refused(why) => {
                let message = format!("{}. The last good configuration is kept", why.trim_end_matches('.'));
                return condition(ConditionStatus::False, "RefusedBySlurm", message);
            }
            Outcome::Impossible(why) => {
                let message = format!("the configuration could not be tried: {why}. See the condition Degraded");
                return condition(ConditionStatus::Unknown, "NotTried", message);
            }
        }
    }
    let mut texts = Vec::new();
    if files.warnings.is_empty() && files.unchecked.is_empty() {
        texts.push("Slurm can read the configuration".to_owned());
    }
    if !files.warnings.is_empty() {
        texts.push(summary(&files.warnings));
    }
    if !files.unchecked.is_empty() {
        texts.push(format!("not checked, because not in /etc/slurm: {}", summary(&files.unchecked)));
    }
    if let Some(not_tried) = not_tried {
        let keys: Vec<String> = not_tried.iter().cloned().collect();
        texts.push(format!("not tried, because of what they need: {}", summary(&keys)));
    }
    let reason = if files.warnings.is_empty() { reason::AS_EXPECTED } else { WARNINGS };
    condition(ConditionStatus::True, reason, texts.join(". "))
}

/// Warnings as an event; what is refused has one already.
pub(super) fn warning(validity: &NewCondition) -> Option<Event> {
    let event = || Event { is_warning: true, reason: WARNINGS, text: validity.message.clone() };
    (validity.reason == WARNINGS).then(event)
}

pub(super) fn reachable(controller: &Controller, slurm: Option<&SlurmFacts>) -> NewCondition {
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
pub(super) fn believe_slurm(conditions: &mut [NewCondition], slurm: Option<&SlurmFacts>) {
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
pub(super) fn status(controller: &Controller, slurm: Option<&SlurmFacts>, now: Timestamp) -> ControllerStatus {
    let old = controller.status.clone().unwrap_or_default();
    let Some(slurm) = slurm else { return old };
    if slurm.reachable.is_err() {
        // They were not asked, so it is not known whether they respond.
        let silent = old.slurmctld.iter().map(|ctld| SlurmctldStatus {
            since: if ctld.responding { Some(seconds(now)) } else { ctld.since.clone() },
            responding: false,
            active: false,
            host: ctld.host.clone(),
        });
        return ControllerStatus { slurmctld: silent.collect(), ..old.clone() };
    }
    let reported = |ping: &Ping| {
        let before = old.slurmctld.iter().find(|other| other.host == ping.host && other.responding == ping.responding);
        let moment = || Some(seconds(now));
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
