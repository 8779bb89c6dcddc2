//! Replays the recorded scenario against the fake: with the same requests in the same order, status, content type,
//! fields and their types, errors and warnings must be the same as those of the real daemons.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use axum::http::{Method, Uri};
use serde_json::Value;
use slurm::token::{Claims, Key, mint};

use super::cluster::{Cluster, Settings, StateSave};
use super::dispatch::{Clock, Dispatcher, Request};
use super::job::JobSpec;
use super::node::Machine;
use super::release::{Release, RestVersion};
use super::reply::Content;
use super::reservation::Reservation;

/// Recorded responses in the order of recording. Those that a version lacks are skipped.
const SCENARIO: [&str; 94] = [
    "jobs-empty",
    "jobs-state-empty",
    "ping",
    "diag",
    "nodes",
    "node",
    "partitions",
    "partition",
    "partition-unknown",
    "reservations-empty",
    "reservation-unknown",
    "reservation-delete-unknown",
    "conf",
    "nodes-unchanged",
    "jobs-unchanged",
    "jobs-state-unchanged",
    "partitions-unchanged",
    "reservations-unchanged",
    "node-unchanged",
    "nodes-unchanged-uts",
    "nodes-unchanged-iso",
    "node-unknown",
    "node-update-unknown",
    "nodes-update-unknown",
    "node-delete-unknown",
    "job-unknown",
    "job-cancel-unknown",
    "job-bad-id",
    "bad-token",
    "bad-token-ping",
    "no-token",
    "garbage-body",
    "bad-field",
    "bad-state",
    "no-such-path",
    "job-submit-bad-partition",
    "job-submit-seed",
    "job-submit",
    "job-submit-array",
    "jobs",
    "job",
    "jobs-state",
    "node-busy",
    "job-pending-array",
    "job-cancel",
    "job-cancel-array",
    "job-finished",
    "job-cancel-finished",
    "node-drain",
    "node-drained",
    "node-undrain",
    "node-undrained",
    "node-update",
    "nodes-changed",
    "node-topology",
    "node-bad-topology",
    "nodes-update",
    "nodes-update-hostlist",
    "nodes-update-hostlist-in-list",
    "node-down",
    "node-downed",
    "node-resume",
    "node-resumed",
    "node-new",
    "node-new-again",
    "node-new-bad",
    "node-delete",
    "reservation-create",
    "reservations",
    "reservation",
    "reservation-update",
    "reservations-create",
    "reservation-create-bad",
    "node-delete-reserved",
    "reservation-delete",
    "reconfigure",
    "db-accounts",
    "db-account",
    "db-account-unknown",
    "db-users",
    "db-user",
    "db-user-unknown",
    "db-clusters",
    "db-cluster",
    "db-cluster-unknown",
    "db-jobs",
    "db-job-unknown",
    "db-ping",
    "job-signal",
    "job-requeue",
    "job-requeue-unknown",
    "job-requeued",
    "job-signal-bad",
    "node-features-cleared",
];

/// Recorded responses while slurmctld or slurmdbd is down.
const DOWN: [&str; 10] = [
    "down-ping",
    "down-diag",
    "down-nodes",
    "down-node",
    "down-node-update",
    "down-jobs",
    "down-job",
    "db-down-accounts",
    "db-down-jobs",
    "db-down-clusters",
];

/// Not supported by the fake: changes of accounting, requests for users that the machine does not know, and job arrays
/// (treated as a single job).
const LEFT_OUT: [&str; 8] = [
    "db-account-create",
    "db-user-create",
    "db-user-delete",
    "db-account-delete",
    "db-account-delete-unknown",
    "db-jobs-none",
    "job-array",
    "job-array-task",
];

const NOW: i64 = 1_800_000_000;

struct Replay {
    dispatcher: Dispatcher,
    folder: PathBuf,
    index: BTreeMap<String, Value>,
    /// Ids of recorded jobs and of the corresponding jobs here.
    jobs: BTreeMap<String, u32>,
    token: String,
    problems: Vec<String>,
}

impl Replay {
    fn new(release: Release, recorded: &str, version: RestVersion) -> Self {
        let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../slurm/tests/golden");
        let folder = golden.join(recorded).join(version.as_str());
        let index = fs::read_to_string(folder.join("index.json")).unwrap();
        let mut cluster = Cluster::new(
            Settings {
                release,
                name: "lab".into(),
                accounts: vec!["root".into(), "science".into()],
                topologies: vec!["default".into()],
                epilog: 20,
                ..Settings::default()
            },
            NOW,
        );
        let machine = |feature: &str| Machine { features: vec![feature.into()], ..Machine::default() };
        cluster.register("w0", machine("red"));
        cluster.register("w1", machine("blue"));
        let key = Key::new(&[7; 32]).unwrap();
        let claims = Claims::new("", "slurm", jiff::Timestamp::from_second(NOW).unwrap(), jiff::SignedDuration::MAX);
        let token = mint(&key, &claims).expose().to_owned();
        let dispatcher = Dispatcher::new(cluster, Clock::Manual, Some(key)).unwrap();
        let index = serde_json::from_str(&index).unwrap();
        Self { dispatcher, folder, index, jobs: BTreeMap::new(), token, problems: Vec::new() }
    }

