//! A small fake cluster of pods, Kubernetes nodes and Slurm that applies actions directly. Every action is checked.

use std::collections::{BTreeSet, HashSet};

use slurm_operator_api::common::vocabulary::AUTOSCALERS;

use super::*;

/// The duration of a turn, which is also the polling interval of Slurm.
const TURN: i64 = 2;

pub(super) struct FakeCluster {
    pub(super) model: Model,
    pub(super) now: Timestamp,
    pub(super) pods: Vec<Worker>,
    pub(super) kube: BTreeMap<String, KubeNode>,
    pub(super) slurm: HashMap<String, SlurmNode>,
    /// Slurm nodes with a running job, and its remaining turns. Jobs run independently of the state in slurmctld.
    pub(super) jobs: BTreeMap<String, u32>,
    /// Turns for which slurmrestd does not answer.
    pub(super) blind: u32,
    /// Turns for which the list of Slurm nodes is not refreshed.
    pub(super) lag: u32,
    /// Revisions with which slurmd never starts.
    pub(super) bad: BTreeSet<String>,
    pub(super) ctld_started: Timestamp,
    attempts: HashMap<String, Attempt>,
    list: Option<Arc<Snapshot>>,
    /// The number of turns for which Slurm nodes have had no slurmd.
    silent: HashMap<String, u32>,
    pending: HashMap<String, Written>,
    recall: Recall,
    serial: u32,
    /// Actions of the last pass.
    pub(super) last: Vec<String>,
}

impl FakeCluster {
    pub(super) fn new(model: Model, nodes: u32) -> Self {
        let name = |number| format!("n{number}");
        Self {
            model,
            now: NOW,
            pods: Vec::new(),
            kube: (0..nodes).map(|number| (name(number), kube_node(&name(number)))).collect(),
            slurm: HashMap::from([("login".to_owned(), record("IDLE", ""))]),
            jobs: BTreeMap::new(),
            blind: 0,
            lag: 0,
            bad: BTreeSet::new(),
            ctld_started: ago(86_400),
            attempts: HashMap::new(),
            list: None,
            silent: HashMap::new(),
            pending: HashMap::new(),
            recall: Recall::default(),
            serial: 0,
            last: Vec::new(),
        }
    }

    /// One pass of the operator, then one turn of everything else.
    pub(super) fn turn(&mut self) {
        let facts = self.observe();
        let decision = plan(&self.model, &facts, self.now);
        self.check_budget(&decision);
        self.last = actions(&decision);
        self.recall = Recall { pinned: decision.pinned, slurm: decision.counts.slurm, current: decision.current };
        for action in decision.actions {
            self.apply(action);
        }
        self.check();
        self.advance();
    }

    /// Runs until there are no more actions; panics if that takes too long.
    pub(super) fn settle(&mut self, bound: usize) {
        let mut quiet = 0;
        for _ in 0..bound {
            self.turn();
            // Replacing a terminated pod and registering a new one take some turns without actions.
            quiet = if self.last.is_empty() && self.pods.iter().all(|pod| !pod.terminating) { quiet + 1 } else { 0 };
            if quiet > 40 {
                return;
            }
        }
        panic!("not stable after {bound} turns: {:?}", self.last);
    }

    fn observe(&mut self) -> Facts {
        if self.lag == 0 || self.list.is_none() {
            self.pending.clear();
            self.list = Some(Arc::new(Snapshot {
                read_at: self.now,
                ctld_started: Some(self.ctld_started),
                clock_ahead: Some(SignedDuration::ZERO),
                ..snapshot(self.slurm.clone())
            }));
        }
        let list = self.list.clone().unwrap();
        Facts {
            workers: self.pods.iter().cloned().map(Arc::new).collect(),
            nodes: self.kube.iter().map(|(name, node)| (name.clone(), Arc::new(node.clone()))).collect(),
            slurm: if self.blind > 0 {
                SlurmObservation::Blind { since: self.now, why: "away".into() }
            } else {
                SlurmObservation::Clear(Arc::new(Snapshot { pending: self.pending.clone(), ..(*list).clone() }))
            },
            recall: self.recall.clone(),
            attempts: self.attempts.clone(),
            ..Facts::default()
        }
    }

    fn pod_of(&self, host: &str) -> Option<&Worker> {
        self.pods.iter().find(|pod| pod.slurm_node() == Some(host))
    }

