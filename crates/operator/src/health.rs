//! Readiness, and the health and metrics servers.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use axum::{Router, http::StatusCode, routing::get};
use jiff::Timestamp;
use tokio::net::TcpListener;

use crate::{lock::lock, metrics::Metrics, slurm_view::Views};

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

/// Serves `/healthz`, `/readyz`, and `/debug/slurm` with the state of each Slurm cluster view.
pub async fn serve_health(address: SocketAddr, readiness: Readiness, slurm: Views) -> Result<()> {
    let ready = move || async move {
        let missing = readiness.missing();
        if missing.is_empty() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, missing)
        }
    };
    let debug = move || async move { format!("{:#}\n", slurm.describe()) };
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/debug/slurm", get(debug));
    serve(address, router).await
}

/// Serves `/metrics`.
pub async fn serve_metrics(address: SocketAddr, metrics: Metrics, slurm: Views) -> Result<()> {
    let kind = [("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    let render = move || async move {
        metrics.snapshot_ages(slurm.ages());
        metrics.drain_ages(Timestamp::now());
        (kind, metrics.text())
    };
    serve(address, Router::new().route("/metrics", get(render))).await
}

async fn serve(address: SocketAddr, router: Router) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    axum::serve(listener, router).await.context("the HTTP server stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
