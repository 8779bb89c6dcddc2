//! Who may read a page: Kubernetes says whose token a request has, and whether that user may `get` the path.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, StatusCode,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use k8s_openapi::{
    Resource,
    api::{
        authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
        authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    },
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    core::ClusterResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::{
    failure::{Failure, call},
    lock::lock,
};

/// How long a decision is remembered, so that scraping does not become a load for the API server.
const ALLOWED: Duration = Duration::from_mins(1);
const DENIED: Duration = Duration::from_secs(10);

/// The number of decisions that are remembered.
const MOST: usize = 256;

/// Reviews at the same time: others wait, so that nobody can use this to flood the API server.
const REVIEWS: usize = 4;

/// A token is not longer than the headers of a request, but need not be as long as they may be.
const LONGEST: usize = 16 << 10;

/// A decision about a token and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Allowed,
    /// The token is not valid.
    Unknown,
    /// This user may not.
    Denied(String),
}

/// Decides, and remembers for a short time. Clones share the memory.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    client: Client,
    decisions: Mutex<Decisions>,
    reviews: Semaphore,
}

impl Access {
    pub fn new(client: Client) -> Self {
        Self(Arc::new(Inner { client, decisions: Mutex::default(), reviews: Semaphore::new(REVIEWS) }))
    }

    async fn decide(&self, token: &str, verb: &str, path: &str) -> Result<Decision, Failure> {
        // The token itself is not kept.
        let key = key(token, verb, path);
        if let Some(known) = lock(&self.0.decisions).find(&key, Instant::now()) {
            return Ok(known);
        }
        // Never closed.
        let _permit = self.0.reviews.acquire().await.ok();
        // Another request with the same token may have been faster.
        if let Some(known) = lock(&self.0.decisions).find(&key, Instant::now()) {
            return Ok(known);
        }
        let decision = self.review(token, verb, path).await?;
        lock(&self.0.decisions).remember(key, decision.clone(), Instant::now());
        Ok(decision)
    }

    async fn review(&self, token: &str, verb: &str, path: &str) -> Result<Decision, Failure> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: None },
            status: None,
        };
        let status = self.create(&review).await?.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Decision::Unknown);
        };
        let name = user.username.clone().unwrap_or_default();
        let review =
            SubjectAccessReview { metadata: ObjectMeta::default(), spec: access_of(user, verb, path), status: None };
        let is_allowed = self.create(&review).await?.status.is_some_and(|status| status.allowed);
        Ok(if is_allowed { Decision::Allowed } else { Decision::Denied(name) })
    }

    async fn create<K>(&self, review: &K) -> Result<K, Failure>
    where
        K: kube::Resource<DynamicType = (), Scope = ClusterResourceScope>
            + Resource
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api = Api::<K>::all(self.0.client.clone());
        call("creating", || <K as Resource>::KIND.to_owned(), api.create(&PostParams::default(), review)).await
    }
}

/// Lets requests through whose token may `get` (or `head`) the path.
pub async fn authorise(State(access): State<Access>, request: Request, next: Next) -> Response {
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    let Some(token) = bearer(request.headers()) else {
        let text = "send the token of a ServiceAccount: Authorization: Bearer …\n";
        return (StatusCode::UNAUTHORIZED, challenge, text).into_response();
    };
    let (verb, path) = (request.method().as_str().to_ascii_lowercase(), request.uri().path());
    match access.decide(token, &verb, path).await {
        Ok(Decision::Allowed) => next.run(request).await,
        Ok(Decision::Unknown) => {
            (StatusCode::UNAUTHORIZED, challenge, "the token is not valid\n".to_owned()).into_response()
        }
        Ok(Decision::Denied(user)) => {
            let text = format!("{user} may not {verb} {path}: it needs a ClusterRole with this nonResourceURL\n");
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Err(failure) => {
            tracing::warn!("cannot check a token: {}", failure.text());
            let text =
                "the token cannot be checked: the API server does not answer, or does not let the operator ask\n";
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= LONGEST).then_some(token)
}

fn access_of(user: UserInfo, verb: &str, path: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some(verb.to_owned()),
        }),
        resource_attributes: None,
    }
}

type Key = [u8; 32];

fn key(token: &str, verb: &str, path: &str) -> Key {
    // No part contains a line break.
    Sha256::digest(format!("{verb}\n{path}\n{token}")).into()
}

/// The last decisions.
#[derive(Default)]
struct Decisions(HashMap<Key, (Instant, Decision)>);

impl Decisions {
    fn find(&self, key: &Key, now: Instant) -> Option<Decision> {
        self.0.get(key).filter(|(until, _)| now < *until).map(|(_, decision)| decision.clone())
    }

    fn remember(&mut self, key: Key, decision: Decision, now: Instant) {
        if self.0.len() >= MOST {
            self.0.retain(|_, (until, decision)| now < *until && *decision == Decision::Allowed);
        }
        // Only with very many valid tokens.
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let lasts = if decision == Decision::Allowed { ALLOWED } else { DENIED };
        self.0.insert(key, (now + lasts, decision));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_counts() {
        let token = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, text.parse().unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        for text in ["abc", "Basic abc", "Bearer", "Bearer ", ""] {
            assert_eq!(token(text), None, "{text}");
        }
        assert_eq!(token(&format!("Bearer {}", "a".repeat(LONGEST + 1))), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn decisions_are_remembered_briefly_and_not_without_bounds() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        let (mine, other) = (key("t", "get", "/metrics"), key("t", "get", "/debug/slurm"));
        decisions.remember(mine, Decision::Allowed, now);
        decisions.remember(other, Decision::Denied("me".into()), now);
        assert_eq!(decisions.find(&mine, now + Duration::from_secs(59)), Some(Decision::Allowed));
        assert_eq!(decisions.find(&mine, now + ALLOWED), None);
        assert_eq!(decisions.find(&other, now + DENIED), None, "a new right takes effect soon");
        for number in 0..1000 {
            decisions.remember(key(&number.to_string(), "get", "/metrics"), Decision::Unknown, now);
            assert!(decisions.0.len() <= MOST);
        }
        assert_eq!(decisions.find(&mine, now), Some(Decision::Allowed), "wrong tokens do not push it out");
        for number in 0..1000 {
            decisions.remember(key(&number.to_string(), "get", "/metrics"), Decision::Allowed, now);
            assert!(decisions.0.len() <= MOST);
        }
    }

    #[test]
    fn the_user_of_the_token_is_asked_for() {
        let user = UserInfo {
            username: Some("system:serviceaccount:monitoring:prometheus".into()),
            groups: Some(vec!["system:serviceaccounts".into()]),
            ..UserInfo::default()
        };
        let spec = access_of(user, "get", "/metrics");
        assert_eq!(spec.user.as_deref(), Some("system:serviceaccount:monitoring:prometheus"));
        assert_eq!(spec.groups.unwrap(), ["system:serviceaccounts"]);
        let asked = spec.non_resource_attributes.unwrap();
        assert_eq!((asked.path.as_deref(), asked.verb.as_deref()), (Some("/metrics"), Some("get")));
    }
}
