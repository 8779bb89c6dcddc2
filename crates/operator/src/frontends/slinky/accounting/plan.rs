//! Plans an Accounting.

use engine::{
    component::Component,
    conditions::{ConditionStatus, NewCondition},
    config::{SlurmdbdModel, Storage, slurmdbd_conf},
    daemons::{
        keys::{KeyState, SecretText, hash_of, weak_key},
        pods::{PodProblem, pod_problem},
        progress::{Problem, Progress, insecure, of_stateful_set},
        shared::{Parent, SLURMDBD, StringMap, taken, unless_former},
        slurmdbd::{self, DatabaseProblem, KeySource, Slurmdbd},
    },
    hash::hash,
    plan::{Desired, Fingerprint, Plan},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Pod, Secret, Service},
};
use slurm_operator_api::{
    common::{
        conditions::{DATABASE_REACHABLE, PROGRESSING, READY, reason},
        shared::ExternalConfig,
    },
    slinky::{
        Accounting, AccountingStatus, VOCABULARY,
        accounting::{StorageConfig, StorageTls},
        names::annotation::hash as hashes,
    },
};

use super::validate::validate;
use crate::frontends::slinky::keys::{Keys, Ring};

/// The reason while the database does not answer.
const UNREACHABLE: &str = "DatabaseUnreachable";

/// The reason while the database refuses slurmdbd.
const REFUSED: &str = "DatabaseRefused";

/// What is observed for an Accounting.
#[derive(Debug)]
pub struct Facts {
    /// The key of auth/slurm.
    pub slurm_key: KeyState,
    /// Where slurmdbd reads it.
    pub ring: Ring,
    /// The key that signs JSON web tokens.
    pub jwt_key: KeyState,
    /// The password of the database.
    pub password: Password,
    /// The hash of the JWKS file, if the spec refers to one that exists.
    pub jwks: Option<String>,
    /// Whether the certificate authority exists that the spec refers to.
    pub has_ca: bool,
    /// Whether the client certificate exists that the spec refers to.
    pub has_client_certificate: bool,
    pub service: Option<Service>,
    /// The Secret with slurmdbd.conf, without its content.
    pub config: Option<Secret>,
    /// The fingerprint of that Secret with its content.
    pub seen: Option<Fingerprint>,
    /// slurmdbd.
    pub stateful_set: Option<StatefulSet>,
    /// Its pods, while they are not ready.
    pub pods: Vec<Pod>,
    /// Why slurmdbd has no database, if it says so.
    pub database: Option<DatabaseProblem>,
}

/// The password of the database.
#[derive(Clone, Debug)]
pub enum Password {
    /// There is none.
    None(KeyState),
    Good {
        text: SecretText,
        /// Made with a secret, so that nobody can guess the password by it.
        hash: String,
    },
}

pub(super) fn plan(accounting: &Accounting, facts: &Facts, now: Timestamp) -> Plan<AccountingStatus> {
    let parent = Parent::of(accounting, &VOCABULARY);
    let status = accounting.status.clone().unwrap_or_default();
    if let Some(elsewhere) = accounting.spec.elsewhere() {
        return external(elsewhere, facts, &parent, status);
    }
    let mut component = if accounting.spec.external {
        let mut component = Component::new(&parent, SLURMDBD, of_stateful_set(facts.stateful_set.as_ref(), true));
        if let Some(problem) = Problem::of_fields(&validate(accounting)) {
            component.problem(problem);
        }
        component
    } else {
        managed(accounting, facts, &parent)
    };
    let problem = accounting.spec.storage_config.as_ref().zip(facts.database.as_ref());
    let problem = problem.map(|(storage, problem)| database_problem(storage, problem));
    if let Some(refused) = problem.as_ref().filter(|problem| problem.reason == REFUSED) {
        component.problem(refused.clone());
    }
    let pod_problems: Vec<PodProblem> = facts.pods.iter().filter_map(|pod| pod_problem(pod, now)).collect();
    let mut plan = component.finish(&pod_problems, status);
    let database = match &problem {
        Some(problem) => {
            believe(&mut plan.conditions, problem);
            NewCondition::new(DATABASE_REACHABLE, false, problem.reason, problem.message.as_str())
        }
        None => reachable(accounting, facts),
    };
    plan.conditions.push(database);
    let warning = weak_key(&facts.jwt_key, accounting.spec.jwt_key());
    plan.events.extend(warning.iter().map(Problem::event));
    plan.conditions.extend(insecure(warning.as_slice()));
    plan
}

