//! What a front end says about its Slurm clusters: which there are, and how to reach them.

use engine::plan::ClusterKey;
use futures::future::BoxFuture;
use kube::Client;
use sha2::{Digest, Sha256};
use slurm::token::{EmptyKey, Key};

use crate::{failure::Failure, trigger::Trigger};

/// The slurmrestd of a cluster, and the credentials for it.
pub struct Endpoint {
    pub url: String,
    /// The certificate authority in PEM; `None` for the system's.
    pub ca: Option<Vec<u8>>,
    /// Signs the operator's tokens.
    pub key: Key,
    /// The Slurm user that the operator acts as.
    pub user: &'static str,
    /// Whether it was only named by somebody, and may be a server of others: what it answers is not shown.
    pub is_external: bool,
    /// Whether the cluster has a slurmdbd.
    pub accounting: bool,
    /// Identifies the key without revealing it.
    key_fingerprint: [u8; 32],
}

impl Endpoint {
    pub fn new(url: String, ca: Option<Vec<u8>>, key: &[u8], user: &'static str) -> Result<Self, EmptyKey> {
        let key_fingerprint = Sha256::digest(key).into();
        Ok(Self { url, ca, key: Key::new(key)?, user, is_external: false, accounting: false, key_fingerprint })
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.url, &self.ca, &self.key_fingerprint, self.accounting)
            == (&other.url, &other.ca, &other.key_fingerprint, other.accounting)
    }
}

/// The result of looking for an endpoint.
pub enum EndpointLookup {
    Found(Box<Endpoint>),
    /// What is missing, as a message for users.
    Missing(String),
    /// The cluster does not exist.
    Gone,
}

/// Which clusters a change affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affected {
    Nothing,
    /// This one, which may be new.
    Cluster(ClusterKey),
    /// The endpoints of all clusters of this namespace may have changed.
    Namespace(String),
}

/// The Slurm clusters of one API group.
pub trait Clusters: Send + Sync {
    /// All clusters in a namespace, or in the whole Kubernetes cluster.
    fn list<'a>(
        &'a self,
        client: &'a Client,
        namespace: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<ClusterKey>, Failure>>;

    /// Looks for the endpoint of a cluster.
    fn find<'a>(
        &'a self,
        client: &'a Client,
        cluster: &'a ClusterKey,
    ) -> BoxFuture<'a, Result<EndpointLookup, Failure>>;

    /// Which clusters a change affects.
    fn affected(&self, trigger: &Trigger) -> Affected;
}
