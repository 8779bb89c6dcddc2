//! What is there: workers as the API server tells of them, and their Slurm nodes, which live and die with them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt, future::ready, pin_mut, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Preconditions},
    core::{GroupVersionKind, Object},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slurm_operator_api::{conditions, names};
use testkit::slurmrestd::{Machine, Slurmrestd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Pods that end at the same moment.
const KUBELETS: usize = 16;

/// The name label of workers.
const WORKER: &str = "slurmd";

/// A worker's pod, as far as it matters here.
type Worker = Object<Spec, Status>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Spec {
    hostname: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// How many workers are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pods that are there.
    pub all: u32,
    /// Those that run.
    pub running: u32,
    /// Those that are ready.
    pub ready: u32,
    /// Those that have the conditions of their Slurm nodes.
    pub registered: u32,
    /// Those that are protected.
    pub protected: u32,
    /// Those that were first seen since the last [`World::begin_anew`].
    pub new: u32,
    /// What the status says: workers that are ready.
    pub said_ready: u32,
    /// Whether there is a `NodeSet`.
    pub has_node_set: bool,
    /// Pods of slurmctld and slurmrestd that are ready.
    pub daemons_ready: u32,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is counted on its own")]
struct Seen {
    uid: String,
    node: String,
    epoch: u32,
    is_worker: bool,
    is_running: bool,
    is_ready: bool,
    is_registered: bool,
    is_protected: bool,
    is_ending: bool,
}

#[derive(Debug, Default)]
struct Known {
    pods: HashMap<String, Seen>,
    epoch: u32,
    tally: Tally,
    all_ready: Option<(u32, Timestamp)>,
    said_ready: Option<(u32, Timestamp)>,
}

/// What is known, and the Slurm cluster that goes with it. Clones share it.
#[derive(Clone)]
pub struct World {
    known: Arc<Mutex<Known>>,
    /// The fake slurmrestd.
    pub slurm: Arc<Slurmrestd>,
}

/// What happens to a Slurm node, or to the pod of one.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Registers(String),
    IsLost(String),
    Ends(Ending),
}

/// A pod that was told to end, and whose kubelet would now see to it.
#[derive(Debug, PartialEq, Eq)]
struct Ending {
    pod: String,
    uid: String,
}

impl Known {
    /// Takes in a pod; what it means for Slurm nodes.
    fn see(&mut self, worker: &Worker) -> Vec<Fate> {
        let (name, uid) = (worker.name_any(), worker.uid().unwrap_or_default());
        let mut fates = Vec::new();
        if self.pods.get(&name).is_some_and(|pod| pod.uid != uid) {
            fates.extend(self.forget(&name));
        }
        let has = |type_: &dyn Fn(&str) -> bool| {
            let mut all = worker.status.iter().flat_map(|status| &status.conditions);
            all.any(|condition| type_(&condition.type_) && condition.status == "True")
        };
        let old = self.pods.remove(&name);
        let was_ending = old.as_ref().is_some_and(|pod| pod.is_ending);
        let is_ending = worker.metadata.deletion_timestamp.is_some();
        let is_worker = worker.labels().get(names::label::NAME).is_some_and(|name| name == WORKER);
        // One without a grace is gone already.
        if is_worker && is_ending && !was_ending && worker.metadata.deletion_grace_period_seconds != Some(0) {
            fates.push(Fate::Ends(Ending { pod: name.clone(), uid: uid.clone() }));
        }
        let runs = worker.status.as_ref().is_some_and(|status| status.phase == "Running");
        let has_run = old.as_ref().is_some_and(|pod| pod.is_running);
        let pod = Seen {
            uid,
            node: worker.spec.hostname.clone(),
            epoch: old.as_ref().map_or(self.epoch, |pod| pod.epoch),
            is_worker,
            is_running: runs || has_run,
            is_ready: has(&|type_| type_ == "Ready"),
            is_registered: has(&|type_| type_.starts_with(conditions::POD_PREFIX)),
            is_protected: worker.labels().get(names::label::POD_PROTECT).is_some_and(|value| value == names::TRUE),
            is_ending,
        };
        if is_worker && runs && !has_run && !is_ending {
            fates.push(Fate::Registers(pod.node.clone()));
        }
        self.count(old.as_ref(), Some(&pod));
        self.pods.insert(name, pod);
        fates
    }

    fn forget(&mut self, name: &str) -> Option<Fate> {
        let pod = self.pods.remove(name)?;
        self.count(Some(&pod), None);
        (pod.is_worker && pod.is_running).then_some(Fate::IsLost(pod.node))
    }

    /// Drops what a new list no longer has.
    fn keep(&mut self, listed: &HashSet<String>) -> Vec<Fate> {
        let gone: Vec<String> = self.pods.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        gone.iter().filter_map(|name| self.forget(name)).collect()
    }

    /// Counts a pod as what it is instead of what it was: adding up ten thousand for each change would be the load.
    fn count(&mut self, old: Option<&Seen>, new: Option<&Seen>) {
        let before = self.tally.ready;
        let (epoch, tally) = (self.epoch, &mut self.tally);
        let count = |field: &mut u32, is: &dyn Fn(&Seen) -> bool| {
            *field = (*field + u32::from(new.is_some_and(is))).saturating_sub(u32::from(old.is_some_and(is)));
        };
        count(&mut tally.all, &|pod| pod.is_worker);
        count(&mut tally.running, &|pod| pod.is_worker && pod.is_running);
        count(&mut tally.ready, &|pod| pod.is_worker && pod.is_ready);
        count(&mut tally.registered, &|pod| pod.is_worker && pod.is_registered);
        count(&mut tally.protected, &|pod| pod.is_worker && pod.is_protected);
        count(&mut tally.new, &|pod| pod.is_worker && pod.epoch == epoch && pod.is_ready && pod.is_registered);
        count(&mut tally.daemons_ready, &|pod| !pod.is_worker && pod.is_ready);
        if tally.ready != before {
            self.all_ready = Some((tally.ready, Timestamp::now()));
        }
    }

    fn begin_anew(&mut self) {
        self.epoch += 1;
        self.tally.new = 0;
    }

    fn say_ready(&mut self, node_set: Option<&DynamicObject>) {
        let said = node_set.and_then(|set| set.data.pointer("/status/readyReplicas")).and_then(Value::as_u64);
        let said = said.and_then(|said| u32::try_from(said).ok()).unwrap_or(0);
        self.tally.has_node_set = node_set.is_some();
        if self.tally.said_ready != said || self.said_ready.is_none() {
            self.said_ready = Some((said, Timestamp::now()));
        }
        self.tally.said_ready = said;
    }
}

impl World {
    /// Nobody is there yet.
    pub fn new(slurm: Slurmrestd) -> Self {
        Self { known: Arc::default(), slurm: Arc::new(slurm) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many workers are what, now.
    pub fn tally(&self) -> Tally {
        self.lock().tally
    }

    /// Counts workers as new from now on.
    pub fn begin_anew(&self) {
        self.lock().begin_anew();
    }

    /// How long after the last of this many workers was ready the status said so, in seconds.
    pub fn ready_lag(&self, workers: u32) -> Option<f64> {
        let known = self.lock();
        let (_, ready) = known.all_ready.filter(|(count, _)| *count == workers)?;
        let (_, said) = known.said_ready.filter(|(count, _)| *count == workers)?;
        Some(said.duration_since(ready).as_secs_f64().max(0.0))
    }

    fn suffer(&self, fates: Vec<Fate>, endings: &UnboundedSender<Ending>) {
        if fates.is_empty() {
            return;
        }
        self.slurm.cluster(|cluster| {
            for fate in fates {
                match fate {
                    Fate::Registers(node) => cluster.register(&node, Machine::default()),
                    Fate::IsLost(node) => cluster.lose(&node),
                    // If nobody listens any more, the run is over.
                    Fate::Ends(ending) => drop(endings.send(ending)),
                }
            }
        });
    }

    /// Keeps up with the workers and the `NodeSet` of a namespace, for ever.
    pub async fn follow(self, client: Client, namespace: String) {
        let (sender, endings) = unbounded_channel();
        tokio::join!(
            self.follow_pods(&client, &namespace, &sender),
            self.follow_node_set(&client, &namespace),
            end_pods(&client, &namespace, endings)
        );
    }

    async fn follow_pods(&self, client: &Client, namespace: &str, endings: &UnboundedSender<Ending>) {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
        let pods: Api<Worker> = Api::namespaced_with(client.clone(), namespace, &resource);
        let config =
            watcher::Config::default().labels(&format!("{} in ({WORKER},slurmctld,slurmrestd)", names::label::NAME));
        let events = watcher::watcher(pods, config).default_backoff();
        // What waits is taken in together, so that slurmctld's lock is taken once.
        let batches = events.ready_chunks(1024);
        pin_mut!(batches);
        let mut listed = HashSet::new();
        while let Some(batch) = batches.next().await {
            let mut fates = Vec::new();
            {
                let mut known = self.lock();
                for event in batch {
                    match event {
                        Ok(Event::Apply(pod)) => fates.extend(known.see(&pod)),
                        Ok(Event::Delete(pod)) => fates.extend(known.forget(&pod.name_any())),
                        Ok(Event::Init) => listed.clear(),
                        Ok(Event::InitApply(pod)) => {
                            listed.insert(pod.name_any());
                            fates.extend(known.see(&pod));
                        }
                        Ok(Event::InitDone) => fates.extend(known.keep(&listed)),
                        Err(error) => eprintln!("  the watch of pods failed and begins anew: {error}"),
                    }
                }
            }
            self.suffer(fates, endings);
        }
    }

    async fn follow_node_set(&self, client: &Client, namespace: &str) {
        let sets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource("NodeSet"));
        let events = watcher::watcher(sets, watcher::Config::default()).default_backoff();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(set) | Event::InitApply(set)) => self.lock().say_ready(Some(&set)),
                Ok(Event::Delete(_) | Event::Init) => self.lock().say_ready(None),
                Ok(Event::InitDone) => {}
                Err(error) => eprintln!("  the watch of NodeSets failed and begins anew: {error}"),
            }
        }
    }
}

