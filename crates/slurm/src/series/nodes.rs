//! The series of nodes.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use super::{Kind, Label, Series, SeriesError, Writer, histogram::Histogram};
use crate::{
    gres,
    states::{NodeState, NodeStates, Word},
    tres::Amounts,
    wire::{NoVal, NodeMetrics},
};

/// How much of the name of a reservation is shown, in characters.
const RESERVATION: usize = 50;

/// How many kinds of failures of a node are told apart. Reasons are free text, and may have a time in them.
const MAX_FAILURES: usize = 32;

/// The reason of further ones.
const OTHER: &str = "(other)";

/// What is counted while nodes are watched. It is lost with the process, like every counter.
#[derive(Debug, Default)]
pub struct NodeHistory {
    nodes: BTreeMap<String, Past>,
    /// When the last list came.
    last: Option<Duration>,
}

/// What is known of one node.
#[derive(Debug, Default)]
struct Past {
    /// The states in the last list.
    states: NodeStates,
    unavailable_since: Option<Duration>,
    draining_since: Option<Duration>,
    gpu_seconds: Vec<(State, f64)>,
    failures: Vec<(State, String, u64)>,
    unavailability: Option<Box<Histogram>>,
    draining: Option<Box<Histogram>>,
}

/// One of the histograms of a node.
type HistogramOf = fn(&Past) -> Option<&Histogram>;

/// The state of a node as far as it is a label of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    base: Option<NodeState>,
    is_drain: bool,
    is_maintenance: bool,
    is_reserved: bool,
}

impl State {
    fn of(states: &NodeStates) -> Self {
        Self {
            base: states.base(),
            is_drain: states.is_drain(),
            is_maintenance: states.has(NodeState::Maintenance),
            is_reserved: states.has(NodeState::Reserved),
        }
    }

    fn labels(self) -> [Label<'static>; 4] {
        [
            ("state_base", self.base.map_or("", NodeState::as_str)),
            ("state_is_drain", yes_or_no(self.is_drain)),
            ("state_is_maintenance", yes_or_no(self.is_maintenance)),
            ("state_is_reserved", yes_or_no(self.is_reserved)),
        ]
    }
}

impl NodeHistory {
    /// The series of a new list of all nodes. `now` is the time since some moment that does not change.
    pub fn of_nodes(&mut self, nodes: Vec<NodeMetrics>, now: Duration) -> Result<Series, SeriesError> {
        let mut names = HashSet::with_capacity(nodes.len());
        // A series must not be there twice.
        let is_first: Vec<bool> = nodes.iter().map(|node| names.insert(node.name.as_str())).collect();
        // What is no longer there has no series, also if it comes back.
        self.nodes.retain(|name, _| names.contains(name.as_str()));
        drop(names);
        let mut is_first = is_first.into_iter();
        let nodes: Vec<NodeMetrics> = nodes.into_iter().filter(|_| is_first.next().unwrap_or_default()).collect();
        self.take(&nodes, now);
        let mut writer = Writer::default();
        info(&nodes, &mut writer);
        usage(&nodes, &mut writer);
        partitions(&nodes, &mut writer);
        self.counters(&mut writer);
        writer.finish()
    }

    /// Counts what has happened since the last list.
    fn take(&mut self, nodes: &[NodeMetrics], now: Duration) {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last)).as_secs_f64();
        self.last = Some(now);
        for node in nodes {
            let state = State::of(&node.state);
            let known = self.nodes.contains_key(&node.name);
            let past = self.nodes.entry(node.name.clone()).or_default();
            // What it was before is not known of a node that is new here.
            if known && !past.states.has_failed() && node.state.has_failed() {
                past.fail(state, &node.reason);
            }
            let gone = turn(&mut past.unavailable_since, node.state.is_unavailable(), now);
            observe(&mut past.unavailability, gone);
            let gone = turn(&mut past.draining_since, node.state.is_finishing_jobs(), now);
            observe(&mut past.draining, gone);
            let seconds = if known { passed * gpus(node) } else { 0.0 };
            match past.gpu_seconds.iter_mut().find(|(of, _)| *of == state) {
                Some((_, total)) => *total += seconds,
                None => past.gpu_seconds.push((state, seconds)),
            }
            past.states = node.state.clone();
        }
    }

    fn counters(&self, writer: &mut Writer) {
        let name = "slurm_node_gpu_seconds_total";
        writer.family(name, Kind::Counter, "GPU seconds of the node in this state; 0 without GPUs");
        for (node, past) in &self.nodes {
            for (state, seconds) in &past.gpu_seconds {
                let [base, drain, maintenance, reserved] = state.labels();
                writer.sample(name, &[("node_name", node), base, drain, maintenance, reserved], seconds);
            }
        }
        let name = "slurm_node_fails_total";
        writer.family(name, Kind::Counter, "How often the node went down or was drained");
        for (node, past) in &self.nodes {
            for (state, reason, count) in &past.failures {
                let [base, drain, maintenance, reserved] = state.labels();
                let labels: [Label<'_>; 6] =
                    [("node_name", node), base, drain, maintenance, reserved, ("reason", reason)];
                writer.sample(name, &labels, count);
            }
        }
        let histograms: [(&str, &str, HistogramOf); 2] = [
            (
                "slurm_node_unavailability_duration_seconds",
                "How long the node was unavailable, each time that it became available again",
                |past| past.unavailability.as_deref(),
            ),
            (
                "slurm_node_draining_duration_seconds",
                "How long the node was drained while jobs still ran on it, each time that this ended",
                |past| past.draining.as_deref(),
            ),
        ];
        for (name, help, of) in histograms {
            writer.family(name, Kind::Histogram, help);
            for (node, past) in &self.nodes {
                if let Some(histogram) = of(past) {
                    histogram.write(name, ("node_name", node), writer);
                }
            }
        }
    }
}

