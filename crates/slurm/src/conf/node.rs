//! Lines for static nodes: those that slurm.conf names, before their slurmd has ever registered.

use std::{collections::BTreeSet, fmt::Write};

use super::{ConfError, NodeConf, Record};

/// Keys that only the operator sets on static nodes.
const OWN: &[&str] = &["NodeAddr", "NodeHostname", "Port", "State"];

/// Keys that say how many CPUs a node has. Slurm derives `CPUs` from the others.
const CPUS: &[&str] = &["Boards", "CoresPerSocket", "CPUs", "Procs", "Sockets", "SocketsPerBoard", "ThreadsPerCore"];

/// Static nodes of one set, named after it: `gpu-0`, `gpu-1`.
#[derive(Clone, Debug)]
pub struct StaticNodes<'a> {
    /// Name of the set, which is also that of its Slurm node set.
    pub set: &'a str,
    /// Which nodes there are.
    pub ordinals: &'a BTreeSet<u32>,
    /// Domain of their hosts. Names need not be known yet when slurmctld starts.
    pub domain: &'a str,
    /// Port of every slurmd.
    pub port: u16,
    /// What is known of a node's hardware. What `options` says wins.
    pub hardware: Hardware<'a>,
    /// Features, in addition to those of `options`.
    pub features: &'a [String],
    /// Whether Slurm expects nodes to be there only now and then (`State=CLOUD`): until their slurmd registers, they are
    /// powered down, and not unreachable.
    pub is_cloud: bool,
    /// The user's parameters.
    pub options: &'a NodeConf,
}

/// Hardware of a node, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hardware<'a> {
    pub cpus: Option<u32>,
    /// Memory in MiB.
    pub memory: Option<u64>,
    /// Generic resources, such as `gpu:8`.
    pub gres: Option<&'a str>,
}

/// Lines for the static nodes of a set.
#[derive(Clone, Debug)]
pub struct StaticLines {
    /// `NodeName=gpu-[0-7] …`
    pub nodes: Record,
    /// `NodeSet=gpu Nodes=gpu-[0-7]`
    pub set: Record,
    /// Keys of the user that are left out, because only the operator sets them.
    pub ignored: Vec<&'static str>,
}

impl StaticNodes<'_> {
    /// Returns `None` without nodes: slurmctld does not start with a node set that has none.
    pub fn lines(&self) -> Result<Option<StaticLines>, ConfError> {
        let Some(hosts) = hosts(&format!("{}-", self.set), self.ordinals) else { return Ok(None) };
        let mut conf = self.options.clone();
        let ignored = OWN.iter().copied().filter(|key| conf.remove(key)).collect();
        for feature in self.features {
            conf.feature(feature)?;
        }
        if let Some(cpus) = self.hardware.cpus.filter(|_| CPUS.iter().all(|key| conf.get(key).is_none())) {
            conf.set_default("CPUs", &cpus.to_string())?;
        }
        if let Some(memory) = self.hardware.memory {
            conf.set_default("RealMemory", &memory.to_string())?;
        }
        if let Some(gres) = self.hardware.gres {
            conf.set_default("Gres", gres)?;
        }
        let nodes = Record::hosts("NodeName", &hosts)?
            .word("NodeAddr", &format!("{hosts}.{}", self.domain))?
            .word("Port", &self.port.to_string())?;
        let nodes = if self.is_cloud { nodes.word("State", "CLOUD")? } else { nodes };
        let set = Record::new("NodeSet", self.set)?.word("Nodes", &hosts)?;
        Ok(Some(StaticLines { nodes: nodes.node(&conf)?, set, ignored }))
    }
}

/// Hosts with these numbers as one word: `gpu-[0-2,5]`. `None` without numbers.
fn hosts(prefix: &str, ordinals: &BTreeSet<u32>) -> Option<String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for ordinal in ordinals {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*ordinal) => *last = *ordinal,
            _ => ranges.push((*ordinal, *ordinal)),
        }
    }
    let mut text = String::new();
    for (first, last) in &ranges {
        let blank = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = if first == last { write!(text, "{blank}{first}") } else { write!(text, "{blank}{first}-{last}") };
    }
    match ranges.as_slice() {
        [] => None,
        [(first, last)] if first == last => Some(format!("{prefix}{text}")),
        _ => Some(format!("{prefix}[{text}]")),
    }
}
