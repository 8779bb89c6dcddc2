//! What the user wants, already validated.

use jiff::{SignedDuration, Timestamp};

use crate::engine::daemons::progress::Problem;

/// A set of like workers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent wishes")]
pub struct Model {
    /// Where the set lives.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
    /// What Slurm calls the set: the feature that all its workers have.
    pub slurm_name: String,
    /// How many workers there are.
    pub scaling: Scaling,
    /// What the workers are called.
    pub naming: Naming,
    /// On which Kubernetes nodes a worker may run.
    pub placement: Placement,
    /// Whether a worker comes back to the Kubernetes node where it ran.
    pub pins_to_node: bool,
    /// Whether two workers may share a Kubernetes node.
    pub oversubscribes: bool,
    /// Whether workers with jobs carry the label that the disruption budget selects.
    pub protects_workload: bool,
    /// For how long a worker must be ready before it counts.
    pub min_ready: SignedDuration,
    /// How workers with an old template are replaced.
    pub update: Update,
    /// How workers get rid of their jobs.
    pub drain: DrainPolicy,
    /// The names of the claim templates.
    pub claims: Vec<String>,
    /// What becomes of claims.
    pub retention: Retention,
    /// Whether the record of a vanished Kubernetes node goes even if an admin had drained it.
    pub prunes_records: bool,
    /// The hash of the newest template.
    pub revision: String,
    /// Whether anything is to be done at all.
    pub life: Life,
    /// Types of conditions of Kubernetes nodes that explain a cordon.
    pub propagated_conditions: Vec<String>,
    /// How many pods to create, and how many to delete, in one pass at most.
    pub burst: usize,
    /// Why no worker can be created or updated. Workers that run are protected, drained, counted and removed all the same.
    pub blocked: Option<Problem>,
}

/// How many pods one pass creates or deletes if nobody says: enough that what lies between two passes does not count, and few
/// enough that nothing else waits for long.
pub const DEFAULT_BURST: usize = 500;

/// How many workers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// A number of them.
    Numbered {
        /// How many.
        replicas: u32,
        /// How many digits their numbers have at least.
        padding: u8,
    },
    /// One on every Kubernetes node that fits.
    PerNode,
}

impl Scaling {
    /// The value of the label that tells it.
    pub const fn mode(self) -> Mode {
        match self {
            Self::Numbered { .. } => Mode::Numbered,
            Self::PerNode => Mode::PerNode,
        }
    }
}

/// How a worker came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// As one of a number.
    Numbered,
    /// For a Kubernetes node.
    PerNode,
}

impl Mode {
    /// As the label on worker pods says it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Numbered => "StatefulSet",
            Self::PerNode => "DaemonSet",
        }
    }

    /// What the label on a worker pod says.
    pub fn of_label(text: &str) -> Option<Self> {
        [Self::Numbered, Self::PerNode].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// What workers are called.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    /// What comes before the number in the hostname; the name of the set and a hyphen if not set.
    pub hostname_prefix: Option<String>,
    /// Whether workers share the network of their Kubernetes node, and so its name.
    pub host_network: bool,
}

/// On which Kubernetes nodes a worker may run.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Labels that the node must have.
    pub selector: Vec<(String, String)>,
    /// Any of these terms must match. `None` is no demand; an empty list matches nothing.
    pub terms: Option<Vec<Term>>,
    /// Taints that do not matter.
    pub tolerations: Vec<Toleration>,
}

/// A demand on a node: all of its parts must hold. Without parts it matches nothing.
#[derive(Clone, Debug, Default)]
pub struct Term {
    /// About labels.
    pub labels: Vec<Match>,
    /// About fields: only `metadata.name` exists.
    pub fields: Vec<Match>,
}

/// A demand on one label or field.
#[derive(Clone, Debug)]
pub struct Match {
    /// Which one.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`. Anything else matches nothing.
    pub operator: String,
    /// What it is compared with.
    pub values: Vec<String>,
}

/// A taint that does not matter.
#[derive(Clone, Debug, Default)]
pub struct Toleration {
    /// Which one; all of them if empty.
    pub key: String,
    /// `Exists`, or `Equal` as if empty.
    pub operator: String,
    /// With `Equal`: its value.
    pub value: String,
    /// Its effect; any if empty.
    pub effect: String,
}

/// How workers with an old template are replaced.
#[derive(Clone, Debug)]
pub enum Update {
    /// Some at a time.
    Rolling {
        /// How many may be out of service. Zero replaces none.
        max_unavailable: Budget,
    },
    /// When somebody deletes their pods.
    OnDelete,
    /// In a maintenance reservation of Slurm.
    Scheduled(Schedule),
}

/// A number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// As it is.
    Number(u32),
    /// A share of all, rounded up.
    Percent(u32),
}

impl Budget {
    /// How many of `total`.
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
    /// When it starts.
    pub start: Timestamp,
    /// How many minutes it lasts.
    pub minutes: u32,
    /// Its flags beside those that we need, in capitals.
    pub flags: Vec<String>,
}

/// How workers get rid of their jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainPolicy {
    /// How long jobs may go on. For ever if not set.
    pub timeout: Option<SignedDuration>,
    /// What happens to them then.
    pub on_timeout: OnTimeout,
    /// Whether workers are drained also when the whole set goes.
    pub on_delete: bool,
}

/// What happens to jobs that outlast a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// Nothing.
    #[default]
    Wait,
    /// They go back into the queue.
    Requeue,
    /// They end.
    Kill,
}

/// When claims are deleted. Otherwise they stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// With the whole set.
    pub with_set: bool,
    /// With their worker, when fewer are wanted.
    pub with_scale: bool,
}

/// Whether anything is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// Everything.
    #[default]
    Active,
    /// A user said: nothing. What is seen is still told.
    Paused,
    /// The set is being deleted.
    Deleted,
}
