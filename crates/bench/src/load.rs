//! Load on the API server from the harness: bare loops to compare with, and unrelated objects.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec, Secret, ServiceAccount};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::wait_for;

/// Concurrent requests: as many as our operator makes.
const CONCURRENCY: usize = 32;

/// The limit for a new namespace to accept pods.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes one request for each number, many concurrently. Returns the seconds that all of them took.
async fn for_each<F>(count: u32, call: impl Fn(u32) -> F) -> Result<f64>
where
    F: Future<Output = kube::Result<()>>,
{
    let start = Instant::now();
    stream::iter((0..count).map(call)).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
    Ok(start.elapsed().as_secs_f64())
}

/// The content of a worker's pod, to create others from.
#[derive(Clone)]
pub struct PodBody(Pod);

impl PodBody {
    /// Without owner references, since pods of a deleted owner are garbage collected.
    pub fn of_worker(worker: Pod) -> Self {
        let metadata = ObjectMeta {
            labels: worker.metadata.labels,
            annotations: worker.metadata.annotations,
            ..ObjectMeta::default()
        };
        // Set by the scheduler, not by the operator.
        let spec = worker.spec.map(|spec| PodSpec { node_name: None, ..spec });
        Self(Pod { metadata, spec, status: None })
    }

    fn pod(&self, number: u32) -> Pod {
        let mut pod = self.0.clone();
        pod.metadata.name = Some(bare_name(number));
        pod.spec.get_or_insert_default().hostname = Some(bare_name(number));
        pod
    }
}

fn bare_name(number: u32) -> String {
    format!("bare-{number}")
}

/// Creates pods in a bare loop. Returns the seconds that it took.
pub async fn create_pods(client: &Client, namespace: &str, body: &PodBody, count: u32) -> Result<f64> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (api, params) = (&api, &PostParams::default());
    let create = |number: u32| async move { api.create(params, &body.pod(number)).await.map(drop) };
    for_each(count, create).await.context("a bare loop cannot create pods")
}

/// Deletes these pods in a bare loop. Returns the seconds that it took.
pub async fn delete_pods(client: &Client, namespace: &str, count: u32) -> Result<f64> {
    delete_all::<Pod>(client, namespace, bare_name, count).await.context("a bare loop cannot delete pods")
}

async fn delete_all<K>(client: &Client, namespace: &str, name: fn(u32) -> String, count: u32) -> Result<f64>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let (api, params) = (&api, &DeleteParams::default());
    for_each(count, |number| async move { api.delete(&name(number), params).await.map(drop) }).await
}

/// Creates a namespace and waits until it accepts pods.
pub async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
    let what = format!("the service account of the namespace {name}");
    wait_for(&what, NAMESPACE_TIMEOUT, async || Ok(accounts.get("default").await.map(drop)?)).await
}

/// Creates and deletes pods before the measurement. Otherwise the first phases would be slowed down by a control plane that has just
/// started, and the bare loops at the end would not.
pub async fn warm_up(client: &Client, count: u32, limit: Duration) -> Result<()> {
    const NAMESPACE: &str = "warm-up";
    create_namespace(client, NAMESPACE).await?;
    let body: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "pod", "image": "pod"}]}}))?;
    create_pods(client, NAMESPACE, &PodBody(body), count).await?;
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let running = ListParams::default().fields("status.phase=Running");
    let come_to = async |wanted: usize| {
        wait_for("the pods of the warm-up", limit, async || {
            let count = api.list_metadata(&running).await?.items.len();
            anyhow::ensure!(count == wanted, "{count} of {wanted} run");
            Ok(())
        })
        .await
    };
    come_to(usize::try_from(count)?).await?;
    delete_pods(client, NAMESPACE, count).await?;
    come_to(0).await
}

/// The namespace of unrelated objects.
const NOISE: &str = "noise";

fn noise_name(number: u32) -> String {
    format!("noise-{number}")
}

/// Creates pods and Secrets that are unrelated to the operator.
pub async fn create_noise(client: &Client, pods: u32, secrets: u32) -> Result<()> {
    create_namespace(client, NOISE).await?;
    let params = &PostParams::default();
    let api: &Api<Pod> = &Api::namespaced(client.clone(), NOISE);
    let variables: Vec<Value> =
        (0..10).map(|index| json!({"name": format!("VARIABLE_{index}"), "value": "value"})).collect();
    let body = &json!({
        "metadata": {"labels": {"app.kubernetes.io/name": "noise"}},
        "spec": {
            // No scheduler of this name exists, so only the API server and its watchers handle these pods.
            "schedulerName": "none",
            "automountServiceAccountToken": false,
            "containers": [{"name": "noise", "image": "noise", "env": variables}],
        },
    });
    let create = |number: u32| async move {
        let mut pod: Pod = serde_json::from_value(body.clone()).map_err(kube::Error::SerdeError)?;
        pod.metadata.name = Some(noise_name(number));
        api.create(params, &pod).await.map(drop)
    };
    for_each(pods, create).await.context("cannot create unrelated pods")?;
    let api: &Api<Secret> = &Api::namespaced(client.clone(), NOISE);
    let create = |number: u32| async move {
        let name = Some(noise_name(number));
        let text = "noise ".repeat(200);
        let secret = Secret {
            metadata: ObjectMeta { name, ..ObjectMeta::default() },
            string_data: Some([("text".to_owned(), text)].into()),
            ..Secret::default()
        };
        api.create(params, &secret).await.map(drop)
    };
    for_each(secrets, create).await.context("cannot create unrelated Secrets")?;
    Ok(())
}

/// Deletes them, so that the bare loops run in the same conditions as the operator.
pub async fn delete_noise(client: &Client, pods: u32, secrets: u32) -> Result<()> {
    delete_all::<Pod>(client, NOISE, noise_name, pods).await.context("cannot delete unrelated pods")?;
    delete_all::<Secret>(client, NOISE, noise_name, secrets).await.context("cannot delete unrelated Secrets")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_is_a_worker_without_owner_and_node() {
        let worker: Pod = serde_json::from_value(json!({
            "metadata": {"name": "w-0", "uid": "1", "labels": {"a": "b"}, "ownerReferences": [
                {"apiVersion": "v1", "kind": "NodeSet", "name": "w", "uid": "2", "controller": true},
            ]},
            "spec": {"hostname": "w-0", "nodeName": "kwok-1", "containers": [{"name": "slurmd", "image": "i"}]},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        let pod = PodBody::of_worker(worker).pod(7);
        let spec = pod.spec.unwrap();
        assert_eq!((pod.metadata.name.as_deref(), spec.hostname.as_deref()), (Some("bare-7"), Some("bare-7")));
        assert_eq!((spec.node_name, pod.metadata.owner_references, pod.metadata.uid), (None, None, None));
        assert_eq!(spec.containers.len(), 1);
        assert_eq!(pod.metadata.labels.unwrap().len(), 1);
        assert!(pod.status.is_none());
    }
}
