//! Readiness, and the health and metrics servers.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use axum::{
    Router,
    extract::{ConnectInfo, Request},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use engine::podset::Blocker;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    access::{Access, authorise},
    lock::lock,
    metrics::Metrics,
    slurm_view::Views,
};

/// What must be available before the process is ready, each with its last error.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<String, String>>>);

impl Readiness {
    /// Registers a requirement.
    pub fn expect(&self, what: &str) {
        lock(&self.0).insert(what.to_owned(), "not synced yet".to_owned());
    }

    /// Records why a requirement is not met.
    pub fn failing(&self, what: &str, problem: &str) {
        if let Some(last) = lock(&self.0).get_mut(what) {
            problem.clone_into(last);
        }
    }

    /// Marks a requirement as met.
    pub fn met(&self, what: &str) {
        lock(&self.0).remove(what);
    }

    /// The unmet requirements, one per line; empty if ready.
    pub fn missing(&self) -> String {
        lock(&self.0).iter().fold(String::new(), |mut text, (what, problem)| {
            let _ = writeln!(text, "{what}: {problem}");
            text
        })
    }
}

/// What the plans of all objects wait for, by UID.
#[derive(Clone, Default)]
pub struct Waiting(Arc<Mutex<BTreeMap<String, WaitingPlan>>>);

struct WaitingPlan {
    /// Kind and name of the object.
    title: String,
    workers: Vec<(String, Blocker)>,
}

impl Waiting {
    /// Replaces what the plan of an object waits for.
    pub fn set(&self, kind: &str, object: &ObjectMeta, workers: Vec<(String, Blocker)>) {
        let uid = object.uid.as_deref().unwrap_or_default();
        if workers.is_empty() {
            self.forget(uid);
            return;
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let title = format!("{kind} {}/{}", text(&object.namespace), text(&object.name));
        lock(&self.0).insert(uid.to_owned(), WaitingPlan { title, workers });
    }

    /// Drops what is recorded for a deleted object.
    pub fn forget(&self, uid: &str) {
        lock(&self.0).remove(uid);
    }

    /// For the debug page.
    pub fn describe(&self, now: Timestamp) -> Value {
        let texts = |plan: &WaitingPlan| -> Value {
            plan.workers.iter().map(|(node, blocker)| format!("{node}: {}", blocker.text(now))).collect()
        };
        let all = lock(&self.0);
        all.values().map(|plan| (plan.title.clone(), texts(plan))).collect::<serde_json::Map<_, _>>().into()
    }
}

/// What the servers of the operator show.
#[derive(Clone)]
pub struct Pages {
    pub readiness: Readiness,
    pub metrics: Metrics,
    pub slurm: Views,
    pub waiting: Waiting,
}

impl Pages {
    /// `/debug/slurm` with the state of each Slurm cluster view, `/debug/waiting` with what plans wait for, and `/debug/vars` with both.
    fn debug(&self) -> Router {
        let Self { slurm, waiting, .. } = self.clone();
        let (views, plans) = (slurm.clone(), waiting.clone());
        let vars = async move || {
            format!("{:#}\n", json!({"slurm": views.describe(), "waiting": plans.describe(Timestamp::now())}))
        };
        Router::new()
            .route("/debug/vars", get(vars))
            .route("/debug/slurm", get(async move || format!("{:#}\n", slurm.describe())))
            .route("/debug/waiting", get(async move || format!("{:#}\n", waiting.describe(Timestamp::now()))))
    }

