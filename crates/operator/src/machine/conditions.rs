//! Conditions: what a kind reports, and how it is merged into the status.

use engine::conditions::NewCondition;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A status with conditions.
pub trait Conditions {
    /// Whether the operator writes the status.
    const IS_WRITTEN: bool = true;

    fn conditions(&self) -> &[Condition];
    /// Replaces all conditions, which are those of this generation of the object.
    fn set_conditions(&mut self, conditions: Vec<Condition>, generation: Option<i64>);
}

/// For kinds whose status the operator does not write.
impl Conditions for () {
    const IS_WRITTEN: bool = false;

    fn conditions(&self) -> &[Condition] {
        &[]
    }

    fn set_conditions(&mut self, _: Vec<Condition>, _: Option<i64>) {}
}

/// Merges the new conditions with the old ones: the transition time only changes when the status of a condition
/// changes.
pub fn merge_conditions(
    old: &[Condition],
    new_conditions: &[NewCondition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    new_conditions
        .iter()
        .map(|new_condition| {
            let status = new_condition.status.text();
            let since = old
                .iter()
                .find(|condition| condition.type_ == new_condition.type_ && condition.status == status)
                .map_or_else(|| seconds(now), |condition| condition.last_transition_time.clone());
            Condition {
                type_: new_condition.type_.to_owned(),
                status: status.to_owned(),
                reason: new_condition.reason.to_owned(),
                message: new_condition.message.clone(),
                observed_generation: generation,
                last_transition_time: since,
            }
        })
        .collect()
}

/// The API server stores whole seconds; a fraction would make every comparison with its response differ.
pub fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use engine::conditions::ConditionStatus;
    use jiff::SignedDuration;

    use super::*;

    fn ready(status: ConditionStatus, message: &str) -> NewCondition {
        NewCondition { type_: "Ready", status, reason: "Because", message: message.into() }
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let start = Timestamp::UNIX_EPOCH;
        let later = start + SignedDuration::from_mins(10);
        let first = merge_conditions(&[], &[ready(ConditionStatus::False, "waiting")], Some(1), start);
        let same = merge_conditions(&first, &[ready(ConditionStatus::False, "still waiting")], Some(2), later);
        assert_eq!(same[0].last_transition_time.0, start);
        assert_eq!((&*same[0].message, same[0].observed_generation), ("still waiting", Some(2)));
        let other = merge_conditions(&same, &[ready(ConditionStatus::True, "done")], Some(2), later);
        assert_eq!(other[0].last_transition_time.0, later);
    }

    #[test]
    fn a_condition_that_is_no_longer_reported_is_removed() {
        let old = merge_conditions(&[], &[ready(ConditionStatus::True, "")], None, Timestamp::UNIX_EPOCH);
        assert!(merge_conditions(&old, &[], None, Timestamp::UNIX_EPOCH).is_empty());
    }

    #[test]
    fn times_are_whole_seconds() {
        let now = Timestamp::new(7, 999_000_000).unwrap();
        let merged = merge_conditions(&[], &[ready(ConditionStatus::True, "")], None, now);
        assert_eq!(merged[0].last_transition_time.0, Timestamp::from_second(7).unwrap());
    }
}
