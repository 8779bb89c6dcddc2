//! Plans a `RestApi`.

use std::collections::{BTreeMap, BTreeSet};

use engine::{
    component::Component,
    daemons::{
        keys::{KeyState, hash_of},
        pods::PodProblem,
        progress::{Problem, of_deployment},
        shared::{Parent, SLURMRESTD, StringMap, taken, unless_former},
        slurmrestd::{self, Slurmrestd},
    },
    hash::hash,
    plan::{Desired, Plan},
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use slurm_operator_api::{
    common::{conditions::reason, shared::SecretKeySelector},
    slinky::{
        RestApi, RestApiStatus, VOCABULARY,
        names::{self, annotation::hash as hashes},
    },
};

use super::validate::validate;
use crate::frontends::slinky::keys::{Keys, Ring};

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
    /// Where daemons read it.
    pub ring: Ring,
    /// The `ConfigMaps` with the files that slurm.conf may include, each with a hash of its files, or `None` while it does not
    /// exist. Empty if slurm.conf includes no file.
    pub included: BTreeMap<String, Option<String>>,
    /// The hash of slurm.conf, once it is written.
    pub config_hash: Option<String>,
}

pub(super) fn plan(rest_api: &RestApi, facts: &Facts) -> Plan<RestApiStatus> {
    let parent = Parent::of(rest_api, &VOCABULARY);
    let live = facts.deployment.as_ref();
    let mut component = Component::new(&parent, SLURMRESTD, of_deployment(live, true));
    let service = taken(facts.service.as_ref(), &parent)
        .and_then(|()| slurmrestd::main_service(&parent, &rest_api.spec.service).map_err(Problem::invalid));
    if let Some(service) = component.check(service) {
        component.apply(service.seeing(facts.service.as_ref()));
    }
    match component.check(deployment(rest_api, facts, &parent)) {
        Some(Wanted::Deployment(wanted)) => component.deployment(*wanted, live),
        // A running slurmrestd is left as it is.
        Some(Wanted::Later(why)) => component.wait(why),
        None => {}
    }
    component.finish(&facts.pod_problems, rest_api.status.clone().unwrap_or_default())
}

enum Wanted {
    Deployment(Box<Desired>),
    /// A dependency that will appear without user action is missing.
    Later(String),
}

fn deployment(rest_api: &RestApi, facts: &Facts, parent: &Parent) -> Result<Wanted, Problem> {
    taken(facts.deployment.as_ref(), parent)?;
    let spec = &rest_api.spec;
    if let Some(problem) = Problem::of_fields(&validate(rest_api)) {
        return Err(problem);
    }
    let name = &spec.controller_ref.name;
    let Some(controller) = &facts.controller else {
        let message =
            format!("the Controller {name} does not exist: create the Controller {name} or correct spec.controllerRef");
        return Err(Problem::new(reason::REFERENCE_MISSING, message));
    };
    let slurm_key = controller.slurm_key.as_ref();
    if controller.ring.live().is_none() && controller.key == KeyState::NoSecret && facts.deployment.is_none() {
        // The Controller reports what to do, or generates the key.
        let secret = slurm_key.map_or("", |key| &key.name);
        return Ok(Wanted::Later(format!("waiting for the Secret {secret} with the Slurm key")));
    }
    let field = format!("spec.slurmKeyRef of the Controller {name}");
    let key_hash = hash_of(&controller.key, slurm_key, "Slurm's key", &field);
    if let Some(why) = controller.ring.missing().filter(|_| key_hash.is_ok()) {
        return Ok(Wanted::Later(why));
    }
    // slurmrestd has the files and does not read them: it authenticates with tokens.
    let keys = Keys::new(controller.ring.live(), slurm_key, key_hash, false)?;
    let Some(config_hash) = &controller.config_hash else {
        return Ok(Wanted::Later(format!("waiting for the configuration of the Controller {name}")));
    };
    if let Some((missing, _)) = controller.included.iter().find(|(_, hash)| hash.is_none()) {
        return Ok(Wanted::Later(format!("waiting for the ConfigMap {missing} of the Controller {name}")));
    }
    let mut config_hash = config_hash.clone();
    if !controller.included.is_empty() {
        let included = controller.included.iter().filter_map(|(name, hash)| Some((name.as_str(), hash.as_deref()?)));
        config_hash = hash(included.chain([("slurm.conf", config_hash.as_str())]));
    }
    let included: BTreeSet<String> = controller.included.keys().cloned().collect();
    let hashes = StringMap::from([(hashes::SLURM_CONFIG.to_owned(), config_hash)]);
    let slurmrestd = Slurmrestd {
        parent: parent.clone(),
        replicas: spec.replicas(),
        container: &spec.slurmrestd,
        template: &spec.template,
        accounting: controller.accounting,
        config_map: names::controller_config(name),
        included: &included,
        auth: keys.auth,
        hashes: hashes.clone().into_iter().chain(keys.annotations).collect(),
    };
    let former = keys.former.and_then(|(auth, annotations)| {
        let hashes = hashes.into_iter().chain(annotations).collect();
        slurmrestd::deployment(&Slurmrestd { auth, hashes, ..slurmrestd.clone() }).ok()
    });
    let wanted = slurmrestd::deployment(&slurmrestd).map_err(Problem::invalid)?;
    let wanted = unless_former(&VOCABULARY, facts.deployment.as_ref(), former, wanted);
    Ok(Wanted::Deployment(Box::new(wanted)))
}
