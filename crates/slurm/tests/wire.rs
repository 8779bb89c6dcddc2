//! The wire types, decoded from recorded responses of both releases.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use slurm::{
    series::{NodeHistory, of_jobs, of_rpcs},
    states::{JobState, NodeState},
    version::SlurmVersion,
    wire::{
        Account, AccountedJob, AccountedJobMetrics, Body, Cluster, ConfAnswer, DiagAnswer, Envelope, Job, JobBrief,
        JobMetrics, JobStateEntry, Listing, NoVal, Node, NodeMetrics, Nothing, Partition, Ping, Record, Records,
        Reservation, StepStatuses, SubmitAnswer, User, decode,
    },
};

/// Every release and REST version that was recorded.
const RECORDED: [(&str, &str); 6] = [
    ("24.11", "v0.0.41"),
    ("24.11", "v0.0.42"),
    ("26.05", "v0.0.42"),
    ("26.05", "v0.0.43"),
    ("26.05", "v0.0.44"),
    ("26.05", "v0.0.45"),
];

fn folder(slurm: &str, rest: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(slurm).join(rest)
}

fn text(slurm: &str, rest: &str, name: &str) -> String {
    let file = folder(slurm, rest).join(format!("{name}.json"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn read<B: Body>(slurm: &str, rest: &str, name: &str) -> Envelope<B::Output> {
    decode::<B>(text(slurm, rest, name).as_bytes()).unwrap().finish().unwrap()
}

fn list<T: Record>(slurm: &str, rest: &str, name: &str) -> Listing<T> {
    let envelope = read::<Records<T>>(slurm, rest, name);
    assert!(envelope.errors.is_empty(), "{slurm} {rest} {name}");
    envelope.body
}

fn first<T: Record>(slurm: &str, rest: &str, name: &str) -> T {
    list::<T>(slurm, rest, name).into_iter().next().unwrap()
}

fn seconds(time: Option<Timestamp>) -> i64 {
    time.map_or(0, Timestamp::as_second)
}

#[test]
fn every_recorded_answer_has_a_frame() {
    let mut count = 0;
    for (slurm, rest) in RECORDED {
        for entry in std::fs::read_dir(folder(slurm, rest)).unwrap() {
            let path = entry.unwrap().path();
            if path.file_stem().is_some_and(|stem| stem == "index") {
                continue;
            }
            let envelope = decode::<Nothing>(&std::fs::read(&path).unwrap()).unwrap();
            let release = if slurm == "24.11" { "24.11.5" } else { "26.05.5" };
            assert_eq!(envelope.meta.version, Some(release.parse::<SlurmVersion>().unwrap()), "{}", path.display());
            assert_eq!((envelope.meta.release.as_str(), envelope.meta.cluster.as_str()), (release, "lab"));
            assert_eq!(envelope.meta.data_parser, format!("data_parser/{rest}"));
            count += 1;
        }
    }
    assert!(count > 400, "{count}");
}

#[test]
fn nodes() {
    for (slurm, rest) in RECORDED {
        let nodes = list::<Node>(slurm, rest, "nodes");
        assert_eq!(nodes.items.len(), 2);
        assert!(nodes.last_update > 1_794_000_000);
        // The order is undefined.
        let node = nodes.iter().find(|node| node.name == "w0").unwrap();
        assert_eq!((node.name.as_str(), node.hostname.as_str(), node.address.as_str()), ("w0", "lab", "127.0.0.1"));
        assert_eq!((node.port, node.cpus, node.effective_cpus, node.real_memory), (7001, 4, 4, 2048));
        assert_eq!((node.sockets, node.cores, node.threads, node.weight), (4, 1, 1, 1));
        assert_eq!(
            (node.features.as_slice(), node.active_features.as_slice()),
            (["red".into()].as_slice(), ["red".into()].as_slice())
        );
        assert_eq!(node.partitions, ["all"]);
        assert_eq!(node.tres, "cpu=4,mem=2G,billing=4");
        assert_eq!(node.architecture, "x86_64");
        assert!(node.operating_system.starts_with("Linux"));
        assert!(node.version.starts_with(slurm), "{}", node.version);
        assert!(node.state.is_idle() && node.state.is_available() && node.state.is_registered(), "{}", node.state);
        assert!(node.state.has(NodeState::DynamicNorm) && node.state.unknown().is_empty());
        assert!(seconds(node.boot_time) > 1_794_000_000 && seconds(node.slurmd_start_time) > 1_794_000_000);
        assert!(node.free_mem.number().is_some() && node.cpu_load > 0);
        // Zero on the wire means "never" or "none".
        assert_eq!((node.reason_changed_at, node.resume_after), (None, None));
        assert_eq!((node.reason.as_str(), node.reservation.as_str(), node.gres.as_str()), ("", "", ""));
    }
}

#[test]
fn a_node_through_its_states() {
    for (slurm, rest) in RECORDED {
        let drained = first::<Node>(slurm, rest, "node-drained");
        assert!(drained.state.is_drained() && !drained.state.is_available(), "{}", drained.state);
        assert_eq!(drained.reason, "slurm-operator: golden");
        assert!(["slurm", "root"].contains(&drained.reason_set_by_user.as_str()), "{}", drained.reason_set_by_user);
        assert!(seconds(drained.reason_changed_at) > 1_794_000_000);
        let undrained = first::<Node>(slurm, rest, "node-undrained");
        assert!(!undrained.state.is_drain(), "{}", undrained.state);
        assert!(undrained.state.has(NodeState::NotResponding), "not responding for a moment: {}", undrained.state);
        let downed = first::<Node>(slurm, rest, "node-downed");
        assert!(downed.state.is_down() && !downed.state.is_down_unresponsive(&downed.reason), "{}", downed.state);
        let resumed = first::<Node>(slurm, rest, "node-resumed");
        assert!(!resumed.state.is_down(), "{}", resumed.state);
        let busy = first::<Node>(slurm, rest, "node-busy");
        assert!(busy.state.is_busy() && busy.state.is_available(), "{}", busy.state);
    }
}

#[test]
fn topology_comes_with_v43() {
    for (slurm, rest) in RECORDED {
        assert_eq!(text(slurm, rest, "node").contains("\"topology\""), rest >= "v0.0.43", "{slurm} {rest}");
    }
}

#[test]
fn jobs() {
    for (slurm, rest) in RECORDED {
        let job = first::<Job>(slurm, rest, "job");
        assert_eq!((job.name.as_str(), job.user_name.as_str(), job.user_id), ("golden", "slurm", 401));
        assert_eq!((job.account.as_str(), job.partition.as_str(), job.qos.as_str()), ("science", "all", "normal"));
        assert_eq!((job.cluster.as_str(), job.comment.as_str()), ("lab", "hi"));
        assert!(job.job_state.is_running() && job.job_state.holds_nodes(), "{}", job.job_state);
        assert_eq!((job.nodes.clone(), job.time_limit), (job.batch_host.clone(), NoVal::Is(10)));
        assert!(["w0", "w1"].contains(&job.nodes.as_str()));
        assert_eq!((job.node_count, job.cpus, job.tasks), (NoVal::Is(1), NoVal::Is(1), NoVal::Is(1)));
        assert_eq!((job.tres_alloc_str.as_str(), job.hold), ("cpu=1,mem=2G,node=1,billing=1", false));
        assert!(job.submit_time <= job.start_time && job.start_time < job.end_time);
        assert_eq!(seconds(job.deadline()), seconds(job.start_time) + 600);
        assert_eq!((job.array_job_id.non_zero(), job.het_job_id.non_zero()), (None, None));
        let finished = first::<Job>(slurm, rest, "job-finished");
        assert_eq!(finished.job_id, job.job_id);
        assert!(finished.job_state.is_finished() && finished.job_state.has(JobState::Cancelled));
        assert_eq!(finished.deadline(), None);
        assert!(!finished.exit_code.status.is_empty());
        let array = first::<Job>(slurm, rest, "job-pending-array");
        assert_eq!(
            (array.array_job_id.non_zero(), array.array_task_string.as_str()),
            (Some(u64::from(array.job_id)), "0-2")
        );
        assert!(array.job_state.is_pending() && array.hold && array.nodes.is_empty());
        assert!(list::<Job>(slurm, rest, "jobs").items.len() == 2);
    }
}

#[test]
fn no_jobs_and_no_change_of_jobs_differ() {
    for (slurm, rest) in RECORDED {
        let empty = read::<Records<Job>>(slurm, rest, "jobs-empty");
        assert!(empty.body.items.is_empty() && empty.body.last_update > 1_794_000_000);
        assert_eq!(empty.warnings[0].description, "Zero jobs to dump");
        if rest == "v0.0.41" {
            continue; // The recording used a plain number, which this version does not support.
        }
        let unchanged = read::<Records<Job>>(slurm, rest, "jobs-unchanged");
        assert!(unchanged.body.items.is_empty() && unchanged.body.last_update == 0);
        assert!(unchanged.warnings[0].description.starts_with("No job changes since update_time"));
    }
}

#[test]
fn job_states() {
    for (slurm, rest) in RECORDED {
        let states = list::<JobStateEntry>(slurm, rest, "jobs-state");
        assert!(!states.items.is_empty());
        assert!(states.iter().all(|entry| !entry.job_id.is_empty() && entry.state.unknown().is_empty()));
        assert!(list::<JobStateEntry>(slurm, rest, "jobs-state-empty").items.is_empty());
    }
}

#[test]
fn submitted_jobs() {
    for (slurm, rest) in RECORDED {
        let submitted = read::<SubmitAnswer>(slurm, rest, "job-submit");
        assert!(submitted.body.job_id > 0 && submitted.body.user_message.is_empty());
        assert!(submitted.warnings.is_empty() && submitted.errors.is_empty());
        let held = read::<SubmitAnswer>(slurm, rest, "job-submit-array");
        assert!(held.body.job_id > 0 && !held.warnings.is_empty());
        let refused = decode::<SubmitAnswer>(text(slurm, rest, "job-submit-seed").as_bytes()).unwrap();
        assert_eq!((refused.errors[0].code, refused.errors[0].source.as_str()), (9202, "#/job/time_limit/"));
    }
}

#[test]
fn statuses_of_cancelled_jobs() {
    for (slurm, rest) in RECORDED {
        let unknown = read::<StepStatuses>(slurm, rest, "job-cancel-unknown");
        assert!(unknown.errors.is_empty());
        // v0.0.41 does not report it.
        let codes: Vec<i64> = unknown.body.iter().map(|step| step.error.code).collect();
        assert_eq!(codes, if rest == "v0.0.41" { vec![] } else { vec![2017] });
        assert!(read::<StepStatuses>(slurm, rest, "job-cancel").body.is_empty());
    }
}

#[test]
fn pings() {
    for (slurm, rest) in RECORDED {
        let up = first::<Ping>(slurm, rest, "ping");
        assert_eq!((up.hostname.as_str(), up.responding, up.primary), ("lab", true, true), "{rest}");
        assert!(up.latency > 0);
        let down = first::<Ping>(slurm, rest, "down-ping");
        assert_eq!((down.responding, down.primary), (false, true), "{rest}");
    }
}

#[test]
fn statistics() {
    for (slurm, rest) in RECORDED {
        let diag = read::<DiagAnswer>(slurm, rest, "diag").body;
        assert!(diag.req_time > diag.req_time_start && seconds(diag.req_time_start) > 1_794_000_000);
        assert!(diag.server_thread_count > 0);
        let rpc = &diag.rpcs_by_message_type[0];
        assert_eq!((rpc.message_type.as_str(), rpc.count), ("MESSAGE_NODE_REGISTRATION_STATUS", 2));
        assert!(rpc.total_time >= rpc.average_time && rpc.average_time > 0);
        let user = diag.rpcs_by_user.iter().find(|rpc| rpc.user == "slurm").unwrap();
        assert_eq!(user.user_id, 401);
        assert!(user.count > 0);
    }
}

#[test]
fn partitions() {
    for (slurm, rest) in RECORDED {
        let all = first::<Partition>(slurm, rest, "partitions");
        assert_eq!((all.name.as_str(), all.nodes.as_str(), all.node_sets.as_str()), ("all", "w[0-1]", "ALL"));
        assert_eq!((all.total_nodes, all.total_cpus, all.priority_tier), (2, 8, 1));
        assert_eq!((all.max_time, all.default_time), (NoVal::Infinite, NoVal::Unset));
        assert_eq!((all.state, all.allowed_accounts), (vec!["UP".to_owned()], vec![]));
        assert_eq!(all.tres, "cpu=8,mem=4G,node=2,billing=8");
        assert_eq!(first::<Partition>(slurm, rest, "partition").name, "all");
    }
}

#[test]
fn reservations() {
    for (slurm, rest) in RECORDED {
        let made = first::<Reservation>(slurm, rest, "reservation");
        assert_eq!((made.name.as_str(), made.node_list.as_str(), made.node_count), ("golden-maint", "w0", 1));
        assert_eq!(made.flags, ["MAINT", "IGNORE_JOBS", "SPEC_NODES"]);
        assert_eq!((made.users, made.accounts), (vec!["slurm".to_owned()], vec![]));
        assert_eq!(seconds(made.end_time), seconds(made.start_time) + 3600);
        assert!(list::<Reservation>(slurm, rest, "reservations-empty").items.is_empty());
        if rest >= "v0.0.43" {
            // The response to a write has lists as lists, and a missing end as Slurm's "no value".
            let echo = first::<Reservation>(slurm, rest, "reservation-create");
            assert_eq!((echo.node_list.as_str(), echo.end_time), ("w0", None));
        }
    }
}

#[test]
fn configuration() {
    let conf = read::<ConfAnswer>("26.05", "v0.0.45", "conf").body;
    assert_eq!(conf.get("clustername").unwrap(), "lab");
    assert_eq!(conf.get("AccountingStoragePort").unwrap(), 6819);
    assert!(conf.get("Nonsense").is_none());
}

#[test]
fn step_managers_are_among_the_flags() {
    let has = |flags: &str| {
        let job: JobBrief = serde_json::from_str(&format!(r#"{{"job_id":1,"flags":{flags}}}"#)).unwrap();
        job.has_step_manager
    };
    assert!(has(r#"["JOB_WAS_RUNNING","STEPMGR_ENABLED"]"#));
    assert!(!has(r#"["JOB_WAS_RUNNING"]"#) && !has("[]") && !has("null"));
}

#[test]
fn accounting() {
    for (slurm, rest) in RECORDED {
        let accounts = list::<Account>(slurm, rest, "db-accounts");
        let science = accounts.iter().find(|account| account.name == "science").unwrap();
        assert_eq!((science.description.as_str(), science.organization.as_str()), ("sci", "org"));
        let users = list::<User>(slurm, rest, "db-users");
        let root = users.iter().find(|user| user.name == "root").unwrap();
        assert_eq!(root.administrator_level, ["Administrator"]);
        let cluster = first::<Cluster>(slurm, rest, "db-clusters");
        assert_eq!((cluster.name.as_str(), cluster.nodes.as_str(), cluster.controller.port), ("lab", "w[0-1]", 6817));
        assert!(cluster.rpc_version > 10_000);
        let job = first::<AccountedJob>(slurm, rest, "db-jobs");
        assert_eq!((job.name.as_str(), job.user.as_str(), job.account.as_str()), ("golden", "slurm", "science"));
        assert!(job.state.is_finished() && job.submitted <= job.started && job.started <= job.ended);
        assert_eq!((job.time_limit, job.allocated[0].kind.as_str(), job.allocated[0].count), (NoVal::Is(10), "cpu", 1));
        if slurm == "24.11" {
            // Later versions reject queries for unknown users.
            assert!(list::<AccountedJob>(slurm, rest, "db-jobs-none").items.is_empty());
        }
    }
}

/// The recorded answers of each release become the same series.
#[test]
fn series() {
    let at = Timestamp::from_second(1_794_781_400).unwrap();
    for (slurm, rest) in RECORDED {
        let nodes = list::<NodeMetrics>(slurm, rest, "nodes").items;
        let nodes = NodeHistory::default().of_nodes(nodes, Duration::ZERO).unwrap().text;
        let info = "slurm_node_info{node_name=\"w0\",state_base=\"IDLE\",state_is_drain=\"false\",\
            state_is_maintenance=\"false\",state_is_reserved=\"false\",address=\"127.0.0.1\"} 1\n";
        assert!(nodes.contains(info), "{slurm} {rest}: {nodes}");
        for (name, value) in [
            ("cpus_total", "4"),
            ("cpus_allocated", "0"),
            ("cpus_idle", "4"),
            ("cpus_effective", "4"),
            ("memory_total_bytes", "2147483648"),
            ("memory_allocated_bytes", "0"),
            ("memory_effective_bytes", "2147483648"),
        ] {
            assert!(nodes.contains(&format!("slurm_node_{name}{{node_name=\"w0\"}} {value}\n")), "{rest} {name}");
        }
        assert!(nodes.contains("slurm_node_memory_free_bytes{node_name=\"w0\"} 15"), "{slurm} {rest}: {nodes}");
        let job = first::<JobMetrics>(slurm, rest, "job");
        let id = job.job_id;
        let jobs = of_jobs(vec![job], at).unwrap().text;
        for part in [
            "job_state=\"RUNNING\",job_state_reason=\"None\",slurm_partition=\"all\",job_name=\"golden\",user_name=\"slurm\",user_id=\"401\"",
            &format!("standard_output=\"/tmp/slurm-{id}.out\",array_job_id=\"0\",submit_time=\"1794"),
            &format!("slurm_job_cpus{{job_id=\"{id}\"}} 1\n"),
            &format!("slurm_job_memory_bytes{{job_id=\"{id}\"}} 2147483648\n"),
            &format!("slurm_node_job{{job_id=\"{id}\",node_name=\"w"),
        ] {
            assert!(jobs.contains(part), "{slurm} {rest} {part}: {jobs}");
        }
        let task = of_jobs(vec![first::<JobMetrics>(slurm, rest, "job-array-task")], at).unwrap().text;
        assert!(task.contains(",array_task_id=\"1\"") || task.contains(",array_task_id=\"0\""), "{task}");
        let AccountedJobMetrics(past) = first(slurm, rest, "db-jobs");
        let past = of_jobs(vec![past], at).unwrap().text;
        assert!(past.contains("job_state=\"CANCELLED\"") && past.contains("finished_time=\"1794"), "{past}");
        assert!(past.contains("slurm_job_memory_bytes{job_id=\"1\"} 2147483648\n"), "{past}");
        let rpcs = of_rpcs(&read::<DiagAnswer>(slurm, rest, "diag").body, false).unwrap().text;
        assert!(
            rpcs.contains("slurm_controller_rpc_calls_total{message_type=\"MESSAGE_NODE_REGISTRATION_STATUS\"} 2\n")
        );
        assert!(rpcs.contains("slurm_controller_rpc_user_calls_total{user=\"slurm\",user_id=\"401\"} "));
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let table = [
        ("", ".", "EOF"),
        ("[]", ".", "invalid type"),
        (r#"{"nodes":[{"name":"a"},{"name":7}]}"#, "nodes[1].name", "invalid type"),
        (r#"{"nodes":[{"name":"a","state":[1]}]}"#, "nodes[0].state[0]", "invalid type"),
        (r#"{"nodes":[],"errors":7}"#, "errors", "invalid type"),
        (r#"{"nodes":[]} trailing"#, ".", "trailing"),
    ];
    for (json, path, reason) in table {
        let error = decode::<Records<Node>>(json.as_bytes()).unwrap_err();
        assert_eq!(error.path, path, "{json}");
        assert!(error.reason.contains(reason), "{json}: {error}");
    }
    // A missing list is not an empty list.
    let error = decode::<Records<Node>>(b"{}").unwrap().finish().unwrap_err();
    assert_eq!((error.path.as_str(), error.reason.as_str()), ("nodes", "missing in the response"));
    assert_eq!(decode::<SubmitAnswer>(br#"{"job_id":0}"#).unwrap().finish().unwrap_err().path, "job_id");
    assert_eq!(decode::<DiagAnswer>(b"{}").unwrap().finish().unwrap_err().path, "statistics");
    assert_eq!(decode::<ConfAnswer>(b"{}").unwrap().finish().unwrap_err().path, "slurm_conf");
}

#[test]
fn what_newer_servers_may_add_does_no_harm() {
    let json = r#"{"brand_new":{"deep":[1,2]},"nodes":[{"name":"a","brand_new":[{}],"state":["IDLE","BRAND_NEW"],
        "features":"x,y","comment":null,"cpus":{"set":true,"infinite":false,"number":8},"boot_time":7}],
        "last_update":7,"meta":null,"errors":null,"warnings":null}"#;
    let answer = decode::<Records<Node>>(json.as_bytes()).unwrap().finish().unwrap();
    let node = &answer.body.items[0];
    assert_eq!((node.features.len(), node.comment.as_str(), node.cpus, answer.body.last_update), (2, "", 8, 7));
    assert_eq!(node.state.to_string(), "IDLE+BRAND_NEW");
    assert_eq!((seconds(node.boot_time), answer.meta.version), (7, None));
}

#[test]
fn deep_nesting_is_an_error_not_a_crash() {
    for open in ["[", "{\"a\":"] {
        let json = format!("{{\"nodes\":{}", open.repeat(100_000));
        decode::<Records<Node>>(json.as_bytes()).unwrap_err();
        let json = format!("{{\"unknown\":{}", open.repeat(100_000));
        decode::<Records<Node>>(json.as_bytes()).unwrap_err();
    }
}
