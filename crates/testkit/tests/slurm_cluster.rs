//! The model of slurmctld behind the fake, driven without HTTP.

use testkit::slurmrestd::{
    Base, Cluster, Flag, JobSpec, JobState, Machine, NodeUpdate, Release, Reservation, Settings, StateSave,
};

const NOW: i64 = 1_800_000_000;

fn cluster(nodes: u32) -> Cluster {
    let mut cluster = Cluster::new(Settings::default(), NOW);
    cluster.register_many("w", nodes, &Machine::default());
    cluster
}

fn state(cluster: &Cluster, name: &str) -> String {
    cluster.node(name).map_or_else(|| "gone".to_owned(), |node| format!("{:?}", node.state))
}

fn update(cluster: &mut Cluster, name: &str, state: &str) {
    assert_eq!(cluster.update_nodes(&[name.into()], &NodeUpdate::state(state), "root"), Ok(()));
}

#[test]
fn jobs_run_into_their_limits() {
    let mut cluster = cluster(1);
    let short = JobSpec { runs_for: Some(30), time_limit: Some(1), ..JobSpec::default() };
    let long = JobSpec { runs_for: Some(90), time_limit: Some(1), ..JobSpec::default() };
    let (short, long) = (cluster.submit(short).unwrap(), cluster.submit(long).unwrap());
    cluster.advance(0);
    assert_eq!(state(&cluster, "w0"), "MIXED+DYNAMIC_NORM");
    cluster.advance(30);
    assert_eq!(cluster.job(short).unwrap().state, JobState::Completed);
    cluster.advance(30);
    assert_eq!(cluster.job(long).unwrap().state, JobState::Timeout);
    assert_eq!(state(&cluster, "w0"), "IDLE+DYNAMIC_NORM");
    // After some minutes they are removed.
    cluster.advance(300);
    assert_eq!(cluster.jobs().len(), 0);
}

#[test]
fn jobs_wait_for_free_cpus_and_nodes_in_service() {
    let mut cluster = cluster(2);
    update(&mut cluster, "w0", "DRAIN");
    let whole = JobSpec { cpus: 0, ..JobSpec::default() };
    let first = cluster.submit(whole.clone()).unwrap();
    let second = cluster.submit(whole).unwrap();
    cluster.advance(1);
    assert_eq!(cluster.job(first).unwrap().nodes, ["w1"]);
    assert_eq!(
        (cluster.job(second).unwrap().state, cluster.job(second).unwrap().reason),
        (JobState::Pending, "Resources")
    );
    update(&mut cluster, "w0", "UNDRAIN");
    assert_eq!(state(&cluster, "w0"), "IDLE+NOT_RESPONDING+DYNAMIC_NORM");
    cluster.advance(1);
    assert_eq!(cluster.job(second).unwrap().nodes, ["w0"]);
    assert_eq!(state(&cluster, "w0"), "ALLOCATED+DYNAMIC_NORM");
}

#[test]
fn an_epilog_keeps_a_node_completing() {
    let mut cluster = cluster(1);
    cluster.settings.epilog = 5;
    let id = cluster.submit(JobSpec::default()).unwrap();
    cluster.advance(1);
    cluster.finish(id).unwrap();
    assert_eq!(state(&cluster, "w0"), "IDLE+COMPLETING+DYNAMIC_NORM");
    cluster.advance(5);
    assert_eq!(state(&cluster, "w0"), "IDLE+DYNAMIC_NORM");
}

#[test]
fn the_reason_of_a_silent_slurmd_is_appended_to_an_existing_one() {
    let mut cluster = cluster(1);
    cluster.update_nodes(&["w0".into()], &NodeUpdate::drain("bad disk"), "root").unwrap();
    cluster.lose("w0");
    cluster.advance(300);
    assert_eq!(state(&cluster, "w0"), "DOWN+DRAIN+NOT_RESPONDING+DYNAMIC_NORM");
    let node = cluster.node("w0").unwrap();
    assert_eq!((node.reason.as_str(), node.reason_user.as_str()), ("bad disk : Not responding", "slurm"));
}

#[test]
fn a_silent_slurmd_takes_its_node_down_and_its_jobs_with_it() {
    let mut cluster = cluster(1);
    let stays = cluster.submit(JobSpec::default()).unwrap();
    let lost = cluster.submit(JobSpec { requeue: false, ..JobSpec::default() }).unwrap();
    cluster.advance(1);
    cluster.lose("w0");
    assert_eq!(state(&cluster, "w0"), "MIXED+NOT_RESPONDING+DYNAMIC_NORM");
    cluster.advance(300);
    assert_eq!(state(&cluster, "w0"), "DOWN+NOT_RESPONDING+DYNAMIC_NORM");
    assert_eq!(cluster.node("w0").unwrap().reason, "Not responding");
    assert_eq!(cluster.job(lost).unwrap().state, JobState::NodeFail);
    assert_eq!((cluster.job(stays).unwrap().state, cluster.job(stays).unwrap().restarts), (JobState::Pending, 1));
    // A new pod with this name registers: only RESUME lifts the down state.
    cluster.register("w0", Machine::default());
    cluster.advance(500);
    assert_eq!(state(&cluster, "w0"), "DOWN+DYNAMIC_NORM");
    update(&mut cluster, "w0", "RESUME");
    cluster.advance(1);
    assert_eq!(state(&cluster, "w0"), "MIXED+DYNAMIC_NORM");
}

