//! Plans a `LoginSet`.

use std::time::Duration;

use engine::{
    component::Component,
    daemons::{
        keys::{KeyState, hash_of},
        login::{self, Login},
        pods::PodProblem,
        progress::{Problem, of_deployment},
        shared::{LOGIN, Parent, StringMap, taken, unless_former},
    },
    plan::{Desired, Plan},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::ResourceExt;
use slurm_operator_api::{
    common::{conditions::reason, shared::SecretKeySelector},
    slinky::{
        LoginSet, LoginSetStatus, VOCABULARY,
        names::{self, annotation::hash as hashes, label},
    },
};

use super::validate::validate;
use crate::frontends::slinky::keys::{Keys, Ring};

/// What is observed for a `LoginSet`.
#[derive(Debug)]
pub struct Facts {
    /// The Controller, if it exists.
    pub controller: Option<ControllerFacts>,
    /// The state of sssd.conf.
    pub sssd: KeyState,
    pub host_keys: Option<HostKeys>,
    /// The files of sshd.
    pub config_map: Option<ConfigMap>,
    pub service: Option<Service>,
    pub deployment: Option<Deployment>,
    /// Why its pods are not ready.
    pub pod_problems: Vec<PodProblem>,
    /// The DNS domain of the Kubernetes cluster.
    pub domain: String,
}

/// What login nodes need to know of a Controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerFacts {
    /// Where sackd gets the configuration from.
    pub config_server: String,
    /// Whether it generates keys that are missing.
    pub generates_keys: bool,
    /// The reference to the Slurm key.
    pub slurm_key: Option<SecretKeySelector>,
    /// The state of the Slurm key.
    pub key: KeyState,
    /// Where login nodes read it.
    pub ring: Ring,
}

/// The Secret with the host keys of sshd.
#[derive(Clone, Debug)]
pub struct HostKeys {
    /// Without its content.
    pub secret: Secret,
    /// Entries that it lacks.
    pub missing: Vec<String>,
    pub hash: String,
}

pub(super) fn plan(login_set: &LoginSet, facts: &Facts) -> Plan<LoginSetStatus> {
    let parent = Parent::of(login_set, &VOCABULARY);
    let live = facts.deployment.as_ref();
    let mut component = Component::new(&parent, LOGIN, of_deployment(live, true));
    let service = taken(facts.service.as_ref(), &parent)
        .and_then(|()| login::main_service(&parent, &login_set.spec.service).map_err(Problem::invalid));
    if let Some(service) = component.check(service) {
        component.apply(service.seeing(facts.service.as_ref()));
    }
    if facts.host_keys.is_none() {
        component.generate(login::host_keys(&parent));
    }
    match component.check(wanted(login_set, facts, &parent)) {
        Some(Wanted::Running { config_map, deployment }) => {
            // Files and pods change together or not at all.
            component.apply(config_map.seeing(facts.config_map.as_ref()));
            component.deployment(*deployment, live);
        }
        // Login nodes that run are left as they are.
        Some(Wanted::Later(why)) => component.wait(why),
        None => {}
    }
    if component.generates() {
        // The Secret triggers the next reconcile, when its hash is known.
        component.recheck_after(Duration::from_secs(2));
    }
    let status = LoginSetStatus {
        replicas: live.and_then(|live| live.status.as_ref()?.replicas).unwrap_or(0),
        selector: selector(&login_set.name_any()),
        ..login_set.status.clone().unwrap_or_default()
    };
    component.finish(&facts.pod_problems, status)
}

enum Wanted {
    Running {
        config_map: Box<Desired>,
        deployment: Box<Desired>,
    },
    /// Something that will appear without user action is missing.
    Later(String),
}

