//! Condition types and reasons. Every kind has the first three types and a few more.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Whether the object works now.
pub const READY: &str = "Ready";

/// Whether the operator is still applying the spec.
pub const PROGRESSING: &str = "Progressing";

/// Whether there is a problem that needs user action: waiting does not solve it.
pub const DEGRADED: &str = "Degraded";

/// On a Controller: whether the operator can reach Slurm through its REST API.
pub const SLURM_REACHABLE: &str = "SlurmReachable";

/// On an Accounting: whether slurmdbd has its database.
pub const DATABASE_REACHABLE: &str = "DatabaseReachable";

/// On a Controller: whether its cluster is registered in slurmdbd, and slurmdbd answers.
pub const ACCOUNTING_REACHABLE: &str = "AccountingReachable";

/// On a Controller: whether Slurm can read the configuration that users have written. If not, the last good one is kept.
pub const CONFIGURATION_VALID: &str = "ConfigurationValid";

/// On a Controller: whether slurmctld and every slurmd use the configuration as it was written last.
pub const CONFIGURATION_IN_EFFECT: &str = "ConfigurationInEffect";

/// On a Controller: whether all daemons use the key that is in the user's Secret. If not, it says how far the change is.
pub const SLURM_KEY_IN_USE: &str = "SlurmKeyInUse";

/// On a NodeSet: whether the Slurm reservation for its scheduled update exists.
pub const RESERVATION_CREATED: &str = "ReservationCreated";

/// On a NodeSet: False if it should be drained before it is deleted, and foreground deletion does not wait for that.
pub const DRAIN_ON_DELETE: &str = "DrainOnDelete";

/// On a NodeSet whose workers hold generic resources: whether Slurm has others.
pub const GRES_MISMATCH: &str = "GresMismatch";

/// Whether something works, but is easier to attack than it has to be. Absent if not.
pub const INSECURE: &str = "Insecure";

/// Prefix of the pod condition types that report the state of the pod's Slurm node.
pub const POD_PREFIX: &str = "SlurmNodeState";

/// Common condition reasons. A kind may have more of its own.
pub mod reason {
    /// The state matches the spec.
    pub const AS_EXPECTED: &str = "AsExpected";
    /// The spec contradicts itself or an object that it refers to.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// An object that the spec refers to does not exist or lacks the key.
    pub const REFERENCE_MISSING: &str = "ReferenceMissing";
    /// Kubernetes or Slurm rejected a change by the operator.
    pub const STEP_FAILED: &str = "StepFailed";
    /// Pods are not ready yet.
    pub const PODS_NOT_READY: &str = "PodsNotReady";
    /// slurmctld or slurmrestd does not respond.
    pub const SLURM_UNREACHABLE: &str = "SlurmUnreachable";
    /// The running Slurm version does not support what the spec asks for.
    pub const SLURM_TOO_OLD: &str = "SlurmTooOld";
    /// Workers are being added or removed.
    pub const SCALING: &str = "Scaling";
    /// Pods are being replaced by newer ones.
    pub const UPDATING: &str = "Updating";
    /// Workers are waiting for their jobs to end.
    pub const DRAINING: &str = "Draining";
    /// A user paused the object.
    pub const PAUSED: &str = "Paused";
    /// The reservation exists.
    pub const CREATED: &str = "Created";
    /// The reservation does not exist.
    pub const NOT_EXISTS: &str = "NotExists";
}

/// Returns the condition with this type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition with this type exists and is true.
#[must_use]
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

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
