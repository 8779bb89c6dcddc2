//! The observed state of each Slurm cluster: one poller per cluster reads it, everything else uses the last result.
//!
//! A view records when it was read and what was written since, and never guesses a state. When Slurm is unreachable,
//! the view says so immediately instead of blocking.

mod endpoint;
mod poll;
mod state;
mod supervise;
mod write;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{
    plan::{ClusterKey, Needs},
    podset::{SlurmNode, SlurmObservation},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use slurm::{version::SlurmVersion, wire::Ping};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::timeout,
};

pub use endpoint::{Affected, Clusters, Endpoint, EndpointLookup};
pub use supervise::supervise;
pub use write::describe;

pub use state::AccountingAnswer;
use state::State;

use crate::{
    lock::lock,
    metrics::Metrics,
    trigger::{Trigger, TriggerKind, Triggers},
};

/// Timeout for listing all nodes.
const LIST: Duration = Duration::from_secs(30);

/// Jobs and reservations are polled only if they were requested within this time.
const WANTED_FOR: SignedDuration = SignedDuration::from_secs(60);

/// The views of all Slurm clusters. Clones share them.
#[derive(Clone)]
pub struct Views(Arc<Shared>);

struct Shared {
    views: Mutex<HashMap<ClusterKey, Arc<View>>>,
    triggers: Triggers,
    metrics: Metrics,
}

/// The view of one Slurm cluster.
struct View {
    cluster: ClusterKey,
    began: Instant,
    state: Mutex<State>,
    /// The endpoint or its credentials may have changed.
    recheck: Notify,
    /// Another slurmrestd answers, which does not offer what it should: connect again.
    reconnect: Notify,
    /// Something was written: poll soon.
    poll_soon: Notify,
    /// A caller needs the current state: poll at once.
    hurry: Notify,
    /// The number of the last read that ended, successfully or not.
    ended: watch::Sender<u64>,
    /// Until when jobs are requested, in Unix seconds.
    jobs_wanted: AtomicI64,
    /// Until when reservations are requested, in Unix seconds.
    reservations_wanted: AtomicI64,
    /// The next list of nodes must be a full one: we have written to some. slurmctld does not count a deleted node as a change,
    /// and after a step of its clock it reports no changes for a while.
    nodes_written: AtomicBool,
    /// The next lists of nodes and jobs must be full ones: another slurmctld answers, or its clock has gone back.
    clock_changed: AtomicBool,
    /// We have ended or requeued a job: a list from before must not be used to do it again.
    jobs_changed: AtomicBool,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The observed status of a Slurm cluster.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    pub observation: SlurmObservation,
    /// Each slurmctld, in the order of slurm.conf.
    pub pings: Vec<Ping>,
    /// The Slurm version that is running.
    pub slurm_version: Option<SlurmVersion>,
    /// The REST API version in use.
    pub rest_version: Option<String>,
    /// What slurmdbd answered last, if it was asked.
    pub accounting: Option<AccountingAnswer>,
    /// The QOS of slurmdbd, if it answered last.
    pub qos: Option<Arc<BTreeSet<String>>>,
}

impl Views {
    /// No views yet.
    pub fn new(triggers: Triggers, metrics: Metrics) -> Self {
        Self(Arc::new(Shared { views: Mutex::default(), triggers, metrics }))
    }

    /// The channel that announces changes.
    pub fn triggers(&self) -> Triggers {
        self.0.triggers.clone()
    }

    fn view(&self, cluster: &ClusterKey) -> Option<Arc<View>> {
        lock(&self.0.views).get(cluster).cloned()
    }

    /// The observed status of a Slurm cluster.
    pub fn cluster_status(&self, cluster: &ClusterKey) -> ClusterStatus {
        self.view(cluster).map_or_else(
            || ClusterStatus {
                observation: SlurmObservation::NoClient {
                    why: format!("the Slurm cluster {} is not polled yet", cluster.name),
                },
                pings: Vec::new(),
                slurm_version: None,
                rest_version: None,
                accounting: None,
                qos: None,
            },
            |view| view.cluster_status(),
        )
    }

