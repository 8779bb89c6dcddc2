//! Work for the API server that is not the operator's: bare loops to compare with, and objects of others.

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

/// Calls under way at once: as many as our operator makes.
const CONCURRENCY: usize = 32;

/// How long a new namespace may take until pods can be made there.
const PREPARED: Duration = Duration::from_secs(30);

/// Makes one call for each number, many at once; how long all of them took, in seconds.
async fn each<F>(count: u32, call: impl Fn(u32) -> F) -> Result<f64>
where
    F: Future<Output = kube::Result<()>>,
{
    let start = Instant::now();
    stream::iter((0..count).map(call)).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
    Ok(start.elapsed().as_secs_f64())
}

/// A pod like a worker's, as if somebody else had made it.
#[derive(Clone)]
pub struct Body(Pod);

impl Body {
    /// Of a worker that runs. Without its owner, since pods of a dead owner are collected.
    pub fn of(worker: Pod) -> Self {
        let metadata = ObjectMeta {
            labels: worker.metadata.labels,
            annotations: worker.metadata.annotations,
            ..ObjectMeta::default()
        };
        // The scheduler's choice, not the operator's.
        let spec = worker.spec.map(|spec| PodSpec { node_name: None, ..spec });
        Self(Pod { metadata, spec, status: None })
    }

    fn pod(&self, number: u32) -> Pod {
        let mut pod = self.0.clone();
        pod.metadata.name = Some(bare(number));
        pod.spec.get_or_insert_default().hostname = Some(bare(number));
        pod
    }
}

fn bare(number: u32) -> String {
    format!("bare-{number}")
}

/// Creates pods in a bare loop; how long that took, in seconds.
pub async fn create_pods(client: &Client, namespace: &str, body: &Body, count: u32) -> Result<f64> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (api, params) = (&api, &PostParams::default());
    let create = |number: u32| async move { api.create(params, &body.pod(number)).await.map(drop) };
    each(count, create).await.context("a bare loop cannot create pods")
}

/// Deletes them in a bare loop; how long that took, in seconds.
pub async fn delete_pods(client: &Client, namespace: &str, count: u32) -> Result<f64> {
    delete_each::<Pod>(client, namespace, bare, count).await.context("a bare loop cannot delete pods")
}

async fn delete_each<K>(client: &Client, namespace: &str, name: fn(u32) -> String, count: u32) -> Result<f64>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let (api, params) = (&api, &DeleteParams::default());
    each(count, |number| async move { api.delete(&name(number), params).await.map(drop) }).await
}

/// Makes a namespace and waits until pods can be made there.
pub async fn make_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
    let what = format!("the account of the namespace {name}");
    wait_for(&what, PREPARED, async || Ok(accounts.get("default").await.map(drop)?)).await
}

/// Has pods come and go before anything is measured: what is measured first shall not pay for a control plane that has just
/// started, while the bare loops, which come last, do not.
pub async fn warm_up(client: &Client, count: u32, limit: Duration) -> Result<()> {
    const NAMESPACE: &str = "warm-up";
    make_namespace(client, NAMESPACE).await?;
    let body: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "pod", "image": "pod"}]}}))?;
    create_pods(client, NAMESPACE, &Body(body), count).await?;
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let running = ListParams::default().fields("status.phase=Running");
    let come_to = async |wanted: usize| {
        wait_for("the first pods to come and go", limit, async || {
            let count = api.list_metadata(&running).await?.items.len();
            anyhow::ensure!(count == wanted, "{count} run instead of {wanted}");
            Ok(())
        })
        .await
    };
    come_to(usize::try_from(count)?).await?;
    delete_pods(client, NAMESPACE, count).await?;
    come_to(0).await
}

/// Where the objects of others are.
const NOISE: &str = "noise";

fn noise(number: u32) -> String {
    format!("noise-{number}")
}

/// Pods and Secrets that are none of the operator's business.
pub async fn make_noise(client: &Client, pods: u32, secrets: u32) -> Result<()> {
    make_namespace(client, NOISE).await?;
    let params = &PostParams::default();
    let api: &Api<Pod> = &Api::namespaced(client.clone(), NOISE);
    let variables: Vec<Value> =
        (0..10).map(|index| json!({"name": format!("VARIABLE_{index}"), "value": "value"})).collect();
    let body = &json!({
        "metadata": {"labels": {"app.kubernetes.io/name": "noise"}},
        "spec": {
            // Nobody places them: only the API server and who watches it have work with them.
            "schedulerName": "nobody",
            "automountServiceAccountToken": false,
            "containers": [{"name": "noise", "image": "noise", "env": variables}],
        },
    });
    let create = |number: u32| async move {
        let mut pod: Pod = serde_json::from_value(body.clone()).map_err(kube::Error::SerdeError)?;
        pod.metadata.name = Some(noise(number));
        api.create(params, &pod).await.map(drop)
    };
    each(pods, create).await.context("cannot create unrelated pods")?;
    let api: &Api<Secret> = &Api::namespaced(client.clone(), NOISE);
    let create = |number: u32| async move {
        let name = Some(noise(number));
        let text = "noise ".repeat(200);
        let secret = Secret {
            metadata: ObjectMeta { name, ..ObjectMeta::default() },
            string_data: Some([("text".to_owned(), text)].into()),
            ..Secret::default()
        };
        api.create(params, &secret).await.map(drop)
    };
    each(secrets, create).await.context("cannot create unrelated Secrets")?;
    Ok(())
}

/// Removes them: bare loops are to find the API server as the operator found it.
pub async fn end_noise(client: &Client, pods: u32, secrets: u32) -> Result<()> {
    delete_each::<Pod>(client, NOISE, noise, pods).await.context("cannot delete unrelated pods")?;
    delete_each::<Secret>(client, NOISE, noise, secrets).await.context("cannot delete unrelated Secrets")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_is_a_worker_that_nobody_owns_or_placed() {
        let worker: Pod = serde_json::from_value(json!({
            "metadata": {"name": "w-0", "uid": "1", "labels": {"a": "b"}, "ownerReferences": [
                {"apiVersion": "v1", "kind": "NodeSet", "name": "w", "uid": "2", "controller": true},
            ]},
            "spec": {"hostname": "w-0", "nodeName": "kwok-1", "containers": [{"name": "slurmd", "image": "i"}]},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        let pod = Body::of(worker).pod(7);
        let spec = pod.spec.unwrap();
        assert_eq!((pod.metadata.name.as_deref(), spec.hostname.as_deref()), (Some("bare-7"), Some("bare-7")));
        assert_eq!((spec.node_name, pod.metadata.owner_references, pod.metadata.uid), (None, None, None));
        assert_eq!(spec.containers.len(), 1);
        assert_eq!(pod.metadata.labels.unwrap().len(), 1);
        assert!(pod.status.is_none());
    }
}
