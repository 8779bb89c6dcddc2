//! Storage of daemons.

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;

/// Storage for slurmctld's state.
#[derive(Clone, Debug, PartialEq)]
pub enum StateVolume<'a> {
    /// A volume that is deleted with the pod.
    Scratch,
    /// An existing claim.
    Existing(&'a str),
    /// A claim that the operator creates.
    Claim(Box<PersistentVolumeClaimSpec>),
}
