//! The observed state: pods, Kubernetes nodes, claims and Slurm.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use slurm::{
    states::{NodeState, NodeStates},
    version::SlurmVersion,
};
use slurm_operator_api::common::vocabulary::{AUTOSCALERS, Vocabulary};

use super::{
    identity::hostname_on,
    model::{Mode, Placement},
    placement::fits,
};
use crate::plan::ObjectVersion;

/// The observed state that a decision depends on. Shared with the stores, not cloned.
#[derive(Debug, Default)]
pub struct Facts {
    /// The pods that the set owns, in any order.
    pub workers: Vec<Arc<Worker>>,
    /// Pods with the labels of the set and without an owner.
    pub orphans: Vec<Arc<Worker>>,
    /// Pods of the set that have lost the label by which workers are found.
    pub lost: Vec<ObjectVersion>,
    /// The revisions that pods of the set may have.
    pub known_revisions: BTreeSet<String>,
    /// Names of pods that we created and that are not in `workers` yet.
    pub creating: BTreeSet<String>,
    /// All Kubernetes nodes.
    pub nodes: BTreeMap<String, Arc<KubeNode>>,
    pub slurm: SlurmObservation,
    /// All claims with the labels of the set, by name.
    pub claims: BTreeMap<String, Claim>,
    /// The other sets of the Slurm cluster.
    pub others: Vec<OtherSet>,
    /// The last attempts to make a worker register again, by UID of the pod.
    pub attempts: HashMap<String, Attempt>,
    pub recall: Recall,
    /// Whether the set has the finalizer of its reservation, so that the reservation must be looked for.
    pub may_be_reserved: bool,
    /// Whether a deleted set must not wait for Slurm: its cluster is gone, or its namespace is being deleted.
    pub yields: bool,
}

/// Another set of workers in the same Slurm cluster, where every node name must be unique.
#[derive(Clone, Debug, Default)]
pub struct OtherSet {
    pub name: String,
    /// The name of its Slurm NodeSet, which must not be the name of a node.
    pub slurm_name: String,
    pub workers: Vec<Arc<Worker>>,
    /// The node names that it will use, if it was created before our set: of two that are created together, one must wait.
    pub reserved: Option<Reserved>,
    /// Whether it has created workers that are not among `workers` yet.
    pub is_creating: bool,
}

/// Node names that a set will use.
#[derive(Clone, Debug)]
pub enum Reserved {
    /// A prefix and the number of workers.
    Numbered { prefix: String, count: u32 },
    /// The names of the Kubernetes nodes that its workers fit.
    PerNode(Placement),
}

impl OtherSet {
    /// Whether it will have this node name, because its workers are numbered.
    pub(super) fn will_have(&self, name: &str) -> bool {
        let Some(Reserved::Numbered { prefix, count }) = &self.reserved else { return false };
        let ordinal = name.strip_prefix(prefix.as_str()).and_then(|rest| rest.parse::<u32>().ok());
        ordinal.is_some_and(|ordinal| ordinal < *count)
    }

    /// The node names that it will have, because it has one worker on each Kubernetes node.
    pub(super) fn names_on<'a>(
        &self,
        vocabulary: &Vocabulary,
        nodes: &'a BTreeMap<String, Arc<KubeNode>>,
    ) -> HashSet<&'a str> {
        let Some(Reserved::PerNode(placement)) = &self.reserved else { return HashSet::new() };
        let fitting = nodes.values().filter(|node| fits(vocabulary, placement, false, node).runs);
        fitting.map(|node| hostname_on(vocabulary, node)).collect()
    }

    /// The worker with this node name.
    pub(super) fn worker(&self, name: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.slurm_node() == Some(name)).map(AsRef::as_ref)
    }
}

