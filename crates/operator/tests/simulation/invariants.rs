//! Invariants, checked after every write and every second.

use std::collections::{BTreeMap, BTreeSet};

use engine::{
    plan::{ObjectVersion, SlurmCall},
    podset::{Cordon, SlurmNode, SlurmObservation},
};
use jiff::SignedDuration;
use slurm::{states::NodeState, wire::JobId};
use slurm_operator::frontends::slinky::nodeset::plan::Facts;
use slurm_operator_api::slinky::{
    NodeSet,
    names::{REASON_PREFIX, TERMINATING_REASON, TRUE, annotation, label},
    nodeset::{MaxUnavailable, ScalingMode, UpdateType},
};
use testkit::slurmrestd::{Base, Flag, Job, Node};

use crate::{
    api::{Container, Killer, Pod, SET_UIDS, SETS, set_of},
    fake_cluster::{FakeCluster, by_host},
    slurm::{PERIOD, states, timestamp},
};

/// A violated invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
    /// When, in the order of events.
    pub step: u64,
}

/// Slurm nodes that do not belong to the set.
pub const STRANGERS: [&str; 2] = ["login", "other-0"];

/// A busy worker has the protect label after this many seconds, and the lag of the watches.
const PROTECTED_WITHIN: i64 = 5;

/// For how long the operator remembers a write without a response.
const UNANSWERED: i64 = 15;

fn is_drained_by_us(node: &Node) -> bool {
    node.state.has(Flag::Drain) && node.reason.starts_with(REASON_PREFIX)
}

fn is_busy(node: &Node) -> bool {
    !node.jobs.is_empty() || !node.suspended.is_empty()
}

/// The Slurm nodes that were up when they were read.
fn up(slurm: &SlurmObservation) -> BTreeSet<String> {
    let SlurmObservation::Clear(snapshot) = slurm else { return BTreeSet::new() };
    let is_up = |node: &SlurmNode| !node.states.is_down() && !node.states.has(NodeState::NotResponding);
    snapshot.nodes.iter().filter(|(_, node)| is_up(node)).map(|(name, _)| name.clone()).collect()
}

/// The suffix of our drain reason for an update.
const UPDATED: &str = ") is being updated";

/// What the operator could know when it planned, determined independently of its plan.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// When, in the order of events, Slurm was asked for the list that the plan is based on.
    pub read: u64,
    /// Why the view of Slurm must not be trusted.
    blind: Option<&'static str>,
    /// Slurm nodes of workers that are drained by a user or a cordon.
    cordoned: BTreeSet<String>,
    /// Slurm nodes of workers that were healthy. Broken ones may be removed regardless of the budget.
    healthy: BTreeSet<String>,
    /// The Kubernetes nodes.
    machines: BTreeSet<String>,
    /// Slurm nodes that were up.
    up: BTreeSet<String>,
    /// UIDs of the pods that were ready long enough. One that failed since is not attributed to the update.
    available: BTreeSet<String>,
    is_paused: bool,
    is_deleted: bool,
    /// Slurm returned an empty node list.
    is_empty: bool,
    /// The maximum number of workers that an update may make unavailable.
    max: Option<usize>,
    desired: usize,
    /// The image in the spec that it planned for.
    image: String,
    /// The number of pods. A pod that failed since is not attributed to the update.
    pods: usize,
    min_ready: i64,
}

