//! Serializes the model as slurmrestd does.

use serde_json::{Value, json};

use super::cluster::Cluster;
use super::job::{Job, JobState};
use super::node::Node;
use super::records::Records;
use super::reservation::{Partition, Reservation};

/// A number that Slurm may also send as unset or infinite.
pub(super) fn number(value: i64) -> Value {
    json!({"set": true, "infinite": false, "number": value})
}

/// An unset number.
pub(super) fn unset() -> Value {
    json!({"set": false, "infinite": false, "number": 0})
}

/// An infinite number.
pub(super) fn infinite() -> Value {
    json!({"set": false, "infinite": true, "number": 0})
}

/// Writes names as a host list.
pub(super) fn fold<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    // A name that cannot be part of a host list is still shown.
    slurm::hostlist::fold(names.clone()).unwrap_or_else(|_| names.collect::<Vec<_>>().join(","))
}

/// Value of a node field; `None` leaves it as recorded.
pub(super) fn node_field(cluster: &Cluster, node: &Node, field: &str) -> Option<Value> {
    let machine = &node.machine;
    let value = match field {
        "boot_time" | "slurmd_start_time" if !node.known => number(0),
        "cpu_load" if !node.known => json!(0),
        "free_mem" if !node.known => unset(),
        "version" if !node.known => json!(""),
        "active_features" => json!(node.active_features),
        "address" => json!(machine.address),
        "alloc_cpus" => json!(node.allocated_cpus),
        "alloc_idle_cpus" => json!(machine.cpus.saturating_sub(node.allocated_cpus)),
        "alloc_memory" => json!(if node.jobs.is_empty() { 0 } else { machine.memory }),
        "boot_time" => number(node.boot_time),
        "comment" => json!(node.comment),
        "cpu_load" => json!(node.cpu_load),
        "cpus" | "effective_cpus" | "sockets" => json!(machine.cpus),
        "extra" => json!(node.extra),
        "features" => json!(machine.features),
        "free_mem" => number(i64::try_from(node.free_memory).unwrap_or(i64::MAX)),
        "gres" => json!(machine.gres),
        "hostname" | "name" => json!(node.name),
        "last_busy" => number(node.last_busy),
        "partitions" => {
            json!(cluster.partitions().filter(|one| one.has(&node.name)).map(|one| &one.name).collect::<Vec<_>>())
        }
        "port" => json!(machine.port),
        "real_memory" => json!(machine.memory),
        "reason" => json!(node.reason),
        "reason_changed_at" => number(node.reason_at),
        "reason_set_by_user" => json!(node.reason_user),
        "reservation" => json!(node.reservation),
        "slurmd_start_time" => number(node.slurmd_start_time),
        "state" => json!(node.state.words()),
        "topology" => json!(machine.topology),
        "tres" => json!(format!("cpu={},mem={}M,billing={}", machine.cpus, machine.memory, machine.cpus)),
        "tres_used" => json!(tres_used(node)),
        "version" => json!(cluster.settings.release.version()),
        "weight" => json!(node.weight),
        _ => return None,
    };
    Some(value)
}

fn tres_used(node: &Node) -> String {
    if node.jobs.is_empty() {
        String::new()
    } else {
        format!("cpu={},mem={}M", node.allocated_cpus, node.machine.memory)
    }
}

/// The serialized record of a job.
pub(super) fn job_text(records: &Records, cluster: &Cluster, job: &Job) -> Vec<u8> {
    let nodes = fold(job.nodes.iter().map(String::as_str));
    let count = if job.nodes.is_empty() { job.spec.nodes } else { u32::try_from(job.nodes.len()).unwrap_or(u32::MAX) };
    records.job.render(|field| match field {
        "job_resources" => Some(job_resources(cluster, job, &nodes)),
        "nodes" => Some(json!(nodes)),
        "node_count" => Some(number(i64::from(count))),
        _ => job_field(cluster, job, i64::from(count), field),
    })
}

fn job_field(cluster: &Cluster, job: &Job, nodes: i64, field: &str) -> Option<Value> {
    let spec = &job.spec;
    let started = job.started_at > 0 && job.state != JobState::Pending;
    let cpus = nodes * i64::from(spec.cpus.max(1));
    let value = match field {
        "account" => json!(spec.account),
        "accrue_time" | "eligible_time" => number(if spec.hold { 0 } else { job.eligible_at }),
        "batch_host" => json!(job.nodes.first().map(String::as_str).unwrap_or_default()),
        "cluster" => json!(cluster.settings.name),
        "comment" => json!(spec.comment),
        "cpus" => number(cpus),
        "current_working_directory" => json!(spec.directory),
        "end_time" => number(job.ends_at),
        "exit_code" => exit_code(job.signal),
        "hold" => json!(spec.hold),
        "job_id" => json!(job.id),
        "job_state" => json!(job_state(job)),
        "last_sched_evaluation" => number(job.started_at.max(job.submitted_at)),
        "name" => json!(spec.name),
        "partition" => json!(partition_name(cluster, job)),
        "requeue" => json!(spec.requeue),
        "required_nodes" => json!(fold(spec.required.iter().map(String::as_str))),
        "restart_cnt" => json!(job.restarts),
        "standard_error" | "standard_output" | "stdout_expanded" | "stderr_expanded" => {
            json!(format!("{}/slurm-{}.out", spec.directory, job.id))
        }
        "start_time" => number(job.started_at),
        "state_reason" => json!(job.reason),
        "step_id" => json!({
            "sluid": format!("s{:013}", job.id), "job_id": number(i64::from(job.id)),
            "step_het_component": unset(), "step_id": "entire",
        }),
        "submit_time" => number(job.submitted_at),
        "time_limit" => spec.time_limit.map_or_else(infinite, |minutes| number(i64::from(minutes))),
        "tres_alloc_str" if !started => json!(""),
        "tres_alloc_str" | "tres_req_str" => json!(format!("cpu={cpus},mem=2G,node={nodes},billing={cpus}")),
        "user_name" | "mail_user" => json!(spec.user),
        _ => return None,
    };
    Some(value)
}

