//! Reports in JSON, and medians of runs.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{
    audit::{Counts, is_write},
    budget::Verdict,
};

/// All measurements of one operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command that started it.
    pub operator: String,
    /// Sorted by the number of workers.
    pub sizes: Vec<Size>,
}

/// The measurements with one number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    /// Number of workers.
    pub workers: u32,
    /// Time of the measurement.
    pub measured_at: String,
    /// CPU cores of the machine, shared with the control plane and the harness.
    pub cores: u32,
    /// The median of each value.
    pub median: Run,
    /// Budgets, checked for the median of the runs.
    pub verdicts: Vec<Verdict>,
    /// All runs.
    pub runs: Vec<Run>,
}

/// One run through all phases. A time is missing if its end was not reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// In order.
    pub phases: Vec<Phase>,
    /// From the creation of the `NodeSet` to the answer of the last request that created a pod.
    pub create_seconds: Option<f64>,
    /// The same for a bare loop.
    pub bare_create_seconds: Option<f64>,
    /// From the last pod that became ready to the status that reports it.
    pub ready_lag_seconds: Option<f64>,
    /// From `replicas: 0` to the answer of the last request that deleted a pod.
    pub delete_seconds: Option<f64>,
    /// The same for a bare loop.
    pub bare_delete_seconds: Option<f64>,
    /// Memory before and after the creation of unrelated objects, in MB.
    pub noise_rss_mb: Option<(f64, f64)>,
}

/// Time and cost of one phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// See [`crate::phases`].
    pub name: String,
    /// Its length; missing if it did not end within the limit.
    pub seconds: Option<f64>,
    /// CPU time of the operator.
    pub cpu_seconds: f64,
    /// Peak memory of the operator.
    pub peak_rss_mb: f64,
    /// Requests to the API server.
    pub api: Counts,
    /// Requests to slurmrestd.
    pub slurm: Counts,
}

/// Whether a request is part of leader election, which all counts leave out.
pub fn is_lease(what: &str) -> bool {
    what.ends_with(" leases")
}

/// Whether a request is for an event.
pub fn is_event(what: &str) -> bool {
    what.ends_with(" events")
}

/// Whether a request to slurmrestd changes something.
pub fn is_slurm_write(what: &str) -> bool {
    !what.starts_with("GET ")
}

/// The number of requests that match.
pub fn sum(counts: &Counts, matches: impl Fn(&str) -> bool) -> u32 {
    counts.iter().filter(|(what, _)| matches(what)).map(|(_, count)| count).sum()
}

impl Phase {
    /// Writes to the API server, without leader election.
    pub fn writes(&self) -> u32 {
        sum(&self.api, |what| is_write(what) && !is_lease(what))
    }

    /// Reads from the API server, without leader election.
    pub fn reads(&self) -> u32 {
        sum(&self.api, |what| !is_write(what) && !is_lease(what))
    }
}

impl Run {
    /// A phase by its name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// The median of each value. All runs have the same phases.
    pub fn median(runs: &[Self]) -> Self {
        let names = runs.first().map(|run| run.phases.iter().map(|phase| phase.name.as_str())).into_iter().flatten();
        let time = |of: fn(&Self) -> Option<f64>| median_time(runs.iter().map(of));
        let noisy: Vec<(f64, f64)> = runs.iter().filter_map(|run| run.noise_rss_mb).collect();
        let unrelated = median(noisy.iter().map(|noise| noise.0)).zip(median(noisy.iter().map(|noise| noise.1)));
        Self {
            phases: names.map(|name| median_phase(name, runs)).collect(),
            create_seconds: time(|run| run.create_seconds),
            bare_create_seconds: time(|run| run.bare_create_seconds),
            ready_lag_seconds: time(|run| run.ready_lag_seconds),
            delete_seconds: time(|run| run.delete_seconds),
            bare_delete_seconds: time(|run| run.bare_delete_seconds),
            noise_rss_mb: unrelated,
        }
    }
}