    /// Does what the recording did with scontrol.
    fn prepare(&mut self, name: &str) {
        let cluster = &mut self.dispatcher.cluster;
        cluster.advance(2);
        match name {
            "node-delete" | "node-delete-reserved" => {
                let _ = cluster.new_nodes("NodeName=x9");
                let _ = cluster.new_nodes("NodeName=x8");
            }
            "reservations" if cluster.reservations().len() == 0 => {
                let golden = Reservation {
                    name: "golden-maint".into(),
                    nodes: ["w0".into()].into(),
                    users: vec!["slurm".into()],
                    flags: vec!["MAINT".into(), "IGNORE_JOBS".into()],
                    starts_at: NOW + 90_000,
                    ends_at: NOW + 93_600,
                    ..Reservation::default()
                };
                cluster.reserve(golden).unwrap();
            }
            "job-signal" => {
                let id = cluster.submit(JobSpec { name: "signal".into(), ..JobSpec::default() }).unwrap();
                cluster.advance(1);
                let recorded = self.index["job-signal"]["path"].as_str().unwrap();
                let recorded = recorded.split(['/', '?']).nth(4).unwrap();
                self.jobs.insert(recorded.to_owned(), id);
            }
            "down-ping" => cluster.stop(),
            "db-down-accounts" => {
                cluster.start(StateSave::Kept);
                cluster.set_accounting_up(false);
            }
            _ => {}
        }
    }

    fn request(&self, name: &str, recorded: &Value) -> Request {
        let mut path = recorded["path"].as_str().unwrap().to_owned();
        for (old, new) in &self.jobs {
            for end in ["", "/requeue", "?signal=SIGUSR1", "?signal=NONSENSE"] {
                if path.ends_with(&format!("/job/{old}{end}")) {
                    path = path.replace(&format!("/job/{old}{end}"), &format!("/job/{new}{end}"));
                    break;
                }
            }
        }
        let uri: Uri = path.parse().unwrap();
        let mut query = axum::extract::Query::<BTreeMap<String, String>>::try_from_uri(&uri).unwrap().0;
        let now = self.dispatcher.cluster.now();
        if let Some(since) = query.get_mut("update_time") {
            *since = match name {
                "nodes-changed" => (now - 3).to_string(),
                "nodes-unchanged-uts" => format!("uts{}", now + 5),
                "nodes-unchanged-iso" => "2026-11-15T22:21:37".to_owned(),
                _ => (now + 5).to_string(),
            };
        }
        let body = match (&recorded["request"], &recorded["request_text"]) {
            (Value::Null, Value::String(text)) => text.clone(),
            (Value::Null, _) => String::new(),
            (body, _) => body.to_string().replace("17947", "18947"),
        };
        Request {
            method: recorded["method"].as_str().unwrap().parse::<Method>().unwrap(),
            path: uri.path().to_owned(),
            query,
            token: match recorded["token"].as_str() {
                Some("none") => None,
                Some(_) => Some("bad".to_owned()),
                None => Some(self.token.clone()),
            },
            body: body.into(),
        }
    }

    fn replay(&mut self, name: &str) {
        self.prepare(name);
        let Some(recorded) = self.index.get(name).cloned() else { return };
        let request = self.request(name, &recorded);
        let reply = self.dispatcher.answer(&request);
        let mut problems = Vec::new();
        if u64::from(reply.status.as_u16()) != recorded["status"].as_u64().unwrap() {
            problems.push(format!("status {} instead of {}", reply.status, recorded["status"]));
        }
        match reply.content {
            Content::Json(text) if recorded["content_type"] == "application/json" => {
                let file = fs::read_to_string(self.folder.join(format!("{name}.json"))).unwrap();
                let expected: Value = serde_json::from_str(&file).unwrap();
                let got: Value = serde_json::from_slice(&text).unwrap();
                if name.starts_with("job-submit") && got["job_id"].is_u64() {
                    let id = u32::try_from(got["job_id"].as_u64().unwrap()).unwrap();
                    self.jobs.insert(expected["job_id"].to_string(), id);
                }
                compare("", &expected, &got, &mut problems);
                problems.extend(diagnostics(&expected, &got));
            }
            Content::Text(text) => {
                if recorded["text"] != text || recorded["content_type"] != "text/plain" {
                    problems.push(format!("text {text:?} instead of {}", recorded["text"]));
                }
            }
            Content::None if recorded["content_type"].is_null() => {}
            other => problems.push(format!("{other:?} instead of {}", recorded["content_type"])),
        }
        self.problems.extend(problems.into_iter().map(|problem| format!("{name}: {problem}")));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Compares keys and types at each path. Only the first entries of lists are compared.
fn compare(path: &str, expected: &Value, got: &Value, problems: &mut Vec<String>) {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            for key in expected.keys().filter(|key| !got.contains_key(*key)) {
                problems.push(format!("{path}/{key} is missing"));
            }
            for (key, value) in got {
                match expected.get(key) {
                    Some(expected) => compare(&format!("{path}/{key}"), expected, value, problems),
                    None => problems.push(format!("{path}/{key} should not be there")),
                }
            }
        }
        (Value::Array(expected), Value::Array(got)) => {
            if let (Some(expected), Some(got)) = (expected.first(), got.first()) {
                compare(&format!("{path}/0"), expected, got, problems);
            }
        }
        _ if kind(expected) == kind(got) => {}
        _ => problems.push(format!("{path} is {} instead of {}", kind(got), kind(expected))),
    }
}

