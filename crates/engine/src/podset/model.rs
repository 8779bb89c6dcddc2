//! The desired state, already validated.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use slurm_operator_api::common::vocabulary::Vocabulary;

use crate::daemons::progress::Problem;

/// The desired state of a set of workers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
pub struct Model {
    /// The words of the API group of the set.
    pub vocabulary: &'static Vocabulary,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The name of the set in Slurm: the feature that all its workers have.
    pub slurm_name: String,
    pub scaling: Scaling,
    pub registration: Registration,
    pub naming: Naming,
    /// The Kubernetes nodes on which a worker may run.
    pub placement: Placement,
    /// Whether a recreated worker must run on the same Kubernetes node as before.
    pub pins_to_node: bool,
    /// Whether two workers may share a Kubernetes node.
    pub oversubscribes: bool,
    /// Whether workers with jobs get the label that the `PodDisruptionBudget` selects.
    pub protects_workload: bool,
    /// How long a worker must be ready before it is available.
    pub min_ready: SignedDuration,
    pub update: Update,
    pub drain: DrainPolicy,
    /// Names of the claim templates.
    pub claims: Vec<String>,
    pub retention: Retention,
    /// Whether the Slurm node of a worker is deleted with its Kubernetes node even if an admin drained it.
    pub prunes_records: bool,
    /// Whether a worker that slurmctld set down because it was rebooted is resumed when it is ready again.
    pub resumes_rebooted: bool,
    /// The hash of the current template.
    pub revision: String,
    /// Whether workers that do not read the key ring are replaced: the key of the cluster is to be changed.
    pub needs_key_ring: bool,
    pub life: Life,
    /// Types of Kubernetes node conditions that are copied into the reason of a drain after a cordon.
    pub propagated_conditions: Vec<String>,
    /// Maximum number of pods to create, and to delete, in one pass.
    pub burst: usize,
    /// The generic resources that a worker of the current template holds, if any.
    pub gres: Option<HeldGres>,
    /// Why no worker can be created or updated. Existing workers are still protected, drained, counted and removed.
    pub blocked: Option<Problem>,
}

/// The generic resources of Slurm that a worker holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldGres {
    /// Counts by name, such as `gpu`.
    pub counts: BTreeMap<String, u64>,
    /// What to do if Slurm has others.
    pub advice: String,
}

/// Default burst: large enough that the time between two passes does not matter, and small enough that other work does not
/// wait long.
pub const DEFAULT_BURST: usize = 500;

/// How the number of workers is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Workers with ordinals.
    Numbered {
        ordinals: Ordinals,
        /// Minimum number of digits of the ordinals.
        padding: u8,
        removal: RemovalOrder,
    },
    /// One worker on each matching Kubernetes node.
    PerNode,
}

/// Which ordinals a set should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordinals {
    /// This many: new workers get the lowest ones that are free, and any may be removed.
    Count(u32),
}

/// Which workers are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalOrder {
    /// Those whose removal costs least: not running, idle, with jobs that end soon.
    Cheapest,
}

/// How workers get their record in Slurm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// slurmd creates it when it registers, and the operator deletes it with the worker.
    #[default]
    Dynamic,
}

impl Scaling {
    pub const fn mode(self) -> Mode {
        match self {
            Self::Numbered { .. } => Mode::Numbered,
            Self::PerNode => Mode::PerNode,
        }
    }
}

/// The scaling mode that a worker was created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Numbered,
    PerNode,
}

impl Mode {
    /// The label value on worker pods.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Numbered => "StatefulSet",
            Self::PerNode => "DaemonSet",
        }
    }

    /// Parses the label value of a worker pod.
    pub fn of_label(text: &str) -> Option<Self> {
        [Self::Numbered, Self::PerNode].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// How workers are named.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    /// The hostname before the ordinal; by default the name of the set and a hyphen.
    pub hostname_prefix: Option<String>,
    /// Whether workers use the host network, and so the hostname of their Kubernetes node.
    pub host_network: bool,
}

/// Scheduling constraints of a worker.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// `nodeSelector`
    pub selector: Vec<(String, String)>,
    /// Required node affinity terms; any of them must match. `None` is no constraint; an empty list matches nothing.
    pub terms: Option<Vec<Term>>,
    pub tolerations: Vec<Toleration>,
}

/// A node selector term: all of its requirements must match. An empty term matches nothing.
#[derive(Clone, Debug, Default)]
pub struct Term {
    /// `matchExpressions`
    pub labels: Vec<Match>,
    /// `matchFields`: only `metadata.name` exists.
    pub fields: Vec<Match>,
}

/// A requirement on one label or field.
#[derive(Clone, Debug)]
pub struct Match {
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`. Anything else matches nothing.
    pub operator: String,
    pub values: Vec<String>,
}

/// A toleration of a pod.
#[derive(Clone, Debug, Default)]
pub struct Toleration {
    /// Empty matches all keys.
    pub key: String,
    /// `Exists` or `Equal`; empty is `Equal`.
    pub operator: String,
    /// Used only with `Equal`.
    pub value: String,
    /// Empty matches all effects.
    pub effect: String,
}

/// How outdated workers are replaced.
#[derive(Clone, Debug)]
pub enum Update {
    /// Automatically, within a budget.
    Rolling {
        /// How many workers may be out of service. Zero stops the update.
        max_unavailable: Budget,
    },
    /// When a user deletes the pod.
    OnDelete,
    /// In a Slurm maintenance reservation.
    Scheduled(Schedule),
}

/// A number or percentage of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    Number(u32),
    /// Rounded up.
    Percent(u32),
}

impl Budget {
    /// The number of workers out of `total`.
    pub fn of(self, total: u32) -> u32 {
        match self {
            Self::Number(number) => number,
            Self::Percent(percent) => {
                let share = (u64::from(percent) * u64::from(total)).div_ceil(100);
                u32::try_from(share).unwrap_or(u32::MAX)
            }
        }
    }
}

/// A maintenance reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub start: Timestamp,
    pub minutes: u32,
    /// Extra flags in upper case, added to the required ones.
    pub flags: Vec<String>,
}

/// How workers are drained.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainPolicy {
    /// How long jobs may keep running. `None` is unlimited.
    pub timeout: Option<SignedDuration>,
    pub on_timeout: OnTimeout,
    /// Whether workers are also drained when the set is deleted.
    pub on_delete: bool,
}

/// What to do with jobs that are still running after the drain timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// Let them run.
    #[default]
    Wait,
    Requeue,
    /// Cancel them.
    Kill,
}

/// When claims are deleted. Otherwise they are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// When the set is deleted.
    pub with_set: bool,
    /// When their worker is removed by a scale-in.
    pub with_scale: bool,
}

/// Whether the set is active, paused or being deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Active,
    /// Paused by the user; the status and pod metadata are still updated.
    Paused,
    /// The set is being deleted.
    Deleted,
}
