//! Scenarios: random actions of users and admins, jobs and faults; then the faults stop and the cluster must
//! converge.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use serde_json::{Value, json};
use slurm_operator::frontends::slinky::{
    keys::Ring,
    nodeset::plan::{Cluster, GresTypes},
};
use slurm_operator_api::slinky::{
    Controller, NodeSet,
    names::{TRUE, annotation, label},
    nodeset::{ScalingMode, UpdateType},
};
use testkit::{
    Rng,
    slurmrestd::{Base, JobSpec, Machine as Hardware, NodeUpdate, StateSave},
};

use crate::{
    api::{Container, Killer, NAMESPACE, Pod, Power, SET_UIDS, SETS, StringMap, Truth, set_of},
    bugs::Bug,
    fake_cluster::FakeCluster,
    invariants::{Held, STRANGERS, Violation},
};

pub const CONTROLLER: &str = "slurm";

/// The name and UID of a pod of another set.
pub const OTHER: &str = "workers-9";

/// The reason that admins give.
const BROKEN: &str = "bad disk";

/// A prefix of node names that nobody has.
const FREE: &str = "free-";

/// After the faults stop, the cluster must converge within this many seconds and reconciles.
const REST_WITHIN: i64 = 1_800;
const REST_PASSES: u64 = 400;

/// No writes may happen for this many seconds.
const SILENCE: i64 = 40;

/// Parameters that do not change during a scenario.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent parameters")]
pub struct Traits {
    pub machines: u64,
    /// 24.11 without accounting, instead of the newest release with it.
    pub is_old_slurm: bool,
    /// Maximum lag of watches in seconds.
    pub lag: i64,
    /// Percentage of calls to the API server that are lost, and of calls whose response is lost.
    pub api_faults: u64,
    /// Percentage of writes to Slurm that are performed but not answered.
    pub slurm_faults: u64,
    pub readiness_needs_slurm: bool,
    pub min_ready: i64,
    pub prefix: &'static str,
    pub has_claims: bool,
    retention: (bool, bool),
    controller: Controller,
    /// The owner of shared objects, if there is only one set.
    pub owner: OwnerReference,
    /// The prefix of the node names of another set of the same Slurm cluster.
    pub rival: Option<&'static str>,
    /// Whether the other set is deleted in the end, instead of changed.
    rival_goes: bool,
    switches: bool,
    ends: Option<End>,
    /// Whether slurmd of some pods registers under another name.
    pub odd_names: bool,
    /// Whether the set is drained before it is deleted.
    pub on_delete: bool,
    /// After how many seconds of draining what is to be done with jobs.
    pub timeout: Option<(i64, &'static str)>,
}

/// How a set is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The set itself.
    Set,
    /// The set itself, after its pods.
    Foreground,
    /// Its Controller before it.
    Controller,
    /// The whole namespace.
    Namespace,
}