/// slurmdbd is external: nothing runs here, and what ran before spec.external was set is removed.
fn external(
    elsewhere: &ExternalConfig,
    facts: &Facts,
    parent: &Parent,
    status: AccountingStatus,
) -> Plan<AccountingStatus> {
    let mut component = Component::new(parent, SLURMDBD, Progress::Ready);
    component.remove_orphans(&facts.stateful_set);
    component.remove_orphans(&facts.service);
    component.remove_orphans(&facts.config);
    let mut plan = component.finish(&[], status);
    for ready in plan.conditions.iter_mut().filter(|new_condition| new_condition.type_ == READY) {
        ready.message = format!("slurmdbd is external, at {}:{}", elsewhere.host, elsewhere.port);
    }
    plan
}

/// slurmdbd is run by the operator.
fn managed<'a>(accounting: &Accounting, facts: &Facts, parent: &'a Parent) -> Component<'a> {
    let mut component = Component::new(parent, SLURMDBD, of_stateful_set(facts.stateful_set.as_ref(), true));
    let taken = taken(facts.service.as_ref(), parent)
        .and_then(|()| taken(facts.config.as_ref(), parent))
        .and_then(|()| taken(facts.stateful_set.as_ref(), parent));
    let Some(()) = component.check(taken) else { return component };
    let service = slurmdbd::main_service(parent, &accounting.spec.service).map_err(Problem::invalid);
    if let Some(service) = component.check(service) {
        component.apply(service.seeing(facts.service.as_ref()));
    }
    // Configuration and pod change together or not at all: a slurmdbd that restarts must find what it had.
    let missing = facts.ring.missing().filter(|_| matches!(facts.slurm_key, KeyState::Good { .. }));
    if let Some(why) = missing {
        component.wait(why);
    } else if let Some((config, stateful_set)) = component.check(wanted(accounting, facts, parent)) {
        component.apply(Desired { seen: facts.seen, ..config });
        component.stateful_set(stateful_set, facts.stateful_set.as_ref(), &facts.pods);
    }
    component
}

/// The Secret with slurmdbd.conf, and the `StatefulSet`.
fn wanted(accounting: &Accounting, facts: &Facts, parent: &Parent) -> Result<(Desired, Desired), Problem> {
    let spec = &accounting.spec;
    let invalid = |problem: Option<Problem>| problem.unwrap_or_else(|| Problem::invalid("slurmdbd cannot run"));
    let problem = Problem::of_fields(&validate(accounting));
    let (None, Some(slurm_key), Some(jwt_key), Some(storage), Some(image)) =
        (&problem, &spec.slurm_key_ref, spec.jwt_key(), &spec.storage_config, spec.slurmdbd.text("image"))
    else {
        return Err(invalid(problem));
    };
    let slurm_hash = hash_of(&facts.slurm_key, Some(slurm_key), "Slurm's key", "spec.slurmKeyRef");
    let keys = Keys::new(facts.ring.live(), Some(slurm_key), slurm_hash, true)?;
    let jwt_hash = hash_of(&facts.jwt_key, Some(jwt_key), "the key that signs tokens", "spec.jwtKeyRef")?;
    let (password, password_hash) = password(&facts.password, storage)?;
    check_files(accounting, facts)?;
    let tls = storage.tls.as_ref();
    let ca = tls.and_then(ca);
    let client_certificate = tls.and_then(|tls| tls.client_certificate_ref.as_ref()).map(|secret| &*secret.name);
    let conf_with = |password| {
        let model = SlurmdbdModel {
            host: slurmdbd::host(parent),
            storage: Storage {
                host: &storage.host,
                // The schema limits the range.
                port: u16::try_from(storage.port()).unwrap_or_default(),
                database: storage.database(),
                user: storage.username(),
                password,
                has_ca: ca.is_some(),
                has_client_certificate: client_certificate.is_some(),
            },
            jwks: spec.jwks_key_ref.is_some(),
            extra: spec.extra_conf.as_deref().unwrap_or_default(),
        };
        slurmdbd_conf(&model).map_err(Problem::invalid)
    };
    let config = slurmdbd::config_secret(parent, &conf_with(password)?);
    let without = conf_with("hidden")?;
    let jwks = facts.jwks.as_deref().unwrap_or_default();
    let conf_hash = hash([("conf", without.as_str()), ("jwks", jwks), ("password", password_hash)]);
    let hashes = StringMap::from([
        (hashes::JWT_KEY.to_owned(), jwt_hash.to_owned()),
        (hashes::SLURMDBD_CONF.to_owned(), conf_hash),
    ]);
    let slurmdbd = Slurmdbd {
        parent: parent.clone(),
        image,
        container: &spec.slurmdbd,
        template: &spec.template,
        auth: keys.auth,
        jwt_key,
        jwks: spec.jwks_key_ref.as_ref(),
        ca,
        client_certificate,
        hashes: hashes.clone().into_iter().chain(keys.annotations).collect(),
    };
    let former = keys.former.and_then(|(auth, annotations)| {
        let hashes = hashes.into_iter().chain(annotations).collect();
        slurmdbd::stateful_set(&Slurmdbd { auth, hashes, ..slurmdbd.clone() }).ok()
    });
    let stateful_set = slurmdbd::stateful_set(&slurmdbd).map_err(Problem::invalid)?;
    Ok((config, unless_former(&VOCABULARY, facts.stateful_set.as_ref(), former, stateful_set)))
}

