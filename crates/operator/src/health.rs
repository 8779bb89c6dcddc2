//! What is still missing before the process can work, and the servers that tell it.

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

/// What is waited for, each with the last problem.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<String, String>>>);

impl Readiness {
    /// Something that must be there first.
    pub fn expect(&self, what: &str) {
        lock(&self.0).insert(what.to_owned(), "not read yet".to_owned());
    }

    /// Why it is not there.
    pub fn failing(&self, what: &str, problem: &str) {
        if let Some(last) = lock(&self.0).get_mut(what) {
            problem.clone_into(last);
        }
    }

    /// It is there.
    pub fn met(&self, what: &str) {
        lock(&self.0).remove(what);
    }

    /// What is missing, a line each; nothing if all is there.
    pub fn missing(&self) -> String {
        lock(&self.0).iter().fold(String::new(), |mut text, (what, problem)| {
            let _ = writeln!(text, "{what}: {problem}");
            text
        })
    }
}

/// `/healthz`, `/readyz`, and `/debug/slurm`: what is known of each Slurm cluster.
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

/// `/metrics`.
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
    axum::serve(listener, router).await.context("a server ended")
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
            "nodesets: not read yet\ntokens: the server could not find the requested resource\n"
        );
        readiness.met("tokens");
        readiness.met("nodesets");
        assert_eq!(readiness.missing(), "");
    }
}