impl Past {
    fn fail(&mut self, state: State, reason: &str) {
        let known = |failures: &[(State, String, u64)], reason: &str| {
            failures.iter().position(|(of, text, _)| *of == state && text == reason)
        };
        let has_room = self.failures.len() < MAX_FAILURES;
        let reason = if has_room || known(&self.failures, reason).is_some() { reason } else { OTHER };
        match known(&self.failures, reason).and_then(|place| self.failures.get_mut(place)) {
            Some((_, _, count)) => *count += 1,
            None => self.failures.push((state, reason.to_owned(), 1)),
        }
    }
}

/// Begins or ends a time, and returns how long it was if it ends.
fn turn(since: &mut Option<Duration>, is_so: bool, now: Duration) -> Option<Duration> {
    if is_so {
        since.get_or_insert(now);
        return None;
    }
    since.take().map(|since| now.saturating_sub(since))
}

fn observe(histogram: &mut Option<Box<Histogram>>, took: Option<Duration>) {
    if let Some(took) = took {
        histogram.get_or_insert_default().observe(took);
    }
}

/// The GPUs of a node. Slurm lists them as trackable resources only if `AccountingStorageTRES` says so.
fn gpus(node: &NodeMetrics) -> f64 {
    let listed = || gres::counts(&node.gres).get("gpu").copied();
    let gpus = Amounts::of(&node.tres).gpus.or_else(listed).unwrap_or_default();
    // More than this is nonsense.
    f64::from(u32::try_from(gpus).unwrap_or_default())
}

fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "true" } else { "false" }
}

/// For labels that were added later: one that is false costs nothing.
fn yes(is_so: bool) -> &'static str {
    if is_so { "true" } else { "" }
}

fn info(nodes: &[NodeMetrics], writer: &mut Writer) {
    let name = "slurm_node_info";
    writer.family(name, Kind::Gauge, "A Slurm node; always 1");
    for node in nodes {
        let states = &node.state;
        let has = |state| yes(states.has(state));
        let [base, drain, maintenance, reserved] = State::of(states).labels();
        let reservation: String = node.reservation.chars().take(RESERVATION).collect();
        let labels: [Label<'_>; 23] = [
            ("node_name", &node.name),
            ("instance_id", &node.instance_id),
            base,
            drain,
            maintenance,
            reserved,
            ("state_is_completing", has(NodeState::Completing)),
            ("state_is_fail", has(NodeState::Fail)),
            ("state_is_planned", has(NodeState::Planned)),
            ("state_is_not_responding", has(NodeState::NotResponding)),
            ("state_is_invalid", yes(states.has_any(&[NodeState::Invalid, NodeState::InvalidReg]))),
            ("state_is_cloud", has(NodeState::Cloud)),
            ("state_is_power_down", has(NodeState::PowerDown)),
            ("state_is_power_drain", has(NodeState::PowerDrain)),
            ("state_is_powered_down", has(NodeState::PoweredDown)),
            ("state_is_powering_down", has(NodeState::PoweringDown)),
            ("state_is_powering_up", has(NodeState::PoweringUp)),
            ("state_is_power_up", has(NodeState::PowerUp)),
            ("is_unavailable", yes(states.is_unavailable())),
            ("reservation_name", &reservation),
            ("address", &node.address),
            ("reason", &node.reason),
            ("comment", &node.comment),
        ];
        writer.sample(name, &labels, 1);
    }
}