    /// Requests that jobs or reservations are polled for a while.
    pub fn want(&self, needs: &Needs, now: Timestamp) {
        let Some(view) = self.view(&needs.cluster) else { return };
        let until = (now + WANTED_FOR).as_second();
        for (is_needed, wanted) in [(needs.jobs, &view.jobs_wanted), (needs.reservations, &view.reservations_wanted)] {
            if is_needed && wanted.swap(until, Ordering::Relaxed) < now.as_second() {
                view.poll_soon.notify_one();
            }
        }
    }

    /// For the debug page; contains no secrets.
    pub fn describe(&self) -> Value {
        let views: Vec<_> = lock(&self.0.views).values().cloned().collect();
        let mut shown: Vec<Value> = views.iter().map(|view| view.describe()).collect();
        shown.sort_by_key(ToString::to_string);
        json!(shown)
    }

    /// Age of the last list of each cluster, in seconds. A cluster that was never read counts from when its poller began: without a number, no
    /// alert would tell of it.
    pub fn ages(&self) -> Vec<(ClusterKey, f64)> {
        let views = lock(&self.0.views);
        let age = |view: &View| lock(&view.state).asked.unwrap_or(view.began).elapsed().as_secs_f64();
        views.iter().map(|(key, view)| (key.clone(), age(view))).collect()
    }
}

impl View {
    fn new(cluster: ClusterKey, now: Timestamp) -> Self {
        let state = State { problem: Some((now, "not polled yet".to_owned())), ..State::default() };
        Self {
            cluster,
            began: Instant::now(),
            state: Mutex::new(state),
            recheck: Notify::new(),
            reconnect: Notify::new(),
            poll_soon: Notify::new(),
            hurry: Notify::new(),
            ended: watch::Sender::new(0),
            jobs_wanted: AtomicI64::new(0),
            reservations_wanted: AtomicI64::new(0),
            nodes_written: AtomicBool::new(false),
            clock_changed: AtomicBool::new(false),
            jobs_changed: AtomicBool::new(false),
            task: Mutex::default(),
        }
    }

    /// Starts a read and returns its number.
    fn begin_read(&self) -> u64 {
        let mut state = lock(&self.state);
        state.reads += 1;
        state.reads
    }

    /// All nodes from a read that starts after this call. `None` if it failed; the poller records why.
    async fn read_anew(&self) -> Option<Arc<HashMap<String, SlurmNode>>> {
        let before = lock(&self.state).reads;
        let mut ended = self.ended.subscribe();
        self.hurry.notify_one();
        let is_read = matches!(timeout(LIST, ended.wait_for(|number| *number > before)).await, Ok(Ok(_)));
        let state = lock(&self.state);
        (is_read && state.problem.is_none()).then(|| Arc::clone(&state.nodes))
    }

    fn trigger(&self, what: TriggerKind) -> Arc<Trigger> {
        let ClusterKey { namespace, name, .. } = self.cluster.clone();
        Arc::new(Trigger { what, namespace, name, owners: Vec::new() })
    }

    fn cluster_status(&self) -> ClusterStatus {
        let state = lock(&self.state);
        ClusterStatus {
            observation: state.observation(),
            pings: state.pings.clone(),
            slurm_version: state.slurm_version,
            rest_version: state.client.as_ref().map(|client| client.rest_version().to_string()),
            accounting: state.accounting.clone(),
            qos: state.qos.clone(),
        }
    }

    fn describe(&self) -> Value {
        let state = lock(&self.state);
        json!({
            "namespace": self.cluster.namespace,
            "controller": self.cluster.name,
            "url": state.url,
            "slurmVersion": state.slurm_version.map(|version| version.to_string()),
            "restVersion": state.client.as_ref().map(|client| client.rest_version().to_string()),
            "nodes": state.nodes.len(),
            "ageSeconds": state.asked.map(|asked| asked.elapsed().as_secs_f64()),
            "periodSeconds": state.period.as_secs_f64(),
            "readsJobs": state.jobs.is_some(),
            "unconfirmedWrites": state.written.len(),
            "slurmctldStarted": state.started.map(|at| at.to_string()),
            "lastError": state.problem.as_ref().map(|(since, why)| json!({"since": since.to_string(), "text": why})),
        })
    }
}
