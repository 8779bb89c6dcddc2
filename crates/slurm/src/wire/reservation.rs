//! Reservations.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{NoVal, envelope::Record, fields};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Reservation {
    #[serde(deserialize_with = "fields::text")]
    pub name: String,
    /// Host list of its nodes.
    #[serde(deserialize_with = "fields::hostlist")]
    pub node_list: String,
    #[serde(deserialize_with = "fields::number")]
    pub node_count: u64,
    /// `MAINT`, `IGNORE_JOBS`, and flags that Slurm adds, such as `SPEC_NODES`.
    #[serde(deserialize_with = "fields::list")]
    pub flags: Vec<String>,
    /// Users who may use it.
    #[serde(deserialize_with = "fields::list")]
    pub users: Vec<String>,
    /// Accounts that may use it.
    #[serde(deserialize_with = "fields::list")]
    pub accounts: Vec<String>,
    #[serde(deserialize_with = "fields::time")]
    pub start_time: Option<Timestamp>,
    #[serde(deserialize_with = "fields::time")]
    pub end_time: Option<Timestamp>,
    #[serde(deserialize_with = "fields::text")]
    pub partition: String,
    /// Trackable resources.
    #[serde(deserialize_with = "fields::hostlist")]
    pub tres: String,
}

impl Record for Reservation {
    const KEY: &'static str = "reservations";
    const MOST: usize = 16 << 20;

    fn size(&self) -> usize {
        let texts = [&self.name, &self.node_list, &self.partition, &self.tres];
        let words = [&self.flags, &self.users, &self.accounts];
        let words: usize = words.into_iter().map(|words| fields::size_of_words(words)).sum();
        size_of::<Self>() + texts.into_iter().map(String::len).sum::<usize>() + words
    }
}

/// A reservation to create or update. Since v0.0.43.
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
    /// Creates a spec. To create a reservation Slurm requires nodes, a start, a duration, and users or accounts.
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

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the nodes; host lists are allowed.
    #[must_use]
    pub fn nodes<S: Into<String>>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.node_list = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the flags: `MAINT`, `IGNORE_JOBS`.
    #[must_use]
    pub fn flags<S: Into<String>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags = flags.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the users who may use it.
    #[must_use]
    pub fn users<S: Into<String>>(mut self, users: impl IntoIterator<Item = S>) -> Self {
        self.users = users.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the accounts that may use it.
    #[must_use]
    pub fn accounts<S: Into<String>>(mut self, accounts: impl IntoIterator<Item = S>) -> Self {
        self.accounts = accounts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the start. Slurm counts whole seconds; a time before 1970 becomes 1970.
    #[must_use]
    pub fn start(mut self, at: Timestamp) -> Self {
        self.start_time = Some(NoVal::Is(u64::try_from(at.as_second()).unwrap_or(0)));
        self
    }

    /// Sets the duration in minutes.
    #[must_use]
    pub fn duration(mut self, minutes: u64) -> Self {
        self.duration = Some(NoVal::Is(minutes));
        self
    }

    #[must_use]
    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}
