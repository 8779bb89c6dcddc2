//! The fake cluster: an API server with kubelets, a scheduler and lagging watches; a Slurm cluster; users, admins and
//! faults; and the real operator.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    future::Future,
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
    time::Duration,
};

use engine::{
    lint::lint,
    plan::{Next, Plan, Step},
    podset,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::watcher::Event;
use slurm_operator::{
    failure::Failure,
    frontends::{
        self,
        slinky::nodeset::{others, plan::Facts, recall, shared_owners, workers},
    },
    kube_view::{
        own_writes::OwnWrites,
        stores::{Nodes, Store, Workers},
    },
    machine::{Kind, execute},
};
use slurm_operator_api::slinky::{
    NodeSet, NodeSetStatus,
    names::{REASON_PREFIX, TERMINATING_REASON},
    nodeset::NodeSetBrief,
};
use testkit::{
    Rng,
    slurmrestd::{Machine as Hardware, NodeUpdate, StateSave},
};

use crate::{
    api::{Api, Container, Key, Killer, Pod, Power, SETS, WatchEvent, set_of},
    bugs::Bug,
    effects::{SimulatedEffects, hash_of},
    invariants::{Guard, Oracle, SetGuard, Violation},
    scenario::Traits,
    slurm::{Slurm, timestamp},
};

/// The start time in seconds.
const START: i64 = 1_800_000_000;

/// For how long the pods of a removed Kubernetes node are there, at most.
const VANISHED_FOR: i64 = 60;

/// The whole simulated cluster.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct FakeCluster {
    pub rng: Rng,
    pub now: i64,
    /// How far the operator's clock lags behind.
    pub behind: i64,
    /// Increments with every event.
    pub order: u64,
    pub traits: Traits,
    /// Whether faults have stopped.
    pub is_calm: bool,
    pub api: Api,
    pub slurm: Slurm,
    pub ctld_started: i64,
    pub bug: Option<Bug>,
    /// Whether the Controller exists.
    pub has_controller: bool,
    /// Whether the key of the cluster exists.
    pub has_key: bool,
    /// Node names that sets use which are not simulated.
    pub neighbours: BTreeSet<String>,
    pub namespace_terminating: bool,
    pub operator: Operator,
    /// The process that leads since `operator` was paused.
    pub successor: Option<Box<Operator>>,
    pub guard: Guard,
    /// What is checked for each set.
    pub guards: [SetGuard; 2],
    pub violation: Option<Violation>,
    trace: Option<Vec<String>>,
    happenings: u64,
}

/// The operator process and its state.
pub struct Operator {
    pub workers: Workers,
    pub nodes: Nodes,
    pub sets: [Watched; 2],
    pub own_writes: OwnWrites,
    /// Until when it does not run.
    pub down_until: i64,
    /// Until when its watches are disconnected; then they relist.
    pub deaf_until: Option<i64>,
    /// The process is paused before this many writes.
    pub pause_in: Option<u64>,
    /// Whether its lease has expired, so that another process leads.
    pub is_deposed: bool,
    /// The next reconcile crashes after this many writes.
    pub crash_in: Option<u64>,
    pub has_crashed: bool,
    pub passes: u64,
    pub writes: u64,
    pub last_write: i64,
}

/// A set as the operator's watch shows it, and when it is reconciled.
pub struct Watched {
    pub set: Option<NodeSet>,
    pub is_awake: bool,
    pub wake_at: Option<i64>,
    pub failures: u32,
}

impl Operator {
    fn new() -> Self {
        Self {
            workers: Workers::new(frontends::vocabularies()),
            nodes: Nodes::new(frontends::vocabularies()),
            sets: [const { Watched { set: None, is_awake: true, wake_at: None, failures: 0 } }; 2],
            own_writes: OwnWrites::default(),
            down_until: 0,
            deaf_until: None,
            pause_in: None,
            is_deposed: false,
            crash_in: None,
            has_crashed: false,
            passes: 0,
            writes: 0,
            last_write: 0,
        }
    }

    /// A new process. What was counted goes on.
    fn after(old: &Self) -> Self {
        Self { passes: old.passes, writes: old.writes, last_write: old.last_write, ..Self::new() }
    }

