//! Own writes that the stores may not show yet.
//!
//! Stores lag behind the API server. Planning from a store right after a write would repeat the write, for example
//! create a second worker. So every write to a child that is planned from a store is remembered until the store has
//! caught up.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Mutex,
};

use engine::{plan::Fingerprint, podset::Attempt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::lock::lock;

/// After this time the store is trusted again: if it has not caught up by then, the watch was lost, and the relist
/// shows everything.
const BOUND: SignedDuration = SignedDuration::from_secs(15);

/// Old attempts are dropped when there are this many, or a multiple.
const PRUNE_EVERY: usize = 64;

/// Longer than the time between two attempts.
const ATTEMPTS_KEPT: SignedDuration = SignedDuration::from_mins(15);

#[derive(Clone, Debug, PartialEq)]
enum Expectation {
    /// Created at this resourceVersion; `None` if the response was lost.
    Created { version: Option<String> },
    /// Deleted.
    Deleted { uid: String },
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
pub struct OwnWrites {
    pub children: Expectations,
    pub applied: AppliedCache,
    pub statuses: StatusCache,
    pub attempts: Attempts,
    pub names: Names,
}

impl OwnWrites {
    /// Drops what is recorded for a deleted object.
    pub fn forget(&self, object: &str) {
        lock(&self.statuses.0).remove(object);
        lock(&self.children.0).retain(|children_of, _| children_of.owner != object);
    }
}

/// Writes to children that are planned from a store, until the store shows them.
#[derive(Debug, Default)]
pub struct Expectations(Mutex<HashMap<ChildrenOf, Children>>);

/// What was applied last, and what the object looked like afterwards.
#[derive(Debug, Default)]
pub struct AppliedCache(Mutex<HashMap<String, (Fingerprint, Fingerprint)>>);

/// By object: the fingerprint of the written status, and the resourceVersion in the store at that time.
#[derive(Debug, Default)]
pub struct StatusCache(Mutex<HashMap<String, (Fingerprint, String)>>);

/// The last attempts to make a worker register again, by UID of the pod. Kept only here: after a restart, asking once more
/// does no harm.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<String, Attempt>>);

/// Names that objects of one owner have exclusively, with the owner that used them last.
#[derive(Debug, Default)]
pub struct Names(Mutex<HashMap<String, (String, Timestamp)>>);

impl Names {
    /// Takes a name for an object that is about to be created. False if another owner took it a moment ago, so that its object may not
    /// be in the store yet.
    pub fn take(&self, name: &str, owner: &str, now: Timestamp) -> bool {
        let mut all = lock(&self.0);
        let is_recent = |at: Timestamp| now.duration_since(at).abs() < BOUND;
        if all.get(name).is_some_and(|(other, at)| other != owner && is_recent(*at)) {
            return false;
        }
        if all.len().is_multiple_of(PRUNE_EVERY) {
            all.retain(|_, (_, at)| is_recent(*at));
        }
        all.insert(name.to_owned(), (owner.to_owned(), now));
        true
    }
}

impl Attempts {
    /// Records an attempt, and drops old ones of workers that are gone.
    pub fn insert(&self, pod: &str, attempt: Attempt) {
        let mut all = lock(&self.0);
        if all.len().is_multiple_of(PRUNE_EVERY) {
            all.retain(|_, old| attempt.at.duration_since(old.at).abs() < ATTEMPTS_KEPT);
        }
        all.insert(pod.to_owned(), attempt);
    }

    /// The attempts of these pods.
    pub fn of<'a>(&self, pods: impl Iterator<Item = &'a str>) -> HashMap<String, Attempt> {
        let all = lock(&self.0);
        if all.is_empty() {
            return HashMap::new();
        }
        pods.filter_map(|pod| Some((pod.to_owned(), all.get(pod)?.clone()))).collect()
    }
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

impl Expectations {
    fn expect(&self, children_of: &ChildrenOf, name: &str, expected: Expectation, at: Timestamp) {
        let mut all = lock(&self.0);
        let children = all.entry(children_of.clone()).or_default();
        if let (Some(old), Expectation::Changed { version }) = (children.get(name), &expected) {
            let outlasts = match &old.expected {
                Expectation::Created { .. } => false,
                Expectation::Deleted { .. } => true,
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
    pub fn created(&self, children_of: &ChildrenOf, name: &str, version: Option<String>, at: Timestamp) {
        self.expect(children_of, name, Expectation::Created { version }, at);
    }

    /// Records that a child was deleted.
    pub fn deleted(&self, children_of: &ChildrenOf, name: &str, uid: &str, at: Timestamp) {
        self.expect(children_of, name, Expectation::Deleted { uid: uid.to_owned() }, at);
    }

    /// Records that a child was changed.
    pub fn changed(&self, children_of: &ChildrenOf, name: &str, version: &str, at: Timestamp) {
        self.expect(children_of, name, Expectation::Changed { version: version.to_owned() }, at);
    }

    /// Whether a child was created that the store does not show yet. Unlike `unconfirmed` it forgets nothing, so that others than
    /// the owner may ask.
    pub fn has_unseen(&self, children_of: &ChildrenOf, newest: u64, now: Timestamp) -> bool {
        let is_unseen = |entry: &Entry| match &entry.expected {
            Expectation::Created { version } => is_ahead(version.as_deref(), newest),
            Expectation::Deleted { .. } | Expectation::Changed { .. } => false,
        };
        let all = lock(&self.0);
        let mut children = all.get(children_of).into_iter().flat_map(HashMap::values);
        children.any(|entry| now.duration_since(entry.at) < BOUND && is_unseen(entry))
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
        let mut all = lock(&self.0);
        let Some(children) = all.get_mut(children_of) else { return Unconfirmed::default() };
        children.retain(|_, entry| now.duration_since(entry.at) < BOUND);
        let mut unconfirmed = Unconfirmed::default();
        let mut met = HashSet::new();
        for child in shown {
            let Some(entry) = children.get(child.name) else { continue };
            met.insert(child.name);
            let caught_up = match &entry.expected {
                Expectation::Created { .. } => true,
                Expectation::Deleted { uid } => uid != child.uid || child.is_terminating,
                Expectation::Changed { version } => is_as_new(child.version, version),
            };
            if caught_up {
                children.remove(child.name);
            } else if matches!(entry.expected, Expectation::Deleted { .. }) {
                unconfirmed.terminating.insert(child.name.to_owned());
            } else {
                unconfirmed.old.insert(child.name.to_owned());
            }
        }
        children.retain(|name, entry| match &entry.expected {
            // If the store is past this version and does not have the object, it was created and deleted in between.
            Expectation::Created { version } => is_ahead(version.as_deref(), newest),
            // A deleted or changed child that is no longer in the store is confirmed.
            Expectation::Deleted { .. } | Expectation::Changed { .. } => met.contains(name.as_str()),
        });
        let unseen = children.iter().filter(|(_, entry)| matches!(entry.expected, Expectation::Created { .. }));
        unconfirmed.unseen = unseen.map(|(name, _)| name.clone()).collect();
        if children.is_empty() {
            all.remove(children_of);
        }
        unconfirmed
    }
}

impl StatusCache {
    /// Whether this status was already written and the store still shows the previous version.
    pub fn has(&self, object: &str, status: Fingerprint, version: &str) -> bool {
        lock(&self.0).get(object).is_some_and(|(written, shown)| *written == status && shown == version)
    }

    /// Records that a status was written while the store showed this version.
    pub fn insert(&self, object: &str, status: Fingerprint, version: &str) {
        lock(&self.0).insert(object.to_owned(), (status, version.to_owned()));
    }
}

impl AppliedCache {
    /// The key of an object in this cache. Kinds of two API groups may have one name.
    pub fn key(group: &str, kind: &str, metadata: &ObjectMeta) -> String {
        format!("{kind}.{group} {:?} {:?}", metadata.namespace, metadata.name)
    }

    /// Whether applying this again would change nothing: it was applied last, and the live object is unchanged since.
    pub fn has(&self, object: &str, desired: Fingerprint, seen: Option<Fingerprint>) -> bool {
        seen.is_some_and(|seen| lock(&self.0).get(object) == Some(&(desired, seen)))
    }

    /// Records an apply and the resulting live object.
    pub fn insert(&self, object: &str, desired: Fingerprint, left: Fingerprint) {
        lock(&self.0).insert(object.to_owned(), (desired, left));
    }

    /// Drops the record of an apply.
    pub fn remove(&self, object: &str) {
        lock(&self.0).remove(object);
    }
}

/// resourceVersions increase; if one does not parse, treat it as seen rather than wait forever.
fn is_as_new(shown: &str, ours: &str) -> bool {
    match (shown.parse::<u64>(), ours.parse::<u64>()) {
        (Ok(shown), Ok(ours)) => shown >= ours,
        _ => true,
    }
}

/// Whether what was created, in this version if that is known, is newer than all that the store has processed.
fn is_ahead(created: Option<&str>, newest: u64) -> bool {
    let created: Option<u64> = created.and_then(|version| version.parse().ok());
    created.is_none_or(|created| created > newest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn pods(owner: &str) -> ChildrenOf {
        ChildrenOf::new(owner, "Pod")
    }

    fn store_entry<'a>(name: &'a str, uid: &'a str, version: &'a str) -> StoreEntry<'a> {
        StoreEntry { name, uid, version, is_terminating: false }
    }

    #[test]
    fn others_may_ask_whether_the_store_shows_all_that_was_created() {
        let own_writes = OwnWrites::default();
        let has_unseen = |newest, at| own_writes.children.has_unseen(&pods("set"), newest, at);
        assert!(!has_unseen(4, NOW));
        own_writes.children.changed(&pods("set"), "w-1", "6", NOW);
        assert!(!has_unseen(4, NOW), "its name is known");
        own_writes.children.created(&pods("set"), "w-0", Some("5".into()), NOW);
        own_writes.children.created(&pods("other"), "w-0", None, NOW);
        assert!(has_unseen(4, NOW) && !has_unseen(5, NOW) && has_unseen(4, NOW), "asking changes nothing");
        assert!(!has_unseen(4, NOW + BOUND));
        let unanswered = own_writes.children.has_unseen(&pods("other"), 9, NOW);
        assert!(unanswered, "without a response it is not known whether and when it was created");
    }

    #[test]
    fn a_name_is_taken_by_one_owner_until_the_store_shows_its_object() {
        let names = Names::default();
        assert!(names.take("ns/slurm/w-0", "a", NOW) && names.take("ns/slurm/w-1", "b", NOW));
        assert!(!names.take("ns/slurm/w-0", "b", NOW), "planned at the same moment");
        assert!(names.take("ns/slurm/w-0", "a", NOW), "created again by its owner");
        assert!(names.take("ns/slurm/w-0", "b", NOW + BOUND), "by now the plan has seen whether it is in use");
    }

    #[test]
    fn a_created_child_counts_until_the_store_shows_it() {
        let own_writes = OwnWrites::default();
        own_writes.children.created(&pods("set"), "w-0", Some("5".into()), NOW);
        assert_eq!(own_writes.children.unconfirmed(&pods("set"), [], 4, NOW).unseen, ["w-0".to_owned()].into());
        assert_eq!(
            own_writes.children.unconfirmed(&pods("other"), [], 4, NOW),
            Unconfirmed::default(),
            "each owner on its own"
        );
        own_writes.children.created(
            &ChildrenOf::new("set", "PersistentVolumeClaim"),
            "data-w-0",
            Some("5".into()),
            NOW,
        );
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [], 4, NOW).unseen,
            ["w-0".to_owned()].into(),
            "each kind on its own"
        );
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [store_entry("w-0", "u", "5")], 4, NOW),
            Unconfirmed::default()
        );
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [], 4, NOW),
            Unconfirmed::default(),
            "once shown it is confirmed: it may have been deleted since"
        );
    }

    #[test]
    fn a_deleted_child_is_unconfirmed_until_the_store_shows_it() {
        let own_writes = OwnWrites::default();
        own_writes.children.deleted(&pods("set"), "w-0", "u", NOW);
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [store_entry("w-0", "u", "5")], 4, NOW).terminating,
            ["w-0".to_owned()].into()
        );
        let terminating = StoreEntry { is_terminating: true, ..store_entry("w-0", "u", "6") };
        assert_eq!(own_writes.children.unconfirmed(&pods("set"), [terminating], 4, NOW), Unconfirmed::default());
        own_writes.children.deleted(&pods("set"), "w-0", "u", NOW);
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [store_entry("w-0", "another", "9")], 4, NOW),
            Unconfirmed::default()
        );
        own_writes.children.deleted(&pods("set"), "w-0", "u", NOW);
        assert_eq!(own_writes.children.unconfirmed(&pods("set"), [], 4, NOW), Unconfirmed::default());
    }

    #[test]
    fn a_changed_child_is_unconfirmed_until_the_store_is_as_new() {
        let own_writes = OwnWrites::default();
        own_writes.children.changed(&pods("set"), "w-0", "10", NOW);
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [store_entry("w-0", "u", "9")], 4, NOW).old,
            ["w-0".to_owned()].into()
        );
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [store_entry("w-0", "u", "10")], 4, NOW),
            Unconfirmed::default()
        );
        own_writes.children.changed(&pods("set"), "w-0", "12", NOW);
        own_writes.children.changed(&pods("set"), "w-0", "11", NOW);
        assert_eq!(
            own_writes.children.unconfirmed(&pods("set"), [store_entry("w-0", "u", "11")], 4, NOW).old,
            ["w-0".to_owned()].into(),
            "the newest of two changes counts"
        );
    }

    #[test]
    fn a_child_created_and_deleted_between_two_reads_is_not_waited_for() {
        let own_writes = OwnWrites::default();
        own_writes.children.created(&pods("set"), "w-0", Some("5".into()), NOW);
        own_writes.children.created(&pods("set"), "w-1", None, NOW);
        let unseen = |newest| own_writes.children.unconfirmed(&pods("set"), [], newest, NOW).unseen;
        assert_eq!(unseen(4).len(), 2);
        assert_eq!(unseen(5), ["w-1".to_owned()].into(), "the version of the other one is unknown");
    }

    #[test]
    fn unconfirmed_writes_expire() {
        let own_writes = OwnWrites::default();
        own_writes.children.created(&pods("set"), "w-0", Some("5".into()), NOW);
        assert_eq!(own_writes.children.unconfirmed(&pods("set"), [], 4, NOW + BOUND), Unconfirmed::default());
    }

    #[test]
    fn a_status_is_written_once_while_the_store_lags() {
        let own_writes = OwnWrites::default();
        let fingerprint = |text: &str| Fingerprint::of_value(&json!(text));
        own_writes.statuses.insert("uid", fingerprint("ready"), "5");
        assert!(own_writes.statuses.has("uid", fingerprint("ready"), "5"));
        assert!(!own_writes.statuses.has("uid", fingerprint("waiting"), "5"), "the status has changed");
        assert!(!own_writes.statuses.has("uid", fingerprint("ready"), "6"), "another writer has changed it since");
        own_writes.forget("uid");
        assert!(!own_writes.statuses.has("uid", fingerprint("ready"), "5"));
    }

    #[test]
    fn an_apply_is_skipped_only_if_nothing_changed() {
        let own_writes = OwnWrites::default();
        let fingerprint = |text: &str| Fingerprint::of_value(&json!(text));
        assert!(!own_writes.applied.has("svc", fingerprint("a"), None));
        own_writes.applied.insert("svc", fingerprint("a"), fingerprint("live"));
        assert!(own_writes.applied.has("svc", fingerprint("a"), Some(fingerprint("live"))));
        assert!(
            !own_writes.applied.has("svc", fingerprint("b"), Some(fingerprint("live"))),
            "the desired fields have changed"
        );
        assert!(!own_writes.applied.has("svc", fingerprint("a"), Some(fingerprint("edited"))), "it was edited");
        own_writes.applied.remove("svc");
        assert!(!own_writes.applied.has("svc", fingerprint("a"), Some(fingerprint("live"))), "it was deleted");
        assert!(!own_writes.applied.has("svc", fingerprint("a"), None), "it was deleted");
    }
}
