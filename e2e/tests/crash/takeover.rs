//! The operator takes over clusters of the Go operator, with a job on each worker.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    go_operator::{self, Worker},
    kubectl,
    managed::{self, CLUSTER, Job, ManagedSlurm, NODE_SET, STARTED, change, ready, uids},
    slurm_image,
    workers::{COMMON_NODE, kube_nodes, status},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use slurm_operator_api::slinky::names::annotation;
use testkit::wait_for;

/// The Secret of the Token.
const TOKEN: &str = "client-jwt-slurm";

/// What the Go operator left, and what runs there.
pub struct Former {
    workers: BTreeSet<String>,
    jobs: Vec<Job>,
    counted: Vec<u64>,
}

/// A Slurm node, and its Kubernetes node, which is cordoned.
pub struct Cordoned {
    node: String,
    host: String,
}

/// A cluster whose images do not say which Slurm they have, and whose resources are numbers.
pub async fn start_numbered(scene: &Scene) -> Result<ManagedSlurm<'_>> {
    let mut controller = managed::controller()?;
    controller["slurmctld"]["image"] = json!(by_digest(scene, "slurmctld", ":latest").await?);
    // Images with the tag `latest` are pulled again by default.
    controller["logfile"] = json!({"imagePullPolicy": "Never"});
    let mut workers = managed::node_set(1)?;
    workers["slurmd"]["image"] = json!(by_digest(scene, "slurmd", "").await?);
    workers["slurmd"]["resources"] =
        json!({"requests": {"cpu": 0.1, "memory": 67_108_864}, "limits": {"cpu": 2, "memory": 1_073_741_824}});
    ManagedSlurm::start_with(scene, controller, workers).await
}

/// The name of an image with its digest.
async fn by_digest(scene: &Scene, daemon: &str, tag: &str) -> Result<String> {
    let image = slurm_image(daemon)?;
    let images = kube_nodes(&scene.client).get(COMMON_NODE).await?.status.and_then(|status| status.images);
    let of_each = images.into_iter().flatten().filter_map(|image| image.names);
    let mut names = of_each.filter(|names| names.contains(&image)).flatten();
    let name = names.find(|name| name.contains('@')).with_context(|| format!("no digest of {image}"))?;
    Ok(name.replacen('@', &format!("{tag}@"), 1))
}

/// A cluster with one worker on each matching Kubernetes node, and a Token.
pub async fn start_on_nodes(scene: &Scene) -> Result<ManagedSlurm<'_>> {
    select(scene, COMMON_NODE).await?;
    managed::put(scene, "Controller", CLUSTER, managed::controller()?).await?;
    managed::put(scene, "RestApi", CLUSTER, managed::rest_api()?).await?;
    let key = json!({"name": "slurm-auth-jwt", "key": "jwt.key"});
    managed::put(scene, "Token", "client", json!({"username": "slurm", "jwtKeyRef": key, "lifetime": "1h"})).await?;
    let mut workers = managed::node_set(0)?;
    workers["scalingMode"] = json!("DaemonSet");
    workers["template"]["spec"] = json!({"nodeSelector": {label_of(scene): "yes"}, "terminationGracePeriodSeconds": 5});
    managed::put(scene, "NodeSet", NODE_SET, workers).await?;
    let cluster = ManagedSlurm::of(scene);
    cluster.agree(1).await?;
    ready(scene, "Token", "client").await?;
    Ok(cluster)
}

fn label_of(scene: &Scene) -> String {
    format!("e2e.example.com/{}", scene.namespace.name())
}

/// Has a Kubernetes node match the set with one worker on each.
async fn select(scene: &Scene, node: &str) -> Result<()> {
    let label = Patch::Merge(json!({"metadata": {"labels": {label_of(scene): "yes"}}}));
    kube_nodes(&scene.client).patch(node, &PatchParams::default(), &label).await?;
    Ok(())
}

