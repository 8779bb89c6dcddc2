//! An in-memory API server: objects with versions, and pending watch events in order for each resource.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::{
    api::{core::v1::Service, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use serde_json::{Value, json};
use slurm_operator::kube_view::stores::{SlimNode, SlimPod};
use slurm_operator_api::slinky::NodeSet;

pub const NAMESPACE: &str = "ns";
/// The sets under test. Some scenarios have only the first one.
pub const SETS: [&str; 2] = ["workers", "rivals"];
pub const SET_UIDS: [&str; 2] = ["workers-uid", "rivals-uid"];

/// Which set has this UID.
pub fn set_of(uid: &str) -> Option<usize> {
    SET_UIDS.iter().position(|found| *found == uid)
}

pub type StringMap = BTreeMap<String, String>;

/// The state of the slurmd container, as last reported by the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Not started yet.
    Creating,
    /// Its image cannot be pulled.
    Backoff,
    /// Running since.
    Running(i64),
    /// Terminated.
    Ended,
}

/// Who deleted a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killer {
    /// The operator, planning from the read with this number in the order of events.
    Us {
        /// When Slurm was asked.
        read: u64,
    },
    /// A user, the garbage collector, an eviction.
    Other,
}

/// The actual state of a pod, whatever the API server says.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// Whether slurmd runs.
    pub alive: bool,
    /// When its container starts or restarts.
    pub start_at: i64,
    /// When it becomes ready.
    pub ready_at: i64,
    /// When slurmd registers.
    pub register_at: Option<i64>,
    /// When it last registered, in the order of events.
    pub registered: u64,
    /// The name of its set in Slurm, when it was created.
    pub feature: String,
    /// The name under which it registers, if not the one that the operator expects.
    pub other_name: Option<String>,
    /// Who deleted it.
    pub killer: Option<Killer>,
    /// When the kubelet stops slurmd.
    pub kill_at: i64,
    /// When the kubelet has finished.
    pub gone_at: i64,
    /// When the pod is removed because its machine is gone.
    pub vanished: Option<i64>,
    /// Until when a job runs there that slurmctld has lost.
    pub ghost_until: i64,
    /// Whether its machine has booted since slurmd last registered.
    pub rebooted: bool,
    /// For how many seconds it has been busy without the label, although the operator could see that.
    pub unprotected: i64,
}

/// A worker pod.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub version: u64,
    pub created: i64,
    pub terminating: bool,
    pub owner: String,
    pub labels: StringMap,
    pub annotations: StringMap,
    /// Annotations that the operator has written.
    pub written: BTreeSet<String>,
    pub hostname: String,
    pub target: Option<String>,
    pub node: Option<String>,
    pub image: String,
    pub is_alone: bool,
    pub claims: Vec<String>,
    /// What the scheduler says of a claim that it waits for.
    pub waits_for: Option<String>,
    pub phase: &'static str,
    pub ready: Option<i64>,
    pub slurmd: Container,
    pub conditions: StringMap,
    pub truth: Truth,
}

/// Removes an owner that is gone, and returns whether there are more; `None` if it was no owner.
fn loses(owners: &mut Vec<OwnerReference>, gone: &str) -> Option<bool> {
    let before = owners.len();
    owners.retain(|owner| owner.uid != gone);
    (owners.len() < before).then_some(!owners.is_empty())
}

fn time(second: i64) -> Value {
    json!(jiff::Timestamp::from_second(second).unwrap())
}

