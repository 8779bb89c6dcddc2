//! What facts come from.

use std::sync::Arc;

use kube::Client;
use tokio::sync::broadcast;

use crate::{
    machine::{Trigger, WriteCache},
    slurm_view::Views,
    stores::{Nodes, Workers},
};

/// Triggers that a slow kind may have waiting before it looks at everything instead.
const WAITING: usize = 4096;

/// Everything that facts are gathered from. Clones share it.
#[derive(Clone)]
pub struct Sources {
    /// For what is read when it is needed.
    pub client: Client,
    /// What changes in the cluster.
    pub triggers: broadcast::Sender<Arc<Trigger>>,
    /// The workers' pods.
    pub workers: Workers,
    /// The Kubernetes nodes.
    pub nodes: Nodes,
    /// The Slurm clusters.
    pub slurm: Views,
    /// What was written and the stores may not show yet.
    pub write_cache: Arc<WriteCache>,
    /// The domain of the Kubernetes cluster.
    pub domain: Arc<str>,
    /// Conditions of Kubernetes nodes that explain a drain in Slurm.
    pub propagated_conditions: Arc<[String]>,
}

impl Sources {
    /// Sources that know nothing yet.
    pub fn new(client: Client, slurm: Views, propagated_conditions: &[String]) -> Self {
        Self {
            client,
            triggers: slurm.triggers(),
            workers: Workers::default(),
            nodes: Nodes::default(),
            slurm,
            write_cache: Arc::default(),
            domain: domain(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()).into(),
            propagated_conditions: propagated_conditions.into(),
        }
    }
}

/// A way to tell all kinds of changes.
pub fn triggers() -> broadcast::Sender<Arc<Trigger>> {
    broadcast::channel(WAITING).0
}

/// The domain of the Kubernetes cluster, as a pod's resolver knows it; the usual one where there is none.
fn domain(resolver: &str) -> &str {
    let searched = resolver.lines().filter_map(|line| line.strip_prefix("search ")).flat_map(str::split_whitespace);
    searched.into_iter().find_map(|name| name.strip_prefix("svc.")).unwrap_or("cluster.local")
}

#[cfg(test)]
mod tests {
    use super::domain;

    #[test]
    fn the_domain_is_what_the_resolver_says() {
        let text = "nameserver 10.96.0.10\nsearch slurm.svc.k8s.example svc.k8s.example k8s.example\noptions ndots:5\n";
        assert_eq!(domain(text), "k8s.example");
        assert_eq!(domain("nameserver 1.1.1.1\n"), "cluster.local");
    }
}
