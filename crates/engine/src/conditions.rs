//! Conditions as a plan states them.

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

impl NewCondition {
    pub fn new(
        type_: &'static str,
        status: impl Into<ConditionStatus>,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status: status.into(), reason, message: message.into() }
    }
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    /// The status as in the API.
    pub fn text(self) -> &'static str {
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
