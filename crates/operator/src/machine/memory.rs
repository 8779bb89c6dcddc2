//! What we did and the stores may not show yet.
//!
//! Stores lag behind the API server. Whoever plans from one right after a write would write again: make a second worker,
//! delete a second one. So each write to a child that is planned from a store is remembered until the store has caught up.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Mutex,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Print;
use crate::lock::lock;

/// A store that has not caught up by then never will: the watch was lost, and the list that follows it shows everything.
const BOUND: SignedDuration = SignedDuration::from_secs(15);

#[derive(Clone, Debug, PartialEq)]
enum Write {
    /// There will be one of this name, at least this new; without a version if nobody said how new.
    Made { version: Option<String> },
    /// This one is going.
    Removed { uid: String },
    /// It will be at least this new.
    Changed { version: String },
}

#[derive(Clone, Debug)]
struct Entry {
    write: Write,
    at: Timestamp,
}

/// The children of one owner and kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Brood {
    owner: String,
    kind: String,
}

impl Brood {
    /// Of the owner with this UID.
    pub fn new(owner: &str, kind: &str) -> Self {
        Self { owner: owner.to_owned(), kind: kind.to_owned() }
    }
}

/// By their names.
type Children = HashMap<String, Entry>;

/// All that we remember.
#[derive(Debug, Default)]
pub struct Memory {
    children: Mutex<HashMap<Brood, Children>>,
    applied: Mutex<HashMap<String, (Print, Print)>>,
    /// By object: the status that was written, and the version that the store showed then.
    told: Mutex<HashMap<String, (Print, String)>>,
}

/// A child as a store shows it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its name.
    pub name: &'a str,
    /// Which one of that name.
    pub uid: &'a str,
    /// How new it is.
    pub version: &'a str,
    /// Whether it is on its way out.
    pub is_going: bool,
}

/// What the store of an owner's children does not show yet.
#[derive(Debug, Default, PartialEq)]
pub struct Lag {
    /// Names of children that it shows in an old state.
    pub old: HashSet<String>,
    /// Names of children that we deleted, and that it shows as if they would stay.
    pub going: HashSet<String>,
    /// Names of children that it does not show at all.
    pub unseen: BTreeSet<String>,
}

impl Memory {
    fn remember(&self, brood: &Brood, name: &str, write: Write, at: Timestamp) {
        let mut broods = lock(&self.children);
        let children = broods.entry(brood.clone()).or_default();
        if let (Some(old), Write::Changed { version }) = (children.get(name), &write) {
            let outlasts = match &old.write {
                Write::Made { .. } => false,
                Write::Removed { .. } => true,
                // Two changes at once may be answered in any order.
                Write::Changed { version: old } => is_as_new(old, version),
            };
            if outlasts {
                return;
            }
        }
        children.insert(name.to_owned(), Entry { write, at });
    }

    /// We made a child, and this is how new it is.
    pub fn made(&self, brood: &Brood, name: &str, version: Option<String>, at: Timestamp) {
        self.remember(brood, name, Write::Made { version }, at);
    }

    /// We deleted a child.
    pub fn removed(&self, brood: &Brood, name: &str, uid: &str, at: Timestamp) {
        self.remember(brood, name, Write::Removed { uid: uid.to_owned() }, at);
    }

    /// We changed a child, and this is how new it is now.
    pub fn changed(&self, brood: &Brood, name: &str, version: &str, at: Timestamp) {
        self.remember(brood, name, Write::Changed { version: version.to_owned() }, at);
    }

