//! The sources that kinds observe.

use std::sync::Arc;

use crate::{kube_view::KubeView, slurm_view::Views};

/// All sources. Clones share them.
#[derive(Clone)]
pub struct Sources {
    pub kube: KubeView,
    pub slurm: Views,
    /// The DNS domain of the Kubernetes cluster.
    pub domain: Arc<str>,
    /// Kubernetes node condition types to include in the reason of a drain.
    pub propagated_conditions: Arc<[String]>,
}

impl Sources {
    /// Creates empty sources.
    pub fn new(kube: KubeView, slurm: Views, propagated_conditions: &[String]) -> Self {
        Self {
            kube,
            slurm,
            domain: domain(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()).into(),
            propagated_conditions: propagated_conditions.into(),
        }
    }
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
