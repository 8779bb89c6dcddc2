//! The custom resources of a run. Their pods are simulated by kwok, and the fake slurmrestd answers for Slurm.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slurm_operator_api::slinky::names;

use crate::{fake_cluster::resource, pods::WORKER};

/// The namespace of all of them.
pub const NAMESPACE: &str = "bench";

/// The name of the Controller and of the `RestApi`.
const CLUSTER: &str = "slurm";

/// The name of the `NodeSet`.
const NODE_SET: &str = "workers";

/// The content of both keys. The fake slurmrestd does not check tokens.
const KEY: &str = "only for measurements, of no use elsewhere";

/// The image of all sidecars. Without it our operator uses the image of the daemon; the Go operator has no default.
const SIDECAR_IMAGE: &str = "sidecar:1";

fn controller(rest_url: Option<&str>) -> Value {
    let mut spec = json!({
        "slurmKeyRef": {"name": "slurm-auth-slurm", "key": "slurm.key"},
        "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"},
        "slurmctld": {"image": "slurmctld:1"},
        "reconfigure": {"image": SIDECAR_IMAGE},
        "logfile": {"image": SIDECAR_IMAGE},
        // The cluster has no volume provisioner.
        "persistence": {"enabled": false},
    });
    if let (Some(url), Some(spec)) = (rest_url, spec.as_object_mut()) {
        spec.insert("externalRestApi".to_owned(), json!({"url": url}));
    }
    spec
}

fn rest_api() -> Value {
    json!({"controllerRef": {"name": CLUSTER}, "slurmrestd": {"image": "slurmrestd:1"}})
}

fn node_set(workers: u32) -> Value {
    json!({
        "controllerRef": {"name": CLUSTER},
        "replicas": workers,
        // Many workers share a fake node.
        "oversubscribeNode": true,
        "slurmd": {"image": "slurmd:1"},
        "logfile": {"image": SIDECAR_IMAGE},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}},
        "template": {"spec": {"hostname": "w-"}},
    })
}

/// Creates keys, Controller and `RestApi`.
pub async fn create_cluster(client: &Client, rest_url: Option<&str>) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    for (name, key) in [("slurm-auth-slurm", "slurm.key"), ("slurm-auth-jwt", "jwt.key")] {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            string_data: Some([(key.to_owned(), KEY.to_owned())].into()),
            ..Secret::default()
        };
        secrets.create(&PostParams::default(), &secret).await?;
    }
    create(client, "Controller", CLUSTER, controller(rest_url)).await?;
    create(client, "RestApi", CLUSTER, rest_api()).await
}

/// Creates the `NodeSet`.
pub async fn create_node_set(client: &Client, workers: u32) -> Result<()> {
    create(client, "NodeSet", NODE_SET, node_set(workers)).await
}

/// Changes fields of the spec of the `NodeSet`.
pub async fn patch_node_set(client: &Client, spec: &Value) -> Result<()> {
    api(client, "NodeSet").patch(NODE_SET, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
    Ok(())
}

/// Deletes the `NodeSet`, which may take a while.
pub async fn delete_node_set(client: &Client) -> Result<()> {
    api(client, "NodeSet").delete(NODE_SET, &DeleteParams::default()).await?;
    Ok(())
}

/// The pod of any worker.
pub async fn any_worker(client: &Client) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let one = ListParams::default().labels(&format!("{}={WORKER}", names::label::NAME)).limit(1);
    pods.list(&one).await?.items.into_iter().next().context("there is no worker")
}

fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), NAMESPACE, &resource(kind))
}

async fn create(client: &Client, kind: &str, name: &str, spec: Value) -> Result<()> {
    let object = DynamicObject::new(name, &resource(kind)).data(json!({"spec": spec}));
    let created = api(client, kind).create(&PostParams::default(), &object).await;
    created.with_context(|| format!("cannot create the {kind} {name}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use slurm_operator_api::slinky::{ControllerSpec, NodeSetSpec, RestApiSpec};

    use super::*;

    #[test]
    fn every_field_is_known_to_our_types() {
        let known: NodeSetSpec = serde_json::from_value(node_set(1000)).unwrap();
        assert_eq!(known.replicas, 1000);
        assert!(known.oversubscribe_node && known.workload_disruption_protection);
        let shown = serde_json::to_value(&known).unwrap();
        for (field, value) in node_set(1000).as_object().unwrap() {
            assert_eq!(&shown[field], value, "{field}");
        }
        let known: ControllerSpec = serde_json::from_value(controller(Some("http://localhost:7000"))).unwrap();
        let shown = serde_json::to_value(&known).unwrap();
        for (field, value) in controller(Some("http://localhost:7000")).as_object().unwrap() {
            assert_eq!(&shown[field], value, "{field}");
        }
        assert_eq!(known.external_rest_api.unwrap().url, "http://localhost:7000");
        assert!(controller(None).get("externalRestApi").is_none());
        let known: RestApiSpec = serde_json::from_value(rest_api()).unwrap();
        assert_eq!(known.controller_ref.name, CLUSTER);
    }
}