impl Pod {
    /// As reported by a watch.
    pub fn slim(&self) -> SlimPod {
        let mut conditions: Vec<Value> = self
            .conditions
            .iter()
            .map(|(type_, message)| json!({"type": type_, "status": "True", "message": message}))
            .collect();
        if let Some(since) = self.ready {
            conditions.push(json!({"type": "Ready", "status": "True", "lastTransitionTime": time(since)}));
        }
        if let Some(why) = &self.waits_for {
            conditions
                .push(json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}));
        }
        let state = match self.slurmd {
            Container::Creating => json!({"waiting": {"reason": "ContainerCreating"}}),
            Container::Backoff => json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            Container::Running(since) => json!({"running": {"startedAt": time(since)}}),
            Container::Ended => json!({"terminated": {"exitCode": 1}}),
        };
        let mut metadata = json!({
            "name": self.name, "namespace": NAMESPACE, "uid": self.uid,
            "resourceVersion": self.version.to_string(), "creationTimestamp": time(self.created),
            "labels": self.labels, "annotations": self.annotations,
        });
        let written: BTreeMap<String, Value> = self.written.iter().map(|key| (format!("f:{key}"), json!({}))).collect();
        let fields = json!({"f:metadata": {"f:annotations": written}});
        metadata["managedFields"] = json!([{"manager": "slurm-operator/patch", "fieldsV1": fields}]);
        if !self.owner.is_empty() {
            metadata["ownerReferences"] = json!([{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "uid": self.owner,
                "name": set_of(&self.owner).map_or("other", |set| SETS[set]),
                "controller": true,
            }]);
        }
        if self.terminating {
            metadata["deletionTimestamp"] = time(self.created);
        }
        let mut spec = json!({"nodeName": self.node, "hostname": self.hostname});
        if let Some(node) = &self.target {
            let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
            spec["affinity"] = json!({"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
            }});
        }
        let status = json!({
            "phase": self.phase, "conditions": conditions,
            "containerStatuses": [{"name": "slurmd", "state": state}],
        });
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }
}

/// The state of a Kubernetes node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Healthy.
    On,
    /// The kubelet does not respond; its containers keep running.
    Silent,
    /// Powered off.
    Off,
}

/// A Kubernetes node.
#[derive(Clone, Debug)]
pub struct Machine {
    pub name: String,
    pub version: u64,
    pub cordoned: bool,
    pub ready: bool,
    pub power: Power,
}

impl Machine {
    /// As reported by a watch.
    pub fn slim(&self) -> SlimNode {
        let mut taints = Vec::new();
        if self.cordoned {
            taints.push(json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}));
        }
        if !self.ready {
            taints.push(json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}));
        }
        let ready = if self.ready { "True" } else { "Unknown" };
        serde_json::from_value(json!({
            "metadata": {"name": self.name, "uid": self.name, "resourceVersion": self.version.to_string()},
            "spec": {"unschedulable": self.cordoned, "taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }
}

/// A claim.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The set that it was made for.
    pub set: usize,
    pub uid: String,
    pub version: u64,
    pub owners: Vec<OwnerReference>,
    /// Whether it is deleted as soon as no pod uses it.
    pub deleting: bool,
}

/// A `ControllerRevision`.
#[derive(Clone, Debug)]
pub struct Revision {
    /// Its set.
    pub set: usize,
    pub uid: String,
    pub version: u64,
    pub number: i64,
    pub data: Value,
    pub annotations: StringMap,
}

/// The resource that a watch event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Machines,
    Pods,
    Set(usize),
}

/// A watch event.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    Pod(Box<Pod>),
    PodGone(Box<Pod>),
    Machine(Machine),
    MachineGone(Machine),
    Set(usize, Box<NodeSet>),
    SetGone(usize),
}

/// All objects.
#[derive(Default)]
pub struct Api {
    version: u64,
    now: i64,
    /// The set that is planned, or that a user edits.
    pub focus: usize,
    pub sets: [Option<NodeSet>; 2],
    pub pods: BTreeMap<String, Pod>,
    pub machines: BTreeMap<String, Machine>,
    pub claims: BTreeMap<String, Claim>,
    pub revisions: BTreeMap<String, Revision>,
    pub service: Option<Service>,
    pub budget: Option<PodDisruptionBudget>,
    /// Events that were not delivered yet, and since when.
    pub undelivered: BTreeMap<Key, VecDeque<(i64, WatchEvent)>>,
}

impl Api {
    /// The set that is planned, or that a user edits.
    pub fn set(&self) -> Option<&NodeSet> {
        self.sets[self.focus].as_ref()
    }

