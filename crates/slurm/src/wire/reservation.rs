//! Reservations.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{NoVal, envelope::Record, fields};

/// A reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Reservation {
    /// Its name.
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// Its nodes, as a host list.
    #[serde(deserialize_with = "fields::hostlist")]
    pub node_list: String,
    /// How many nodes.
    #[serde(deserialize_with = "fields::number")]
    pub node_count: u64,
    /// `MAINT`, `IGNORE_JOBS`, and what Slurm adds itself, such as `SPEC_NODES`.
    #[serde(deserialize_with = "fields::list")]
    pub flags: Vec<String>,
    /// Who may use it.
    #[serde(deserialize_with = "fields::list")]
    pub users: Vec<String>,
    /// Which accounts may use it.
    #[serde(deserialize_with = "fields::list")]
    pub accounts: Vec<String>,
    /// When it starts.
    #[serde(deserialize_with = "fields::time")]
    pub start_time: Option<Timestamp>,
    /// When it ends.
    #[serde(deserialize_with = "fields::time")]
    pub end_time: Option<Timestamp>,
    /// Its partition.
    #[serde(deserialize_with = "fields::text")]
    pub partition: String,
    /// Its trackable resources.
    #[serde(deserialize_with = "fields::hostlist")]
    pub tres: String,
}

impl Record for Reservation {
    const KEY: &'static str = "reservations";
}

/// A reservation to make, or to change if one of that name exists. From v0.0.43 on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReservationSpec {
    name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    node_list: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    users: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    accounts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<NoVal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<NoVal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
}

impl ReservationSpec {
    /// A reservation of that name; Slurm wants nodes, a start, a duration, and users or accounts before it makes one.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            node_list: Vec::new(),
            flags: Vec::new(),
            users: Vec::new(),
            accounts: Vec::new(),
            start_time: None,
            duration: None,
            partition: None,
            comment: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its nodes; host lists are welcome.
    #[must_use]
    pub fn nodes<S: Into<String>>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.node_list = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Its flags: `MAINT`, `IGNORE_JOBS`.
    #[must_use]
    pub fn flags<S: Into<String>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags = flags.into_iter().map(Into::into).collect();
        self
    }

    /// Who may use it.
    #[must_use]
    pub fn users<S: Into<String>>(mut self, users: impl IntoIterator<Item = S>) -> Self {
        self.users = users.into_iter().map(Into::into).collect();
        self
    }

    /// Which accounts may use it.
    #[must_use]
    pub fn accounts<S: Into<String>>(mut self, accounts: impl IntoIterator<Item = S>) -> Self {
        self.accounts = accounts.into_iter().map(Into::into).collect();
        self
    }

    /// When it starts. Slurm counts whole seconds; a moment before 1970 is 1970.
    #[must_use]
    pub fn start(mut self, at: Timestamp) -> Self {
        self.start_time = Some(NoVal::Is(u64::try_from(at.as_second()).unwrap_or(0)));
        self
    }

    /// How long it lasts, in minutes.
    #[must_use]
    pub fn duration(mut self, minutes: u64) -> Self {
        self.duration = Some(NoVal::Is(minutes));
        self
    }

    /// Its partition.
    #[must_use]
    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    /// Free text.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}
