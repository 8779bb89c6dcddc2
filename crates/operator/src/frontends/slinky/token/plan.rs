//! Plans a Token.

use std::time::Duration;

use engine::{
    conditions::{ConditionStatus, NewCondition},
    daemons::{
        keys::{SecretText, key_too_short},
        progress::{Problem, insecure},
    },
    plan::{Desired, Event, GeneratedSecret, Next, ObjectVersion, Plan, SecretContent, Step},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::{Resource, ResourceExt, api::ObjectMeta};
use slurm::token::{Claims, Key, verify};
use slurm_operator_api::{
    common::conditions::{DEGRADED, PROGRESSING, READY, reason},
    slinky::{Token, TokenStatus, names},
};

use super::validate::validate;

/// What is observed for a Token.
#[derive(Debug)]
pub struct Facts {
    /// The signing key.
    pub key: SigningKey,
    /// The Secret for the token.
    pub found: FoundSecret,
    /// Secrets that held the token under a previous name.
    pub strays: Vec<ObjectVersion>,
}

/// The state of the signing key.
#[derive(Debug)]
pub enum SigningKey {
    /// The spec refers to none.
    NotNamed,
    /// The Secret does not exist.
    NoSecret,
    /// The Secret has no such entry, or it is empty.
    NoEntry,
    /// It is usable.
    Good(Box<Key>),
}

/// The state of the Secret for the token.
#[derive(Debug)]
pub enum FoundSecret {
    /// The Secret does not exist.
    Nothing,
    /// It is owned by the Token; the entry may be missing.
    Ours { text: Option<SecretText>, is_immutable: bool, secret: ObjectVersion },
    /// It was created by the Go operator and is owned by the Secret of the signing key.
    OfKey { text: Option<SecretText>, is_immutable: bool, secret: ObjectVersion },
    /// It has no owner: the token is written to it, and the rest of it is left alone.
    Unowned(Unowned),
    /// It has another owner.
    Foreign,
}

/// A Secret that a user has made for tokens.
#[derive(Debug)]
pub struct Unowned {
    pub text: Option<SecretText>,
    pub is_immutable: bool,
    pub is_opaque: bool,
    /// Whether this Token has written the entry, or the Go operator for it.
    pub is_mine: bool,
}

pub(super) fn plan(token: &Token, facts: &Facts, now: Timestamp) -> Plan<TokenStatus> {
    let mut plan = decide(token, facts, now).unwrap_or_else(|problem| refuse(token, problem));
    let warning = weak_key(token, &facts.key);
    plan.events.extend(warning.iter().map(Problem::event));
    plan.conditions.extend(insecure(warning.as_slice()));
    if !facts.strays.is_empty() {
        plan.stages.push(
            facts
                .strays
                .iter()
                .cloned()
                .map(|old| Step::Delete(Box::new(old), "the token is in another Secret now"))
                .collect(),
        );
    }
    plan
}

/// The value of the label that finds Secrets of a Token under earlier names. Label values are shorter than names.
pub(super) fn label_of(token: &Token) -> String {
    let name: String = token.name_any().chars().take(63).collect();
    name.trim_end_matches(['-', '.']).to_owned()
}

fn refused<T>(reason: &'static str, message: String) -> Result<T, Problem> {
    Err(Problem { reason, message })
}

fn decide(token: &Token, facts: &Facts, now: Timestamp) -> Result<Plan<TokenStatus>, Problem> {
    if let Some(problem) = Problem::of_fields(&validate(token)) {
        return Err(problem);
    }
    let lifetime = token.spec.lifetime().map_err(Problem::invalid)?;
    let key = signing_key(token, &facts.key)?;
    let fresh = || Claims::new("", token.spec.username(), now, lifetime);
    match &facts.found {
        FoundSecret::Nothing => Ok(issue(token, key, &fresh(), &own_secret(token), Vec::new())),
        FoundSecret::Foreign => refused(
            "SecretTaken",
            format!(
                "the Secret {} is not owned by this Token: delete it, or set spec.secretRef to another name",
                token.secret_name()
            ),
        ),
        FoundSecret::Unowned(found) => fill(token, key, found, &fresh()),
        FoundSecret::Ours { text, is_immutable, secret } => {
            keep_or_renew(token, key, text.as_ref(), *is_immutable, secret, &fresh(), Vec::new())
        }
        FoundSecret::OfKey { text, is_immutable, secret } => {
            let adopt = Step::SetOwners(Box::new(secret.clone()), vec![owner(token)]);
            keep_or_renew(token, key, text.as_ref(), *is_immutable, secret, &fresh(), vec![vec![adopt]])
        }
    }
}

/// The key is used although it is weak: slurmctld accepts it, too.
fn weak_key(token: &Token, key: &SigningKey) -> Option<Problem> {
    let SigningKey::Good(key) = key else { return None };
    Some(key_too_short(token.spec.key_ref()?, &key.weakness()?))
}

fn signing_key<'a>(token: &Token, key: &'a SigningKey) -> Result<&'a Key, Problem> {
    let reference = token.spec.key_ref();
    let (secret, entry) = reference.map_or(("", ""), |reference| (&reference.name, &reference.key));
    match key {
        SigningKey::Good(key) => Ok(key),
        SigningKey::NotNamed => refused(reason::INVALID_SPEC, "set spec.jwtKeyRef to the signing key".to_owned()),
        SigningKey::NoSecret => refused(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} with the signing key does not exist: create it, with the key as {entry}"),
        ),
        SigningKey::NoEntry => refused(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} has no entry {entry}: add the signing key there, or correct spec.jwtKeyRef"),
        ),
    }
}

