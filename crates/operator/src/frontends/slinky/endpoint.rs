//! The Slurm clusters of Controllers: their slurmrestd, and the credentials for it.

use engine::plan::ClusterKey;
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use slurm_operator_api::{
    common::{dns, port},
    slinky::{Controller, RestApi, VOCABULARY, names},
};

use super::cluster_key;
use crate::{
    failure::{Failure, call},
    kube_view::read::Reader,
    slurm_view::{Affected, Clusters, Endpoint, EndpointLookup},
    trigger::{Trigger, TriggerKind},
};

/// The Slurm clusters of all Controllers.
pub struct Controllers;

impl Clusters for Controllers {
    fn list<'a>(
        &'a self,
        client: &'a Client,
        namespace: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<ClusterKey>, Failure>> {
        list(client, namespace).boxed()
    }

    fn find<'a>(
        &'a self,
        client: &'a Client,
        cluster: &'a ClusterKey,
    ) -> BoxFuture<'a, Result<EndpointLookup, Failure>> {
        find(client, cluster).boxed()
    }

    fn affected(&self, trigger: &Trigger) -> Affected {
        match trigger.what {
            kind if kind == TriggerKind::of::<Controller>() => {
                Affected::Cluster(cluster_key(&trigger.namespace, &trigger.name))
            }
            TriggerKind::Secret | TriggerKind::ConfigMap => Affected::Namespace(trigger.namespace.clone()),
            kind if kind == TriggerKind::of::<RestApi>() => Affected::Namespace(trigger.namespace.clone()),
            _ => Affected::Nothing,
        }
    }
}

async fn list(client: &Client, namespace: Option<&str>) -> Result<Vec<ClusterKey>, Failure> {
    let api: Api<Controller> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let found = call("listing", || "Controllers".to_owned(), api.list_metadata(&ListParams::default())).await?;
    let key = |controller: &_| {
        let controller: &kube::core::PartialObjectMeta<Controller> = controller;
        cluster_key(&controller.namespace().unwrap_or_default(), &controller.name_any())
    };
    Ok(found.iter().map(key).collect())
}

async fn find(client: &Client, cluster: &ClusterKey) -> Result<EndpointLookup, Failure> {
    let read = Reader { client, namespace: &cluster.namespace };
    let Some(controller) = read.get::<Controller>(&cluster.name).await? else {
        return Ok(EndpointLookup::Gone);
    };
    let Some(reference) = controller.spec.jwt_key() else {
        let why = "spec.jwtKeyRef is not set: the operator needs it to authenticate to Slurm";
        return Ok(EndpointLookup::Missing(why.to_owned()));
    };
    let secret = read.get::<Secret>(&reference.name).await?;
    let Some(ByteString(key)) = secret.and_then(|secret| secret.data?.remove(&reference.key)) else {
        return Ok(EndpointLookup::Missing(format!("the Secret {} has no entry {}", reference.name, reference.key)));
    };
    let (url, ca) = match address(&read, &controller).await? {
        Ok(found) => found,
        Err(why) => return Ok(EndpointLookup::Missing(why)),
    };
    Ok(match Endpoint::new(url, ca, &key, VOCABULARY.slurm_user) {
        Ok(mut endpoint) => {
            endpoint.accounting = controller.spec.accounting().is_some();
            endpoint.is_external = controller.spec.external_rest_api.is_some();
            EndpointLookup::Found(Box::new(endpoint))
        }
        Err(error) => EndpointLookup::Missing(format!("the key in the Secret {} is invalid: {error}", reference.name)),
    })
}

/// URL and certificate authority.
type Address = (String, Option<Vec<u8>>);

async fn address(read: &Reader<'_>, controller: &Controller) -> Result<Result<Address, String>, Failure> {
    // As in the Go operator: for running the operator outside the cluster.
    if std::env::var("DEBUG").is_ok_and(|value| value == "1") {
        return Ok(Ok((format!("http://localhost:{}", port::SLURMRESTD), None)));
    }
    let Some(elsewhere) = &controller.spec.external_rest_api else {
        return Ok(rest_api(read, &controller.name_any()).await?.map(|url| (url, None)));
    };
    let Some(authority) = &elsewhere.ca else { return Ok(Ok((elsewhere.url.clone(), None))) };
    let (source, bytes) = match (&authority.config_map_key_ref, &authority.secret_key_ref) {
        (Some(reference), _) => {
            let map = read.get::<ConfigMap>(&reference.name).await?;
            let text = map.and_then(|map| map.data?.remove(&reference.key));
            (format!("ConfigMap {} has no entry {}", reference.name, reference.key), text.map(String::into_bytes))
        }
        (None, Some(reference)) => {
            let secret = read.get::<Secret>(&reference.name).await?;
            let bytes = secret.and_then(|secret| secret.data?.remove(&reference.key));
            (format!("Secret {} has no entry {}", reference.name, reference.key), bytes.map(|bytes| bytes.0))
        }
        (None, None) => return Ok(Ok((elsewhere.url.clone(), None))),
    };
    Ok(bytes.map_or_else(|| Err(format!("the {source}")), |bytes| Ok((elsewhere.url.clone(), Some(bytes)))))
}

/// The URL of the Controller's oldest `RestApi` that has replicas, so that creating another one does not change the choice.
async fn rest_api(read: &Reader<'_>, controller: &str) -> Result<Result<String, String>, Failure> {
    let listed = read.list::<RestApi>(&ListParams::default()).await?;
    let mine = listed.items.into_iter().filter(|api| api.spec.controller_ref.name == controller);
    let oldest = mine.min_by_key(|api| (api.spec.replicas() == 0, api.creation_timestamp(), api.name_any()));
    Ok(oldest.map_or_else(
        || Err(format!("no RestApi refers to the Controller {controller}: create one, or set spec.externalRestApi")),
        |api| {
            let host = dns::service_host(&names::rest_api(&api.name_any()), read.namespace);
            Ok(format!("http://{host}:{}", api.spec.service_port()))
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::offline_plan;

    #[tokio::test]
    async fn the_oldest_rest_api_with_replicas_is_asked() {
        let rest_api_of = |name: &str, day: u8, replicas: u32, controller: &str| {
            json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "RestApi",
                "metadata": {"name": name, "namespace": "ns", "creationTimestamp": format!("2026-01-0{day}T00:00:00Z")},
                "spec": {"controllerRef": {"name": controller}, "replicas": replicas},
            })
        };
        let url = async |objects: Vec<serde_json::Value>| {
            let client = offline_plan::client(&Arc::new(objects));
            rest_api(&Reader { client: &client, namespace: "ns" }, "slurm").await.unwrap()
        };
        let others = rest_api_of("others", 1, 1, "other");
        let off = rest_api_of("off", 2, 0, "slurm");
        let (old, new) = (rest_api_of("old", 3, 1, "slurm"), rest_api_of("new", 4, 1, "slurm"));
        let all = vec![others.clone(), off.clone(), old, new];
        assert_eq!(url(all).await.as_deref(), Ok("http://old-restapi.ns:6820"));
        assert_eq!(url(vec![off]).await.as_deref(), Ok("http://off-restapi.ns:6820"));
        assert!(url(vec![others]).await.is_err_and(|why| why.contains("no RestApi refers to the Controller slurm")));
    }
}
