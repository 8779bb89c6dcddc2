//! What slurmrestd says and is told, as plain data: one shape for all REST versions from v0.0.41 to v0.0.46.
//!
//! Decoding forgives what Slurm has changed between versions or may change next (fields that come or go, unknown state
//! words, numbers with or without their `{set, infinite, number}`), and nothing else: what is missing where it matters
//! is an error, not an empty list.

mod accounting;
mod conf;
mod diag;
mod envelope;
mod fields;
mod job;
mod job_metrics;
mod job_spec;
mod meta;
mod node;
mod node_update;
mod noval;
mod partition;
mod ping;
mod reservation;

pub use accounting::{Account, AccountedJob, Cluster, ClusterController, Qos, Tres, User, UserDefaults};
pub use conf::{Conf, ConfAnswer};
pub use diag::{Diag, DiagAnswer, RpcByType, RpcByUser};
pub use envelope::{Body, DecodeError, Envelope, Listing, Nothing, Record, Records, decode};
pub use job::{
    ExitCode, Job, JobBrief, JobId, JobStateEntry, NotAJobId, StepError, StepStatus, StepStatuses, SubmitAnswer,
    Submitted,
};
pub use job_metrics::{AccountedJobMetrics, JobMetrics};
pub use job_spec::{JobSpec, Signal};
pub use meta::{ErrorEntry, Meta, Warning};
pub use node::{Node, NodeBrief, NodeMetrics};
pub use node_update::NodeUpdate;
pub use noval::NoVal;
pub use partition::Partition;
pub use ping::Ping;
pub use reservation::{Reservation, ReservationSpec};
