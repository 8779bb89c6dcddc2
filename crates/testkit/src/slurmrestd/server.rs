//! The HTTP server around the dispatcher.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use slurm::token::Key;
use tokio::task::JoinHandle;

use super::cluster::Cluster;
use super::dispatch::{Clock, Dispatcher, Request};
use super::faults::{Fault, Faults};
use super::reply::{Content, Reply};
use super::wire::{Line, Wire};
use crate::lock;

/// Options of a fake slurmrestd.
#[derive(Debug, Default)]
pub struct Options {
    /// Port on the loopback address; 0 for any free port.
    pub port: u16,
    pub clock: Clock,
    /// Key that tokens must be signed with; without a key every token is valid.
    pub key: Option<Key>,
}

/// A slurmrestd that listens on the loopback address and serves a [`Cluster`] in memory.
///
/// It stops when dropped; connections end with the current request.
#[must_use = "it stops when it is dropped"]
pub struct Slurmrestd {
    dispatcher: Shared,
    address: SocketAddr,
    task: JoinHandle<()>,
}

type Shared = Arc<Mutex<Dispatcher>>;

impl Slurmrestd {
    pub async fn start(cluster: Cluster, options: Options) -> anyhow::Result<Self> {
        let dispatcher = Dispatcher::new(cluster, options.clock, options.key)?;
        Self::serve(Arc::new(Mutex::new(dispatcher)), options.port).await
    }

    async fn serve(dispatcher: Shared, port: u16) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let wire = Wire::listen(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let address = wire.address()?;
        let app = Router::new().fallback(respond).with_state(Arc::clone(&dispatcher));
        let app = app.into_make_service_with_connect_info::<Line>();
        let task = tokio::spawn(async move {
            // Returns only on an error of the listener; clients then see a closed port.
            let _ = axum::serve(wire, app).await;
        });
        Ok(Self { dispatcher, address, task })
    }

    /// Replaces slurmrestd by a new one on the same port. The cluster is kept.
    pub async fn restart(self) -> anyhow::Result<Self> {
        self.task.abort();
        let (dispatcher, port) = (Arc::clone(&self.dispatcher), self.address.port());
        drop(self);
        crate::wait_for("the port to be free again", Duration::from_secs(5), async || {
            Self::serve(Arc::clone(&dispatcher), port).await
        })
        .await
    }

    /// URL for clients, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Reads or changes the cluster.
    pub fn cluster<T>(&self, with: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut dispatcher = lock(&self.dispatcher);
        dispatcher.tick();
        let answer = with(&mut dispatcher.cluster);
        // Changes take effect at once, also with a manual clock.
        dispatcher.cluster.schedule();
        answer
    }

    /// Sets or clears faults.
    pub fn faults<T>(&self, with: impl FnOnce(&mut Faults) -> T) -> T {
        with(&mut lock(&self.dispatcher).faults)
    }

    /// Replaces the key that tokens must be signed with.
    pub fn set_key(&self, key: Option<Key>) {
        lock(&self.dispatcher).key = key;
    }

    /// Number of calls since the start or the last [`forget_calls`](Self::forget_calls), by keys like
    /// `GET /slurm/{version}/node/{node_name}`. Requests that met a fault or an unknown path are not counted.
    #[must_use]
    pub fn calls(&self) -> BTreeMap<String, u64> {
        lock(&self.dispatcher).calls.clone()
    }

    /// Resets the counters.
    pub fn forget_calls(&self) {
        lock(&self.dispatcher).calls.clear();
    }
}

impl Drop for Slurmrestd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Slurmrestd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slurmrestd").field("address", &self.address).finish_non_exhaustive()
    }
}

async fn respond(
    State(dispatcher): State<Shared>,
    ConnectInfo(line): ConnectInfo<Line>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (latency, fault) = {
        let mut dispatcher = lock(&dispatcher);
        (dispatcher.faults.latency, dispatcher.faults.meet(uri.path()))
    };
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    match fault {
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Error) => {
            return Reply::text(StatusCode::INTERNAL_SERVER_ERROR, "Unspecified error").into_response();
        }
        Some(Fault::Cut) => line.cut(),
        Some(Fault::Garbage) | None => {}
    }
    let query = Query::<BTreeMap<String, String>>::try_from_uri(&uri).map(|query| query.0).unwrap_or_default();
    let token = headers.get("x-slurm-user-token").and_then(|token| token.to_str().ok()).map(str::to_owned);
    let request = Request { method, path: uri.path().to_owned(), query, token, body };
    let (reply, patience) = {
        let mut dispatcher = lock(&dispatcher);
        let reply = dispatcher.answer(&request);
        let waits = reply.waited_for_slurmctld() && !dispatcher.cluster.is_up();
        (reply, if waits { dispatcher.faults.down_latency } else { Duration::ZERO })
    };
    if !patience.is_zero() {
        tokio::time::sleep(patience).await;
    }
    match (fault, reply.content) {
        (Some(Fault::Garbage), Content::Json(text)) => {
            let half = text.slice(..text.len() / 2);
            (reply.status, [(header::CONTENT_TYPE, "application/json")], Body::from(half)).into_response()
        }
        (_, content) => Reply { status: reply.status, content }.into_response(),
    }
}
