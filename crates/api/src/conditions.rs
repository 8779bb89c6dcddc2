//! The vocabulary of conditions. Every kind has the first three, and at most two of its own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Whether the object does its job now.
pub const READY: &str = "Ready";

/// Whether the operator is still bringing the object to what its spec asks for.
pub const PROGRESSING: &str = "Progressing";

/// Whether something needs a human: it will not get better by waiting.
pub const DEGRADED: &str = "Degraded";

/// On a Controller: whether the operator sees into Slurm through its REST API.
pub const SLURM_REACHABLE: &str = "SlurmReachable";

/// On a NodeSet: whether Slurm holds the reservation of its scheduled update.
pub const RESERVATION_CREATED: &str = "ReservationCreated";

/// Starts the type of every condition of a worker pod that tells the state of its Slurm node.
pub const POD_PREFIX: &str = "SlurmNodeState";

/// Why a condition has its status. Kinds may have reasons of their own beside these.
pub mod reason {
    /// Nothing to tell: all is as the spec asks for.
    pub const AS_EXPECTED: &str = "AsExpected";
    /// The spec contradicts itself or what it refers to.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// An object that the spec names does not exist, or lacks the key.
    pub const REFERENCE_MISSING: &str = "ReferenceMissing";
    /// Kubernetes or Slurm refused something that the operator tried.
    pub const STEP_FAILED: &str = "StepFailed";
    /// Pods are not ready yet.
    pub const PODS_NOT_READY: &str = "PodsNotReady";
    /// slurmctld or slurmrestd does not answer.
    pub const SLURM_UNREACHABLE: &str = "SlurmUnreachable";
    /// This version of Slurm cannot do what the spec asks for.
    pub const SLURM_TOO_OLD: &str = "SlurmTooOld";
    /// Workers are being added or removed.
    pub const SCALING: &str = "Scaling";
    /// Pods are being replaced by newer ones.
    pub const UPDATING: &str = "Updating";
    /// Workers wait for their jobs to end.
    pub const DRAINING: &str = "Draining";
    /// A user told the operator to leave the object alone.
    pub const PAUSED: &str = "Paused";
    /// The reservation is there.
    pub const CREATED: &str = "Created";
    /// The reservation is gone.
    pub const NOT_EXISTS: &str = "NotExists";
}

/// The condition of a type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of a type is there and true.
#[must_use]
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn only_true_is_true() {
        let condition = |type_: &str, status: &str| Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason::AS_EXPECTED.into(),
            message: String::new(),
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            observed_generation: Some(1),
        };
        let conditions = [condition(READY, "True"), condition(DEGRADED, "False"), condition(PROGRESSING, "Unknown")];
        let truth = [READY, DEGRADED, PROGRESSING, SLURM_REACHABLE].map(|type_| is_true(&conditions, type_));
        assert_eq!(truth, [true, false, false, false]);
        assert_eq!(find(&conditions, DEGRADED).map(|condition| condition.status.as_str()), Some("False"));
    }
}
