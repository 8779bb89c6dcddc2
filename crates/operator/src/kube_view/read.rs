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
    api::{ListParams, ObjectList},
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

    /// The state of a key.
    pub async fn key(&self, reference: Option<&SecretKeySelector>, purpose: Use) -> Result<KeyState, Failure> {
        let Some(reference) = reference.filter(|reference| !reference.name.is_empty()) else {
            return Ok(KeyState::NotNamed);
        };
        let Some(secret) = self.get::<Secret>(&reference.name).await? else { return Ok(KeyState::NoSecret) };
        let data = secret.data.unwrap_or_default();
        let Some(bytes) = data.get(&reference.key).filter(|bytes| !bytes.0.is_empty()) else {
            return Ok(KeyState::NoEntry);
        };
        Ok(match purpose.check(&bytes.0) {
            Ok(()) => KeyState::Good { hash: hash([("", &bytes.0)]) },
            Err(error) => KeyState::TooShort(error),
        })
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
    /// For signing tokens; it must be long enough.
    Signing,
}

impl Use {
    fn check(self, bytes: &[u8]) -> Result<(), String> {
        match self {
            Self::Slurm | Self::File => Ok(()),
            Self::Signing => Key::new(bytes).map(drop).map_err(|error| error.to_string()),
        }
    }
}
