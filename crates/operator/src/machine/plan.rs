//! What a reconcile decided to do: plain data, without any secret that could be printed.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource, ResourceExt,
    api::DynamicObject,
    core::{ApiResource, NamespaceResourceScope},
};
use serde::Serialize;
use slurm::token::Key;

use super::Judgement;

/// Everything that one pass will do.
#[derive(Debug, Default)]
pub struct Plan<S> {
    /// Steps of one stage do not depend on each other and run at the same time. A stage runs only if all steps before it
    /// succeeded.
    pub stages: Vec<Vec<Step>>,
    /// The next status, without its conditions.
    pub status: S,
    /// All conditions: one that is no longer judged disappears.
    pub conditions: Vec<Judgement>,
    /// What a human wants to see in the events.
    pub notes: Vec<Note>,
    /// When to look again.
    pub next: Next,
}

/// One write.
#[derive(Debug)]
pub enum Step {
    /// Make a child be like this.
    Apply(Box<Desired>),
    /// Make a Secret whose content takes chance or a signature.
    Mint(Box<Mint>),
    /// Make us the only owner of a child that another program left.
    Adopt(Box<Doomed>, Box<OwnerReference>),
    /// Remove a child.
    Delete(Box<Doomed>),
}

impl Step {
    /// What it is, in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Apply(_) => "apply",
            Self::Mint(_) => "mint",
            Self::Adopt(..) => "adopt",
            Self::Delete(_) => "delete",
        }
    }
}

/// When to look again, if nothing wakes us before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// Not before something changes.
    #[default]
    OnChange,
    /// After this time.
    After(Duration),
}

impl Next {
    /// At a point in time; at once is a second from now, so that no mistake becomes a hot loop.
    pub fn at(when: Timestamp, now: Timestamp) -> Self {
        let wait = when.duration_since(now).max(SignedDuration::from_secs(1));
        Self::After(wait.try_into().unwrap_or(Duration::from_secs(1)))
    }
}

/// An event on the reconciled object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether a human should act.
    pub is_warning: bool,
    /// `CamelCase`, from a fixed set.
    pub reason: &'static str,
    /// A sentence.
    pub text: String,
}

/// A child as it should be: only what we have an opinion on.
#[derive(Clone, PartialEq)]
pub struct Desired {
    /// What it is.
    pub resource: ApiResource,
    /// The fields that we own.
    pub object: DynamicObject,
}

impl Desired {
    /// Forgets the type of an object, so that a plan is one list.
    pub fn of<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
    {
        let resource = ApiResource::erase::<K>(&());
        let mut erased = DynamicObject::new("", &resource);
        erased.metadata = object.meta().clone();
        // API types are maps of strings to plain data: they always become JSON.
        if let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(object) {
            for known in ["apiVersion", "kind", "metadata"] {
                fields.remove(known);
            }
            erased.data = fields.into();
        }
        Self { resource, object: erased }
    }
}

impl fmt::Debug for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(&self.resource.kind);
        shown.field("name", &self.object.name_any());
        if self.resource.kind != "Secret" {
            shown.field("data", &self.object.data);
        }
        shown.finish_non_exhaustive()
    }
}

/// A Secret whose content is made while the plan is carried out.
#[derive(Clone)]
pub struct Mint {
    /// The Secret without its content.
    pub secret: Desired,
    /// The key of its content, if the recipe does not name its own.
    pub entry: String,
    /// What to put there.
    pub recipe: Recipe,
}

impl fmt::Debug for Mint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mint")
            .field("secret", &self.secret)
            .field("entry", &self.entry)
            .field("recipe", &self.recipe)
            .finish()
    }
}

/// How to make the content of a Secret.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "the Mint around it is boxed")]
pub enum Recipe {
    /// A token of Slurm's auth/jwt.
    Token {
        /// What signs it.
        key: Key,
        /// Whom it names.
        user: String,
        /// From when on it is good.
        issued_at: Timestamp,
        /// For how long.
        lifetime: SignedDuration,
    },
    /// Random keys. The Secret is made only if there is none of that name: a key that somebody uses is never replaced.
    Keys {
        /// What they are called in the Secret.
        entries: Vec<String>,
    },
}

/// An object to change or remove, exactly as it was seen: if it has changed since, nothing happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Doomed {
    /// What it is.
    pub resource: ApiResource,
    /// Where it is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
    /// In which state.
    pub resource_version: String,
}

impl Doomed {
    /// The object with this metadata.
    pub fn of<K>(object: &impl ResourceExt) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            resource_version: object.resource_version().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{ByteString, api::core::v1::Secret};

    #[test]
    fn a_plan_shows_no_secret() {
        let secret = Secret {
            data: Some([("key".to_owned(), ByteString(b"hunter2hunter2".to_vec()))].into()),
            ..Secret::default()
        };
        let key = Key::new(b"0123456789abcdef0123456789abcdef").unwrap();
        let recipe = Recipe::Token {
            key,
            user: "alice".into(),
            issued_at: Timestamp::UNIX_EPOCH,
            lifetime: SignedDuration::from_mins(15),
        };
        let steps = [
            Step::Apply(Box::new(Desired::of(&secret))),
            Step::Mint(Box::new(Mint { secret: Desired::of(&secret), entry: "SLURM_JWT".into(), recipe })),
        ];
        let shown = format!("{steps:?}");
        assert!(!shown.contains("aHVudGVyM") && !shown.contains("hunter2") && !shown.contains("0123456789"), "{shown}");
        assert!(shown.contains("alice"), "{shown}");
    }

    #[test]
    fn a_time_that_has_passed_is_not_a_hot_loop() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(Next::at(now, now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now - SignedDuration::from_hours(1), now), Next::After(Duration::from_secs(1)));
        assert_eq!(Next::at(now + SignedDuration::from_mins(5), now), Next::After(Duration::from_mins(5)));
    }
}