/// A worker pod.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Worker {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The Kubernetes node where it runs.
    pub node: Option<String>,
    /// The Kubernetes node required by its affinity: where it will run.
    pub target: Option<String>,
    /// `spec.hostname`
    pub hostname: Option<String>,
    pub host_network: bool,
    pub phase: Phase,
    /// When it became ready; `None` if it is not ready.
    pub ready: Option<Timestamp>,
    pub created: Option<Timestamp>,
    /// Whether it is being deleted, or we deleted it and the watch does not show it yet.
    pub terminating: bool,
    /// Whether our last write is not visible in the watch yet. Nothing is written to the pod until then.
    pub pending: bool,
    pub slurmd: SlurmdState,
    /// Why a container does not start, as reported by the kubelet.
    pub problem: Option<String>,
    /// The scaling mode label. A pod without it counts as numbered.
    pub mode: Option<Mode>,
    /// The pod index label.
    pub index: Option<String>,
    /// The revision label: the hash of its template.
    pub revision: Option<String>,
    /// Whether it reads Slurm's keys from a key ring.
    pub has_key_ring: bool,
    /// The cluster label: the name of the object whose Slurm cluster it joined.
    pub cluster: Option<String>,
    /// Labels that every worker has and that somebody removed. Never those by which it is found.
    pub missing_labels: Vec<&'static str>,
    /// Whether it has the label that the `PodDisruptionBudget` selects.
    pub protected: bool,
    /// Who set the cordon annotation.
    pub cordon: Cordon,
    /// Whether the former operator of the cluster has made it, and this one has not taken it over yet.
    pub is_of_former: bool,
    /// Who set the annotations of [`AUTOSCALERS`], in that order.
    pub autoscalers: [SetBy; AUTOSCALERS.len()],
    /// The deletion cost annotation, not parsed.
    pub deletion_cost: Option<String>,
    /// The deadline annotation (end of the last job), not parsed.
    pub deadline: Option<String>,
    /// The topology annotation.
    pub topology: Option<String>,
    /// Its true Slurm node state conditions: type and message.
    pub conditions: BTreeMap<String, String>,
}

impl Worker {
    /// The scaling mode, numbered by default.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(Mode::Numbered)
    }

    /// The name of its Slurm node; `None` if that is the name of its Kubernetes node and it is not scheduled yet.
    pub fn slurm_node(&self) -> Option<&str> {
        let hostname = self.hostname.as_deref().filter(|hostname| !hostname.is_empty());
        match self.mode() {
            Mode::Numbered if self.host_network => self.node.as_deref(),
            Mode::Numbered => hostname.or(Some(&self.name)),
            Mode::PerNode => hostname,
        }
    }

    /// Whether it was ever registered in Slurm: the conditions that we set are never all removed.
    pub fn has_registered(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// The Kubernetes node where it runs or will run.
    pub fn home(&self) -> Option<&str> {
        self.node.as_deref().or(self.target.as_deref())
    }

    /// Whether it has been ready for at least `min_ready`.
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
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    /// Whether the pod has terminated for good.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// Whether slurmd is running in a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlurmdState {
    Running {
        since: Option<Timestamp>,
    },
    /// The container is not running, so it has no jobs.
    #[default]
    Stopped,
    /// The pod status has no container state.
    Unknown,
}

/// An attempt to make the slurmd of a worker register again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub at: Timestamp,
    pub result: AttemptResult,
}

/// The result of an attempt to make a slurmd register again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// slurmd was told to.
    Asked,
    /// Steps of jobs run there. slurmctld would end those that it does not know, so slurmd was left alone.
    HasSteps,
    /// slurmd could not be told to; the text says why.
    Failed(String),
}

/// Who set an annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetBy {
    /// It is not set.
    #[default]
    Unset,
    Operator,
    /// A user, or another program.
    Other,
}

/// Who set the cordon annotation of a pod, which asks for a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cordon {
    #[default]
    None,
    /// A user: the drain lasts until the user removes the annotation.
    User,
    /// A program that calls itself as the Go operator does, which used the annotation for its own purposes.
    Operator,
    /// This operator, to show that the Kubernetes node is cordoned.
    Node,
}

/// A Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubeNode {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// At least those that are used for planning.
    pub annotations: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    /// Its Ready condition.
    pub ready: bool,
    pub deleting: bool,
    /// Only the conditions with status True.
    pub conditions: Vec<NodeCondition>,
}

