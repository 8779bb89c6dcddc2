//! The client against recorded responses of real servers in every version.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod client_support;

use client_support::{HttpResponse, SECRET, Server, golden};
use slurm::{
    client::{Call, Client, Cursor, Error, JobFilter, Poll, code},
    version::SlurmVersion,
    wire::{JobId, JobSpec, NodeUpdate, ReservationSpec, Signal},
};

const RECORDED: [(&str, &str); 6] = [
    ("24.11", "v0.0.41"),
    ("24.11", "v0.0.42"),
    ("26.05", "v0.0.42"),
    ("26.05", "v0.0.43"),
    ("26.05", "v0.0.44"),
    ("26.05", "v0.0.45"),
];

/// A client for each recording.
async fn each() -> Vec<(&'static str, &'static str, Server, Client)> {
    let mut all = Vec::new();
    for (slurm, rest) in RECORDED {
        let server = Server::replaying(slurm, rest).await;
        let client = server.client_of(rest).await;
        all.push((slurm, rest, server, client));
    }
    all
}

/// The id of the job that was recorded under this name.
fn job_of(slurm: &str, rest: &str, name: &str) -> u32 {
    let job: serde_json::Value = serde_json::from_str(&golden(&format!("{slurm}/{rest}/{name}.json"))).unwrap();
    let id = job.pointer("/jobs/0/job_id").and_then(serde_json::Value::as_u64);
    u32::try_from(id.unwrap()).unwrap()
}

#[tokio::test]
async fn the_newest_common_version_is_taken() {
    for (slurm, rest) in [("24.11", "v0.0.42"), ("26.05", "v0.0.45")] {
        let server = Server::replaying(slurm, rest).await;
        let client = server.client().await;
        assert_eq!(client.rest_version().as_str(), rest);
        assert_eq!(client.slurm_version(), format!("{slurm}.5").parse::<SlurmVersion>().ok());
        assert!(client.offers(Call::Accounts));
        let again = client.renegotiate().await.unwrap();
        assert_eq!(again.rest_version(), client.rest_version());
    }
    let old = Server::replaying("24.11", "v0.0.42").await;
    let error = old.builder().rest_version("v0.0.45".parse().unwrap()).connect().await.unwrap_err();
    assert!(matches!(&error, Error::NoCommonVersion { offered } if offered == &["v0.0.40", "v0.0.41", "v0.0.42"]));
}

#[tokio::test]
async fn reads() {
    for (slurm, rest, _server, client) in each().await {
        assert!(client.ping().await.unwrap()[0].responding);
        assert!(client.diag().await.unwrap().server_thread_count > 0);
        assert_eq!(client.nodes().await.unwrap().items.len(), 2);
        let node = client.node("w0").await.unwrap();
        assert_eq!(node.name, "w0");
        assert_eq!(node.meta.version.unwrap().to_string(), format!("{slurm}.5"));
        assert_eq!(client.partitions().await.unwrap().items.len(), 1);
        assert_eq!(client.partition("all").await.unwrap().name, "all");
        assert_eq!(client.reservation("golden-maint").await.unwrap().node_list, "w0");
        client.reservations().await.unwrap();
        let id = job_of(slurm, rest, "job");
        assert_eq!(client.job(id).await.unwrap().job_id, id);
        client.jobs().await.unwrap();
        client.job_states().await.unwrap();
        assert!(!client.accounts().await.unwrap().items.is_empty());
        let users = client.users().await.unwrap();
        assert_eq!(users.iter().find(|user| user.name == "slurm").unwrap().default.account, "science");
        assert_eq!(client.clusters().await.unwrap().items[0].name, "lab");
        assert!(!client.accounted_jobs(&JobFilter::default()).await.unwrap().items.is_empty());
    }
}

#[tokio::test]
async fn tasks_of_an_array() {
    for (slurm, rest) in RECORDED {
        let running = golden(&format!("{slurm}/{rest}/job-array-task.json"));
        let waiting = golden(&format!("{slurm}/{rest}/job-pending-array.json"));
        let server = Server::replaying_with(slurm, move |request| {
            if request.path.contains("/77") { HttpResponse::ok(&waiting) } else { HttpResponse::ok(&running) }
        })
        .await;
        let client = server.client_of(rest).await;
        let array = job_of(slurm, rest, "job-array");
        for task in [0, 1] {
            let job = client.job(JobId { id: array, task: Some(task) }).await.unwrap();
            assert_eq!(job.array_task_id.number(), Some(task.into()));
            assert_eq!(job.array_job_id.number(), Some(array.into()));
            assert!(job.warnings[0].description.contains("Showing all jobs in array instead"));
        }
        assert!(client.job(JobId { id: array, task: Some(2) }).await.unwrap_err().is_not_found());
        assert_eq!(client.job(array).await.unwrap().job_id, array);
        assert_eq!(client.job("77_2".parse::<JobId>().unwrap()).await.unwrap().array_task_string, "0-2");
        assert!(server.requests().last().unwrap().path.ends_with("/job/77_2"));
    }
}