impl Oracle {
    /// What the operator could know at this time on its clock.
    pub fn of(set: &NodeSet, facts: &Facts, now: i64, read: u64, min_ready: i64) -> Self {
        let is_cordoned = |node: Option<&String>| {
            node.and_then(|node| facts.podset.nodes.get(node)).is_some_and(|node| node.unschedulable)
        };
        let cordoned = facts.podset.workers.iter().filter(|worker| !worker.terminating);
        let cordoned = cordoned.filter(|worker| worker.cordon == Cordon::User || is_cordoned(worker.node.as_ref()));
        let healthy = facts.podset.workers.iter().filter(|worker| worker.is_healthy());
        let (at, least) = (timestamp(now), SignedDuration::from_secs(min_ready));
        let available = facts.podset.workers.iter().filter(|worker| worker.is_available(least, at));
        let desired = match set.spec.scaling_mode {
            ScalingMode::StatefulSet => usize::try_from(set.spec.replicas()).unwrap(),
            ScalingMode::DaemonSet => facts.podset.nodes.len(),
        };
        Self {
            read,
            blind: blind(set, facts, now),
            cordoned: cordoned.filter_map(|worker| worker.slurm_node().map(str::to_owned)).collect(),
            healthy: healthy.filter_map(|worker| worker.slurm_node().map(str::to_owned)).collect(),
            machines: facts.podset.nodes.keys().cloned().collect(),
            up: up(&facts.podset.slurm),
            available: available.map(|worker| worker.uid.clone()).collect(),
            is_paused: set.metadata.annotations.iter().flatten().any(|(k, v)| k == annotation::PAUSED && v == TRUE),
            is_deleted: set.metadata.deletion_timestamp.is_some(),
            is_empty: matches!(&facts.podset.slurm, SlurmObservation::Clear(snapshot) if snapshot.nodes.is_empty()),
            max: max_unavailable(set, desired),
            desired,
            image: set.spec.slurmd.text("image").unwrap_or_default().to_owned(),
            pods: facts.podset.workers.len() + facts.podset.creating.len(),
            min_ready,
        }
    }
}

fn max_unavailable(set: &NodeSet, desired: usize) -> Option<usize> {
    let strategy = set.spec.update_strategy();
    if strategy.type_ != UpdateType::RollingUpdate {
        return None;
    }
    Some(match strategy.rolling_update.unwrap_or_default().max_unavailable {
        // An invalid value stops the update.
        MaxUnavailable::Int(number) => usize::try_from(number).unwrap_or(0),
        MaxUnavailable::String(text) => {
            let percent: usize = text.trim_end_matches('%').parse().unwrap_or(0);
            (percent * desired).div_ceil(100)
        }
        MaxUnavailable::Other(_) => 0,
    })
}

/// Why the view is not to be trusted, by the operator's own clock.
fn blind(set: &NodeSet, facts: &Facts, now: i64) -> Option<&'static str> {
    let SlurmObservation::Clear(snapshot) = &facts.podset.slurm else { return Some("Slurm is unreachable") };
    if (now - snapshot.read_at.as_second()).abs() > 3 * PERIOD {
        return Some("the list is old");
    }
    let marked = facts.podset.workers.iter().filter(|worker| !worker.conditions.is_empty()).count();
    let reported = set.status.as_ref().map_or(0, |status| usize::try_from(status.slurm_registered).unwrap());
    let expected = reported.min(facts.podset.workers.len()).max(marked);
    if snapshot.nodes.is_empty() && expected > 0 {
        return Some("the list is empty");
    }
    let is_young = snapshot.ctld_started.is_none_or(|start| now - start.as_second() < 300);
    let known = facts.podset.workers.iter().filter_map(|worker| worker.slurm_node());
    let known = known.filter(|name| snapshot.nodes.contains_key(*name)).count();
    (is_young && known * 2 < expected).then_some("slurmctld has just started and knows few nodes")
}

/// Actions of others that the operator must respect.
#[derive(Debug, Default)]
pub struct Guard {
    /// When an admin last resumed a node.
    lifted: BTreeMap<String, u64>,
    /// Nodes that admins keep out of service.
    pub held: BTreeMap<String, Held>,
    /// Annotations that users set on pods, by UID and key.
    pub user_annotations: BTreeMap<(String, String), String>,
    /// When slurmctld last lost its state.
    pub lost_at: Option<u64>,
    /// When the operator last looked at drained nodes before it deleted their pods.
    pub looked: u64,
    /// The node that a job asks for, and when it was submitted.
    pub named: BTreeMap<u32, (String, u64)>,
}

/// What is checked for one set.
#[derive(Debug, Default)]
pub struct SetGuard {
    pub oracle: Oracle,
    /// Slurm nodes that an update made unavailable.
    taken: BTreeSet<String>,
    /// Whether a plan has been carried out without a failure.
    pub was_planned: bool,
}

impl SetGuard {
    /// The node was resumed or its pod deleted by another party: it is not held by the update.
    pub fn pardon(&mut self, node: &str) {
        self.taken.remove(node);
    }
}

/// A node kept out of service by an admin.
#[derive(Clone, Debug)]
pub struct Held {
    pub since: u64,
    pub is_drain: bool,
    pub reason: String,
}

