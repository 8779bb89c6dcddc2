//! Responses about jobs.

use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::dispatch::CallContext;
use super::job::{Job, JobSpec};
use super::refusal::Refusal;
use super::release::RestVersion;
use super::render::{job_state, job_text, number, unset};
use super::reply::{Diagnostics, Reply};
use super::request;
use super::schedule::KILL;

/// A parameter is not a number.
const NO_NUMBER: Refusal = Refusal { number: 9000, text: "Query empty or not RFC7320 compliant" };

impl CallContext<'_> {
    fn job_list<'a>(&self, jobs: impl Iterator<Item = &'a Job>, read_at: i64, diagnostics: Diagnostics) -> Reply {
        let mut text = Vec::new();
        for job in jobs {
            text.extend_from_slice(if text.is_empty() { b"\n    " } else { b",\n    " });
            text.extend_from_slice(&job_text(self.records, self.cluster, job));
        }
        let more = Map::from_iter([
            ("last_backfill".to_owned(), number(if read_at == 0 { 0 } else { self.cluster.started_at })),
            ("last_update".to_owned(), number(read_at)),
        ]);
        self.list("jobs", &text, more, diagnostics)
    }

    pub(super) fn jobs(&self) -> Reply {
        let now = self.cluster.now();
        if let Some(bad) = self.bad_update_time("op_handler_jobs") {
            return bad;
        }
        if self.unchanged_since(self.cluster.changed.jobs) {
            // No 304 here: an empty list and a warning.
            let since =
                self.request.query.get("update_time").map(|since| since.trim_start_matches("uts")).unwrap_or_default();
            let time = since.parse().ok().and_then(|second| Timestamp::from_second(second).ok()).unwrap_or_default();
            let time = time.to_string();
            let text = format!("No job changes since update_time[{since}]={}", time.trim_end_matches('Z'));
            return self.job_list(std::iter::empty(), 0, Diagnostics::warning(&text, "op_handler_jobs"));
        }
        if self.blank || self.cluster.jobs().len() == 0 {
            return self.job_list(std::iter::empty(), now, Diagnostics::warning("Zero jobs to dump", ""));
        }
        self.job_list(self.cluster.jobs(), now, Diagnostics::default())
    }

    pub(super) fn job_states(&self) -> Reply {
        let diagnostics = if self.request.query.contains_key("update_time") {
            let text = "Ignoring unknown field \"update_time\" of type string in DATA_PARSER_OPENAPI_JOB_STATE_QUERY";
            Diagnostics::warning(text, "#/update_time/")
        } else {
            Diagnostics::default()
        };
        let jobs = self.cluster.jobs().filter(|_| !self.blank);
        let jobs: Vec<Value> = jobs.map(|job| json!({"job_id": job.id.to_string(), "state": job_state(job)})).collect();
        self.respond(json!({ "jobs": jobs }), diagnostics)
    }

    fn job_id(&self) -> Result<u32, Refusal> {
        self.call.parameter.parse().map_err(|_| NO_NUMBER)
    }

    pub(super) fn job(&self) -> Result<Reply, Refusal> {
        let Ok(id) = self.job_id() else { return Ok(self.bad_job_id()) };
        let job = self.cluster.job(id).ok_or(Refusal::JOB_ID)?;
        Ok(self.job_list(std::iter::once(job), self.cluster.now(), Diagnostics::default()))
    }

    fn bad_job_id(&self) -> Reply {
        let Refusal { number, text } = NO_NUMBER;
        let diagnostics =
            Diagnostics::error(number, text, "Rejecting request. Failure parsing parameters", "op_handler_job");
        Reply::json(StatusCode::UNPROCESSABLE_ENTITY, json!({}), self.meta(), diagnostics)
    }

    pub(super) fn cancel(&mut self) -> Reply {
        let Ok(id) = self.job_id() else { return self.bad_job_id() };
        let signal = self.request.query.get("signal").map(|name| signal_number(name));
        let known = self.cluster.job(id).is_some();
        let outcome = self.cluster.signal(id, signal.flatten().unwrap_or(KILL));
        let diagnostics = match signal {
            Some(None) => Diagnostics::error(0, "No error", "Unknown signal (null)", "#/signal/"),
            _ => Diagnostics::default(),
        };
        let status = match outcome {
            Ok(()) => json!([]),
            Err(Refusal { number: code, text }) => json!([{
                "error": {"string": text, "code": code, "message": text},
                "step_id": id.to_string(),
                "job_id": if known { number(i64::from(id)) } else { unset() },
                "federation": {"sibling": ""},
            }]),
        };
        // v0.0.41 does not report the result.
        let is_reported = self.call.version > RestVersion::V41;
        self.respond(if is_reported { json!({ "status": status }) } else { json!({}) }, diagnostics)
    }

    pub(super) fn requeue(&mut self) -> Result<Reply, Refusal> {
        let Ok(id) = self.job_id() else { return Ok(self.bad_job_id()) };
        self.cluster.requeue(id)?;
        Ok(self.respond(json!({"status": []}), Diagnostics::default()))
    }

    pub(super) fn requeue_many(&mut self) -> Result<Reply, Refusal> {
        let Some(fields) = request::object(&self.request.body) else { return Ok(self.bad_body()) };
        let ids: Vec<u32> = match fields.get("jobs") {
            Some(Value::Array(jobs)) => jobs.iter().filter_map(job_id_of).collect(),
            _ => Vec::new(),
        };
        if ids.is_empty() {
            return Err(Refusal::JOB_ID);
        }
        for id in ids {
            self.cluster.requeue(id)?;
        }
        Ok(self.respond(json!({"status": []}), Diagnostics::default()))
    }

    pub(super) fn submit(&mut self) -> Result<Reply, Refusal> {
        let Some(body) = request::object(&self.request.body) else { return Ok(self.bad_body()) };
        let job = body.get("job").and_then(Value::as_object).cloned().unwrap_or_default();
        if let Some(Value::String(text)) = job.get("time_limit").filter(|limit| request::number(limit).is_none()) {
            let text = format!("Expected integer but got \"{text}\"");
            let diagnostics = Diagnostics::error(9202, "Unable to convert Data type", &text, "#/job/time_limit/");
            return Ok(Reply::json(StatusCode::INTERNAL_SERVER_ERROR, json!({}), self.meta(), diagnostics));
        }
        let script = job.get("script").or(body.get("script")).and_then(request::text).unwrap_or_default();
        let spec = job_spec(&job, script, &self.user)?;
        let waits = spec.hold;
        let id = self.cluster.submit(spec)?;
        let held = "Job is in held state, pending scheduler release";
        let diagnostics = if waits {
            let source = "slurm_submit_batch_job()";
            let first = format!("Job submission resulted in non-zero return code: {held}");
            Diagnostics::warning(&first, source).and_warn(held, source)
        } else {
            Diagnostics::default()
        };
        let message = "";
        let answer = if self.call.version == RestVersion::V41 {
            let result = json!({
                "job_id": id, "step_id": "batch", "error_code": 0, "error": "No error", "job_submit_user_msg": message,
            });
            json!({"result": result, "job_id": id, "step_id": "batch", "job_submit_user_msg": message})
        } else {
            json!({"job_id": id, "step_id": "batch", "job_submit_user_msg": message})
        };
        Ok(self.respond(answer, diagnostics))
    }
}

