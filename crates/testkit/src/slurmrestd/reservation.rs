//! Partitions and reservations.

use std::collections::BTreeSet;

/// Which nodes belong to a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// `Nodes=ALL`: also those that register later.
    All,
    /// These.
    Named(BTreeSet<String>),
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub members: Members,
    /// Whether jobs go there that name no partition.
    pub default: bool,
    /// Minutes; `None` for no limit.
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

/// A reservation of nodes for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: BTreeSet<String>,
    /// Who may use it.
    pub users: Vec<String>,
    /// Which accounts may use it.
    pub accounts: Vec<String>,
    /// Its partition; may be empty.
    pub partition: String,
    /// `MAINT`, `IGNORE_JOBS`, … as they were given. `SPEC_NODES` is added.
    pub flags: Vec<String>,
    /// Its first second.
    pub starts_at: i64,
    /// The first second after it.
    pub ends_at: i64,
}

impl Reservation {
    /// Whether it is under way.
    #[must_use]
    pub fn is_active(&self, now: i64) -> bool {
        self.starts_at <= now && now < self.ends_at
    }

    /// Whether it keeps a node from everyone.
    #[must_use]
    pub fn is_maintenance(&self) -> bool {
        self.flags.iter().any(|flag| flag == "MAINT")
    }
}
