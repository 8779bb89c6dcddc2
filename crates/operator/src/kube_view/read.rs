//! Reads single objects and pod problems for the kinds. A missing object is not an error.

use std::fmt::Debug;

use engine::{
    config::Files,
    daemons::{
        keys::KeyState,
        pods::{PodProblem, pod_problem},
        shared::StringMap,
    },
    hash::hash,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, Client, Resource,
    api::{ListParams, LogParams, ObjectList},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use slurm::token::Key;
use slurm_operator_api::common::shared::SecretKeySelector;

use crate::failure::{Failure, call};

/// Selects the objects with these labels.
pub fn labelled(selector: &StringMap) -> ListParams {
    let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    ListParams::default().labels(&labels.join(","))
}

/// Reads the objects of one namespace.
pub struct Reader<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
}

impl Reader<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Reads an object, or `None` if it does not exist.
    pub async fn get<K>(&self, name: &str) -> Result<Option<K>, Failure>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let api = self.api::<K>();
        call("reading", || format!("{} {}/{name}", K::kind(&()), self.namespace), api.get_opt(name)).await
    }

    /// Lists objects of a kind.
    pub async fn list<K>(&self, params: &ListParams) -> Result<ObjectList<K>, Failure>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let api = self.api::<K>();
        call("listing", || format!("{} in {}", K::plural(&()), self.namespace), api.list(params)).await
    }

    /// Reads an object whose kind may not be installed. Without permission it counts as not installed: charts of earlier releases
    /// do not grant it.
    pub async fn optional<K>(&self, name: &str) -> Result<Option<Option<K>>, Failure>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        // A single read does not tell a missing object from a missing kind.
        match self.list::<K>(&ListParams::default().fields(&format!("metadata.name={name}"))).await {
            Ok(list) => Ok(Some(list.items.into_iter().next())),
            Err(failure) if failure.is_of_unknown_kind() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// An entry of a Secret that is not empty, or the state that says why there is none.
    pub async fn entry(&self, reference: Option<&SecretKeySelector>) -> Result<Result<Vec<u8>, KeyState>, Failure> {
        let Some(reference) = reference.filter(|reference| !reference.name.is_empty()) else {
            return Ok(Err(KeyState::NotNamed));
        };
        let Some(secret) = self.get::<Secret>(&reference.name).await? else { return Ok(Err(KeyState::NoSecret)) };
        let bytes = secret.data.unwrap_or_default().remove(&reference.key).filter(|bytes| !bytes.0.is_empty());
        Ok(bytes.map(|bytes| bytes.0).ok_or(KeyState::NoEntry))
    }

    /// The state of a key.
    pub async fn key(&self, reference: Option<&SecretKeySelector>, purpose: Use) -> Result<KeyState, Failure> {
        Ok(self.entry(reference).await?.map_or_else(|state| state, |bytes| purpose.state(&bytes)))
    }

    /// The last lines that a running container has written, if they can be read.
    pub async fn last_lines(&self, pod: &str, container: &str) -> Option<String> {
        let params = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(20),
            limit_bytes: Some(16 * 1024),
            ..LogParams::default()
        };
        let api = self.api::<Pod>();
        call("reading the log of", || format!("Pod {}/{pod}", self.namespace), api.logs(pod, &params)).await.ok()
    }

    /// The files of a `ConfigMap`, if it exists.
    pub async fn files(&self, name: &str) -> Result<Option<Files>, Failure> {
        let Some(map) = self.get::<ConfigMap>(name).await? else { return Ok(None) };
        let texts = map.data.unwrap_or_default().into_iter().map(|(name, text)| (name, text.into_bytes()));
        let bytes = map.binary_data.unwrap_or_default().into_iter().map(|(name, bytes)| (name, bytes.0));
        Ok(Some(texts.chain(bytes).collect()))
    }

    /// The pods with these labels.
    pub async fn pods(&self, selector: &StringMap) -> Result<Vec<Pod>, Failure> {
        Ok(self.list::<Pod>(&labelled(selector)).await?.items)
    }

    /// Why the pods with these labels are not ready.
    pub async fn pod_problems(&self, selector: &StringMap, now: Timestamp) -> Result<Vec<PodProblem>, Failure> {
        Ok(self.pods(selector).await?.iter().filter_map(|pod| pod_problem(pod, now)).collect())
    }
}

/// What a key is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// For auth/slurm; Slurm itself validates it.
    Slurm,
    /// A file that the operator does not check.
    File,
    /// For signing tokens.
    Signing,
}

impl Use {
    /// The state of a key with this content.
    pub fn state(self, bytes: &[u8]) -> KeyState {
        let weakness = match self {
            Self::Slurm | Self::File => None,
            Self::Signing => Key::new(bytes).ok().and_then(|key| key.weakness()),
        };
        KeyState::Good { hash: hash([("", bytes)]), weakness }
    }
}
