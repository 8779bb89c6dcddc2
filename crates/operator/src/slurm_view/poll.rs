//! The poller of one Slurm cluster, and who starts and stops it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client, ResourceExt, api::ListParams};
use slurm::{
    client::{Auth, Client as Slurm, Cursor, Error, Poll},
    hostlist,
    states::JobState,
    version::SlurmVersion,
    wire::{JobBrief, NodeBrief, Reservation},
};
use slurm_operator_api::Controller;
use tokio::{
    sync::{broadcast::error::RecvError, watch},
    time::timeout,
};

use super::{
    LIST, State, View, Views,
    endpoint::{self, Endpoint, EndpointLookup},
    write::describe,
};
use crate::{
    engine::podset::{self, SlurmNode},
    lock::lock,
    machine::{TriggerKind, call},
};

/// How often a small cluster is read. An unchanged one answers in a millisecond.
const PERIOD: Duration = Duration::from_secs(1);
/// Reading takes this part of the time at most.
const SHARE: u32 = 10;
/// But no cluster waits longer for the next read: slow is also who has much else to do.
const LONGEST: Duration = Duration::from_secs(5);
/// How soon a small cluster is read again after something was written.
const SOON: Duration = Duration::from_millis(50);
/// How often slurmctld is pinged.
const PING: Duration = Duration::from_secs(5);
/// How long to wait before trying to connect again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a missing setting may stay unnoticed if its change was not told.
const RECHECK: Duration = Duration::from_secs(30);
/// No call may take longer: slurmrestd itself waits twice as long for a slurmctld that is away.
const CALL: Duration = Duration::from_secs(5);
/// The operator's own tokens.
const LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// Keeps a poller for every Controller in these namespaces while this process leads.
pub async fn supervise(
    views: Views,
    client: Client,
    namespaces: Vec<Option<String>>,
    mut leads: watch::Receiver<bool>,
) {
    let mut triggers = views.0.triggers.subscribe();
    loop {
        if leads.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        start_all(&views, &client, &namespaces).await;
        loop {
            tokio::select! {
                changed = leads.changed() => if changed.is_err() || !*leads.borrow() { break },
                trigger = triggers.recv() => match trigger {
                    Ok(trigger) => match trigger.what {
                        TriggerKind::Controller => views.start(&client, &trigger.namespace, &trigger.name),
                        // Which of them concerns which cluster the poller finds out; there are few of either.
                        TriggerKind::RestApi | TriggerKind::Secret | TriggerKind::ConfigMap => views.recheck(&trigger.namespace),
                        _ => {}
                    },
                    Err(RecvError::Lagged(_)) => start_all(&views, &client, &namespaces).await,
                    Err(RecvError::Closed) => return,
                },
            }
        }
        views.stop_all();
    }
}

async fn start_all(views: &Views, client: &Client, namespaces: &[Option<String>]) {
    for namespace in namespaces {
        let api: Api<Controller> = match namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        // If this fails, the watch of Controllers still tells of each of them.
        if let Ok(list) = call("listing", || "Controllers".to_owned(), api.list_metadata(&ListParams::default())).await
        {
            for controller in list {
                views.start(client, &controller.namespace().unwrap_or_default(), &controller.name_any());
            }
        }
    }
}

impl Views {
    /// Starts a poller, or lets one that runs look at its settings again.
    fn start(&self, client: &Client, namespace: &str, controller: &str) {
        let key = (namespace.to_owned(), controller.to_owned());
        let mut views = lock(&self.0.views);
        if let Some(view) = views.get(&key) {
            view.recheck.notify_one();
            return;
        }
        let view = Arc::new(View::new(namespace, controller, Timestamp::now()));
        let poller = Poller { views: self.clone(), view: Arc::clone(&view), kube: client.clone() };
        *lock(&view.task) = Some(tokio::spawn(poller.run()));
        views.insert(key, view);
    }

