//! Which node names other sets have.

use engine::podset::{OtherSet, Reserved};
use jiff::SignedDuration;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use slurm_operator_api::slinky::NodeSet;

use super::NOW;
use crate::{
    frontends,
    frontends::slinky::nodeset::others,
    kube_view::{
        own_writes::{ChildrenOf, OwnWrites},
        stores::{Store, Workers},
    },
};

fn set(name: &str, created: i64) -> Value {
    let created = NOW + SignedDuration::from_secs(created);
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": created},
        "spec": {"controllerRef": {"name": "slurm"}, "template": {"spec": {"hostname": "gpu-"}}, "replicas": 2},
    })
}

/// What our set sees if the other one was created at this second; ours was at second 5.
fn seen(created: i64, store: &Workers, own_writes: &OwnWrites) -> Vec<OtherSet> {
    let ours: NodeSet = serde_json::from_value(set("ours", 5)).unwrap();
    let all = [set("ours", 5), set("other", created)].map(|set| serde_json::from_value(set).unwrap());
    others(&ours, &all, store, own_writes, NOW)
}

/// A store with pods of these sets: name of the pod, its Slurm cluster, and whether a set owns it.
fn store(pods: &[(&str, &str, bool)]) -> Workers {
    let store = Workers::new(frontends::vocabularies());
    for (name, cluster, is_owned) in pods {
        let (set, number) = name.split_once('-').unwrap();
        let owner = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": set, "uid": set, "controller": true,
        });
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1",
                "ownerReferences": is_owned.then_some(owner).into_iter().collect::<Vec<_>>(),
                "labels": {
                    "app.kubernetes.io/name": "slurmd", "app.kubernetes.io/instance": set,
                    "slinky.slurm.net/cluster": cluster,
                },
            },
            "spec": {"hostname": format!("gpu-{number}")}, "status": {},
        });
        store.take(None, Event::Apply(serde_json::from_value(pod).unwrap()), &|_| {});
    }
    store
}

fn node_names(other: &OtherSet) -> Vec<&str> {
    let mut names: Vec<&str> = other.workers.iter().filter_map(|worker| worker.slurm_node()).collect();
    names.sort_unstable();
    names
}

#[test]
fn names_of_other_sets_that_are_just_being_created_are_reserved() {
    let own_writes = OwnWrites::default();
    let reserved = |created: i64| {
        let others = seen(created, &store(&[]), &own_writes);
        assert_eq!(others.len(), 1);
        match &others[0].reserved {
            Some(Reserved::Numbered { count, .. }) => Some(*count),
            _ => None,
        }
    };
    assert_eq!(reserved(0), Some(2), "the older one has priority");
    assert_eq!(reserved(9), None, "of the younger one only the workers count");
    own_writes.children.created(&ChildrenOf::new("other", "Pod"), "other-1", None, NOW);
    assert_eq!(reserved(9), Some(u32::MAX), "which are not all known yet");
}

#[test]
fn workers_without_an_owner_or_whose_set_is_gone_have_names_as_well() {
    let pods = [
        ("ours-0", "slurm", true),
        ("other-1", "slurm", true),
        ("other-2", "slurm", false),
        ("gone-3", "slurm", true),
        ("gone-4", "slurm", false),
        ("elsewhere-5", "another", false),
    ];
    let others = seen(9, &store(&pods), &OwnWrites::default());
    let names: Vec<_> = others.iter().map(|other| (other.name.as_str(), node_names(other))).collect();
    assert_eq!(names, [("other", vec!["gpu-1", "gpu-2"]), ("gone", vec!["gpu-3", "gpu-4"])]);
}