    /// Whether a pod belongs to that set.
    pub fn is_ours(&self, pod: &Pod) -> bool {
        pod.owner == SET_UIDS[self.focus]
    }

    /// A number that was never used before.
    pub fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Sets the current time.
    pub fn at(&mut self, now: i64) {
        self.now = now;
    }

    fn enqueue(&mut self, key: Key, event: WatchEvent) {
        self.undelivered.entry(key).or_default().push_back((self.now, event));
    }

    /// Updates a pod, if it exists.
    pub fn edit(&mut self, name: &str, change: impl FnOnce(&mut Pod)) -> Option<u64> {
        let version = self.next();
        let pod = self.pods.get_mut(name)?;
        change(pod);
        pod.version = version;
        let event = WatchEvent::Pod(Box::new(pod.clone()));
        self.enqueue(Key::Pods, event);
        Some(version)
    }

    pub fn add_pod(&mut self, mut pod: Pod) -> u64 {
        let version = self.next();
        pod.version = version;
        self.enqueue(Key::Pods, WatchEvent::Pod(Box::new(pod.clone())));
        self.pods.insert(pod.name.clone(), pod);
        version
    }

    /// Removes a pod, and what only it owned.
    pub fn remove_pod(&mut self, name: &str) {
        let version = self.next();
        let Some(mut pod) = self.pods.remove(name) else { return };
        pod.version = version;
        self.collect(&pod.uid);
        self.enqueue(Key::Pods, WatchEvent::PodGone(Box::new(pod)));
    }

    /// Deletes shared objects whose last owner is gone. The garbage collector takes longer for claims.
    fn collect(&mut self, owner: &str) {
        let version = self.next();
        for claim in self.claims.values_mut().filter(|claim| claim.owners.len() > 1) {
            if loses(&mut claim.owners, owner).is_some() {
                claim.version = version;
            }
        }
        let loses = |meta: &mut ObjectMeta| {
            let has_more = loses(meta.owner_references.get_or_insert_default(), owner)?;
            meta.resource_version = Some(version.to_string());
            Some(has_more)
        };
        self.service.take_if(|service| loses(&mut service.metadata) == Some(false));
        self.budget.take_if(|budget| loses(&mut budget.metadata) == Some(false));
    }

    /// Updates or adds a Kubernetes node.
    pub fn edit_machine(&mut self, name: &str, change: impl FnOnce(&mut Machine)) {
        let version = self.next();
        let machine = self.machines.entry(name.to_owned()).or_insert_with(|| Machine {
            name: name.to_owned(),
            version,
            cordoned: false,
            ready: true,
            power: Power::On,
        });
        machine.version = version;
        change(machine);
        let event = WatchEvent::Machine(machine.clone());
        self.enqueue(Key::Machines, event);
    }

    pub fn remove_machine(&mut self, name: &str) {
        self.next();
        if let Some(machine) = self.machines.remove(name) {
            self.enqueue(Key::Machines, WatchEvent::MachineGone(machine));
        }
    }

    /// Updates the set, if it exists; `spec` increments its generation.
    pub fn edit_set(&mut self, spec: bool, change: impl FnOnce(&mut NodeSet)) {
        let (version, focus) = (self.next(), self.focus);
        let Some(set) = &mut self.sets[focus] else { return };
        change(set);
        if spec {
            *set.metadata.generation.get_or_insert(0) += 1;
        }
        set.metadata.resource_version = Some(version.to_string());
        let event = WatchEvent::Set(focus, Box::new(set.clone()));
        self.enqueue(Key::Set(focus), event);
        self.finalize();
    }

    /// Removes a set that is being deleted once it has no finalizers, and then what it owns.
    fn finalize(&mut self) {
        let is_terminating = |set: &NodeSet| {
            set.metadata.deletion_timestamp.is_some() && set.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
        };
        if self.set().is_some_and(is_terminating) {
            let focus = self.focus;
            self.sets[focus] = None;
            self.collect(SET_UIDS[focus]);
            self.revisions.retain(|_, revision| revision.set != focus);
            self.enqueue(Key::Set(focus), WatchEvent::SetGone(focus));
        }
    }
}
