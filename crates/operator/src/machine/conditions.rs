//! Conditions: what a kind reports, and how it is merged into the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A status that has conditions.
pub trait Conditions {
    fn conditions(&self) -> &[Condition];
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;
    fn observed_generation_mut(&mut self) -> &mut Option<i64>;
}

/// A condition without its transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCondition {
    /// `Ready`, `Progressing`, `Degraded`, or a type specific to the kind.
    pub type_: &'static str,
    pub status: ConditionStatus,
    /// `CamelCase`, from a fixed set.
    pub reason: &'static str,
    /// What the user can do, or what the operator is waiting for.
    pub message: String,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    fn text(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
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
fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

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
