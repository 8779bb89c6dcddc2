//! Chooses the current revision of a set, and prunes old ones. Pure.

use std::collections::HashSet;

use engine::{
    daemons::shared::{Parent, SLURMD, desired},
    hash::hash,
    plan::{Desired, ObjectVersion},
    quantity,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::{Map, Value, json};
use slurm_operator_api::slinky::{
    NodeSet, VOCABULARY,
    names::{self, annotation, label},
};

use super::plan::{Facts, Revision};

/// The current revision.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The revision label of pods created from it.
    pub hash: String,
    /// How to write it, if it is missing or is not the newest.
    pub step: Option<Desired>,
}

/// Finds the revision that matches the current spec, or creates one. Reverting to an old template reuses its
/// revision, so that its pods are not replaced. Revisions of the Go operator are reused too, whatever their hash.
pub fn choose(set: &NodeSet, revisions: &[Revision]) -> Chosen {
    let content = content(set);
    let (wanted, lenient) = (exact(&content), canonical(&essence(&content)));
    let newest = revisions.iter().map(|revision| revision.number).max().unwrap_or(0);
    // Revisions of the Go operator are compared without empty values: it also writes fields that are not set. It writes
    // quantities in their canonical form.
    let is_same = |revision: &&Revision| {
        exact(&revision.data) == wanted || (canonical(&essence(&revision.data)) == lenient && !is_ours(revision))
    };
    let same = revisions.iter().filter(is_same).max_by_key(|revision| revision.number);
    match same {
        Some(found) if found.number == newest && found.claim_templates.is_some() => {
            Chosen { hash: found.hash.clone(), step: None }
        }
        Some(found) => {
            let number = if found.number == newest { newest } else { newest + 1 };
            let step = revision_object(set, &found.hash, number, &found.data);
            Chosen { hash: found.hash.clone(), step: Some(step) }
        }
        None => {
            let hash = hash_of(&wanted);
            let step = revision_object(set, &hash, newest + 1, &content);
            Chosen { hash, step: Some(step) }
        }
    }
}

/// While the spec is invalid, workers are compared with the newest valid revision.
pub fn newest(chosen: Chosen, revisions: &[Revision]) -> Chosen {
    let newest = revisions.iter().max_by_key(|revision| revision.number);
    Chosen { hash: newest.map_or(chosen.hash, |revision| revision.hash.clone()), step: None }
}

/// Old revisions beyond the history limit. Revisions in use by a pod, also by one that may be adopted, are always kept.
pub fn prune(set: &NodeSet, facts: &Facts, chosen: &Chosen) -> Vec<ObjectVersion> {
    // Which revision those have is not known yet.
    if !facts.podset.creating.is_empty() {
        return Vec::new();
    }
    let pods = facts.podset.workers.iter().chain(&facts.podset.orphans);
    let in_use: HashSet<&str> = pods.filter_map(|worker| worker.revision.as_deref()).collect();
    let mut old: Vec<&Revision> = facts
        .revisions
        .iter()
        .filter(|revision| revision.hash != chosen.hash && !in_use.contains(&*revision.hash))
        .collect();
    old.sort_by_key(|revision| std::cmp::Reverse(revision.number));
    let keep = usize::try_from(set.spec.revision_history_limit()).unwrap_or(usize::MAX);
    old.into_iter().skip(keep).map(|revision| revision.object.clone()).collect()
}

/// The newest revision that records the claim templates of the set, if the spec has others.
pub fn with_other_claim_templates<'a>(set: &NodeSet, revisions: &'a [Revision]) -> Option<&'a Revision> {
    let newest = revisions.iter().filter(|revision| revision.claim_templates.is_some());
    let newest = newest.max_by_key(|revision| revision.number)?;
    let former: Option<Value> = newest.claim_templates.as_ref().and_then(|text| serde_json::from_str(text).ok());
    former.is_some_and(|former| essence(&former) != claim_templates(set)).then_some(newest)
}

/// The claim templates, where absent, null, "" and {} are one.
fn claim_templates(set: &NodeSet) -> Value {
    essence(&serde_json::to_value(&set.spec.volume_claim_templates).unwrap_or_default())
}

