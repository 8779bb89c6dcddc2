//! What Slurm says, as text: without the names of users and jobs, their files and their accounts. Pure.

use std::{collections::BTreeMap, fmt::Write};

use jiff::Timestamp;
use slurm::wire::{Diag, Job, Node, Partition, Ping, Reservation};

/// How many jobs are listed.
const MOST_JOBS: usize = 2_000;

/// Everything that was read of a Slurm cluster.
#[derive(Debug, Default)]
pub struct SlurmFacts {
    pub version: String,
    pub pings: Vec<Ping>,
    pub diag: Option<Diag>,
    pub partitions: Vec<Partition>,
    pub reservations: Vec<Reservation>,
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
}

/// The files of a Slurm cluster, each with its name.
pub fn files(facts: &SlurmFacts) -> Vec<(&'static str, String)> {
    vec![("cluster.txt", cluster(facts)), ("nodes.txt", nodes(&facts.nodes)), ("jobs.txt", jobs(&facts.jobs))]
}

fn cluster(facts: &SlurmFacts) -> String {
    let mut out = format!("version: {}\n", facts.version);
    for ping in &facts.pings {
        let role = if ping.primary { "primary" } else { "backup" };
        let state = if ping.responding { "responds" } else { "does not respond" };
        let _ = writeln!(out, "slurmctld on {}, {role}: {state}, {} us", ping.hostname, ping.latency);
    }
    if let Some(diag) = &facts.diag {
        for (what, value) in [
            ("threads of slurmctld", diag.server_thread_count),
            ("outgoing messages in the queue", diag.agent_queue_size),
            ("threads that send messages", diag.agent_count),
            ("records that wait for slurmdbd", diag.dbd_agent_queue_size),
            ("jobs submitted", diag.jobs_submitted),
            ("jobs started", diag.jobs_started),
            ("jobs completed", diag.jobs_completed),
            ("jobs cancelled", diag.jobs_canceled),
            ("jobs failed", diag.jobs_failed),
            ("jobs pending", diag.jobs_pending),
            ("jobs running", diag.jobs_running),
            ("cycles of the scheduler", diag.schedule_cycle_total),
        ] {
            let _ = writeln!(out, "{what}: {value}");
        }
        let _ = writeln!(out, "counted since: {}", time(diag.req_time_start));
    }
    let mut rows = vec![row(["PARTITION", "STATE", "NODES", "NODESETS", "COUNT"])];
    for partition in &facts.partitions {
        let state = partition.state.join("+");
        rows.push(row([
            &partition.name,
            &state,
            &partition.nodes,
            &partition.node_sets,
            &partition.total_nodes.to_string(),
        ]));
    }
    let _ = write!(out, "\n{}", table(&rows));
    let mut rows = vec![row(["RESERVATION", "FLAGS", "NODES", "START", "END"])];
    for found in &facts.reservations {
        rows.push(row([
            &found.name,
            &found.flags.join(","),
            &found.node_list,
            &time(found.start_time),
            &time(found.end_time),
        ]));
    }
    let _ = write!(out, "\n{}", table(&rows));
    out
}

fn nodes(nodes: &[Node]) -> String {
    let title =
        ["NODE", "STATE", "CPUS", "MEMORY", "GRES", "PARTITIONS", "FEATURES", "SLURMD", "STARTED", "ADDRESS", "REASON"];
    let mut rows = vec![row(title)];
    for node in nodes {
        let since = node.reason_changed_at.filter(|_| !node.reason.is_empty());
        let since = since.map(|since| format!(" [{} since {since:.0}]", node.reason_set_by_user)).unwrap_or_default();
        rows.push(row([
            &node.name,
            &node.state.to_string(),
            &format!("{}/{}", node.alloc_cpus, node.cpus),
            &format!("{}/{}", node.alloc_memory, node.real_memory),
            &format!("{} (used {})", node.gres, node.gres_used),
            &node.partitions.join(","),
            &node.features.join(","),
            &node.version,
            &time(node.slurmd_start_time),
            &node.address,
            &format!("{}{since}", node.reason),
        ]));
    }
    table(&rows)
}

fn jobs(jobs: &[Job]) -> String {
    let mut counts: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for job in jobs {
        *counts.entry((job.job_state.to_string(), job.state_reason.as_str())).or_default() += 1;
    }
    let mut rows = vec![row(["STATE", "REASON", "JOBS"])];
    rows.extend(counts.iter().map(|((state, reason), count)| row([state, reason, &count.to_string()])));
    let mut out = table(&rows);
    // Those that have ended say least.
    let mut listed: Vec<&Job> = jobs.iter().collect();
    listed.sort_by_key(|job| (job.job_state.has_ended(), job.job_id));
    let left = listed.len().saturating_sub(MOST_JOBS);
    listed.truncate(MOST_JOBS);
    let title =
        ["JOB", "STATE", "REASON", "PARTITION", "CPUS", "NODES", "WANTS", "SUBMITTED", "START", "LIMIT", "RESTARTS"];
    let mut rows = vec![row(title)];
    for job in listed {
        let task = job.array_task_id.number().filter(|_| job.array_job_id.non_zero().is_some());
        let limit = job.time_limit.number().map_or_else(|| "-".to_owned(), |minutes| format!("{minutes} min"));
        rows.push(row([
            &task.map_or_else(|| job.job_id.to_string(), |task| format!("{}[{task}]", job.job_id)),
            &job.job_state.to_string(),
            &job.state_reason,
            &job.partition,
            &job.cpus.number().map_or_else(|| "-".to_owned(), |cpus| cpus.to_string()),
            &job.nodes,
            &job.required_nodes,
            &time(job.submit_time),
            &time(job.start_time),
            &limit,
            &job.restart_cnt.to_string(),
        ]));
    }
    let _ = write!(out, "\n{}", table(&rows));
    if left > 0 {
        let _ = writeln!(out, "… and {left} more");
    }
    out
}

fn time(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"))
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { (*cell).to_owned() }).collect()
}

/// Rows with columns of the same width.
fn table(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}
