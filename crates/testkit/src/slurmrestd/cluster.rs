//! A simple model of slurmctld, driven by tests.
//!
//! It has no threads, no I/O and no clock: time advances only on request, and then all events that are due happen in
//! order. The same calls at the same times give the same result, so a simulation can use it without HTTP.

use std::collections::{BTreeMap, BTreeSet};

use super::job::{Job, JobState};
use super::node::{Machine, Node};
use super::release::Release;
use super::reservation::{Partition, Reservation};
use super::state::{Base, Flag};

/// slurmctld's reason for a node that it takes down because its slurmd does not respond.
const SILENT: &str = "Not responding";

/// The user of what slurmctld does by itself.
const SLURM_USER: &str = "slurm";

/// How the cluster behaves. All times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub release: Release,
    pub name: String,
    /// Whether slurmdbd is available. This also affects node reasons: see [`Settings::clears_reason`].
    pub accounting: bool,
    /// Accounts in slurmdbd.
    pub accounts: Vec<String>,
    /// Users in slurmdbd.
    pub users: Vec<String>,
    /// Topologies that nodes may be assigned to; empty for any.
    pub topologies: Vec<String>,
    /// Names of each NodeSet in slurm.conf: no new node can have one of them.
    pub node_sets: Vec<String>,
    /// Interval at which slurmctld pings each slurmd. Each ping updates the load and so the update time.
    pub ping_every: i64,
    /// How long a node whose slurmd does not respond is `NOT_RESPONDING` before it is down.
    pub slurmd_timeout: i64,
    /// How long a node is `NOT_RESPONDING` after it was undrained or resumed.
    pub undrain_silence: i64,
    /// How long a node is completing after a job.
    pub epilog: i64,
    /// How long after a start of slurmctld the nodes register.
    pub registration: i64,
    /// How long a job may run before its node must know it (`BatchStartTimeout` and `MessageTimeout`).
    pub job_startup: i64,
    /// How long a job is listed after its end.
    pub min_job_age: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            release: Release::V26_05,
            name: "fake".to_owned(),
            accounting: true,
            accounts: vec!["root".to_owned()],
            users: vec!["root".to_owned(), "slurm".to_owned()],
            topologies: Vec::new(),
            node_sets: Vec::new(),
            ping_every: 100,
            slurmd_timeout: 300,
            undrain_silence: 1,
            epilog: 0,
            registration: 2,
            job_startup: 20,
            min_job_age: 300,
        }
    }
}

impl Settings {
    /// Whether undraining and resuming clear the reason.
    #[must_use]
    pub fn clears_reason(&self) -> bool {
        self.accounting || self.release.clears_reason()
    }
}

/// What is left of the state after a restart of slurmctld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSave {
    Kept,
    /// Nothing: dynamic nodes and jobs are lost until each slurmd registers again.
    Lost,
}

/// When each table last changed. Slurm counts whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    pub nodes: i64,
    pub partitions: i64,
    pub jobs: i64,
    pub reservations: i64,
}

/// A scheduled event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    JobEnds(u32),
    EpilogEnds(u32),
    JobForgotten(u32),
    NodeAnswers(String),
    NodeTimesOut(String),
    NodesRegister,
    ReservationTurns,
    JobEligible,
    Ping,
}

/// A Slurm cluster in memory.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Can be changed at any time.
    pub settings: Settings,
    pub(super) now: i64,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) jobs: BTreeMap<u32, Job>,
    pub(super) partitions: Vec<Partition>,
    pub(super) reservations: BTreeMap<String, Reservation>,
    pub(super) changed: Changed,
    pub(super) events: BTreeSet<(i64, Event)>,
    /// Incremented with each change of a node.
    pub(super) revision: u64,
    pub(super) pings: u64,
    pub(super) next_job: u32,
    pub(super) schedule_due: bool,
    pub(super) up: bool,
    pub(super) accounting_up: bool,
    pub(super) started_at: i64,
    pub(super) reconfigured_at: i64,
    pub(super) jobs_started: u64,
}

