//! What belongs into a report: of all that was read, what is about our objects. Pure.

use std::collections::BTreeSet;

use serde_json::Value;
use slurm_operator_api::slinky::names::{GROUP, label};

/// How many workers have their logs in a report: those that are not well first.
pub const MOST_WORKERS: usize = 20;

/// A text of an object, empty if there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// An object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl Name {
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn of(object: &Value) -> Self {
        Self::new(text(object, "/kind"), text(object, "/metadata/namespace"), text(object, "/metadata/name"))
    }
}

fn is_ours(object: &Value) -> bool {
    text(object, "/apiVersion").split('/').next() == Some(GROUP)
}

/// Whether an object was made by one of our charts, or runs one of our programs.
fn has_our_label(object: &Value) -> bool {
    let labels = object.pointer("/metadata/labels");
    let of = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str).unwrap_or_default();
    let part = of("app.kubernetes.io/part-of");
    ["slurm", "slurm-operator"].contains(&part)
        || ["slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-exporter"].contains(&of(label::NAME))
}

/// Our objects, what belongs to them, and what they refer to. Objects of others are left out.
pub fn parts(all: Vec<Value>) -> Vec<Value> {
    let uid = |object: &Value| text(object, "/metadata/uid").to_owned();
    let mut uids: BTreeSet<String> =
        all.iter().filter(|object| is_ours(object) || has_our_label(object)).map(uid).collect();
    // Each round adds the children of the last one.
    loop {
        let owned = |object: &&Value| {
            let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            owners.into_iter().flatten().any(|owner| uids.contains(text(owner, "/uid")))
        };
        let found: Vec<String> = all.iter().filter(owned).map(uid).filter(|uid| !uids.contains(uid)).collect();
        if found.is_empty() {
            break;
        }
        uids.extend(found);
    }
    let is_part = |object: &Value| uids.contains(text(object, "/metadata/uid"));
    let referred = references(all.iter().filter(|object| is_part(object)));
    let (mut parts, others): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_part);
    parts.extend(others.into_iter().filter(|object| referred.contains(&Name::of(object))));
    parts.sort_by_cached_key(Name::of);
    parts
}

/// The Secrets, `ConfigMaps` and claims that objects refer to, in their specs and in the volumes and variables of their pods.
pub fn references<'a>(objects: impl Iterator<Item = &'a Value>) -> BTreeSet<Name> {
    let mut found = BTreeSet::new();
    for object in objects {
        if let Some(spec) = object.get("spec") {
            refer(spec, text(object, "/metadata/namespace"), &mut found);
        }
    }
    found
}

fn refer(value: &Value, namespace: &str, found: &mut BTreeSet<Name>) {
    let fields = match value {
        Value::Array(items) => return items.iter().for_each(|item| refer(item, namespace, found)),
        Value::Object(fields) => fields,
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => return,
    };
    for (key, value) in fields {
        let items: Vec<&Value> = match value {
            Value::Array(items) => items.iter().collect(),
            other => vec![other],
        };
        let names = items.iter().map(|item| text(item, "/name")).filter(|name| !name.is_empty());
        for name in names {
            for kind in kinds_of(key) {
                found.insert(Name::new(kind, namespace, name));
            }
        }
        match (key.as_str(), value.as_str()) {
            ("secretName", Some(name)) => drop(found.insert(Name::new("Secret", namespace, name))),
            ("claimName", Some(name)) => drop(found.insert(Name::new("PersistentVolumeClaim", namespace, name))),
            _ => refer(value, namespace, found),
        }
    }
}

/// Which kinds the name below a field is of. Pull secrets are not looked at, and objects of ours are there anyway.
fn kinds_of(field: &str) -> &'static [&'static str] {
    match field {
        "controllerRef" | "accountingRef" | "imagePullSecrets" => &[],
        "secret" | "secretRef" | "secretKeyRef" => &["Secret"],
        "configMap" | "configMapRef" | "configMapKeyRef" => &["ConfigMap"],
        field if field.ends_with("Ref") || field.ends_with("Refs") => &["ConfigMap", "Secret"],
        _ => &[],
    }
}

