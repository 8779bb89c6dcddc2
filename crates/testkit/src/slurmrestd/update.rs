//! Updates of nodes.

use super::cluster::{Cluster, Event};
use super::node::{Machine, Node};
use super::refusal::Refusal;
use super::state::{Base, Flag, State};

/// An update of a node; fields that are not set stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUpdate {
    /// `DRAIN`, `UNDRAIN`, `RESUME`, `IDLE`, `DOWN`, `FAIL`, …
    pub state: Vec<String>,
    pub reason: Option<String>,
    pub comment: Option<String>,
    pub extra: Option<String>,
    /// Available features.
    pub features: Option<Vec<String>>,
    pub active_features: Option<Vec<String>>,
    /// Location in the topology.
    pub topology: Option<String>,
    pub gres: Option<String>,
    pub weight: Option<u32>,
    pub address: Option<String>,
}

impl NodeUpdate {
    /// A drain with a reason.
    #[must_use]
    pub fn drain(reason: &str) -> Self {
        Self { state: vec!["DRAIN".to_owned()], reason: Some(reason.to_owned()), ..Self::default() }
    }

    /// A state change without a reason.
    #[must_use]
    pub fn state(state: &str) -> Self {
        Self { state: vec![state.to_owned()], ..Self::default() }
    }
}

impl Cluster {
    /// Updates nodes as `scontrol update` does: an unknown name or state is rejected before anything changes, but an
    /// invalid state transition of one node does not prevent the update of the others.
    pub fn update_nodes(&mut self, names: &[String], update: &NodeUpdate, user: &str) -> Result<(), Refusal> {
        if names.is_empty() || names.iter().any(|name| !self.nodes.contains_key(name)) {
            return Err(Refusal::NODE_NAME);
        }
        if update.state.iter().any(|word| Change::from_word(word).is_none()) {
            return Err(self.bad_transition());
        }
        // The other fields are set all the same.
        let is_placed = update.topology.as_deref().is_none_or(|topology| self.has_topology(topology));
        let mut refused = if is_placed { Ok(()) } else { Err(Refusal::TOPOLOGY) };
        let update = &NodeUpdate { topology: update.topology.clone().filter(|_| is_placed), ..update.clone() };
        for name in names {
            if let Err(refusal) = self.update_node(name, update, user) {
                refused = Err(refusal);
            }
        }
        self.schedule_due = true;
        refused
    }

    /// `name:place`, several separated by commas.
    fn has_topology(&self, topology: &str) -> bool {
        let known = &self.settings.topologies;
        let names = topology.split(',').map(|part| part.split_once(':').map_or(part, |(name, _)| name));
        known.is_empty() || names.filter(|name| !name.is_empty()).all(|name| known.iter().any(|known| known == name))
    }

    fn bad_transition(&self) -> Refusal {
        if self.settings.release.blames_client() { Refusal::TRANSITION } else { Refusal::NODE_STATE }
    }

    fn update_node(&mut self, name: &str, update: &NodeUpdate, user: &str) -> Result<(), Refusal> {
        let now = self.now;
        self.change(name, |node| {
            // An empty reason is ignored.
            if let Some(reason) = update.reason.as_ref().filter(|reason| !reason.is_empty()) {
                node.give_reason(reason, user, now);
            }
            set(&mut node.comment, update.comment.as_ref());
            set(&mut node.extra, update.extra.as_ref());
            set(&mut node.machine.features, update.features.as_ref());
            set(&mut node.active_features, update.active_features.as_ref().or(update.features.as_ref()));
            set(&mut node.machine.topology, update.topology.as_ref());
            set(&mut node.machine.gres, update.gres.as_ref());
            set(&mut node.machine.address, update.address.as_ref());
            set(&mut node.weight, update.weight.as_ref());
        });
        for change in update.state.iter().filter_map(|word| Change::from_word(word)) {
            self.change_state(name, change, update.reason.as_deref(), user)?;
        }
        Ok(())
    }

