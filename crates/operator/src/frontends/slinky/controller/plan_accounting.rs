//! What a Controller has to do with slurmdbd: when slurmctld may start for the first time, and whether its cluster is registered.

use engine::conditions::{ConditionStatus, NewCondition};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::ConfigMap};
use kube::ResourceExt;
use slurm::conf::Conf;
use slurm_operator_api::{
    common::conditions::{ACCOUNTING_REACHABLE, reason},
    slinky::{Controller, names},
};

use super::plan::{AccountingFacts, Facts};

/// How long the first start waits for an external slurmdbd. slurmctld may be able to reach it even if the operator is not.
const LONGEST: SignedDuration = SignedDuration::from_mins(5);

/// Whether slurmctld may have state with records of slurmdbd. Without it, slurmctld would end at once if slurmdbd does not
/// answer; with it, slurmctld starts without slurmdbd.
pub(super) fn has_state(
    controller: &Controller,
    stateful_set: Option<&StatefulSet>,
    config_map: Option<&ConfigMap>,
    has_claim: bool,
) -> bool {
    if stateful_set.is_none() {
        return has_claim || controller.status.as_ref().is_some_and(|status| status.slurm_version.is_some());
    }
    // A cluster may have run without accounting so far.
    let text = config_map.and_then(|config_map| config_map.data.as_ref()?.get("slurm.conf"));
    text.is_none_or(|text| uses_slurmdbd(text))
}

/// Whether a slurm.conf refers to slurmdbd.
pub fn uses_slurmdbd(slurm_conf: &str) -> bool {
    Conf::parse(slurm_conf).is_ok_and(|conf| conf.get("AccountingStorageType") == Some("accounting_storage/slurmdbd"))
}

/// What the first start of slurmctld with slurmdbd waits for.
pub(super) fn waits_for(controller: &Controller, facts: &Facts, now: Timestamp) -> Option<String> {
    let has_state = has_state(controller, facts.stateful_set.as_ref(), facts.config_map.as_ref(), facts.has_claim);
    let name = controller.spec.accounting().filter(|_| !has_state)?;
    match &facts.accounting {
        AccountingFacts::Here { answers: false, .. } => {
            let host = names::service_host(&names::accounting(name), &controller.namespace().unwrap_or_default());
            Some(format!(
                "its first start with accounting waits until slurmdbd of the Accounting {name} answers at {host}"
            ))
        }
        AccountingFacts::Elsewhere { place, unreachable: Some(why) } => {
            let created = controller.creation_timestamp()?.0;
            let why = format!(
                "its first start with accounting waits until slurmdbd answers at {}:{}: {why}",
                place.host, place.port
            );
            (now < created + LONGEST).then_some(why)
        }
        _ => None,
    }
}

/// Whether the cluster is registered in slurmdbd. `None` without accounting.
pub(super) fn registered(controller: &Controller, facts: &Facts, wait: Option<&str>) -> Option<NewCondition> {
    let accounting = controller.spec.accounting()?;
    let cluster = controller.cluster_name();
    let condition = |status: ConditionStatus, reason, message| {
        Some(NewCondition::new(ACCOUNTING_REACHABLE, status, reason, message))
    };
    if let Some(wait) = wait {
        return condition(ConditionStatus::False, "SlurmdbdUnreachable", format!("slurmctld: {wait}"));
    }
    let answer = facts.slurm.as_ref().and_then(|slurm| slurm.accounting.as_ref());
    match answer {
        None => {
            let message = format!("slurmrestd was not asked for the Accounting {accounting} yet");
            condition(ConditionStatus::Unknown, "NotAsked", message)
        }
        Some(Err(why)) => {
            let message = format!(
                "slurmdbd of the Accounting {accounting} does not answer: {why}. Jobs run, and slurmctld keeps their records until \
                 it does"
            );
            condition(ConditionStatus::False, "SlurmdbdUnreachable", message)
        }
        Some(Ok(clusters)) => match clusters.get(&cluster) {
            None => {
                let message = format!("the cluster {cluster} is not registered in the Accounting {accounting} yet");
                condition(ConditionStatus::False, "NotRegistered", message)
            }
            Some(None) => {
                let message = format!("slurmctld of the cluster {cluster} is not connected to slurmdbd");
                condition(ConditionStatus::False, "NotConnected", message)
            }
            Some(Some(_)) => {
                let message = format!("the cluster {cluster} is registered in the Accounting {accounting}");
                condition(ConditionStatus::True, reason::AS_EXPECTED, message)
            }
        },
    }
}
