//! What the servers show.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use futures::stream;
use slurm::series::{Kind, Writer};

use super::{own_metrics::OwnMetrics, plan_rounds::Part, store::Store};
use crate::health::OPEN_METRICS;

/// Prometheus' own format: in that of `OpenMetrics`, no gauge may be called `slurm_node_cpus_total`.
const TEXT: [(&str, &str); 1] = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];

/// `/metrics` with the series of Slurm, and `/health`.
pub(super) fn slurm(store: Store, own: OwnMetrics, interval: Duration) -> Router {
    let shown = store.clone();
    let metrics = async move || metrics(&shown, &own);
    let health = async move || {
        let overdue = store.overdue(interval);
        if overdue.is_empty() {
            (StatusCode::OK, "healthy".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, overdue)
        }
    };
    Router::new().route("/metrics", get(metrics)).route("/health", get(health))
}

/// `/metrics` with the exporter's own.
pub(super) fn own(own: OwnMetrics) -> Router {
    let render = async move || match own.text() {
        Ok(text) => (StatusCode::OK, OPEN_METRICS, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, OPEN_METRICS, error.to_string()),
    };
    Router::new().route("/metrics", get(render))
}

fn metrics(store: &Store, own: &OwnMetrics) -> Response {
    let shown = store.shown();
    let ages = match ages(&shown.ages) {
        Ok(ages) => ages,
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    };
    own.scraped(shown.count + u64::try_from(shown.ages.len()).unwrap_or_default());
    // The lists are sent as they are, without a copy.
    let pieces = shown.series.into_iter().chain([Bytes::from(ages)]).map(Ok::<_, Infallible>);
    (TEXT, Body::from_stream(stream::iter(pieces))).into_response()
}

fn ages(ages: &[(Part, Duration)]) -> Result<String, String> {
    let mut writer = Writer::default();
    let name = "slurm_exporter_data_age_seconds";
    writer.family(name, Kind::Gauge, "Time since the last successful read of a list, whose series are shown");
    for (part, age) in ages {
        writer.sample(name, &[("collector", part.as_str())], age.as_secs_f64());
    }
    writer.finish().map(|series| series.text).map_err(|error| error.to_string())
}
