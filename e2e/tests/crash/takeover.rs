//! The operator takes over a cluster of the Go operator, with a job on each worker and a cordoned Kubernetes node.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene, go_operator, kubectl,
    managed::{CLUSTER, Job, ManagedSlurm, NODE_SET, STARTED, change, ready, uids},
    workers::{COMMON_NODE, status},
};
use kube::ResourceExt;
use serde_json::json;
use slurm_operator_api::slinky::names::annotation;
use testkit::wait_for;

/// What the Go operator left, and what runs there.
pub struct Former {
    workers: BTreeSet<String>,
    jobs: Vec<Job>,
    counted: Vec<u64>,
    /// A Slurm node, and its Kubernetes node, which is cordoned.
    cordoned: String,
    host: String,
}

/// Makes a cluster of the Go operator of ours. The operator must not run.
pub async fn prepare(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<Former> {
    go_operator::rewrite(scene, cluster).await?;
    let pods = cluster.workers().await?;
    let host = |pod: &k8s_openapi::api::core::v1::Pod| pod.spec.as_ref()?.node_name.clone();
    // slurmctld has to start on the other one.
    let away = pods.iter().find(|pod| host(pod).is_some_and(|host| host != COMMON_NODE)).context("no other node")?;
    let (cordoned, host) = (away.name_any(), host(away).unwrap_or_default());
    let jobs = vec![cluster.count("workers-0").await?, cluster.count("workers-1").await?];
    kubectl(&["cordon", &host]).await?;
    go_operator::cordon(scene, cluster, &cordoned).await?;
    let counted = vec![cluster.counted(&jobs[0]).await?, cluster.counted(&jobs[1]).await?];
    Ok(Former { workers: uids(&pods), jobs, counted, cordoned, host })
}

/// No worker is replaced, and the jobs go on.
pub async fn check(scene: &Scene, cluster: &ManagedSlurm<'_>, former: &Former) -> Result<()> {
    wait_for("everything to be ready and written by this operator", STARTED, async || {
        let left = go_operator::writers(scene).await?;
        let left: Vec<_> = left.into_iter().filter(|(_, by)| by.iter().any(|by| by == "manager")).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    // A worker is drained, so the NodeSet is not ready.
    ready(scene, "Controller", CLUSTER).await?;
    ready(scene, "RestApi", CLUSTER).await?;
    untouched(cluster, former).await?;
    let budget = go_operator::spec(scene, "policy/v1", "PodDisruptionBudget", "slurm-workers-pdb-slurm").await?;
    ensure!(budget.get("maxUnavailable").is_none() && budget.get("minAvailable").is_some(), "{budget}");
    let service = go_operator::spec(scene, "v1", "Service", "slurm-controller").await?;
    ensure!(!service["selector"].to_string().contains("active"), "{service}");

    // The annotation was the Go operator's, so it goes with the cordon.
    let shows = async |expected: bool| {
        wait_for(&format!("the cordon to be shown: {expected}"), SOON, async || {
            let pod = cluster.worker(&former.cordoned).await?;
            let (shown, taken) = (pod.annotations().get(annotation::POD_CORDON), annotation::TAKEN_OVER);
            ensure!(shown.is_some() == expected && pod.annotations().contains_key(taken), "{shown:?}");
            Ok(())
        })
        .await
    };
    shows(true).await?;
    cluster.node_is(&former.cordoned, "draining").await?;
    kubectl(&["uncordon", &former.host]).await?;
    cluster.node_is(&former.cordoned, "mixed").await?;
    shows(false).await?;
    kubectl(&["cordon", &former.host]).await?;
    cluster.node_is(&former.cordoned, "draining").await?;
    shows(true).await?;
    kubectl(&["uncordon", &former.host]).await?;
    cluster.node_is(&former.cordoned, "mixed").await?;
    cluster.ready().await?;

    cluster.scale(3).await?;
    cluster.agree(3).await?;
    untouched(cluster, former).await?;
    for job in &former.jobs {
        cluster.release(job).await?;
    }
    cluster.scale(2).await?;
    cluster.agree(2).await?;
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}});
    let slurmd = json!({"env": [{"name": "ROLLED", "value": "yes"}]});
    change(scene, "NodeSet", NODE_SET, json!({"slurmd": slurmd, "updateStrategy": strategy})).await?;
    wait_for("new workers", STARTED, async || {
        let reported = status(scene).await?;
        let now = uids(&cluster.workers().await?);
        ensure!(reported["updatedReplicas"] == 2 && now.is_disjoint(&former.workers), "{now:?} {reported}");
        Ok(())
    })
    .await?;
    cluster.agree(2).await?;
    ensure!(cluster.srun("--nodes=2", "hostname").await? == ["workers-0", "workers-1"], "srun");
    cluster.ready().await
}

async fn untouched(cluster: &ManagedSlurm<'_>, former: &Former) -> Result<()> {
    for (job, counted) in former.jobs.iter().zip(&former.counted) {
        ensure!(cluster.job_state(job).await? == "RUNNING", "{job:?} has ended");
        cluster.goes_on(job, *counted).await?;
    }
    let now = uids(&cluster.workers().await?);
    ensure!(now.is_superset(&former.workers), "a worker was replaced: {now:?}");
    Ok(())
}