fn usage(nodes: &[NodeMetrics], writer: &mut Writer) {
    type Of = fn(&NodeMetrics) -> Option<u64>;
    fn bytes(mebibytes: NoVal) -> Option<u64> {
        mebibytes.number()?.checked_mul(1 << 20)
    }
    let families: [(&str, &str, Of); 8] = [
        ("slurm_node_cpus_total", "CPUs of the node", |node| node.cpus.number()),
        ("slurm_node_cpus_allocated", "CPUs that jobs have", |node| node.alloc_cpus.number()),
        ("slurm_node_cpus_idle", "CPUs that no job has", |node| node.alloc_idle_cpus.number()),
        ("slurm_node_cpus_effective", "CPUs that jobs can have", |node| node.effective_cpus.number()),
        ("slurm_node_memory_total_bytes", "Memory of the node", |node| bytes(node.real_memory)),
        ("slurm_node_memory_allocated_bytes", "Memory that jobs have", |node| bytes(node.alloc_memory)),
        ("slurm_node_memory_free_bytes", "Memory that the operating system reports as free", |node| {
            bytes(node.free_mem)
        }),
        ("slurm_node_memory_effective_bytes", "Memory that jobs can have", |node| {
            let kept = node.specialized_memory.number().unwrap_or_default();
            bytes(NoVal::Is(node.real_memory.number()?.saturating_sub(kept)))
        }),
    ];
    for (name, help, of) in families {
        writer.family(name, Kind::Gauge, help);
        for node in nodes {
            if let Some(value) = of(node) {
                writer.sample(name, &[("node_name", &node.name)], value);
            }
        }
    }
}

