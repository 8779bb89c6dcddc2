//! What Slurm says as series of Prometheus, under the names and labels of soperator's exporter.
//!
//! Series are text as soon as they are read: a list of 20,000 jobs is 15 MB of text, which a scrape sends without looking at it, and
//! of which nothing else has to be kept. So they come from no registry, which would keep each label of each series.

mod histogram;
mod jobs;
mod nodes;
mod rpcs;
mod text;

pub use jobs::of_jobs;
pub use nodes::NodeHistory;
pub use rpcs::of_rpcs;
pub use text::{Kind, Label, MAX_LABEL, Series, SeriesError, Writer, cut};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::wire::{JobMetrics, NodeMetrics, Record};

    /// 10,000 nodes and 20,000 jobs: what is kept of them, and what is needed while a list is read.
    #[test]
    fn a_large_cluster_takes_little_memory() {
        const MEGABYTE: usize = 1 << 20;
        let node = |number: u32| -> NodeMetrics {
            serde_json::from_value(json!({
                "name": format!("gpu-worker-{number}"), "state": ["MIXED", "DYNAMIC_NORM"], "address": "10.100.100.100",
                "instance_id": format!("computeinstance-{number}"), "comment": "", "partitions": ["all", "gpu", "urgent"],
                "cpus": 128, "alloc_cpus": 64, "alloc_idle_cpus": 64, "effective_cpus": 128, "real_memory": 1_600_000,
                "alloc_memory": 800_000, "free_mem": 800_000, "specialized_memory": 0, "gres": "gpu:8",
                "tres": "cpu=128,mem=1600000M,billing=128,gres/gpu=8",
            }))
            .unwrap()
        };
        let job = |number: u32| -> JobMetrics {
            serde_json::from_value(json!({
                "job_id": number, "name": format!("training-of-a-large-model-{number}"), "job_state": ["RUNNING"],
                "state_reason": "None", "partition": "gpu", "user_name": "somebody", "mail_user": "somebody@example.com",
                "user_id": 1000, "nodes": format!("gpu-worker-[{}-{}]", number / 2, number / 2 + 1), "node_count": 2, "cpus": 8,
                "standard_output": format!("/home/somebody/experiments/slurm-{number}.out"),
                "standard_error": format!("/home/somebody/experiments/slurm-{number}.err"),
                "submit_time": 1_794_781_310, "start_time": 1_794_781_311, "end_time": 1_794_781_911,
                "tres_req_str": "cpu=8,mem=2G,node=2,billing=8", "tres_alloc_str": "cpu=8,mem=2G,node=2,billing=8",
            }))
            .unwrap()
        };
        let nodes: Vec<NodeMetrics> = (0..10_000).map(node).collect();
        let jobs: Vec<JobMetrics> = (0..20_000).map(job).collect();
        let sizes = [nodes.iter().map(Record::size).sum::<usize>(), jobs.iter().map(Record::size).sum()];
        assert!(sizes.iter().all(|size| *size < 20 * MEGABYTE), "{sizes:?}");
        let nodes = NodeHistory::default().of_nodes(nodes, Duration::ZERO).unwrap();
        let jobs = of_jobs(jobs, Timestamp::from_second(1_794_781_400).unwrap()).unwrap();
        assert_eq!((nodes.count, jobs.count), (10_000 * 13, 20_000 * 6));
        let kept = [nodes.text.capacity(), jobs.text.capacity()];
        assert!(kept.iter().sum::<usize>() < 35 * MEGABYTE, "{kept:?}");
    }
}