/// Keeps the token in an existing Secret, or renews it.
fn keep_or_renew(
    token: &Token,
    key: &Key,
    text: Option<&SecretText>,
    is_immutable: bool,
    secret: &ObjectVersion,
    fresh: &Claims,
    stages: Vec<Vec<Step>>,
) -> Result<Plan<TokenStatus>, Problem> {
    let flaw = match check(token, key, text, fresh) {
        Ok(claims) => return Ok(Plan { stages, ..good(token, &claims, fresh.issued_at) }),
        Err(flaw) => flaw,
    };
    if !token.spec.refresh {
        return refused(
            "TokenUnusable",
            format!("{flaw}, and spec.refresh is false: delete the Secret {} to issue a new token", secret.name),
        );
    }
    if is_immutable {
        // It cannot be updated, only replaced; its deletion triggers the next reconcile.
        let plan = Plan {
            stages: vec![vec![Step::Delete(Box::new(secret.clone()), "it is immutable and must be replaced")]],
            ..waiting(token, &flaw)
        };
        return Ok(plan);
    }
    Ok(issue(token, key, fresh, &own_secret(token), stages))
}

/// The claims of a token that is kept, or why it is not.
fn check(token: &Token, key: &Key, text: Option<&SecretText>, fresh: &Claims) -> Result<Claims, String> {
    let now = fresh.issued_at;
    let Some(text) = text else { return Err(format!("the Secret has no entry {}", token.spec.secret_key())) };
    let claims = verify(key, &text.0, now).map_err(|error| error.to_string())?;
    if claims.user != fresh.user {
        return Err(format!("the token is for the user {}", claims.user));
    }
    let lasts = |claims: &Claims| claims.expires_at.duration_since(claims.issued_at);
    let is_due = token.spec.refresh && (now >= claims.refresh_at() || lasts(&claims) != lasts(fresh));
    if is_due { Err("the token is due for renewal".to_owned()) } else { Ok(claims) }
}

/// The field manager of an entry in a Secret that several Tokens may share.
pub(super) fn manager_of(token: &Token) -> String {
    format!("slurm-operator/token/{}", label_of(token))
}

/// Keeps the token in the user's own Secret, or writes it there. Only what this Token has written is ever replaced.
fn fill(token: &Token, key: &Key, found: &Unowned, fresh: &Claims) -> Result<Plan<TokenStatus>, Problem> {
    let text = found.text.as_ref();
    let flaw = match check(token, key, text, fresh) {
        Ok(claims) => return Ok(good(token, &claims, fresh.issued_at)),
        Err(flaw) => flaw,
    };
    let (name, entry) = (token.secret_name(), token.spec.secret_key());
    if !found.is_opaque {
        return refused(
            "SecretTaken",
            format!("the Secret {name} is not of the type Opaque: name another one in spec.secretRef"),
        );
    }
    if text.is_some() && !found.is_mine {
        let message = format!(
            "the entry {entry} of the Secret {name} was written by somebody else and is not replaced: remove it, or set \
             spec.secretRef.key to another entry"
        );
        return refused("SecretTaken", message);
    }
    if found.is_immutable {
        return refused("TokenUnusable", format!("{flaw}, and the Secret {name} is immutable: delete it"));
    }
    if text.is_some() && !token.spec.refresh {
        let message =
            format!("{flaw}, and spec.refresh is false: remove {entry} from the Secret {name} to issue a new token");
        return refused("TokenUnusable", message);
    }
    let metadata = ObjectMeta { name: Some(name), namespace: token.namespace(), ..ObjectMeta::default() };
    let mut plan = issue(token, key, fresh, &Secret { metadata, ..Secret::default() }, Vec::new());
    for step in plan.stages.iter_mut().flatten() {
        if let Step::GenerateSecret(generated) = step {
            generated.manager = Some(manager_of(token));
        }
    }
    Ok(plan)
}

