//! What to do for a `RestApi`.

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

/// The facts.
#[derive(Debug)]
pub struct Facts {
    /// The Controller, if it is there.
    pub controller: Option<ControllerFacts>,
    /// The Service.
    pub service: Option<Service>,
    /// slurmrestd
    pub deployment: Option<Deployment>,
    /// What keeps its pods from being ready.
    pub pod_problems: Vec<PodProblem>,
}

/// What slurmrestd needs of a Controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerFacts {
    /// Whether it has accounting.
    pub accounting: bool,
    /// Where Slurm's key is.
    pub slurm_key: Option<SecretKeySelector>,
    /// What is known of it.
    pub key: KeyState,
    /// The hash of slurm.conf, if it is written.
    pub config_hash: Option<String>,
}

pub(super) fn plan(rest_api: &RestApi, facts: &Facts) -> Plan<RestApiStatus> {
    let parent = Parent::of(rest_api);
    let mut problems = Vec::new();
    let mut stages = Vec::new();
    let mut progress = match of_deployment(None, facts.deployment.as_ref()) {
        Progress::Absent(_) => Progress::Absent("something must be mended first".to_owned()),
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
        // What runs goes on.
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
    /// Something that will come by itself is not there yet.
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
        return Err(Problem::invalid("name the image of slurmrestd in spec.slurmrestd.image"));
    }
    let name = &spec.controller_ref.name;
    let Some(controller) = &facts.controller else {
        let message =
            format!("the Controller {name} does not exist: create the Controller {name} or correct spec.controllerRef");
        return Err(Problem::new(reason::REFERENCE_MISSING, message));
    };
    let slurm_key = controller.slurm_key.as_ref();
    if controller.key == KeyState::NoSecret && facts.deployment.is_none() {
        // The Controller says what to do, or has it made.
        let secret = slurm_key.map_or("", |key| &key.name);
        return Ok(Wanted::Later(format!("it waits for the Secret {secret} with Slurm's key")));
    }
    let field = format!("spec.slurmKeyRef of the Controller {name}");
    let key_hash = hash_of(&controller.key, slurm_key, "Slurm's key", &field)?;
    let (Some(slurm_key), Some(config_hash)) = (slurm_key, &controller.config_hash) else {
        return Ok(Wanted::Later(format!("it waits for the configuration of the Controller {name}")));
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
