//! Slurm: the model of slurmctld, and the operator's view of it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use engine::{
    plan::{JobsOnNodes, ServiceState, SlurmCall},
    podset::{Job, JobIndex, JobList, Jobs, SlurmNode, SlurmObservation, Snapshot, Written, is_stale},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use slurm::{
    states::{NodeState, NodeStates, Word},
    version::SlurmVersion,
    wire::{JobId, NodeUpdate},
};
use testkit::slurmrestd::{self, Cluster, JobState, Node, NodeUpdate as Update, Refusal, Release, Settings};

/// Poll interval in seconds.
pub const PERIOD: i64 = 1;

/// How long jobs are polled after a request.
const WANTED_FOR: i64 = 60;

/// SIGKILL
const KILL: u16 = 9;

/// A read in progress.
struct Read {
    number: u64,
    asked_at: i64,
    order: u64,
    answer: Option<Result<Answer, &'static str>>,
}

struct Answer {
    nodes: HashMap<String, SlurmNode>,
    jobs: Option<JobIndex>,
}

/// The Slurm cluster, the connection to it, and the operator's view.
pub struct Slurm {
    pub cluster: Cluster,
    /// 24.11 without accounting, instead of the newest release with it.
    is_old: bool,
    /// slurmrestd is unreachable.
    pub is_away: bool,
    /// The next lists are empty, although nothing is lost.
    pub empty_lists: u32,
    view: View,
}

#[derive(Default)]
struct View {
    nodes: Arc<HashMap<String, SlurmNode>>,
    jobs: Option<JobList>,
    read_at: Option<i64>,
    order: u64,
    reads: u64,
    written: HashMap<String, (u64, Written)>,
    problem: Option<(i64, &'static str)>,
    started: Option<i64>,
    jobs_wanted: i64,
    under_way: Option<Read>,
}

pub fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl Slurm {
    /// A cluster without nodes.
    pub fn new(now: i64, is_old: bool) -> Self {
        // Before 26.05 without accounting, reasons stay when a node returns to service.
        let release = if is_old { Release::V24_11 } else { Release::V26_05 };
        let settings = Settings {
            release,
            accounting: !is_old,
            slurmd_timeout: 60,
            epilog: 1,
            ping_every: 600,
            ..Settings::default()
        };
        let mut slurm = Self {
            cluster: Cluster::new(settings, now),
            is_old,
            is_away: false,
            empty_lists: 0,
            view: View::default(),
        };
        slurm.forget_view(now);
        slurm
    }

    /// The operator restarts with an empty view.
    pub fn forget_view(&mut self, now: i64) {
        self.view = View { problem: Some((now, "not polled yet")), ..View::default() };
    }

    /// Requests jobs for a while.
    pub fn want_jobs(&mut self, now: i64) {
        self.view.jobs_wanted = now + WANTED_FOR;
    }

    /// When the last list was requested, in the order of events.
    pub fn order(&self) -> u64 {
        self.view.order
    }

    /// The poller requests the list.
    pub fn ask(&mut self, now: i64, order: u64) {
        if self.view.under_way.is_none() {
            self.view.reads += 1;
            self.view.under_way = Some(Read { number: self.view.reads, asked_at: now, order, answer: None });
        }
    }

    /// slurmctld responds.
    pub fn answer(&mut self) {
        let wants_jobs = self.view.jobs_wanted;
        let Some(read) = self.view.under_way.as_mut().filter(|read| read.answer.is_none()) else { return };
        if self.is_away || !self.cluster.is_up() {
            read.answer = Some(Err("slurmrestd is unreachable"));
            return;
        }
        let nodes = if self.empty_lists > 0 {
            self.empty_lists -= 1;
            HashMap::new()
        } else {
            self.cluster.nodes().map(|node| (node.name.clone(), of_node(node))).collect()
        };
        let jobs = (wants_jobs >= read.asked_at).then(|| jobs(&self.cluster));
        read.answer = Some(Ok(Answer { nodes, jobs }));
    }

    /// The poller publishes the response. Returns whether it may change a plan.
    pub fn publish(&mut self, now: i64) -> bool {
        let Some(read) = self.view.under_way.take_if(|read| read.answer.is_some()) else { return false };
        let view = &mut self.view;
        let answer = match read.answer {
            Some(Ok(answer)) => answer,
            Some(Err(why)) => {
                let is_new = view.problem.is_none();
                view.problem.get_or_insert((now, why));
                return is_new;
            }
            None => return false,
        };
        // As in the operator: plans that found the view stale wait for this response, also if it brings nothing new.
        let is_stale =
            |read_at: i64| is_stale(SignedDuration::from_secs(now - read_at), SignedDuration::from_secs(PERIOD));
        let mut changed = view.problem.take().is_some() || view.read_at.is_some_and(is_stale);
        if *view.nodes != answer.nodes {
            view.nodes = Arc::new(answer.nodes);
            changed = true;
        }
        let jobs = answer.jobs.map(|jobs| JobList { jobs: Arc::new(jobs), nodes: Arc::clone(&view.nodes) });
        let old = view.jobs.as_ref().map(|old| &old.jobs);
        changed |= jobs.as_ref().is_some_and(|new| old != Some(&new.jobs));
        view.jobs = jobs;
        view.read_at = Some(read.asked_at);
        view.order = read.order;
        let waiting = view.written.len();
        view.written.retain(|_, (written, _)| *written >= read.number);
        changed | (view.written.len() < waiting)
    }

    /// The slower task that reads the start time of slurmctld.
    pub fn ping(&mut self, started: i64) {
        if !self.is_away && self.cluster.is_up() {
            self.view.started = Some(started);
        }
    }

    /// The operator's view. Slurm's clock is this far ahead of the operator's.
    pub fn observation(&self, clock_ahead: i64) -> SlurmObservation {
        let view = &self.view;
        if let Some((since, why)) = view.problem {
            return SlurmObservation::Blind { since: timestamp(since), why: why.to_owned() };
        }
        let Some(read_at) = view.read_at else {
            return SlurmObservation::NoClient { why: "not polled yet".to_owned() };
        };
        SlurmObservation::Clear(Arc::new(Snapshot {
            nodes: Arc::clone(&view.nodes),
            read_at: timestamp(read_at),
            period: SignedDuration::from_secs(PERIOD),
            ctld_started: view.started.map(|started| timestamp(started - clock_ahead)),
            clock_ahead: Some(SignedDuration::from_secs(clock_ahead)),
            version: SlurmVersion::from_image(if self.is_old { "slurmd:24.11" } else { "slurmd:26.05" }),
            pending: view.written.iter().map(|(node, (_, what))| (node.clone(), what.clone())).collect(),
            jobs: view.jobs.clone().map_or(Jobs::Unread, Jobs::Read),
            reservations: None,
        }))
    }

    /// Why the operator considers Slurm unreachable.
    pub fn problem(&self) -> Option<&'static str> {
        self.view.problem.map(|(_, why)| why)
    }