fn wanted(login_set: &LoginSet, facts: &Facts, parent: &Parent) -> Result<Wanted, Problem> {
    taken(facts.deployment.as_ref(), parent)?;
    taken(facts.config_map.as_ref(), parent)?;
    let spec = &login_set.spec;
    if let Some(problem) = Problem::of_fields(&validate(login_set)) {
        return Err(problem);
    }
    let name = &spec.controller_ref.name;
    let Some(controller) = &facts.controller else {
        let message =
            format!("the Controller {name} does not exist: create the Controller {name} or correct spec.controllerRef");
        return Err(Problem::new(reason::REFERENCE_MISSING, message));
    };
    let sssd_hash = hash_of(&facts.sssd, Some(&spec.sssd_conf_ref), "sssd.conf", "spec.sssdConfRef")?;
    let slurm_key = controller.slurm_key.as_ref();
    if controller.ring.live().is_none()
        && controller.key == KeyState::NoSecret
        && controller.generates_keys
        && facts.deployment.is_none()
    {
        let secret = slurm_key.map_or("", |key| &key.name);
        return Ok(Wanted::Later(format!("waiting for the Secret {secret} with the Slurm key")));
    }
    let field = format!("spec.slurmKeyRef of the Controller {name}");
    let key_hash = hash_of(&controller.key, slurm_key, "Slurm's key", &field);
    if let Some(why) = controller.ring.missing().filter(|_| key_hash.is_ok()) {
        return Ok(Wanted::Later(why));
    }
    let keys = Keys::new(controller.ring.live(), slurm_key, key_hash, false)?;
    let Some(host_keys) = &facts.host_keys else {
        return Ok(Wanted::Later("its host keys are being generated".to_owned()));
    };
    check_host_keys(host_keys, parent)?;
    let (config_map, files_hash) =
        login::ssh_config(parent, spec.extra_sshd_config.as_deref(), spec.root_ssh_authorized_keys.as_deref());
    let Some(image) = spec.login.text("image") else {
        return Err(Problem::invalid("login nodes cannot run"));
    };
    let hashes = StringMap::from([
        (hashes::SSHD_CONF.to_owned(), files_hash),
        (hashes::SSSD_CONF.to_owned(), sssd_hash.to_owned()),
        (hashes::SSH_HOST_KEYS.to_owned(), host_keys.hash.clone()),
    ]);
    let login = Login {
        parent: parent.clone(),
        cluster: name,
        config_server: &controller.config_server,
        replicas: spec.replicas(),
        strategy: spec.strategy.as_ref(),
        image,
        container: &spec.login,
        init_container: &spec.initconf,
        template: &spec.template,
        auth: keys.auth,
        sssd: &spec.sssd_conf_ref,
        domain: &facts.domain,
        hashes: hashes.clone().into_iter().chain(keys.annotations).collect(),
    };
    let former = keys.former.and_then(|(auth, annotations)| {
        let hashes = hashes.into_iter().chain(annotations).collect();
        login::deployment(&Login { auth, hashes, ..login.clone() }).ok()
    });
    let deployment = login::deployment(&login).map_err(Problem::invalid)?;
    let deployment = unless_former(&VOCABULARY, facts.deployment.as_ref(), former, deployment);
    Ok(Wanted::Running { config_map: Box::new(config_map), deployment: Box::new(deployment) })
}

/// A user may bring own host keys in a Secret that nobody controls. One of another object may go with it.
fn check_host_keys(host_keys: &HostKeys, parent: &Parent) -> Result<(), Problem> {
    let secret = &host_keys.secret;
    if secret.owner_references().iter().any(|owner| owner.controller == Some(true)) {
        taken(Some(secret), parent)?;
    }
    if host_keys.missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the Secret {} with the host keys has no {}: add them, or delete the Secret to have all of them generated",
        secret.name_any(),
        host_keys.missing.join(", ")
    );
    Err(Problem::new(reason::REFERENCE_MISSING, message))
}

/// The label selector of the pods, for kubectl and autoscalers.
fn selector(name: &str) -> String {
    format!("{}={},{}={}", label::INSTANCE, names::login(name), label::NAME, LOGIN.program)
}
