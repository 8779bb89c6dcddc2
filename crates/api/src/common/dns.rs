//! Names of Services in DNS.

/// Host of a Service, as resolved within the cluster.
#[must_use]
pub fn service_host(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}")
}

/// Fully qualified host of a Service, independent of the resolver's search list.
#[must_use]
pub fn service_host_full(service: &str, namespace: &str, cluster_domain: &str) -> String {
    format!("{service}.{namespace}.svc.{cluster_domain}")
}
