//! Counts of the pods of a Slurm cluster, kept up to date from watch events.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use kube::{ResourceExt, core::Object};
use serde::{Deserialize, Serialize};
use slurm_operator_api::{common::conditions, slinky::names};

/// The value of the label `app.kubernetes.io/name` of workers.
pub const WORKER: &str = "slurmd";

/// The fields of a pod that are counted.
pub type SlimPod = Object<Spec, Status>;

/// See [`SlimPod`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    hostname: String,
}

/// See [`SlimPod`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    phase: String,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// Numbers of pods by state. All but the last one count workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    /// Workers that exist.
    pub all: u32,
    /// Workers that run, or did.
    pub running: u32,
    /// Workers with the condition `Ready`.
    pub ready: u32,
    /// Workers with a condition for the state of their Slurm node.
    pub registered: u32,
    /// Workers with the protect label.
    pub protected: u32,
    /// Workers that were created after the last [`PodTracker::start_update`], ready and registered.
    pub updated: u32,
    /// Pods of slurmctld and slurmrestd with the condition `Ready`.
    pub daemons_ready: u32,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is counted on its own")]
struct TrackedPod {
    uid: String,
    node: String,
    /// How many updates had been started when the pod was first seen.
    update: u32,
    is_worker: bool,
    is_running: bool,
    is_ready: bool,
    is_registered: bool,
    is_protected: bool,
    is_terminating: bool,
}

/// What a change of a worker's pod means for its Slurm node, or for its kubelet.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// slurmd started: the node with this name registers.
    Register(String),
    /// slurmd is gone: the node with this name stops responding.
    Lose(String),
    /// The kubelet would finish the deletion now.
    Finish(Deletion),
}

/// A pod that is being deleted.
#[derive(Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Its name.
    pub pod: String,
    /// Identifies it among pods of that name.
    pub uid: String,
}

/// All pods that were seen, and their counts.
#[derive(Debug, Default)]
pub struct PodTracker {
    pods: HashMap<String, TrackedPod>,
    updates: u32,
    counts: PodCounts,
    ready_since: Option<Timestamp>,
}

impl PodTracker {
    /// The present numbers.
    pub fn counts(&self) -> PodCounts {
        self.counts
    }

