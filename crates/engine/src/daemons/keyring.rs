//! The keys of auth/slurm that the daemons of a cluster have, and how a new one replaces the old one.
//!
//! Daemons read the Secret of the key ring, never the user's own: the kubelet would bring a change of that to some of them and
//! not to others. A ring has at most two keys, of which one signs. Each change of it leaves a key that all daemons have, with the
//! old ring and with the new one, and the next change waits until every daemon has read the last one.

use std::fmt;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::{Value, json};
use slurm_operator_api::common::vocabulary::Vocabulary;

use super::shared::{Daemon, StringMap, desired};
use crate::{
    hash::hash,
    plan::{Desired, ObjectVersion},
};

/// The entry with all keys.
pub const JWKS: &str = "slurm.jwks";

/// The entry with the key that signs.
pub const KEY: &str = "slurm.key";

/// Slurm refuses a shorter key in slurm.jwks.
pub const MIN_LENGTH: usize = 16;

/// How many rings a pod may still mount: those of a whole change.
const REMEMBERED: usize = 5;

/// How much of a hash names a key or a ring.
const SHORT: usize = 16;

/// A key of auth/slurm.
#[derive(Clone, PartialEq, Eq)]
pub struct SlurmKey(Vec<u8>);

impl fmt::Debug for SlurmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlurmKey")
    }
}

impl SlurmKey {
    /// `None` if Slurm would refuse it.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() >= MIN_LENGTH).then_some(Self(bytes))
    }

    /// Tells it from others.
    pub fn hash(&self) -> String {
        hash([("", self.0.as_slice())])
    }

    /// For hashes that only those can compute who have the key.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its name in tokens (`kid`).
    fn id(&self) -> String {
        short(&self.hash()).to_owned()
    }
}

fn short(hash: &str) -> &str {
    hash.get(..SHORT).unwrap_or(hash)
}

/// The keys that a daemon accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRing {
    /// Signs.
    pub default: SlurmKey,
    /// Is only accepted.
    pub other: Option<SlurmKey>,
}

impl KeyRing {
    /// The ring with one key.
    pub fn of(key: SlurmKey) -> Self {
        Self { default: key, other: None }
    }

    /// The content of slurm.jwks.
    pub fn jwks(&self) -> String {
        let entry = |key: &SlurmKey, is_default: bool| {
            let mut entry = json!({"alg": "HS256", "kty": "oct", "kid": key.id(), "k": URL_SAFE_NO_PAD.encode(&key.0)});
            if let (true, Some(fields)) = (is_default, entry.as_object_mut()) {
                fields.insert("use".to_owned(), "default".into());
            }
            entry
        };
        let keys: Vec<Value> = std::iter::once(entry(&self.default, true))
            .chain(self.other.as_ref().map(|other| entry(other, false)))
            .collect();
        json!({ "keys": keys }).to_string()
    }

    /// Reads what [`Self::jwks`] has written.
    fn parse(jwks: &[u8]) -> Option<Self> {
        let jwks: Value = serde_json::from_slice(jwks).ok()?;
        let mut ring = (None, None);
        for entry in jwks.get("keys")?.as_array()? {
            let key = SlurmKey::new(URL_SAFE_NO_PAD.decode(entry.get("k")?.as_str()?).ok()?)?;
            let place = if entry.get("use").is_some() { &mut ring.0 } else { &mut ring.1 };
            if place.replace(key).is_some() {
                return None;
            }
        }
        Some(Self { default: ring.0?, other: ring.1 })
    }

    /// The hash of slurm.jwks, as `sha256sum` prints it.
    pub fn hash(&self) -> String {
        hash([("", self.jwks().as_bytes())])
    }

    /// The next ring on the way to the user's key.
    fn next(&self, wanted: &SlurmKey) -> Option<Self> {
        match &self.other {
            None if self.default == *wanted => None,
            None => Some(Self { default: self.default.clone(), other: Some(wanted.clone()) }),
            Some(other) if other == wanted => Some(Self { default: other.clone(), other: Some(self.default.clone()) }),
            // Nobody signs with the other one any more, or it is not wanted any more.
            Some(_) => Some(Self::of(self.default.clone())),
        }
    }
}

/// Where a change of the key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    #[default]
    None,
    /// Before it, workers that read the user's Secret are replaced.
    Replacing,
    /// Daemons learn the new key.
    Adding,
    /// Daemons begin to sign with the new key.
    Switching,
    /// Daemons forget the old key.
    Removing,
}

impl Phase {
    const ALL: [Self; 5] = [Self::None, Self::Replacing, Self::Adding, Self::Switching, Self::Removing];

    /// As in the annotation of the Secret.
    pub fn text(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Replacing => "replacing-workers",
            Self::Adding => "adding",
            Self::Switching => "switching",
            Self::Removing => "removing",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.text() == text)
    }
}

/// The Secret with the key ring, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRing {
    pub ring: KeyRing,
    pub phase: Phase,
    /// The hashes of this ring and those before it, the newest last.
    pub known: Vec<String>,
}