#[tokio::test]
async fn missing_objects_are_not_found_in_every_version() {
    for (slurm, rest, _server, client) in each().await {
        let drain = NodeUpdate::new().drain("x");
        let together = NodeUpdate::new().comment("c");
        let mut errors = vec![
            client.node("nope").await.unwrap_err(),
            client.update_node("nope", &drain).await.unwrap_err(),
            client.update_nodes(["nope", "w1"], &together).await.unwrap_err(),
            client.delete_node("nope").await.unwrap_err(),
            client.job(99_999).await.unwrap_err(),
            client.cancel_job(99_999).await.unwrap_err(),
            client.partition("nope").await.unwrap_err(),
            client.reservation("nope").await.unwrap_err(),
        ];
        if rest >= "v0.0.43" {
            errors.push(client.delete_reservation("nope").await.unwrap_err());
        }
        if rest == "v0.0.45" {
            errors.push(client.requeue_job(99_999).await.unwrap_err());
        }
        for error in errors {
            assert!(error.is_not_found(), "{slurm} {rest}: {error:?}");
            assert!(error.to_string().contains("nope") || error.to_string().contains("99999"), "{error}");
        }
        // Names that would lead to another path do not exist.
        for name in ["", ".", ".."] {
            assert!(client.delete_node(name).await.unwrap_err().is_not_found(), "{name}");
        }
    }
}

#[tokio::test]
async fn writes() {
    for (slurm, rest, _server, client) in each().await {
        client.update_node("w1", &NodeUpdate::new().drain("slurm-operator: golden")).await.unwrap();
        client.update_node("w1", &NodeUpdate::new().undrain()).await.unwrap();
        client.update_node("w1", &NodeUpdate::new().down("slurm-operator: down")).await.unwrap();
        client.update_node("w1", &NodeUpdate::new().resume()).await.unwrap();
        let cleared = NodeUpdate::new().features(Vec::<String>::new());
        assert_eq!(client.update_node("w1", &cleared).await.unwrap().warnings.len(), 2, "warnings are kept");
        client.update_nodes(["w0", "w1"], &NodeUpdate::new().comment("both")).await.unwrap();
        client.update_nodes(["w[0-1]"], &NodeUpdate::new().comment("both")).await.unwrap();
        client.delete_node("x9").await.unwrap();
        client.reconfigure().await.unwrap();
        let id = job_of(slurm, rest, "job-requeued");
        client.signal_job(id, Signal::Usr1).await.unwrap();
        client.cancel_job(job_of(slurm, rest, "job-pending-array")).await.unwrap();
    }
}

#[tokio::test]
async fn submitted_jobs() {
    for (slurm, rest) in RECORDED {
        let said = golden(&format!("{slurm}/{rest}/job-submit.json"));
        let server = Server::replaying_with(slurm, move |_| HttpResponse::ok(&said)).await;
        let client = server.client_of(rest).await;
        let job = JobSpec::new("golden", "#!/bin/bash\nsleep 60").tasks(1, 1).time_limit(10).nodes("1");
        assert!(client.submit(&job).await.unwrap().job_id > 0);
        let sent: serde_json::Value = serde_json::from_str(&server.requests()[0].body).unwrap();
        let expected = serde_json::json!({"job": {
            "name": "golden", "script": "#!/bin/bash\nsleep 60", "tasks": 1, "cpus_per_task": 1, "nodes": "1",
            "time_limit": {"set": true, "infinite": false, "number": 10},
            "current_working_directory": "/tmp", "environment": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        }});
        assert_eq!(sent, expected);
    }
}

