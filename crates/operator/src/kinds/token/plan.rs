//! What to do for a Token.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::{Resource, ResourceExt, api::ObjectMeta};
use slurm::token::{Claims, Key, KeyTooShort, verify};
use slurm_operator_api::{
    Token, TokenStatus,
    conditions::{DEGRADED, PROGRESSING, READY, reason},
    names,
};

use crate::machine::{
    ConditionStatus, Desired, Event, GeneratedSecret, NewCondition, Next, ObjectVersion, Plan, SecretContent, Step,
};

/// The facts.
#[derive(Debug)]
pub struct Facts {
    /// What signs.
    pub key: SigningKey,
    /// The Secret that should hold the token.
    pub found: FoundSecret,
    /// Secrets that held it under another name.
    pub strays: Vec<ObjectVersion>,
}

/// What was found where the signing key should be.
#[derive(Debug)]
pub enum SigningKey {
    /// The object names none.
    NotNamed,
    /// The Secret is not there.
    NoSecret,
    /// The Secret has no such entry.
    NoEntry,
    /// It is too short to be safe.
    TooShort(KeyTooShort),
    /// It will do.
    Good(Box<Key>),
}

/// What was found where the token should be.
#[derive(Debug)]
pub enum FoundSecret {
    /// No Secret.
    Nothing,
    /// A Secret of ours; its entry may be missing.
    Ours {
        /// The token, as it is there.
        text: Option<SecretText>,
        /// Whether it can be changed.
        is_immutable: bool,
        /// Which Secret it is.
        secret: ObjectVersion,
    },
    /// A Secret that the Go operator left, owned by the signing key's.
    OfKey {
        /// The token, as it is there.
        text: Option<SecretText>,
        /// Whether it can be changed.
        is_immutable: bool,
        /// Which Secret it is.
        secret: ObjectVersion,
    },
    /// A Secret of somebody else.
    Foreign,
}

/// A text that does not show itself.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

pub(super) fn plan(token: &Token, facts: &Facts, now: Timestamp) -> Plan<TokenStatus> {
    let mut plan = decide(token, facts, now).unwrap_or_else(|problem| refuse(token, problem));
    if !facts.strays.is_empty() {
        plan.stages.push(facts.strays.iter().cloned().map(Box::new).map(Step::Delete).collect());
    }
    plan
}

/// Why there is no good token, and what to do about it.
struct TokenProblem {
    reason: &'static str,
    message: String,
}

fn problem<T>(reason: &'static str, message: String) -> Result<T, TokenProblem> {
    Err(TokenProblem { reason, message })
}

fn decide(token: &Token, facts: &Facts, now: Timestamp) -> Result<Plan<TokenStatus>, TokenProblem> {
    let lifetime = match token.spec.lifetime() {
        Ok(lifetime) => lifetime,
        Err(error) => return problem(reason::INVALID_SPEC, format!("spec.lifetime: {error}")),
    };
    let key = signing_key(token, &facts.key)?;
    let fresh = || Claims::new("", token.spec.username(), now, lifetime);
    match &facts.found {
        FoundSecret::Nothing => Ok(issue(token, key, &fresh(), Vec::new())),
        FoundSecret::Foreign => problem(
            "SecretTaken",
            format!(
                "the Secret {} belongs to somebody else and is left alone: delete it, or name another one in spec.secretRef",
                token.secret_name()
            ),
        ),
        FoundSecret::Ours { text, is_immutable, secret } => {
            keep_or_renew(token, key, text.as_ref(), *is_immutable, secret, &fresh(), Vec::new())
        }
        FoundSecret::OfKey { text, is_immutable, secret } => {
            let adopt = Step::SetOwners(Box::new(secret.clone()), vec![owner(token)]);
            keep_or_renew(token, key, text.as_ref(), *is_immutable, secret, &fresh(), vec![vec![adopt]])
        }
    }
}

