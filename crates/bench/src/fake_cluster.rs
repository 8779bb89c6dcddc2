//! The fake Slurm cluster of a run: its nodes follow the pods of the workers in the API server.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{StreamExt, future::ready, pin_mut, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Preconditions},
    core::GroupVersionKind,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde_json::Value;
use slurm_operator_api::slinky::names;
use testkit::slurmrestd::{Machine, Slurmrestd};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::sleep,
};

use crate::pods::{Deletion, Effect, PodCounts, PodTracker, SlimPod, WORKER};

/// Deletions of pods that are finished at the same time.
const CONCURRENT_DELETIONS: usize = 16;

/// How long a deletion that failed waits.
const DELETION_RETRY: Duration = Duration::from_secs(1);

/// Watch events that are handled at once, so that the fake slurmctld is locked once for all of them.
const BATCH: usize = 1024;

/// Clones share their state.
#[derive(Clone)]
pub struct FakeCluster {
    state: Arc<Mutex<State>>,
    /// The fake slurmrestd.
    pub slurm: Arc<Slurmrestd>,
}

#[derive(Default)]
struct State {
    pods: PodTracker,
    node_set: Option<NodeSetStatus>,
}

/// What the status of the `NodeSet` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeSetStatus {
    ready_replicas: u32,
    since: Timestamp,
}

impl State {
    fn set_node_set(&mut self, node_set: Option<&DynamicObject>) {
        let ready = |set: &DynamicObject| set.data.pointer("/status/readyReplicas").and_then(Value::as_u64);
        let ready = node_set.map(|set| ready(set).and_then(|count| u32::try_from(count).ok()).unwrap_or(0));
        self.node_set = ready.map(|ready_replicas| {
            let same = self.node_set.filter(|old| old.ready_replicas == ready_replicas);
            same.unwrap_or_else(|| NodeSetStatus { ready_replicas, since: Timestamp::now() })
        });
    }
}

impl FakeCluster {
    /// Without any nodes yet.
    pub fn new(slurm: Slurmrestd) -> Self {
        Self { state: Arc::default(), slurm: Arc::new(slurm) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        testkit::lock(&self.state)
    }

    /// The present numbers of pods.
    pub fn counts(&self) -> PodCounts {
        self.lock().pods.counts()
    }

    /// Whether the `NodeSet` exists.
    pub fn has_node_set(&self) -> bool {
        self.lock().node_set.is_some()
    }

    /// Counts workers as updated if they are created from now on.
    pub fn start_update(&self) {
        self.lock().pods.start_update();
    }

    /// Seconds from the last worker that became ready to the status that says so; none unless both say this many workers.
    pub fn ready_lag(&self, workers: u32) -> Option<f64> {
        let state = self.lock();
        let ready = state.pods.ready_since().filter(|_| state.pods.counts().ready == workers)?;
        let status = state.node_set.filter(|status| status.ready_replicas == workers)?;
        Some(status.since.duration_since(ready).as_secs_f64().max(0.0))
    }

    /// Watches the pods and the `NodeSet` of a namespace until the future is dropped.
    pub async fn watch(self, client: Client, namespace: String) {
        let (sender, deletions) = unbounded_channel();
        tokio::join!(
            self.watch_pods(&client, &namespace, &sender),
            self.watch_node_set(&client, &namespace),
            finish_deletions(&client, &namespace, deletions)
        );
    }

    async fn watch_pods(&self, client: &Client, namespace: &str, deletions: &UnboundedSender<Deletion>) {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
        let pods: Api<SlimPod> = Api::namespaced_with(client.clone(), namespace, &resource);
        let selector = format!("{} in ({WORKER},slurmctld,slurmrestd)", names::label::NAME);
        let config = watcher::Config::default().labels(&selector);
        let batches = watcher::watcher(pods, config).default_backoff().ready_chunks(BATCH);
        pin_mut!(batches);
        let mut listed = HashSet::new();
        while let Some(batch) = batches.next().await {
            let mut effects = Vec::new();
            {
                let pods = &mut self.lock().pods;
                for event in batch {
                    match event {
                        Ok(Event::Apply(pod)) => effects.extend(pods.apply(&pod)),
                        Ok(Event::Delete(pod)) => effects.extend(pods.remove(&pod.name_any())),
                        Ok(Event::Init) => listed.clear(),
                        Ok(Event::InitApply(pod)) => {
                            listed.insert(pod.name_any());
                            effects.extend(pods.apply(&pod));
                        }
                        Ok(Event::InitDone) => effects.extend(pods.retain(&listed)),
                        Err(error) => eprintln!("  the watch of pods failed and is restarted: {error}"),
                    }
                }
            }
            self.carry_out(effects, deletions);
        }
    }

    fn carry_out(&self, effects: Vec<Effect>, deletions: &UnboundedSender<Deletion>) {
        if effects.is_empty() {
            return;
        }
        self.slurm.cluster(|cluster| {
            for effect in effects {
                match effect {
                    Effect::Register(node) => cluster.register(&node, Machine::default()),
                    Effect::Lose(node) => cluster.lose(&node),
                    // The receiver is dropped only when the run is over.
                    Effect::Finish(deletion) => drop(deletions.send(deletion)),
                }
            }
        });
    }

    async fn watch_node_set(&self, client: &Client, namespace: &str) {
        let sets: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource("NodeSet"));
        let events = watcher::watcher(sets, watcher::Config::default()).default_backoff();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(set) | Event::InitApply(set)) => self.lock().set_node_set(Some(&set)),
                Ok(Event::Delete(_) | Event::Init) => self.lock().set_node_set(None),
                Ok(Event::InitDone) => {}
                Err(error) => eprintln!("  the watch of NodeSets failed and is restarted: {error}"),
            }
        }
    }
}

/// Finishes deletions as a kubelet would. kwok identifies pods by name alone: when it is late, it deletes the next pod of that name.
async fn finish_deletions(client: &Client, namespace: &str, deletions: UnboundedReceiver<Deletion>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = &pods;
    let deletions = stream::unfold(deletions, |mut deletions| async { Some((deletions.recv().await?, deletions)) });
    let finished = deletions.map(|Deletion { pod, uid }| async move {
        let preconditions = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let params = params.preconditions(preconditions);
        // A kubelet tries until it succeeds; otherwise the phase would wait for this pod for ever.
        while let Err(error) = pods.delete(&pod, &params).await {
            if matches!(&error, kube::Error::Api(status) if status.is_not_found() || status.is_conflict()) {
                break;
            }
            eprintln!("  cannot delete the pod {pod}, trying again: {error}");
            sleep(DELETION_RETRY).await;
        }
    });
    finished.buffer_unordered(CONCURRENT_DELETIONS).for_each(|()| ready(())).await;
}

/// A custom resource of this API group.
pub fn resource(kind: &str) -> ApiResource {
    let plural = format!("{}s", kind.to_lowercase());
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(names::GROUP, names::VERSION, kind), &plural)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_is_dated_from_its_last_change() {
        let mut state = State::default();
        let set = |status: Value| DynamicObject::new("w", &resource("NodeSet")).data(json!({"status": status}));
        state.set_node_set(Some(&set(json!({"readyReplicas": 7}))));
        let first = state.node_set.unwrap();
        assert_eq!(first.ready_replicas, 7);
        state.set_node_set(Some(&set(json!({"readyReplicas": 7, "replicas": 8}))));
        assert_eq!(state.node_set, Some(first));
        state.set_node_set(Some(&set(json!({}))));
        assert_eq!(state.node_set.unwrap().ready_replicas, 0);
        state.set_node_set(None);
        assert_eq!(state.node_set, None);
    }
}
