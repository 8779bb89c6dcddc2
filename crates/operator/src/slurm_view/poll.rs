//! The poller of one Slurm cluster, and the supervisor of all pollers.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{
    plan::ClusterKey,
    podset::{self, SlurmNode},
};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use slurm::{
    client::{Auth, Client as Slurm, Cursor, Error, Poll},
    hostlist,
    states::JobState,
    version::SlurmVersion,
    wire::{JobBrief, NodeBrief, Reservation},
};
use tokio::{
    sync::{broadcast::error::RecvError, watch},
    time::timeout,
};

use super::{
    LIST, State, View, Views,
    endpoint::{Affected, Clusters, Endpoint, EndpointLookup},
    write::describe,
};
use crate::{
    lock::lock,
    trigger::{Trigger, TriggerKind},
};

/// Poll interval of a small cluster. If nothing changed, the answer takes a millisecond.
const PERIOD: Duration = Duration::from_secs(1);
/// Polling takes at most one part in SHARE of the time.
const SHARE: u32 = 10;
/// Upper bound of the pause: slurmctld may also be slow because it is busy with other work.
const LONGEST: Duration = Duration::from_secs(5);
/// Minimum pause before a small cluster is polled again after a write.
const SOON: Duration = Duration::from_millis(50);
/// Ping interval.
const PING: Duration = Duration::from_secs(5);
/// Pause before reconnecting.
const RETRY: Duration = Duration::from_secs(1);
/// How often to check for missing settings, in case their change was not reported.
const RECHECK: Duration = Duration::from_secs(30);
/// Timeout of a single call; slurmrestd itself waits twice as long for an unreachable slurmctld.
const CALL: Duration = Duration::from_secs(5);
/// Lifetime of the operator's own tokens.
const LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// Runs a poller for every Slurm cluster in these namespaces while this process leads.
pub async fn supervise(
    views: Views,
    client: Client,
    groups: &[&'static dyn Clusters],
    namespaces: Vec<Option<String>>,
    mut leads: watch::Receiver<bool>,
) {
    let mut triggers = views.0.triggers.subscribe();
    loop {
        if leads.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        start_all(&views, &client, groups, &namespaces).await;
        loop {
            tokio::select! {
                changed = leads.changed() => if changed.is_err() || !*leads.borrow() { break },
                trigger = triggers.recv() => match trigger {
                    Ok(trigger) => groups.iter().for_each(|clusters| views.react(&client, *clusters, &trigger)),
                    Err(RecvError::Lagged(_)) => start_all(&views, &client, groups, &namespaces).await,
                    Err(RecvError::Closed) => return,
                },
            }
        }
        views.stop_all();
    }
}

async fn start_all(views: &Views, client: &Client, groups: &[&'static dyn Clusters], namespaces: &[Option<String>]) {
    for clusters in groups {
        for namespace in namespaces {
            // If this fails, the watch still reports each cluster.
            for cluster in clusters.list(client, namespace.as_deref()).await.unwrap_or_default() {
                views.start(client, *clusters, cluster);
            }
        }
    }
}

impl Views {
    fn react(&self, client: &Client, clusters: &'static dyn Clusters, trigger: &Trigger) {
        match clusters.affected(trigger) {
            Affected::Nothing => {}
            Affected::Cluster(cluster) => self.start(client, clusters, cluster),
            // The pollers find out which of them matters; there are few of each.
            Affected::Namespace(namespace) => self.recheck(&namespace),
        }
    }

    /// Starts a poller, or makes a running one check its settings again.
    fn start(&self, client: &Client, clusters: &'static dyn Clusters, cluster: ClusterKey) {
        let mut views = lock(&self.0.views);
        if let Some(view) = views.get(&cluster) {
            view.recheck.notify_one();
            return;
        }
        let view = Arc::new(View::new(cluster.clone(), Timestamp::now()));
        let poller = Poller { views: self.clone(), view: Arc::clone(&view), kube: client.clone(), clusters };
        *lock(&view.task) = Some(tokio::spawn(poller.run()));
        views.insert(cluster, view);
    }

    fn recheck(&self, namespace: &str) {
        for view in lock(&self.0.views).values().filter(|view| view.cluster.namespace == namespace) {
            view.recheck.notify_one();
        }
    }

    fn stop_all(&self) {
        for (_, view) in lock(&self.0.views).drain() {
            if let Some(task) = lock(&view.task).take() {
                task.abort();
            }
        }
    }

    fn forget(&self, view: &View) {
        lock(&self.0.views).remove(&view.cluster);
    }
}

struct Poller {
    views: Views,
    view: Arc<View>,
    kube: Client,
    clusters: &'static dyn Clusters,
}

/// Why a connection is closed.
enum End {
    /// The endpoint or its credentials have changed, or may have.
    EndpointChanged,
    /// slurmrestd was replaced by another version.
    Server,
}

impl Poller {
    async fn run(self) {
        loop {
            let endpoint = match self.clusters.find(&self.kube, &self.view.cluster).await {
                Ok(EndpointLookup::Found(endpoint)) => endpoint,
                Ok(EndpointLookup::Gone) => {
                    self.views.forget(&self.view);
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
                    self.wait(RETRY).await;
                }
            }
        }
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
        self.views.timed("connect", builder.connect()).await
    }

    fn connected(&self, client: &Slurm, endpoint: &Endpoint) {
        let mut state = lock(&self.view.state);
        state.client = Some(client.clone());
        state.url.clone_from(&endpoint.url);
        state.slurm_version = client.slurm_version();
    }

    /// Polls until the connection becomes unusable. Pings run concurrently.
    async fn watch(&self, client: Slurm, endpoint: &Endpoint) -> End {
        tokio::select! {
            end = self.read(&client) => end,
            end = self.endpoint_changed(endpoint) => end,
            never = self.ping(&client) => never,
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
        let mut cursors = (Cursor::default(), Cursor::default());
        let mut before = Duration::ZERO;
        loop {
            let number = self.view.begin_read();
            let start = Instant::now();
            let done = self.read_once(client, &mut cursors).await;
            let took = start.elapsed();
            let pause = Pause::after(took, before, done.is_ok());
            match done {
                Ok(answers) => {
                    // An unchanged list is answered quickly, whatever its size.
                    if answers.nodes.is_some() {
                        before = took;
                    }
                    self.publish(number, answers, took + pause.most);
                }
                Err(error) => {
                    self.blind(describe(&error));
                    self.view.ended.send_replace(number);
                    cursors = (Cursor::default(), Cursor::default());
                    match error {
                        Error::Unauthorised { .. } | Error::NoToken { .. } => {
                            self.wait(RETRY).await;
                            return End::EndpointChanged;
                        }
                        Error::NotOffered { .. } | Error::Undecodable { .. } => return End::Server,
                        _ => {}
                    }
                }
            }
            tokio::select! {
                biased;
                // A caller that acts on the result needs the full list, not a delta by a clock that may lag.
                () = self.view.hurry.notified() => cursors.0.reset(),
                () = self.pause(&pause) => {}
            }
        }
    }

    async fn pause(&self, pause: &Pause) {
        tokio::time::sleep(pause.least).await;
        let _ = timeout(pause.most.saturating_sub(pause.least), self.view.poll_soon.notified()).await;
    }

    async fn read_once(&self, client: &Slurm, cursors: &mut (Cursor, Cursor)) -> Result<Answers, Error> {
        let (asked, asked_at) = (Instant::now(), Timestamp::now());
        let nodes = match self.views.timed("nodes", client.nodes_since(&mut cursors.0)).await? {
            Poll::Unchanged => None,
            Poll::Changed(answer) => {
                let version = answer.meta.version;
                let nodes = answer.body.into_iter().map(of_node).collect();
                Some((version, nodes))
            }
        };
        let wanted = |until: &AtomicI64| until.load(Ordering::Relaxed) >= asked_at.as_second();
        let jobs = if wanted(&self.view.jobs_wanted) {
            match self.views.timed("jobs", client.jobs_since(&mut cursors.1)).await? {
                Poll::Unchanged => Extra::Same,
                Poll::Changed(answer) => Extra::New(by_node(&answer.body.items)),
            }
        } else {
            cursors.1.reset();
            Extra::NotRead
        };
        let reservations = if wanted(&self.view.reservations_wanted) {
            let answer = self.views.timed("reservations", client.reservations()).await?;
            Extra::New(answer.body.items.into_iter().map(of_reservation).collect())
        } else {
            Extra::NotRead
        };
        Ok(Answers { asked, nodes, jobs, reservations })
    }

    fn publish(&self, number: u64, answers: Answers, period: Duration) {
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
    }

    async fn ping(&self, client: &Slurm) -> End {
        loop {
            if let Ok(answer) = self.views.timed("ping", client.ping()).await {
                let started = self.views.timed("diag", client.diag()).await.ok().and_then(|diag| diag.req_time_start);
                let mut pings = answer.body;
                // The latency differs every time and carries no information.
                for ping in &mut pings {
                    ping.latency = 0;
                }
                let changed = {
                    let mut state = lock(&self.view.state);
                    let started = started.or(state.started);
                    let changed = state.pings != pings || state.started != started;
                    (state.pings, state.started) = (pings, started);
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

/// All nodes, and the running Slurm version.
type Nodes = (Option<SlurmVersion>, Vec<(String, SlurmNode)>);

/// The result of one read.
struct Answers {
    asked: Instant,
    /// `None`: unchanged.
    nodes: Option<Nodes>,
    jobs: Extra<HashMap<String, Vec<podset::Job>>>,
    reservations: Extra<HashMap<String, podset::Reservation>>,
}

/// What to announce after a read.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    /// Slurm was unreachable before.
    is_back: bool,
    /// The Slurm version has changed.
    is_other: bool,
    /// Data used for planning has changed, or is no longer stale or pending.
    has_changed: bool,
}

impl State {
    /// Stores the result of a read; `period` is the expected time until the next one.
    fn take_in(&mut self, number: u64, answers: Answers, period: Duration) -> News {
        let Answers { asked, nodes, jobs, reservations } = answers;
        // If the view was stale, plans that found it stale wait for this read.
        let was_stale = self.asked.is_some_and(|asked| podset::is_stale(signed(asked.elapsed()), self.period));
        let mut news = News { is_back: self.problem.take().is_some(), has_changed: was_stale, ..News::default() };
        if let Some((version, nodes)) = nodes {
            news.is_other = version.is_some() && version != self.slurm_version;
            self.slurm_version = version.or(self.slurm_version);
            // Often only node loads have changed, which are not kept: then keep the current map.
            let is_known = |(name, node): &(String, SlurmNode)| self.nodes.get(name) == Some(node);
            if nodes.len() != self.nodes.len() || !nodes.iter().all(is_known) {
                self.nodes = Arc::new(nodes.into_iter().collect());
                news.has_changed = true;
            }
        }
        news.has_changed |= take(&mut self.jobs, jobs);
        news.has_changed |= take(&mut self.reservations, reservations);
        self.asked = Some(asked);
        self.period = signed(period);
        let waiting = self.written.len();
        self.written.retain(|_, (written, _)| *written >= number);
        // Wake plans that wait for their own writes to be confirmed, even if nothing else changed.
        news.has_changed |= self.written.len() < waiting;
        news
    }
}

fn signed(duration: Duration) -> SignedDuration {
    duration.try_into().unwrap_or(SignedDuration::MAX)
}

/// Data that is read only on request.
enum Extra<T> {
    NotRead,
    Same,
    New(T),
}

/// Returns whether anything changed.
fn take<T: PartialEq>(known: &mut Option<Arc<T>>, read: Extra<T>) -> bool {
    match read {
        Extra::Same => false,
        // Not requested.
        Extra::NotRead => {
            *known = None;
            false
        }
        Extra::New(new) => {
            let changed = known.as_deref() != Some(&new);
            if changed {
                *known = Some(Arc::new(new));
            }
            changed
        }
    }
}

/// A node, reduced to the fields used for planning.
fn of_node(node: NodeBrief) -> (String, SlurmNode) {
    let reduced = SlurmNode {
        states: node.state,
        reason: node.reason,
        reason_since: node.reason_changed_at,
        comment: node.comment,
        features: node.features,
        active_features: node.active_features,
        topology: node.topology,
        reservation: node.reservation,
    };
    (node.name, reduced)
}

/// The jobs on each node.
fn by_node(jobs: &[JobBrief]) -> HashMap<String, Vec<podset::Job>> {
    let mut by_node: HashMap<String, Vec<podset::Job>> = HashMap::new();
    for job in jobs.iter().filter(|job| job.job_state.holds_nodes()) {
        // An unparsable node list only hides the deadline of one job.
        for node in hostlist::expand(&job.nodes).unwrap_or_default() {
            let is_ending = job.job_state.has(JobState::Completing);
            by_node.entry(node).or_default().push(podset::Job { id: job.job_id, ends: job.deadline(), is_ending });
        }
    }
    by_node
}

fn of_reservation(reservation: Reservation) -> (String, podset::Reservation) {
    let reduced = podset::Reservation {
        nodes: reservation.node_list,
        flags: reservation.flags,
        start: reservation.start_time,
        end: reservation.end_time,
    };
    (reservation.name, reduced)
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
    fn one_slow_read_does_not_delay_the_next() {
        let ms = Duration::from_millis;
        assert_eq!(Pause::after(ms(3000), ms(2), true), Pause { least: ms(50), most: ms(1000) });
        assert_eq!(Pause::after(ms(3000), ms(3000), true), Pause { least: LONGEST, most: LONGEST });
        assert_eq!(Pause::after(LIST, LIST, false), Pause { least: SOON, most: RETRY });
    }

    fn unchanged() -> Answers {
        Answers { asked: Instant::now(), nodes: None, jobs: Extra::NotRead, reservations: Extra::NotRead }
    }

    #[test]
    fn a_late_answer_wakes_plans_that_found_the_view_stale() {
        let mut state = State::default();
        let nodes = Some((None, vec![("w-0".to_owned(), SlurmNode::default())]));
        assert!(state.take_in(1, Answers { nodes, ..unchanged() }, PERIOD).has_changed);
        assert_eq!(state.take_in(2, unchanged(), PERIOD), News::default(), "nothing is new");
        state.asked = Instant::now().checked_sub(PERIOD * 6);
        assert!(state.take_in(3, unchanged(), PERIOD).has_changed, "it was too old and no longer is");
        assert_eq!(state.take_in(4, unchanged(), PERIOD), News::default());
    }

    #[test]
    fn a_slow_answer_is_not_stale_on_arrival() {
        let mut state = State::default();
        let took = Duration::from_secs(4);
        let asked = Instant::now().checked_sub(took).expect("the machine is up for longer");
        let pause = Pause::after(took, Duration::ZERO, true);
        state.take_in(1, Answers { asked, ..unchanged() }, took + pause.most);
        assert_eq!(state.take_in(2, unchanged(), PERIOD), News::default(), "the view was never stale");
    }
}
