//! Random events on fake clusters: the invariants always hold, and after the last event the cluster becomes stable.

use proptest::prelude::*;

use super::{
    fake_cluster::{FakeCluster, with},
    *,
};

#[derive(Clone, Debug)]
enum Event {
    Turn,
    Scale(u32),
    Template(u8),
    Job(usize, u32),
    Blind(u32),
    Lag(u32),
    KillPod(usize),
    LoseState,
    RestartCtld,
    Cordon(u32, bool),
    PodCordon(usize, bool),
    AdminDrain(usize, bool),
    Crash(usize),
    Mode(bool),
    Budget(u32),
    Replace(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Turn),
        3 => (0..6_u32).prop_map(Event::Scale),
        3 => (0..4_u8).prop_map(Event::Template),
        6 => (0..6_usize, 1..20_u32).prop_map(|(pod, turns)| Event::Job(pod, turns)),
        2 => (1..8_u32).prop_map(Event::Blind),
        2 => (1..6_u32).prop_map(Event::Lag),
        1 => (0..6_usize).prop_map(Event::KillPod),
        1 => Just(Event::LoseState),
        1 => Just(Event::RestartCtld),
        2 => (0..6_u32, any::<bool>()).prop_map(|(node, on)| Event::Cordon(node, on)),
        1 => (0..6_usize, any::<bool>()).prop_map(|(pod, on)| Event::PodCordon(pod, on)),
        2 => (0..6_usize, any::<bool>()).prop_map(|(pod, on)| Event::AdminDrain(pod, on)),
        2 => (0..6_usize).prop_map(Event::Crash),
        1 => any::<bool>().prop_map(Event::Mode),
        1 => (1..4_u32).prop_map(Event::Budget),
        1 => (0..6_u32).prop_map(Event::Replace),
    ]
}

const FOREIGN: &str = "bad disk";

fn happen(cluster: &mut FakeCluster, event: &Event) {
    match event {
        Event::Turn => {}
        Event::Scale(replicas) => {
            if let Scaling::Numbered { ordinals: Ordinals::Count(wanted), .. } = &mut cluster.model.scaling {
                *wanted = *replicas;
            }
        }
        Event::Template(number) => {
            cluster.model.revision = if *number == 3 { "bad".into() } else { format!("r{number}") }
        }
        Event::Job(pod, turns) => cluster.start_job(*pod, *turns),
        Event::Blind(turns) => cluster.blind = *turns,
        Event::Lag(turns) => cluster.lag = *turns,
        Event::KillPod(pod) => cluster.kill_pod(*pod),
        Event::LoseState => cluster.lose_state(),
        Event::RestartCtld => cluster.ctld_started = cluster.now,
        Event::Cordon(node, on) => {
            if let Some(node) = cluster.kube.get_mut(&format!("n{node}")) {
                node.unschedulable = *on;
            }
        }
        Event::PodCordon(pod, on) => {
            if let Some(pod) = cluster.pods.get_mut(*pod) {
                pod.cordon = if *on { Cordon::User } else { Cordon::None };
            }
        }
        // With an outdated node list the operator cannot see that an admin resumed a node; that race is unavoidable.
        Event::AdminDrain(_, false) if cluster.lag > 0 => {}
        Event::AdminDrain(pod, on) => {
            let host = cluster.pods.get(*pod).and_then(|pod| pod.slurm_node()).map(str::to_owned);
            if let Some(node) = host.and_then(|host| cluster.slurm.get_mut(&host)) {
                admin_drain(node, *on);
            }
        }
        Event::Crash(pod) => {
            // slurmd crashes with its jobs; the kubelet restarts it.
            let Some(pod) = cluster.pods.get_mut(*pod).filter(|pod| !pod.terminating) else { return };
            (pod.slurmd, pod.ready) = (SlurmdState::Stopped, None);
            let host = pod.slurm_node().unwrap().to_owned();
            cluster.jobs.remove(&host);
            if let Some(node) = cluster.slurm.get_mut(&host).filter(|node| node.states.has(NodeState::Mixed)) {
                node.states = with(&node.states, &[NodeState::Idle], &[NodeState::Mixed]);
            }
        }
        Event::Mode(per_node) => {
            let numbered = numbered(3, 0);
            cluster.model.scaling = if *per_node { Scaling::PerNode } else { numbered };
        }
        Event::Budget(number) => cluster.model.update = Update::Rolling { max_unavailable: Budget::Number(*number) },
        Event::Replace(node) => {
            let name = format!("n{node}");
            let is_used = cluster.pods.iter().any(|pod| pod.home() == Some(&name));
            if !is_used && cluster.kube.remove(&name).is_none() {
                cluster.kube.insert(name.clone(), kube_node(&name));
            }
        }
    }
}

fn admin_drain(node: &mut SlurmNode, on: bool) {
    if on {
        node.states = with(&node.states, &[NodeState::Drain], &[]);
        node.reason = FOREIGN.into();
    } else if node.reason == FOREIGN {
        // As `scontrol update state=resume` does with 26.05.
        node.reason.clear();
        let base = if node.states.is_down() { &[NodeState::Idle][..] } else { &[] };
        node.states = with(&node.states, base, &[NodeState::Drain, NodeState::Down, NodeState::NotResponding]);
    }
}

/// Ends all faults, and undoes all cordons and drains of users and admins.
fn calm(cluster: &mut FakeCluster) {
    (cluster.blind, cluster.lag) = (0, 0);
    if cluster.model.revision == "bad" {
        cluster.model.revision = "good".into();
    }
    cluster.kube.values_mut().for_each(|node| node.unschedulable = false);
    cluster.pods.iter_mut().for_each(|pod| pod.cordon = Cordon::None);
    cluster.slurm.values_mut().for_each(|node| admin_drain(node, false));
    for number in 0..6 {
        let name = format!("n{number}");
        cluster.kube.entry(name.clone()).or_insert_with(|| kube_node(&name));
    }
}

fn is_as_wanted(cluster: &FakeCluster) -> Result<(), String> {
    let wanted = match cluster.model.scaling {
        Scaling::Numbered { ordinals: Ordinals::Count(replicas), .. } => usize::try_from(replicas).unwrap(),
        Scaling::PerNode => cluster.kube.len(),
    };
    if cluster.pods.len() != wanted {
        return Err(format!("{} pods, {wanted} wanted", cluster.pods.len()));
    }
    for pod in &cluster.pods {
        let node = cluster.slurm.get(pod.slurm_node().unwrap());
        let serves = node.is_some_and(|node| node.states.is_available());
        if !serves || pod.revision.as_deref() != Some(&cluster.model.revision) {
            return Err(format!("{} is {node:?} with {:?}", pod.name, pod.revision));
        }
    }
    // A worker that terminated before its comment was set leaves a Slurm node that must not be touched.
    let records = cluster.slurm.values().filter(|node| !node.comment.is_empty()).count();
    (records == wanted).then_some(()).ok_or(format!("{records} records, {wanted} wanted: {:?}", cluster.slurm.keys()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn invariants_hold_and_the_cluster_becomes_stable(events in prop::collection::vec(event(), 1..60)) {
        let mut cluster = FakeCluster::new(rolling(3, Budget::Number(1)), 6);
        cluster.bad.insert("bad".into());
        for event in &events {
            happen(&mut cluster, event);
            cluster.turn();
        }
        calm(&mut cluster);
        cluster.settle(1500);
        prop_assert_eq!(is_as_wanted(&cluster), Ok(()));
    }
}
