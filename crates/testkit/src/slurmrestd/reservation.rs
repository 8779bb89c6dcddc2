//! Partitions and reservations.

use std::collections::BTreeSet;

/// Nodes of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// `Nodes=ALL`: includes nodes that register later.
    All,
    Named(BTreeSet<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    pub members: Members,
    /// Whether this is the default partition.
    pub default: bool,
    /// In minutes; `None` for no limit.
    pub max_time: Option<u32>,
}

impl Partition {
    /// The default partition, with all nodes.
    #[must_use]
    pub fn all() -> Self {
        Self { name: "all".to_owned(), members: Members::All, default: true, max_time: None }
    }

    /// Whether a node belongs to it.
    #[must_use]
    pub fn has(&self, node: &str) -> bool {
        match &self.members {
            Members::All => true,
            Members::Named(names) => names.contains(node),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    pub name: String,
    pub nodes: BTreeSet<String>,
    /// Users who may use it.
    pub users: Vec<String>,
    /// Accounts that may use it.
    pub accounts: Vec<String>,
    /// May be empty.
    pub partition: String,
    /// `MAINT`, `IGNORE_JOBS`, … as requested. `SPEC_NODES` is added.
    pub flags: Vec<String>,
    /// First second of the reservation.
    pub starts_at: i64,
    /// First second after the reservation.
    pub ends_at: i64,
}

impl Reservation {
    /// Whether it is active now.
    #[must_use]
    pub fn is_active(&self, now: i64) -> bool {
        self.starts_at <= now && now < self.ends_at
    }

    /// Whether it is a maintenance reservation, which keeps all jobs off its nodes.
    #[must_use]
    pub fn is_maintenance(&self) -> bool {
        self.flags.iter().any(|flag| flag == "MAINT")
    }
}
