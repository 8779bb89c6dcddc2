//! The sources that kinds observe.

use std::sync::Arc;

use kube::Client;
use tokio::sync::broadcast;

use crate::{
    kube_view::stores::{Nodes, Workers},
    machine::{Trigger, WriteCache},
    slurm_view::Views,
};

/// Capacity of the trigger channel; a receiver that lags further reconciles everything.
const WAITING: usize = 4096;

/// All sources. Clones share them.
#[derive(Clone)]
pub struct Sources {
    /// For objects that are read on demand.
    pub client: Client,
    /// Changes in the cluster.
    pub triggers: broadcast::Sender<Arc<Trigger>>,
    pub workers: Workers,
    pub nodes: Nodes,
    pub slurm: Views,
    /// Recent writes that the stores may not show yet.
    pub write_cache: Arc<WriteCache>,
    /// The DNS domain of the Kubernetes cluster.
    pub domain: Arc<str>,
    /// Kubernetes node condition types to include in the reason of a drain.
    pub propagated_conditions: Arc<[String]>,
}

impl Sources {
    /// Creates empty sources.
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

/// The channel that announces changes to all kinds.
pub fn triggers() -> broadcast::Sender<Arc<Trigger>> {
    broadcast::channel(WAITING).0
}

/// The DNS domain of the Kubernetes cluster from a pod's resolv.conf, or the default.
fn domain(resolver: &str) -> &str {
    let searched = resolver.lines().filter_map(|line| line.strip_prefix("search ")).flat_map(str::split_whitespace);
    searched.into_iter().find_map(|name| name.strip_prefix("svc.")).unwrap_or("cluster.local")
}

#[cfg(test)]
mod tests {
    use super::domain;

    #[test]
    fn the_domain_comes_from_the_resolver() {
        let text = "nameserver 10.96.0.10\nsearch slurm.svc.k8s.example svc.k8s.example k8s.example\noptions ndots:5\n";
        assert_eq!(domain(text), "k8s.example");
        assert_eq!(domain("nameserver 1.1.1.1\n"), "cluster.local");
    }
}
