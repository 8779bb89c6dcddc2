//! Own writes that the stores may not show yet.
//!
//! Stores lag behind the API server. Planning from a store right after a write would repeat the write, for example
//! create a second worker. So every write to a child that is planned from a store is remembered until the store has
//! caught up.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Mutex,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Fingerprint;
use crate::lock::lock;

/// After this time the store is trusted again: if it has not caught up by then, the watch was lost, and the relist
/// shows everything.
const BOUND: SignedDuration = SignedDuration::from_secs(15);

#[derive(Clone, Debug, PartialEq)]
enum Expectation {
    /// Created at this resourceVersion; `None` if the response was lost.
    Made { version: Option<String> },
    /// Deleted.
    Removed { uid: String },
    /// Changed at this resourceVersion.
    Changed { version: String },
}

#[derive(Clone, Debug)]
struct Entry {
    expected: Expectation,
    at: Timestamp,
}

/// Identifies the children of one owner and kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChildrenOf {
    owner: String,
    kind: String,
}

impl ChildrenOf {
    /// `owner` is the UID of the owner.
    pub fn new(owner: &str, kind: &str) -> Self {
        Self { owner: owner.to_owned(), kind: kind.to_owned() }
    }
}

/// By name.
type Children = HashMap<String, Entry>;

/// Our recent writes.
#[derive(Debug, Default)]
pub struct WriteCache {
    expectations: Mutex<HashMap<ChildrenOf, Children>>,
    applied: Mutex<HashMap<String, (Fingerprint, Fingerprint)>>,
    /// By object: the fingerprint of the written status, and the resourceVersion in the store at that time.
    statuses: Mutex<HashMap<String, (Fingerprint, String)>>,
}

/// A child as it is in the store.
#[derive(Clone, Copy, Debug)]
pub struct StoreEntry<'a> {
    pub name: &'a str,
    pub uid: &'a str,
    pub version: &'a str,
    pub is_terminating: bool,
}

/// The writes that a store does not show yet.
#[derive(Debug, Default, PartialEq)]
pub struct Unconfirmed {
    /// Names of children that are outdated in the store.
    pub old: HashSet<String>,
    /// Names of children that we deleted and that the store still shows as running.
    pub terminating: HashSet<String>,
    /// Names of children that are not in the store.
    pub unseen: BTreeSet<String>,
}

impl WriteCache {
    fn expect(&self, children_of: &ChildrenOf, name: &str, expected: Expectation, at: Timestamp) {
        let mut all = lock(&self.expectations);
        let children = all.entry(children_of.clone()).or_default();
        if let (Some(old), Expectation::Changed { version }) = (children.get(name), &expected) {
            let outlasts = match &old.expected {
                Expectation::Made { .. } => false,
                Expectation::Removed { .. } => true,
                // Concurrent changes may be answered in any order.
                Expectation::Changed { version: old } => is_as_new(old, version),
            };
            if outlasts {
                return;
            }
        }
        children.insert(name.to_owned(), Entry { expected, at });
    }

    /// Records that a child was created.
    pub fn made(&self, children_of: &ChildrenOf, name: &str, version: Option<String>, at: Timestamp) {
        self.expect(children_of, name, Expectation::Made { version }, at);
    }

    /// Records that a child was deleted.
    pub fn removed(&self, children_of: &ChildrenOf, name: &str, uid: &str, at: Timestamp) {
        self.expect(children_of, name, Expectation::Removed { uid: uid.to_owned() }, at);
    }

    /// Records that a child was changed.
    pub fn changed(&self, children_of: &ChildrenOf, name: &str, version: &str, at: Timestamp) {
        self.expect(children_of, name, Expectation::Changed { version: version.to_owned() }, at);
    }

