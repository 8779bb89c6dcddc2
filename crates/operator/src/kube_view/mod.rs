//! What the operator reads from Kubernetes: watches, the stores that they fill, and reads on demand.

pub mod drain_policy;
pub mod own_writes;
pub mod read;
pub mod stores;
pub mod watches;

use std::sync::Arc;

use drain_policy::DrainPolicy;
use kube::Client;
use own_writes::OwnWrites;
use stores::{Nodes, Vocabularies, Workers};

/// The field manager of writes other than applies. It tells our annotations from those of others.
pub const MANAGER: &str = "slurm-operator/patch";

/// Field managers of the Go operator.
pub const GO_OPERATOR: &[&str] = &["manager", "slurm-operator"];

/// What is read from Kubernetes. Clones share it.
#[derive(Clone)]
pub struct KubeView {
    /// For objects that are read on demand.
    pub client: Client,
    pub workers: Workers,
    pub nodes: Nodes,
    /// Recent writes that the stores may not show yet.
    pub own_writes: Arc<OwnWrites>,
    /// Whether sets that are drained before they are deleted are safe from the garbage collector.
    pub drain_policy: DrainPolicy,
    /// The words of all API groups.
    pub vocabularies: Vocabularies,
}

impl KubeView {
    /// A view with empty stores.
    pub fn new(client: Client, vocabularies: Vocabularies) -> Self {
        Self {
            client,
            workers: Workers::new(vocabularies),
            nodes: Nodes::new(vocabularies),
            own_writes: Arc::default(),
            drain_policy: DrainPolicy::default(),
            vocabularies,
        }
    }
}