    /// When the number of ready workers last changed.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.ready_since
    }

    /// Counts workers as updated if they are created from now on.
    pub fn start_update(&mut self) {
        self.updates += 1;
        self.counts.updated = 0;
    }

    /// Adds or updates a pod.
    pub fn apply(&mut self, pod: &SlimPod) -> Vec<Effect> {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let mut effects = Vec::new();
        if self.pods.get(&name).is_some_and(|known| known.uid != uid) {
            effects.extend(self.remove(&name));
        }
        let has = |type_: &dyn Fn(&str) -> bool| {
            let mut all = pod.status.iter().flat_map(|status| &status.conditions);
            all.any(|condition| type_(&condition.type_) && condition.status == "True")
        };
        let old = self.pods.remove(&name);
        let was_terminating = old.as_ref().is_some_and(|old| old.is_terminating);
        let is_terminating = pod.metadata.deletion_timestamp.is_some();
        let is_worker = pod.labels().get(names::label::NAME).is_some_and(|name| name == WORKER);
        // Without a grace period the API server deletes the pod itself.
        let has_grace = pod.metadata.deletion_grace_period_seconds != Some(0);
        if is_worker && is_terminating && !was_terminating && has_grace {
            effects.push(Effect::Finish(Deletion { pod: name.clone(), uid: uid.clone() }));
        }
        let runs = pod.status.as_ref().is_some_and(|status| status.phase == "Running");
        let has_run = old.as_ref().is_some_and(|old| old.is_running);
        let new = TrackedPod {
            uid,
            node: pod.spec.hostname.clone(),
            update: old.as_ref().map_or(self.updates, |old| old.update),
            is_worker,
            is_running: runs || has_run,
            is_ready: has(&|type_| type_ == "Ready"),
            is_registered: has(&|type_| type_.starts_with(conditions::POD_PREFIX)),
            is_protected: pod.labels().get(names::label::POD_PROTECT).is_some_and(|value| value == names::TRUE),
            is_terminating,
        };
        if is_worker && runs && !has_run && !is_terminating {
            effects.push(Effect::Register(new.node.clone()));
        }
        self.count(old.as_ref(), Some(&new));
        self.pods.insert(name, new);
        effects
    }

    /// Removes a pod that was deleted.
    pub fn remove(&mut self, name: &str) -> Option<Effect> {
        let pod = self.pods.remove(name)?;
        self.count(Some(&pod), None);
        (pod.is_worker && pod.is_running).then_some(Effect::Lose(pod.node))
    }

    /// Removes pods that a new list does not contain.
    pub fn retain(&mut self, listed: &HashSet<String>) -> Vec<Effect> {
        let gone: Vec<String> = self.pods.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        gone.iter().filter_map(|name| self.remove(name)).collect()
    }

    /// Adjusts the counts for one changed pod: counting ten thousand pods for each change would distort the measurement.
    fn count(&mut self, old: Option<&TrackedPod>, new: Option<&TrackedPod>) {
        let ready_before = self.counts.ready;
        let (updates, counts) = (self.updates, &mut self.counts);
        let count = |field: &mut u32, is: &dyn Fn(&TrackedPod) -> bool| {
            *field = (*field + u32::from(new.is_some_and(is))).saturating_sub(u32::from(old.is_some_and(is)));
        };
        count(&mut counts.all, &|pod| pod.is_worker);
        count(&mut counts.running, &|pod| pod.is_worker && pod.is_running);
        count(&mut counts.ready, &|pod| pod.is_worker && pod.is_ready);
        count(&mut counts.registered, &|pod| pod.is_worker && pod.is_registered);
        count(&mut counts.protected, &|pod| pod.is_worker && pod.is_protected);
        count(&mut counts.updated, &|pod| pod.is_worker && pod.update == updates && pod.is_ready && pod.is_registered);
        count(&mut counts.daemons_ready, &|pod| !pod.is_worker && pod.is_ready);
        if counts.ready != ready_before {
            self.ready_since = Some(Timestamp::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn worker(name: &str, uid: &str, phase: &str, conditions: &[&str]) -> SlimPod {
        pod_of(WORKER, name, uid, phase, conditions)
    }

    fn pod_of(daemon: &str, name: &str, uid: &str, phase: &str, conditions: &[&str]) -> SlimPod {
        let conditions: Vec<Value> = conditions.iter().map(|type_| json!({"type": type_, "status": "True"})).collect();
        let pod = json!({
            "metadata": {"name": name, "uid": uid, "labels": {names::label::NAME: daemon}},
            "spec": {"hostname": format!("host-{name}"), "containers": []},
            "status": {"phase": phase, "conditions": conditions},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_slurm_node_registers_when_its_pod_runs_and_is_lost_with_it() {
        let mut pods = PodTracker::default();
        let node = || "host-a".to_owned();
        assert_eq!(pods.apply(&worker("a", "1", "Pending", &[])), []);
        assert_eq!(pods.apply(&worker("a", "1", "Running", &["Ready"])), [Effect::Register(node())]);
        assert_eq!(pods.apply(&worker("a", "1", "Running", &["Ready", "SlurmNodeStateIdle"])), []);
        let expected = PodCounts { all: 1, running: 1, ready: 1, registered: 1, updated: 1, ..PodCounts::default() };
        assert_eq!(pods.counts, expected);
        let replaced = worker("a", "2", "Running", &[]);
        let effects = pods.apply(&replaced);
        assert_eq!(effects, [Effect::Lose(node()), Effect::Register(node())], "the watch missed the deletion");
        assert_eq!(pods.retain(&HashSet::new()), [Effect::Lose(node())]);
        assert_eq!(pods.counts, PodCounts::default());
    }

    #[test]
    fn the_deletion_of_a_pod_is_finished_once() {
        let mut pods = PodTracker::default();
        let terminating = |uid: &str, grace: i64| {
            let mut pod = worker("a", uid, "Running", &[]);
            pod.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
            pod
        };
        let finish = |uid: &str| Effect::Finish(Deletion { pod: "a".into(), uid: uid.into() });
        pods.apply(&worker("a", "1", "Running", &[]));
        assert_eq!(pods.apply(&terminating("1", 30)), [finish("1")]);
        assert_eq!(pods.apply(&terminating("1", 30)), []);
        let effects = pods.apply(&terminating("2", 30));
        assert_eq!(effects, [Effect::Lose("host-a".into()), finish("2")], "another pod of that name");
        pods.remove("a");
        assert_eq!(pods.apply(&terminating("3", 0)), [], "the API server deletes it");
    }

    #[test]
    fn a_worker_is_updated_when_its_new_pod_is_registered() {
        let mut pods = PodTracker::default();
        pods.apply(&worker("a", "1", "Running", &["Ready", "SlurmNodeStateIdle"]));
        pods.start_update();
        assert_eq!(pods.counts.updated, 0);
        pods.apply(&worker("a", "2", "Running", &["Ready"]));
        assert_eq!(pods.counts.updated, 0, "not registered yet");
        pods.apply(&worker("a", "2", "Running", &["Ready", "SlurmNodeStateIdle"]));
        assert_eq!(pods.counts.updated, 1);
    }

    #[test]
    fn slurmctld_and_slurmrestd_are_counted_apart() {
        let mut pods = PodTracker::default();
        for daemon in ["slurmctld", "slurmrestd"] {
            assert_eq!(pods.apply(&pod_of(daemon, daemon, "1", "Pending", &[])), []);
            assert_eq!(pods.apply(&pod_of(daemon, daemon, "1", "Running", &["Ready"])), []);
        }
        assert_eq!(pods.counts, PodCounts { daemons_ready: 2, ..PodCounts::default() });
        assert_eq!(pods.remove("slurmctld"), None);
        assert_eq!(pods.counts.daemons_ready, 1);
    }
}