fn job_spec(job: &Map<String, Value>, script: String, user: &str) -> Result<JobSpec, Refusal> {
    let plain = JobSpec::default();
    let text = |key: &str| job.get(key).and_then(request::text);
    let count = |key: &str| job.get(key).and_then(request::number).and_then(|count| u32::try_from(count).ok());
    let required = job.get("required_nodes").map_or(Ok(Vec::new()), request::nodes)?;
    // "2" and "2-4" both mean at least two.
    let range = text("nodes").and_then(|range| range.split('-').next().and_then(|least| least.parse().ok()));
    let nodes = range.or_else(|| count("minimum_nodes")).unwrap_or(1).max(u32::try_from(required.len()).unwrap_or(1));
    let cpus = count("tasks").unwrap_or(1).max(1) * count("cpus_per_task").unwrap_or(1).max(1);
    Ok(JobSpec {
        name: text("name").unwrap_or(plain.name),
        user: user.to_owned(),
        account: text("account").unwrap_or_default(),
        partition: text("partition").unwrap_or_default(),
        nodes,
        required,
        cpus: cpus.div_ceil(nodes.max(1)),
        time_limit: count("time_limit"),
        runs_for: runs_for(&script),
        requeue: job.get("requeue").and_then(Value::as_bool).unwrap_or(true),
        hold: job.get("hold").and_then(Value::as_bool).unwrap_or(false),
        comment: text("comment").unwrap_or_default(),
        directory: text("current_working_directory").unwrap_or(plain.directory),
        script,
    })
}

/// How long the script sleeps; other commands take no time.
fn runs_for(script: &str) -> Option<u32> {
    let words: Vec<&str> = script.split(|c: char| c.is_whitespace() || c == ';').collect();
    let sleeps = words.iter().zip(words.iter().skip(1)).filter(|(word, _)| **word == "sleep");
    sleeps.map(|(_, time)| time.parse::<u32>().ok()).sum()
}

fn job_id_of(job: &Value) -> Option<u32> {
    let id = match job {
        Value::Object(fields) => fields.get("job_id").and_then(request::number)?,
        other => request::number(other)?,
    };
    u32::try_from(id).ok()
}

fn signal_number(name: &str) -> Option<u16> {
    let upper = name.to_ascii_uppercase();
    match upper.strip_prefix("SIG").unwrap_or(&upper) {
        "HUP" => Some(1),
        "INT" => Some(2),
        "QUIT" => Some(3),
        "ABRT" => Some(6),
        "KILL" => Some(9),
        "USR1" => Some(10),
        "USR2" => Some(12),
        "ALRM" => Some(14),
        "TERM" => Some(15),
        "CONT" => Some(18),
        "STOP" => Some(19),
        "TSTP" => Some(20),
        other => other.parse().ok(),
    }
}