#[test]
fn undrain_clears_the_reason_depending_on_release_and_accounting() {
    let table = [
        (Release::V24_11, false, "broken fan"),
        (Release::V24_11, true, ""),
        (Release::V26_05, false, ""),
        (Release::V26_05, true, ""),
    ];
    for (release, accounting, left) in table {
        let mut cluster = Cluster::new(Settings { release, accounting, ..Settings::default() }, NOW);
        cluster.register("w0", Machine::default());
        cluster.update_nodes(&["w0".into()], &NodeUpdate::drain("broken fan"), "root").unwrap();
        assert_eq!(cluster.node("w0").unwrap().reason, "broken fan");
        update(&mut cluster, "w0", "UNDRAIN");
        assert_eq!(cluster.node("w0").unwrap().reason, left, "{release} with accounting {accounting}");
    }
}

#[test]
fn a_busy_node_is_not_deleted() {
    let mut cluster = cluster(2);
    let id = cluster.submit(JobSpec { required: vec!["w1".into()], ..JobSpec::default() }).unwrap();
    cluster.advance(1);
    assert_eq!(cluster.delete_node("w1").unwrap_err().number, 2016);
    cluster.signal(id, 9).unwrap();
    cluster.delete_node("w1").unwrap();
    assert_eq!(cluster.delete_node("w1").unwrap_err().number, 2018);
    assert_eq!(cluster.nodes().len(), 1);
}

#[test]
fn reservations_begin_and_end() {
    let mut cluster = cluster(2);
    let maintenance = Reservation {
        name: "fans".into(),
        nodes: ["w0".into()].into(),
        users: vec!["root".into()],
        flags: vec!["MAINT".into()],
        starts_at: NOW + 100,
        ends_at: NOW + 200,
        ..Reservation::default()
    };
    cluster.reserve(maintenance).unwrap();
    // A job without a limit would overlap the reservation.
    let endless = cluster.submit(JobSpec { required: vec!["w0".into()], ..JobSpec::default() }).unwrap();
    let short = JobSpec { required: vec!["w0".into()], time_limit: Some(1), ..JobSpec::default() };
    let short = cluster.submit(short).unwrap();
    cluster.advance(1);
    assert_eq!(cluster.job(endless).unwrap().state, JobState::Pending);
    assert_eq!(cluster.job(short).unwrap().state, JobState::Running);
    cluster.advance(99);
    assert_eq!(state(&cluster, "w0"), "IDLE+MAINTENANCE+DYNAMIC_NORM");
    assert_eq!(cluster.node("w0").unwrap().reservation, "fans");
    cluster.advance(100);
    assert_eq!(cluster.reservations().len(), 0);
    assert_eq!(cluster.job(endless).unwrap().state, JobState::Running);
}

#[test]
fn a_restart_keeps_or_loses() {
    let mut cluster = cluster(2);
    cluster.update_nodes(&["w0".into()], &NodeUpdate::drain("mine"), "root").unwrap();
    let id = cluster.submit(JobSpec::default()).unwrap();
    cluster.advance(1);
    cluster.stop();
    cluster.advance(10);
    cluster.start(StateSave::Kept);
    assert!(!cluster.node("w0").unwrap().known);
    cluster.advance(2);
    assert!(cluster.node("w0").unwrap().known);
    assert_eq!(cluster.node("w0").unwrap().reason, "mine");
    assert_eq!(cluster.job(id).unwrap().state, JobState::Running);
    cluster.start(StateSave::Lost);
    assert_eq!((cluster.nodes().len(), cluster.jobs().len()), (0, 0));
    cluster.register("w0", Machine::default());
    assert!(!cluster.node("w0").unwrap().state.has(Flag::Drain));
}

#[test]
fn pings_change_loads_but_nothing_that_matters() {
    let mut cluster = cluster(3);
    let loads = |cluster: &Cluster| cluster.nodes().map(|node| node.cpu_load).collect::<Vec<_>>();
    let before = loads(&cluster);
    cluster.advance(100);
    assert_ne!(before, loads(&cluster));
    assert!(cluster.nodes().all(|node| node.state.base == Base::Idle && node.reason.is_empty()));
}

#[test]
fn many_jobs_on_many_nodes_start_at_once() {
    let mut cluster = cluster(10_000);
    let ids: Vec<u32> =
        (0..1_000).map(|_| cluster.submit(JobSpec { cpus: 0, ..JobSpec::default() }).unwrap()).collect();
    cluster.advance(1);
    assert!(ids.iter().all(|id| cluster.job(*id).unwrap().state == JobState::Running));
    assert_eq!(cluster.nodes().filter(|node| node.state.base == Base::Allocated).count(), 1_000);
}

#[test]
fn time_does_not_go_back() {
    let mut cluster = cluster(1);
    cluster.advance_to(NOW - 50);
    assert_eq!(cluster.now(), NOW);
}
