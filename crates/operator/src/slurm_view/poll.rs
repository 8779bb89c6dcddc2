//! The poller of one Slurm cluster.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use engine::plan::ClusterKey;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use slurm::{
    client::{Auth, Client as Slurm, Cursor, Error, Poll},
    wire::{Cluster, Ping},
};
use tokio::time::timeout;

use super::{
    LIST, View, Views,
    endpoint::{Clusters, Endpoint, EndpointLookup},
    state::{Answers, ClockReading, Extra, News, index, of_node, of_reservation},
    write::describe,
};
use crate::{lock::lock, trigger::TriggerKind};

/// Poll interval of a small cluster. If nothing changed, the answer takes a millisecond.
const PERIOD: Duration = Duration::from_secs(1);
/// Polling takes at most one part in SHARE of the time.
const SHARE: u32 = 10;
/// Upper bound of the pause: slurmctld may also be slow because it is busy with other work.
const LONGEST: Duration = Duration::from_secs(5);
/// Minimum pause before a small cluster is polled again after a write.
const SOON: Duration = Duration::from_millis(50);
/// A list with more jobs than this is read at most once in this time.
const MANY_JOBS: usize = 1_000;
const JOBS_PERIOD: Duration = Duration::from_secs(10);
/// Ping interval.
const PING: Duration = Duration::from_secs(5);
/// How often slurmdbd is asked: for it, this is a query of its database.
const ACCOUNTING: Duration = Duration::from_secs(10);
/// Pause before reconnecting.
const RETRY: Duration = Duration::from_secs(1);
/// Upper bound of the pause after answers that cannot be used.
const LONGEST_BACKOFF: Duration = Duration::from_mins(1);
/// How often to check for missing settings, in case their change was not reported.
const RECHECK: Duration = Duration::from_secs(30);
/// Timeout of a single call; slurmrestd itself waits twice as long for an unreachable slurmctld.
const CALL: Duration = Duration::from_secs(5);
/// Lifetime of the operator's own tokens.
const LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// The poller of one Slurm cluster.
pub(super) struct Poller {
    pub(super) views: Views,
    pub(super) view: Arc<View>,
    pub(super) kube: Client,
    pub(super) clusters: &'static dyn Clusters,
    /// Consecutive answers that could not be used.
    pub(super) refused: AtomicU32,
}

/// Pause after an answer that cannot be used: connecting again costs the server much, and rarely helps.
fn backoff(before: u32) -> Duration {
    RETRY.saturating_mul(1 << before.min(6)).min(LONGEST_BACKOFF)
}

/// Why a connection is closed.
enum End {
    /// The endpoint or its credentials have changed, or may have.
    EndpointChanged,
    /// slurmrestd was replaced by another version.
    Server,
}

impl Poller {
    pub(super) async fn run(self) {
        loop {
            let endpoint = match self.clusters.find(&self.kube, &self.view.cluster).await {
                Ok(EndpointLookup::Found(endpoint)) => endpoint,
                Ok(EndpointLookup::Gone) => {
                    if !self.views.forget(&self.view) {
                        continue;
                    }
                    self.notify(TriggerKind::SlurmHealth(self.view.cluster.group));
                    return;
                }
                Ok(EndpointLookup::Missing(why)) => {
                    self.blind(why);
                    self.wait(RECHECK).await;
                    continue;
                }
                Err(failure) => {
                    self.blind(failure.text());
                    self.wait(RETRY).await;
                    continue;
                }
            };
            match self.connect(&endpoint).await {
                Ok(client) => {
                    self.connected(&client, &endpoint);
                    Box::pin(self.watch(client, &endpoint)).await;
                }
                Err(error) => {
                    self.blind(describe(&error));
                    let is_away =
                        error.is_outage() || matches!(error, Error::Unauthorised { .. } | Error::NoToken { .. });
                    self.wait(if is_away { RETRY } else { self.longer() }).await;
                }
            }
        }
    }

