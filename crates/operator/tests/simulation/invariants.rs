//! What must hold whatever happens, checked after every write and every second.

use std::collections::{BTreeMap, BTreeSet};

use slurm_operator::{
    engine::podset::{Cordon, SlurmObservation},
    kinds::nodeset::plan::Facts,
    machine::{ObjectVersion, SlurmCall},
};
use slurm_operator_api::{
    NodeSet,
    names::{TRUE, annotation},
    nodeset::{ScalingMode, UpdateType},
};
use testkit::slurmrestd::{Base, Flag, Node};

use crate::{
    api::{Container, Killer, Pod, SET_UID},
    effects::is_ours,
    fake_cluster::{FakeCluster, by_host},
    slurm::{PERIOD, states},
};

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Its name.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
    /// When, counted in happenings.
    pub step: u64,
}

/// Slurm nodes that are not ours.
pub const STRANGERS: [&str; 2] = ["login", "other-0"];

/// How our reason for an update ends.
const UPDATED: &str = ") is being updated";

/// What the operator could know when it decided, judged independently of its plan.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// When, in the order of all happenings, Slurm was asked for what it decided from.
    pub read: u64,
    /// Why what it knows of Slurm may not be believed.
    blind: Option<&'static str>,
    /// Slurm nodes of workers that a user or a cordon keeps out of service.
    cordoned: BTreeSet<String>,
    /// Slurm nodes of workers that were well. What is broken may go whatever the budget is.
    healthy: BTreeSet<String>,
    is_paused: bool,
    /// Slurm listed no nodes at all.
    is_empty: bool,
    /// How many workers an update may take out of service.
    max: Option<usize>,
    desired: usize,
    /// The image that it knew to be wanted.
    image: String,
    /// How many pods there were. One that failed since then was not the update's.
    pods: usize,
    min_ready: i64,
}

impl Oracle {
    /// What it could know at this time by its clock.
    pub fn of(set: &NodeSet, facts: &Facts, now: i64, read: u64, min_ready: i64) -> Self {
        let is_cordoned =
            |node: Option<&String>| node.and_then(|node| facts.nodes.get(node)).is_some_and(|node| node.unschedulable);
        let cordoned = facts.workers.iter().filter(|worker| !worker.terminating);
        let cordoned = cordoned.filter(|worker| worker.cordon == Cordon::User || is_cordoned(worker.node.as_ref()));
        let healthy = facts.workers.iter().filter(|worker| worker.is_healthy());
        let desired = match set.spec.scaling_mode {
            ScalingMode::StatefulSet => usize::try_from(set.spec.replicas()).unwrap(),
            ScalingMode::DaemonSet => facts.nodes.len(),
        };
        Self {
            read,
            blind: blind(set, facts, now),
            cordoned: cordoned.filter_map(|worker| worker.slurm_node().map(str::to_owned)).collect(),
            healthy: healthy.filter_map(|worker| worker.slurm_node().map(str::to_owned)).collect(),
            is_paused: set.metadata.annotations.iter().flatten().any(|(k, v)| k == annotation::PAUSED && v == TRUE),
            is_empty: matches!(&facts.slurm, SlurmObservation::Clear(snapshot) if snapshot.nodes.is_empty()),
            max: max_unavailable(set, desired),
            desired,
            image: set.spec.slurmd.text("image").unwrap_or_default().to_owned(),
            pods: facts.workers.len() + facts.creating.len(),
            min_ready,
        }
    }
}

fn max_unavailable(set: &NodeSet, desired: usize) -> Option<usize> {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    let strategy = set.spec.update_strategy();
    if strategy.type_ != UpdateType::RollingUpdate {
        return None;
    }
    Some(match strategy.rolling_update.unwrap_or_default().max_unavailable {
        IntOrString::Int(number) => usize::try_from(number).unwrap(),
        IntOrString::String(text) => (text.trim_end_matches('%').parse::<usize>().unwrap() * desired).div_ceil(100),
    })
}