impl Traits {
    fn new(rng: &mut Rng) -> Self {
        let controller = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
            "metadata": {"name": CONTROLLER, "namespace": NAMESPACE, "uid": "controller-uid"},
            "spec": {
                "slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "jwtKeyRef": {"name": "keys", "key": "jwt.key"},
            },
        });
        let ends = [Some(End::Set), Some(End::Foreground), Some(End::Controller), Some(End::Namespace)];
        let prefix = if rng.percent(30) { "n" } else { "gpu-" };
        // The same names; a Slurm NodeSet with the name of a node; none of this.
        let rivals = [prefix, prefix, if prefix == "n" { "n1-" } else { "gpu-1-" }, "cpu-"];
        let timeouts = [(20, "Kill"), (20, "Requeue"), (40, "Wait")];
        Self {
            machines: 2 + rng.below(5),
            is_old_slurm: rng.percent(50),
            lag: if rng.percent(30) { 1 } else { rng.between(2, 12) },
            api_faults: if rng.percent(50) { 0 } else { 4 },
            slurm_faults: if rng.percent(50) { 0 } else { 10 },
            readiness_needs_slurm: rng.percent(50),
            min_ready: if rng.percent(70) { 0 } else { 5 },
            prefix,
            rival: if rng.percent(30) { rng.pick(&rivals) } else { None },
            rival_goes: rng.percent(40),
            has_claims: rng.percent(30),
            retention: (rng.percent(30), rng.percent(30)),
            controller: serde_json::from_value(controller).unwrap(),
            owner: OwnerReference::default(),
            switches: rng.percent(25),
            ends: if rng.percent(20) { rng.pick(&ends).flatten() } else { None },
            odd_names: rng.percent(5),
            on_delete: rng.percent(40),
            timeout: if rng.percent(20) { rng.pick(&timeouts) } else { None },
        }
    }

    /// The cluster that the workers join.
    pub fn cluster(&self, has_key: bool) -> Cluster {
        let controller = Box::new(self.controller.clone());
        Cluster { controller, has_key, ring: Ring::NotUsed, gres_types: GresTypes::default() }
    }

    /// Whether claims are deleted with the set, and with their worker.
    pub fn retention(&self) -> (bool, bool) {
        self.retention
    }
}

/// The outcome of a scenario.
#[derive(Debug)]
pub struct Outcome {
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
    /// Identical for the same seed.
    pub digest: (i64, u64, u64, u64),
}

/// Runs the scenario of a seed.
pub fn run(seed: u64, bug: Option<Bug>, is_traced: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let traits = Traits::new(&mut rng);
    let mut cluster = FakeCluster::new(rng, traits, bug, is_traced);
    cluster.begin();
    cluster.live();
    if cluster.violation.is_none() {
        cluster.heal();
        cluster.rest();
    }
    let trace = cluster.trace();
    let operator = &cluster.operator;
    Outcome {
        trace,
        digest: (cluster.now, operator.passes, operator.writes, cluster.order),
        violation: cluster.violation,
    }
}

fn image(number: u64) -> Value {
    json!(match number {
        0 => "registry.example/slurmd:26.05",
        1 => "registry.example/slurmd:26.05.1",
        2 => "registry.example/slurmd:26.05.2",
        _ => "registry.example/bad:26.05",
    })
}

impl FakeCluster {
    fn begin(&mut self) {
        for number in 0..self.traits.machines {
            self.api.edit_machine(&format!("n{number}"), |_| {});
        }
        let rival = self.traits.rival;
        for (index, prefix) in [Some(self.traits.prefix), rival].into_iter().enumerate() {
            let Some(prefix) = prefix else { continue };
            let set = self.new_set(index, prefix);
            let owner = set.controller_owner_ref(&()).unwrap();
            self.traits.owner = OwnerReference { controller: None, block_owner_deletion: Some(true), ..owner };
            self.api.focus = index;
            self.api.sets[index] = Some(set);
            self.api.edit_set(true, |_| {});
        }
        self.strangers();
        self.list();
    }