/// Does a kubelet's part in the end of pods. kwok would do so by name alone, and when it is late that is the name of the next one,
/// which it would end, too.
async fn end_pods(client: &Client, namespace: &str, endings: UnboundedReceiver<Ending>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = &pods;
    let endings = stream::unfold(endings, |mut endings| async { Some((endings.recv().await?, endings)) });
    let ended = endings.map(|Ending { pod, uid }| async move {
        let preconditions = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        match pods.delete(&pod, &params.preconditions(preconditions)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => eprintln!("  the pod {pod} does not end: {error}"),
            Ok(_) => {}
        }
    });
    ended.buffer_unordered(KUBELETS).for_each(|()| ready(())).await;
}

/// A kind of ours.
pub fn resource(kind: &str) -> ApiResource {
    let plural = format!("{}s", kind.to_lowercase());
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(names::GROUP, names::VERSION, kind), &plural)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn worker(name: &str, uid: &str, phase: &str, conditions: &[&str]) -> Worker {
        pod_of(WORKER, name, uid, phase, conditions)
    }

    fn pod_of(daemon: &str, name: &str, uid: &str, phase: &str, conditions: &[&str]) -> Worker {
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
        let mut known = Known::default();
        let node = || "host-a".to_owned();
        assert_eq!(known.see(&worker("a", "1", "Pending", &[])), []);
        assert_eq!(known.see(&worker("a", "1", "Running", &["Ready"])), [Fate::Registers(node())]);
        assert_eq!(known.see(&worker("a", "1", "Running", &["Ready", "SlurmNodeStateIdle"])), []);
        assert_eq!(known.tally, Tally { all: 1, running: 1, ready: 1, registered: 1, new: 1, ..Tally::default() });
        let reborn = worker("a", "2", "Running", &[]);
        assert_eq!(known.see(&reborn), [Fate::IsLost(node()), Fate::Registers(node())], "nobody told of the end");
        assert_eq!(known.keep(&HashSet::new()), [Fate::IsLost(node())]);
        assert_eq!(known.tally, Tally::default());
    }

    #[test]
    fn a_pod_that_was_told_to_end_ends_once() {
        let mut known = Known::default();
        let ending = |uid: &str, grace: i64| {
            let mut pod = worker("a", uid, "Running", &[]);
            pod.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
            pod
        };
        let ends = |uid: &str| Fate::Ends(Ending { pod: "a".into(), uid: uid.into() });
        known.see(&worker("a", "1", "Running", &[]));
        assert_eq!(known.see(&ending("1", 30)), [ends("1")]);
        assert_eq!(known.see(&ending("1", 30)), []);
        assert_eq!(known.see(&ending("2", 30)), [Fate::IsLost("host-a".into()), ends("2")], "another of that name");
        known.forget("a");
        assert_eq!(known.see(&ending("3", 0)), [], "it is gone already");
    }

    #[test]
    fn workers_are_new_once_and_only_when_they_are_back() {
        let mut known = Known::default();
        known.see(&worker("a", "1", "Running", &["Ready", "SlurmNodeStateIdle"]));
        known.begin_anew();
        assert_eq!(known.tally.new, 0);
        known.see(&worker("a", "2", "Running", &["Ready"]));
        assert_eq!(known.tally.new, 0, "not registered yet");
        known.see(&worker("a", "2", "Running", &["Ready", "SlurmNodeStateIdle"]));
        assert_eq!(known.tally.new, 1);
    }

    #[test]
    fn slurmctld_and_slurmrestd_are_counted_apart() {
        let mut known = Known::default();
        for daemon in ["slurmctld", "slurmrestd"] {
            assert_eq!(known.see(&pod_of(daemon, daemon, "1", "Pending", &[])), []);
            assert_eq!(known.see(&pod_of(daemon, daemon, "1", "Running", &["Ready"])), []);
        }
        assert_eq!(known.tally, Tally { daemons_ready: 2, ..Tally::default() });
        assert_eq!(known.forget("slurmctld"), None);
        assert_eq!(known.tally.daemons_ready, 1);
    }

    #[test]
    fn what_the_status_says_is_counted_apart() {
        let mut known = Known::default();
        let set = |status: Value| DynamicObject::new("w", &resource("NodeSet")).data(json!({"status": status}));
        known.say_ready(Some(&set(json!({"readyReplicas": 7}))));
        assert!(known.tally.has_node_set && known.tally.said_ready == 7);
        known.say_ready(Some(&set(json!({}))));
        assert_eq!(known.tally.said_ready, 0);
        known.say_ready(None);
        assert!(!known.tally.has_node_set);
    }
}