/// Makes two workers of the Go operator of ours. The operator must not run.
pub async fn prepare_numbered(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<(Former, Cordoned)> {
    go_operator::rewrite(scene, cluster, &[Worker::Numbered(0), Worker::Numbered(1)]).await?;
    let pods = cluster.workers().await?;
    let host = |pod: &k8s_openapi::api::core::v1::Pod| pod.spec.as_ref()?.node_name.clone();
    // slurmctld has to start on the other one.
    let away = pods.iter().find(|pod| host(pod).is_some_and(|host| host != COMMON_NODE)).context("no other node")?;
    let (node, host) = (away.name_any(), host(away).unwrap_or_default());
    let former = Former::start(cluster, &["workers-0", "workers-1"]).await?;
    kubectl(&["cordon", &host]).await?;
    go_operator::cordon(scene, cluster, &node).await?;
    Ok((former, Cordoned { node, host }))
}

/// The same of a worker on a Kubernetes node, and of the Token. Returns that, too.
pub async fn prepare_on_nodes(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<(Former, Secret)> {
    go_operator::rewrite(scene, cluster, &[Worker::On(COMMON_NODE)]).await?;
    let former = Former::start(cluster, &[COMMON_NODE]).await?;
    Ok((former, scene.namespace.api::<Secret>().get(TOKEN).await?))
}

impl Former {
    async fn start(cluster: &ManagedSlurm<'_>, nodes: &[&str]) -> Result<Self> {
        let workers = uids(&cluster.workers().await?);
        let (mut jobs, mut counted) = (Vec::new(), Vec::new());
        for node in nodes {
            let job = cluster.count(node).await?;
            counted.push(cluster.counted(&job).await?);
            jobs.push(job);
        }
        Ok(Self { workers, jobs, counted })
    }

    /// No worker is replaced, and the jobs go on.
    async fn untouched(&self, cluster: &ManagedSlurm<'_>) -> Result<()> {
        for (job, counted) in self.jobs.iter().zip(&self.counted) {
            ensure!(cluster.job_state(job).await? == "RUNNING", "{job:?} has ended");
            cluster.goes_on(job, *counted).await?;
        }
        let now = uids(&cluster.workers().await?);
        ensure!(now.is_superset(&self.workers), "a worker was replaced: {now:?}");
        Ok(())
    }

    /// All is ready, and written by this operator alone. A NodeSet with a drained worker is not ready.
    async fn taken_over(&self, scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
        wait_for("everything to be ready and written by this operator", STARTED, async || {
            let left = go_operator::writers(scene).await?;
            let left: Vec<_> = left.into_iter().filter(|(_, by)| by.iter().any(|by| by == "manager")).collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await?;
        ready(scene, "Controller", CLUSTER).await?;
        ready(scene, "RestApi", CLUSTER).await?;
        self.untouched(cluster).await?;
        let budget = go_operator::spec(scene, "policy/v1", "PodDisruptionBudget", "slurm-workers-pdb-slurm").await?;
        ensure!(budget.get("maxUnavailable").is_none() && budget.get("minAvailable").is_some(), "{budget}");
        let service = go_operator::spec(scene, "v1", "Service", "slurm-controller").await?;
        ensure!(!service["selector"].to_string().contains("active"), "{service}");
        Ok(())
    }

    /// Updates the workers, which are two by now and have no jobs.
    async fn roll(&self, scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}});
        let slurmd = json!({"env": [{"name": "ROLLED", "value": "yes"}]});
        change(scene, "NodeSet", NODE_SET, json!({"slurmd": slurmd, "updateStrategy": strategy})).await?;
        wait_for("new workers", STARTED, async || {
            let reported = status(scene).await?;
            let now = uids(&cluster.workers().await?);
            ensure!(reported["updatedReplicas"] == 2 && now.is_disjoint(&self.workers), "{now:?} {reported}");
            Ok(())
        })
        .await?;
        cluster.agree(2).await?;
        let names = cluster.srun("--nodes=2", "hostname").await?;
        ensure!(names == cluster.nodes().await?.into_keys().collect::<Vec<_>>(), "srun ran on {names:?}");
        cluster.ready().await
    }
}

pub async fn check_numbered(
    scene: &Scene,
    cluster: &ManagedSlurm<'_>,
    (former, cordoned): &(Former, Cordoned),
) -> Result<()> {
    former.taken_over(scene, cluster).await?;
    // The annotation was the Go operator's, so it goes with the cordon.
    let shows = async |expected: bool| {
        wait_for(&format!("the cordon to be shown: {expected}"), SOON, async || {
            let pod = cluster.worker(&cordoned.node).await?;
            let (shown, taken) = (pod.annotations().get(annotation::POD_CORDON), annotation::TAKEN_OVER);
            ensure!(shown.is_some() == expected && pod.annotations().contains_key(taken), "{shown:?}");
            Ok(())
        })
        .await
    };
    shows(true).await?;
    cluster.node_is(&cordoned.node, "draining").await?;
    kubectl(&["uncordon", &cordoned.host]).await?;
    cluster.node_is(&cordoned.node, "mixed").await?;
    shows(false).await?;
    kubectl(&["cordon", &cordoned.host]).await?;
    cluster.node_is(&cordoned.node, "draining").await?;
    shows(true).await?;
    kubectl(&["uncordon", &cordoned.host]).await?;
    cluster.node_is(&cordoned.node, "mixed").await?;
    cluster.ready().await?;

    cluster.scale(3).await?;
    cluster.agree(3).await?;
    former.untouched(cluster).await?;
    for job in &former.jobs {
        cluster.release(job).await?;
    }
    cluster.scale(2).await?;
    cluster.agree(2).await?;
    former.roll(scene, cluster).await
}

pub async fn check_on_nodes(
    scene: &Scene,
    cluster: &ManagedSlurm<'_>,
    (former, secret): &(Former, Secret),
) -> Result<()> {
    former.taken_over(scene, cluster).await?;
    cluster.ready().await?;
    ready(scene, "Token", "client").await?;
    let now = scene.namespace.api::<Secret>().get(TOKEN).await?;
    ensure!(now.uid() == secret.uid() && now.data == secret.data, "the token was replaced");
    let owners: Vec<_> = now.owner_references().iter().map(|owner| &*owner.kind).collect();
    ensure!(owners == ["Token"], "{owners:?}");

    select(scene, "node3").await?;
    cluster.agree(2).await?;
    former.untouched(cluster).await?;
    for job in &former.jobs {
        cluster.release(job).await?;
    }
    former.roll(scene, cluster).await
}
