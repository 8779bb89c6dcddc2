//! The facts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use slurm::{
    states::{NodeState, NodeStates},
    version::SlurmVersion,
};
use slurm_operator_api::names::REASON_PREFIX;

use super::model::Mode;

/// Everything that a decision needs. Nothing of it is cloned.
#[derive(Debug, Default)]
pub struct Facts {
    /// The pods that the set owns, in any order.
    pub workers: Vec<Arc<Worker>>,
    /// Names of pods that we created and that `workers` does not show yet.
    pub creating: BTreeSet<String>,
    /// All Kubernetes nodes.
    pub nodes: BTreeMap<String, Arc<KubeNode>>,
    /// What is known of Slurm.
    pub slurm: SlurmObservation,
    /// All claims with the labels of the set, by name.
    pub claims: BTreeMap<String, Claim>,
    /// What the last status says.
    pub recall: Recall,
    /// Whether a set that is being deleted must not wait: its cluster is gone, or its namespace is going.
    pub yields: bool,
}

/// A worker pod.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub struct Worker {
    /// What it is called.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
    /// In which state.
    pub resource_version: String,
    /// The Kubernetes node where it runs.
    pub node: Option<String>,
    /// The Kubernetes node that its affinity names: where it will run.
    pub target: Option<String>,
    /// spec.hostname
    pub hostname: Option<String>,
    /// Whether it shares the network of its Kubernetes node.
    pub host_network: bool,
    /// Its phase.
    pub phase: Phase,
    /// Since when it is ready, if it is.
    pub ready: Option<Timestamp>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted, or we have asked for that and do not see it yet.
    pub terminating: bool,
    /// Whether our last write to it is not visible yet. Nothing is written to it until then.
    pub pending: bool,
    /// Whether slurmd runs.
    pub slurmd: SlurmdState,
    /// Why a container does not start, as the kubelet says it.
    pub problem: Option<String>,
    /// The label that tells how it came to be. Without it, it counts as numbered.
    pub mode: Option<Mode>,
    /// The label with its number.
    pub index: Option<String>,
    /// The label with its template's hash.
    pub revision: Option<String>,
    /// Whether it has the label that protects it.
    pub protected: bool,
    /// Who asked for its drain.
    pub cordon: Cordon,
    /// The annotation with its deletion cost, as it stands there.
    pub deletion_cost: Option<String>,
    /// The annotation with the end of its jobs, as it stands there.
    pub deadline: Option<String>,
    /// The annotation with its place in the topology.
    pub topology: Option<String>,
    /// Its true conditions that tell the state of its Slurm node: type and message.
    pub conditions: BTreeMap<String, String>,
}

impl Worker {
    /// How it came to be.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(Mode::Numbered)
    }

    /// The name of its Slurm node; not known before it has a Kubernetes node if it takes that one's name.
    pub fn slurm_node(&self) -> Option<&str> {
        let hostname = self.hostname.as_deref().filter(|hostname| !hostname.is_empty());
        match self.mode() {
            Mode::Numbered if self.host_network => self.node.as_deref(),
            Mode::Numbered => hostname.or(Some(&self.name)),
            Mode::PerNode => hostname,
        }
    }

    /// Whether Slurm has known it: the conditions that we write are never all taken away.
    pub fn has_registered(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Where it runs, or will.
    pub fn home(&self) -> Option<&str> {
        self.node.as_deref().or(self.target.as_deref())
    }

    /// Whether it is ready for at least so long.
    pub fn is_available(&self, min_ready: SignedDuration, now: Timestamp) -> bool {
        self.ready.is_some_and(|since| now.duration_since(since) >= min_ready) && self.is_healthy()
    }

    /// Whether it runs and is ready.
    pub fn is_healthy(&self) -> bool {
        self.phase == Phase::Running && self.ready.is_some() && !self.terminating
    }
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have started.
    #[default]
    Pending,
    /// It runs.
    Running,
    /// It ended well.
    Succeeded,
    /// It ended.
    Failed,
    /// Nobody knows.
    Unknown,
}

impl Phase {
    /// Whether no container will ever run again.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// Whether slurmd runs in a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlurmdState {
    /// It runs.
    Running {
        /// Since when.
        since: Option<Timestamp>,
    },
    /// Its container does not run: there is no job.
    #[default]
    Stopped,
    /// The pod does not tell.
    Unknown,
}

/// Who asked for the drain of a worker, by an annotation of its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cordon {
    /// Nobody.
    #[default]
    None,
    /// A user: it stays until the user takes it back.
    User,
    /// The Go operator, which used the annotation for its own purposes.
    Operator,
}

/// A Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubeNode {
    /// What it is called.
    pub name: String,
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations, at least those that [`slurm_operator_api::names::annotation`] knows.
    pub annotations: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Whether its kubelet is well.
    pub ready: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its true conditions.
    pub conditions: Vec<NodeCondition>,
}