/// A true condition of a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeCondition {
    pub type_: String,
    pub reason: String,
    pub message: String,
}

/// A taint of a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    /// `NoSchedule`, `NoExecute` or `PreferNoSchedule`.
    pub effect: String,
}

/// The last observation of Slurm.
#[derive(Clone, Debug)]
pub enum SlurmObservation {
    /// Slurm has not been read yet, or there is no cluster to read.
    NoClient { why: String },
    /// slurmrestd does not answer.
    Blind { since: Timestamp, why: String },
    /// The last answer.
    Clear(Arc<Snapshot>),
}

impl Default for SlurmObservation {
    fn default() -> Self {
        Self::NoClient { why: String::new() }
    }
}

/// The state of a Slurm cluster.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// All nodes of the cluster, by name.
    pub nodes: Arc<HashMap<String, SlurmNode>>,
    /// When the node list was requested.
    pub read_at: Timestamp,
    /// The polling interval.
    pub period: SignedDuration,
    /// When slurmctld started, by our clock.
    pub ctld_started: Option<Timestamp>,
    /// How far slurmctld's clock is ahead of ours; `None` if unknown. The times of nodes and jobs are slurmctld's.
    pub clock_ahead: Option<SignedDuration>,
    pub version: Option<SlurmVersion>,
    /// Nodes that were, or may have been, written to after the list was requested: their entries may be out of date.
    pub pending: HashMap<String, Written>,
    pub jobs: Jobs,
    /// All reservations by name; `None` if they were not read.
    pub reservations: Option<Arc<HashMap<String, Reservation>>>,
}

/// The last write to a Slurm node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    Drain { reason: String },
    Other,
}

/// The jobs that have not ended.
#[derive(Clone, Debug, Default)]
pub enum Jobs {
    /// Not requested. A plan that needs them sets `needs_jobs`, and waits until they are read.
    #[default]
    Unread,
    Read(JobList),
}

impl Jobs {
    /// The jobs, if they were read.
    pub fn read(&self) -> Option<&JobIndex> {
        match self {
            Self::Unread => None,
            Self::Read(list) => Some(&list.jobs),
        }
    }
}

/// The jobs, and when they were read.
#[derive(Clone, Debug, Default)]
pub struct JobList {
    pub jobs: Arc<JobIndex>,
    /// The Slurm nodes as they were just before the jobs were requested. A job list is large, so it may be older than the
    /// list of nodes.
    pub nodes: Arc<HashMap<String, SlurmNode>>,
}

/// The jobs that have not ended, by what they use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobIndex {
    /// By Slurm node: running, suspended and completing jobs.
    pub by_node: HashMap<String, Vec<Job>>,
    /// Slurm nodes that jobs ask for by name. slurmctld ends such a job if it does not know the node when it starts or rereads
    /// its configuration.
    pub named_nodes: HashSet<String>,
    /// The number of jobs by partition.
    pub by_partition: BTreeMap<String, usize>,
    /// Jobs that hold nodes and whose steps slurmd manages.
    pub step_managers: BTreeSet<u32>,
}

impl JobIndex {
    /// Running, suspended and completing jobs on a Slurm node.
    pub fn on(&self, node: &str) -> &[Job] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// Whether a job runs on this node or asks for it.
    pub fn names(&self, node: &str) -> bool {
        self.by_node.contains_key(node) || self.named_nodes.contains(node)
    }
}

/// A job that holds nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: u32,
    /// When it ends at the latest; `None` without a time limit.
    pub ends: Option<Timestamp>,
    /// Whether it is already completing.
    pub is_ending: bool,
}