/// Errors and warnings must be identical, except for times and memory addresses.
fn diagnostics(expected: &Value, got: &Value) -> Vec<String> {
    let words = |value: &Value| {
        let mut text = value.to_string();
        while let Some(start) = text.find("(0x") {
            let end = text[start..].find(')').map_or(text.len(), |end| start + end + 1);
            text.replace_range(start..end, "()");
        }
        for before in ["update_time[", "Parsing of "] {
            if let Some(start) = text.find(before) {
                let start = start + before.len();
                let time = text[start..].find(|c: char| !c.is_ascii_digit() && !"[]=-:T".contains(c));
                text.replace_range(start..time.map_or(text.len(), |end| start + end), "");
            }
        }
        text
    };
    let up = |value: &Value| [value["pings"][0]["pinged"].clone(), value["pings"][0]["responding"].clone()];
    if up(expected) != up(got) {
        return vec![format!("{} instead of {}", got["pings"], expected["pings"])];
    }
    let keys = ["errors", "warnings", "status"].into_iter();
    let differ = keys.filter(|key| words(&expected[*key]) != words(&got[*key]));
    differ
        .filter(|key| *key != "status" || got[key].as_array().is_none_or(Vec::is_empty))
        .map(|key| format!("{key} {} instead of {}", got[key], expected[key]))
        .collect()
}

fn differences(release: Release, recorded: &str, version: RestVersion) -> Vec<String> {
    let mut replay = Replay::new(release, recorded, version);
    let replayed: Vec<&str> = SCENARIO.into_iter().chain(DOWN).collect();
    for name in
        replay.index.keys().filter(|name| !replayed.contains(&name.as_str()) && !LEFT_OUT.contains(&name.as_str()))
    {
        replay.problems.push(format!("{name} is recorded, but is not in the scenario"));
    }
    for name in replayed {
        replay.replay(name);
    }
    replay.problems.iter().map(|problem| format!("{release} {version} {problem}\n")).collect()
}

#[test]
fn answers_as_24_11_did() {
    let problems = [RestVersion::V41, RestVersion::V42].map(|version| differences(Release::V24_11, "24.11", version));
    assert!(problems.concat().is_empty(), "{}", problems.concat().concat());
}

#[test]
fn answers_as_26_05_did() {
    use RestVersion::{V42, V43, V44, V45};
    let problems = [V42, V43, V44, V45].map(|version| differences(Release::V26_05, "26.05", version));
    assert!(problems.concat().is_empty(), "{}", problems.concat().concat());
}

#[test]
fn offers_the_recorded_paths_and_no_others() {
    for (release, recorded) in [(Release::V24_11, "24.11"), (Release::V26_05, "26.05")] {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../slurm/tests/golden")
            .join(recorded)
            .join("openapi-paths.json");
        let document: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for (path, method) in super::routes::offered(release, true) {
            let methods = document["paths"][&path].as_array().unwrap_or_else(|| panic!("{recorded} has no {path}"));
            assert!(methods.contains(&Value::String(method.clone())), "{recorded} has no {method} {path}");
        }
        // What is not offered per REST version, in both directions, limited to what the fake knows.
        let ours: Vec<(String, String)> = super::routes::offered(release, true).collect();
        for name in ["conf", "new/node/", "reservation", "jobs/requeue", "job/{job_id}/requeue"] {
            for version in release.rest_versions() {
                let path = format!("/slurm/{version}/{name}");
                let recorded = document["paths"].get(&path).is_some();
                assert_eq!(ours.iter().any(|(ours, _)| *ours == path), recorded, "{path} on {release}");
            }
        }
    }
}