    /// `/metrics`.
    fn metrics(&self) -> Router {
        let Self { metrics, slurm, .. } = self.clone();
        let render = async move || {
            metrics.snapshot_ages(slurm.ages());
            metrics.drain_ages(Timestamp::now());
            (OPEN_METRICS, metrics.text())
        };
        Router::new().route("/metrics", get(render))
    }
}

/// The header of `/metrics`.
pub const OPEN_METRICS: [(&str, &str); 1] =
    [("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")];

/// Serves `/healthz` and `/readyz` to all, and the debug pages to this pod, which is also where `kubectl port-forward` comes
/// from.
pub async fn serve_health(address: SocketAddr, pages: &Pages) -> Result<()> {
    let debug = pages.debug().layer(middleware::from_fn(only_local));
    serve(address, probes(pages.readiness.clone()).merge(debug)).await
}

/// Serves `/metrics`, over plain HTTP and to all.
pub async fn serve_metrics(address: SocketAddr, pages: &Pages) -> Result<()> {
    serve(address, pages.metrics()).await
}

/// Pages for those whom Kubernetes lets read them, and `/healthz` and `/readyz` for all.
pub fn guarded(pages: Router, readiness: Readiness, access: Access) -> Router {
    probes(readiness).merge(pages.layer(middleware::from_fn_with_state(access, authorise)))
}

/// Everything, for those whom Kubernetes lets read it.
pub fn all_guarded(pages: &Pages, access: Access) -> Router {
    guarded(pages.metrics().merge(pages.debug()), pages.readiness.clone(), access)
}

/// The debug pages name clusters, workers and jobs of all namespaces.
async fn only_local(ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request, next: Next) -> Response {
    if is_local(peer) {
        return next.run(request).await;
    }
    let text = "this page is for kubectl port-forward; with --metrics-secure, also for users with a token on the metrics port\n";
    (StatusCode::FORBIDDEN, text).into_response()
}

/// Also if IPv4 comes in on a socket of IPv6.
fn is_local(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

/// `/healthz` and `/readyz`.
pub fn probes(readiness: Readiness) -> Router {
    let ready = move || async move {
        let missing = readiness.missing();
        if missing.is_empty() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, missing)
        }
    };
    Router::new().route("/healthz", get(async || "ok\n")).route("/readyz", get(ready))
}

/// Serves over plain HTTP.
pub async fn serve(address: SocketAddr, router: Router) -> Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listen(address).await?, service).await.context("the HTTP server stopped")
}

/// Listens on an address.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        // A kernel without IPv6.
        Err(error) if address.ip().is_unspecified() && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.with_context(|| format!("cannot listen on {address}"))
}

#[cfg(test)]
mod tests {
    use engine::podset::Deadline;

    use super::*;

    #[test]
    fn debug_pages_are_for_this_pod() {
        let local = |peer: &str| is_local(peer.parse().unwrap());
        assert!(local("127.0.0.1:7") && local("[::1]:7") && local("[::ffff:127.0.0.1]:7"));
        assert!(!local("10.0.0.1:7") && !local("[::ffff:10.0.0.1]:7") && !local("[fe80::1]:7"));
    }

    #[test]
    fn readiness_names_what_is_missing_and_why() {
        let readiness = Readiness::default();
        readiness.expect("tokens");
        readiness.expect("nodesets");
        readiness.failing("tokens", "the server could not find the requested resource");
        readiness.failing("unheard-of", "ignored");
        assert_eq!(
            readiness.missing(),
            "nodesets: not synced yet\ntokens: the server could not find the requested resource\n"
        );
        readiness.met("tokens");
        readiness.met("nodesets");
        assert_eq!(readiness.missing(), "");
    }

    #[test]
    fn what_a_plan_waits_for_is_shown_until_it_no_longer_does() {
        let waiting = Waiting::default();
        let text = |text: &str| Some(text.to_owned());
        let object = ObjectMeta { namespace: text("ns"), name: text("gpu"), uid: text("u"), ..ObjectMeta::default() };
        let now = Timestamp::UNIX_EPOCH;
        let busy = Blocker::Busy { deadline: Deadline::Never, job: Some(17) };
        waiting.set("nodeset", &object, vec![("gpu-1".into(), busy)]);
        let expected = json!({"nodeset ns/gpu": ["gpu-1: blocked by job 17, which has no time limit"]});
        assert_eq!(waiting.describe(now), expected);
        waiting.set("nodeset", &object, Vec::new());
        assert_eq!(waiting.describe(now), json!({}));
        waiting.set("nodeset", &object, vec![("gpu-1".into(), Blocker::NotDrained)]);
        waiting.forget("u");
        assert_eq!(waiting.describe(now), json!({}));
    }
}
