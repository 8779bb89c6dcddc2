//! Plans a `RestApi`.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use slurm_operator_api::{
    RestApi, RestApiStatus,
    conditions::reason,
    names::{self, annotation::hash as hashes},
    shared::SecretKeySelector,
};

use crate::{
    engine::daemons::{
        keys::{KeyState, hash_of},
        pods::{PodProblem, summary},
        progress::{Problem, Progress, daemon_conditions, of_deployment},
        shared::{Parent, StringMap, taken},
        slurmrestd::{self, Slurmrestd},
    },
    machine::{Desired, Next, Plan, Step},
};

/// What is observed for a `RestApi`.
#[derive(Debug)]
pub struct Facts {
    /// The Controller, if it exists.
    pub controller: Option<ControllerFacts>,
    pub service: Option<Service>,
    /// slurmrestd.
    pub deployment: Option<Deployment>,
    /// Why its pods are not ready.
    pub pod_problems: Vec<PodProblem>,
}

/// What slurmrestd needs to know of a Controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerFacts {
    /// Whether it uses accounting.
    pub accounting: bool,
    /// The reference to the Slurm key.
    pub slurm_key: Option<SecretKeySelector>,
    /// The state of the Slurm key.
    pub key: KeyState,
    /// The hash of slurm.conf, once it is written.
    pub config_hash: Option<String>,
}

pub(super) fn plan(rest_api: &RestApi, facts: &Facts) -> Plan<RestApiStatus> {
    let parent = Parent::of(rest_api);
    let mut problems = Vec::new();
    let mut stages = Vec::new();
    let mut progress = match of_deployment(None, facts.deployment.as_ref()) {
        Progress::Absent(_) => Progress::Absent("see the Degraded condition".to_owned()),
        other => other,
    };
    let mut next = Next::OnChange;
    match service(rest_api, facts, &parent) {
        Ok(service) => stages.push(vec![apply(service.seeing(facts.service.as_ref()))]),
        Err(problem) => problems.push(problem),
    }
    match deployment(rest_api, facts, &parent) {
        Ok(Wanted::Deployment(wanted)) => {
            progress = of_deployment(Some(&wanted), facts.deployment.as_ref());
            if progress != Progress::Ready {
                next = Next::After(Duration::from_secs(10));
            }
            stages.push(vec![apply(wanted.seeing(facts.deployment.as_ref()))]);
        }
        Ok(Wanted::Later(why)) if facts.deployment.is_none() => progress = Progress::Absent(why),
        // A running slurmrestd is left as it is.
        Ok(Wanted::Later(_)) => {}
        Err(problem) => problems.push(problem),
    }
    Plan {
        stages,
        status: rest_api.status.clone().unwrap_or_default(),
        conditions: daemon_conditions("slurmrestd", &progress, &problems, summary(&facts.pod_problems).as_ref()),
        events: problems.iter().map(Problem::event).collect(),
        next,
        ..Plan::default()
    }
}

fn apply(desired: Desired) -> Step {
    Step::Apply(Box::new(desired))
}

enum Wanted {
    Deployment(Box<Desired>),
    /// A dependency that will appear without user action is missing.
    Later(String),
}

fn service(rest_api: &RestApi, facts: &Facts, parent: &Parent) -> Result<Desired, Problem> {
    taken(facts.service.as_ref(), parent)?;
    slurmrestd::main_service(parent, &rest_api.spec.service).map_err(Problem::invalid)
}

fn deployment(rest_api: &RestApi, facts: &Facts, parent: &Parent) -> Result<Wanted, Problem> {
    taken(facts.deployment.as_ref(), parent)?;
    let spec = &rest_api.spec;
    if spec.slurmrestd.text("image").is_none() {
        return Err(Problem::invalid("spec.slurmrestd.image is required"));
    }
    let name = &spec.controller_ref.name;
    let Some(controller) = &facts.controller else {
        let message =
            format!("the Controller {name} does not exist: create the Controller {name} or correct spec.controllerRef");
        return Err(Problem::new(reason::REFERENCE_MISSING, message));
    };
    let slurm_key = controller.slurm_key.as_ref();
    if controller.key == KeyState::NoSecret && facts.deployment.is_none() {
        // The Controller reports what to do, or generates the key.
        let secret = slurm_key.map_or("", |key| &key.name);
        return Ok(Wanted::Later(format!("waiting for the Secret {secret} with the Slurm key")));
    }
    let field = format!("spec.slurmKeyRef of the Controller {name}");
    let key_hash = hash_of(&controller.key, slurm_key, "Slurm's key", &field)?;
    let (Some(slurm_key), Some(config_hash)) = (slurm_key, &controller.config_hash) else {
        return Ok(Wanted::Later(format!("waiting for the configuration of the Controller {name}")));
    };
    let wanted = Slurmrestd {
        parent: parent.clone(),
        replicas: spec.replicas(),
        container: &spec.slurmrestd,
        template: &spec.template,
        accounting: controller.accounting,
        config_map: names::controller_config(name),
        slurm_key,
        hashes: StringMap::from([
            (hashes::SLURM_KEY.to_owned(), key_hash.to_owned()),
            (hashes::SLURM_CONFIG.to_owned(), config_hash.clone()),
        ]),
    };
    let wanted = slurmrestd::deployment(&wanted).map_err(Problem::invalid)?;
    Ok(Wanted::Deployment(Box::new(wanted)))
}