    /// Compares what a store shows with what we did, and forgets what it has caught up with. `newest` is the newest change
    /// that the store took in, of whatever object.
    pub fn lag<'a>(
        &self,
        brood: &Brood,
        shown: impl IntoIterator<Item = Shown<'a>>,
        newest: u64,
        now: Timestamp,
    ) -> Lag {
        let mut broods = lock(&self.children);
        let Some(children) = broods.get_mut(brood) else { return Lag::default() };
        children.retain(|_, entry| now.duration_since(entry.at) < BOUND);
        let mut lag = Lag::default();
        let mut met = HashSet::new();
        for child in shown {
            let Some(entry) = children.get(child.name) else { continue };
            met.insert(child.name);
            let caught_up = match &entry.write {
                Write::Made { .. } => true,
                Write::Removed { uid } => uid != child.uid || child.is_going,
                Write::Changed { version } => is_as_new(child.version, version),
            };
            if caught_up {
                children.remove(child.name);
            } else if matches!(entry.write, Write::Removed { .. }) {
                lag.going.insert(child.name.to_owned());
            } else {
                lag.old.insert(child.name.to_owned());
            }
        }
        children.retain(|name, entry| match &entry.write {
            // One that is older than what the store shows, and is not there, came and went between two looks.
            Write::Made { version } => {
                let made: Option<u64> = version.as_deref().and_then(|version| version.parse().ok());
                made.is_none_or(|made| made > newest)
            }
            // Of a child that was deleted or changed and is no longer shown, there is nothing more to see.
            Write::Removed { .. } | Write::Changed { .. } => met.contains(name.as_str()),
        });
        let unseen = children.iter().filter(|(_, entry)| matches!(entry.write, Write::Made { .. }));
        lag.unseen = unseen.map(|(name, _)| name.clone()).collect();
        if children.is_empty() {
            broods.remove(brood);
        }
        lag
    }

    /// Whether this status was written already, and the store shows still what was there before.
    pub fn is_told(&self, object: &str, status: Print, version: &str) -> bool {
        lock(&self.told).get(object).is_some_and(|(told, shown)| *told == status && shown == version)
    }

    /// We wrote a status while the store showed this version.
    pub fn told(&self, object: &str, status: Print, version: &str) {
        lock(&self.told).insert(object.to_owned(), (status, version.to_owned()));
    }

    /// An object is gone.
    pub fn forget(&self, object: &str) {
        lock(&self.told).remove(object);
        lock(&self.children).retain(|brood, _| brood.owner != object);
    }

    /// What an object is called here.
    pub fn key(kind: &str, metadata: &ObjectMeta) -> String {
        format!("{kind} {:?} {:?}", metadata.namespace, metadata.name)
    }

    /// Whether applying this again would change nothing: it is what we applied last, and what is there is what that left.
    pub fn is_applied(&self, object: &str, desired: Print, seen: Option<Print>) -> bool {
        seen.is_some_and(|seen| lock(&self.applied).get(object) == Some(&(desired, seen)))
    }

    /// What we applied is gone.
    pub fn unapplied(&self, object: &str) {
        lock(&self.applied).remove(object);
    }

    /// We applied something, and this is what is there now.
    pub fn applied(&self, object: &str, desired: Print, left: Print) {
        lock(&self.applied).insert(object.to_owned(), (desired, left));
    }
}

