//! Where the daemons of a cluster read Slurm's key: in a key ring that the Controller keeps, or in the user's own Secret.

use engine::daemons::{
    keyring::{self, LiveRing, SlurmKey},
    keys::KeyState,
    progress::Problem,
    shared::{Auth, StringMap},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt,
    api::ListParams,
    core::{DeserializeGuard, ObjectMeta},
};
use serde_json::Value;
use slurm_operator_api::{
    common::shared::SecretKeySelector,
    slinky::{
        Controller, VOCABULARY,
        names::{self, annotation::hash as hashes},
    },
};

use crate::{failure::Failure, kube_view::read::Reader};

/// The key ring of a user's Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ring {
    /// There is none: slurmctld is external, or the key is too short.
    #[default]
    NotUsed,
    /// The Controller has not written this Secret yet.
    Missing(String),
    Live(Box<ObservedRing>),
}

/// The Secret with a key ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRing {
    pub secret: String,
    pub live: LiveRing,
    /// The hash of its keys.
    pub hash: String,
}

impl ObservedRing {
    pub fn new(secret: String, live: LiveRing) -> Self {
        Self { hash: live.ring.hash(), secret, live }
    }
}

impl Ring {
    /// Reads it. `is_managed` says whether a Controller keeps it.
    pub async fn observe(
        read: &Reader<'_>,
        reference: Option<&SecretKeySelector>,
        key: &Result<Vec<u8>, KeyState>,
        is_managed: bool,
    ) -> Result<Self, Failure> {
        let Some(reference) = reference.filter(|reference| is_managed && !reference.name.is_empty()) else {
            return Ok(Self::NotUsed);
        };
        let name = names::key_ring(reference);
        let found = read.get::<Secret>(&name).await?;
        Ok(match found.and_then(|secret| LiveRing::of(&VOCABULARY, &secret)) {
            Some(live) => Self::Live(Box::new(ObservedRing::new(name, live))),
            None if key.as_ref().is_ok_and(|key| SlurmKey::new(key.clone()).is_none()) => Self::NotUsed,
            None => Self::Missing(name),
        })
    }

    /// The ring, if there is one.
    pub fn live(&self) -> Option<&ObservedRing> {
        if let Self::Live(ring) = self { Some(ring) } else { None }
    }

    /// What it waits for.
    pub fn missing(&self) -> Option<String> {
        let Self::Missing(secret) = self else { return None };
        Some(format!("waiting for the Secret {secret}, in which the Controller gives daemons their key"))
    }
}

/// How pods authenticate, with annotations that follow from it.
pub struct Keys<'a> {
    pub auth: Auth<'a>,
    pub annotations: StringMap,
    /// The same without a key ring, as in earlier releases.
    pub former: Option<(Auth<'a>, StringMap)>,
}

impl<'a> Keys<'a> {
    /// With a key ring, or with the user's Secret, whose state is that of `hash`. `restarts` says whether a new ring restarts the pods;
    /// otherwise the daemon is told of it.
    pub fn new(
        ring: Option<&'a ObservedRing>,
        users: Option<&'a SecretKeySelector>,
        hash: Result<&str, Problem>,
        restarts: bool,
    ) -> Result<Self, Problem> {
        let with_users = hash.and_then(|hash| {
            let key = users.ok_or_else(|| Problem::invalid("no Slurm key is named"))?;
            Ok((Auth::SlurmKey(key), StringMap::from([(hashes::SLURM_KEY.to_owned(), hash.to_owned())])))
        });
        // A user's key that cannot be read changes nothing; the Controller says so.
        let Some(ring) = ring else {
            let (auth, annotations) = with_users?;
            return Ok(Self { auth, annotations, former: None });
        };
        let auth = Auth::KeyRing { secret: &ring.secret, hash: restarts.then_some(&*ring.hash) };
        Ok(Self { auth, annotations: auth.annotations(&VOCABULARY), former: with_users.ok() })
    }
}

/// Whether a Controller keeps a key ring for this key.
pub async fn is_managed(read: &Reader<'_>, reference: Option<&SecretKeySelector>) -> Result<bool, Failure> {
    // One that cannot be decoded must not harm other objects.
    let controllers = read.list::<DeserializeGuard<Controller>>(&ListParams::default()).await?;
    let mut controllers = controllers.iter().filter_map(|guard| guard.0.as_ref().ok());
    Ok(reference.is_some_and(|reference| controllers.any(|controller| keeps_ring(controller, reference))))
}

/// Whether a Controller keeps the key ring for this key.
pub fn keeps_ring(controller: &Controller, reference: &SecretKeySelector) -> bool {
    let own = controller.spec.slurm_key_ref.as_ref();
    !controller.spec.external && own.is_some_and(|own| (&own.name, &own.key) == (&reference.name, &reference.key))
}

/// The key rings that Controllers make of these objects if they do not exist yet, for plans without a cluster.
pub fn expected(objects: &[Value]) -> Vec<Value> {
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let secrets: Vec<Secret> =
        of_kind("Secret").filter_map(|object| serde_json::from_value(object.clone()).ok()).collect();
    let controllers =
        of_kind("Controller").filter_map(|object| serde_json::from_value::<Controller>(object.clone()).ok());
    let ring = |controller: Controller| {
        let namespace = controller.namespace();
        let secret =
            |name: &str| secrets.iter().find(|secret| secret.name_any() == name && secret.namespace() == namespace);
        let reference = controller.spec.slurm_key_ref.as_ref().filter(|_| !controller.spec.external)?;
        let name = names::key_ring(reference);
        let key = secret(&reference.name).filter(|_| secret(&name).is_none())?.data.as_ref()?.get(&reference.key)?;
        let first = keyring::decide(None, Some(&SlurmKey::new(key.0.clone())?), None)?;
        let resource_version = Some("1".to_owned());
        let metadata =
            ObjectMeta { name: Some(name), namespace: namespace.clone(), resource_version, ..ObjectMeta::default() };
        serde_json::to_value(first.live.secret(&VOCABULARY, metadata).object).ok()
    };
    controllers.filter_map(ring).collect()
}

/// A ring with one key, in the Secret `keys-ring`.
#[cfg(test)]
pub fn ring_of(key: &str) -> Ring {
    let first = keyring::decide(None, SlurmKey::new(key.repeat(20).into_bytes()).as_ref(), None);
    first.map_or(Ring::NotUsed, |first| Ring::Live(Box::new(ObservedRing::new("keys-ring".to_owned(), first.live))))
}