    fn apply(&mut self, action: WorkerAction) {
        match action {
            WorkerAction::Create(identity) => self.create(*identity),
            WorkerAction::Delete(removal) => self.delete(&removal),
            WorkerAction::Patch { pod, labels, annotations } => {
                let worker = self.pods.iter_mut().find(|worker| worker.uid == pod.uid).expect("a pod that is there");
                for (_, value) in labels {
                    worker.protected = value.is_some();
                }
                for (key, value) in annotations {
                    assert!(!key.ends_with("pod-cordon") || worker.cordon != Cordon::User, "user-intent-kept");
                    if key.ends_with("pod-cordon") {
                        worker.cordon = if value.is_some() { Cordon::Node } else { Cordon::None };
                    } else if key.ends_with("taken-over") {
                        worker.is_of_former = false;
                    } else if key.ends_with("pod-deadline") {
                        worker.deadline = value;
                    } else if let Some(index) = AUTOSCALERS.iter().position(|(known, _)| *known == key) {
                        worker.autoscalers[index] = if value.is_some() { SetBy::Operator } else { SetBy::Unset };
                    }
                }
            }
            WorkerAction::Conditions { pod, set, remove } => {
                let worker = self.pods.iter_mut().find(|worker| worker.uid == pod.uid).expect("a pod that is there");
                worker.conditions.retain(|type_, _| !remove.contains(type_));
                worker.conditions.extend(set);
                assert!(!worker.conditions.is_empty(), "a registered pod keeps at least one condition");
            }
            WorkerAction::Drain { nodes, reason } => self.write(&nodes, |node, listed, now| {
                let is_foreign = listed.states.is_drain() && listed.hold(&VOCABULARY) == Hold::Foreign;
                assert!(!is_foreign || listed.reason == reason, "foreign-drain-kept: {} -> {reason}", listed.reason);
                node.states = with(&node.states, &[NodeState::Drain], &[]);
                node.reason = reason.clone();
                node.reason_since = Some(now);
            }),
            WorkerAction::Undrain { nodes } => self.write(&nodes, |node, listed, _| {
                assert_ne!(listed.hold(&VOCABULARY), Hold::Foreign, "foreign-drain-kept");
                node.states = with(&node.states, &[], &[NodeState::Drain]);
            }),
            WorkerAction::Resume { nodes } => self.write(&nodes, |node, listed, _| {
                assert_ne!(listed.hold(&VOCABULARY), Hold::Foreign, "foreign-drain-kept");
                let base = if node.states.is_down() { &[NodeState::Idle][..] } else { &[] };
                node.states = with(&node.states, base, &[NodeState::Drain, NodeState::Down]);
            }),
            WorkerAction::Describe(description) => {
                let comment = description.comment;
                self.write(&[description.node], |node, _, _| node.comment.clone_from(comment.as_ref().unwrap()));
            }
            WorkerAction::Forget { node } => self.forget(&node),
            WorkerAction::Register { pod, node } => self.register(pod.uid, node),
            other => panic!("not expected here: {other:?}"),
        }
    }

    /// Changes Slurm nodes. `change` also gets the state that the operator knew, which may be older than a change by an admin.
    fn write(&mut self, names: &[String], change: impl Fn(&mut SlurmNode, &SlurmNode, Timestamp)) {
        let list = self.list.clone().unwrap();
        for name in names {
            if let Some(node) = self.slurm.get_mut(name) {
                let before = node.states.is_drain();
                change(node, &list.nodes[name], self.now);
                let reason = node.reason.clone();
                let is_drain = node.states.is_drain() && (!before || node.reason_since == Some(self.now));
                let written = if is_drain { Written::Drain { reason } } else { Written::Other };
                self.pending.insert(name.clone(), written);
            }
        }
    }

    fn forget(&mut self, name: &str) {
        self.pending.insert(name.to_owned(), Written::Other);
        let is_busy = self.slurm.get(name).is_some_and(|node| node.states.is_busy());
        assert!(self.pod_of(name).is_none(), "deleted the Slurm node of an existing worker: {name}");
        if !is_busy {
            self.slurm.remove(name);
        }
    }

    fn create(&mut self, identity: Identity) {
        if identity.forget {
            self.forget(&identity.hostname);
        }
        self.serial += 1;
        let mode = if identity.ordinal.is_some() { Mode::Numbered } else { Mode::PerNode };
        self.pods.push(Worker {
            uid: format!("uid-{}", self.serial),
            resource_version: "1".into(),
            target: identity.node,
            hostname: Some(identity.hostname),
            created: Some(self.now),
            mode: Some(mode),
            index: identity.ordinal.map(|ordinal| ordinal.to_string()),
            revision: Some(self.model.revision.clone()),
            name: identity.name,
            ..Worker::default()
        });
    }

