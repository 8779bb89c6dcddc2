//! A cluster as the Go operator (1.3.0-rc1) leaves it: its objects, from what it makes of the custom resources.

mod objects;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slurm::token;
use slurm_operator_api::slinky::names::{self, annotation, label};
use testkit::wait_for;

use objects::{Hashes, Owners};

use crate::{
    Scene,
    managed::{ManagedSlurm, NODE_SET, SLURMCTLD, STARTED, resources, slurm_node},
    operator::is_ready,
};

pub use objects::Worker;

/// Its field manager, which is that of every program made with kubebuilder.
const MANAGER: &str = "manager";

/// The kinds of its objects, each with the names of those that it makes of the cluster. It has no key ring.
const OBJECTS: &[(&str, &str, &[&str])] = &[
    ("v1", "ConfigMap", &["slurm-config"]),
    ("v1", "Service", &["slurm-controller", "slurm-controller-internal", "slurm-restapi", "slurm-workers-slurm"]),
    ("v1", "Secret", &["slurm-auth-slurm-ring"]),
    ("apps/v1", "StatefulSet", &["slurm-controller"]),
    ("apps/v1", "Deployment", &["slurm-restapi"]),
    ("policy/v1", "PodDisruptionBudget", &["slurm-workers-pdb-slurm"]),
];

/// The Secret that it keeps keys for tokens in.
const JWT_KEY: &str = "slurm-auth-jwt";

/// Replaces everything that this operator has made of the custom resources by what the Go operator makes of them. No operator may run, nor
/// jobs.
pub async fn rewrite(scene: &Scene, cluster: &ManagedSlurm<'_>, workers: &[Worker]) -> Result<()> {
    let owners = Owners::read(scene).await?;
    let hashes = Hashes::compute(cluster, &owners).await?;
    for token in resources(scene, "Token").list(&ListParams::default()).await? {
        rewrite_token(scene, &token).await?;
    }
    remove_all(scene, cluster).await?;

    let config = objects::config_map(&owners);
    let services = [
        objects::main_service(&owners),
        objects::internal_service(&owners),
        objects::rest_service(&owners),
        objects::worker_service(&owners),
    ];
    for object in [config].iter().chain(&services) {
        create(scene, "v1", object).await?;
    }
    create(scene, "apps/v1", &objects::slurmctld(&owners, &hashes)?).await?;
    create(scene, "apps/v1", &objects::slurmrestd(&owners)).await?;
    create(scene, "policy/v1", &objects::budget(&owners)).await?;
    let (revision, hash) = objects::revision(&owners)?;
    create(scene, "apps/v1", &revision).await?;
    for worker in workers {
        let pod = create(scene, "v1", &objects::worker(&owners, *worker, &hash)?).await?;
        // It sets the label after it knows the name.
        let name = json!({"metadata": {"labels": {label::POD_NAME: pod.name_any()}}});
        scene.pods().patch(&pod.name_any(), &as_manager(), &Patch::Merge(name)).await?;
    }

    wait_for("slurmctld of the Go operator", STARTED, async || {
        let pod = scene.pods().get(SLURMCTLD).await?;
        ensure!(is_ready(&pod), "it is not ready");
        Ok(())
    })
    .await?;
    let active = json!({"metadata": {"labels": {label::ACTIVE: "true"}}});
    scene.pods().patch(SLURMCTLD, &as_manager(), &Patch::Merge(active)).await?;
    wait_for("the workers of the Go operator", STARTED, async || {
        let pods = cluster.workers().await?;
        ensure!(pods.len() == workers.len() && pods.iter().all(is_ready), "they are not ready");
        // It sends IDLE with the comment for a new pod.
        let nodes = cluster.nodes().await?;
        for (node, _) in nodes.iter().filter(|(_, state)| state.starts_with("down")) {
            cluster.run(&format!("scontrol update nodename={node} state=resume")).await?;
        }
        ensure!(nodes.len() == workers.len() && nodes.values().all(|state| state == "idle"), "{nodes:?}");
        Ok(())
    })
    .await?;
    for pod in cluster.workers().await? {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let comment = json!({
            "namespace": scene.namespace.name(), "podName": pod.name_any(), "node": node,
            "nodeSetName": NODE_SET, "nodeSetUID": owners.node_set.uid(),
        });
        cluster.run(&format!("scontrol update nodename={} comment='{comment}'", slurm_node(&pod))).await?;
    }
    Ok(())
}

