//! Leader election with a Lease: the first replica whose conditional write succeeds leads.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::lock::lock;

/// How long a lease is valid without renewal.
const LASTS: Duration = Duration::from_secs(15);
/// How often the leader renews, and the other replicas check.
const EVERY: Duration = Duration::from_secs(2);
/// Timeout of one call. The leader renews with a single one.
const CALL: Duration = Duration::from_secs(5);
/// Pause after a round that failed.
const RETRY: Duration = Duration::from_millis(500);
/// A leader that could not renew for this long stops, well before another replica may take over.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of the election so far.
pub struct Election {
    leads: watch::Sender<bool>,
    /// When the lease was last renewed; `None` without an election.
    renewed: Arc<Mutex<Option<Instant>>>,
}

/// Whether this process leads. Clones share it.
#[derive(Clone)]
pub struct Leadership {
    leads: watch::Receiver<bool>,
    renewed: Arc<Mutex<Option<Instant>>>,
}

impl Election {
    /// `leads` is true if there is no election.
    pub fn new(leads: bool) -> Self {
        Self { leads: watch::Sender::new(leads), renewed: Arc::default() }
    }

    pub fn leadership(&self) -> Leadership {
        Leadership { leads: self.leads.subscribe(), renewed: Arc::clone(&self.renewed) }
    }

    fn won(&self, asked: Instant) {
        *lock(&self.renewed) = Some(asked);
        self.leads.send_if_modified(|leads| !std::mem::replace(leads, true));
    }

    /// This process writes no more.
    pub fn lost(&self) {
        self.leads.send_replace(false);
    }

    /// The time since the lease was renewed, if we have ever had it.
    fn age(&self) -> Option<Duration> {
        lock(&self.renewed).map(|renewed| renewed.elapsed())
    }
}

impl Leadership {
    /// Whether this process may write. A process that was stopped for a while does not know yet that another one leads, but
    /// it knows how old its lease is.
    pub fn may_write(&self) -> bool {
        *self.leads.borrow() && lock(&self.renewed).is_none_or(|renewed| renewed.elapsed() < PATIENCE)
    }

    /// Whether this process leads, as far as it knows. Its lease may be too old to write.
    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Reports when this process starts or stops to lead.
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }
}

/// A replica that takes part in the election.
pub struct Candidate {
    /// API of the Lease, with a client that does not retry on its own.
    pub api: Api<Lease>,
    pub name: String,
    /// Unique for each process, also across restarts of the same pod.
    pub identity: String,
}

/// What is known of a lease held by another replica. Expiry is measured on the local clock from the last observed
/// change: the clocks of two machines may differ by more than the lease duration.
#[derive(Debug, Default)]
struct Rival {
    version: String,
    since: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum LeaseAction {
    Renew,
    TakeOver,
    Wait,
}

impl Rival {
    fn decide(&mut self, spec: &LeaseSpec, version: &str, me: &str, now: Instant) -> LeaseAction {
        match spec.holder_identity.as_deref() {
            Some(holder) if holder == me => return LeaseAction::Renew,
            None | Some("") => return LeaseAction::TakeOver,
            Some(_) => {}
        }
        if self.version != version || self.since.is_none() {
            version.clone_into(&mut self.version);
            self.since = Some(now);
        }
        let lasts = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LASTS, Duration::from_secs);
        match self.since {
            Some(since) if now.duration_since(since) > lasts => LeaseAction::TakeOver,
            _ => LeaseAction::Wait,
        }
    }
}

