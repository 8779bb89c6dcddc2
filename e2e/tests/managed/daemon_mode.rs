//! One worker on every matching Kubernetes node.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, ManagedSlurm, NODE_SET, STARTED, slurm_node},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::wait_for;

/// A worker's pod is created within about a second; the rest is for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(15);

const TAINT: &str = "e2e.example.com/fake";

#[tokio::test]
async fn workers_follow_the_nodes() -> Result<()> {
    let scene = Scene::start("daemon-mode").await?;
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let label = format!("e2e.example.com/{}", scene.namespace.name());
    set_label(&nodes, "node1", &label, json!("yes")).await?;
    managed::put(&scene, "Controller", CLUSTER, managed::controller()?).await?;
    managed::put(&scene, "RestApi", CLUSTER, managed::rest_api()?).await?;
    let mut workers = managed::node_set(0)?;
    workers["scalingMode"] = json!("DaemonSet");
    workers["template"]["spec"] = json!({
        "nodeSelector": {&label: "yes"},
        "tolerations": [{"key": TAINT, "operator": "Exists"}],
        "terminationGracePeriodSeconds": 5,
    });
    managed::put(&scene, "NodeSet", NODE_SET, workers).await?;
    let cluster = ManagedSlurm::of(&scene);
    cluster.agree(1).await?;
    assert_eq!(cluster.srun("--nodes=1", "hostname").await?, ["node1"]);

    // A real node that starts to match, and then no longer does.
    set_label(&nodes, "node2", &label, json!("yes")).await?;
    comes(&cluster, "node2").await?;
    cluster.agree(2).await?;
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["node1", "node2"]);
    set_label(&nodes, "node2", &label, Value::Null).await?;
    cluster.agree(1).await?;

    // A new node. Nothing runs there, but a pod is created for it.
    let fake = format!("fake-{}", scene.namespace.name());
    nodes.create(&PostParams::default(), &fake_node(&fake, &label)?).await?;
    let came = comes(&cluster, &fake).await;
    nodes.delete(&fake, &DeleteParams::default()).await?;
    came?;
    wait_for("the worker of the deleted node to be removed", STARTED, async || {
        ensure!(cluster.worker(&fake).await.is_err(), "it still exists");
        Ok(())
    })
    .await?;
    cluster.agree(1).await?;
    set_label(&nodes, "node1", &label, Value::Null).await?;
    scene.finish().await
}

async fn set_label(nodes: &Api<Node>, node: &str, label: &str, value: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {label: value}}}));
    nodes.patch_metadata(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until a node has a worker, and checks that it did not take long.
async fn comes(cluster: &ManagedSlurm<'_>, node: &str) -> Result<()> {
    let start = Instant::now();
    wait_for(&format!("a worker for {node}"), SOON, async || cluster.worker(node).await).await?;
    let took = start.elapsed();
    eprintln!("a worker for {node} after {took:?}");
    let names: Vec<_> = cluster.workers().await?.iter().map(slurm_node).collect();
    ensure!(took < AT_ONCE, "the worker of {node} took {took:?}; there are {names:?}");
    Ok(())
}

/// A node without a kubelet, tainted for all other pods.
fn fake_node(name: &str, label: &str) -> Result<Node> {
    let capacity = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    let now = jiff::Timestamp::now();
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {label: "yes", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        "status": {
            "allocatable": capacity, "capacity": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": now}],
        },
    }))?)
}
