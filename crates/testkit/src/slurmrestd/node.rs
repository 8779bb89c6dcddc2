//! A node as slurmctld knows it.

use std::collections::BTreeSet;

use super::state::{Base, Flag, State};

/// What a slurmd says of its machine when it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs, each a core of its own.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory: u64,
    /// `Features=` of its `--conf`.
    pub features: Vec<String>,
    /// `Gres=` of its `--conf`, such as `gpu:4`.
    pub gres: String,
    /// `Topology=` of its `--conf`. Only from 25.05 on.
    pub topology: String,
    /// Where it can be reached.
    pub address: String,
    /// Its port.
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
    /// Its name.
    pub name: String,
    /// What it is, as it last registered.
    pub machine: Machine,
    /// Its state.
    pub state: State,
    /// Why it is in that state, as someone said.
    pub reason: String,
    /// Who gave the reason.
    pub reason_user: String,
    /// When the reason was given; 0 for never.
    pub reason_at: i64,
    /// Anything an admin (or an operator) wrote on it.
    pub comment: String,
    /// The same for programs.
    pub extra: String,
    /// The features that are active now.
    pub active_features: Vec<String>,
    /// Its scheduling weight.
    pub weight: u32,
    /// The one-minute load, times 100, as of the last ping.
    pub cpu_load: u32,
    /// Free memory in MiB, as of the last ping.
    pub free_memory: u64,
    /// When its machine started; 0 for unknown.
    pub boot_time: i64,
    /// When its slurmd started; 0 for unknown.
    pub slurmd_start_time: i64,
    /// When its last job ended.
    pub last_busy: i64,
    /// CPUs that jobs hold.
    pub allocated_cpus: u32,
    /// The jobs that run there.
    pub jobs: BTreeSet<u32>,
    /// Jobs that ended and whose epilog still runs.
    pub completing: BTreeSet<u32>,
    /// The reservation that holds it now.
    pub reservation: String,
    /// Whether a slurmd is there to answer pings.
    pub alive: bool,
    /// When slurmctld last heard of it; 0 for never.
    pub heard_at: i64,
    /// Whether it has registered with the slurmctld that runs now. Until then its times, load and version are unknown.
    pub known: bool,
    /// Grows with each change: rendered records are kept by it.
    pub(super) revision: u64,
}

impl Node {
    /// A node that has just registered by itself.
    pub(super) fn dynamic(name: &str, machine: Machine, now: i64) -> Self {
        let mut node = Self {
            name: name.to_owned(),
            active_features: machine.features.clone(),
            machine: Machine::default(),
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

    /// A slurmd of that name has started and registered: the record keeps its state, its reason and its comment.
    pub(super) fn registers(&mut self, machine: Machine, now: i64) {
        self.free_memory = machine.memory / 2;
        self.machine = machine;
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

    pub(super) fn give_reason(&mut self, reason: &str, user: &str, now: i64) {
        reason.clone_into(&mut self.reason);
        user.clone_into(&mut self.reason_user);
        self.reason_at = if reason.is_empty() { 0 } else { now };
    }

    /// Idle, mixed or allocated by what runs there; a node that is down stays down.
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