impl LiveRing {
    /// `None` if it has no keys that can be read, or if it is a Secret of somebody else.
    pub fn of(vocabulary: &Vocabulary, secret: &Secret) -> Option<Self> {
        let ring = KeyRing::parse(&secret.data.as_ref()?.get(JWKS)?.0)?;
        let annotation = |key: &str| secret.annotations().get(key).map(String::as_str);
        let known = annotation(vocabulary.annotation.key_rings)?;
        let known = known.split(',').filter(|hash| !hash.is_empty()).map(str::to_owned).collect();
        let phase = annotation(vocabulary.annotation.key_rotation).and_then(Phase::parse).unwrap_or_default();
        Some(Self { ring, phase, known })
    }

    /// The first one of a cluster.
    fn first(key: SlurmKey) -> Self {
        let ring = KeyRing::of(key);
        Self { known: vec![ring.hash()], ring, phase: Phase::None }
    }

    /// With another ring.
    fn with(&self, ring: KeyRing, phase: Phase) -> Self {
        let hash = ring.hash();
        let mut known: Vec<String> = self.known.iter().filter(|known| **known != hash).cloned().collect();
        known.push(hash);
        let old = known.len().saturating_sub(REMEMBERED);
        Self { ring, phase, known: known.split_off(old) }
    }

    /// The Secret, with its annotations.
    pub fn secret(&self, vocabulary: &Vocabulary, metadata: ObjectMeta) -> Desired {
        let mut data = StringMap::from([
            (JWKS.to_owned(), STANDARD.encode(self.ring.jwks())),
            (KEY.to_owned(), STANDARD.encode(&self.ring.default.0)),
        ]);
        // Pods that must start with a ring mount its marker, which is not in older versions of this Secret.
        data.extend(self.known.iter().map(|hash| (marker(hash), STANDARD.encode(hash))));
        let annotations = StringMap::from([
            (vocabulary.annotation.key_rings.to_owned(), self.known.join(",")),
            (vocabulary.annotation.key_rotation.to_owned(), self.phase.text().to_owned()),
        ]);
        let metadata = ObjectMeta { annotations: Some(annotations), ..metadata };
        desired::<Secret>(metadata, json!({"type": "Opaque", "data": data}))
    }
}

/// The entry that only versions of the Secret with this ring, or a later one, have.
pub fn marker(hash: &str) -> String {
    format!("ring-{}", short(hash))
}

/// What a pod has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HasRead {
    /// The user's Secret.
    UsersSecret,
    /// The ring of the time when it started.
    First,
    /// The ring with this hash.
    Ring(String),
}

/// A pod with a daemon that has the key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyUser {
    pub pod: ObjectVersion,
    pub daemon: Daemon,
    pub has_read: HasRead,
    /// When it was last asked to read its keys, and why it has not, as in an annotation.
    pub asked: Option<String>,
}

impl KeyUser {
    /// Its name, and why it has not read its keys if that is known.
    #[must_use]
    pub fn name_and_problem(&self) -> String {
        let problem = self.asked.as_deref().and_then(|asked| asked.split_once(' '));
        problem.map_or_else(|| self.pod.name.clone(), |(_, problem)| format!("{} ({problem})", self.pod.name))
    }
}

/// What to do about the keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The ring as it should be.
    pub live: LiveRing,
    /// The pods that have not read it yet.
    pub left: Vec<KeyUser>,
}

/// Decides about the ring. `wanted` is the user's key, `None` while it cannot be read: daemons go on with what they have.
/// `users` are all pods with the key; `None` if they were not listed.
pub fn decide(live: Option<&LiveRing>, wanted: Option<&SlurmKey>, users: Option<&[KeyUser]>) -> Option<Decision> {
    let Some(live) = live else {
        let first = LiveRing::first(wanted?.clone());
        // Somebody has deleted the Secret: what daemons have read is not known any more.
        let hash = first.ring.hash();
        let is_other = |user: &KeyUser| matches!(&user.has_read, HasRead::Ring(read) if *read != hash);
        let is_lost = users.into_iter().flatten().any(is_other);
        return (!is_lost).then(|| Decision { live: first, left: Vec::new() });
    };
    let same = |left: Vec<KeyUser>| Some(Decision { live: live.clone(), left });
    let (Some(wanted), Some(users)) = (wanted, users) else { return same(Vec::new()) };
    let hash = live.ring.hash();
    let is_single = live.ring.other.is_none();
    let left: Vec<KeyUser> = users
        .iter()
        .filter(|user| match &user.has_read {
            HasRead::UsersSecret => true,
            // It started with this ring, or with the one before, which has its key and may have the one to forget.
            HasRead::First => !is_single || live.phase == Phase::Removing,
            HasRead::Ring(read) => *read != hash,
        })
        .cloned()
        .collect();
    let next = live.ring.next(wanted);
    let Some(next) = next else {
        // Workers that have the user's Secret are in nobody's way.
        let left: Vec<KeyUser> = left.into_iter().filter(|user| user.has_read != HasRead::UsersSecret).collect();
        let phase = if left.is_empty() { Phase::None } else { Phase::Removing };
        return Some(Decision { live: LiveRing { phase, ..live.clone() }, left });
    };
    if left.is_empty() {
        let phase = match &next.other {
            None => Phase::Removing,
            Some(other) if other == wanted => Phase::Adding,
            Some(_) => Phase::Switching,
        };
        return Some(Decision { live: live.with(next, phase), left });
    }
    let has_old = left.iter().any(|user| user.has_read == HasRead::UsersSecret);
    let phase = if has_old { Phase::Replacing } else { live.phase };
    Some(Decision { live: LiveRing { phase, ..live.clone() }, left })
}

#[cfg(test)]
mod tests;
