//! Metrics about the exporter itself.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::plan_rounds::Part;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfPart {
    collector: &'static str,
}

type Seconds = Gauge<f64, AtomicU64>;

/// All of them. Clones share them.
#[derive(Clone)]
pub(super) struct OwnMetrics {
    registry: Arc<Registry>,
    seconds: Seconds,
    rounds: Counter,
    failures: Counter,
    part_seconds: Family<OfPart, Seconds>,
    part_errors: Family<OfPart, Counter>,
    under_way: Family<OfPart, Gauge>,
    skipped: Family<OfPart, Counter>,
    requests: Counter,
    exported: Gauge,
}

impl OwnMetrics {
    /// With `aliases`, also under other names.
    pub(super) fn new(aliases: bool) -> Self {
        let mut registry = Registry::default();
        let new = Self {
            registry: Arc::default(),
            seconds: Seconds::default(),
            rounds: Counter::default(),
            failures: Counter::default(),
            part_seconds: Family::default(),
            part_errors: Family::default(),
            under_way: Family::default(),
            skipped: Family::default(),
            requests: Counter::default(),
            exported: Gauge::default(),
        };
        let name = |name: &str| format!("slurm_exporter_{name}");
        let help = "Duration of the last collection of all lists";
        registry.register(name("collection_duration_seconds"), help, new.seconds.clone());
        registry.register(name("collection_attempts"), "Collections that began", new.rounds.clone());
        let failed = "Collections of which a list could not be read";
        registry.register(name("collection_failures"), failed, new.failures.clone());
        let help = "Duration of the last read of a list";
        registry.register(name("collector_duration_seconds"), help, new.part_seconds.clone());
        registry.register(name("collector_errors"), "Reads of a list that failed", new.part_errors.clone());
        registry.register(name("collector_inflight"), "Reads of a list that are under way", new.under_way.clone());
        let help = "Reads of a list that did not begin, because others were still under way";
        registry.register(name("collector_skipped"), help, new.skipped.clone());
        let requests = "Scrapes of Slurm's metrics";
        registry.register(name("metrics_requests"), requests, new.requests.clone());
        registry.register(name("metrics_exported"), "Series in the last scrape", new.exported.clone());
        if aliases {
            registry.register("soperator_metrics_requests", requests, new.requests.clone());
            registry.register("scollector_collection_errors", failed, new.failures.clone());
        }
        // So that they are there from the beginning.
        for part in Part::ALL {
            let of = OfPart { collector: part.as_str() };
            new.under_way.get_or_create(&of).set(0);
            drop(new.part_errors.get_or_create(&of));
            drop(new.skipped.get_or_create(&of));
        }
        Self { registry: Arc::new(registry), ..new }
    }

    pub(super) fn round_began(&self) {
        self.rounds.inc();
    }

    pub(super) fn round_ended(&self, took: Duration, succeeded: bool) {
        self.seconds.set(took.as_secs_f64());
        if !succeeded {
            self.failures.inc();
        }
    }

    pub(super) fn skipped(&self, part: Part) {
        self.skipped.get_or_create(&OfPart { collector: part.as_str() }).inc();
    }

    pub(super) fn began(&self, part: Part, under_way: usize) {
        let under_way = i64::try_from(under_way).unwrap_or(i64::MAX);
        self.under_way.get_or_create(&OfPart { collector: part.as_str() }).set(under_way);
    }

    pub(super) fn ended(&self, part: Part, took: Duration, under_way: usize, succeeded: bool) {
        let of = OfPart { collector: part.as_str() };
        self.part_seconds.get_or_create(&of).set(took.as_secs_f64());
        if !succeeded {
            self.part_errors.get_or_create(&of).inc();
        }
        self.began(part, under_way);
    }

    pub(super) fn scraped(&self, series: u64) {
        self.requests.inc();
        self.exported.set(i64::try_from(series).unwrap_or(i64::MAX));
    }

    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry).map(|()| text)
    }
}