    /// A write of the operator got no response.
    pub fn failed(&mut self, now: i64, why: &'static str) {
        self.view.problem = Some((now, why));
    }

    fn wrote(&mut self, node: &str, what: &Written) {
        self.view.written.insert(node.to_owned(), (self.view.reads, what.clone()));
    }

    /// Whether the real client refuses this write, because the plan saw something else.
    pub fn is_outdated(&self, call: &SlurmCall) -> bool {
        let SlurmCall::Forget { node, state } = call else { return false };
        let has_changed = self.cluster.node(node).is_some() && !self.is_unchanged(node, state);
        has_changed || self.view.jobs.as_ref().is_none_or(|list| list.jobs.names(node))
    }

    /// Performs a write like the real client and slurmctld. A missing object needs no change.
    pub fn perform(&mut self, call: &SlurmCall, looks_again: bool) -> Result<(), Refusal> {
        let absent_is_fine = |done: Result<(), Refusal>| match done {
            Err(refusal) if matches!(refusal.number, 2017 | 2018 | 2021) => Ok(()),
            done => done,
        };
        match call {
            SlurmCall::SetState { nodes, change } => {
                let update = update(change);
                let mut refused = Ok(());
                let is_same = |(node, state): &(&String, &ServiceState)| !looks_again || self.is_unchanged(node, state);
                let same: Vec<&String> = nodes.iter().filter(is_same).map(|(node, _)| node).collect();
                for node in same {
                    let done = self.cluster.update_nodes(std::slice::from_ref(node), &update, "slurm");
                    refused = refused.and(absent_is_fine(done));
                }
                refused
            }
            SlurmCall::Update { node, change } => {
                absent_is_fine(self.cluster.update_nodes(std::slice::from_ref(node), &update(change), "slurm"))
            }
            SlurmCall::Forget { node, .. } => absent_is_fine(self.cluster.delete_node(node)),
            SlurmCall::Cancel(jobs) | SlurmCall::Requeue(jobs) => {
                for job in self.still_there(jobs, looks_again) {
                    match call {
                        SlurmCall::Cancel(_) => absent_is_fine(self.cluster.signal(job, KILL))?,
                        // One that cannot be requeued keeps running.
                        _ => drop(self.cluster.requeue(job)),
                    }
                }
                Ok(())
            }
            SlurmCall::Reserve(_) | SlurmCall::Unreserve { .. } => Ok(()),
        }
    }