/// A true condition of a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeCondition {
    /// Its type.
    pub type_: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// What keeps pods from a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `NoSchedule`, `NoExecute` or `PreferNoSchedule`.
    pub effect: String,
}

/// What is known of Slurm.
#[derive(Clone, Debug)]
pub enum SlurmObservation {
    /// There is no way to ask it.
    NoClient {
        /// Why, for humans.
        why: String,
    },
    /// It does not answer.
    Blind {
        /// Since when.
        since: Timestamp,
        /// Why, for humans.
        why: String,
    },
    /// It answered.
    Clear(Arc<Snapshot>),
}

impl Default for SlurmObservation {
    fn default() -> Self {
        Self::NoClient { why: String::new() }
    }
}

/// What Slurm answered.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// All nodes of the cluster, by name.
    pub nodes: Arc<HashMap<String, SlurmNode>>,
    /// When the list was asked for.
    pub read_at: Timestamp,
    /// How often it is asked for.
    pub period: SignedDuration,
    /// When slurmctld started.
    pub ctld_started: Option<Timestamp>,
    /// Which Slurm it is.
    pub version: Option<SlurmVersion>,
    /// Nodes that were written to, or may have been, after the list was asked for: what it says of them may be old.
    pub pending: HashMap<String, Written>,
    /// The jobs that run.
    pub jobs: Jobs,
    /// All reservations by name; `None` if they were not read.
    pub reservations: Option<Arc<HashMap<String, Reservation>>>,
}

/// What was last written to a Slurm node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// A drain.
    Drain {
        /// Its whole reason.
        reason: String,
    },
    /// Anything else.
    Other,
}

/// The running jobs.
#[derive(Clone, Debug, Default)]
pub enum Jobs {
    /// Nobody has asked. A plan that needs them says so, and makes no choice between busy workers before.
    Unread,
    /// They cannot be had: decide without.
    #[default]
    Unavailable,
    /// By Slurm node.
    Read(Arc<HashMap<String, Vec<Job>>>),
}

/// A running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: u32,
    /// When it will have ended at the latest, if there is a limit.
    pub ends: Option<Timestamp>,
    /// Whether it is already on its way out.
    pub is_ending: bool,
}

/// A node of Slurm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlurmNode {
    /// Its state.
    pub states: NodeStates,
    /// Why it is out of service, or was.
    pub reason: String,
    /// Since when that is the reason.
    pub reason_since: Option<Timestamp>,
    /// Free text.
    pub comment: String,
    /// The features it can have.
    pub features: Vec<String>,
    /// The features it has.
    pub active_features: Vec<String>,
    /// Its place in the topology.
    pub topology: String,
    /// The reservation that holds it.
    pub reservation: String,
}

/// What slurmctld says of a node that it gave up.
const SILENT: &str = "Not responding";

/// Who took a Slurm node out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody. A reason that is left from earlier times means nothing.
    Free,
    /// We did.
    Ours,
    /// Somebody else: it is theirs to bring it back.
    Foreign,
}

impl SlurmNode {
    /// Who took it out of service. Every drain of ours has a reason, so one without is not ours.
    pub fn hold(&self) -> Hold {
        let is_drain = self.states.is_drain();
        let is_out = is_drain || self.states.is_down() || self.states.has(NodeState::Fail);
        if !is_out || (self.reason.is_empty() && !is_drain) {
            Hold::Free
        } else if self.reason.starts_with(REASON_PREFIX) || (is_drain && self.reason == SILENT) {
            // These words stand next to a drain only where we added the drain and kept them.
            Hold::Ours
        } else {
            Hold::Foreign
        }
    }

    /// Whether it is down in slurmctld's own words, and nobody else's.
    pub fn is_given_up(&self) -> bool {
        self.states.is_down() && self.reason == SILENT
    }

    /// Whether slurmctld gave it up because its slurmd is silent.
    pub fn is_unresponsive(&self) -> bool {
        self.states.is_down_unresponsive(&self.reason)
    }
}

/// A reservation of Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Its nodes, as a host list.
    pub nodes: String,
    /// Its flags.
    pub flags: Vec<String>,
    /// When it starts.
    pub start: Option<Timestamp>,
    /// When it ends.
    pub end: Option<Timestamp>,
}

/// A claim of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Which one of its name.
    pub uid: String,
    /// The UIDs of its owners.
    pub owners: Vec<String>,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// What the last status says.
#[derive(Clone, Debug, Default)]
pub struct Recall {
    /// The Kubernetes node of each worker that is bound to one.
    pub pinned: BTreeMap<u32, String>,
    /// What Slurm said last.
    pub slurm: SlurmCounts,
    /// The template that all workers had before the running update.
    pub current: Option<String>,
}

/// How many workers Slurm counts how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlurmCounts {
    /// They are known.
    pub registered: u32,
    /// They run no job.
    pub idle: u32,
    /// They run jobs.
    pub allocated: u32,
    /// They are down.
    pub down: u32,
    /// They take no new jobs.
    pub drain: u32,
}
