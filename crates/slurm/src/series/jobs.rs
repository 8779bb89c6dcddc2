//! The series of jobs.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{Kind, Label, Series, SeriesError, Writer, cut};
use crate::{
    hostlist,
    states::{JobStates, Word},
    tres::Amounts,
    wire::{JobMetrics, NoVal},
};

/// What stands for no nodes.
const NO_NODES: [&str; 3] = ["", "None assigned", "(null)"];

/// The series of a list of jobs, at a time by Slurm's clock.
pub fn of_jobs(jobs: Vec<JobMetrics>, now: Timestamp) -> Result<Series, SeriesError> {
    let jobs = unique(jobs);
    let mut writer = Writer::default();
    info(&jobs, &mut writer);
    let name = "slurm_job_duration_seconds";
    writer.family(name, Kind::Gauge, "How long the job has run");
    for (id, job) in &jobs {
        if let Some(seconds) = duration(job, now) {
            writer.sample(name, &[("job_id", id)], seconds);
        }
    }
    let name = "slurm_job_cpus";
    writer.family(name, Kind::Gauge, "CPUs that the job has, or wants");
    for (id, job) in &jobs {
        if let Some(cpus) = cpus(job) {
            writer.sample(name, &[("job_id", id)], cpus);
        }
    }
    let name = "slurm_job_memory_bytes";
    writer.family(name, Kind::Gauge, "Memory that the job has, or wants");
    for (id, job) in &jobs {
        if let Some(bytes) = memory(job) {
            writer.sample(name, &[("job_id", id)], bytes);
        }
    }
    nodes(&jobs, &mut writer);
    writer.finish()
}

/// The jobs with their ids as text, each once: slurmdbd has one record of a job for each time that it was requeued, of which the last one
/// counts.
fn unique(jobs: Vec<JobMetrics>) -> Vec<(String, JobMetrics)> {
    let mut last: HashMap<u32, usize> = HashMap::with_capacity(jobs.len());
    for (place, job) in jobs.iter().enumerate() {
        let begun = |place: usize| jobs.get(place).and_then(|job| job.submit_time.max(job.start_time));
        let known = last.entry(job.job_id).or_insert(place);
        if begun(place) >= begun(*known) {
            *known = place;
        }
    }
    let is_last = |place: usize, job: &JobMetrics| last.get(&job.job_id) == Some(&place);
    let jobs = jobs.into_iter().enumerate().filter(|(place, job)| is_last(*place, job));
    jobs.map(|(_, job)| (job.job_id.to_string(), job)).collect()
}

fn info(jobs: &[(String, JobMetrics)], writer: &mut Writer) {
    let name = "slurm_job_info";
    writer.family(name, Kind::Gauge, "A Slurm job; always 1");
    for (id, job) in jobs {
        let number = |number: NoVal| number.number().map(|number| number.to_string()).unwrap_or_default();
        let second = |time: Option<Timestamp>| time.map(|time| time.as_second().to_string()).unwrap_or_default();
        let task = number(job.array_task_id);
        let task = if task.is_empty() { &job.array_task_string } else { &task };
        let end = second(job.end_time);
        let labels: [Label<'_>; 16] = [
            ("job_id", id),
            ("job_state", state(&job.job_state)),
            ("job_state_reason", &job.state_reason),
            ("slurm_partition", &job.partition),
            ("job_name", &job.name),
            ("user_name", &job.user_name),
            // Slurm says the name of the user if the job says nothing.
            ("user_mail", if job.mail_user == job.user_name { "" } else { &job.mail_user }),
            ("user_id", &number(job.user_id)),
            ("standard_error", expanded(&job.stderr_expanded, &job.standard_error)),
            ("standard_output", expanded(&job.stdout_expanded, &job.standard_output)),
            ("array_job_id", &number(job.array_job_id)),
            ("array_task_id", task),
            ("submit_time", &second(job.submit_time)),
            ("start_time", &second(job.start_time)),
            ("end_time", &end),
            ("finished_time", if job.job_state.has_ended() { &end } else { "" }),
        ];
        writer.sample(name, &labels, 1);
    }
}

/// A path without placeholders, if Slurm says it.
fn expanded<'a>(expanded: &'a str, plain: &'a str) -> &'a str {
    if expanded.is_empty() { plain } else { expanded }
}

/// The base state.
fn state(states: &JobStates) -> &str {
    let unknown = || states.unknown().first().map(String::as_str);
    states.iter().next().map(Word::as_str).or_else(unknown).unwrap_or_default()
}

/// How long a job has run: until now, or until it ended.
fn duration(job: &JobMetrics, now: Timestamp) -> Option<i64> {
    let end = if job.job_state.has_ended() { job.end_time? } else { now };
    // The start of a job that waits is when it is expected to start.
    let seconds = end.duration_since(job.start_time?).as_secs();
    Some(seconds).filter(|seconds| *seconds > 0)
}