    /// The jobs that are still where the plan saw them, on nodes that are still as the plan saw them.
    fn still_there(&self, jobs: &JobsOnNodes, looks_again: bool) -> Vec<u32> {
        let is_there = |(job, node): &(&JobId, &String)| {
            let holds = |found: &&slurmrestd::Job| found.holds_nodes() && found.nodes.contains(node);
            self.is_unchanged(node, &jobs.nodes[*node]) && self.cluster.job(job.id).as_ref().is_some_and(holds)
        };
        jobs.jobs.iter().filter(|found| !looks_again || is_there(found)).map(|(job, _)| job.id).collect()
    }

    /// The client checks again before it changes the state of a node.
    fn is_unchanged(&self, node: &str, state: &ServiceState) -> bool {
        self.cluster.node(node).is_some_and(|fresh| state.is(&fresh.reason, &states(fresh)))
    }

    /// The client checks again before the pod of a drained node is deleted.
    pub fn is_still_drained(&self, node: &str, state: &ServiceState) -> bool {
        self.is_unchanged(node, state) && self.cluster.node(node).is_some_and(|fresh| states(fresh).is_drained())
    }

    /// A write was sent, whatever its outcome.
    pub fn mark_pending(&mut self, call: &SlurmCall) {
        match call {
            SlurmCall::SetState { nodes, change } => {
                let what =
                    change.drain_reason().map_or(Written::Other, |reason| Written::Drain { reason: reason.to_owned() });
                for node in nodes.keys() {
                    self.wrote(node, &what);
                }
            }
            SlurmCall::Update { node, .. } | SlurmCall::Forget { node, .. } => self.wrote(node, &Written::Other),
            _ => {}
        }
    }

    /// Ends a job, like an admin would.
    pub fn kill(&mut self, job: u32) {
        let _ = self.cluster.signal(job, KILL);
    }
}

/// Converts the client's update to the model's.
fn update(change: &NodeUpdate) -> Update {
    let fields = serde_json::to_value(change).unwrap();
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let words = |key: &str| -> Option<Vec<String>> {
        match fields.get(key)? {
            Value::Array(words) => Some(words.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
            _ => Some(Vec::new()),
        }
    };
    Update {
        state: words("state").unwrap_or_default(),
        reason: text("reason"),
        comment: text("comment"),
        features: words("features"),
        active_features: words("features_act"),
        topology: text("topology_str"),
        ..Update::default()
    }
}

/// As the operator's client decodes it.
pub fn states(node: &Node) -> NodeStates {
    let known = |text: &str| NodeState::ALL.iter().find(|(_, name)| *name == text).map(|(state, _)| *state);
    node.state.words().into_iter().filter_map(known).collect()
}

fn of_node(node: &Node) -> SlurmNode {
    SlurmNode {
        states: states(node),
        reason: node.reason.clone(),
        reason_since: (node.reason_at > 0).then(|| timestamp(node.reason_at)),
        comment: node.comment.clone(),
        features: node.machine.features.clone(),
        active_features: node.active_features.clone(),
        topology: node.machine.topology.clone(),
        reservation: node.reservation.clone(),
        gres: Box::default(),
        slurmd_started: None,
        version: None,
    }
}

fn jobs(cluster: &Cluster) -> JobIndex {
    let mut by_node: HashMap<String, Vec<Job>> = HashMap::new();
    for job in cluster.jobs().filter(|job| job.holds_nodes()) {
        for node in &job.nodes {
            let ends = job.deadline().map(timestamp);
            by_node.entry(node.clone()).or_default().push(Job { id: job.id, ends, is_ending: job.completing });
        }
    }
    let unfinished = cluster.jobs().filter(|job| job.holds_nodes() || job.state == JobState::Pending);
    let named_nodes: HashSet<String> = unfinished.flat_map(|job| job.spec.required.iter().cloned()).collect();
    JobIndex { by_node, named_nodes, ..JobIndex::default() }
}
