//! How workers are replaced.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{
    duration::{self, DurationError},
    shared::{count, null_as_default},
};

/// maxUnavailable of a rolling update if the spec sets none.
pub const DEFAULT_MAX_UNAVAILABLE: &str = "25%";

/// How workers are replaced when their template changes. They are drained first.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.type != 'ScheduledUpdate' || (has(self.scheduledUpdate) \
         && has(self.scheduledUpdate.startTime) && has(self.scheduledUpdate.duration))"
    )
    .message("scheduledUpdate.startTime and scheduledUpdate.duration are required when type is ScheduledUpdate")
)]
pub struct UpdateStrategy {
    /// `RollingUpdate` (default) replaces some workers at a time. `OnDelete` replaces a worker after its pod is deleted
    /// by a user. `ScheduledUpdate` replaces workers within a Slurm maintenance reservation.
    #[serde(default, rename = "type")]
    pub type_: UpdateType,

    /// Options of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,

    /// Options of `ScheduledUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_update: Option<ScheduledUpdate>,
}

/// When workers are replaced.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateType {
    /// Some workers at a time.
    #[default]
    RollingUpdate,
    /// When a user deletes the pod.
    OnDelete,
    /// Within a Slurm maintenance reservation.
    ScheduledUpdate,
}

/// Options of `RollingUpdate`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Maximum number of workers that may be unavailable: a number of at least 1, or a percentage like 10%, rounded up.
    /// Defaults to 25%.
    #[serde(default = "default_max_unavailable")]
    pub max_unavailable: IntOrString,
}

impl Default for RollingUpdate {
    /// The defaults of the schema.
    fn default() -> Self {
        Self { max_unavailable: default_max_unavailable() }
    }
}

/// Options of `ScheduledUpdate`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledUpdate {
    /// Start of the reservation, for example 2026-03-01T22:00:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// Length of the reservation in whole minutes, for example 90m or 2h. Defaults to 30m.
    #[serde(default = "default_duration")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub duration: String,

    /// Flags of the reservation in addition to MAINT and `IGNORE_JOBS`, for example DAILY.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

impl UpdateStrategy {
    /// Number of `total` workers that a rolling update may make unavailable. Zero means that nothing is replaced; an
    /// unparsable value counts as one.
    #[must_use]
    pub fn max_unavailable(&self, total: u32) -> u32 {
        match &self.rolling_update.clone().unwrap_or_default().max_unavailable {
            IntOrString::Int(number) => count(*number),
            IntOrString::String(text) => share(text, total).unwrap_or(1),
        }
    }

    /// The scheduled update, if that is the update type.
    #[must_use]
    pub fn scheduled(&self) -> Option<&ScheduledUpdate> {
        self.scheduled_update.as_ref().filter(|_| self.type_ == UpdateType::ScheduledUpdate)
    }
}

impl ScheduledUpdate {
    /// Length of the reservation.
    pub fn duration(&self) -> Result<SignedDuration, DurationError> {
        duration::parse(&self.duration)
    }

    /// Additional flags of the reservation, in Slurm's notation.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        self.flags.iter().map(|flag| flag.to_uppercase()).collect()
    }
}

/// A percentage of a total, rounded up.
fn share(text: &str, total: u32) -> Option<u32> {
    let percent: u32 = text.strip_suffix('%')?.parse().ok()?;
    let share = (u64::from(percent) * u64::from(total)).div_ceil(100);
    Some(u32::try_from(share).unwrap_or(u32::MAX))
}

fn default_max_unavailable() -> IntOrString {
    IntOrString::String(DEFAULT_MAX_UNAVAILABLE.into())
}

fn default_duration() -> String {
    "30m".into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shares_are_rounded_up_and_nonsense_is_one() {
        let table = [
            (json!("25%"), 10, 3),
            (json!("25%"), 0, 0),
            (json!("25%"), 1, 1),
            (json!("100%"), 7, 7),
            (json!("0%"), 7, 0),
            (json!("300%"), u32::MAX, u32::MAX),
            (json!(2), 10, 2),
            (json!(0), 10, 0),
            (json!(-3), 10, 0),
            (json!("2"), 10, 1),
            (json!("-5%"), 10, 1),
            (json!("many"), 10, 1),
        ];
        for (max, total, expected) in table {
            let strategy: UpdateStrategy =
                serde_json::from_value(json!({"rollingUpdate": {"maxUnavailable": max}})).unwrap();
            assert_eq!(strategy.max_unavailable(total), expected, "{max} of {total}");
        }
        assert_eq!(UpdateStrategy::default().max_unavailable(9), 3);
        assert_eq!(serde_json::from_value::<RollingUpdate>(json!({})).unwrap(), RollingUpdate::default());
    }

    #[test]
    fn a_schedule_counts_only_where_asked_for() {
        let schedule = json!({"startTime": "2026-03-01T22:00:00Z", "flags": ["daily", "FORCE_START"]});
        let strategy = |type_: &str| -> UpdateStrategy {
            serde_json::from_value(json!({"type": type_, "scheduledUpdate": schedule})).unwrap()
        };
        assert_eq!(strategy("OnDelete").scheduled(), None);
        let strategy = strategy("ScheduledUpdate");
        let scheduled = strategy.scheduled().unwrap();
        assert_eq!(scheduled.duration(), Ok(SignedDuration::from_mins(30)));
        assert_eq!(scheduled.flags(), ["DAILY", "FORCE_START"]);
    }
}