/// Whether the view is fresh, by the operator's own clock, and trustworthy.
fn blind(set: &NodeSet, facts: &Facts, now: i64) -> Option<&'static str> {
    let SlurmObservation::Clear(snapshot) = &facts.slurm else { return Some("Slurm does not answer") };
    if (now - snapshot.read_at.as_second()).abs() > 3 * PERIOD {
        return Some("the list is old");
    }
    let marked = facts.workers.iter().filter(|worker| !worker.conditions.is_empty()).count();
    let reported = set.status.as_ref().map_or(0, |status| usize::try_from(status.slurm_registered).unwrap());
    let expected = reported.min(facts.workers.len()).max(marked);
    if snapshot.nodes.is_empty() && expected > 0 {
        return Some("the list is empty");
    }
    let is_young = snapshot.ctld_started.is_none_or(|start| now - start.as_second() < 300);
    let known = facts.workers.iter().filter_map(|worker| worker.slurm_node());
    let known = known.filter(|name| snapshot.nodes.contains_key(*name)).count();
    (is_young && known * 2 < expected).then_some("slurmctld is young and knows few")
}

/// What was done by others, and must be respected.
#[derive(Debug, Default)]
pub struct Guard {
    /// When an admin last lifted the drain of a node.
    lifted: BTreeMap<String, u64>,
    /// What admins hold out of service: since when, whether by a drain, and why.
    pub held: BTreeMap<String, Held>,
    /// What users wrote on pods, by UID and key.
    pub user_annotations: BTreeMap<(String, String), String>,
    /// Slurm nodes that an update took out of service.
    taken: BTreeSet<String>,
    /// When slurmctld last lost its state.
    pub lost_at: Option<u64>,
}

/// An admin's hold on a node.
#[derive(Clone, Debug)]
pub struct Held {
    pub since: u64,
    pub is_drain: bool,
    pub reason: String,
}

impl Guard {
    /// An admin brought a node back, whoever took it.
    pub fn lift(&mut self, node: &str, order: u64) {
        self.lifted.insert(node.to_owned(), order);
        self.held.remove(node);
        self.taken.remove(node);
    }

    /// Somebody else deleted its pod: that is not the update's doing.
    pub fn pardon(&mut self, node: &str) {
        self.taken.remove(node);
    }

    pub fn lost_state(&mut self, order: u64) {
        self.lost_at = Some(order);
        self.held.clear();
    }
}

impl FakeCluster {
    /// What can be said at any time.
    pub fn check(&mut self) {
        if self.violation.is_some() {
            return;
        }
        let doubled = by_host(&self.api)
            .into_iter()
            .filter(|(_, pods)| pods.iter().filter(|pod| pod.truth.alive).count() > 1)
            .map(|(host, pods)| format!("{host}: {:?}", pods.iter().map(|pod| &pod.name).collect::<Vec<_>>()))
            .next();
        if let Some(what) = doubled {
            self.violate("unique-node", || what);
        }
        let (with_set, with_scale) = self.traits.retention();
        let is_deleted = |owner: &str| if owner == SET_UID { !with_set } else { !with_scale };
        let claims = self.api.claims.iter();
        let lost = claims
            .filter(|(_, claim)| claim.owners.iter().any(|owner| is_deleted(&owner.uid)))
            .map(|(name, _)| name.clone())
            .next();
        if let Some(name) = lost {
            self.violate("claims-kept", || format!("{name} would go with its owner"));
        }
        self.give_back();
    }

    fn node_of(&self, pod: &Pod) -> Option<&Node> {
        self.slurm.cluster.node(&pod.hostname)
    }

    /// Whether a worker does what it is there for, or only does not because somebody asked for that.
    fn serves(&self, pod: &Pod) -> bool {
        let is_ready = pod.ready.is_some_and(|since| self.now - since >= self.oracle.min_ready);
        let is_known = pod.truth.alive && pod.truth.register_at.is_none();
        let is_in_service = self.node_of(pod).is_some_and(|node| {
            let is_up = matches!(node.state.base, Base::Idle | Base::Mixed | Base::Allocated);
            is_up && !(node.state.has(Flag::Drain) && node.reason.ends_with(UPDATED))
        });
        is_ready && is_known && is_in_service && !pod.terminating
    }