    /// Compares the store with the recorded writes, and drops those that the store has caught up with. `newest` is
    /// the newest resourceVersion that the store has processed, of any object.
    pub fn unconfirmed<'a>(
        &self,
        children_of: &ChildrenOf,
        shown: impl IntoIterator<Item = StoreEntry<'a>>,
        newest: u64,
        now: Timestamp,
    ) -> Unconfirmed {
        let mut all = lock(&self.expectations);
        let Some(children) = all.get_mut(children_of) else { return Unconfirmed::default() };
        children.retain(|_, entry| now.duration_since(entry.at) < BOUND);
        let mut unconfirmed = Unconfirmed::default();
        let mut met = HashSet::new();
        for child in shown {
            let Some(entry) = children.get(child.name) else { continue };
            met.insert(child.name);
            let caught_up = match &entry.expected {
                Expectation::Made { .. } => true,
                Expectation::Removed { uid } => uid != child.uid || child.is_terminating,
                Expectation::Changed { version } => is_as_new(child.version, version),
            };
            if caught_up {
                children.remove(child.name);
            } else if matches!(entry.expected, Expectation::Removed { .. }) {
                unconfirmed.terminating.insert(child.name.to_owned());
            } else {
                unconfirmed.old.insert(child.name.to_owned());
            }
        }
        children.retain(|name, entry| match &entry.expected {
            // If the store is past this version and does not have the object, it was created and deleted in between.
            Expectation::Made { version } => {
                let made: Option<u64> = version.as_deref().and_then(|version| version.parse().ok());
                made.is_none_or(|made| made > newest)
            }
            // A deleted or changed child that is no longer in the store is confirmed.
            Expectation::Removed { .. } | Expectation::Changed { .. } => met.contains(name.as_str()),
        });
        let unseen = children.iter().filter(|(_, entry)| matches!(entry.expected, Expectation::Made { .. }));
        unconfirmed.unseen = unseen.map(|(name, _)| name.clone()).collect();
        if children.is_empty() {
            all.remove(children_of);
        }
        unconfirmed
    }

    /// Whether this status was already written and the store still shows the previous version.
    pub fn is_status_written(&self, object: &str, status: Fingerprint, version: &str) -> bool {
        lock(&self.statuses).get(object).is_some_and(|(written, shown)| *written == status && shown == version)
    }

    /// Records that a status was written while the store showed this version.
    pub fn status_written(&self, object: &str, status: Fingerprint, version: &str) {
        lock(&self.statuses).insert(object.to_owned(), (status, version.to_owned()));
    }

    /// Drops what is recorded for a deleted object.
    pub fn forget(&self, object: &str) {
        lock(&self.statuses).remove(object);
        lock(&self.expectations).retain(|children_of, _| children_of.owner != object);
    }

    /// The key of an object in this cache. Kinds of two API groups may have one name.
    pub fn key(group: &str, kind: &str, metadata: &ObjectMeta) -> String {
        format!("{kind}.{group} {:?} {:?}", metadata.namespace, metadata.name)
    }

    /// Whether applying this again would change nothing: it was applied last, and the live object is unchanged since.
    pub fn is_applied(&self, object: &str, desired: Fingerprint, seen: Option<Fingerprint>) -> bool {
        seen.is_some_and(|seen| lock(&self.applied).get(object) == Some(&(desired, seen)))
    }

    /// Drops the record of an apply.
    pub fn unapplied(&self, object: &str) {
        lock(&self.applied).remove(object);
    }

    /// Records an apply and the resulting live object.
    pub fn applied(&self, object: &str, desired: Fingerprint, left: Fingerprint) {
        lock(&self.applied).insert(object.to_owned(), (desired, left));
    }
}

