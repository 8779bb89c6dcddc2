//! Nodes of the fake slurmctld.

use std::collections::BTreeSet;

use super::state::{Base, Flag, State};

/// What a slurmd reports when it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs, each with one core.
    pub cpus: u32,
    /// In MiB.
    pub memory: u64,
    /// `Features=` of its `--conf`.
    pub features: Vec<String>,
    /// `Gres=` of its `--conf`, such as `gpu:4`.
    pub gres: String,
    /// `Topology=` of its `--conf`. Since 25.05.
    pub topology: String,
    pub address: String,
    pub port: u16,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            cpus: 4,
            memory: 2048,
            features: Vec::new(),
            gres: String::new(),
            topology: String::new(),
            address: "127.0.0.1".to_owned(),
            port: 6818,
        }
    }
}

/// A record in slurmctld's node table.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    /// As last registered.
    pub machine: Machine,
    pub state: State,
    /// Reason for the state, as set by an admin or slurmctld.
    pub reason: String,
    /// User who set the reason.
    pub reason_user: String,
    /// When the reason was set; 0 for never.
    pub reason_at: i64,
    /// Comment of an admin (or an operator).
    pub comment: String,
    /// Free text for programs.
    pub extra: String,
    pub active_features: Vec<String>,
    pub weight: u32,
    /// One-minute load times 100 at the last ping.
    pub cpu_load: u32,
    /// Free memory in MiB at the last ping.
    pub free_memory: u64,
    /// 0 if unknown.
    pub boot_time: i64,
    /// 0 if unknown.
    pub slurmd_start_time: i64,
    /// When its last job ended.
    pub last_busy: i64,
    /// CPUs allocated to jobs.
    pub allocated_cpus: u32,
    /// Running jobs.
    pub jobs: BTreeSet<u32>,
    /// Suspended jobs, which have given up their CPUs.
    pub suspended: BTreeSet<u32>,
    /// Ended jobs whose epilog is still running.
    pub completing: BTreeSet<u32>,
    /// Reservation that is active on the node.
    pub reservation: String,
    /// Whether a slurmd responds to pings.
    pub alive: bool,
    /// When slurmctld last heard from it; 0 for never.
    pub heard_at: i64,
    /// Whether it has registered with the running slurmctld. Until then its times, load and version are unknown.
    pub known: bool,
    /// Incremented with each change; the cache of rendered records depends on it.
    pub(super) revision: u64,
}

impl Node {
    /// A dynamic node that has just registered.
    pub(super) fn dynamic(name: &str, machine: Machine, now: i64) -> Self {
        let mut node = Self {
            name: name.to_owned(),
            active_features: machine.features.clone(),
            machine: machine.clone(),
            state: State::new(Base::Idle, &[Flag::DynamicNorm]),
            reason: String::new(),
            reason_user: String::new(),
            reason_at: 0,
            comment: String::new(),
            extra: String::new(),
            weight: 1,
            cpu_load: 0,
            free_memory: 0,
            boot_time: 0,
            slurmd_start_time: 0,
            last_busy: now,
            allocated_cpus: 0,
            jobs: BTreeSet::new(),
            suspended: BTreeSet::new(),
            completing: BTreeSet::new(),
            reservation: String::new(),
            alive: false,
            heard_at: 0,
            known: false,
            revision: 0,
        };
        node.registers(machine, now);
        node
    }

    /// A slurmd with this name has started and registered: the record keeps its state, reason and comment, and all but the
    /// address of the machine.
    pub(super) fn registers(&mut self, machine: Machine, now: i64) {
        self.free_memory = machine.memory / 2;
        (self.machine.address, self.machine.port) = (machine.address, machine.port);
        self.alive = true;
        self.known = true;
        self.heard_at = now;
        self.boot_time = now;
        self.slurmd_start_time = now;
        self.state.set(Flag::NotResponding, false);
        if matches!(self.state.base, Base::Unknown | Base::Future) {
            self.state.base = Base::Idle;
        }
    }

    /// What a machine has too little of, in slurmctld's words.
    pub(super) fn lacks(&self, machine: &Machine) -> Option<String> {
        let (wanted, found) = (&self.machine, machine);
        let cpus = (found.cpus < wanted.cpus).then(|| "Low socket*core*thread count, Low CPUs".to_owned());
        let memory = (found.memory < wanted.memory)
            .then(|| format!("Low RealMemory (reported:{} < 100.00% of configured:{})", found.memory, wanted.memory));
        let lacks: Vec<String> = cpus.into_iter().chain(memory).collect();
        (!lacks.is_empty()).then(|| lacks.join(", "))
    }

    pub(super) fn give_reason(&mut self, reason: &str, user: &str, now: i64) {
        reason.clone_into(&mut self.reason);
        user.clone_into(&mut self.reason_user);
        self.reason_at = if reason.is_empty() { 0 } else { now };
    }

    /// Sets idle, mixed or allocated depending on the running jobs; a down node stays down.
    pub(super) fn settle(&mut self) {
        if matches!(self.state.base, Base::Idle | Base::Mixed | Base::Allocated) {
            self.state.base = match self.allocated_cpus {
                0 => Base::Idle,
                some if some < self.machine.cpus => Base::Mixed,
                _ => Base::Allocated,
            };
        }
        self.state.set(Flag::Completing, !self.completing.is_empty());
    }
}
