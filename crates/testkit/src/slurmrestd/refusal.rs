//! Errors of slurmctld, with its codes and texts.

use thiserror::Error;

/// An error of slurmctld.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{text}")]
pub struct Refusal {
    /// Slurm's error code.
    pub number: i32,
    /// Slurm's error text.
    pub text: &'static str,
}

impl Refusal {
    pub(super) const PARTITION: Self = Self { number: 2000, text: "Invalid partition name specified" };
    pub(super) const NODE_COUNT: Self = Self { number: 2006, text: "Node count specification invalid" };
    pub(super) const UNAVAILABLE: Self = Self { number: 2014, text: "Requested node configuration is not available" };
    pub(super) const NODES_BUSY: Self = Self { number: 2016, text: "Requested nodes are busy" };
    pub(super) const JOB_ID: Self = Self { number: 2017, text: "Invalid job id specified" };
    pub(super) const NODE_NAME: Self = Self { number: 2018, text: "Invalid node name specified" };
    pub(super) const ALREADY_DONE: Self = Self { number: 2021, text: "Job/step already completing or completed" };
    pub(super) const PENDING: Self = Self { number: 2024, text: "Job is pending execution" };
    pub(super) const NODE_STATE: Self = Self { number: 2028, text: "Invalid node state specified" };
    pub(super) const NODE_EXISTS: Self = Self { number: 2168, text: "Node already exists in the node table" };
    pub(super) const TOPOLOGY: Self = Self { number: 2178, text: "Requested topology configuration is not available" };
    pub(super) const TRANSITION: Self = Self { number: 2180, text: "Invalid node state transition" };
    pub(super) const UNSPECIFIED: Self = Self { number: -1, text: "Unspecified error" };
    pub(super) const DOWN: Self = Self { number: 1800, text: "Unable to contact slurm controller (connect failure)" };
    pub(super) const RESERVATION: Self = Self { number: 2053, text: "Requested reservation is invalid" };
    pub(super) const TIME: Self = Self { number: 2054, text: "Invalid time specified" };
    pub(super) const NOT_REQUEUABLE: Self = Self { number: 2037, text: "Requested operation is presently disabled" };
}