/// Versions are numbers that grow. Of one that is not, nobody can tell, and waiting for it could take forever.
fn is_as_new(shown: &str, ours: &str) -> bool {
    match (shown.parse::<u64>(), ours.parse::<u64>()) {
        (Ok(shown), Ok(ours)) => shown >= ours,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn pods(owner: &str) -> Brood {
        Brood::new(owner, "Pod")
    }

    fn shown<'a>(name: &'a str, uid: &'a str, version: &'a str) -> Shown<'a> {
        Shown { name, uid, version, is_going: false }
    }

    #[test]
    fn a_child_we_made_counts_until_the_store_shows_it() {
        let memory = Memory::default();
        memory.made(&pods("set"), "w-0", Some("5".into()), NOW);
        assert_eq!(memory.lag(&pods("set"), [], 4, NOW).unseen, ["w-0".to_owned()].into());
        assert_eq!(memory.lag(&pods("other"), [], 4, NOW), Lag::default(), "each owner for itself");
        memory.made(&Brood::new("set", "PersistentVolumeClaim"), "data-w-0", Some("5".into()), NOW);
        assert_eq!(memory.lag(&pods("set"), [], 4, NOW).unseen, ["w-0".to_owned()].into(), "a claim is no worker");
        assert_eq!(memory.lag(&pods("set"), [shown("w-0", "u", "5")], 4, NOW), Lag::default());
        assert_eq!(
            memory.lag(&pods("set"), [], 4, NOW),
            Lag::default(),
            "seen once is seen: it may have been deleted since"
        );
    }

    #[test]
    fn a_child_we_deleted_is_old_until_it_goes() {
        let memory = Memory::default();
        memory.removed(&pods("set"), "w-0", "u", NOW);
        assert_eq!(memory.lag(&pods("set"), [shown("w-0", "u", "5")], 4, NOW).going, ["w-0".to_owned()].into());
        let going = Shown { is_going: true, ..shown("w-0", "u", "6") };
        assert_eq!(memory.lag(&pods("set"), [going], 4, NOW), Lag::default());
        memory.removed(&pods("set"), "w-0", "u", NOW);
        assert_eq!(memory.lag(&pods("set"), [shown("w-0", "another", "9")], 4, NOW), Lag::default());
        memory.removed(&pods("set"), "w-0", "u", NOW);
        assert_eq!(memory.lag(&pods("set"), [], 4, NOW), Lag::default());
    }

    #[test]
    fn a_child_we_changed_is_old_until_it_is_as_new() {
        let memory = Memory::default();
        memory.changed(&pods("set"), "w-0", "10", NOW);
        assert_eq!(memory.lag(&pods("set"), [shown("w-0", "u", "9")], 4, NOW).old, ["w-0".to_owned()].into());
        assert_eq!(memory.lag(&pods("set"), [shown("w-0", "u", "10")], 4, NOW), Lag::default());
        memory.changed(&pods("set"), "w-0", "12", NOW);
        memory.changed(&pods("set"), "w-0", "11", NOW);
        assert_eq!(
            memory.lag(&pods("set"), [shown("w-0", "u", "11")], 4, NOW).old,
            ["w-0".to_owned()].into(),
            "the newest of two changes counts"
        );
    }

    #[test]
    fn a_child_that_came_and_went_between_two_looks_is_not_waited_for() {
        let memory = Memory::default();
        memory.made(&pods("set"), "w-0", Some("5".into()), NOW);
        memory.made(&pods("set"), "w-1", None, NOW);
        let unseen = |newest| memory.lag(&pods("set"), [], newest, NOW).unseen;
        assert_eq!(unseen(4).len(), 2);
        assert_eq!(unseen(5), ["w-1".to_owned()].into(), "of the other one nobody knows how new it is");
    }

    #[test]
    fn nothing_is_waited_for_without_end() {
        let memory = Memory::default();
        memory.made(&pods("set"), "w-0", Some("5".into()), NOW);
        assert_eq!(memory.lag(&pods("set"), [], 4, NOW + BOUND), Lag::default());
    }

    #[test]
    fn a_status_is_told_once_while_the_store_lags() {
        let memory = Memory::default();
        let print = |text: &str| Print::of_value(&json!(text));
        memory.told("uid", print("ready"), "5");
        assert!(memory.is_told("uid", print("ready"), "5"));
        assert!(!memory.is_told("uid", print("waiting"), "5"), "there is something new to tell");
        assert!(!memory.is_told("uid", print("ready"), "6"), "somebody wrote something else since");
        memory.forget("uid");
        assert!(!memory.is_told("uid", print("ready"), "5"));
    }

    #[test]
    fn an_apply_is_skipped_only_if_nothing_moved() {
        let memory = Memory::default();
        let print = |text: &str| Print::of_value(&json!(text));
        assert!(!memory.is_applied("svc", print("a"), None));
        memory.applied("svc", print("a"), print("live"));
        assert!(memory.is_applied("svc", print("a"), Some(print("live"))));
        assert!(!memory.is_applied("svc", print("b"), Some(print("live"))), "we want something else");
        assert!(!memory.is_applied("svc", print("a"), Some(print("edited"))), "somebody edited it");
        memory.unapplied("svc");
        assert!(!memory.is_applied("svc", print("a"), Some(print("live"))), "somebody deleted it");
        assert!(!memory.is_applied("svc", print("a"), None), "somebody deleted it");
    }
}