/// A Slurm node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlurmNode {
    pub states: NodeStates,
    /// Why it is, or was, out of service.
    pub reason: String,
    /// When the reason was set.
    pub reason_since: Option<Timestamp>,
    pub comment: String,
    /// Available features.
    pub features: Vec<String>,
    /// Active features.
    pub active_features: Vec<String>,
    pub topology: String,
    /// The reservations that include it, separated by commas.
    pub reservation: String,
    /// Generic resources, as in `gpu:8(S:0-1)`.
    pub gres: Box<str>,
    /// When its slurmd started, by its own clock; `None` until it registers.
    pub slurmd_started: Option<Timestamp>,
    /// The release of its slurmd, if it is known.
    pub version: Option<SlurmVersion>,
}

/// The reason that slurmctld sets on a node that does not respond.
const SILENT: &str = "Not responding";

/// slurmctld's reason for a node that was rebooted before slurmctld noticed that it did not respond.
const REBOOTED: &str = "Node unexpectedly rebooted";

/// Between a reason and what slurmctld appends to it.
const APPENDED: &str = " : ";

/// A reason without what slurmctld has appended to it.
pub(super) fn original(reason: &str) -> &str {
    reason.split(APPENDED).next().unwrap_or(reason)
}

/// Who took a Slurm node out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// In service. A leftover reason has no meaning.
    Free,
    /// The operator.
    Ours,
    /// An admin or another program, which must also resume it.
    Foreign,
}

impl SlurmNode {
    /// Who took it out of service. All our drains have a reason, so a drain without a reason is not ours.
    pub fn hold(&self, vocabulary: &Vocabulary) -> Hold {
        let is_drain = self.states.is_drain();
        let is_out = is_drain || self.states.is_down() || self.states.has(NodeState::Fail);
        if !is_out || (self.reason.is_empty() && !is_drain) {
            Hold::Free
        } else if self.reason.starts_with(vocabulary.reason_prefix) || (is_drain && self.reason == SILENT) {
            // This reason with a drain means that we added the drain and kept slurmctld's reason.
            Hold::Ours
        } else {
            Hold::Foreign
        }
    }

    /// Whether it is down only because slurmctld found that it did not respond. slurmctld appends its words to a reason
    /// that is left from before: one of ours, or, without a drain, one of a drain that has ended.
    pub fn is_given_up(&self, vocabulary: &Vocabulary) -> bool {
        let is_over = |before: &str| before.starts_with(vocabulary.reason_prefix) || !self.states.is_drain();
        let is_slurmctlds = |before: &str| before.is_empty() || before.strip_suffix(APPENDED).is_some_and(is_over);
        self.states.is_down() && self.reason.strip_suffix(SILENT).is_some_and(is_slurmctlds)
    }

    /// Whether slurmctld set it down because its slurmd registered with a new boot time.
    pub fn is_rebooted(&self) -> bool {
        self.states.is_down() && self.reason == REBOOTED
    }

    /// Whether slurmctld itself has drained it because of its generic resources. That is no decision of an admin, and a new record
    /// is needed: this one keeps the resources that slurmctld believed in.
    pub fn is_refused(&self) -> bool {
        self.states.is_drain() && self.reason.starts_with("gres/")
    }

    /// Whether slurmctld set it down because its slurmd does not respond.
    pub fn is_unresponsive(&self) -> bool {
        self.states.is_down_unresponsive(&self.reason)
    }
}

/// A Slurm reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// A host list.
    pub nodes: String,
    pub flags: Vec<String>,
    pub start: Option<Timestamp>,
    pub end: Option<Timestamp>,
}

/// The `PersistentVolumeClaim` of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub object: ObjectVersion,
    pub owners: Vec<OwnerReference>,
    pub deleting: bool,
}

/// State that is kept in the status of the set.
#[derive(Clone, Debug, Default)]
pub struct Recall {
    /// The Kubernetes node of each pinned worker, by ordinal.
    pub pinned: BTreeMap<u32, String>,
    /// The last counts from Slurm.
    pub slurm: SlurmCounts,
    /// The revision that all workers had before the current update.
    pub current: Option<String>,
}

/// Worker counts by Slurm node state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlurmCounts {
    pub registered: u32,
    pub idle: u32,
    /// Allocated or mixed.
    pub allocated: u32,
    pub down: u32,
    pub drain: u32,
}