/// The namespaces of our objects.
pub fn namespaces(objects: &[Value]) -> BTreeSet<String> {
    objects
        .iter()
        .filter(|object| is_ours(object))
        .map(|object| text(object, "/metadata/namespace").to_owned())
        .collect()
}

/// The events about these objects, and about pods that are gone: they are named after what made them.
pub fn events(events: Vec<Value>, parts: &[Value]) -> Vec<Value> {
    let names: BTreeSet<Name> = parts.iter().map(Name::of).collect();
    let is_about = |event: &Value| {
        let object = event.get("involvedObject").or_else(|| event.get("regarding")).unwrap_or(&Value::Null);
        let about = Name::new(text(object, "/kind"), text(object, "/namespace"), text(object, "/name"));
        let is_gone = || {
            let mut parents = names.iter().filter(|name| name.namespace == about.namespace && name.kind != "Pod");
            about.kind == "Pod" && parents.any(|parent| is_child(&about.name, &parent.name))
        };
        names.contains(&about) || is_gone()
    };
    let mut found: Vec<Value> = events.into_iter().filter(is_about).collect();
    found.sort_by_cached_key(|event| {
        let times = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
        times.iter().map(|pointer| text(event, pointer)).find(|time| !time.is_empty()).unwrap_or_default().to_owned()
    });
    found
}

fn is_child(name: &str, parent: &str) -> bool {
    name.strip_prefix(parent).is_some_and(|rest| rest.starts_with('-'))
}

/// A log of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// Whether it is that of the container before its last restart.
    pub is_previous: bool,
}

/// The logs to read: of all daemons, and of some workers. Second, how many workers were left out.
pub fn logs(parts: &[Value]) -> (Vec<Log>, usize) {
    let pods = parts.iter().filter(|object| text(object, "/kind") == "Pod");
    let (mut workers, daemons): (Vec<&Value>, Vec<&Value>) = pods.partition(|pod| is_worker(pod));
    workers.sort_by_cached_key(|pod| (is_well(pod), Name::of(pod)));
    let left = workers.len().saturating_sub(MOST_WORKERS);
    workers.truncate(MOST_WORKERS);
    (daemons.into_iter().chain(workers).flat_map(logs_of).collect(), left)
}

fn is_worker(pod: &Value) -> bool {
    pod.pointer("/metadata/labels").and_then(|labels| labels.get(label::NAME)).and_then(Value::as_str) == Some("slurmd")
}

/// Whether a worker is ready, was never restarted, and Slurm can use it.
fn is_well(pod: &Value) -> bool {
    let list = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let is_true = |type_: &str| {
        list("/status/conditions").any(|found| text(found, "/type") == type_ && text(found, "/status") == "True")
    };
    let restarts = list("/status/containerStatuses").filter_map(|status| status.get("restartCount")?.as_u64());
    let is_sick = ["Down", "Drain", "Fail", "NotResponding", "InvalidReg"]
        .iter()
        .any(|state| is_true(&format!("SlurmNodeState{state}")));
    is_true("Ready") && !is_sick && restarts.sum::<u64>() == 0
}

fn logs_of(pod: &Value) -> Vec<Log> {
    let mut logs = Vec::new();
    for list in ["initContainerStatuses", "containerStatuses"] {
        for status in pod.pointer(&format!("/status/{list}")).and_then(Value::as_array).into_iter().flatten() {
            let log = |is_previous| Log {
                namespace: text(pod, "/metadata/namespace").to_owned(),
                pod: text(pod, "/metadata/name").to_owned(),
                container: text(status, "/name").to_owned(),
                is_previous,
            };
            // There is nothing to read before it has started.
            if status.pointer("/state/waiting").is_none() || status.pointer("/lastState/terminated").is_some() {
                logs.push(log(false));
            }
            if status.pointer("/lastState/terminated").is_some() {
                logs.push(log(true));
            }
        }
    }
    logs
}

/// A Kubernetes node without the list of its images, which is longer than all the rest.
pub fn without_images(node: &mut Value) {
    if let Some(status) = node.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("images");
    }
}