    fn delete(&mut self, removal: &Removal) {
        let pod = self.pods.iter_mut().find(|pod| pod.uid == removal.uid).expect("a pod that is there");
        let host = pod.slurm_node().unwrap().to_owned();
        let runs = pod.slurmd != SlurmdState::Stopped;
        if runs {
            assert!(!self.jobs.contains_key(&host), "no-job-lost: {host} {:?}", removal.why);
            assert_eq!(self.blind, 0, "blind-means-wait: {host}");
            let node = self.list.as_ref().unwrap().nodes.get(&host);
            let is_safe = node.map_or(!pod.has_registered(), |node| node.states.is_drained());
            let is_vanished = !self.kube.contains_key(pod.home().unwrap_or_default());
            assert!(is_safe || is_vanished, "no-job-lost: {host} is not drained: {node:?}");
        }
        assert!(!pod.terminating);
        pod.terminating = true;
        if let Some(node) = self.slurm.get_mut(&host).filter(|_| runs) {
            node.states = with(&node.states, &[NodeState::Down], &[NodeState::Idle]);
            node.reason = VOCABULARY.terminating_reason.into();
        }
    }

    /// A user deletes a pod, and its jobs are lost.
    pub(super) fn kill_pod(&mut self, index: usize) {
        let Some(pod) = self.pods.get_mut(index).filter(|pod| !pod.terminating) else { return };
        pod.terminating = true;
        let host = pod.slurm_node().unwrap().to_owned();
        self.jobs.remove(&host);
        if let Some(node) = self.slurm.get_mut(&host).filter(|_| pod.slurmd != SlurmdState::Stopped) {
            node.states = states("DOWN");
            node.reason = VOCABULARY.terminating_reason.into();
        }
    }

    /// slurmctld loses its state.
    pub(super) fn lose_state(&mut self) {
        self.slurm.clear();
        self.ctld_started = self.now;
    }

    /// slurmd is asked to register again.
    fn register(&mut self, pod: String, node: String) {
        let has_steps = self.jobs.contains_key(&node);
        let result = if has_steps { AttemptResult::HasSteps } else { AttemptResult::Asked };
        self.attempts.insert(pod, Attempt { at: self.now, result });
        if !has_steps {
            self.slurm.entry(node).or_insert_with(new_record);
        }
    }

    /// Starts a job if the node accepts one.
    pub(super) fn start_job(&mut self, index: usize, turns: u32) {
        let Some(pod) = self.pods.get(index).filter(|pod| !pod.terminating && pod.slurmd != SlurmdState::Stopped)
        else {
            return;
        };
        let host = pod.slurm_node().unwrap().to_owned();
        if let Some(node) = self.slurm.get_mut(&host).filter(|node| node.states.is_available() && node.states.is_idle())
        {
            node.states = with(&node.states, &[NodeState::Mixed], &[NodeState::Idle]);
            self.jobs.insert(host, turns);
        }
    }

    fn advance(&mut self) {
        self.now += SignedDuration::from_secs(TURN);
        self.blind = self.blind.saturating_sub(1);
        self.lag = self.lag.saturating_sub(1);
        for (host, left) in &mut self.jobs {
            *left = left.saturating_sub(1);
            if let Some(node) = self.slurm.get_mut(host).filter(|_| *left == 0) {
                node.states = with(&node.states, &[NodeState::Idle], &[NodeState::Mixed]);
            }
        }
        self.jobs.retain(|_, left| *left > 0);
        self.pods.retain(|pod| !pod.terminating);
        self.silence();
        let kube = &self.kube;
        self.pods.retain(|pod| pod.node.as_ref().is_none_or(|node| kube.contains_key(node)));
        let used: HashSet<String> = self.pods.iter().filter_map(|pod| pod.node.clone()).collect();
        let mut free: Vec<String> = self
            .kube
            .values()
            .filter(|node| !node.unschedulable && !used.contains(&node.name))
            .map(|node| node.name.clone())
            .collect();
        for pod in &mut self.pods {
            grow(pod, &mut free, &self.bad, &mut self.slurm, self.now);
        }
    }