impl Candidate {
    /// Takes part in the election. An error means that leadership was lost: the process should exit, because a fresh
    /// process is easier to trust than one stopped midway.
    pub async fn campaign(&self, election: &Election) -> Result<()> {
        let (mut rival, mut held) = (Rival::default(), None);
        loop {
            let mut pause = EVERY;
            match self.round(&mut rival, &mut held).await {
                Ok(Some(asked)) => election.won(asked),
                Ok(None) if election.age().is_some() => {
                    election.lost();
                    bail!("another replica took over the lease {}", self.name);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "failed to renew the lease");
                    pause = RETRY;
                }
            }
            if election.age().is_some_and(|age| age >= PATIENCE) {
                election.lost();
                bail!("failed to renew the lease {} before the deadline", self.name);
            }
            sleep(pause).await;
        }
    }

    /// One round: returns when the write was requested by which this process leads. A conflict means that another replica was
    /// faster, which is not an error. `held` is the lease as we have last written it.
    async fn round(&self, rival: &mut Rival, held: &mut Option<Lease>) -> Result<Option<Instant>> {
        if let Some(mut lease) = held.take() {
            lease.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::now()));
            if let Some(asked) = self.replace(&lease, held).await? {
                return Ok(Some(asked));
            }
        }
        let found = within(self.api.get_opt(&self.name)).await?;
        let now = MicroTime(Timestamp::now());
        let Some(mut lease) = found else {
            let asked = Instant::now();
            let fresh = self.fresh(now);
            *held = within(unless_conflict(self.api.create(&PostParams::default(), &fresh))).await?;
            return Ok(held.is_some().then_some(asked));
        };
        let version = lease.resource_version().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        match rival.decide(spec, &version, &self.identity, Instant::now()) {
            LeaseAction::Wait => return Ok(None),
            LeaseAction::Renew => {}
            LeaseAction::TakeOver => {
                spec.holder_identity = Some(self.identity.clone());
                spec.acquire_time = Some(now.clone());
                spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
            }
        }
        spec.lease_duration_seconds = i32::try_from(LASTS.as_secs()).ok();
        spec.renew_time = Some(now);
        self.replace(&lease, held).await
    }

    /// Writes the lease, and returns when that was requested. It carries the resourceVersion that was read, so the API server
    /// rejects a stale write.
    async fn replace(&self, lease: &Lease, held: &mut Option<Lease>) -> Result<Option<Instant>> {
        let asked = Instant::now();
        *held = within(unless_conflict(self.api.replace(&self.name, &PostParams::default(), lease))).await?;
        Ok(held.is_some().then_some(asked))
    }

    fn fresh(&self, now: MicroTime) -> Lease {
        Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Releases the lease, so that another replica can lead at once.
    pub async fn resign(&self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        unless_conflict(self.api.replace(&self.name, &PostParams::default(), &lease)).await.map(drop)
    }
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T> {
    Ok(timeout(CALL, call).await.context("no response of the API server")??)
}

async fn unless_conflict<T>(call: impl Future<Output = kube::Result<T>>) -> kube::Result<Option<T>> {
    match call.await {
        Ok(answer) => Ok(Some(answer)),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use axum::{Json, Router, extract::Request, http::StatusCode, response::IntoResponse};
    use kube::Client;
    use serde_json::{Value, json};

    use super::*;

    fn held_by(holder: &str) -> LeaseSpec {
        LeaseSpec { holder_identity: Some(holder.into()), lease_duration_seconds: Some(15), ..LeaseSpec::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_another_replica_expires_by_the_local_clock() {
        let mut rival = Rival::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(rival.decide(&held_by("b"), "1", "a", after(0)), LeaseAction::Wait, "however old it says it is");
        assert_eq!(rival.decide(&held_by("b"), "1", "a", after(15)), LeaseAction::Wait);
        assert_eq!(rival.decide(&held_by("b"), "2", "a", after(16)), LeaseAction::Wait, "it was renewed");
        assert_eq!(rival.decide(&held_by("b"), "2", "a", after(31)), LeaseAction::Wait);
        assert_eq!(rival.decide(&held_by("b"), "2", "a", after(32)), LeaseAction::TakeOver);
    }

    /// An API server with one lease, whose calls take this long. It counts them by method.
    fn api_server(takes: Duration) -> (Client, Arc<Mutex<Vec<String>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (log, stored) = (Arc::clone(&calls), Arc::new(Mutex::new((0_u64, None::<Value>))));
        let router = Router::new().fallback(move |request: Request| {
            let (log, stored) = (Arc::clone(&log), Arc::clone(&stored));
            async move {
                let method = request.method().to_string();
                lock(&log).push(method.clone());
                sleep(takes).await;
                let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
                let status = |code: StatusCode, reason: &str| {
                    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "",
                        "code": code.as_u16(), "reason": reason});
                    (code, Json(body)).into_response()
                };
                let mut stored = lock(&stored);
                if method == "GET" {
                    return stored.1.clone().map_or_else(
                        || status(StatusCode::NOT_FOUND, "NotFound"),
                        |lease| Json(lease).into_response(),
                    );
                }
                let mut lease: Value = serde_json::from_slice(&body).unwrap();
                let version = |lease: &Value| lease.pointer("/metadata/resourceVersion").cloned();
                if stored.1.as_ref().is_some_and(|old| version(old) != version(&lease)) {
                    return status(StatusCode::CONFLICT, "Conflict");
                }
                stored.0 += 1;
                lease["metadata"]["resourceVersion"] = json!(stored.0.to_string());
                stored.1 = Some(lease.clone());
                Json(lease).into_response()
            }
        });
        (Client::new(router, "default"), calls)
    }

    fn candidate(client: &Client, identity: &str) -> Candidate {
        let api = Api::default_namespaced(client.clone());
        Candidate { api, name: "slurm-operator".into(), identity: identity.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_api_server_does_not_cost_the_lease() {
        let (client, calls) = api_server(Duration::from_secs(3));
        let (candidate, election) = (candidate(&client, "a"), Election::new(false));
        let leadership = election.leadership();
        let outcome = timeout(Duration::from_mins(2), async {
            tokio::select! {
                ended = candidate.campaign(&election) => ended,
                () = async {
                    leadership.changes().wait_for(|leads| *leads).await.unwrap();
                    loop {
                        assert!(leadership.may_write());
                        sleep(Duration::from_millis(100)).await;
                    }
                } => Ok(()),
            }
        });
        assert!(outcome.await.is_err(), "it leads for as long as it likes");
        let calls = lock(&calls).clone();
        assert_eq!(calls.iter().filter(|method| *method == "GET").count(), 1, "{calls:?}");
        assert!(calls.len() > 10, "{calls:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_somebody_else_wrote_is_read_again() {
        let (client, _) = api_server(Duration::ZERO);
        let (a, b) = (candidate(&client, "a"), candidate(&client, "b"));
        let (mut rival, mut held) = (Rival::default(), None);
        assert!(a.round(&mut rival, &mut held).await.unwrap().is_some());
        assert!(a.round(&mut rival, &mut held).await.unwrap().is_some(), "renewed without reading it");
        assert!(b.round(&mut Rival::default(), &mut None).await.unwrap().is_none());
        a.resign().await.unwrap();
        assert!(b.round(&mut Rival::default(), &mut None).await.unwrap().is_some());
        assert!(a.round(&mut rival, &mut held).await.unwrap().is_none(), "it has another holder");
        assert!(held.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_own_lease_is_renewed_and_a_free_one_taken() {
        let mut rival = Rival::default();
        assert_eq!(rival.decide(&held_by("a"), "1", "a", Instant::now()), LeaseAction::Renew);
        assert_eq!(rival.decide(&held_by(""), "1", "a", Instant::now()), LeaseAction::TakeOver);
        assert_eq!(rival.decide(&LeaseSpec::default(), "1", "a", Instant::now()), LeaseAction::TakeOver);
    }

    #[test]
    fn a_leader_stops_before_others_may_start() {
        // When the leader notices, a round may be under way. Until then its writes stop by the age of the lease.
        assert!(PATIENCE < LASTS);
        assert!(EVERY + CALL + RETRY < PATIENCE, "one lost call must not cost the lease");
        assert!(EVERY + CALL < PATIENCE, "calls that take as long as they may do not cost the lease");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_does_not_write_before_it_has_renewed_its_lease() {
        let election = Election::new(false);
        let leadership = election.leadership();
        assert!(!leadership.may_write());
        election.won(Instant::now());
        assert!(leadership.may_write());
        tokio::time::advance(PATIENCE).await;
        assert!(
            !leadership.may_write() && leadership.leads(),
            "the lease is old, although we have not heard that it is lost"
        );
        election.won(Instant::now());
        assert!(leadership.may_write());
        election.lost();
        assert!(!leadership.may_write());
        assert!(Election::new(true).leadership().may_write(), "without an election");
    }
}