    /// Every set is to be reconciled.
    pub fn wake(&mut self) {
        self.sets.iter_mut().for_each(|watched| watched.is_awake = true);
    }
}

/// Polls a future to completion; nothing in the simulation ever waits.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
}

impl FakeCluster {
    /// A cluster before the first event.
    pub fn new(rng: Rng, traits: Traits, bug: Option<Bug>, is_traced: bool) -> Self {
        let now = START;
        Self {
            rng,
            now,
            behind: 0,
            order: 0,
            is_calm: false,
            api: Api::default(),
            slurm: Slurm::new(now, traits.is_old_slurm),
            traits,
            ctld_started: now,
            bug,
            has_controller: true,
            has_key: true,
            neighbours: BTreeSet::new(),
            namespace_terminating: false,
            operator: Operator::new(),
            successor: None,
            guard: Guard::default(),
            guards: Default::default(),
            violation: None,
            trace: is_traced.then(Vec::new),
            happenings: 0,
        }
    }

    /// The time on the operator's clock.
    fn clock(&self) -> i64 {
        self.now - self.behind
    }

    /// Adds a line to the trace, if tracing is enabled.
    pub fn log(&mut self, what: impl FnOnce() -> String) {
        self.order += 1;
        self.happenings += 1;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>4} +{:<4} {}", self.happenings, self.now - START, what()));
        }
    }

    /// The trace, if tracing is enabled.
    pub fn trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    /// Records a violation. Only the first one counts.
    pub fn violate(&mut self, invariant: &'static str, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let violation = Violation { invariant, what: what(), step: self.happenings };
            self.log(|| format!("VIOLATION {}: {}", violation.invariant, violation.what));
            self.violation = Some(violation);
        }
    }

    /// Advances everything by one second, including the operator.
    pub fn second(&mut self) {
        self.drift(1);
        self.poll();
        self.hear();
        for set in 0..SETS.len() {
            let watched = &self.operator.sets[set];
            let is_due = watched.is_awake || watched.wake_at.is_some_and(|at| at <= self.now);
            if is_due && self.operator.down_until <= self.now {
                self.pass(set);
            }
        }
        self.check();
        self.check_protection();
    }

    /// Does something for each set.
    pub fn each_set(&mut self, mut act: impl FnMut(&mut Self)) {
        let focus = self.api.focus;
        for set in 0..SETS.len() {
            self.api.focus = set;
            act(self);
        }
        self.api.focus = focus;
    }

    /// What the operator could know when it last planned the set.
    pub fn oracle(&self) -> &Oracle {
        &self.guards[self.api.focus].oracle
    }

    /// Advances the cluster without the operator.
    pub fn drift(&mut self, seconds: i64) {
        self.now += seconds;
        self.api.at(self.now);
        self.slurm.cluster.advance_to(self.now);
        let names: Vec<String> = self.api.pods.keys().cloned().collect();
        for name in names {
            self.go_on(&name);
        }
        self.mind_machines();
        self.collect_garbage();
    }

    // --- Kubernetes ---------------------------------------------------------------------------------------------------

    /// The node lifecycle controller: pods on unresponsive nodes are not ready.
    fn mind_machines(&mut self) {
        let failing: Vec<(String, bool)> = self
            .api
            .machines
            .values()
            .filter(|machine| machine.ready != (machine.power == Power::On))
            .map(|machine| (machine.name.clone(), machine.power == Power::On))
            .collect();
        for (name, ready) in failing {
            if !self.is_calm && self.rng.percent(50) {
                continue;
            }
            self.api.edit_machine(&name, |machine| machine.ready = ready);
            if !ready {
                let pods: Vec<String> = self.pods_on(&name);
                for pod in pods {
                    self.api.edit(&pod, |pod| pod.ready = None);
                }
            }
        }
    }

    /// The power of the machine of a pod.
    pub fn power_of(&self, pod: &Pod) -> Option<Power> {
        self.api.machines.get(pod.node.as_ref()?).map(|machine| machine.power)
    }

    pub fn pods_on(&self, machine: &str) -> Vec<String> {
        let here = self.api.pods.values().filter(|pod| pod.node.as_deref() == Some(machine));
        here.map(|pod| pod.name.clone()).collect()
    }

    /// Deletes claims whose owners are all gone. A claim that a pod uses waits for it.
    fn collect_claims(&mut self) {
        let uids: HashSet<String> = self.api.pods.values().map(|pod| pod.uid.clone()).collect();
        let is_gone = |owner: &OwnerReference| {
            set_of(&owner.uid).map_or(!uids.contains(&owner.uid), |set| self.api.sets[set].is_none())
        };
        let used: HashSet<String> = self
            .api
            .pods
            .values()
            .filter(|pod| pod.node.is_some())
            .flat_map(|pod| pod.claims.iter().cloned())
            .collect();
        let orphans = self
            .api
            .claims
            .iter()
            .filter(|(_, claim)| claim.deleting || (!claim.owners.is_empty() && claim.owners.iter().all(is_gone)));
        let orphans: Vec<String> = orphans.map(|(name, _)| name.clone()).collect();
        for name in orphans {
            if !self.is_calm && self.rng.percent(90) {
                continue;
            }
            if used.contains(&name) {
                if let Some(claim) = self.api.claims.get_mut(&name) {
                    claim.deleting = true;
                }
            } else {
                self.log(|| format!("claim {name} is deleted"));
                let claim = self.api.claims.remove(&name);
                // Its watch triggers the set that owns it.
                let owners = claim.into_iter().flat_map(|claim| claim.owners);
                for set in owners.filter_map(|owner| set_of(&owner.uid)) {
                    self.operator.sets[set].is_awake = true;
                }
            }
        }
    }

    /// Deletes what a deleted set owned.
    fn collect_garbage(&mut self) {
        self.collect_claims();
        self.each_set(|cluster| {
            if cluster.api.set().is_some() {
                cluster.collect_in_foreground();
            } else {
                cluster.collect_pods();
            }
        });
    }

    /// Deletes a pod.
    pub fn delete_pod(&mut self, name: &str, killer: Killer) {
        let Some(pod) = self.api.pods.get(name) else { return };
        if killer == Killer::Other {
            self.guards.iter_mut().for_each(|guard| guard.pardon(&pod.hostname));
        }
        if pod.node.is_none() {
            self.api.remove_pod(name);
            return;
        }
        if pod.terminating {
            return;
        }
        let kill_at = self.now + self.rng.between(0, 2);
        let gone_at = kill_at + self.rng.between(0, 4);
        self.api.edit(name, |pod| {
            pod.terminating = true;
            pod.truth.killer = Some(killer);
            (pod.truth.kill_at, pod.truth.gone_at) = (kill_at, gone_at);
        });
    }

    /// Advances a pod: scheduler and kubelet.
    fn go_on(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name) else { return };
        let Some(node) = pod.node.clone() else {
            self.schedule(name);
            return;
        };
        let power = self.api.machines.get(&node).map(|machine| machine.power);
        let (truth, terminating, now) = (&pod.truth, pod.terminating, self.now);
        match power {
            None => self.outlive_machine(name),
            Some(Power::Off) => {}
            Some(Power::Silent) => self.register(name),
            Some(Power::On) if terminating && truth.alive => {
                if now >= truth.kill_at {
                    self.end_slurmd(name, true);
                }
            }
            Some(Power::On) if terminating => {
                if now >= truth.gone_at {
                    self.log(|| format!("pod {name} is removed"));
                    self.api.remove_pod(name);
                }
            }
            Some(Power::On) if pod.phase == "Failed" => {}
            Some(Power::On) if truth.alive => {
                self.register(name);
                self.become_ready(name);
            }
            Some(Power::On) => {
                if now >= truth.start_at {
                    self.start(name);
                }
            }
        }
    }

    /// The machine of a pod is gone: its slurmd ends, and the pod is removed a while later.
    fn outlive_machine(&mut self, name: &str) {
        self.end_slurmd(name, false);
        let removed_at = self.now + self.rng.between(0, VANISHED_FOR);
        let Some(pod) = self.api.pods.get_mut(name) else { return };
        if *pod.truth.vanished.get_or_insert(removed_at) <= self.now {
            self.api.remove_pod(name);
        }
    }

    fn schedule(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name) else { return };
        let waits_for = pod.claims.iter().find_map(|name| match self.api.claims.get(name) {
            None => Some(format!("persistentvolumeclaim \"{name}\" not found")),
            Some(claim) => claim.deleting.then(|| format!("persistentvolumeclaim \"{name}\" is being deleted")),
        });
        let is_waiting = waits_for.is_some();
        if pod.waits_for != waits_for {
            self.api.edit(name, |pod| pod.waits_for = waits_for);
        }
        if is_waiting {
            return;
        }
        let Some(pod) = self.api.pods.get(name) else { return };
        let is_taken = |machine: &str| self.api.pods.values().any(|other| other.node.as_deref() == Some(machine));
        let fits: Vec<String> = self
            .api
            .machines
            .values()
            .filter(|machine| machine.ready && machine.power == Power::On)
            .filter(|machine| !machine.cordoned || pod.target.is_some())
            .filter(|machine| pod.target.as_ref().is_none_or(|target| *target == machine.name))
            .filter(|machine| !pod.is_alone || !is_taken(&machine.name))
            .map(|machine| machine.name.clone())
            .collect();
        let Some(machine) = self.rng.pick(&fits) else { return };
        let start_at = self.now + self.rng.between(1, 3);
        self.log(|| format!("pod {name} is bound to {machine}"));
        self.api.edit(name, |pod| {
            pod.node = Some(machine);
            pod.truth.start_at = start_at;
        });
    }

    fn start(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name) else { return };
        if pod.claims.iter().any(|claim| !self.api.claims.contains_key(claim)) {
            return;
        }
        if pod.image.contains("bad") {
            if pod.slurmd != Container::Backoff {
                self.api.edit(name, |pod| pod.slurmd = Container::Backoff);
            }
            return;
        }
        let now = self.now;
        let (ready_at, register_at) = (now + self.rng.between(0, 3), now + self.rng.between(0, 4));
        self.log(|| format!("slurmd starts in {name}"));
        self.api.edit(name, |pod| {
            (pod.phase, pod.slurmd, pod.ready) = ("Running", Container::Running(now), None);
            pod.truth.alive = true;
            pod.truth.ready_at = ready_at;
            pod.truth.register_at = Some(register_at);
        });
    }

    fn become_ready(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name) else { return };
        let is_known = pod.truth.register_at.is_none() || !self.traits.readiness_needs_slurm;
        if pod.ready.is_none() && self.now >= pod.truth.ready_at && is_known {
            let now = self.now;
            self.api.edit(name, |pod| pod.ready = Some(now));
        }
    }

    /// slurmd registers with slurmctld, once.
    fn register(&mut self, name: &str) {
        let now = self.now;
        let is_up = self.slurm.cluster.is_up();
        let Some(pod) = self.api.pods.get_mut(name).filter(|pod| pod.truth.alive) else { return };
        if !is_up || pod.truth.register_at.is_none_or(|at| now < at) {
            return;
        }
        pod.truth.register_at = None;
        let rebooted = std::mem::take(&mut pod.truth.rebooted);
        pod.truth.registered = self.order;
        let host = pod.node_name().to_owned();
        let hardware = Hardware { features: vec![pod.truth.feature.clone()], ..Hardware::default() };
        if rebooted {
            self.slurm.cluster.register_rebooted(&host, hardware);
        } else {
            self.slurm.cluster.register(&host, hardware);
        }
        self.log(|| format!("{host} registers"));
    }

    /// slurmd stops; if `orderly`, after its preStop hook.
    pub fn end_slurmd(&mut self, name: &str, orderly: bool) {
        let Some(pod) = self.api.pods.get(name).filter(|pod| pod.truth.alive) else { return };
        let (host, is_known) = (pod.node_name().to_owned(), pod.truth.register_at.is_none());
        if orderly {
            self.check_kill(name);
        }
        let cluster = &mut self.slurm.cluster;
        if let Some(node) = cluster.node(&host).filter(|_| orderly && cluster.is_up()) {
            let is_free = node.reason.is_empty() || node.reason.starts_with(REASON_PREFIX);
            let reason = if is_free { TERMINATING_REASON.to_owned() } else { node.reason.clone() };
            let update = NodeUpdate { reason: Some(reason), ..NodeUpdate::state("DOWN") };
            let _ = cluster.update_nodes(std::slice::from_ref(&host), &update, "root");
        }
        if is_known {
            cluster.lose(&host);
        }
        self.log(|| format!("slurmd of {name} stops"));
        let is_reported = self
            .api
            .pods
            .get(name)
            .and_then(|pod| pod.node.as_ref())
            .is_some_and(|node| self.api.machines.get(node).is_some_and(|machine| machine.power == Power::On));
        if is_reported {
            self.api.edit(name, |pod| (pod.slurmd, pod.ready) = (Container::Ended, None));
        }
        if let Some(pod) = self.api.pods.get_mut(name) {
            pod.truth.alive = false;
            pod.truth.register_at = None;
            pod.truth.ghost_until = 0;
        }
    }

    // --- Slurm --------------------------------------------------------------------------------------------------------

    /// slurmctld restarts.
    pub fn restart_slurmctld(&mut self, state: StateSave) {
        if state == StateSave::Lost {
            let until = self.now + self.rng.between(20, 200);
            let busy = |pod: &&mut Pod| {
                let node = self.slurm.cluster.node(pod.node_name());
                pod.truth.alive
                    && pod.truth.register_at.is_none()
                    && node.is_some_and(|node| !node.jobs.is_empty() || !node.suspended.is_empty())
            };
            self.api.pods.values_mut().filter(busy).for_each(|pod| pod.truth.ghost_until = until);
            self.guard.lost_state(self.order);
        }
        self.slurm.cluster.start(state);
        self.ctld_started = self.now;
        self.log(|| format!("slurmctld starts, state {state:?}"));
    }

    /// Advances the poller.
    pub fn poll(&mut self) {
        if self.operator.down_until > self.now {
            return;
        }
        let hurry = self.is_calm;
        if hurry || self.rng.percent(80) {
            self.slurm.ask(self.clock(), self.order);
        }
        if hurry || self.rng.percent(80) {
            self.slurm.answer();
        }
        if (hurry || self.rng.percent(80)) && self.slurm.publish(self.clock()) {
            self.operator.wake();
        }
        if hurry || self.rng.percent(30) {
            self.slurm.ping(self.ctld_started);
        }
    }

    // --- the operator ---------------------------------------------------------------------------------------------------

    /// Delivers some of the pending watch events.
    fn hear(&mut self) {
        if let Some(until) = self.operator.deaf_until {
            if self.now < until && !self.is_calm {
                return;
            }
            self.list();
        }
        let keys: Vec<Key> = self.api.undelivered.keys().cloned().collect();
        for key in keys {
            while let Some((since, _)) = self.api.undelivered.get(&key).and_then(VecDeque::front) {
                let is_late = self.now - since >= self.traits.lag;
                if !self.is_calm && !is_late && !self.rng.percent(50) {
                    break;
                }
                let event = self.api.undelivered.get_mut(&key).and_then(VecDeque::pop_front);
                if let Some((_, event)) = event {
                    self.take(event);
                }
            }
        }
        self.api.undelivered.retain(|_, queue| !queue.is_empty());
    }

    /// Delivers all pending watch events. Their lag stays below the time for which the operator remembers its writes:
    /// after that it trusts its stores.
    pub fn catch_up(&mut self) {
        if self.operator.deaf_until.is_some() {
            self.list();
        }
        let undelivered = std::mem::take(&mut self.api.undelivered);
        undelivered.into_values().flatten().for_each(|(_, event)| self.take(event));
    }

    fn take(&mut self, event: WatchEvent) {
        // As in the driver: a pod is of interest to its owner, or to all sets if it has none.
        let owner = match &event {
            WatchEvent::Pod(pod) | WatchEvent::PodGone(pod) => set_of(&pod.owner),
            _ => None,
        };
        let operator = &mut self.operator;
        let awake = std::cell::Cell::new(false);
        let wake = || awake.set(true);
        match event {
            WatchEvent::Pod(pod) => operator.workers.take(None, Event::Apply(pod.slim()), &|_| wake()),
            WatchEvent::PodGone(pod) => operator.workers.take(None, Event::Delete(pod.slim()), &|_| wake()),
            WatchEvent::Machine(machine) => operator.nodes.take(None, Event::Apply(machine.slim()), &|_| wake()),
            WatchEvent::MachineGone(machine) => operator.nodes.take(None, Event::Delete(machine.slim()), &|_| wake()),
            WatchEvent::Set(index, set) => {
                operator.sets[index].set = Some(*set);
                wake();
            }
            WatchEvent::SetGone(index) => {
                operator.sets[index].set = None;
                wake();
            }
        }
        match owner.filter(|_| awake.get()) {
            Some(owner) => operator.sets[owner].is_awake = true,
            None if awake.get() => operator.wake(),
            None => {}
        }
    }

    /// The watches were lost and relist.
    pub fn list(&mut self) {
        self.log(|| "the watches relist".to_owned());
        self.api.undelivered.clear();
        let operator = &mut self.operator;
        operator.deaf_until = None;
        operator.workers.take(None, Event::Init, &|_| {});
        for pod in self.api.pods.values() {
            operator.workers.take(None, Event::InitApply(pod.slim()), &|_| {});
        }
        operator.workers.take(None, Event::InitDone, &|_| {});
        operator.nodes.take(None, Event::Init, &|_| {});
        for machine in self.api.machines.values() {
            operator.nodes.take(None, Event::InitApply(machine.slim()), &|_| {});
        }
        operator.nodes.take(None, Event::InitDone, &|_| {});
        for (watched, set) in operator.sets.iter_mut().zip(&self.api.sets) {
            watched.set.clone_from(set);
        }
        operator.wake();
    }

    /// The operator process ends and restarts a little later.
    pub fn restart_operator(&mut self, after: i64) {
        self.log(|| "the operator restarts".to_owned());
        self.operator = Operator::after(&self.operator);
        self.operator.down_until = self.now + after;
        self.slurm.forget_view(self.now);
        self.list();
    }

    /// While the operator is paused in the middle of a plan, another process leads for this many seconds. Then the paused one
    /// goes on, until it notices.
    pub fn take_over(&mut self, seconds: i64) {
        self.log(|| "another operator leads".to_owned());
        let focus = self.api.focus;
        let new = Operator::after(&self.operator);
        let mut paused = std::mem::replace(&mut self.operator, new);
        self.slurm.forget_view(self.now);
        self.list();
        for _ in 0..seconds {
            self.second();
        }
        paused.is_deposed = true;
        self.successor = Some(Box::new(std::mem::replace(&mut self.operator, paused)));
        self.api.focus = focus;
    }

    /// The sets as other objects see them.
    fn siblings(&self) -> Vec<NodeSetBrief> {
        let brief = |set: &NodeSet| serde_json::from_value(serde_json::to_value(set).unwrap()).unwrap();
        self.api.sets.iter().flatten().map(brief).collect()
    }

    fn facts(&self, set: &NodeSet, clock: Timestamp) -> Facts {
        let index = self.api.focus;
        // Without another set, these are not worth their time.
        let siblings = if self.traits.rival.is_some() { self.siblings() } else { Vec::new() };
        let owners = if siblings.is_empty() { vec![self.traits.owner.clone()] } else { shared_owners(&siblings) };
        let real = others(set, &siblings, &self.operator.workers, &self.operator.own_writes, clock);

        let (workers, creating) = workers(set, &self.operator.workers, &self.operator.own_writes, clock);
        let is_terminating = set.metadata.deletion_timestamp.is_some() && self.namespace_terminating;
        let attempts = self.operator.own_writes.attempts.of(workers.iter().map(|worker| worker.uid.as_str()));
        let revisions = || self.api.revisions.iter().filter(|(_, revision)| revision.set == index);
        let claims = self.api.claims.iter().filter(|(_, claim)| claim.set == index);
        let podset = podset::Facts {
            workers,
            attempts,
            orphans: self.orphans(),
            lost: Vec::new(),
            known_revisions: revisions().map(|(name, _)| hash_of(name, index)).collect(),
            creating,
            nodes: self.operator.nodes.all(),
            slurm: self.observed_slurm(),
            claims: claims.map(|(name, claim)| (name.clone(), claim.facts(name))).collect(),
            others: real.into_iter().chain(self.neighbours()).collect(),
            recall: recall(set),
            may_be_reserved: false,
            yields: !self.has_controller || is_terminating,
        };
        Facts {
            cluster: self.has_controller.then(|| self.traits.cluster(self.has_key)),
            podset,
            revisions: revisions().map(|(name, revision)| revision.facts(name)).collect(),
            siblings: owners,
            live: self.api.live(),
            has_drain_policy: None,
            sssd_hash: None,
            propagated_conditions: Vec::new(),
            domain: "cluster.local".to_owned(),
        }
    }

    /// One reconcile, like the driver runs it.
    fn pass(&mut self, index: usize) {
        self.api.focus = index;
        let watched = &mut self.operator.sets[index];
        watched.is_awake = false;
        watched.wake_at = None;
        let Some(mut set) = watched.set.clone() else { return };
        let is_held = set
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|found| <NodeSet as Kind>::FINALIZERS.contains(&found.as_str()));
        if set.metadata.deletion_timestamp.is_some() && !is_held {
            return;
        }
        self.operator.passes += 1;
        if self.bug.is_some_and(Bug::forgets) {
            self.operator.own_writes = OwnWrites::default();
        }
        let clock = self.clock();
        let now = timestamp(clock);
        let mut facts = self.facts(&set, now);
        self.guards[index].oracle = Oracle::of(&set, &facts, clock, self.slurm.order(), self.traits.min_ready);
        if let Some(bug) = self.bug {
            bug.spoil_facts(&mut set, &mut facts, now);
        }
        let mut plan = set.plan(&facts, now);
        if plan.needs.as_ref().is_some_and(|needs| needs.jobs) {
            self.slurm.want_jobs(clock);
        }
        if let Some(violation) = lint(&set, &plan).first() {
            self.violate("lint", || violation.to_string());
        }
        if let Some(bug) = self.bug {
            bug.spoil_plan(&mut plan, &facts, &self.api, &mut self.rng);
        }
        self.log(|| describe(SETS[index], &plan));
        plan.stages.iter_mut().for_each(|stage| self.rng.shuffle(stage));
        let next = plan.next;
        let own_writes = std::mem::take(&mut self.operator.own_writes);
        let effects = SimulatedEffects(Mutex::new(self));
        let outcome = block_on(execute(&effects, &own_writes, &set, plan, now, || effects.leads()));
        self.operator.own_writes = own_writes;
        if let Some(successor) = self.successor.take() {
            self.operator = *successor;
            return;
        }
        if std::mem::take(&mut self.operator.has_crashed) {
            let after = self.rng.between(0, 20);
            self.restart_operator(after);
            return;
        }
        let (now, watched) = (self.now, &mut self.operator.sets[index]);
        if outcome.failures.is_empty() {
            self.guards[index].was_planned = true;
            watched.failures = 0;
            let next = if outcome.is_stale { Next::After(Duration::from_secs(1)) } else { next };
            watched.wake_at = match next {
                Next::OnChange => None,
                Next::After(wait) => Some(now + i64::try_from(wait.as_secs() + 1).unwrap()),
            };
        } else {
            let wait = 1_i64 << watched.failures.min(6);
            watched.failures += 1;
            watched.wake_at = Some(now + wait.min(60));
            self.log(|| format!("failures: {:?}", outcome.failures.iter().map(Failure::text).collect::<Vec<_>>()));
        }
    }
}

fn describe(set: &str, plan: &Plan<NodeSetStatus>) -> String {
    let steps: Vec<String> = plan.stages.iter().flatten().map(Step::title).collect();
    let conditions: Vec<String> = plan
        .conditions
        .iter()
        .map(|new_condition| format!("{}={:?} {}", new_condition.type_, new_condition.status, new_condition.message))
        .collect();
    format!("RECONCILE {set}: {steps:?} | {}", conditions.join(" | "))
}

/// Pods by the name of their Slurm node.
pub fn by_host(api: &Api) -> BTreeMap<&str, Vec<&Pod>> {
    let mut hosts: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in api.pods.values() {
        hosts.entry(pod.hostname.as_str()).or_default().push(pod);
    }
    hosts
}