/// Issues a new token into a Secret.
fn issue(token: &Token, key: &Key, claims: &Claims, secret: &Secret, mut stages: Vec<Vec<Step>>) -> Plan<TokenStatus> {
    let content = SecretContent::Token {
        key: key.clone(),
        user: claims.user.clone(),
        issued_at: claims.issued_at,
        lifetime: claims.expires_at.duration_since(claims.issued_at),
    };
    let generated = GeneratedSecret {
        secret: Desired::of(secret),
        entry: token.spec.secret_key().to_owned(),
        content,
        manager: None,
    };
    stages.push(vec![Step::GenerateSecret(Box::new(generated))]);
    let text = format!("issued a token for {} in the Secret {}", claims.user, token.secret_name());
    let events = vec![Event { is_warning: false, reason: "Issued", text }];
    Plan { stages, events, ..good(token, claims, claims.issued_at) }
}

/// The plan when the token is valid, or about to be.
fn good(token: &Token, claims: &Claims, now: Timestamp) -> Plan<TokenStatus> {
    let message = format!(
        "the Secret {} contains a token for {}, valid until {}",
        token.secret_name(),
        claims.user,
        claims.expires_at
    );
    let recheck = if token.spec.refresh { claims.refresh_at() } else { claims.expires_at };
    Plan {
        status: TokenStatus {
            issued_at: Some(Time(claims.issued_at)),
            expires_at: Some(Time(claims.expires_at)),
            ..TokenStatus::default()
        },
        conditions: new_conditions(
            ConditionStatus::True,
            ConditionStatus::False,
            ConditionStatus::False,
            "Issued",
            message,
        ),
        next: Next::at(recheck, now),
        ..Plan::default()
    }
}

/// The plan while an immutable Secret is being deleted.
fn waiting(token: &Token, flaw: &str) -> Plan<TokenStatus> {
    let message = format!("replacing the Secret {}: {flaw}", token.secret_name());
    Plan {
        status: token.status.clone().unwrap_or_default(),
        conditions: new_conditions(
            ConditionStatus::False,
            ConditionStatus::True,
            ConditionStatus::False,
            "Replacing",
            message,
        ),
        next: Next::After(Duration::from_secs(5)),
        ..Plan::default()
    }
}

/// The plan when a user must act. There is no retry: the user's change triggers the next reconcile.
fn refuse(token: &Token, problem: Problem) -> Plan<TokenStatus> {
    let events = vec![problem.event()];
    let Problem { reason, message } = problem;
    Plan {
        status: token.status.clone().unwrap_or_default(),
        conditions: new_conditions(
            ConditionStatus::False,
            ConditionStatus::False,
            ConditionStatus::True,
            reason,
            message,
        ),
        events,
        ..Plan::default()
    }
}

/// Conditions with status False carry no message, except Ready.
fn new_conditions(
    ready: ConditionStatus,
    progressing: ConditionStatus,
    degraded: ConditionStatus,
    reason: &'static str,
    message: String,
) -> Vec<NewCondition> {
    let new_condition = |type_, status| match status {
        ConditionStatus::False => NewCondition { type_, status, reason: reason::AS_EXPECTED, message: String::new() },
        _ => NewCondition { type_, status, reason, message: message.clone() },
    };
    let others = [new_condition(PROGRESSING, progressing), new_condition(DEGRADED, degraded)];
    let ready = NewCondition { type_: READY, status: ready, reason, message };
    [ready].into_iter().chain(others).collect()
}

/// The Secret without its content. It has the Token's labels and annotations, and is deleted with the Token.
fn own_secret(token: &Token) -> Secret {
    let mut labels = token.labels().clone();
    labels.insert(names::label::TOKEN.to_owned(), label_of(token));
    let mut annotations = token.annotations().clone();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    Secret {
        metadata: ObjectMeta {
            name: Some(token.secret_name()),
            namespace: token.namespace(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            owner_references: Some(vec![owner(token)]),
            ..ObjectMeta::default()
        },
        immutable: (!token.spec.refresh).then_some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn owner(token: &Token) -> OwnerReference {
    token.controller_owner_ref(&()).unwrap_or_default()
}