/// Removes what this operator has made.
async fn remove_all(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let of_set = ListParams::default().labels(&format!("{}={NODE_SET}", label::INSTANCE));
    for pod in cluster.workers().await? {
        scene.pods().delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    for revision in api(scene, "apps/v1", "ControllerRevision").list(&of_set).await? {
        remove(scene, "apps/v1", "ControllerRevision", &revision.name_any()).await?;
    }
    for (version, kind, names) in OBJECTS {
        for name in *names {
            remove(scene, version, kind, name).await?;
        }
    }
    wait_for("the pods to be gone", STARTED, async || {
        let (workers, slurmctld) = (cluster.workers().await?, scene.pods().get_opt(SLURMCTLD).await?);
        ensure!(workers.is_empty() && slurmctld.is_none(), "{} workers are left", workers.len());
        Ok(())
    })
    .await
}

/// The Secret with a token is owned by the one with the key.
async fn rewrite_token(scene: &Scene, object: &DynamicObject) -> Result<()> {
    let secrets = api(scene, "v1", "Secret");
    let user = object.data["spec"]["username"].as_str().context("a Token without a user")?;
    let name = format!("{}-jwt-{user}", object.name_any());
    let ours = secrets.get(&name).await?;
    let entry = ours.data["data"].as_object().and_then(|data| data.keys().next()).context("an empty Secret")?.clone();
    let key = scene.namespace.api::<Secret>().get(JWT_KEY).await?;
    let bytes = key.data.as_ref().and_then(|data| data.get("jwt.key")).context("no key for tokens")?;
    let lifetime = SignedDuration::from_hours(1);
    let signed = token::mint(&token::Key::new(&bytes.0)?, &token::Claims::new("go", user, Timestamp::now(), lifetime));
    remove(scene, "v1", "Secret", &name).await?;
    let owner = json!([{
        "apiVersion": "v1", "kind": "Secret", "name": JWT_KEY, "uid": key.uid(), "controller": true, "blockOwnerDeletion": true,
    }]);
    let secret = json!({
        "kind": "Secret", "metadata": {"name": name, "ownerReferences": owner}, "stringData": {entry: signed.expose()},
    });
    create(scene, "v1", &secret).await.map(drop)
}

/// What it does with a worker whose Kubernetes node is cordoned.
pub async fn cordon(scene: &Scene, cluster: &ManagedSlurm<'_>, node: &str) -> Result<()> {
    let pod = cluster.worker(node).await?;
    let host = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let name = format!("{}/{}", scene.namespace.name(), pod.name_any());
    let shown = json!({"metadata": {"annotations": {annotation::POD_CORDON: "true"}}});
    scene.pods().patch(&pod.name_any(), &as_manager(), &Patch::Merge(shown)).await?;
    let reason = format!("{}Node ({host}) was cordoned, Pod ({name}) must be cordoned", names::REASON_PREFIX);
    cluster.run(&format!("scontrol update nodename={node} state=drain reason='{reason}'")).await.map(drop)
}

fn as_manager() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn resource(version: &str, kind: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn api(scene: &Scene, version: &str, kind: &str) -> Api<DynamicObject> {
    scene.namespace.dynamic_api(&resource(version, kind))
}

/// Deletes an object without what it owns.
async fn remove(scene: &Scene, version: &str, kind: &str, name: &str) -> Result<()> {
    let objects = api(scene, version, kind);
    // slurmctld and slurmrestd go first; the claim with the state stays.
    let policy = if ["StatefulSet", "Deployment"].contains(&kind) {
        PropagationPolicy::Foreground
    } else {
        PropagationPolicy::Background
    };
    let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
    objects.delete(name, &params).await.with_context(|| format!("cannot delete the {kind} {name}"))?;
    wait_for(&format!("the {kind} {name} to be gone"), STARTED, async || {
        ensure!(objects.get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}

async fn create(scene: &Scene, version: &str, object: &Value) -> Result<DynamicObject> {
    let kind = object["kind"].as_str().context("an object without a kind")?;
    let mut object = object.clone();
    object["apiVersion"] = json!(version);
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let object: DynamicObject = serde_json::from_value(object)?;
    let created = api(scene, version, kind).create(&params, &object).await;
    created.with_context(|| format!("cannot create the {kind} {}", object.name_any()))
}

/// Everything that it has written apart from workers, with the names of those who have written to it.
pub async fn writers(scene: &Scene) -> Result<BTreeMap<String, Vec<String>>> {
    let mut found = BTreeMap::new();
    for (version, kind, names) in OBJECTS.iter().filter(|(_, kind, _)| *kind != "Secret") {
        for name in *names {
            let object = api(scene, version, kind).get(name).await?;
            let writers = object.metadata.managed_fields.unwrap_or_default().into_iter();
            let writers = writers.filter(|writer| writer.subresource.is_none()).filter_map(|writer| writer.manager);
            found.insert(format!("{kind} {name}"), writers.collect());
        }
    }
    Ok(found)
}

/// The spec of an object.
pub async fn spec(scene: &Scene, version: &str, kind: &str, name: &str) -> Result<Value> {
    Ok(api(scene, version, kind).get(name).await?.data["spec"].clone())
}