impl Guard {
    /// An admin resumed a node, whoever had drained it.
    pub fn lift(&mut self, node: &str, order: u64) {
        self.lifted.insert(node.to_owned(), order);
        self.held.remove(node);
    }

    pub fn lost_state(&mut self, order: u64) {
        self.lost_at = Some(order);
        self.held.clear();
        self.named.clear();
    }
}

impl FakeCluster {
    /// Checks the invariants that hold at any time.
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
        let is_deleted = |owner: &str| if SET_UIDS.contains(&owner) { !with_set } else { !with_scale };
        let claims = self.api.claims.iter();
        let lost = claims
            .filter(|(_, claim)| claim.owners.iter().any(|owner| is_deleted(&owner.uid)))
            .map(|(name, _)| name.clone())
            .next();
        if let Some(name) = lost {
            self.violate("claims-kept", || format!("{name} would be deleted with its owner"));
        }
        self.each_set(Self::give_back);
    }

    /// While Slurm can be seen, a busy worker has the protect label within a few seconds, whatever else is wrong.
    pub fn check_protection(&mut self) {
        let operator = &self.operator;
        let can_act = operator.down_until <= self.now && operator.deaf_until.is_none();
        let can_see = self.slurm.problem().is_none() && self.behind == 0 && self.has_controller;
        // A pod whose deletion got no response is left alone until it is known whether it is deleted.
        let unanswered = if self.traits.api_faults > 0 { UNANSWERED } else { 0 };
        let limit = PROTECTED_WITHIN + self.traits.lag + unanswered;
        let mut late = None;
        for pod in self.api.pods.values_mut() {
            let Some(set) = set_of(&pod.owner) else { continue };
            let oracle = &self.guards[set].oracle;
            // An empty list is believed as long as no worker is known to have registered.
            let can_see = can_see && oracle.blind.is_none() && !oracle.is_empty;
            let can_act = can_act && operator.sets[set].failures == 0;
            let is_odd = pod.truth.other_name.is_some();
            let node = self.slurm.cluster.node(&pod.hostname).filter(|_| !is_odd);
            let is_known =
                pod.truth.alive && pod.truth.register_at.is_none() && !pod.terminating && pod.phase == "Running";
            let is_due = is_known && node.is_some_and(|node| !node.jobs.is_empty()) && !oracle.is_deleted;
            let is_protected = pod.labels.get(label::POD_PROTECT).is_some_and(|value| value == TRUE);
            let counts = can_act && can_see && is_due && !is_protected;
            pod.truth.unprotected = if counts { pod.truth.unprotected + 1 } else { 0 };
            if pod.truth.unprotected > limit {
                late = Some(pod.name.clone());
            }
        }
        if let Some(name) = late {
            self.violate("protected", || format!("{name} has been busy for {limit} seconds without the label"));
        }
    }

    fn node_of(&self, pod: &Pod) -> Option<&Node> {
        self.slurm.cluster.node(pod.node_name())
    }

    /// Whether a worker is in service, or only drained for a reason other than the update.
    fn serves(&self, pod: &Pod) -> bool {
        let is_ready = pod.ready.is_some_and(|since| self.now - since >= self.oracle().min_ready)
            || self.oracle().available.contains(&pod.uid);
        let is_known = pod.truth.alive && pod.truth.register_at.is_none();
        let is_in_service = self.node_of(pod).is_some_and(|node| {
            let is_up = matches!(node.state.base, Base::Idle | Base::Mixed | Base::Allocated);
            is_up && !(node.state.has(Flag::Drain) && node.reason.ends_with(UPDATED))
        });
        is_ready && is_known && is_in_service && !pod.terminating
    }

    /// Whether it was created for an update that is no longer wanted and is not up yet: it counts as broken and is
    /// free to replace.
    fn is_overtaken(&self, pod: &Pod) -> bool {
        let is_drained = |node: &Node| node.state.has(Flag::Drain) && node.reason.ends_with(UPDATED);
        pod.image != self.oracle().image && !pod.terminating && !self.node_of(pod).is_some_and(is_drained)
    }

    /// Pods by the name of their Slurm node, without those of other sets: such a name is theirs now.
    fn our_hosts(&self) -> BTreeMap<&str, Vec<&Pod>> {
        let mut hosts = by_host(&self.api);
        for pods in hosts.values_mut() {
            pods.retain(|pod| set_of(&pod.owner).is_none_or(|set| set == self.api.focus));
        }
        hosts.retain(|_, pods| !pods.is_empty());
        hosts
    }

    /// Drops nodes from the update's account that are back, no longer wanted, or drained by an admin.
    fn give_back(&mut self) {
        if self.guards[self.api.focus].taken.is_empty() {
            return;
        }
        let hosts = self.our_hosts();
        let enough = self.api.pods.values().filter(|pod| self.api.is_ours(pod) && !pod.terminating).count()
            >= self.oracle().desired;
        let back: Vec<String> = self.guards[self.api.focus]
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
            self.guards[self.api.focus].taken.remove(&host);
        }
    }

    /// The operator deletes a pod.
    pub fn check_delete(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name).cloned() else { return };
        if !self.api.is_ours(&pod) {
            self.violate("owned-only", || format!("pod {name} belongs to {}", pod.owner));
        }
        if self.oracle().is_paused {
            self.violate("user-intent-kept", || format!("pod {name} is deleted while the set is paused"));
        }
        if pod.terminating || pod.phase == "Failed" {
            return;
        }
        let was_registered = !pod.conditions.is_empty();
        if let Some(why) = self.oracle().blind.filter(|_| was_registered) {
            self.violate("blind-means-wait", || format!("pod {name} is deleted though {why}"));
        }
        let is_blamed = self.killer_of(name) != Killer::Other;
        if !pod.truth.alive || pod.truth.register_at.is_some() || !is_blamed {
            return;
        }
        let was_lost = self.guard.lost_at.is_some_and(|lost| lost >= self.oracle().read);
        let looked = self.oracle().read.max(self.guard.looked);
        let was_lifted = self.guard.lifted.get(&pod.hostname).is_some_and(|lifted| *lifted >= looked);
        // A Slurm node that is down has no jobs, and what was on a machine that is gone does not come back.
        let has_machine = pod.node.as_ref().is_some_and(|node| self.oracle().machines.contains(node));
        match self.node_of(&pod) {
            Some(node) if !has_machine && node.state.base == Base::Down && !is_busy(node) => {}
            Some(node) if !node.state.has(Flag::Drain) && !was_lifted && pod.truth.other_name.is_none() => {
                let state = node.state;
                self.violate("no-job-lost", || format!("pod {name} is deleted while {} is {state:?}", pod.hostname));
            }
            Some(node) if is_busy(node) && !was_lifted => {
                let jobs = &node.jobs | &node.suspended;
                self.violate("no-job-lost", || format!("pod {name} is deleted while jobs {jobs:?} run there"));
            }
            None if was_registered && !was_lost => {
                self.violate("no-job-lost", || {
                    format!("pod {name} is deleted although Slurm has lost its record and jobs may still run")
                });
            }
            _ => {}
        }
    }

    /// Whether the operator is responsible if deleting this pod ends a job. For a worker that was never in a list, an
    /// empty list is indistinguishable from its absence. So is a record that was down, for one under another name.
    pub fn killer_of(&self, name: &str) -> Killer {
        let pod = self.api.pods.get(name);
        let was_seen = pod.is_some_and(|pod| !pod.conditions.is_empty());
        let was_hidden =
            pod.is_some_and(|pod| pod.truth.other_name.is_some() && !self.oracle().up.contains(pod.node_name()));
        if (self.oracle().is_empty || was_hidden) && !was_seen {
            Killer::Other
        } else {
            Killer::Us { read: self.oracle().read.max(self.guard.looked) }
        }
    }

    /// The kubelet stops slurmd gracefully.
    pub fn check_kill(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name) else { return };
        let Some(Killer::Us { read }) = pod.truth.killer else { return };
        let was_lifted = self.guard.lifted.get(&pod.hostname).is_some_and(|lifted| *lifted >= read);
        let is_known = pod.truth.register_at.is_none();
        let jobs = self.node_of(pod).filter(|_| is_known).map(|node| &node.jobs | &node.suspended).unwrap_or_default();
        let ghost = pod.truth.ghost_until > self.now && !pod.conditions.is_empty();
        if (!jobs.is_empty() || ghost) && !was_lifted {
            self.violate("no-job-lost", || {
                format!("pod {name}, deleted by us, ends with jobs {jobs:?} (lost: {ghost})")
            });
        }
    }

    /// The operator deletes an object other than a pod.
    pub fn check_other_delete(&mut self, object: &ObjectVersion) {
        let is_shared = matches!(object.resource.kind.as_str(), "Service" | "PodDisruptionBudget");
        let stays = |set: &NodeSet| set.metadata.deletion_timestamp.is_none();
        if is_shared && (!self.oracle().is_deleted || self.api.sets.iter().flatten().any(stays)) {
            self.violate("protected", || format!("{} {} is deleted", object.resource.kind, object.name));
        } else if !is_shared && object.resource.kind != "ControllerRevision" {
            self.violate("claims-kept", || format!("{} {} is deleted", object.resource.kind, object.name));
        }
    }

    /// The operator creates an object.
    pub fn check_create(&mut self, name: &str) {
        if self.oracle().is_paused {
            self.violate("user-intent-kept", || format!("{name} is created while the set is paused"));
        }
    }

    /// Annotations set by users must be kept.
    pub fn check_user_annotations(&mut self, uid: &str) {
        let Some(pod) = self.api.pods.values().find(|pod| pod.uid == uid) else { return };
        let written = self.guard.user_annotations.iter().filter(|((pod, _), _)| pod == uid);
        let mut lost =
            written.filter(|((_, key), value)| pod.annotations.get(key) != Some(*value)).map(|((_, key), _)| key);
        if let Some(key) = lost.next().cloned() {
            let name = pod.name.clone();
            self.violate("user-intent-kept", || format!("{key} of pod {name} was removed"));
        }
    }

    /// The nodes of a write that would be in service without it.
    pub fn before_slurm_write(&self, call: &SlurmCall) -> Vec<String> {
        let hosts = by_host(&self.api);
        let serving = |host: &&String| {
            let mut pods = hosts.get(host.as_str()).into_iter().flatten();
            self.oracle().healthy.contains(*host) && pods.any(|pod| self.serves(pod))
        };
        match call {
            SlurmCall::SetState { nodes, .. } => nodes.keys().filter(serving).cloned().collect(),
            SlurmCall::Cancel(jobs) | SlurmCall::Requeue(jobs) => {
                // Jobs that have moved since the plan was made, to the queue or to workers that stay.
                let drains = |node: &String| self.slurm.cluster.node(node).is_some_and(is_drained_by_us);
                let is_safe =
                    |job: &&Job| !job.state.is_over() && (!job.holds_nodes() || !job.nodes.iter().any(drains));
                let found = jobs.jobs.keys().filter_map(|job| self.slurm.cluster.job(job.id));
                found.filter(is_safe).map(|job| format!("{} {:?} {}", job.id, job.state, job.restarts)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The operator wrote to Slurm.
    pub fn check_slurm_write(&mut self, call: &SlurmCall, serving: Vec<String>) {
        let (nodes, drain): (Vec<String>, Option<&str>) = match call {
            SlurmCall::SetState { nodes, change } => (nodes.keys().cloned().collect(), change.drain_reason()),
            SlurmCall::Update { node, .. } | SlurmCall::Forget { node, .. } => (vec![node.clone()], None),
            SlurmCall::Cancel(jobs) | SlurmCall::Requeue(jobs) => {
                let now = |job: &JobId| self.slurm.cluster.job(job.id);
                let same: Vec<String> = (jobs.jobs.keys().filter_map(now))
                    .map(|job| format!("{} {:?} {}", job.id, job.state, job.restarts))
                    .collect();
                if let Some(job) = serving.iter().find(|job| !same.contains(job)) {
                    self.violate("no-job-lost", || format!("job {job} has left its worker, and is ended"));
                }
                jobs.jobs.keys().for_each(|job| self.check_timeout(*job));
                return;
            }
            _ => return,
        };
        if let SlurmCall::Forget { node, .. } = call {
            self.check_named(node);
        }
        for host in &nodes {
            if STRANGERS.contains(&host.as_str()) {
                self.violate("owned-only", || format!("{host} does not belong to the set: {call:?}"));
            }
            self.check_owner(host);
            self.check_held(host, matches!(call, SlurmCall::Forget { .. }));
        }
        if let Some(reason) = drain {
            self.check_drain(&nodes, reason, serving);
        }
        let SlurmCall::SetState { change, .. } = call else { return };
        let text = serde_json::to_string(change).unwrap();
        let is_lift = text.contains("UNDRAIN") || text.contains("RESUME");
        let kept = nodes.iter().find(|host| is_lift && self.oracle().cordoned.contains(*host));
        if let Some(host) = kept {
            self.violate("user-intent-kept", || format!("{host} is resumed although it is cordoned"));
        }
        if (is_lift || drain.is_some()) && self.oracle().is_paused {
            self.violate("user-intent-kept", || format!("{nodes:?} are changed while the set is paused"));
        }
    }

    /// The operator writes to a node that only another set has, and had when Slurm was read.
    fn check_owner(&mut self, host: &str) {
        let (focus, read) = (self.api.focus, self.oracle().read);
        let is_theirs = |pod: &&Pod| {
            let is_known = pod.truth.alive && pod.truth.register_at.is_none() && pod.truth.registered < read;
            pod.node_name() == host && is_known && set_of(&pod.owner).is_some_and(|set| set != focus)
        };
        let theirs = self.api.pods.values().find(is_theirs).map(|pod| pod.name.clone());
        let has_ours = self.api.pods.values().any(|pod| pod.hostname == host && self.api.is_ours(pod));
        if let Some(pod) = theirs.filter(|_| !has_ours) {
            self.violate("owned-only", || format!("{host} is {pod}, which {} does not own", SETS[focus]));
        }
    }

    /// The operator ends a job, which it may only do after the timeout.
    fn check_timeout(&mut self, job: JobId) {
        let nodes = self.slurm.cluster.job(job.id).map(|job| job.nodes.clone()).unwrap_or_default();
        let drained = nodes.iter().filter_map(|node| self.slurm.cluster.node(node));
        // The preStop hook of a pod that others have deleted replaces the reason, and with it the time of our drain.
        let drained: Vec<i64> = drained
            .filter(|node| is_drained_by_us(node) && node.reason != TERMINATING_REASON)
            .map(|node| node.reason_at)
            .collect();
        let is_due = |limit: i64| drained.iter().any(|since| since + limit <= self.now);
        match self.traits.timeout {
            None | Some((_, "Wait")) => {
                self.violate("no-job-lost", || format!("job {job} is ended, which nobody asked for"));
            }
            // Without such a drain, the job has moved since the plan was made.
            Some((limit, _)) if !drained.is_empty() && !is_due(limit) => {
                let now = self.now;
                self.violate("no-job-lost", || {
                    format!("job {job} is ended at {now}, before the timeout of its drain: {limit} s after {drained:?}")
                });
            }
            Some(_) => {}
        }
    }

    /// The garbage collector deletes a pod of a set that is gone, or going.
    pub fn check_collected(&mut self, name: &str) {
        let waits = self.traits.on_delete
            && self.has_controller
            && !self.namespace_terminating
            && self.guards[self.api.focus].was_planned;
        let Some(pod) = self.api.pods.get(name).filter(|_| waits) else { return };
        if self.node_of(pod).is_some_and(is_busy) && pod.truth.alive {
            self.violate("no-job-lost", || format!("{name} is busy, and collected with its set"));
        }
    }

    /// When slurmctld starts again, it ends jobs that name a node that it does not know.
    fn check_named(&mut self, node: &str) {
        let is_open = |job: &u32| self.slurm.cluster.job(*job).is_some_and(|job| !job.state.is_over());
        let mut named =
            self.guard.named.iter().filter(|(_, (named, since))| named == node && *since < self.oracle().read);
        let lost = named.find(|(job, _)| is_open(job)).map(|(job, _)| *job);
        if let Some(job) = lost.filter(|_| self.slurm.cluster.node(node).is_none()) {
            self.violate("no-job-lost", || format!("the record of {node} is deleted, although job {job} asks for it"));
        }
    }

    /// What an admin did before the operator's last read must be kept.
    fn check_held(&mut self, host: &str, is_forgotten: bool) {
        let Some(held) = self.guard.held.get(host).cloned() else { return };
        if is_forgotten && !held.is_drain {
            // A worker that was only down is gone, and so is its problem.
            self.guard.held.remove(host);
            return;
        }
        let is_kept = self.slurm.cluster.node(host).is_some_and(|node| {
            let stays = if held.is_drain { node.state.has(Flag::Drain) } else { node.state.base == Base::Down };
            // slurmctld may append its own words.
            stays && node.reason.starts_with(&held.reason)
        });
        if !is_kept && held.since >= self.oracle().read {
            // Slurm has no conditional updates, so an admin's change between the read and the write is lost.
            self.guard.held.remove(host);
        } else if !is_kept {
            let now = self.slurm.cluster.node(host).map(|node| format!("{} ({})", states(node), node.reason));
            self.violate("foreign-drain-kept", || format!("{host}, held for {:?}, is now {now:?}", held.reason));
        }
    }

    fn check_drain(&mut self, nodes: &[String], reason: &str, serving: Vec<String>) {
        if let Some(why) = self.oracle().blind {
            self.violate("blind-means-wait", || format!("{nodes:?} are drained though {why}"));
        }
        if !reason.ends_with(UPDATED) || serving.is_empty() {
            return;
        }
        self.give_back();
        self.guards[self.api.focus].taken.extend(serving);
        let hosts = self.our_hosts();
        let (there, gone): (Vec<&String>, Vec<&String>) =
            self.guards[self.api.focus].taken.iter().partition(|host| hosts.contains_key(host.as_str()));
        // Nodes without a pod count only as far as pods are missing; surplus pods are removed anyway.
        let pods = self.api.pods.values().filter(|pod| self.api.is_ours(pod)).count().max(self.oracle().pods);
        let out = there.len() + gone.len().min(self.oracle().desired.saturating_sub(pods));
        let max = self.oracle().max.unwrap_or(0) + pods.saturating_sub(self.oracle().desired);
        if out > max {
            let taken = self.guards[self.api.focus].taken.clone();
            self.violate("budget", || format!("the update holds {out} of {taken:?} out of service, {max} allowed"));
        }
    }

    /// Why the cluster has not converged to the specs; `None` if it has.
    pub fn unrest(&self) -> Option<String> {
        let unrest = SETS.iter().enumerate().find_map(|(set, name)| Some(format!("{name}: {}", self.unrest_of(set)?)));
        unrest.or_else(|| self.unused_record())
    }

    /// A Slurm node that a set has left behind. Those of sets that are gone are deleted by the Controller.
    fn unused_record(&self) -> Option<String> {
        let is_worker =
            |name: &str| self.api.pods.values().any(|pod| pod.hostname == name && set_of(&pod.owner).is_some());
        // If a worker failed before its comment was written, its record cannot be attributed to a set.
        let has_set = |node: &Node| {
            let of = |name: &str| node.comment.contains(&format!(r#""nodeSetName":"{name}""#));
            SETS.iter().zip(&self.api.sets).any(|(name, set)| set.is_some() && of(name))
        };
        let is_left = |node: &&Node| !STRANGERS.contains(&&*node.name) && !is_worker(&node.name) && has_set(node);
        let left = self.slurm.cluster.nodes().find(is_left)?;
        Some(format!("the record of {} was not deleted: {} ({})", left.name, states(left), left.reason))
    }

    fn unrest_of(&self, index: usize) -> Option<String> {
        let ours: Vec<&Pod> = self.api.pods.values().filter(|pod| pod.owner == SET_UIDS[index]).collect();
        let Some(set) = &self.api.sets[index] else {
            return (!ours.is_empty()).then(|| "the set is deleted but its pods are not".to_owned());
        };
        if set.metadata.deletion_timestamp.is_some() {
            return Some("the set is not deleted yet".to_owned());
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
                    "{} is not in service: {:?} {:?} {state:?}, on {:?}, for {:?} with {there:?}",
                    pod.name, pod.slurmd, pod.ready, pod.node, pod.target
                ));
            }
            if !is_new && set.spec.update_strategy().type_ == UpdateType::RollingUpdate {
                return Some(format!("{} has an old template", pod.name));
            }
        }
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        if ready.is_none_or(|ready| ready.status != "True") || status.observed_generation != set.metadata.generation {
            return Some(format!("the status does not report convergence: {ready:?}"));
        }
        None
    }
}
