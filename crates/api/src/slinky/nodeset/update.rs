//! How workers are replaced.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::common::{
    duration::{self, DurationError},
    shared::null_as_default,
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
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Maximum number of workers that may be unavailable: a number, or a percentage like 10%, rounded up. With 0, no worker
    /// is replaced. Defaults to 25%.
    #[serde(default)]
    pub max_unavailable: MaxUnavailable,
}

/// A number or a percentage. Any value can be decoded, so that a wrong one, which an older CRD accepts, does not hide the whole
/// set from the operator.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum MaxUnavailable {
    Int(i64),
    String(String),
    /// Neither.
    Other(Value),
}

impl Default for MaxUnavailable {
    fn default() -> Self {
        Self::String(DEFAULT_MAX_UNAVAILABLE.into())
    }
}

impl JsonSchema for MaxUnavailable {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "MaxUnavailable".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // The bounds are for numbers only.
        json_schema!({"x-kubernetes-int-or-string": true, "minimum": 0, "maximum": i32::MAX})
    }
}

/// Options of `ScheduledUpdate`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledUpdate {
    /// Start of the reservation, for example 2026-03-01T22:00:00Z.
    // Not parsed: the API server accepts what a time type does not, for example ten digits after the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_time: Option<String>,

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
            MaxUnavailable::Int(number) => u32::try_from((*number).max(0)).unwrap_or(u32::MAX),
            MaxUnavailable::String(text) => share(text, total).unwrap_or(1),
            MaxUnavailable::Other(_) => 1,
        }
    }

    /// The scheduled update, if that is the update type.
    #[must_use]
    pub fn scheduled(&self) -> Option<&ScheduledUpdate> {
        self.scheduled_update.as_ref().filter(|_| self.type_ == UpdateType::ScheduledUpdate)
    }
}

impl ScheduledUpdate {
    /// Start of the reservation, if it is set.
    pub fn start(&self) -> Option<Result<Timestamp, jiff::Error>> {
        self.start_time.as_ref().map(|text| text.parse())
    }

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
            (json!(3_000_000_000_u64), 10, 3_000_000_000),
            (json!(1e30), 10, 1),
            (json!(true), 10, 1),
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
