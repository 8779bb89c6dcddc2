//! Responses about the cluster, partitions, reservations and accounting.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::dispatch::CallContext;
use super::job::{Job, JobState};
use super::records::overlay;
use super::refusal::Refusal;
use super::render::{self, exit_code, fold, job_state, number};
use super::reply::{Diagnostics, Reply, UNAUTHENTICATED};
use super::request;
use super::reservation::Reservation;
use super::routes::{self, Endpoint};

impl CallContext<'_> {
    /// Only the paths: the real document also describes every field, in about two megabytes.
    pub(super) fn openapi(&self) -> Reply {
        let settings = &self.cluster.settings;
        let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for (path, method) in routes::offered(settings.release, settings.accounting) {
            paths.entry(path).or_default().insert(method, json!({"responses": {}}));
        }
        let plugins = if settings.accounting { "openapi/slurmctld&openapi/slurmdbd" } else { "openapi/slurmctld" };
        let document = json!({
            "openapi": "3.0.3",
            "info": {
                "title": "Slurm REST API",
                "description": "API to access and control Slurm",
                "version": format!("Slurm-{}&{plugins}", settings.release.version()),
            },
            "paths": paths,
        });
        let text = serde_json::to_vec_pretty(&document).unwrap_or_default();
        Reply { status: StatusCode::OK, content: super::reply::Content::Json(text.into()) }
    }

    /// Always 200, also when slurmctld is down or rejects the token: it is then reported as not responding.
    pub(super) fn ping(&self, known: bool) -> Reply {
        let up = self.cluster.is_up() && known;
        let status = match (self.cluster.is_up(), known) {
            (false, _) => Refusal::DOWN.text,
            (true, false) => UNAUTHENTICATED.text,
            (true, true) => "No error",
        };
        let values = json!({
            "hostname": "slurmctld", "responding": up, "pinged": if up { "UP" } else { "DOWN" }, "status": status,
        });
        self.respond(json!({"pings": [self.records.fill("ping", values)]}), Diagnostics::default())
    }

    pub(super) fn diag(&self) -> Reply {
        let count = |wanted: fn(&Job) -> bool| self.cluster.jobs().filter(|job| wanted(job)).count();
        let (now, started) = (self.cluster.now(), self.cluster.started_at);
        let statistics = self.records.fill(
            "statistics",
            json!({
                "req_time": number(now),
                "req_time_start": number(started),
                "job_states_ts": number(now),
                "jobs_submitted": self.cluster.next_job - 1,
                "jobs_started": self.cluster.jobs_started,
                "jobs_completed": count(|job| job.state == JobState::Completed),
                "jobs_canceled": count(|job| job.state == JobState::Cancelled),
                "jobs_failed": count(|job| matches!(job.state, JobState::Failed | JobState::NodeFail)),
                "jobs_pending": count(|job| job.state == JobState::Pending),
                "jobs_running": count(|job| job.state == JobState::Running),
            }),
        );
        self.respond(json!({ "statistics": statistics }), Diagnostics::default())
    }

    pub(super) fn conf(&self) -> Reply {
        let settings = &self.cluster.settings;
        let storage = if settings.accounting { "accounting_storage/slurmdbd" } else { "" };
        let values = json!({
            "ClusterName": settings.name, "AccountingStorageType": storage,
            "SlurmdTimeout": settings.slurmd_timeout, "MinJobAge": settings.min_job_age,
        });
        let meta = json!({
            "LastUpdate": self.cluster.reconfigured_at, "BOOT_TIME": self.cluster.started_at,
            "NEXT_JOB_ID": number(i64::from(self.cluster.next_job)), "SLURM_VERSION": settings.release.version(),
        });
        let conf = self.records.fill("slurm_conf", values);
        let meta = self.records.fill("slurm_conf_meta", meta);
        self.respond(json!({"slurm_conf": conf, "slurm_conf_meta": meta}), Diagnostics::default())
    }

    pub(super) fn partitions(&self) -> Reply {
        if let Some(bad) = self.bad_update_time("op_handler_partitions") {
            return bad;
        }
        if self.unchanged_since(self.cluster.changed.partitions) {
            return Reply::unchanged();
        }
        let all = self.cluster.partitions();
        let all: Vec<Value> = all.map(|one| render::partition(self.records, self.cluster, one)).collect();
        self.respond(json!({"partitions": all, "last_update": number(self.cluster.now())}), Diagnostics::default())
    }

    pub(super) fn partition(&self) -> Reply {
        let name = self.call.parameter;
        if let Some(one) = self.cluster.partitions().find(|partition| partition.name == name) {
            let one = render::partition(self.records, self.cluster, one);
            return self.respond(
                json!({"partitions": [one], "last_update": number(self.cluster.now())}),
                Diagnostics::default(),
            );
        }
        let text = format!("Unable to find partition {name}");
        if self.cluster.settings.release.blames_client() {
            return self.respond(json!({}), Diagnostics::warning(&text, "_partition_get"));
        }
        let diagnostics =
            Diagnostics::error(9000, "Query empty or not RFC7320 compliant", &text, "op_handler_partition");
        Reply::json(StatusCode::UNPROCESSABLE_ENTITY, json!({}), self.meta(), diagnostics)
    }

    fn reservation_list<'a>(&self, some: impl Iterator<Item = &'a Reservation>) -> Reply {
        let some: Vec<Value> = some.map(|one| render::reservation(self.records, self.cluster, one)).collect();
        self.respond(json!({"reservations": some, "last_update": number(self.cluster.now())}), Diagnostics::default())
    }

    pub(super) fn reservations(&self) -> Reply {
        if let Some(bad) = self.bad_update_time("op_handler_reservations") {
            return bad;
        }
        if self.unchanged_since(self.cluster.changed.reservations) {
            return Reply::unchanged();
        }
        self.reservation_list(self.cluster.reservations())
    }

    pub(super) fn reservation(&self) -> Reply {
        if let Some(one) = self.cluster.reservations().find(|one| one.name == self.call.parameter) {
            return self.reservation_list(std::iter::once(one));
        }
        let (text, source) = ("Unable to query reservations", "slurm_load_reservations()");
        self.respond(json!({}), Diagnostics::error(0, "No error", text, source))
    }

    pub(super) fn reserve(&mut self) -> Result<Reply, Refusal> {
        let Some(body) = request::object(&self.request.body) else { return Ok(self.bad_body()) };
        let asked: Vec<Map<String, Value>> = match body.get("reservations") {
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_object).cloned().collect(),
            _ => vec![body],
        };
        let mut created = Vec::new();
        for fields in asked {
            let reservation = self.reservation_from(&fields)?;
            created.push(self.records.fill("reservation_created", echo(&fields, &reservation)));
            self.cluster.reserve(reservation)?;
        }
        Ok(self.respond(json!({ "reservations": created }), Diagnostics::default()))
    }

    /// Creates a reservation from the body; missing fields are taken from an existing reservation with the same name.
    fn reservation_from(&self, fields: &Map<String, Value>) -> Result<Reservation, Refusal> {
        let name = fields.get("name").and_then(request::text).unwrap_or_default();
        let known = self.cluster.reservations().find(|one| one.name == name).cloned();
        let mut reservation = known.unwrap_or_else(|| Reservation { name, ..Reservation::default() });
        for (key, value) in fields {
            match key.as_str() {
                "node_list" => reservation.nodes = BTreeSet::from_iter(request::nodes(value)?),
                "users" => reservation.users = request::words(value),
                "accounts" => reservation.accounts = request::words(value),
                "flags" => reservation.flags = request::words(value),
                "partition" => reservation.partition = request::text(value).unwrap_or_default(),
                "start_time" => reservation.starts_at = request::number(value).unwrap_or(self.cluster.now()),
                "end_time" => reservation.ends_at = request::number(value).unwrap_or(reservation.ends_at),
                _ => {}
            }
        }
        // The start may come after it in the body.
        if let Some(minutes) = fields.get("duration").and_then(request::number) {
            reservation.ends_at = reservation.starts_at.saturating_add(minutes.saturating_mul(60));
        }
        Ok(reservation)
    }

    pub(super) fn delete_reservation(&mut self) -> Result<Reply, Refusal> {
        self.cluster.delete_reservation(self.call.parameter)?;
        Ok(self.done())
    }

    pub(super) fn accounting(&self) -> Reply {
        let settings = &self.cluster.settings;
        let wanted = |name: &str| self.call.parameter.is_empty() || self.call.parameter == name;
        let named = |kind: &str, names: &[String]| -> Vec<Value> {
            let names = names.iter().filter(|name| wanted(name));
            names.map(|name| self.records.fill(kind, json!({ "name": name }))).collect()
        };
        let (key, records) = match self.call.route.endpoint {
            Endpoint::DbPing => ("pings", vec![self.records.fill("db_ping", json!({"hostname": "slurmdbd"}))]),
            Endpoint::DbAccounts | Endpoint::DbAccount => ("accounts", named("db_account", &settings.accounts)),
            Endpoint::DbUsers | Endpoint::DbUser => {
                let mut users = named("db_user", &settings.users);
                // Without associations the default account is omitted.
                if self.request.query.contains_key("with_assocs") {
                    let account = settings.accounts.first().map(String::as_str).unwrap_or_default();
                    for user in &mut users {
                        overlay(user, json!({"default": {"account": account}}));
                    }
                }
                ("users", users)
            }
            Endpoint::DbClusters | Endpoint::DbCluster => ("clusters", self.clusters(wanted(&settings.name))),
            _ => {
                let jobs = self.cluster.jobs().filter(|job| wanted(&job.id.to_string()));
                ("jobs", jobs.map(|job| self.past_job(job)).collect())
            }
        };
        let mut diagnostics = Diagnostics::default();
        if let Some(text) = self.request.query.get("with_assocs") {
            let expected = "Expected OpenAPI type=boolean (Slurm type=boolean) but got OpenAPI type=string";
            diagnostics =
                diagnostics.and_warn(&format!("{expected} (Slurm type=string): \"{text}\""), "#/with_assocs/");
        }
        if records.is_empty() {
            diagnostics = diagnostics.and_warn(&format!("slurmdb_{key}_get() found nothing"), &format!("_dump_{key}"));
        }
        self.respond(json!({ key: records }), diagnostics)
    }

    fn clusters(&self, wanted: bool) -> Vec<Value> {
        let nodes = fold(self.cluster.nodes().map(|node| node.name.as_str()).collect::<Vec<_>>().into_iter());
        let cluster = json!({"name": self.cluster.settings.name, "nodes": nodes});
        if wanted { vec![self.records.fill("db_cluster", cluster)] } else { Vec::new() }
    }

    fn past_job(&self, job: &Job) -> Value {
        let nodes = fold(job.nodes.iter().map(String::as_str));
        let limit = job.spec.time_limit.map_or_else(render::infinite, |minutes| number(i64::from(minutes)));
        self.records.fill(
            "db_job",
            json!({
                "job_id": job.id, "name": job.spec.name, "user": job.spec.user, "account": job.spec.account,
                "cluster": self.cluster.settings.name, "nodes": nodes, "exit_code": exit_code(job.signal),
                "state": {"current": job_state(job), "reason": job.reason},
                "time": {
                    "submission": job.submitted_at, "eligible": job.eligible_at, "start": job.started_at,
                    "end": if job.state.is_over() { job.ends_at } else { 0 }, "limit": limit,
                },
            }),
        )
    }
}

/// slurmrestd echoes the request, with an end time that was not part of it.
fn echo(fields: &Map<String, Value>, reservation: &Reservation) -> Value {
    let duration = fields.get("duration").and_then(request::number).map_or_else(render::unset, number);
    let names: Vec<&String> = reservation.nodes.iter().collect();
    json!({
        "name": reservation.name, "users": reservation.users, "accounts": reservation.accounts,
        "flags": reservation.flags, "node_list": names, "partition": reservation.partition,
        "start_time": number(reservation.starts_at), "duration": duration,
    })
}