impl Cluster {
    /// Creates a cluster without nodes, with one partition for all nodes, at a time in seconds since 1970.
    #[must_use]
    pub fn new(settings: Settings, now: i64) -> Self {
        let events = BTreeSet::from([(now + settings.ping_every, Event::Ping)]);
        Self {
            settings,
            now,
            nodes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            partitions: vec![Partition::all()],
            reservations: BTreeMap::new(),
            changed: Changed { nodes: now, partitions: now, jobs: now, reservations: now },
            events,
            revision: 0,
            pings: 0,
            next_job: 1,
            schedule_due: false,
            up: true,
            accounting_up: true,
            started_at: now,
            reconfigured_at: now,
            jobs_started: 0,
        }
    }

    /// Current time of the cluster in seconds since 1970.
    #[must_use]
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Nodes by name.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.nodes.values()
    }

    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// Jobs by id, including those that ended recently.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.jobs.values()
    }

    #[must_use]
    pub fn job(&self, id: u32) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Reservations by name.
    pub fn reservations(&self) -> impl ExactSizeIterator<Item = &Reservation> {
        self.reservations.values()
    }

    /// Partitions in the order of the configuration.
    pub fn partitions(&self) -> impl ExactSizeIterator<Item = &Partition> {
        self.partitions.iter()
    }

    /// Replaces the partitions, as a changed slurm.conf and a reconfigure do.
    pub fn set_partitions(&mut self, partitions: Vec<Partition>) {
        self.partitions = partitions;
        self.changed.partitions = self.now;
        self.touch_all();
    }

    /// Whether slurmctld is running.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Stops or starts slurmdbd. slurmctld does not depend on it.
    pub fn set_accounting_up(&mut self, up: bool) {
        self.accounting_up = up;
    }

    /// slurmctld rereads its configuration.
    pub fn reconfigure(&mut self) {
        self.fail_jobs_of_unknown_nodes();
        self.reconfigured_at = self.now;
        self.changed.partitions = self.now;
        self.touch_all();
    }

    /// Stops slurmctld. Jobs continue, but cannot be queried.
    pub fn stop(&mut self) {
        self.up = false;
    }

    /// Starts or restarts slurmctld.
    pub fn start(&mut self, state: StateSave) {
        if state == StateSave::Lost {
            self.nodes.clear();
            self.jobs.clear();
            self.reservations.clear();
            self.events.retain(|(_, event)| *event == Event::Ping);
            self.next_job = 1;
        }
        self.up = true;
        self.fail_jobs_of_unknown_nodes();
        self.started_at = self.now;
        self.changed = Changed { nodes: self.now, partitions: self.now, jobs: self.now, reservations: self.now };
        // What is not in the saved state is unknown until the nodes register.
        self.nodes.values_mut().for_each(|node| node.known = false);
        self.due_in(self.settings.registration, Event::NodesRegister);
        self.touch_all();
        self.schedule_due = true;
    }

    /// Jobs that require a node that slurmctld does not know end when it starts or rereads its configuration.
    fn fail_jobs_of_unknown_nodes(&mut self) {
        let is_unknown = |job: &&Job| job.spec.required.iter().any(|node| !self.nodes.contains_key(node));
        let failed = self.jobs.values().filter(|job| !job.state.is_over()).filter(is_unknown);
        let failed: Vec<u32> = failed.map(|job| job.id).collect();
        for id in failed {
            self.end_job(id, JobState::NodeFail);
        }
    }

    fn nodes_register(&mut self) {
        let alive = self.nodes.values_mut().filter(|node| node.alive);
        alive.for_each(|node| node.known = true);
        self.touch_all();
    }

    /// Advances the time to this second and runs all events that are due, each at its time. Time never goes back.
    pub fn advance_to(&mut self, second: i64) {
        while let Some((due, _)) = self.events.first().filter(|(due, _)| self.up && *due <= second) {
            self.now = self.now.max(*due);
            if let Some((_, event)) = self.events.pop_first() {
                self.happen(event);
            }
            self.schedule();
        }
        self.now = self.now.max(second);
        self.schedule();
    }

    /// Advances the time by this many seconds.
    pub fn advance(&mut self, seconds: i64) {
        self.advance_to(self.now.saturating_add(seconds));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::JobEnds(id) => self.job_ends(id),
            Event::EpilogEnds(id) => self.epilog_ends(id),
            Event::JobForgotten(id) => self.forget(id),
            Event::NodeAnswers(name) => self.node_answers(&name),
            Event::NodeTimesOut(name) => self.node_times_out(&name),
            Event::NodesRegister => self.nodes_register(),
            Event::ReservationTurns => self.turn_reservations(),
            Event::JobEligible => self.schedule_due = true,
            Event::Ping => self.ping_all(),
        }
    }

    pub(super) fn due_in(&mut self, seconds: i64, event: Event) {
        self.events.insert((self.now.saturating_add(seconds), event));
    }

    /// Changes a node and marks it as changed; `None` if it does not exist.
    pub(super) fn change<T>(&mut self, name: &str, change: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let node = self.nodes.get_mut(name)?;
        let answer = change(node);
        self.revision += 1;
        node.revision = self.revision;
        self.changed.nodes = self.now;
        Some(answer)
    }

    pub(super) fn touch_all(&mut self) {
        self.revision += 1;
        self.changed.nodes = self.now;
        for node in self.nodes.values_mut() {
            node.revision = self.revision;
        }
    }

    /// Starts a slurmd with this name (`slurmd -Z`), which registers; another one with this name may still run.
    ///
    /// An existing record keeps its state, including down, which only RESUME lifts, and what its first slurmd registered
    /// with; only the address is new. A new name that is also the name of a NodeSet is refused.
    pub fn register(&mut self, name: &str, machine: Machine) {
        let now = self.now;
        if let Some(node) = self.nodes.get(name) {
            let lacks = node.lacks(&machine);
            self.change(name, |node| node.registers(machine, now));
            self.fail_missing_jobs(name);
            self.judge_registration(name, lacks);
        } else if self.settings.node_sets.iter().any(|set| set == name) {
            return;
        } else {
            self.nodes.insert(name.to_owned(), Node::dynamic(name, machine, now));
            self.change(name, |_| ());
            // The node joins the partitions that contain all nodes.
            self.changed.partitions = now;
        }
        self.schedule_due = true;
    }

    /// A slurmd that has just started knows no jobs: slurmctld gives up those that should have started by now.
    fn fail_missing_jobs(&mut self, name: &str) {
        let jobs = self.nodes.get(name).map(|node| &node.jobs | &node.suspended).unwrap_or_default();
        let latest = self.now - self.settings.job_startup;
        for id in jobs {
            if self.jobs.get(&id).is_some_and(|job| job.started_at < latest) {
                self.fail_job(id);
            }
        }
    }

    /// A node that registers with less than its record has is drained. Its reason is kept, unless it was drained before.
    fn judge_registration(&mut self, name: &str, lacks: Option<String>) {
        let now = self.now;
        self.change(name, |node| node.state.set(Flag::InvalidReg, lacks.is_some()));
        let (Some(node), Some(reason)) = (self.nodes.get(name), lacks) else { return };
        if !node.state.has(Flag::Drain) && !node.state.has(Flag::Fail) && node.state.base != Base::Down {
            self.drain_by_slurmctld(name, &reason);
        } else if node.reason != reason {
            self.change(name, |node| node.give_reason(&reason, SLURM_USER, now));
        }
    }

    /// slurmctld drains a node by itself: after a failed prolog or epilog, a step that cannot be killed, and so on. A reason
    /// that the node has already is kept.
    pub fn drain_by_slurmctld(&mut self, name: &str, reason: &str) {
        let now = self.now;
        self.change(name, |node| {
            if node.state.has(Flag::Drain) {
                return;
            }
            node.state.set(Flag::Drain, true);
            if node.reason.is_empty() || node.reason.starts_with(SILENT) {
                node.give_reason(reason, SLURM_USER, now);
            }
        });
    }

    /// Registers `count` nodes; their names are the prefix and a number from 0.
    pub fn register_many(&mut self, prefix: &str, count: u32, machine: &Machine) {
        for index in 0..count {
            self.register(&format!("{prefix}{index}"), machine.clone());
        }
    }

    /// The slurmd of a node disappears: the node is not responding, and down after the timeout.
    pub fn lose(&mut self, name: &str) {
        let lost = self.change(name, |node| {
            node.alive = false;
            node.state.set(Flag::NotResponding, true);
        });
        if lost.is_some() {
            self.due_in(self.settings.slurmd_timeout, Event::NodeTimesOut(name.to_owned()));
        }
    }

    fn node_times_out(&mut self, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        if node.alive || node.state.base == Base::Down {
            return;
        }
        // Appended to a reason that is there.
        let reason = match node.reason.as_str() {
            "" => SILENT.to_owned(),
            old if old.contains(&format!(" : {SILENT}")) => old.to_owned(),
            old => format!("{old} : {SILENT}"),
        };
        self.take_down(name, &reason, SLURM_USER);
    }

    /// Starts a slurmd on a machine that has booted since slurmctld last heard of it: unless the node is drained, it is down
    /// until it is resumed.
    pub fn register_rebooted(&mut self, name: &str, machine: Machine) {
        let is_unexpected = |node: &Node| {
            let is_drained = node.state.has(Flag::Drain) && node.jobs.is_empty() && node.completing.is_empty();
            node.heard_at > 0 && !is_drained && !node.state.has(Flag::Maintenance) && node.lacks(&machine).is_none()
        };
        let is_unexpected = self.nodes.get(name).is_some_and(is_unexpected);
        self.register(name, machine);
        if !is_unexpected {
            return;
        }
        // Another reason is kept.
        let is_free = self.nodes.get(name).is_some_and(|node| matches!(node.reason.as_str(), "" | SILENT));
        self.take_down(name, if is_free { "Node unexpectedly rebooted" } else { "" }, SLURM_USER);
    }

    /// The jobs of the node are lost: requeued if allowed, otherwise failed.
    pub(super) fn take_down(&mut self, name: &str, reason: &str, user: &str) {
        let jobs = self.nodes.get(name).map(|node| &node.jobs | &node.suspended).unwrap_or_default();
        let now = self.now;
        self.change(name, |node| {
            node.state.base = Base::Down;
            if node.reason.is_empty() || !reason.is_empty() {
                node.give_reason(reason, user, now);
            }
        });
        for id in jobs {
            self.fail_job(id);
        }
    }

    fn fail_job(&mut self, id: u32) {
        self.end_job(id, JobState::NodeFail);
        if self.jobs.get(&id).is_some_and(|job| job.spec.requeue) {
            self.put_back(id);
        }
    }

    fn node_answers(&mut self, name: &str) {
        let Some(node) = self.nodes.get(name) else { return };
        if node.alive && node.state.has(Flag::NotResponding) {
            let now = self.now;
            self.change(name, |node| {
                node.state.set(Flag::NotResponding, false);
                node.heard_at = now;
            });
            self.schedule_due = true;
        }
    }

    /// Pings every slurmd. The loads are deterministic.
    fn ping_all(&mut self) {
        self.pings += 1;
        self.revision += 1;
        let salt = u32::try_from(self.pings % 97).unwrap_or_default();
        for (index, node) in (0_u32..).zip(self.nodes.values_mut()).filter(|(_, node)| node.alive) {
            node.cpu_load = (index.wrapping_mul(31) + salt * 7) % 100;
            node.free_memory = node.machine.memory.saturating_sub(u64::from(node.cpu_load) + 64);
            node.heard_at = self.now;
            node.revision = self.revision;
        }
        self.changed.nodes = self.now;
        self.due_in(self.settings.ping_every.max(1), Event::Ping);
    }
}
