//! Conditions: what a kind judges, and how that becomes a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A status that has conditions.
pub trait Conditions {
    /// Its conditions.
    fn conditions(&self) -> &[Condition];
    /// Its conditions, to be replaced.
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;
    /// The generation that it answers.
    fn observed_generation_mut(&mut self) -> &mut Option<i64>;
}

/// A condition without its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// `Ready`, `Progressing`, `Degraded`, or one of the kind's own.
    pub about: &'static str,
    /// Whether it holds.
    pub verdict: Verdict,
    /// `CamelCase`, from a fixed set.
    pub reason: &'static str,
    /// What a human can do, or what is waited for.
    pub message: String,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    True,
    /// It does not.
    False,
    /// We cannot tell.
    Unknown,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Verdict {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The conditions to write: the time of a condition is when its verdict last changed, not when it was last judged.
pub fn settle(old: &[Condition], judgements: &[Judgement], generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    judgements
        .iter()
        .map(|judgement| {
            let status = judgement.verdict.text();
            let since = old
                .iter()
                .find(|condition| condition.type_ == judgement.about && condition.status == status)
                .map_or_else(|| seconds(now), |condition| condition.last_transition_time.clone());
            Condition {
                type_: judgement.about.to_owned(),
                status: status.to_owned(),
                reason: judgement.reason.to_owned(),
                message: judgement.message.clone(),
                observed_generation: generation,
                last_transition_time: since,
            }
        })
        .collect()
}

/// The API server keeps whole seconds; a fraction would make every comparison with what it answers differ.
fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    fn ready(verdict: Verdict, message: &str) -> Judgement {
        Judgement { about: "Ready", verdict, reason: "Because", message: message.into() }
    }

    #[test]
    fn the_time_moves_only_with_the_verdict() {
        let start = Timestamp::UNIX_EPOCH;
        let later = start + SignedDuration::from_mins(10);
        let first = settle(&[], &[ready(Verdict::False, "waiting")], Some(1), start);
        let same = settle(&first, &[ready(Verdict::False, "still waiting")], Some(2), later);
        assert_eq!(same[0].last_transition_time.0, start);
        assert_eq!((&*same[0].message, same[0].observed_generation), ("still waiting", Some(2)));
        let other = settle(&same, &[ready(Verdict::True, "done")], Some(2), later);
        assert_eq!(other[0].last_transition_time.0, later);
    }

    #[test]
    fn a_condition_that_is_no_longer_judged_disappears() {
        let old = settle(&[], &[ready(Verdict::True, "")], None, Timestamp::UNIX_EPOCH);
        assert!(settle(&old, &[], None, Timestamp::UNIX_EPOCH).is_empty());
    }

    #[test]
    fn times_are_whole_seconds() {
        let now = Timestamp::new(7, 999_000_000).unwrap();
        let settled = settle(&[], &[ready(Verdict::True, "")], None, now);
        assert_eq!(settled[0].last_transition_time.0, Timestamp::from_second(7).unwrap());
    }
}
