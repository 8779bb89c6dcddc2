//! What was read last.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Bytes;
use slurm::series::Series;
use tokio::time::Instant;

use super::plan_rounds::Part;
use crate::lock::lock;

/// After how many intervals without a success something is wrong.
const PATIENCE: u32 = 3;

/// The last series of each part. Clones share them.
#[derive(Clone)]
pub(super) struct Store(Arc<Mutex<Parts>>);

struct Parts {
    began: Instant,
    parts: BTreeMap<Part, State>,
}

#[derive(Default)]
struct State {
    series: Bytes,
    count: u64,
    /// When the last successful read began.
    read_at: Option<Instant>,
    /// Why the last read failed.
    problem: Option<String>,
    /// What of the last list could not be shown.
    hidden: Option<String>,
}

/// What a scrape shows.
pub(super) struct Shown {
    /// The series of each part: shared, because they can be many megabytes.
    pub series: Vec<Bytes>,
    /// The number of series.
    pub count: u64,
    /// The age of each part that was ever read.
    pub ages: Vec<(Part, Duration)>,
}

impl Default for Store {
    fn default() -> Self {
        let parts = Part::ALL.into_iter().map(|part| (part, State::default())).collect();
        Self(Arc::new(Mutex::new(Parts { began: Instant::now(), parts })))
    }
}

impl Store {
    /// Replaces the series of a part.
    pub(super) fn put(&self, part: Part, series: Series, read_at: Instant) {
        let Series { text, count, problem: hidden } = series;
        let mut parts = lock(&self.0);
        let Some(state) = parts.parts.get_mut(&part) else { return };
        if state.problem.is_some() {
            tracing::info!(part = part.as_str(), "read again");
        }
        // Once, and not at each interval.
        if let Some(what) = hidden.as_ref().filter(|_| state.hidden != hidden) {
            tracing::warn!(part = part.as_str(), what, "not everything can be shown");
        }
        *state = State { series: text.into(), count, read_at: Some(read_at), problem: None, hidden };
    }

    /// Records why a part could not be read. Its series stay.
    pub(super) fn failed(&self, part: Part, problem: String) {
        let mut parts = lock(&self.0);
        let Some(state) = parts.parts.get_mut(&part) else { return };
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!(part = part.as_str(), problem, "cannot be read");
        }
        state.problem = Some(problem);
    }

    pub(super) fn shown(&self) -> Shown {
        let parts = lock(&self.0);
        let age = |(part, state): (&Part, &State)| Some((*part, state.read_at?.elapsed()));
        Shown {
            series: parts.parts.values().map(|state| state.series.clone()).collect(),
            count: parts.parts.values().map(|state| state.count).sum(),
            ages: parts.parts.iter().filter_map(age).collect(),
        }
    }

    /// What has not been read for too long, and why: one line each; empty if all is well.
    pub(super) fn overdue(&self, interval: Duration) -> String {
        let parts = lock(&self.0);
        let patience = interval.saturating_mul(PATIENCE);
        let mut lines = String::new();
        for (part, state) in &parts.parts {
            let since = state.read_at.unwrap_or(parts.began).elapsed();
            if since > patience {
                let why = state.problem.as_deref().unwrap_or("no answer yet");
                let _ = writeln!(lines, "{}: not read for {} s: {why}", part.as_str(), since.as_secs());
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    fn series(text: &str) -> Series {
        Series { text: text.to_owned(), count: 1, problem: None }
    }

    #[tokio::test(start_paused = true)]
    async fn old_series_stay_and_have_an_age() {
        let store = Store::default();
        assert!(store.shown().ages.is_empty() && store.overdue(INTERVAL).is_empty());
        for part in Part::ALL {
            store.put(part, series(part.as_str()), Instant::now());
        }
        store.failed(Part::Jobs, "refused".to_owned());
        tokio::time::advance(INTERVAL).await;
        store.put(Part::Nodes, series("new"), Instant::now());
        let shown = store.shown();
        assert_eq!(shown.series, ["new", "jobs", "diag"]);
        assert_eq!((shown.count, shown.ages[0].1, shown.ages[1].1), (3, Duration::ZERO, INTERVAL));
        assert_eq!(store.overdue(INTERVAL), "", "two more intervals are fine");
        tokio::time::advance(INTERVAL * 2 + Duration::from_secs(1)).await;
        assert_eq!(
            store.overdue(INTERVAL),
            "jobs: not read for 91 s: refused\ndiag: not read for 91 s: no answer yet\n"
        );
        store.put(Part::Jobs, series("again"), Instant::now());
        assert!(!store.overdue(INTERVAL).contains("jobs"));
    }
}
