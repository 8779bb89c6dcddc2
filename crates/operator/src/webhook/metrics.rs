//! Metrics of the webhook.

use std::sync::Arc;

use axum::{Router, http::StatusCode, routing::get};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use crate::health::OPEN_METRICS;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfReview {
    kind: &'static str,
    result: &'static str,
}

/// Clones share the counters.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    reviews: Family<OfReview, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let (mut registry, reviews) = (Registry::default(), Family::default());
        let help = "Reviews of new and changed objects, by kind and result: allowed, warned or refused";
        registry.register("slurm_operator_admission_reviews", help, reviews.clone());
        Self { registry: Arc::new(registry), reviews }
    }
}

impl Metrics {
    pub fn count(&self, kind: &'static str, result: &'static str) {
        self.reviews.get_or_create(&OfReview { kind, result }).inc();
    }

    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry).map(|()| text)
    }
}

/// `/metrics`.
pub fn pages(metrics: Metrics) -> Router {
    let render = async move || match metrics.text() {
        Ok(text) => (StatusCode::OK, OPEN_METRICS, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, OPEN_METRICS, error.to_string()),
    };
    Router::new().route("/metrics", get(render))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_counted() {
        let metrics = Metrics::default();
        metrics.clone().count("nodeset", "refused");
        let text = metrics.text().unwrap();
        assert!(
            text.contains("slurm_operator_admission_reviews_total{kind=\"nodeset\",result=\"refused\"} 1"),
            "{text}"
        );
    }
}