    /// Whether it was made for an update that nobody wants any more, and is not up yet: that is broken, and costs nothing.
    fn is_overtaken(&self, pod: &Pod) -> bool {
        let is_drained = |node: &Node| node.state.has(Flag::Drain) && node.reason.ends_with(UPDATED);
        pod.image != self.oracle.image && !pod.terminating && !self.node_of(pod).is_some_and(is_drained)
    }

    /// What an update took and is back, or is not wanted any more, or is an admin's now, counts no longer.
    fn give_back(&mut self) {
        if self.guard.taken.is_empty() {
            return;
        }
        let hosts = by_host(&self.api);
        let enough =
            self.api.pods.values().filter(|pod| is_ours(pod) && !pod.terminating).count() >= self.oracle.desired;
        let back: Vec<String> = self
            .guard
            .taken
            .iter()
            .filter(|host| match hosts.get(host.as_str()) {
                Some(pods) => {
                    let is_free = |pod: &&Pod| self.serves(pod) || self.is_overtaken(pod);
                    self.guard.held.contains_key(*host) || pods.iter().any(is_free)
                }
                None => enough,
            })
            .cloned()
            .collect();
        for host in back {
            self.guard.taken.remove(&host);
        }
    }

    /// The operator deletes a pod.
    pub fn check_delete(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name).cloned() else { return };
        if !is_ours(&pod) {
            self.violate("owned-only", || format!("pod {name} belongs to {}", pod.owner));
        }
        if self.oracle.is_paused {
            self.violate("user-intent-kept", || format!("pod {name} is deleted while the set is paused"));
        }
        if pod.terminating || pod.phase == "Failed" {
            return;
        }
        let was_registered = !pod.conditions.is_empty();
        if let Some(why) = self.oracle.blind.filter(|_| was_registered) {
            self.violate("blind-means-wait", || format!("pod {name} is deleted though {why}"));
        }
        let is_blamed = self.killer_of(name) != Killer::Other;
        if !pod.truth.alive || pod.truth.register_at.is_some() || !is_blamed {
            return;
        }
        let was_lost = self.guard.lost_at.is_some_and(|lost| lost >= self.oracle.read);
        let was_lifted = self.guard.lifted.get(&pod.hostname).is_some_and(|lifted| *lifted >= self.oracle.read);
        match self.node_of(&pod) {
            Some(node) if !node.state.has(Flag::Drain) && !was_lifted => {
                let state = node.state;
                self.violate("no-job-lost", || format!("pod {name} is deleted while {} is {state:?}", pod.hostname));
            }
            Some(node) if !node.jobs.is_empty() && !was_lifted => {
                let jobs = node.jobs.clone();
                self.violate("no-job-lost", || format!("pod {name} is deleted while jobs {jobs:?} run there"));
            }
            None if was_registered && !was_lost => {
                self.violate("no-job-lost", || {
                    format!("pod {name} is deleted, and Slurm has forgotten what runs there")
                });
            }
            _ => {}
        }
    }

    /// Who is to blame if the deletion of this pod ends a job. Of a worker that nobody has ever seen in a list, an empty list
    /// says that it is not there, and nobody can know better.
    pub fn killer_of(&self, name: &str) -> Killer {
        let was_seen = self.api.pods.get(name).is_some_and(|pod| !pod.conditions.is_empty());
        if self.oracle.is_empty && !was_seen { Killer::Other } else { Killer::Us { read: self.oracle.read } }
    }

    /// The kubelet ends slurmd in an orderly way.
    pub fn check_kill(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name) else { return };
        let Some(Killer::Us { read }) = pod.truth.killer else { return };
        let was_lifted = self.guard.lifted.get(&pod.hostname).is_some_and(|lifted| *lifted >= read);
        let is_known = pod.truth.register_at.is_none();
        let jobs = self.node_of(pod).filter(|_| is_known).map(|node| node.jobs.clone()).unwrap_or_default();
        let ghost = pod.truth.ghost_until > self.now && !pod.conditions.is_empty();
        if (!jobs.is_empty() || ghost) && !was_lifted {
            self.violate("no-job-lost", || {
                format!("pod {name}, deleted by us, ends with jobs {jobs:?} (lost: {ghost})")
            });
        }
    }

    /// The operator deletes something that is no pod.
    pub fn check_other_delete(&mut self, object: &ObjectVersion) {
        if object.resource.kind != "ControllerRevision" {
            self.violate("claims-kept", || format!("{} {} is deleted", object.resource.kind, object.name));
        }
    }

    /// The operator makes something.
    pub fn check_create(&mut self, name: &str) {
        if self.oracle.is_paused {
            self.violate("user-intent-kept", || format!("{name} is made while the set is paused"));
        }
    }

    /// What users wrote on a pod is still there.
    pub fn check_user_annotations(&mut self, uid: &str) {
        let Some(pod) = self.api.pods.values().find(|pod| pod.uid == uid) else { return };
        let written = self.guard.user_annotations.iter().filter(|((pod, _), _)| pod == uid);
        let mut lost =
            written.filter(|((_, key), value)| pod.annotations.get(key) != Some(*value)).map(|((_, key), _)| key);
        if let Some(key) = lost.next().cloned() {
            let name = pod.name.clone();
            self.violate("user-intent-kept", || format!("{key} of pod {name} is gone"));
        }
    }

    /// Of the nodes of a write: those that would do work without it.
    pub fn before_slurm_write(&self, call: &SlurmCall) -> Vec<String> {
        let hosts = by_host(&self.api);
        let serving = |host: &&String| {
            let mut pods = hosts.get(host.as_str()).into_iter().flatten();
            self.oracle.healthy.contains(*host) && pods.any(|pod| self.serves(pod))
        };
        match call {
            SlurmCall::Update { nodes, .. } => nodes.iter().filter(serving).cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// The operator changed something in Slurm.
    pub fn check_slurm_write(&mut self, call: &SlurmCall, serving: Vec<String>) {
        let (nodes, drain) = match call {
            SlurmCall::Update { nodes, change } => (nodes.as_slice(), change.drain_reason()),
            SlurmCall::Forget { node } => (std::slice::from_ref(node), None),
            _ => return,
        };
        for host in nodes {
            if STRANGERS.contains(&host.as_str()) {
                self.violate("owned-only", || format!("{host} is not ours: {call:?}"));
            }
            self.check_held(host, matches!(call, SlurmCall::Forget { .. }));
        }
        if let Some(reason) = drain {
            self.check_drain(nodes, reason, serving);
        }
        let SlurmCall::Update { nodes, change } = call else { return };
        let text = serde_json::to_string(change).unwrap();
        let is_lift = text.contains("UNDRAIN") || text.contains("RESUME");
        let kept = nodes.iter().find(|host| is_lift && self.oracle.cordoned.contains(*host));
        if let Some(host) = kept {
            self.violate("user-intent-kept", || format!("{host} is brought back though it is cordoned"));
        }
        if (is_lift || drain.is_some()) && self.oracle.is_paused {
            self.violate("user-intent-kept", || format!("{nodes:?} are changed while the set is paused"));
        }
    }

    /// What an admin did before we looked is still so.
    fn check_held(&mut self, host: &str, is_forgotten: bool) {
        let Some(held) = self.guard.held.get(host).cloned() else { return };
        if is_forgotten && !held.is_drain {
            // A worker that was only down is gone, and so is what was wrong with it.
            self.guard.held.remove(host);
            return;
        }
        let is_kept = self.slurm.cluster.node(host).is_some_and(|node| {
            let stays = if held.is_drain { node.state.has(Flag::Drain) } else { node.state.base == Base::Down };
            stays && node.reason == held.reason
        });
        if !is_kept && held.since >= self.oracle.read {
            // Slurm has no way to say "only if it is still as I saw it": who comes between loses.
            self.guard.held.remove(host);
        } else if !is_kept {
            let now = self.slurm.cluster.node(host).map(|node| format!("{} ({})", states(node), node.reason));
            self.violate("foreign-drain-kept", || format!("{host}, held for {:?}, is now {now:?}", held.reason));
        }
    }

    fn check_drain(&mut self, nodes: &[String], reason: &str, serving: Vec<String>) {
        if let Some(why) = self.oracle.blind {
            self.violate("blind-means-wait", || format!("{nodes:?} are drained though {why}"));
        }
        if !reason.ends_with(UPDATED) || serving.is_empty() {
            return;
        }
        self.give_back();
        self.guard.taken.extend(serving);
        let hosts = by_host(&self.api);
        let (there, gone): (Vec<&String>, Vec<&String>) =
            self.guard.taken.iter().partition(|host| hosts.contains_key(host.as_str()));
        // Of those without a pod, only as many are missed as there are too few; of more than are wanted, some go anyway.
        let pods = self.api.pods.values().filter(|pod| is_ours(pod)).count().max(self.oracle.pods);
        let out = there.len() + gone.len().min(self.oracle.desired.saturating_sub(pods));
        let max = self.oracle.max.unwrap_or(0) + pods.saturating_sub(self.oracle.desired);
        if out > max {
            let taken = self.guard.taken.clone();
            self.violate("budget", || format!("the update holds {out} of {taken:?} out of service, {max} allowed"));
        }
    }

    /// Why the cluster is not as the user wants it; nothing if it is.
    pub fn unrest(&self) -> Option<String> {
        let ours: Vec<&Pod> = self.api.pods.values().filter(|pod| is_ours(pod)).collect();
        let Some(set) = &self.api.set else {
            return (!ours.is_empty()).then(|| "the set is gone and its pods are not".to_owned());
        };
        if set.metadata.deletion_timestamp.is_some() {
            return Some("the set is not gone".to_owned());
        }
        let desired = match set.spec.scaling_mode {
            ScalingMode::StatefulSet => usize::try_from(set.spec.replicas()).unwrap(),
            ScalingMode::DaemonSet => self.api.machines.len(),
        };
        if ours.len() != desired {
            return Some(format!("{} pods, {desired} wanted", ours.len()));
        }
        let status = set.status.as_ref()?;
        for pod in &ours {
            let is_new = pod.labels.get("controller.kubernetes.io/hash") == Some(&status.node_set_hash);
            let is_running = matches!(pod.slurmd, Container::Running(_)) && pod.ready.is_some() && !pod.terminating;
            let node = self.node_of(pod);
            if !is_running || !node.is_some_and(|node| states(node).is_available()) {
                let state = node.map(|node| format!("{} ({})", states(node), node.reason));
                let there = self.pods_on(pod.target.as_deref().unwrap_or_default());
                return Some(format!(
                    "{} does no work: {:?} {:?} {state:?}, on {:?}, for {:?} with {there:?}",
                    pod.name, pod.slurmd, pod.ready, pod.node, pod.target
                ));
            }
            if !is_new && set.spec.update_strategy().type_ == UpdateType::RollingUpdate {
                return Some(format!("{} has an old template", pod.name));
            }
        }
        let is_used = |name: &str| STRANGERS.contains(&name) || ours.iter().any(|pod| pod.hostname == name);
        // Of a worker that died before we told Slurm whose it is, nobody can prove that it was ours.
        let is_nameless = |node: &Node| node.comment.is_empty();
        if let Some(left) = self.slurm.cluster.nodes().find(|node| !is_used(&node.name) && !is_nameless(node)) {
            return Some(format!("the record of {} is left: {} ({})", left.name, states(left), left.reason));
        }
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        if ready.is_none_or(|ready| ready.status != "True") || status.observed_generation != set.metadata.generation {
            return Some(format!("the status does not say so: {ready:?}"));
        }
        None
    }
}