    fn recheck(&self, namespace: &str) {
        for view in lock(&self.0.views).values().filter(|view| view.namespace == namespace) {
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
        lock(&self.0.views).remove(&(view.namespace.clone(), view.controller.clone()));
    }
}

struct Poller {
    views: Views,
    view: Arc<View>,
    kube: Client,
}

/// Why a connection is given up.
enum End {
    /// What we connect with has changed, or may have.
    EndpointChanged,
    /// slurmrestd is another one now.
    Server,
}

impl Poller {
    async fn run(self) {
        loop {
            let endpoint = match endpoint::find(&self.kube, &self.view.namespace, &self.view.controller).await {
                Ok(EndpointLookup::Found(endpoint)) => endpoint,
                Ok(EndpointLookup::Gone) => {
                    self.views.forget(&self.view);
                    self.notify(TriggerKind::SlurmHealth);
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

    /// Until something that we connect with changes, but no longer than this.
    async fn wait(&self, longest: Duration) {
        let _ = timeout(longest, self.view.recheck.notified()).await;
    }

    fn notify(&self, what: TriggerKind) {
        // Nobody listening is no failure.
        let _ = self.views.0.triggers.send(self.view.trigger(what));
    }

    /// We see nothing. What was seen before stays, for those who want to know what was.
    fn blind(&self, why: String) {
        let changed = {
            let mut state = lock(&self.view.state);
            let old = state.problem.take();
            let since = old.as_ref().map_or_else(Timestamp::now, |(since, _)| *since);
            let changed = old.as_ref().is_none_or(|(_, old)| *old != why);
            if old.is_none() {
                tracing::warn!(
                    controller = self.view.controller,
                    namespace = self.view.namespace,
                    why,
                    "Slurm is away"
                );
            }
            state.problem = Some((since, why));
            changed
        };
        if changed {
            self.notify(TriggerKind::SlurmHealth);
        }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Slurm, Error> {
        let auth = Auth::mint(endpoint.key.clone(), "slurm", LIFETIME);
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

    /// Reads until the connection is of no use any more. Pings have a life of their own.
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
            match endpoint::find(&self.kube, &self.view.namespace, &self.view.controller).await {
                Ok(EndpointLookup::Found(now)) if now.is_same(endpoint) => {}
                Ok(_) => return End::EndpointChanged,
                // What we have may still be good.
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
                    // "Nothing new" is quick to say, however long the list is.
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
                // Who wants to act on it wants all of it, not what is new by a clock that may be behind.
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
            tracing::info!(controller = self.view.controller, namespace = self.view.namespace, "Slurm is there");
        }
        if news.is_back || news.is_other {
            self.notify(TriggerKind::SlurmHealth);
        }
        if news.has_changed {
            self.notify(TriggerKind::Slurm);
        }
    }

    async fn ping(&self, client: &Slurm) -> End {
        loop {
            if let Ok(answer) = self.views.timed("ping", client.ping()).await {
                let started = self.views.timed("diag", client.diag()).await.ok().and_then(|diag| diag.req_time_start);
                let mut pings = answer.body;
                // A time that always differs tells nothing.
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
                    self.notify(TriggerKind::SlurmHealth);
                }
            }
            // Who just came up should not look dead for long.
            let all_answer = lock(&self.view.state).pings.iter().all(|ping| ping.responding);
            tokio::time::sleep(if all_answer { PING } else { RETRY }).await;
        }
    }
}

/// How long to wait before the next read.
#[derive(Debug, PartialEq, Eq)]
struct Pause {
    /// Whatever happens.
    least: Duration,
    /// If nothing happens.
    most: Duration,
}

impl Pause {
    /// The longer reading takes, the more seldom, also while we write: who writes to thousands of nodes one after the other need not
    /// see all of them again after each. Once is no habit: a slurmctld that just starts answers late, so the list before counts, too. How long
    /// a failure took says nothing of the next read.
    fn after(took: Duration, before: Duration, is_ok: bool) -> Self {
        if !is_ok {
            return Self { least: SOON, most: RETRY };
        }
        let share = took.min(before).saturating_mul(SHARE).min(LONGEST);
        Self { least: SOON.max(share), most: PERIOD.max(share) }
    }
}

/// All nodes, and the release that runs.
type Nodes = (Option<SlurmVersion>, Vec<(String, SlurmNode)>);

/// What one read brought.
struct Answers {
    asked: Instant,
    /// None: they are the same.
    nodes: Option<Nodes>,
    jobs: Extra<HashMap<String, Vec<podset::Job>>>,
    reservations: Extra<HashMap<String, podset::Reservation>>,
}

/// What others should know of a read.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    /// We saw nothing before.
    is_back: bool,
    /// Another release runs.
    is_other: bool,
    /// What plans read has changed, or may be believed again.
    has_changed: bool,
}

impl State {
    /// From one read to the next it takes a period.
    fn take_in(&mut self, number: u64, answers: Answers, period: Duration) -> News {
        let Answers { asked, nodes, jobs, reservations } = answers;
        // Who looked while an answer was late has judged what we knew as too old, and waits for this one.
        let was_stale = self.asked.is_some_and(|asked| podset::is_stale(signed(asked.elapsed()), self.period));
        let mut news = News { is_back: self.problem.take().is_some(), has_changed: was_stale, ..News::default() };
        if let Some((version, nodes)) = nodes {
            news.is_other = version.is_some() && version != self.slurm_version;
            self.slurm_version = version.or(self.slurm_version);
            // Mostly no more than loads have changed, which are not kept: then what is known may stay as it is.
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
        // Who waited for the state after his own write may go on, also if nothing else has changed.
        news.has_changed |= self.written.len() < waiting;
        news
    }
}

fn signed(duration: Duration) -> SignedDuration {
    duration.try_into().unwrap_or(SignedDuration::MAX)
}

/// What is read only if somebody wants it.
enum Extra<T> {
    NotRead,
    Same,
    New(T),
}

/// Whether that changed anything.
fn take<T: PartialEq>(known: &mut Option<Arc<T>>, read: Extra<T>) -> bool {
    match read {
        Extra::Same => false,
        // Nobody wants it.
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

/// A node, reduced to what plans read.
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

/// The jobs that hold each node.
fn by_node(jobs: &[JobBrief]) -> HashMap<String, Vec<podset::Job>> {
    let mut by_node: HashMap<String, Vec<podset::Job>> = HashMap::new();
    for job in jobs.iter().filter(|job| job.job_state.holds_nodes()) {
        // Names that cannot be read hide one job's deadline and nothing else.
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
    fn reading_takes_its_share_of_the_time_and_no_more() {
        let ms = Duration::from_millis;
        let pause = |took, before| Pause::after(ms(took), ms(before), true);
        assert_eq!(pause(2, 2), Pause { least: ms(50), most: ms(1000) });
        assert_eq!(pause(60, 70), Pause { least: ms(600), most: ms(1000) });
        assert_eq!(pause(300, 300), Pause { least: ms(3000), most: ms(3000) });
    }

    #[test]
    fn what_was_slow_once_does_not_make_us_wait_long() {
        let ms = Duration::from_millis;
        assert_eq!(Pause::after(ms(3000), ms(2), true), Pause { least: ms(50), most: ms(1000) });
        assert_eq!(Pause::after(ms(3000), ms(3000), true), Pause { least: LONGEST, most: LONGEST });
        assert_eq!(Pause::after(LIST, LIST, false), Pause { least: SOON, most: RETRY });
    }

    fn unchanged() -> Answers {
        Answers { asked: Instant::now(), nodes: None, jobs: Extra::NotRead, reservations: Extra::NotRead }
    }

    #[test]
    fn who_judged_a_late_answer_as_too_old_is_told_when_it_comes() {
        let mut state = State::default();
        let nodes = Some((None, vec![("w-0".to_owned(), SlurmNode::default())]));
        assert!(state.take_in(1, Answers { nodes, ..unchanged() }, PERIOD).has_changed);
        assert_eq!(state.take_in(2, unchanged(), PERIOD), News::default(), "nothing is new");
        state.asked = Instant::now().checked_sub(PERIOD * 6);
        assert!(state.take_in(3, unchanged(), PERIOD).has_changed, "it was too old and no longer is");
        assert_eq!(state.take_in(4, unchanged(), PERIOD), News::default());
    }

    #[test]
    fn an_answer_that_took_long_is_not_too_old_when_it_comes() {
        let mut state = State::default();
        let took = Duration::from_secs(4);
        let asked = Instant::now().checked_sub(took).expect("the machine is up for longer");
        let pause = Pause::after(took, Duration::ZERO, true);
        state.take_in(1, Answers { asked, ..unchanged() }, took + pause.most);
        assert_eq!(state.take_in(2, unchanged(), PERIOD), News::default(), "nobody was in doubt");
    }
}