/// The fields that make pods differ, in the format of the Go operator.
fn content(set: &NodeSet) -> Value {
    let spec = serde_json::to_value(&set.spec).unwrap_or_default();
    let part = |field: &str| {
        let mut value = spec.get(field).cloned().unwrap_or_else(|| json!({}));
        if let Some(fields) = value.as_object_mut() {
            fields.insert("$patch".to_owned(), json!("replace"));
        }
        value
    };
    json!({"spec": {
        "template": part("template"),
        "slurmd": part("slurmd"),
        "logfile": part("logfile"),
        "ssh": part("ssh"),
        "ordinalPadding": set.spec.ordinal_padding,
        "oversubscribeNode": set.spec.oversubscribe_node,
        "extraConf": set.spec.extra_conf,
        "gres": set.spec.gres,
    }})
}

/// Whether we have made a revision: its name has our hash, today's or that of releases that ignored empty values.
fn is_ours(revision: &Revision) -> bool {
    [exact(&revision.data), essence(&revision.data)].iter().any(|content| hash_of(content) == revision.hash)
}

fn hash_of(content: &Value) -> String {
    let text = content.to_string();
    let mut hash = hash([("", text.as_str())]);
    hash.truncate(10);
    hash
}

/// The content without patch directives. In the user's templates an explicit false, 0, "" or null has a meaning; elsewhere
/// it is the same as no value.
fn exact(content: &Value) -> Value {
    let mut exact = essence(content);
    for path in ["/spec/template/spec", "/spec/slurmd", "/spec/logfile"] {
        let Some(Value::Object(fields)) = content.pointer(path) else { continue };
        let kept: Map<String, Value> = fields
            .iter()
            .filter(|(key, _)| *key != "$patch")
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if !kept.is_empty() {
            insert(&mut exact, path, kept.into());
        }
    }
    exact
}

/// Sets the value at a path of keys.
fn insert(value: &mut Value, path: &str, new: Value) {
    let (parents, key) = path.rsplit_once('/').unwrap_or(("", path));
    let mut parent = value;
    for name in parents.split('/').skip(1) {
        let Value::Object(fields) = parent else { return };
        parent = fields.entry(name).or_insert_with(|| json!({}));
    }
    if let Value::Object(fields) = parent {
        fields.insert(key.to_owned(), new);
    }
}

/// The value without parts that have no meaning: directives of the patch format, and empty values.
fn essence(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept =
                fields.iter().filter(|(key, _)| *key != "$patch").map(|(key, value)| (key.clone(), essence(value)));
            Value::Object(kept.filter(|(_, value)| !is_nothing(value)).collect())
        }
        Value::Array(items) => items.iter().map(essence).collect(),
        other => other.clone(),
    }
}

/// The value with quantities as their amounts: `2`, `"2"` and `"2000m"` are the same.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let of = |(key, value): (&String, &Value)| {
                let value = match key.as_str() {
                    "limits" | "requests" | "overhead" => amounts(value),
                    "sizeLimit" | "divisor" => amount(value),
                    _ => canonical(value),
                };
                (key.clone(), value)
            };
            Value::Object(fields.iter().map(of).collect())
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        other => other.clone(),
    }
}

fn amounts(value: &Value) -> Value {
    let Value::Object(fields) = value else { return canonical(value) };
    Value::Object(fields.iter().map(|(key, value)| (key.clone(), amount(value))).collect())
}

/// A quantity in thousandths; other values as they are.
fn amount(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return canonical(other),
    };
    quantity::milli(&text).map_or_else(|| value.clone(), |milli| format!("{milli}m").into())
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// A revision as an API object. Claim templates are not a part of its content: there they would make a new revision of every set
/// of an earlier release or of the Go operator.
fn revision_object(set: &NodeSet, hash: &str, number: i64, data: &Value) -> Desired {
    let parent = Parent::of(set, &VOCABULARY);
    let name = names::revision(&parent.name, hash);
    let mut metadata = parent.metadata(name, SLURMD, &[]);
    metadata.labels.get_or_insert_default().insert(label::REVISION.to_owned(), hash.to_owned());
    let claims = claim_templates(set).to_string();
    metadata.annotations.get_or_insert_default().insert(annotation::CLAIM_TEMPLATES.to_owned(), claims);
    desired::<ControllerRevision>(metadata, json!({"revision": number, "data": data}))
}

/// The hash that releases gave which ignored empty values.
#[cfg(test)]
pub(super) fn earlier_hash(data: &Value) -> String {
    hash_of(&essence(data))
}