    fn new_set(&mut self, index: usize, prefix: &str) -> NodeSet {
        let retain = |goes: bool| if goes { "Delete" } else { "Retain" };
        let (with_set, with_scale) = self.traits.retention;
        let max = self.rng.pick(&[json!(1), json!(2), json!("25%"), json!("50%")]).unwrap();
        let strategy = if self.rng.percent(90) { "RollingUpdate" } else { "OnDelete" };
        let per_node = self.rng.percent(25);
        let (on_delete, timeout) = (self.traits.on_delete, self.traits.timeout);
        let first_image = if self.rng.percent(10) { 3 } else { 0 };
        let mut spec = json!({
            "controllerRef": {"name": CONTROLLER},
            "replicas": self.rng.below(self.traits.machines + 1),
            "scalingMode": if per_node { "DaemonSet" } else { "StatefulSet" },
            "slurmd": {"image": image(first_image)},
            "template": {"spec": {"hostname": prefix}},
            "updateStrategy": {"type": strategy, "rollingUpdate": {"maxUnavailable": max}},
            "minReadySeconds": self.traits.min_ready,
            "revisionHistoryLimit": self.rng.below(3),
            "pinToNode": !per_node && self.rng.percent(20),
            "drain": {"onDelete": on_delete},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": retain(with_set), "whenScaled": retain(with_scale),
            },
        });
        if let Some((seconds, action)) = timeout {
            spec["drain"] = json!({"onDelete": on_delete, "timeout": format!("{seconds}s"), "onTimeout": action});
        }
        if self.traits.has_claims {
            spec["volumeClaimTemplates"] = json!([{
                "metadata": {"name": "scratch"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }]);
        }
        // The younger of two sets waits for the older one. One of these may be either, or as old as the other.
        let created = crate::slurm::timestamp(self.now + self.rng.between(0, 2));
        serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
            "metadata": {
                "name": SETS[index], "namespace": NAMESPACE, "uid": SET_UIDS[index], "generation": 0,
                "creationTimestamp": created,
            },
            "spec": spec,
        }))
        .unwrap()
    }

    /// Objects that do not belong to the set: a pod that looks like a worker, a login node, a node of another set.
    fn strangers(&mut self) {
        let labels: StringMap = [(label::NAME.to_owned(), "slurmd".to_owned())].into();
        self.api.add_pod(Pod {
            name: OTHER.to_owned(),
            uid: OTHER.to_owned(),
            version: 0,
            created: self.now,
            terminating: false,
            owner: "other-uid".to_owned(),
            labels,
            annotations: StringMap::new(),
            written: std::collections::BTreeSet::new(),
            hostname: "elsewhere".to_owned(),
            target: Some("nowhere".to_owned()),
            node: None,
            image: String::new(),
            is_alone: true,
            claims: Vec::new(),
            waits_for: None,
            phase: "Pending",
            ready: None,
            slurmd: Container::Creating,
            conditions: StringMap::new(),
            truth: Truth::default(),
        });
        for stranger in STRANGERS {
            self.slurm.cluster.register(stranger, Hardware::default());
        }
        let comment =
            r#"{"namespace":"ns","podName":"other-0","node":"n0","nodeSetName":"other","nodeSetUID":"other"}"#;
        let update = NodeUpdate { comment: Some(comment.to_owned()), ..NodeUpdate::state("DOWN") };
        let _ = self.slurm.cluster.update_nodes(&[STRANGERS[1].to_owned()], &update, "root");
        // Keeps jobs off the login node.
        let _ = self.slurm.cluster.update_nodes(&[STRANGERS[0].to_owned()], &NodeUpdate::drain("no jobs here"), "root");
    }

    /// Runs random actions and faults.
    fn live(&mut self) {
        // Most scenarios start with workers in service.
        let warm = if self.rng.percent(70) { 15 } else { 0 };
        let steps = warm + self.rng.below(60) + 20;
        for step in 0..steps {
            if step >= warm && self.rng.percent(45) {
                self.happen();
            } else {
                self.second();
            }
            if self.violation.is_some() {
                return;
            }
        }
        let Some(end) = self.traits.ends else { return };
        self.choose_set();
        match end {
            End::Set => {}
            End::Foreground => self.delete_in_foreground(),
            End::Controller => self.has_controller = false,
            End::Namespace => self.namespace_terminating = true,
        }
        if matches!(end, End::Controller | End::Namespace) {
            self.each_set(Self::delete_set);
        } else {
            self.delete_set();
        }
    }

    /// A user does something with one of the sets.
    fn choose_set(&mut self) {
        self.api.focus = usize::from(self.traits.rival.is_some() && self.rng.percent(50));
    }

    fn delete_set(&mut self) {
        if self.api.set().is_none_or(|set| set.metadata.deletion_timestamp.is_some()) {
            return;
        }
        let name = SETS[self.api.focus];
        self.log(|| format!("a user deletes the set {name}"));
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(crate::slurm::timestamp(self.now));
        self.api.edit_set(false, |set| set.metadata.deletion_timestamp = Some(now));
    }

    fn some_pod(&mut self) -> Option<String> {
        let pods: Vec<String> =
            self.api.pods.values().filter(|pod| set_of(&pod.owner).is_some()).map(|pod| pod.name.clone()).collect();
        self.rng.pick(&pods)
    }

    fn some_machine(&mut self) -> Option<String> {
        let machines: Vec<String> = self.api.machines.keys().cloned().collect();
        self.rng.pick(&machines)
    }

    fn some_node(&mut self) -> Option<String> {
        let is_ours = |name: &&str| !STRANGERS.contains(name);
        let nodes = self.slurm.cluster.nodes().map(|node| node.name.as_str());
        let nodes: Vec<String> = nodes.filter(is_ours).map(str::to_owned).collect();
        self.rng.pick(&nodes)
    }

    /// One random action or fault.
    fn happen(&mut self) {
        self.choose_set();
        match self.rng.below(100) {
            0..18 => self.submit(),
            18..20 => self.disturb(),
            20..28 => self.scale(),
            28..36 => self.change_template(),
            36..42 => self.cordon(),
            42..47 => self.annotate(),
            47..50 => self.user_deletes(),
            50..52 => self.pause(),
            52..53 => self.switch(),
            53..54 => self.suspend(),
            54..56 => self.change_budget(),
            56..64 => self.admin(),
            64..70 => self.slurm_fails(),
            70..75 => self.slurm_heals(),
            75..80 => self.machine_fails(),
            80..86 => self.machine_heals(),
            86..89 => self.container_fails(),
            89..91 => self.crash(),
            91..92 => self.pause_operator(),
            92..93 => self.strip(),
            93..96 => self.deafen(),
            96..98 => self.jump(),
            _ => self.finish(),
        }
    }

    fn suspend(&mut self) {
        let jobs: Vec<u32> = self.slurm.cluster.jobs().map(|job| job.id).collect();
        let Some(job) = self.rng.pick(&jobs).filter(|_| self.slurm.cluster.is_up()) else { return };
        let is_done = if self.rng.percent(70) {
            self.slurm.cluster.suspend(job).is_ok()
        } else {
            self.slurm.cluster.resume(job).is_ok()
        };
        if is_done {
            self.log(|| format!("job {job} is suspended or resumed"));
        }
    }

    fn submit(&mut self) {
        let runs_for = u32::try_from(self.rng.between(2, 90)).ok();
        let cpus = u32::from(!self.rng.percent(50));
        let requeue = self.rng.percent(50);
        let time_limit = if self.rng.percent(50) { Some(2) } else { None };
        let required: Vec<String> =
            if self.rng.percent(15) { self.some_node().into_iter().collect() } else { Vec::new() };
        let hold = !required.is_empty() && self.rng.percent(50);
        let spec =
            JobSpec { cpus, runs_for, requeue, time_limit, required: required.clone(), hold, ..JobSpec::default() };
        if self.slurm.cluster.is_up() {
            let job = self.slurm.cluster.submit(spec);
            self.log(|| format!("job {job:?} is submitted, for {required:?}"));
            if let (Ok(job), Some(node)) = (job, required.into_iter().next()) {
                self.guard.named.insert(job, (node, self.order));
            }
        }
    }

    fn finish(&mut self) {
        let jobs: Vec<u32> = self.slurm.cluster.jobs().map(|job| job.id).collect();
        if let Some(job) = self.rng.pick(&jobs) {
            let _ = self.slurm.cluster.finish(job);
        }
    }

    fn scale(&mut self) {
        let replicas = i32::try_from(self.rng.below(self.traits.machines + 1)).unwrap();
        let set = SETS[self.api.focus];
        self.log(|| format!("a user wants {replicas} {set}"));
        self.api.edit_set(true, |set| set.spec.replicas = replicas);
    }

    fn change_template(&mut self) {
        let number = self.rng.below(4);
        self.set_image(number);
    }

    fn set_image(&mut self, number: u64) {
        let set = SETS[self.api.focus];
        self.log(|| format!("a user wants image {number} for {set}"));
        let slurmd = serde_json::from_value(json!({"image": image(number)})).unwrap();
        self.api.edit_set(true, |set| set.spec.slurmd = slurmd);
    }

    fn change_budget(&mut self) {
        let max = self.rng.pick(&[json!(1), json!(2), json!("50%"), json!(0), json!("many")]).unwrap();
        self.log(|| format!("a user allows {max} unavailable"));
        self.allow_unavailable(max);
    }

    fn allow_unavailable(&mut self, max: Value) {
        let max = serde_json::from_value(max).unwrap();
        self.api.edit_set(true, |set| {
            if let Some(rolling) = set.spec.update_strategy.as_mut().and_then(|all| all.rolling_update.as_mut()) {
                rolling.max_unavailable = max;
            }
        });
    }

    fn cordon(&mut self) {
        let Some(machine) = self.some_machine() else { return };
        let cordoned = self.rng.percent(50);
        self.log(|| format!("a user cordons {machine}: {cordoned}"));
        self.api.edit_machine(&machine, |machine| machine.cordoned = cordoned);
    }

    fn annotate(&mut self) {
        let Some(name) = self.some_pod() else { return };
        let (key, value) = match self.rng.below(3) {
            0 => (annotation::POD_DELETION_COST, Some("7")),
            1 => (annotation::POD_CORDON, Some(TRUE)),
            _ => (annotation::POD_CORDON, None),
        };
        // The API server does not know who wants a value that is already there.
        let pod = self.api.pods.get(&name).filter(|pod| !pod.written.contains(key));
        let Some(uid) = pod.map(|pod| pod.uid.clone()) else { return };
        self.log(|| format!("a user sets {key} of {name} to {value:?}"));
        let annotation_key = (uid, key.to_owned());
        match value {
            Some(value) => drop(self.guard.user_annotations.insert(annotation_key, value.to_owned())),
            None => drop(self.guard.user_annotations.remove(&annotation_key)),
        }
        self.api.edit(&name, |pod| match value {
            Some(value) => drop(pod.annotations.insert(key.to_owned(), value.to_owned())),
            None => drop(pod.annotations.remove(key)),
        });
    }

    fn user_deletes(&mut self) {
        if self.traits.has_claims && self.rng.percent(40) {
            self.user_deletes_claim();
            return;
        }
        let Some(name) = self.some_pod() else { return };
        self.log(|| format!("a user deletes {name}"));
        self.delete_pod(&name, Killer::Other);
    }

    fn pause(&mut self) {
        let paused = self.rng.percent(40);
        self.set_paused(paused);
    }

    fn set_paused(&mut self, paused: bool) {
        self.log(|| format!("a user pauses the set: {paused}"));
        self.api.edit_set(false, |set| {
            let annotations = set.metadata.annotations.get_or_insert_default();
            if paused {
                annotations.insert(annotation::PAUSED.to_owned(), TRUE.to_owned());
            } else {
                annotations.remove(annotation::PAUSED);
            }
        });
    }

    fn switch(&mut self) {
        if !self.traits.switches {
            return;
        }
        self.log(|| "a user switches the scaling mode".to_owned());
        self.api.edit_set(true, |set| {
            set.spec.pin_to_node = false;
            set.spec.scaling_mode = match set.spec.scaling_mode {
                ScalingMode::StatefulSet => ScalingMode::DaemonSet,
                ScalingMode::DaemonSet => ScalingMode::StatefulSet,
            };
        });
    }

    fn admin(&mut self) {
        let Some(node) = self.some_node().filter(|_| self.slurm.cluster.is_up()) else { return };
        let names = std::slice::from_ref(&node);
        match self.rng.below(5) {
            0 | 1 => {
                let _ = self.slurm.cluster.update_nodes(names, &NodeUpdate::drain(BROKEN), "root");
                self.log(|| format!("an admin drains {node}"));
                let held = Held { since: self.order, is_drain: true, reason: BROKEN.to_owned() };
                self.guard.held.insert(node, held);
            }
            2 => {
                let update = NodeUpdate { reason: Some(BROKEN.to_owned()), ..NodeUpdate::state("DOWN") };
                let _ = self.slurm.cluster.update_nodes(names, &update, "root");
                self.log(|| format!("an admin sets {node} down"));
                let held = Held { since: self.order, is_drain: false, reason: BROKEN.to_owned() };
                self.guard.held.insert(node, held);
            }
            _ => self.lift(&node),
        }
    }

    /// An admin resumes a node.
    fn lift(&mut self, node: &str) {
        let _ = self.slurm.cluster.update_nodes(&[node.to_owned()], &NodeUpdate::state("RESUME"), "root");
        self.log(|| format!("an admin resumes {node}"));
        self.guard.lift(node, self.order);
        self.guards.iter_mut().for_each(|guard| guard.pardon(node));
    }

    fn slurm_fails(&mut self) {
        match self.rng.below(5) {
            0 => {
                self.log(|| "slurmrestd becomes unreachable".to_owned());
                self.slurm.is_away = true;
            }
            1 => {
                self.log(|| "slurmctld stops".to_owned());
                self.slurm.cluster.stop();
            }
            2 => self.restart_slurmctld(StateSave::Kept),
            3 if self.rng.percent(50) => self.restart_slurmctld(StateSave::Lost),
            _ => {
                self.log(|| "lists are empty".to_owned());
                self.slurm.empty_lists = 2;
            }
        }
    }

    fn slurm_heals(&mut self) {
        self.log(|| "Slurm is reachable again".to_owned());
        self.slurm.is_away = false;
        if !self.slurm.cluster.is_up() {
            let state = if self.rng.percent(80) { StateSave::Kept } else { StateSave::Lost };
            self.restart_slurmctld(state);
        }
    }

    fn machine_fails(&mut self) {
        let Some(name) = self.some_machine() else { return };
        match self.rng.below(3) {
            0 => {
                self.log(|| format!("the kubelet of {name} is silent"));
                self.api.edit_machine(&name, |machine| machine.power = Power::Silent);
            }
            1 => {
                self.log(|| format!("the power of {name} fails"));
                self.api.edit_machine(&name, |machine| machine.power = Power::Off);
                for pod in self.pods_on(&name) {
                    self.end_slurmd(&pod, false);
                }
            }
            _ => {
                self.log(|| format!("{name} is removed"));
                self.api.remove_machine(&name);
            }
        }
    }

    fn machine_heals(&mut self) {
        let number = self.rng.below(self.traits.machines);
        self.repair_machine(&format!("n{number}"));
    }

    fn repair_machine(&mut self, name: &str) {
        let was_off = self.api.machines.get(name).is_some_and(|machine| machine.power == Power::Off);
        self.log(|| format!("{name} is up"));
        self.api.edit_machine(name, |machine| machine.power = Power::On);
        let start_at = self.now + 2;
        for pod in self.pods_on(name).into_iter().filter(|_| was_off) {
            if let Some(pod) = self.api.pods.get_mut(&pod) {
                pod.truth.start_at = start_at;
                pod.truth.rebooted = true;
            }
        }
    }

    fn container_fails(&mut self) {
        let Some(name) = self.some_pod() else { return };
        let is_alive = self.api.pods.get(&name).is_some_and(|pod| pod.truth.alive && !pod.terminating);
        if !is_alive {
            return;
        }
        self.end_slurmd(&name, false);
        if self.rng.percent(40) {
            self.log(|| format!("pod {name} is evicted"));
            self.api.edit(&name, |pod| (pod.phase, pod.slurmd) = ("Failed", Container::Ended));
        } else {
            self.log(|| format!("slurmd of {name} crashes"));
            let start_at = self.now + self.rng.between(2, 15);
            if let Some(pod) = self.api.pods.get_mut(&name) {
                pod.truth.start_at = start_at;
            }
        }
    }

    fn crash(&mut self) {
        let writes = self.rng.below(6);
        self.log(|| format!("the operator will crash after {writes} writes"));
        self.operator.crash_in = Some(writes);
    }

    fn pause_operator(&mut self) {
        let writes = self.rng.below(6);
        self.log(|| format!("the operator will be paused after {writes} writes"));
        self.operator.pause_in = Some(writes);
    }

    fn disturb(&mut self) {
        match self.rng.below(3) {
            0 => self.evict(),
            1 => self.neighbour(),
            _ => self.lose_reference(),
        }
    }

    fn deafen(&mut self) {
        let until = self.now + self.rng.between(1, 12);
        self.catch_up();
        self.log(|| "the watches are lost".to_owned());
        self.operator.deaf_until = Some(until);
    }

    /// The operator is suspended for a while, or its clock is set back.
    fn jump(&mut self) {
        let seconds = self.rng.between(5, 400);
        if self.rng.percent(50) {
            self.log(|| format!("the operator's clock is set back by {seconds} seconds"));
            self.behind += seconds;
            return;
        }
        self.catch_up();
        self.log(|| format!("{seconds} seconds pass at once"));
        self.drift(seconds);
    }

    /// Stops all faults and undoes drains, pauses and bad images.
    fn heal(&mut self) {
        self.is_calm = true;
        self.log(|| "FAULTS STOP".to_owned());
        self.behind = 0;
        self.operator.crash_in = None;
        self.operator.pause_in = None;
        self.operator.down_until = self.now;
        self.has_key = true;
        self.has_controller |= self.traits.ends != Some(End::Controller);
        self.neighbours.clear();
        self.operator.wake();
        let odd: Vec<String> =
            self.api.pods.values().filter(|pod| pod.truth.other_name.is_some()).map(|pod| pod.name.clone()).collect();
        for name in odd {
            self.log(|| format!("a user deletes {name}, which has another name in Slurm"));
            self.delete_pod(&name, Killer::Other);
        }
        self.slurm.is_away = false;
        self.slurm.empty_lists = 0;
        if !self.slurm.cluster.is_up() {
            self.restart_slurmctld(StateSave::Kept);
        }
        for number in 0..self.traits.machines {
            let name = format!("n{number}");
            self.repair_machine(&name);
            self.api.edit_machine(&name, |machine| machine.cordoned = false);
        }
        let jobs: Vec<u32> = self.slurm.cluster.jobs().map(|job| job.id).collect();
        for job in jobs {
            let _ = self.slurm.cluster.resume(job);
            // A job that waits for a node would keep its record for ever.
            if self.guard.named.contains_key(&job) {
                self.slurm.kill(job);
            }
        }
        let nodes = self.slurm.cluster.nodes().filter(|node| node.reason.starts_with(BROKEN));
        let held: Vec<String> = nodes.map(|node| node.name.clone()).collect();
        for node in held {
            self.lift(&node);
        }
        let pods: Vec<String> = self.api.pods.keys().cloned().collect();
        for name in pods {
            self.api.edit(&name, |pod| drop(pod.annotations.remove(annotation::POD_CORDON)));
        }
        self.guard.user_annotations.retain(|(_, key), _| key != annotation::POD_CORDON);
        self.each_set(|cluster| {
            cluster.set_paused(false);
            cluster.allow_unavailable(json!(1));
            let is_bad = |set: &NodeSet| set.spec.slurmd.text("image").is_some_and(|image| image.contains("bad"));
            if cluster.api.set().is_some_and(is_bad) {
                cluster.set_image(0);
            }
        });
        self.api.focus = 1;
        self.settle();
    }

    /// A user does what the conditions of the second set ask for: its workers get other names, and fit the machines that the first
    /// set leaves.
    fn settle(&mut self) {
        if self.traits.rival_goes {
            self.delete_set();
        }
        if self.traits.rival_goes || self.api.set().is_none() {
            return;
        }
        let room = self.api.sets[0].as_ref().map_or(self.traits.machines, |first| {
            let is_everywhere = first.spec.scaling_mode == ScalingMode::DaemonSet || first.spec.pin_to_node;
            let used = u64::from(first.spec.replicas());
            if is_everywhere { 0 } else { self.traits.machines.saturating_sub(used) }
        });
        let room = i32::try_from(room).unwrap();
        let template = serde_json::from_value(json!({"spec": {"hostname": FREE}})).unwrap();
        self.log(|| format!("a user gives the second set other names, and at most {room} workers"));
        self.api.edit_set(true, |set| {
            set.spec.replicas = set.spec.replicas.min(room);
            set.spec.pin_to_node = false;
            set.spec.scaling_mode = ScalingMode::StatefulSet;
            set.spec.template = template;
        });
    }

    /// The cluster must converge.
    fn rest(&mut self) {
        let (start, passes) = (self.now, self.operator.passes);
        while self.now - start < REST_WITHIN {
            self.second();
            if self.violation.is_some() {
                return;
            }
            if (self.now - start) % 30 == 0 {
                self.follow_advice();
            }
            let sets = self.api.sets.iter().flatten().count();
            if self.operator.passes - passes > REST_PASSES * u64::try_from(sets.max(1)).unwrap() {
                break;
            }
            let is_quiet = self.now - self.operator.last_write.max(start) > SILENCE;
            if is_quiet && self.unrest().is_none() {
                return;
            }
        }
        let unrest = self.unrest().unwrap_or_else(|| "writes continue".to_owned());
        let passes = self.operator.passes - passes;
        self.violate("converges", || format!("after {passes} reconciles: {unrest}"));
    }

    /// Users do what the conditions ask for: they delete pods that are not replaced automatically.
    fn follow_advice(&mut self) {
        self.each_set(|cluster| {
            let Some(set) = cluster.api.set() else { return };
            if set.spec.update_strategy().type_ != UpdateType::OnDelete {
                return;
            }
            let is_old = |pod: &Pod| set.spec.template.hostname() == Some(FREE) && !pod.hostname.starts_with(FREE);
            let is_due = |pod: &&Pod| cluster.api.is_ours(pod) && (pod.image.contains("bad") || is_old(pod));
            let due: Vec<String> = cluster.api.pods.values().filter(is_due).map(|pod| pod.name.clone()).collect();
            for name in due {
                cluster.log(|| format!("a user deletes {name}, as the conditions ask for"));
                cluster.delete_pod(&name, Killer::Other);
            }
        });
        // Workers without an owner stay when their set is deleted.
        let is_stray = |pod: &&Pod| {
            let set = SETS.iter().position(|name| pod.labels.get(label::INSTANCE).is_some_and(|found| found == name));
            pod.owner.is_empty() && set.is_some_and(|set| self.api.sets[set].is_none())
        };
        let strays: Vec<String> = self.api.pods.values().filter(is_stray).map(|pod| pod.name.clone()).collect();
        for name in strays {
            self.log(|| format!("a user deletes {name}, whose set is gone"));
            self.delete_pod(&name, Killer::Other);
        }
        // After an admin's drain has ended, slurmctld may append its own words to the old reason.
        let down =
            self.slurm.cluster.nodes().filter(|node| node.reason.starts_with(BROKEN) && node.state.base == Base::Down);
        let down: Vec<String> = down.map(|node| node.name.clone()).collect();
        for node in down {
            self.lift(&node);
        }
    }
}