/// The password and its hash.
fn password<'a>(password: &'a Password, storage: &StorageConfig) -> Result<(&'a str, &'a str), Problem> {
    match password {
        Password::Good { text, hash } => Ok((&text.0, hash)),
        Password::None(state) => {
            let what = "the password of the database";
            hash_of(state, Some(&storage.password_key_ref), what, "spec.storageConfig.passwordKeyRef")
                .map(|hash| ("", hash))
        }
    }
}

fn ca(tls: &StorageTls) -> Option<KeySource<'_>> {
    let ca = tls.ca.as_ref()?;
    let config_map = ca.config_map_key_ref.as_ref().map(KeySource::ConfigMap);
    config_map.or_else(|| ca.secret_key_ref.as_ref().map(KeySource::Secret))
}

/// Files without which the pod would not start.
fn check_files(accounting: &Accounting, facts: &Facts) -> Result<(), Problem> {
    let missing = |what: String| Err(Problem::new(reason::REFERENCE_MISSING, what));
    let has_no = |kind: &str, name: &str, entry: &str, field: &str| {
        missing(format!("the {kind} {name} has no {entry}: create it, or correct {field}"))
    };
    if let (Some(jwks), None) = (&accounting.spec.jwks_key_ref, &facts.jwks) {
        return has_no("ConfigMap", &jwks.name, &jwks.key, "spec.jwksKeyRef");
    }
    let Some(tls) = accounting.spec.storage_config.as_ref().and_then(|storage| storage.tls.as_ref()) else {
        return Ok(());
    };
    let field = "spec.storageConfig.tls";
    match ca(tls).filter(|_| !facts.has_ca) {
        Some(KeySource::ConfigMap(key)) => return has_no("ConfigMap", &key.name, &key.key, &format!("{field}.ca")),
        Some(KeySource::Secret(key)) => return has_no("Secret", &key.name, &key.key, &format!("{field}.ca")),
        None => {}
    }
    match tls.client_certificate_ref.as_ref().filter(|_| !facts.has_client_certificate) {
        Some(secret) => has_no("Secret", &secret.name, "tls.crt and tls.key", &format!("{field}.clientCertificateRef")),
        None => Ok(()),
    }
}

/// What is wrong with the database, and what to do.
fn database_problem(storage: &StorageConfig, problem: &DatabaseProblem) -> Problem {
    let place = format!("{}:{}", storage.host, storage.port());
    if problem.is_refused {
        let secret = &storage.password_key_ref.name;
        let message = format!(
            "the database at {place} refuses slurmdbd: {}. Correct spec.storageConfig, the password in the Secret {secret}, or \
             the rights of the user in the database",
            problem.text
        );
        return Problem::new(REFUSED, message);
    }
    let message = format!("slurmdbd cannot connect to its database at {place}: {}; it tries again", problem.text);
    Problem::new(UNREACHABLE, message)
}

/// Without a database the Accounting is not ready, whatever the state of its pod.
fn believe(conditions: &mut [NewCondition], problem: &Problem) {
    for new_condition in conditions.iter_mut() {
        let is_ready_condition = new_condition.type_ == READY;
        let is_progress = new_condition.type_ == PROGRESSING && new_condition.status == ConditionStatus::True;
        // A problem with the spec is told first.
        let is_other = new_condition.status == ConditionStatus::False && new_condition.reason != reason::PODS_NOT_READY;
        if (is_ready_condition && !is_other) || is_progress {
            new_condition.reason = problem.reason;
            new_condition.message.clone_from(&problem.message);
        }
        if is_ready_condition {
            new_condition.status = ConditionStatus::False;
        }
    }
}

fn reachable(accounting: &Accounting, facts: &Facts) -> NewCondition {
    let storage = accounting.spec.storage_config.as_ref();
    let place = storage.map(|storage| format!("{}:{}", storage.host, storage.port())).unwrap_or_default();
    if of_stateful_set(facts.stateful_set.as_ref(), true) == Progress::Ready {
        let message = format!("slurmdbd is connected to its database at {place}");
        return NewCondition::new(DATABASE_REACHABLE, true, reason::AS_EXPECTED, message);
    }
    let message = format!("slurmdbd has not connected to its database at {place} yet");
    NewCondition::new(DATABASE_REACHABLE, ConditionStatus::Unknown, "Starting", message)
}