fn partitions(nodes: &[NodeMetrics], writer: &mut Writer) {
    let name = "slurm_node_partition";
    writer.family(name, Kind::Gauge, "A partition that the node is in; always 1");
    for node in nodes {
        let mut seen = HashSet::new();
        for partition in node.partitions.iter().filter(|partition| seen.insert(partition.as_str())) {
            writer.sample(name, &[("node_name", &node.name), ("partition", partition)], 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, states: &str) -> NodeMetrics {
        let words: Vec<&str> = states.split('+').collect();
        serde_json::from_value(serde_json::json!({
            "name": name, "state": words, "tres": "cpu=4,mem=2G,gres/gpu=8", "partitions": ["all", "gpu", "all"],
            "cpus": 4, "alloc_cpus": 1, "real_memory": 2048, "specialized_memory": 48,
            "free_mem": {"set": false, "infinite": false, "number": 0}, "reason": "why", "address": "10.0.0.1",
            "instance_id": "i-1", "comment": "c", "reservation": "r".repeat(60),
        }))
        .unwrap()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The value of the series with this name and these labels.
    fn value<'a>(series: &'a Series, name: &str, labels: &str) -> Option<&'a str> {
        series.text.lines().find_map(|line| line.strip_prefix(&format!("{name}{{{labels}}} ")))
    }

    #[test]
    fn a_node_and_what_it_has() {
        let mut history = NodeHistory::default();
        let nodes = vec![node("a", "IDLE+DRAIN+PLANNED"), node("a", "IDLE")];
        let series = history.of_nodes(nodes, seconds(100)).unwrap();
        let labels = format!(
            "node_name=\"a\",instance_id=\"i-1\",state_base=\"IDLE\",state_is_drain=\"true\",state_is_maintenance=\"false\",\
             state_is_reserved=\"false\",state_is_planned=\"true\",is_unavailable=\"true\",reservation_name=\"{}\",\
             address=\"10.0.0.1\",reason=\"why\",comment=\"c\"",
            "r".repeat(50)
        );
        assert_eq!(value(&series, "slurm_node_info", &labels), Some("1"), "{}", series.text);
        let of = |name: &str| value(&series, name, "node_name=\"a\"");
        assert_eq!([of("slurm_node_cpus_total"), of("slurm_node_cpus_allocated")], [Some("4"), Some("1")]);
        assert_eq!([of("slurm_node_cpus_idle"), of("slurm_node_memory_free_bytes")], [None, None], "not known");
        assert_eq!(of("slurm_node_memory_total_bytes"), Some("2147483648"));
        assert_eq!(of("slurm_node_memory_effective_bytes"), Some("2097152000"));
        assert_eq!(series.text.matches("slurm_node_info{").count(), 1, "the same node twice");
        assert_eq!(series.text.matches("slurm_node_partition{").count(), 2);
        let lines = series.text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(u64::try_from(lines.count()).unwrap(), series.count);
    }

    const IDLE: &str = "node_name=\"a\",state_base=\"IDLE\",state_is_drain=\"false\",state_is_maintenance=\"false\",state_is_reserved=\"false\"";

    #[test]
    fn gpu_seconds_belong_to_the_state() {
        let mut history = NodeHistory::default();
        let mut read = |states: &str, at| history.of_nodes(vec![node("a", states)], seconds(at)).unwrap();
        let gpu =
            |series: &Series, labels: &str| value(series, "slurm_node_gpu_seconds_total", labels).map(str::to_owned);
        assert_eq!(gpu(&read("IDLE", 1000), IDLE).as_deref(), Some("0"), "nobody knows how long it was there");
        assert_eq!(gpu(&read("IDLE", 1030), IDLE).as_deref(), Some("240"));
        let series = read("MIXED+RESERVED", 1040);
        let mixed = IDLE.replace("IDLE", "MIXED").replace("reserved=\"false", "reserved=\"true");
        assert_eq!((gpu(&series, IDLE).as_deref(), gpu(&series, &mixed).as_deref()), (Some("240"), Some("80")));
        // Also if Slurm does not track GPUs.
        let untracked = NodeMetrics { tres: "cpu=4".into(), gres: "gpu:a100:2(S:0),gpu:1".into(), ..node("a", "IDLE") };
        let series = history.of_nodes(vec![untracked], seconds(1050)).unwrap();
        assert_eq!(gpu(&series, IDLE).as_deref(), Some("270"));
        // A clock that goes back is no reason to count backwards.
        let series = history.of_nodes(vec![node("a", "IDLE")], seconds(0)).unwrap();
        assert_eq!(gpu(&series, IDLE).as_deref(), Some("270"));
    }

    #[test]
    fn failures_are_transitions() {
        let mut history = NodeHistory::default();
        let mut read = |states: &str, reason: &str| {
            let node = NodeMetrics { reason: reason.to_owned(), ..node("a", states) };
            history.of_nodes(vec![node], seconds(1)).unwrap()
        };
        let failures = |series: &Series| -> Vec<String> {
            let lines = series.text.lines().filter(|line| line.starts_with("slurm_node_fails_total{"));
            lines.map(|line| line.split("reason=").nth(1).unwrap_or_default().to_owned()).collect()
        };
        assert!(failures(&read("DOWN", "first")).is_empty(), "it may have been down for long");
        read("IDLE", "");
        read("IDLE+DRAIN", "disk");
        assert_eq!(failures(&read("DOWN+DRAIN", "worse")), ["\"disk\"} 1"], "still the same failure");
        read("IDLE", "");
        read("DOWN+CLOUD+POWERED_DOWN", "");
        assert_eq!(failures(&read("MIXED+DRAIN", "disk")), ["\"disk\"} 1", "\"disk\"} 1"], "in another state");
        for number in 0..100 {
            read("IDLE", "");
            read("IDLE+DRAIN", &format!("at {number}"));
        }
        read("IDLE", "");
        let all = failures(&read("IDLE+DRAIN", "disk"));
        assert_eq!(all.len(), MAX_FAILURES + 1, "reasons are free text");
        assert_eq!((all[0].as_str(), all.last().unwrap().as_str()), ("\"disk\"} 2", "\"(other)\"} 70"));
    }

    #[test]
    fn durations_are_observed_when_they_end() {
        let mut history = NodeHistory::default();
        let mut read = |states: &str, at| history.of_nodes(vec![node("a", states)], seconds(at)).unwrap();
        let sum = |series: &Series, of: &str| {
            value(series, &format!("slurm_node_{of}_duration_seconds_sum"), "node_name=\"a\"").map(str::to_owned)
        };
        let series = read("MIXED+DRAIN", 10);
        assert_eq!((sum(&series, "draining"), sum(&series, "unavailability")), (None, None));
        read("MIXED+DRAIN", 40);
        let series = read("IDLE+DRAIN", 70);
        assert_eq!((sum(&series, "draining").as_deref(), sum(&series, "unavailability")), (Some("60"), None));
        let series = read("IDLE", 100);
        assert_eq!(sum(&series, "unavailability").as_deref(), Some("30"));
        assert!(series.text.contains("slurm_node_draining_duration_seconds_bucket{node_name=\"a\",le=\"60\"} 1"));
    }

    #[test]
    fn a_node_that_is_gone_has_no_series() {
        let mut history = NodeHistory::default();
        history.of_nodes(vec![node("a", "IDLE"), node("b", "IDLE")], seconds(1)).unwrap();
        let series = history.of_nodes(vec![node("b", "IDLE")], seconds(31)).unwrap();
        assert!(!series.text.contains("\"a\"") && series.text.contains("\"b\""));
        let series = history.of_nodes(vec![node("a", "DOWN")], seconds(61)).unwrap();
        assert!(!series.text.contains("slurm_node_fails_total{"), "it is new");
        assert!(history.of_nodes(Vec::new(), seconds(91)).unwrap().count == 0 && history.nodes.is_empty());
    }
}