fn median_phase(name: &str, runs: &[Run]) -> Phase {
    let phases: Vec<&Phase> = runs.iter().filter_map(|run| run.phase(name)).collect();
    Phase {
        name: name.to_owned(),
        seconds: median_time(phases.iter().map(|phase| phase.seconds)),
        cpu_seconds: median(phases.iter().map(|phase| phase.cpu_seconds)).unwrap_or_default(),
        peak_rss_mb: median(phases.iter().map(|phase| phase.peak_rss_mb)).unwrap_or_default(),
        api: median_counts(&phases, |phase| &phase.api),
        slurm: median_counts(&phases, |phase| &phase.slurm),
    }
}

fn median_counts(phases: &[&Phase], of: impl Fn(&Phase) -> &Counts) -> Counts {
    let keys: BTreeSet<&String> = phases.iter().flat_map(|phase| of(phase).keys()).collect();
    let middle = |key: &String| {
        let mut counts: Vec<u32> = phases.iter().map(|phase| of(phase).get(key).copied().unwrap_or(0)).collect();
        counts.sort_unstable();
        counts.get(counts.len() / 2).copied().unwrap_or(0)
    };
    keys.into_iter().map(|key| (key.clone(), middle(key))).filter(|(_, count)| *count > 0).collect()
}

/// The median of times; a missing time is longer than all others.
pub fn median_time(times: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    median(times.map(|time| time.unwrap_or(f64::INFINITY))).filter(|time| time.is_finite())
}

/// The middle value, or the mean of the middle two.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get(values.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

impl Report {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a report", path.display()))
    }

    /// Writes a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Adds a size, or replaces it.
    pub fn put(&mut self, size: Size) {
        self.sizes.retain(|old| old.workers != size.workers);
        self.sizes.push(size);
        self.sizes.sort_by_key(|size| size.workers);
    }

    /// A size by its number of workers.
    pub fn size(&self, workers: u32) -> Option<&Size> {
        self.sizes.iter().find(|size| size.workers == workers)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn counts(list: &[(&str, u32)]) -> Counts {
        list.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect()
    }

    pub fn phase(name: &str, seconds: f64, cpu_seconds: f64) -> Phase {
        Phase { name: name.to_owned(), seconds: Some(seconds), cpu_seconds, peak_rss_mb: 30.0, ..Phase::default() }
    }

    pub fn size(workers: u32, median: Run) -> Size {
        Size {
            workers,
            measured_at: "2026-11-16T00:00:00Z".into(),
            cores: 2,
            runs: vec![median.clone()],
            median,
            verdicts: vec![],
        }
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
        assert_eq!(median_time([Some(1.0), None, Some(2.0)].into_iter()), Some(2.0));
        assert_eq!(median_time([Some(1.0), None, None].into_iter()), None, "most did not end");
    }

    #[test]
    fn the_median_is_taken_of_each_value() {
        let run = |seconds, cpu, patches| Run {
            phases: vec![Phase { api: counts(&[("patch pods", patches)]), ..phase("created", seconds, cpu) }],
            create_seconds: Some(seconds),
            ..Run::default()
        };
        let joined = Run::median(&[run(1.0, 9.0, 5), run(3.0, 7.0, 0), run(2.0, 8.0, 6)]);
        let created = joined.phase("created").unwrap();
        assert_eq!((created.seconds, created.cpu_seconds), (Some(2.0), 8.0));
        assert_eq!(created.api, counts(&[("patch pods", 5)]));
        assert_eq!(joined.create_seconds, Some(2.0));
        assert_eq!(joined.noise_rss_mb, None);
    }

    #[test]
    fn requests_are_classified_by_verb_and_resource() {
        let phase = Phase {
            api: counts(&[
                ("create events", 1),
                ("create pods", 10),
                ("get leases", 3),
                ("list pods", 2),
                ("update leases", 20),
            ]),
            ..Phase::default()
        };
        assert_eq!((phase.writes(), phase.reads()), (11, 2));
        assert!(is_slurm_write("POST /slurm/{version}/nodes/") && !is_slurm_write("GET /slurm/{version}/nodes/"));
    }

    #[test]
    fn sizes_are_replaced_and_sorted() {
        let mut report = Report::default();
        for workers in [1000, 100, 1000] {
            report.put(size(workers, Run::default()));
        }
        assert_eq!(report.sizes.iter().map(|size| size.workers).collect::<Vec<_>>(), [100, 1000]);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