    /// slurmctld sets nodes without a slurmd down.
    fn silence(&mut self) {
        let running = |pod: &&Worker| pod.slurmd != SlurmdState::Stopped;
        let hosts: HashSet<&str> = self.pods.iter().filter(running).filter_map(Worker::slurm_node).collect();
        let silent = self.slurm.iter_mut().filter(|(name, _)| *name != "login" && !hosts.contains(name.as_str()));
        for (name, node) in silent {
            let turns = self.silent.entry(name.clone()).or_default();
            *turns += 1;
            if *turns > 10 {
                let gone = [NodeState::Idle, NodeState::Mixed];
                node.states = with(&node.states, &[NodeState::Down, NodeState::NotResponding], &gone);
                if node.reason.is_empty() {
                    node.reason = "Not responding".into();
                }
            }
        }
        self.silent.retain(|name, _| !hosts.contains(name.as_str()));
    }

    fn check(&self) {
        let mut hosts: Vec<&str> = self.pods.iter().filter_map(Worker::slurm_node).collect();
        hosts.sort_unstable();
        assert!(hosts.windows(2).all(|pair| pair[0] != pair[1]), "unique-node: {hosts:?}");
    }

    /// Checks the budget from the state of the cluster: workers out of service because of the update or for other reasons.
    fn check_budget(&self, decision: &Decision) {
        let Update::Rolling { max_unavailable } = self.model.update else { return };
        let new: BTreeSet<&String> = decision
            .actions
            .iter()
            .filter_map(
                |action| if let WorkerAction::Drain { nodes, reason } = action { Some((nodes, reason)) } else { None },
            )
            .filter(|(_, reason)| reason.ends_with("is being updated"))
            .flat_map(|(nodes, _)| nodes)
            .filter(|name| self.slurm.get(*name).is_some_and(|node| node.states.is_available()))
            .collect();
        if new.is_empty() {
            return;
        }
        let is_new = |pod: &&Worker| pod.revision.as_deref() == Some(&self.model.revision);
        let node = |pod: &Worker| pod.slurm_node().and_then(|host| self.slurm.get(host));
        let is_out = |pod: &&Worker| {
            let serves = node(pod).is_some_and(|node| node.states.is_registered() && !node.states.is_down());
            !serves
                || pod.ready.is_none()
                || node(pod).is_some_and(|node| node.reason == UPDATE && node.states.is_drain())
        };
        let desired = decision.counts.desired;
        let fresh = self.pods.iter().filter(|pod| !pod.terminating).filter(is_new).filter(is_out).count();
        let draining = self
            .pods
            .iter()
            .filter(|pod| !is_new(pod) && node(pod).is_some_and(|node| node.reason == UPDATE && node.states.is_drain()))
            .count();
        let out = u32::try_from(fresh + draining + new.len()).unwrap();
        // Surplus workers after a scale-in have their own rules.
        let alive = u32::try_from(self.pods.iter().filter(|pod| !pod.terminating).count()).unwrap();
        let max = max_unavailable.of(desired) + alive.saturating_sub(desired);
        assert!(out <= max, "budget: {out} of {desired} out of service, {max} allowed");
    }
}

/// Advances a pod by one stage: scheduled, started, ready, registered.
fn grow(
    pod: &mut Worker,
    free: &mut Vec<String>,
    bad: &BTreeSet<String>,
    slurm: &mut HashMap<String, SlurmNode>,
    now: Timestamp,
) {
    if pod.terminating {
        return;
    }
    if pod.node.is_none() {
        pod.node = match &pod.target {
            Some(target) => Some(target.clone()),
            None => (!free.is_empty()).then(|| free.remove(0)),
        };
        return;
    }
    if pod.slurmd == SlurmdState::Stopped {
        if pod.revision.as_ref().is_some_and(|revision| bad.contains(revision)) {
            pod.problem = Some("ImagePullBackOff: no such image".into());
            return;
        }
        (pod.slurmd, pod.phase) = (SlurmdState::Running { since: Some(now) }, Phase::Running);
        return;
    }
    if pod.ready.is_none() {
        pod.ready = Some(now);
        let host = pod.slurm_node().unwrap().to_owned();
        // An existing Slurm node keeps its state.
        let node = slurm.entry(host).or_insert_with(new_record);
        let is_back = node.is_unresponsive();
        node.states = with(&node.states, &[], &[NodeState::NotResponding]);
        if is_back {
            node.states = with(&node.states, &[NodeState::Idle], &[NodeState::Down]);
        }
    }
}

/// The Slurm node of a worker that registers for the first time.
fn new_record() -> SlurmNode {
    SlurmNode { features: vec!["gpu".into()], ..record("IDLE", "") }
}

pub(super) fn with(found: &NodeStates, add: &[NodeState], remove: &[NodeState]) -> NodeStates {
    found.iter().filter(|state| !remove.contains(state)).chain(add.iter().copied()).collect()
}
