//! Reads Slurm at an interval.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use slurm::{
    client::{Client, Error, JobFilter},
    series::{NodeHistory, Series, of_jobs, of_rpcs},
    wire::{AccountedJobMetrics, Diag, JobMetrics, NodeMetrics},
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

use super::{
    link::Link,
    own_metrics::OwnMetrics,
    plan_rounds::{Part, Rounds},
    store::Store,
};
use crate::slurm_view::describe;

/// How far ahead the clock of slurmdbd may be.
const AHEAD: SignedDuration = SignedDuration::from_mins(5);

/// Where lists come from.
pub(super) struct Source {
    pub link: Link,
    /// Read jobs from slurmdbd, and this long after their end.
    pub lookback: Option<Duration>,
}

/// A list that was read.
enum List {
    Nodes(Vec<NodeMetrics>),
    /// With the time by Slurm's clock.
    Jobs(Vec<JobMetrics>, Timestamp),
    Diag(Box<Diag>),
}

/// The end of a read.
struct End {
    part: Part,
    round: u64,
    began: Instant,
    list: Result<List, String>,
}

/// Reads lists, and keeps their series.
pub(super) struct Collector {
    pub source: Arc<Source>,
    pub interval: Duration,
    /// How many reads of the same list may be under way.
    pub most: usize,
    pub aliases: bool,
    pub store: Store,
    pub own: OwnMetrics,
}

impl Collector {
    /// Runs until something unexpected happens.
    pub(super) async fn run(&self) -> Result<()> {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut rounds, mut history, mut reads) = (Rounds::default(), NodeHistory::default(), JoinSet::new());
        // For intervals between lists of nodes, whatever the clocks do.
        let beginning = Instant::now();
        loop {
            tokio::select! {
                _ = ticks.tick() => self.begin(&mut rounds, &mut reads),
                Some(end) = reads.join_next() => {
                    let End { part, round, began, list } = end.context("a read of Slurm panicked")?;
                    let took = began.elapsed();
                    let ended = rounds.end(round, part, list.is_ok());
                    if let Some(succeeded) = ended.round {
                        self.own.round_ended(took, succeeded);
                    }
                    let now = began.duration_since(beginning);
                    let series = list.and_then(|list| self.series(list, &mut history, now, ended.is_news));
                    self.own.ended(part, took, rounds.count(part), series.is_ok());
                    match series {
                        Ok(Some(series)) => self.store.put(part, series, began),
                        Err(problem) if ended.is_news => self.store.failed(part, problem),
                        // There is a newer answer.
                        Ok(None) | Err(_) => {}
                    }
                }
            }
        }
    }

    fn begin(&self, rounds: &mut Rounds, reads: &mut JoinSet<End>) {
        let round = rounds.begin(self.most);
        for part in &round.skip {
            self.own.skipped(*part);
        }
        if !round.begin.is_empty() {
            self.own.round_began();
        }
        for part in round.begin {
            self.own.began(part, rounds.count(part));
            let (source, round, began) = (Arc::clone(&self.source), round.number, Instant::now());
            reads.spawn(async move { End { part, round, began, list: source.read(part).await } });
        }
    }

    /// The series of a list, if it is newer than others.
    fn series(
        &self,
        list: List,
        history: &mut NodeHistory,
        now: Duration,
        is_news: bool,
    ) -> Result<Option<Series>, String> {
        if !is_news {
            return Ok(None);
        }
        let series = match list {
            List::Nodes(nodes) => history.of_nodes(nodes, now),
            List::Jobs(jobs, now) => of_jobs(jobs, now),
            List::Diag(diag) => of_rpcs(&diag, self.aliases),
        };
        series.map(Some).map_err(|error| error.to_string())
    }
}

impl Source {
    async fn read(&self, part: Part) -> Result<List, String> {
        let client = self.link.client().await?;
        match self.list(&client, part).await {
            Ok(list) => Ok(list),
            Err(error) => {
                self.link.failed(&error).await;
                let is_without = part == Part::Jobs && self.lookback.is_some() && error.is_not_offered();
                let hint = if is_without { ": slurmrestd has no accounting; use --job-source controller" } else { "" };
                Err(format!("{}{hint}", describe(&error)))
            }
        }
    }

    async fn list(&self, client: &Client, part: Part) -> Result<List, Error> {
        Ok(match (part, self.lookback) {
            (Part::Nodes, _) => List::Nodes(client.node_metrics().await?.body.items),
            (Part::Diag, _) => List::Diag(Box::new(client.diag().await?.body)),
            (Part::Jobs, None) => {
                let jobs = client.job_metrics().await?.body;
                // The clock of slurmctld, by which jobs start, may be another one.
                let now = i64::try_from(jobs.last_update).ok().filter(|second| *second > 0);
                let now = now.and_then(|second| Timestamp::from_second(second).ok());
                List::Jobs(jobs.items, now.unwrap_or_else(Timestamp::now))
            }
            (Part::Jobs, Some(lookback)) => {
                // slurmdbd can have several clusters.
                let cluster = client.ping().await?.meta.cluster;
                let now = Timestamp::now();
                let lookback = SignedDuration::try_from(lookback).unwrap_or(SignedDuration::MAX);
                let filter = JobFilter {
                    clusters: Some(cluster).filter(|cluster| !cluster.is_empty()).into_iter().collect(),
                    start: Some(now.checked_sub(lookback).unwrap_or(Timestamp::UNIX_EPOCH)),
                    end: now.checked_add(AHEAD).ok(),
                    ..JobFilter::default()
                };
                let jobs = client.accounted_job_metrics(&filter).await?.body;
                List::Jobs(jobs.into_iter().map(|AccountedJobMetrics(job)| job).collect(), now)
            }
        })
    }
}
