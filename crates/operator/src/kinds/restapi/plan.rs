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
        keys::{KeySeen, hash_of},
        pods::{Complaint, summary},
        shared::{Parent, Texts, taken},
        slurmrestd::{self, Slurmrestd},
        verdict::{Progress, Trouble, judge, of_deployment},
    },
    machine::{Desired, Next, Plan, Step},
};

/// The facts.
#[derive(Debug)]
pub struct Seen {
    /// The Controller, if it is there.
    pub controller: Option<ControllerSeen>,
    /// The Service.
    pub service: Option<Service>,
    /// slurmrestd
    pub deployment: Option<Deployment>,
    /// What keeps its pods from being ready.
    pub complaints: Vec<Complaint>,
}

/// What slurmrestd needs of a Controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSeen {
    /// Whether it has accounting.
    pub accounting: bool,
    /// Where Slurm's key is.
    pub slurm_key: Option<SecretKeySelector>,
    /// What is known of it.
    pub key: KeySeen,
    /// The hash of slurm.conf, if it is written.
    pub config_hash: Option<String>,
}

pub(super) fn plan(rest_api: &RestApi, seen: &Seen) -> Plan<RestApiStatus> {
    let parent = Parent::of(rest_api);
    let mut troubles = Vec::new();
    let mut stages = Vec::new();
    let mut progress = match of_deployment(None, seen.deployment.as_ref()) {
        Progress::Absent(_) => Progress::Absent("something must be mended first".to_owned()),
        other => other,
    };
    let mut next = Next::OnChange;
    match service(rest_api, seen, &parent) {
        Ok(service) => stages.push(vec![apply(service.seeing(seen.service.as_ref()))]),
        Err(trouble) => troubles.push(trouble),
    }
    match deployment(rest_api, seen, &parent) {
        Ok(Wanted::Deployment(wanted)) => {
            progress = of_deployment(Some(&wanted), seen.deployment.as_ref());
            if progress != Progress::Ready {
                next = Next::After(Duration::from_secs(10));
            }
            stages.push(vec![apply(wanted.seeing(seen.deployment.as_ref()))]);
        }
        Ok(Wanted::Later(why)) if seen.deployment.is_none() => progress = Progress::Absent(why),
        // What runs goes on.
        Ok(Wanted::Later(_)) => {}
        Err(trouble) => troubles.push(trouble),
    }
    Plan {
        stages,
        status: rest_api.status.clone().unwrap_or_default(),
        conditions: judge("slurmrestd", &progress, &troubles, summary(&seen.complaints).as_ref()),
        notes: troubles.iter().map(Trouble::note).collect(),
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

fn service(rest_api: &RestApi, seen: &Seen, parent: &Parent) -> Result<Desired, Trouble> {
    taken(seen.service.as_ref(), parent)?;
    slurmrestd::main_service(parent, &rest_api.spec.service).map_err(Trouble::invalid)
}

fn deployment(rest_api: &RestApi, seen: &Seen, parent: &Parent) -> Result<Wanted, Trouble> {
    taken(seen.deployment.as_ref(), parent)?;
    let spec = &rest_api.spec;
    if spec.slurmrestd.text("image").is_none() {
        return Err(Trouble::invalid("name the image of slurmrestd in spec.slurmrestd.image"));
    }
    let name = &spec.controller_ref.name;
    let Some(controller) = &seen.controller else {
        let message =
            format!("the Controller {name} does not exist: create the Controller {name} or correct spec.controllerRef");
        return Err(Trouble::new(reason::REFERENCE_MISSING, message));
    };
    let slurm_key = controller.slurm_key.as_ref();
    if controller.key == KeySeen::NoSecret && seen.deployment.is_none() {
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
        hashes: Texts::from([
            (hashes::SLURM_KEY.to_owned(), key_hash.to_owned()),
            (hashes::SLURM_CONFIG.to_owned(), config_hash.clone()),
        ]),
    };
    let wanted = slurmrestd::deployment(&wanted).map_err(Trouble::invalid)?;
    Ok(Wanted::Deployment(Box::new(wanted)))
}