/// State words of a job.
pub(super) fn job_state(job: &Job) -> Vec<&'static str> {
    let completing = job.completing.then_some("COMPLETING");
    std::iter::once(job.state.as_str()).chain(completing).collect()
}

fn partition_name<'a>(cluster: &'a Cluster, job: &'a Job) -> &'a str {
    if !job.spec.partition.is_empty() {
        return &job.spec.partition;
    }
    cluster
        .partitions()
        .find(|partition| partition.default)
        .map(|partition| partition.name.as_str())
        .unwrap_or_default()
}

/// Exit code of an ended job.
pub(super) fn exit_code(signal: u16) -> Value {
    let name = match signal {
        1 => "HUP",
        2 => "INT",
        9 => "KILL",
        10 => "USR1",
        12 => "USR2",
        15 => "TERM",
        _ => "",
    };
    if signal == 0 {
        let none = json!({"id": unset(), "name": ""});
        return json!({"status": ["SUCCESS"], "return_code": number(0), "signal": none});
    }
    let signal = json!({"id": number(i64::from(signal)), "name": name});
    json!({"status": ["SIGNALED"], "return_code": unset(), "signal": signal})
}

/// Cores of a job. A job that never ran has none.
fn job_resources(cluster: &Cluster, job: &Job, nodes: &str) -> Value {
    if job.nodes.is_empty() {
        return Value::Null;
    }
    let cpus = job.spec.cpus.max(1);
    let of_node = |(index, name): (usize, &String)| {
        let memory = cluster.node(name).map(|node| node.machine.memory).unwrap_or_default();
        let sockets: Vec<Value> =
            (0..cpus).map(|index| json!({"index": index, "cores": [{"index": 0, "status": ["ALLOCATED"]}]})).collect();
        json!({
            "index": index, "name": name, "cpus": {"count": cpus, "used": 0},
            "memory": {"used": 0, "allocated": memory}, "sockets": sockets,
        })
    };
    let allocation: Vec<Value> = job.nodes.iter().enumerate().map(of_node).collect();
    json!({
        "select_type": ["CR_CORE_MEMORY"],
        "nodes": {
            "count": job.nodes.len(), "select_type": ["ONE_ROW"], "list": nodes, "whole": false,
            "allocation": allocation,
        },
        "cpus": cpus, "threads_per_core": unset(),
    })
}

pub(super) fn partition(records: &Records, cluster: &Cluster, partition: &Partition) -> Value {
    let members: Vec<&Node> = cluster.nodes().filter(|node| partition.has(&node.name)).collect();
    let names: Vec<&str> = members.iter().map(|node| node.name.as_str()).collect();
    let cpus: u32 = members.iter().map(|node| node.machine.cpus).sum();
    let memory: u64 = members.iter().map(|node| node.machine.memory).sum();
    let total = names.len();
    let limit = partition.max_time.map_or_else(infinite, |minutes| number(i64::from(minutes)));
    records.fill(
        "partition",
        json!({
            "name": partition.name,
            "nodes": {"configured": fold(names.iter().copied()), "total": total},
            "cpus": {"total": cpus},
            "tres": {"configured": format!("cpu={cpus},mem={memory}M,node={total},billing={cpus}")},
            "maximums": {"time": limit},
        }),
    )
}

pub(super) fn reservation(records: &Records, cluster: &Cluster, reservation: &Reservation) -> Value {
    let names: Vec<&str> = reservation.nodes.iter().map(String::as_str).collect();
    let cpus: u32 = names.iter().filter_map(|name| cluster.node(name)).map(|node| node.machine.cpus).sum();
    records.fill(
        "reservation",
        json!({
            "name": reservation.name,
            "accounts": reservation.accounts.join(","),
            "users": reservation.users.join(","),
            "partition": reservation.partition,
            "flags": reservation.flags,
            "node_list": fold(names.iter().copied()),
            "node_count": names.len(),
            "core_count": cpus,
            "tres": format!("cpu={cpus}"),
            "start_time": number(reservation.starts_at),
            "end_time": number(reservation.ends_at),
        }),
    )
}
