//! Helpers for the tests of the worker lifecycle.
//!
//! These tests run in parallel on shared Kubernetes nodes. So each test uses only one node, which its workers share, and a
//! test that changes a node has a node of its own.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slurm_operator_api::slinky::names::label;
use testkit::wait_for;

use crate::{
    SOON, Scene,
    managed::{ManagedSlurm, NODE_SET, STARTED, change, node_set, resources},
};

/// The node for tests that do not change a node.
pub const COMMON_NODE: &str = "node1";

/// The node for the test that sets its topology.
pub const TOPOLOGY_NODE: &str = "node2";

/// The node for the test that cordons it.
pub const CORDON_NODE: &str = "node3";

/// The spec of a `NodeSet` whose workers share a Kubernetes node.
pub fn crowd(replicas: u8, node: &str) -> Result<Value> {
    let mut spec = node_set(replicas)?;
    spec["oversubscribeNode"] = json!(true);
    spec["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    Ok(spec)
}

/// Changes the template of the workers without an effect on slurmd.
pub async fn new_template(scene: &Scene, name: &str) -> Result<()> {
    let spec = json!({"template": {"metadata": {"annotations": {"example.com/template": name}}}});
    change(scene, "NodeSet", NODE_SET, spec).await
}

/// The status of the `NodeSet`.
pub async fn status(scene: &Scene) -> Result<Value> {
    let set = resources(scene, "NodeSet").get(NODE_SET).await?;
    let status = set.data["status"].clone();
    ensure!(status["observedGeneration"].as_i64() == set.metadata.generation, "the status is of an older generation");
    Ok(status)
}

/// A string field of the status.
pub fn text(status: &Value, field: &str) -> Result<String> {
    Ok(status[field].as_str().with_context(|| format!("no {field} in {status}"))?.to_owned())
}

/// Sets an annotation; null removes it.
pub async fn annotate<K>(objects: &Api<K>, name: &str, annotation: &str, value: Value) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
    objects.patch_metadata(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// All Kubernetes nodes.
pub fn kube_nodes(client: &Client) -> Api<Node> {
    Api::all(client.clone())
}

/// The claims of the workers that are not being deleted, with their UIDs.
pub async fn claims(scene: &Scene) -> Result<BTreeMap<String, Option<String>>> {
    let labels = ListParams::default().labels(&format!("{}={NODE_SET}", label::INSTANCE));
    let claims = scene.namespace.api::<PersistentVolumeClaim>().list(&labels).await?;
    let stays = claims.into_iter().filter(|claim| claim.metadata.deletion_timestamp.is_none());
    Ok(stays.map(|claim| (claim.name_any(), claim.uid())).collect())
}

/// A small volume claim template.
pub fn claim_template() -> Value {
    json!([{
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}},
    }])
}

/// Deletes the `NodeSet` without waiting.
pub async fn delete_set(scene: &Scene) -> Result<()> {
    resources(scene, "NodeSet").delete(NODE_SET, &kube::api::DeleteParams::default()).await?;
    Ok(())
}

impl ManagedSlurm<'_> {
    /// Waits until the `NodeSet` and all its pods are gone.
    pub async fn set_gone(&self) -> Result<()> {
        wait_for("the NodeSet and its workers to be gone", STARTED, async || {
            let set = resources(self.scene, "NodeSet").get_opt(NODE_SET).await?;
            ensure!(
                set.is_none(),
                "the NodeSet still exists, with finalizers {:?}",
                set.map(|set| set.metadata.finalizers)
            );
            let pods = self.workers().await?;
            ensure!(pods.is_empty(), "{} pods still exist", pods.len());
            Ok(())
        })
        .await
    }

    /// Waits until a Slurm node has a state, such as `drained`.
    pub async fn node_is(&self, node: &str, state: &str) -> Result<()> {
        wait_for(&format!("the Slurm node {node} to be {state}"), SOON, async || {
            let nodes = self.nodes().await?;
            ensure!(nodes.get(node).is_some_and(|found| found == state), "{nodes:?}");
            Ok(())
        })
        .await
    }

    /// The reason why a Slurm node is out of service; empty if it is in service.
    pub async fn reason(&self, node: &str) -> Result<String> {
        let node = self.run(&format!("scontrol show node {node}")).await?;
        let line = node.lines().find_map(|line| line.trim().strip_prefix("Reason=")).unwrap_or_default();
        // The user and the time follow: ` [slurm@2026-11-16T01:02:03]`.
        Ok(line.rsplit_once(" [").map_or(line, |(reason, _)| reason).to_owned())
    }

    /// The Slurm nodes that are draining, with jobs still running.
    pub async fn draining(&self) -> Result<Vec<String>> {
        let nodes = self.nodes().await?;
        Ok(nodes.into_iter().filter(|(_, state)| state == "draining").map(|(node, _)| node).collect())
    }
}

/// Whether a pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}