fn signing_key<'a>(token: &Token, key: &'a SigningKey) -> Result<&'a Key, TokenProblem> {
    let reference = token.spec.key_ref();
    let (secret, entry) = reference.map_or(("", ""), |reference| (&reference.name, &reference.key));
    match key {
        SigningKey::Good(key) => Ok(key),
        SigningKey::NotNamed => problem(reason::INVALID_SPEC, "name the signing key in spec.jwtKeyRef".to_owned()),
        SigningKey::NoSecret => problem(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} with the signing key does not exist: create it, with the key as {entry}"),
        ),
        SigningKey::NoEntry => problem(
            reason::REFERENCE_MISSING,
            format!("the Secret {secret} has no entry {entry}: add the signing key there, or correct spec.jwtKeyRef"),
        ),
        SigningKey::TooShort(error) => problem("KeyTooShort", format!("{entry} in the Secret {secret}: {error}")),
    }
}

/// What to do with a Secret that is there.
fn keep_or_renew(
    token: &Token,
    key: &Key,
    text: Option<&SecretText>,
    is_immutable: bool,
    secret: &ObjectVersion,
    fresh: &Claims,
    stages: Vec<Vec<Step>>,
) -> Result<Plan<TokenStatus>, TokenProblem> {
    let now = fresh.issued_at;
    let flaw = match text.map(|text| verify(key, &text.0, now)) {
        None => format!("the Secret has no entry {}", token.spec.secret_key()),
        Some(Err(error)) => error.to_string(),
        Some(Ok(claims)) if claims.user != fresh.user => format!("the token names {}", claims.user),
        Some(Ok(claims)) => {
            let lasts = |claims: &Claims| claims.expires_at.duration_since(claims.issued_at);
            let is_due = token.spec.refresh && (now >= claims.refresh_at() || lasts(&claims) != lasts(fresh));
            if !is_due {
                return Ok(Plan { stages, ..good(token, &claims, now) });
            }
            "it is time for a new one".to_owned()
        }
    };
    if !token.spec.refresh {
        return problem(
            "TokenUnusable",
            format!("{flaw}, and spec.refresh is false: delete the Secret {} to have a new one made", secret.name),
        );
    }
    if is_immutable {
        // It cannot be changed, only replaced; its deletion wakes us.
        let plan = Plan { stages: vec![vec![Step::Delete(Box::new(secret.clone()))]], ..waiting(token, &flaw) };
        return Ok(plan);
    }
    Ok(issue(token, key, fresh, stages))
}

/// A new token.
fn issue(token: &Token, key: &Key, claims: &Claims, mut stages: Vec<Vec<Step>>) -> Plan<TokenStatus> {
    let content = SecretContent::Token {
        key: key.clone(),
        user: claims.user.clone(),
        issued_at: claims.issued_at,
        lifetime: claims.expires_at.duration_since(claims.issued_at),
    };
    let generated =
        GeneratedSecret { secret: Desired::of(&secret(token)), entry: token.spec.secret_key().to_owned(), content };
    stages.push(vec![Step::GenerateSecret(Box::new(generated))]);
    let text = format!("issued a token for {} in the Secret {}", claims.user, token.secret_name());
    let events = vec![Event { is_warning: false, reason: "Issued", text }];
    Plan { stages, events, ..good(token, claims, claims.issued_at) }
}

/// There is a good token, or will be.
fn good(token: &Token, claims: &Claims, now: Timestamp) -> Plan<TokenStatus> {
    let message = format!(
        "the Secret {} holds a token for {}, good until {}",
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

/// The Secret must go before there can be a good token.
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

/// Somebody must act. Until then there is nothing to try again: what they change wakes us.
fn refuse(token: &Token, problem: TokenProblem) -> Plan<TokenStatus> {
    let TokenProblem { reason, message } = problem;
    let events = vec![Event { is_warning: true, reason, text: message.clone() }];
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

/// A condition status that is not the one to hope for carries the reason; the others have nothing to tell.
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

/// The Secret without its content. It carries the Token's own labels and annotations, and goes with the Token.
fn secret(token: &Token) -> Secret {
    let mut labels = token.labels().clone();
    labels.insert(names::label::TOKEN.to_owned(), token.name_any());
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