    fn change_state(&mut self, name: &str, to: Change, reason: Option<&str>, user: &str) -> Result<(), Refusal> {
        let state = self.nodes.get(name).ok_or(Refusal::NODE_NAME)?.state;
        match to {
            Change::Drain | Change::Fail => {
                let flag = if to == Change::Drain { Flag::Drain } else { Flag::Fail };
                self.change(name, |node| node.state.set(flag, true));
            }
            Change::Down => self.take_down(name, reason.unwrap_or_default(), user),
            Change::Resume if state.base != Base::Down && !state.has(Flag::Drain) && !state.has(Flag::Fail) => {
                return Err(self.bad_transition());
            }
            Change::Undrain | Change::Resume | Change::Idle => self.revive(name, to),
        }
        Ok(())
    }

    fn revive(&mut self, name: &str, to: Change) {
        let clears = self.settings.clears_reason();
        self.change(name, |node| {
            if to != Change::Idle {
                node.state.set(Flag::Drain, false);
                node.state.set(Flag::Fail, false);
            }
            if to != Change::Undrain && node.state.base == Base::Down {
                node.state.base = Base::Idle;
            }
            // slurmctld trusts the node again only after it responds, and pings it at once.
            node.state.set(Flag::NotResponding, true);
            // Even a reason from the same request.
            if clears {
                node.give_reason("", "", 0);
            }
            node.settle();
        });
        self.due_in(self.settings.undrain_silence, Event::NodeAnswers(name.to_owned()));
        if !self.nodes.get(name).is_some_and(|node| node.alive) {
            self.due_in(self.settings.slurmd_timeout, Event::NodeTimesOut(name.to_owned()));
        }
    }

    /// Deletes the record of a dynamic node. Its slurmd keeps running and does not register again by itself.
    pub fn delete_node(&mut self, name: &str) -> Result<(), Refusal> {
        let node = self.nodes.get(name).ok_or(Refusal::NODE_NAME)?;
        if !node.jobs.is_empty() || !node.suspended.is_empty() || !node.completing.is_empty() {
            return Err(Refusal::NODES_BUSY);
        }
        self.nodes.remove(name);
        self.revision += 1;
        // slurmctld does not count this as a change of its nodes.
        self.changed.partitions = self.now;
        Ok(())
    }

    /// Creates the record of a node that has not registered yet, from a line as in slurm.conf.
    pub fn new_nodes(&mut self, conf: &str) -> Result<Vec<String>, Refusal> {
        let mut machine = Machine::default();
        let mut names = Vec::new();
        for (key, value) in conf.split_whitespace().filter_map(|word| word.split_once('=')) {
            match key.to_ascii_lowercase().as_str() {
                "nodename" => names = super::names(value)?,
                "cpus" => machine.cpus = value.parse().map_err(|_| Refusal::NODE_COUNT)?,
                "realmemory" => machine.memory = value.parse().map_err(|_| Refusal::NODE_COUNT)?,
                "features" | "feature" => machine.features = value.split(',').map(str::to_owned).collect(),
                "gres" => value.clone_into(&mut machine.gres),
                "topology" => value.clone_into(&mut machine.topology),
                _ => {}
            }
        }
        if names.is_empty() {
            return Err(Refusal::UNSPECIFIED);
        }
        if names.iter().any(|name| self.settings.node_sets.contains(name)) {
            return Err(Refusal::NODE_NAME);
        }
        if names.iter().any(|name| self.nodes.contains_key(name)) {
            return Err(Refusal::NODE_EXISTS);
        }
        for name in &names {
            let mut node = Node::dynamic(name, machine.clone(), self.now);
            node.state = State::new(Base::Unknown, &[Flag::NotResponding, Flag::DynamicNorm]);
            (node.alive, node.known, node.heard_at) = (false, false, 0);
            self.nodes.insert(name.clone(), node);
            self.change(name, |_| ());
        }
        self.changed.partitions = self.now;
        Ok(names)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Drain,
    Undrain,
    Resume,
    Idle,
    Down,
    Fail,
}

impl Change {
    fn from_word(word: &str) -> Option<Self> {
        match word.to_ascii_uppercase().as_str() {
            "DRAIN" => Some(Self::Drain),
            "UNDRAIN" => Some(Self::Undrain),
            "RESUME" => Some(Self::Resume),
            "IDLE" => Some(Self::Idle),
            "DOWN" => Some(Self::Down),
            "FAIL" => Some(Self::Fail),
            _ => None,
        }
    }
}

fn set<T: Clone>(target: &mut T, value: Option<&T>) {
    if let Some(value) = value {
        target.clone_from(value);
    }
}