#[tokio::test]
async fn refusals_contain_slurms_code_and_text() {
    for (slurm, rest) in RECORDED {
        let refused = golden(&format!("{slurm}/{rest}/job-submit-bad-partition.json"));
        let over = golden(&format!("{slurm}/{rest}/job-cancel-finished.json"));
        let job = golden(&format!("{slurm}/{rest}/job-finished.json"));
        let server = Server::replaying_with(slurm, move |request| match request.method.as_str() {
            "POST" => HttpResponse::Http(422, refused.clone()),
            "DELETE" => HttpResponse::ok(&over),
            _ => HttpResponse::ok(&job),
        })
        .await;
        let client = server.client_of(rest).await;
        let error = client.submit(&JobSpec::new("x", "#!/bin/sh").partition("nope")).await.unwrap_err();
        assert_eq!((error.class(), error.code()), ("refused", Some(code::INVALID_PARTITION)), "{slurm} {rest}");
        assert!(error.to_string().contains("Invalid partition name specified"), "{error}");
        // v0.0.41 does not report jobs that have already ended.
        let cancelled = client.cancel_job(job_of(slurm, rest, "job-finished")).await;
        let expected = (rest != "v0.0.41").then_some(code::ALREADY_DONE);
        assert_eq!(cancelled.err().and_then(|error| error.code()), expected, "{slurm} {rest}");
    }
}

#[tokio::test]
async fn calls_that_a_version_lacks_are_not_sent() {
    for (slurm, rest, server, client) in each().await {
        let reservation = ReservationSpec::new("golden-maint");
        let mut absent = Vec::new();
        if slurm == "24.11" {
            // 26.05 also offers this call in older versions.
            absent.push(client.delete_reservation("golden-maint").await.err());
        }
        if rest < "v0.0.43" {
            absent.push(client.update_node("w0", &NodeUpdate::new().topology("a:b")).await.err());
            absent.push(client.update_nodes(["w0"], &NodeUpdate::new().topology("a:b")).await.err());
            absent.push(client.write_reservation(&reservation).await.err());
        }
        if rest < "v0.0.44" {
            absent.push(client.new_node("NodeName=x9").await.err());
        }
        if rest < "v0.0.45" {
            absent.push(client.conf().await.err());
            absent.push(client.requeue_job(1).await.err());
        } else {
            client.conf().await.unwrap();
        }
        for error in absent {
            let error = error.unwrap();
            assert!(error.is_not_offered(), "{rest}: {error:?}");
            assert!(error.to_string().contains(rest), "{error}");
        }
        assert!(server.requests().iter().all(|request| request.path.ends_with("/conf")), "the calls must not be sent");
    }
}

#[tokio::test]
async fn reservations_and_new_nodes_where_there_are_any() {
    for (_, rest, _server, client) in each().await {
        if rest >= "v0.0.43" {
            client.delete_reservation("golden-maint").await.unwrap();
            client.update_node("w1", &NodeUpdate::new().topology("default:x")).await.unwrap();
            let error = client.update_node("w1", &NodeUpdate::new().topology("nope:nope")).await.unwrap_err();
            assert_eq!((error.class(), error.code()), ("refused", Some(2178)));
            // An unknown node in a reservation does not mean that the reservation is missing.
            let bad = ReservationSpec::new("bad").nodes(["nope"]);
            let error = client.write_reservation(&bad).await;
            assert!(!error.is_err_and(|error| error.is_not_found()));
        }
        if rest >= "v0.0.44" {
            client.new_node("NodeName=x9 State=CLOUD CPUs=2 RealMemory=100").await.unwrap();
            let error = client.new_node("Nonsense=x").await.unwrap_err();
            assert_eq!((error.class(), error.code()), ("refused", Some(-1)));
        }
    }
}

/// Responses to requests with an invalid token, or without one.
#[tokio::test]
async fn unauthorised() {
    for (slurm, rest) in RECORDED {
        let body = golden(&format!("{slurm}/{rest}/bad-token.json"));
        for response in [HttpResponse::Http(511, body), HttpResponse::Http(401, "Authentication failure".to_owned())] {
            let server = Server::offering(move |_| response.clone()).await;
            let error = server.client().await.nodes().await.unwrap_err();
            assert_eq!(error.class(), "unauthorised", "{error:?}");
            assert_eq!(server.requests().len(), 1, "the same token must not be retried");
            assert!(!format!("{error} {error:?}").contains(SECRET));
        }
    }
}

