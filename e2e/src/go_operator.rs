//! A cluster as the Go operator leaves it: the same children, written by its field manager, and as it writes them.

use anyhow::{Context, Result, ensure};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slurm_operator_api::slinky::names;
use testkit::wait_for;

use crate::{
    SOON, Scene,
    managed::{CLUSTER, NODE_SET},
};

/// The field manager of the Go operator.
const MANAGER: &str = "manager";

/// How the Go operator ends a worker.
const PRE_STOP: &str = "scontrol update nodename=$(hostname) state=down reason=\"slurm-operator: Pod is terminating\"";

/// Replaces the children of the cluster, and its workers. The operator must not run, nor jobs.
pub async fn rewrite(scene: &Scene) -> Result<()> {
    let name = |suffix: &str| format!("{CLUSTER}-{suffix}");
    recreate(scene, "v1", "ConfigMap", &name("config"), &|_| {}).await?;
    for service in
        [name("controller"), name("controller-internal"), name("restapi"), format!("slurm-workers-{CLUSTER}")]
    {
        recreate(scene, "v1", "Service", &service, &|_| {}).await?;
    }
    // One probe by HTTP for all versions, and no more rights taken away than these.
    recreate(scene, "apps/v1", "StatefulSet", &name("controller"), &|set| {
        let pod = &mut set["spec"]["template"]["spec"];
        pod["securityContext"] = json!({"runAsNonRoot": true, "runAsUser": 401, "runAsGroup": 401, "fsGroup": 401});
        for container in pod["initContainers"].as_array_mut().into_iter().flatten() {
            remove(container, &["securityContext"]);
        }
        let slurmctld = &mut pod["containers"][0];
        slurmctld["securityContext"] = json!({"runAsNonRoot": true, "runAsUser": 401, "runAsGroup": 401});
        slurmctld["readinessProbe"]["failureThreshold"] = json!(6);
    })
    .await?;
    recreate(scene, "apps/v1", "Deployment", &name("restapi"), &|deployment| {
        let template = &mut deployment["spec"]["template"];
        for hash in ["slurm-key-hash", "slurm-config-hash"] {
            remove(&mut template["metadata"]["annotations"], &[&format!("slinky.slurm.net/{hash}")]);
        }
        remove(&mut template["spec"]["containers"][0], &["lifecycle"]);
    })
    .await?;
    recreate(scene, "policy/v1", "PodDisruptionBudget", &format!("slurm-workers-pdb-{CLUSTER}"), &|budget| {
        remove(&mut budget["spec"], &["minAvailable"]);
        budget["spec"]["maxUnavailable"] = json!(0);
    })
    .await?;
    let workers = ListParams::default().labels(&format!("{}={NODE_SET}", names::label::INSTANCE));
    for revision in api(scene, "apps/v1", "ControllerRevision").list(&workers).await? {
        recreate(scene, "apps/v1", "ControllerRevision", &revision.name_any(), &|_| {}).await?;
    }
    for pod in api(scene, "v1", "Pod").list(&workers).await? {
        recreate(scene, "v1", "Pod", &pod.name_any(), &as_go_worker).await?;
    }
    Ok(())
}

/// A worker without what only this operator sets.
fn as_go_worker(pod: &mut Value) {
    let spec = &mut pod["spec"];
    // The scheduler and admission set these.
    remove(spec, &["nodeName", "tolerations", "serviceAccount", "priority", "preemptionPolicy"]);
    spec["tolerations"] =
        json!([{"key": "nodeset.slinky.slurm.net/worker", "operator": "Equal", "effect": "NoExecute"}]);
    let slurmd = &mut spec["containers"][0];
    let args: Vec<Value> = slurmd["args"].as_array().cloned().unwrap_or_default();
    let own = args.iter().position(|arg| arg == "-N").unwrap_or(args.len());
    slurmd["args"] = json!(args[..own]);
    let env: Vec<Value> = slurmd["env"].as_array().cloned().unwrap_or_default();
    slurmd["env"] = env.into_iter().filter(|variable| variable["name"] != "SLURM_NODE_NAME").collect();
    slurmd["lifecycle"]["preStop"]["exec"]["command"] = json!(["/usr/bin/sh", "-c", PRE_STOP]);
    slurmd["livenessProbe"]["failureThreshold"] = json!(6);
}

fn api(scene: &Scene, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    scene.namespace.dynamic_api(&ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)))
}

fn remove(object: &mut Value, keys: &[&str]) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|key, _| !keys.contains(&&**key));
    }
}

/// Deletes an object without what it owns, and creates it again with the Go operator's field manager.
async fn recreate(
    scene: &Scene,
    version: &str,
    kind: &str,
    name: &str,
    edit: &(dyn Fn(&mut Value) + Sync),
) -> Result<()> {
    let objects = api(scene, version, kind);
    let found = objects.get(name).await.with_context(|| format!("there is no {kind} {name}"))?;
    let mut new = serde_json::to_value(&found)?;
    remove(&mut new, &["status"]);
    let metadata = &mut new["metadata"];
    remove(
        metadata,
        &["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "deletionTimestamp"],
    );
    let ours = [names::annotation::hash::APPLIED, names::annotation::GRES_TYPES, names::annotation::CLAIM_TEMPLATES];
    remove(&mut metadata["annotations"], &ours);
    edit(&mut new);
    // Pods of workers own nothing, and are waited for.
    let delete = if kind == "Pod" { DeleteParams::default() } else { DeleteParams::orphan() };
    objects.delete(name, &delete).await?;
    wait_for(&format!("the {kind} {name} to be gone"), SOON, async || {
        ensure!(objects.get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let new: DynamicObject = serde_json::from_value(new)?;
    objects.create(&params, &new).await.with_context(|| format!("cannot create the {kind} {name}"))?;
    Ok(())
}

/// Who has written an object.
pub async fn managers(scene: &Scene, version: &str, kind: &str, name: &str) -> Result<Vec<String>> {
    let found = api(scene, version, kind).get(name).await?;
    let writers = found.metadata.managed_fields.unwrap_or_default().into_iter();
    Ok(writers.filter(|writer| writer.subresource.is_none()).filter_map(|writer| writer.manager).collect())
}

/// The spec of an object.
pub async fn spec(scene: &Scene, version: &str, kind: &str, name: &str) -> Result<Value> {
    Ok(api(scene, version, kind).get(name).await?.data["spec"].clone())
}