fn cpus(job: &JobMetrics) -> Option<u64> {
    let listed = |text: &str| Amounts::of(text).cpus.filter(|cpus| *cpus > 0);
    listed(&job.tres_alloc_str).or_else(|| listed(&job.tres_req_str)).or(job.cpus.number())
}

fn memory(job: &JobMetrics) -> Option<u64> {
    let listed = |text: &str| Amounts::of(text).memory.filter(|bytes| *bytes > 0);
    // Without the number of nodes it would be too little for jobs with several.
    let per_node = || job.memory_per_node.number()?.checked_mul(1 << 20)?.checked_mul(job.node_count.number()?);
    listed(&job.tres_alloc_str).or_else(|| listed(&job.tres_req_str)).or_else(per_node)
}

fn nodes(jobs: &[(String, JobMetrics)], writer: &mut Writer) {
    let name = "slurm_node_job";
    writer.family(name, Kind::Gauge, "A node that the job has or had; always 1");
    for (id, job) in jobs {
        let list = job.nodes.trim();
        if writer.is_too_large() {
            return;
        }
        if NO_NODES.contains(&list) {
            continue;
        }
        let mut nodes = match hostlist::expand(list) {
            Ok(nodes) => nodes,
            Err(error) => {
                writer.problem(|| format!("the nodes of job {id} cannot be shown: `{}`: {error}", cut(list)));
                continue;
            }
        };
        nodes.sort_unstable();
        nodes.dedup();
        for node in &nodes {
            writer.sample(name, &[("job_id", id), ("node_name", node)], 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::AccountedJobMetrics;

    const NOW: i64 = 1_000_100;

    fn job(change: Value) -> JobMetrics {
        let mut job = json!({
            "job_id": 7, "name": "train", "job_state": ["RUNNING"], "state_reason": "None", "partition": "gpu",
            "user_name": "ann", "mail_user": "ann", "user_id": 401, "nodes": "w[0-1]",
            "standard_output": "slurm-%j.out", "stdout_expanded": "/tmp/slurm-7.out", "standard_error": "/tmp/err",
            "array_job_id": {"set": true, "infinite": false, "number": 0}, "submit_time": 1_000_000,
            "start_time": 1_000_010, "end_time": 1_003_610, "tres_alloc_str": "cpu=4,mem=2G,node=2,billing=4",
            "tres_req_str": "cpu=2,mem=1G,node=2", "cpus": 1, "node_count": 2, "memory_per_node": 100,
        });
        let (Value::Object(job_fields), Value::Object(change)) = (&mut job, change) else { panic!("not objects") };
        job_fields.extend(change);
        serde_json::from_value(job).unwrap()
    }

    fn series(jobs: Vec<JobMetrics>) -> Series {
        of_jobs(jobs, Timestamp::from_second(NOW).unwrap()).unwrap()
    }

    fn value(series: &Series, name: &str) -> Option<String> {
        let found = series.text.lines().find_map(|line| line.strip_prefix(&format!("{name}{{job_id=\"7\"}} ")));
        found.map(str::to_owned)
    }

    #[test]
    fn a_running_job() {
        let series = series(vec![job(json!({}))]);
        let info = "slurm_job_info{job_id=\"7\",job_state=\"RUNNING\",job_state_reason=\"None\",slurm_partition=\"gpu\",\
            job_name=\"train\",user_name=\"ann\",user_id=\"401\",standard_error=\"/tmp/err\",\
            standard_output=\"/tmp/slurm-7.out\",array_job_id=\"0\",submit_time=\"1000000\",start_time=\"1000010\",\
            end_time=\"1003610\"} 1\n";
        assert!(series.text.contains(info), "{}", series.text);
        assert_eq!(value(&series, "slurm_job_duration_seconds").as_deref(), Some("90"));
        assert_eq!(value(&series, "slurm_job_cpus").as_deref(), Some("4"));
        assert_eq!(value(&series, "slurm_job_memory_bytes").as_deref(), Some("2147483648"));
        for node in ["w0", "w1"] {
            assert!(series.text.contains(&format!("slurm_node_job{{job_id=\"7\",node_name=\"{node}\"}} 1\n")));
        }
        assert_eq!((series.count, series.problem), (6, None));
    }

    #[test]
    fn other_states() {
        let ended = series(vec![job(
            json!({"job_state": ["FAILED", "COMPLETING"], "end_time": 1_000_040, "mail_user": "a@b"}),
        )]);
        assert!(ended.text.contains("job_state=\"FAILED\"") && ended.text.contains("user_mail=\"a@b\""));
        assert!(ended.text.contains("end_time=\"1000040\",finished_time=\"1000040\"}"));
        assert_eq!(value(&ended, "slurm_job_duration_seconds").as_deref(), Some("30"));
        let pending = series(vec![job(json!({
            "job_state": ["PENDING"], "start_time": 1_000_200, "nodes": "", "tres_alloc_str": "",
            "array_task_id": {"set": false, "infinite": false, "number": 0}, "array_task_string": "0-2",
        }))]);
        assert_eq!(value(&pending, "slurm_job_duration_seconds"), None, "it has not started");
        assert_eq!(value(&pending, "slurm_job_cpus").as_deref(), Some("2"), "what it wants");
        assert!(pending.text.contains("array_task_id=\"0-2\"") && !pending.text.contains("slurm_node_job{"));
        let bare = series(vec![job(
            json!({"tres_alloc_str": "", "tres_req_str": "", "job_state": ["NEW"], "nodes": "(null)"}),
        )]);
        assert!(bare.text.contains("job_state=\"NEW\""));
        assert_eq!(value(&bare, "slurm_job_cpus").as_deref(), Some("1"));
        assert_eq!(value(&bare, "slurm_job_memory_bytes").as_deref(), Some("209715200"));
        let unknown =
            series(vec![job(json!({"tres_alloc_str": "", "tres_req_str": "", "node_count": null, "cpus": null}))]);
        assert_eq!([value(&unknown, "slurm_job_cpus"), value(&unknown, "slurm_job_memory_bytes")], [None, None]);
    }

    #[test]
    fn hostile_jobs_do_no_harm() {
        let named = job(json!({"name": "x\"\n".repeat(50_000), "nodes": "w[0-", "job_id": 8}));
        let series = of_jobs(vec![named, job(json!({}))], Timestamp::UNIX_EPOCH).unwrap();
        assert!(series.text.len() < 8_000, "{}", series.text.len());
        assert_eq!(series.text.lines().count(), 10 + 8, "a line break in a name begins no line");
        let problem = series.problem.unwrap();
        assert!(problem.contains("job 8") && problem.contains("`w[0-`"), "{problem}");
        let everywhere = (0..30).map(|id| job(json!({"job_id": id, "nodes": "a-long-name-of-a-host[1-65536]"})));
        let error = of_jobs(everywhere.collect(), Timestamp::UNIX_EPOCH).unwrap_err();
        assert_eq!(error, SeriesError::TooLarge);
    }

    #[test]
    fn the_last_record_of_a_requeued_job_counts() {
        let first = job(json!({"start_time": 1_000_001, "name": "first"}));
        let second = job(json!({"start_time": 1_000_050, "name": "second"}));
        for jobs in [vec![first.clone(), second.clone()], vec![second, first]] {
            let series = series(jobs);
            assert!(series.text.contains("\"second\"") && !series.text.contains("\"first\""));
            assert_eq!(series.text.matches("slurm_job_info{").count(), 1);
        }
    }

    #[test]
    fn jobs_of_slurmdbd() {
        let read = |change: Value| -> JobMetrics {
            let mut job = json!({
                "job_id": 7, "name": "train", "user": "ann", "partition": "gpu", "nodes": "w[0-1]", "allocation_nodes": 2,
                "state": {"current": ["RUNNING"], "reason": "None"}, "stdout": "slurm-%j.out", "stderr": "",
                "stdout_expanded": "/tmp/slurm-7.out", "array": {"job_id": 0, "task_id": {"set": false}, "task": ""},
                "required": {"CPUs": 1, "memory_per_node": {"set": true, "number": 0}},
                "time": {"submission": 1_000_000, "start": 1_000_010, "end": 0, "limit": {"set": true, "number": 60}},
                "tres": {
                    "allocated": [{"type": "cpu", "count": 4}, {"type": "mem", "count": 2048}, {"type": "gres", "name": "gpu", "count": 2}],
                    "requested": [],
                },
            });
            let (Value::Object(fields), Value::Object(change)) = (&mut job, change) else { panic!("not objects") };
            fields.extend(change);
            serde_json::from_value::<AccountedJobMetrics>(job).unwrap().0
        };
        let running = read(json!({}));
        assert_eq!(running.tres_alloc_str, "cpu=4,mem=2048M,gres/gpu=2");
        assert_eq!(running.end_time.map(Timestamp::as_second), Some(1_003_610), "its limit");
        let shown = series(vec![running]);
        assert_eq!(value(&shown, "slurm_job_cpus").as_deref(), Some("4"));
        assert_eq!(value(&shown, "slurm_job_duration_seconds").as_deref(), Some("90"));
        assert!(shown.text.contains("user_name=\"ann\",standard_output=\"/tmp/slurm-7.out\""), "{}", shown.text);
        let waiting = read(json!({
            "state": {"current": ["PENDING"]}, "nodes": "None assigned", "allocation_nodes": 0, "tres": {},
            "time": {"submission": 1_000_000, "start": 0, "end": 0, "limit": {"set": true, "number": 60}},
        }));
        assert_eq!((waiting.end_time, waiting.node_count), (None, NoVal::Unset));
        let shown = series(vec![waiting]);
        assert!(!shown.text.contains("slurm_node_job{") && value(&shown, "slurm_job_memory_bytes").is_none());
    }
}