#[tokio::test]
async fn daemons_that_are_down() {
    for (slurm, rest) in RECORDED {
        let down = |name: &str| golden(&format!("{slurm}/{rest}/down-{name}.json"));
        let (nodes, node, write, database) =
            (down("nodes"), down("node"), down("node-update"), golden(&format!("{slurm}/{rest}/db-down-jobs.json")));
        let server = Server::offering(move |request| {
            let body = match (request.method.as_str(), request.path.as_str()) {
                ("POST", _) => &write,
                (_, path) if path.starts_with("/slurmdb") => &database,
                (_, path) if path.ends_with("/nodes/") => &nodes,
                _ => &node,
            };
            HttpResponse::Http(502, body.clone())
        })
        .await;
        let client = server.client().await;
        let change = NodeUpdate::new().comment("x");
        let errors = [
            (client.nodes().await.unwrap_err(), code::CONTROLLER_UNREACHABLE),
            (client.node("w0").await.unwrap_err(), code::CONTROLLER_UNREACHABLE),
            (client.update_node("w0", &change).await.unwrap_err(), code::CONTROLLER_UNREACHABLE),
            (client.accounted_jobs(&JobFilter::default()).await.unwrap_err(), code::DATABASE_UNREACHABLE),
        ];
        for (error, code) in errors {
            assert_eq!(
                (error.class(), error.code(), error.is_outage()),
                ("daemon_down", Some(code), true),
                "{error:?}"
            );
        }
    }
}

/// `update_time` with all its quirks.
#[tokio::test]
async fn unchanged_lists() {
    for (slurm, rest) in RECORDED {
        let of = |name: &str| golden(&format!("{slurm}/{rest}/{name}.json"));
        let (nodes, jobs) = (of("nodes"), of("jobs-empty"));
        // The recording asked v0.0.41 in a form that it does not support; the response of the next version fits.
        let no_news = golden(&format!("{slurm}/{}/jobs-unchanged.json", rest.replace("41", "42")));
        let server = Server::replaying_with(slurm, move |request| match request.path.split_once('?') {
            None if request.path.ends_with("/nodes/") => HttpResponse::ok(&nodes),
            None => HttpResponse::ok(&jobs),
            Some((path, _)) if path.ends_with("/nodes/") => HttpResponse::Http(304, String::new()),
            Some(_) => HttpResponse::ok(&no_news),
        })
        .await;
        let client = server.client_of(rest).await;
        let (mut nodes, mut jobs) = (Cursor::default(), Cursor::default());
        assert!(
            matches!(client.nodes_since(&mut nodes).await.unwrap(), Poll::Changed(answer) if answer.items.len() == 2)
        );
        assert_eq!(client.nodes_since(&mut nodes).await.unwrap(), Poll::Unchanged);
        assert_eq!(client.nodes_since(&mut nodes).await.unwrap(), Poll::Unchanged);
        // An empty list is a change; "unchanged" is not an empty list.
        assert!(
            matches!(client.jobs_since(&mut jobs).await.unwrap(), Poll::Changed(answer) if answer.items.is_empty())
        );
        assert_eq!(client.jobs_since(&mut jobs).await.unwrap(), Poll::Unchanged);
        nodes.reset();
        assert!(matches!(client.nodes_since(&mut nodes).await.unwrap(), Poll::Changed(_)));
        let asked: Vec<String> = server
            .requests()
            .into_iter()
            .filter_map(|request| Some(request.path.split_once('?')?.1.to_owned()))
            .collect();
        assert_eq!(asked.len(), 3);
        assert!(asked.iter().all(|query| query.starts_with("update_time=uts179")), "{asked:?}");
    }
}

#[tokio::test]
async fn before_26_05_a_changed_list_of_nodes_fails_once() {
    let failure = golden("24.11/v0.0.42/nodes-changed.json");
    let nodes = golden("24.11/v0.0.42/nodes.json");
    let server = Server::replaying_with("24.11", move |request| {
        if request.path.contains('?') { HttpResponse::Http(500, failure.clone()) } else { HttpResponse::ok(&nodes) }
    })
    .await;
    let client = server.client().await;
    let mut cursor = Cursor::default();
    for _ in 0..3 {
        assert!(matches!(client.nodes_since(&mut cursor).await.unwrap(), Poll::Changed(_)));
    }
    // One at first, then each time the failing one and the one without `update_time`.
    assert_eq!(server.requests().len(), 5);
    // 26.05 simply responds.
    let nodes = golden("26.05/v0.0.45/nodes-changed.json");
    let server = Server::replaying_with("26.05", move |_| HttpResponse::ok(&nodes)).await;
    let (client, mut cursor) = (server.client().await, Cursor::default());
    for _ in 0..3 {
        assert!(matches!(client.nodes_since(&mut cursor).await.unwrap(), Poll::Changed(_)));
    }
    assert_eq!(server.requests().len(), 3);
}