/// resourceVersions increase; if one does not parse, treat it as seen rather than wait forever.
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

    fn pods(owner: &str) -> ChildrenOf {
        ChildrenOf::new(owner, "Pod")
    }

    fn store_entry<'a>(name: &'a str, uid: &'a str, version: &'a str) -> StoreEntry<'a> {
        StoreEntry { name, uid, version, is_terminating: false }
    }

    #[test]
    fn a_created_child_counts_until_the_store_shows_it() {
        let write_cache = WriteCache::default();
        write_cache.made(&pods("set"), "w-0", Some("5".into()), NOW);
        assert_eq!(write_cache.unconfirmed(&pods("set"), [], 4, NOW).unseen, ["w-0".to_owned()].into());
        assert_eq!(
            write_cache.unconfirmed(&pods("other"), [], 4, NOW),
            Unconfirmed::default(),
            "each owner on its own"
        );
        write_cache.made(&ChildrenOf::new("set", "PersistentVolumeClaim"), "data-w-0", Some("5".into()), NOW);
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [], 4, NOW).unseen,
            ["w-0".to_owned()].into(),
            "each kind on its own"
        );
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [store_entry("w-0", "u", "5")], 4, NOW),
            Unconfirmed::default()
        );
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [], 4, NOW),
            Unconfirmed::default(),
            "once shown it is confirmed: it may have been deleted since"
        );
    }

    #[test]
    fn a_deleted_child_is_unconfirmed_until_the_store_shows_it() {
        let write_cache = WriteCache::default();
        write_cache.removed(&pods("set"), "w-0", "u", NOW);
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [store_entry("w-0", "u", "5")], 4, NOW).terminating,
            ["w-0".to_owned()].into()
        );
        let terminating = StoreEntry { is_terminating: true, ..store_entry("w-0", "u", "6") };
        assert_eq!(write_cache.unconfirmed(&pods("set"), [terminating], 4, NOW), Unconfirmed::default());
        write_cache.removed(&pods("set"), "w-0", "u", NOW);
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [store_entry("w-0", "another", "9")], 4, NOW),
            Unconfirmed::default()
        );
        write_cache.removed(&pods("set"), "w-0", "u", NOW);
        assert_eq!(write_cache.unconfirmed(&pods("set"), [], 4, NOW), Unconfirmed::default());
    }

    #[test]
    fn a_changed_child_is_unconfirmed_until_the_store_is_as_new() {
        let write_cache = WriteCache::default();
        write_cache.changed(&pods("set"), "w-0", "10", NOW);
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [store_entry("w-0", "u", "9")], 4, NOW).old,
            ["w-0".to_owned()].into()
        );
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [store_entry("w-0", "u", "10")], 4, NOW),
            Unconfirmed::default()
        );
        write_cache.changed(&pods("set"), "w-0", "12", NOW);
        write_cache.changed(&pods("set"), "w-0", "11", NOW);
        assert_eq!(
            write_cache.unconfirmed(&pods("set"), [store_entry("w-0", "u", "11")], 4, NOW).old,
            ["w-0".to_owned()].into(),
            "the newest of two changes counts"
        );
    }

    #[test]
    fn a_child_created_and_deleted_between_two_reads_is_not_waited_for() {
        let write_cache = WriteCache::default();
        write_cache.made(&pods("set"), "w-0", Some("5".into()), NOW);
        write_cache.made(&pods("set"), "w-1", None, NOW);
        let unseen = |newest| write_cache.unconfirmed(&pods("set"), [], newest, NOW).unseen;
        assert_eq!(unseen(4).len(), 2);
        assert_eq!(unseen(5), ["w-1".to_owned()].into(), "the version of the other one is unknown");
    }

    #[test]
    fn unconfirmed_writes_expire() {
        let write_cache = WriteCache::default();
        write_cache.made(&pods("set"), "w-0", Some("5".into()), NOW);
        assert_eq!(write_cache.unconfirmed(&pods("set"), [], 4, NOW + BOUND), Unconfirmed::default());
    }

    #[test]
    fn a_status_is_written_once_while_the_store_lags() {
        let write_cache = WriteCache::default();
        let fingerprint = |text: &str| Fingerprint::of_value(&json!(text));
        write_cache.status_written("uid", fingerprint("ready"), "5");
        assert!(write_cache.is_status_written("uid", fingerprint("ready"), "5"));
        assert!(!write_cache.is_status_written("uid", fingerprint("waiting"), "5"), "the status has changed");
        assert!(
            !write_cache.is_status_written("uid", fingerprint("ready"), "6"),
            "another writer has changed it since"
        );
        write_cache.forget("uid");
        assert!(!write_cache.is_status_written("uid", fingerprint("ready"), "5"));
    }

    #[test]
    fn an_apply_is_skipped_only_if_nothing_changed() {
        let write_cache = WriteCache::default();
        let fingerprint = |text: &str| Fingerprint::of_value(&json!(text));
        assert!(!write_cache.is_applied("svc", fingerprint("a"), None));
        write_cache.applied("svc", fingerprint("a"), fingerprint("live"));
        assert!(write_cache.is_applied("svc", fingerprint("a"), Some(fingerprint("live"))));
        assert!(
            !write_cache.is_applied("svc", fingerprint("b"), Some(fingerprint("live"))),
            "the desired fields have changed"
        );
        assert!(!write_cache.is_applied("svc", fingerprint("a"), Some(fingerprint("edited"))), "it was edited");
        write_cache.unapplied("svc");
        assert!(!write_cache.is_applied("svc", fingerprint("a"), Some(fingerprint("live"))), "it was deleted");
        assert!(!write_cache.is_applied("svc", fingerprint("a"), None), "it was deleted");
    }
}