    /// The pause after another answer that cannot be used.
    fn longer(&self) -> Duration {
        backoff(self.refused.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until the endpoint may have changed, at most this long.
    async fn wait(&self, longest: Duration) {
        let _ = timeout(longest, self.view.recheck.notified()).await;
    }

    fn notify(&self, what: TriggerKind) {
        // Having no receiver is not an error.
        let _ = self.views.0.triggers.send(self.view.trigger(what));
    }

    /// Records that Slurm is unreachable. The last known state is kept for information.
    fn blind(&self, why: String) {
        let changed = {
            let mut state = lock(&self.view.state);
            let old = state.problem.take();
            let since = old.as_ref().map_or_else(Timestamp::now, |(since, _)| *since);
            let changed = old.as_ref().is_none_or(|(_, old)| *old != why);
            if old.is_none() {
                tracing::warn!(
                    controller = self.view.cluster.name,
                    namespace = self.view.cluster.namespace,
                    why,
                    "slurmrestd unreachable"
                );
            }
            state.problem = Some((since, why));
            changed
        };
        if changed {
            self.notify(TriggerKind::SlurmHealth(self.view.cluster.group));
        }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Slurm, Error> {
        let auth = Auth::mint(endpoint.key.clone(), endpoint.user, LIFETIME);
        let mut builder = Slurm::builder(&endpoint.url).auth(auth).timeout(CALL).list_timeout(LIST).retries(0);
        if let Some(ca) = &endpoint.ca {
            builder = builder.ca_pem(ca.clone());
        }
        if endpoint.is_external {
            builder = builder.hide_answers();
        }
        self.views.timed("connect", builder.connect()).await
    }

    fn connected(&self, client: &Slurm, endpoint: &Endpoint) {
        let mut state = lock(&self.view.state);
        state.client = Some(client.clone());
        state.url.clone_from(&endpoint.url);
        state.slurm_version = client.slurm_version();
        if !endpoint.accounting {
            state.accounting = None;
            state.qos = None;
        }
    }

    /// Polls until the connection becomes unusable. Pings run concurrently.
    async fn watch(&self, client: Slurm, endpoint: &Endpoint) -> End {
        tokio::select! {
            end = self.read(&client) => end,
            end = self.endpoint_changed(endpoint) => end,
            () = self.view.reconnect.notified() => End::Server,
            never = self.ping(&client) => never,
            never = self.ask_slurmdbd(&client), if endpoint.accounting => never,
        }
    }

    /// Asks slurmdbd which clusters and QOS it knows. Apart from other reads, because slurmdbd may take long to find out that it has no
    /// database.
    async fn ask_slurmdbd(&self, client: &Slurm) -> End {
        loop {
            let answer = self.views.timed("clusters", client.clusters()).await;
            let answer = answer.map(|answer| clusters(answer.body.items)).map_err(|error| describe(&error));
            let qos = if answer.is_ok() { self.views.timed("qos", client.qos()).await.ok() } else { None };
            let qos = qos.map(|qos| Arc::new(qos.body.items.into_iter().map(|qos| qos.name).collect()));
            let changed = {
                let mut state = lock(&self.view.state);
                // If slurmrestd itself does not answer, this says nothing about slurmdbd.
                let answer = Some(answer).filter(|answer| answer.is_ok() || state.problem.is_none());
                let changed = state.accounting != answer || state.qos != qos;
                (state.accounting, state.qos) = (answer, qos);
                changed
            };
            if changed {
                self.notify(TriggerKind::SlurmHealth(self.view.cluster.group));
            }
            tokio::time::sleep(ACCOUNTING).await;
        }
    }

    async fn endpoint_changed(&self, endpoint: &Endpoint) -> End {
        loop {
            self.view.recheck.notified().await;
            match self.clusters.find(&self.kube, &self.view.cluster).await {
                Ok(EndpointLookup::Found(now)) if now.is_same(endpoint) => {}
                Ok(_) => return End::EndpointChanged,
                // The current settings may still be valid.
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    async fn read(&self, client: &Slurm) -> End {
        let mut cursors = Cursors::default();
        let mut before = Duration::ZERO;
        loop {
            let number = self.view.begin_read();
            let start = Instant::now();
            let done = self.read_once(client, &mut cursors).await;
            let took = start.elapsed();
            let pause = Pause::after(took, before, done.is_ok());
            match done {
                Ok(answers) => {
                    self.refused.store(0, Ordering::Relaxed);
                    // An unchanged list is answered quickly, whatever its size.
                    if answers.nodes.is_some() {
                        before = took;
                    }
                    if self.publish(number, answers, took + pause.most).is_upgraded {
                        return End::Server;
                    }
                }
                Err(error) => {
                    self.blind(describe(&error));
                    self.view.ended.send_replace(number);
                    cursors = Cursors::default();
                    match error {
                        Error::Unauthorised { .. } | Error::NoToken { .. } => {
                            self.wait(RETRY).await;
                            return End::EndpointChanged;
                        }
                        Error::NotOffered { .. } | Error::Undecodable { .. } => {
                            self.wait(self.longer()).await;
                            return End::Server;
                        }
                        _ => {}
                    }
                }
            }
            tokio::select! {
                biased;
                // A caller that acts on the result needs the full list, not a delta by a clock that may lag.
                () = self.view.hurry.notified() => cursors.nodes.reset(),
                () = self.pause(&pause) => {}
            }
        }
    }

    async fn pause(&self, pause: &Pause) {
        tokio::time::sleep(pause.least).await;
        let _ = timeout(pause.most.saturating_sub(pause.least), self.view.poll_soon.notified()).await;
    }

    async fn read_once(&self, client: &Slurm, cursors: &mut Cursors) -> Result<Answers, Error> {
        let (asked, asked_at) = (Instant::now(), Timestamp::now());
        if self.view.clock_changed.swap(false, Ordering::Relaxed) {
            cursors.nodes.reset();
            cursors.jobs.reset();
        }
        if self.view.nodes_written.swap(false, Ordering::Relaxed) {
            cursors.nodes.reset();
        }
        let nodes = match self.views.timed("nodes", client.nodes_since(&mut cursors.nodes)).await? {
            Poll::Unchanged => None,
            Poll::Changed(answer) => {
                let version = answer.meta.version;
                let nodes = answer.body.into_iter().map(of_node).collect();
                Some((version, nodes))
            }
        };
        let wanted = |until: &AtomicI64| until.load(Ordering::Relaxed) >= asked_at.as_second();
        let jobs = if !wanted(&self.view.jobs_wanted) {
            cursors.jobs.reset();
            Extra::NotRead
        } else if cursors.next_jobs.is_some_and(|next| Instant::now() < next)
            && !self.view.jobs_changed.swap(false, Ordering::Relaxed)
        {
            Extra::Later
        } else {
            let start = Instant::now();
            match self.views.timed("jobs", client.jobs_since(&mut cursors.jobs)).await? {
                Poll::Unchanged => Extra::Same,
                Poll::Changed(answer) => {
                    let jobs = &answer.body.items;
                    cursors.next_jobs = Some(start + pause_after_jobs(jobs.len(), start.elapsed()));
                    index(jobs).map_or_else(
                        || {
                            tracing::warn!(cluster = %self.view.cluster, "the nodes of jobs cannot be read, or are too many");
                            Extra::NotRead
                        },
                        Extra::New,
                    )
                }
            }
        };
        let reservations = if wanted(&self.view.reservations_wanted) {
            let answer = self.views.timed("reservations", client.reservations()).await?;
            Extra::New(answer.body.items.into_iter().map(of_reservation).collect())
        } else {
            Extra::NotRead
        };
        Ok(Answers { asked, nodes, jobs, reservations })
    }

    fn publish(&self, number: u64, answers: Answers, period: Duration) -> News {
        let news = lock(&self.view.state).take_in(number, answers, period);
        self.view.ended.send_replace(number);
        if news.is_back {
            let ClusterKey { namespace, name, .. } = &self.view.cluster;
            tracing::info!(controller = name, namespace, "slurmrestd reachable");
        }
        if news.is_back || news.is_other {
            self.notify(TriggerKind::SlurmHealth(self.view.cluster.group));
        }
        if news.has_changed {
            self.notify(TriggerKind::Slurm(self.view.cluster.group));
        }
        news
    }

    async fn ping(&self, client: &Slurm) -> End {
        loop {
            if let Ok(answer) = self.views.timed("ping", client.ping()).await {
                let asked = Instant::now();
                let diag = self.views.timed("diag", client.diag()).await.ok();
                let shown = diag.as_ref().and_then(|diag| diag.req_time);
                let clock = shown.map(|shown| ClockReading { shown, asked, answered: Instant::now() });
                let started = diag.and_then(|diag| diag.req_time_start);
                let mut pings = answer.body;
                // The latency differs every time and carries no information.
                for ping in &mut pings {
                    ping.latency = 0;
                }
                let changed = {
                    let mut state = lock(&self.view.state);
                    let started = started.or(state.started);
                    let changed = state.pings != pings || state.started != started;
                    let has_gone_back = clock.zip(state.clock).is_some_and(|(now, before)| now.has_gone_back(&before));
                    if has_gone_back || is_another(&state.pings, &pings) {
                        self.view.clock_changed.store(true, Ordering::Relaxed);
                    }
                    (state.pings, state.started) = (pings, started);
                    state.clock = clock.or(state.clock);
                    changed
                };
                if changed {
                    self.notify(TriggerKind::SlurmHealth(self.view.cluster.group));
                }
            }
            // A slurmctld that just started should not be shown as down for long.
            let all_answer = lock(&self.view.state).pings.iter().all(|ping| ping.responding);
            tokio::time::sleep(if all_answer { PING } else { RETRY }).await;
        }
    }
}

/// The clusters of slurmdbd, each with the address of its slurmctld.
fn clusters(clusters: Vec<Cluster>) -> BTreeMap<String, Option<String>> {
    let address = |cluster: Cluster| {
        let host = Some(cluster.controller.host).filter(|host| !host.is_empty());
        (cluster.name, host)
    };
    clusters.into_iter().map(address).collect()
}

/// Whether another slurmctld is in charge: the first one that responds.
fn is_another(old: &[Ping], new: &[Ping]) -> bool {
    let first = |pings: &[Ping]| pings.iter().find(|ping| ping.responding).map(|ping| ping.hostname.clone());
    matches!((first(old), first(new)), (Some(old), Some(new)) if old != new)
}

/// Where the next reads continue.
#[derive(Default)]
struct Cursors {
    nodes: Cursor,
    jobs: Cursor,
    /// When the jobs may be read again.
    next_jobs: Option<Instant>,
}

/// The pause after a list of jobs, counted from its start. A long one takes slurmctld and us much longer than the nodes do.
fn pause_after_jobs(jobs: usize, took: Duration) -> Duration {
    let share = took.saturating_mul(SHARE);
    if jobs > MANY_JOBS { share.max(JOBS_PERIOD) } else { share.min(JOBS_PERIOD) }
}

/// The pause before the next read.
#[derive(Debug, PartialEq, Eq)]
struct Pause {
    /// Minimum pause, even after writes.
    least: Duration,
    /// Pause if nothing happens.
    most: Duration,
}

impl Pause {
    /// Polls at a duty cycle of at most 1/SHARE, also between writes: a series of writes to thousands of nodes does
    /// not need a full list after each. Uses the shorter of the last two reads, so that one slow read, for example
    /// while slurmctld starts, does not delay the next. The duration of a failed read is not used.
    fn after(took: Duration, before: Duration, is_ok: bool) -> Self {
        if !is_ok {
            return Self { least: SOON, most: RETRY };
        }
        let share = took.min(before).saturating_mul(SHARE).min(LONGEST);
        Self { least: SOON.max(share), most: PERIOD.max(share) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_is_limited_to_its_share_of_the_time() {
        let ms = Duration::from_millis;
        let pause = |took, before| Pause::after(ms(took), ms(before), true);
        assert_eq!(pause(2, 2), Pause { least: ms(50), most: ms(1000) });
        assert_eq!(pause(60, 70), Pause { least: ms(600), most: ms(1000) });
        assert_eq!(pause(300, 300), Pause { least: ms(3000), most: ms(3000) });
    }

    #[test]
    fn answers_that_cannot_be_used_are_asked_for_less_and_less() {
        assert_eq!([0, 1, 2, 5, 6, 99].map(|before| backoff(before).as_secs()), [1, 2, 4, 32, 60, 60]);
    }

    #[test]
    fn another_slurmctld_is_noticed() {
        let pings = |responding: &[bool]| -> Vec<Ping> {
            let names = ["a", "b"].iter().zip(responding);
            names.map(|(name, &responding)| Ping { hostname: (*name).into(), responding, ..Ping::default() }).collect()
        };
        assert!(is_another(&pings(&[true, true]), &pings(&[false, true])), "failover");
        assert!(is_another(&pings(&[false, true]), &pings(&[true, true])), "and back");
        assert!(!is_another(&pings(&[true, true]), &pings(&[true, false])), "a standby");
        assert!(!is_another(&pings(&[true]), &pings(&[false])), "an outage");
    }

    #[test]
    fn one_slow_read_does_not_delay_the_next() {
        let ms = Duration::from_millis;
        assert_eq!(Pause::after(ms(3000), ms(2), true), Pause { least: ms(50), most: ms(1000) });
        assert_eq!(Pause::after(ms(3000), ms(3000), true), Pause { least: LONGEST, most: LONGEST });
        assert_eq!(Pause::after(LIST, LIST, false), Pause { least: SOON, most: RETRY });
    }
}
