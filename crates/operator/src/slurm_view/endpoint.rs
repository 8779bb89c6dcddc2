//! Finds the slurmrestd of a cluster and the credentials for it.

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use sha2::{Digest, Sha256};
use slurm::token::Key;
use slurm_operator_api::{Controller, RestApi, names};

use crate::machine::{Failure, call};

pub(super) struct Endpoint {
    pub url: String,
    pub ca: Option<Vec<u8>>,
    pub key: Key,
    /// Identifies the key without revealing it.
    key_fingerprint: [u8; 32],
}

impl Endpoint {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.url, &self.ca, &self.key_fingerprint) == (&other.url, &other.ca, &other.key_fingerprint)
    }
}

pub(super) enum EndpointLookup {
    Found(Box<Endpoint>),
    /// What is missing, as a message for users.
    Missing(String),
    /// The Controller does not exist.
    Gone,
}

pub(super) async fn find(client: &Client, namespace: &str, name: &str) -> Result<EndpointLookup, Failure> {
    let controllers: Api<Controller> = Api::namespaced(client.clone(), namespace);
    let title = || format!("Controller {namespace}/{name}");
    let Some(controller) = call("reading", title, controllers.get_opt(name)).await? else {
        return Ok(EndpointLookup::Gone);
    };
    let Some(reference) = controller.spec.jwt_key() else {
        let why = "spec.jwtKeyRef is not set: the operator needs it to authenticate to Slurm";
        return Ok(EndpointLookup::Missing(why.to_owned()));
    };
    let secret = secret(client, namespace, &reference.name).await?;
    let Some(ByteString(bytes)) = secret.and_then(|secret| secret.data?.remove(&reference.key)) else {
        return Ok(EndpointLookup::Missing(format!("the Secret {} has no entry {}", reference.name, reference.key)));
    };
    let key_fingerprint = Sha256::digest(&bytes).into();
    let key = match Key::new(&bytes) {
        Ok(key) => key,
        Err(error) => {
            return Ok(EndpointLookup::Missing(format!(
                "the key in the Secret {} is invalid: {error}",
                reference.name
            )));
        }
    };
    let (url, ca) = match address(client, namespace, &controller).await? {
        Ok(found) => found,
        Err(why) => return Ok(EndpointLookup::Missing(why)),
    };
    Ok(EndpointLookup::Found(Box::new(Endpoint { url, ca, key, key_fingerprint })))
}

type Address = (String, Option<Vec<u8>>);

async fn address(
    client: &Client,
    namespace: &str,
    controller: &Controller,
) -> Result<Result<Address, String>, Failure> {
    // As in the Go operator: for running the operator outside the cluster.
    if std::env::var("DEBUG").is_ok_and(|value| value == "1") {
        return Ok(Ok((format!("http://localhost:{}", names::port::SLURMRESTD), None)));
    }
    let Some(elsewhere) = &controller.spec.external_rest_api else {
        return Ok(rest_api(client, namespace, &controller.name_any()).await?.map(|url| (url, None)));
    };
    let Some(authority) = &elsewhere.ca else { return Ok(Ok((elsewhere.url.clone(), None))) };
    let (source, bytes) = match (&authority.config_map_key_ref, &authority.secret_key_ref) {
        (Some(reference), _) => {
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let title = || format!("ConfigMap {namespace}/{}", reference.name);
            let map = call("reading", title, maps.get_opt(&reference.name)).await?;
            let text = map.and_then(|map| map.data?.remove(&reference.key));
            (format!("ConfigMap {} has no entry {}", reference.name, reference.key), text.map(String::into_bytes))
        }
        (None, Some(reference)) => {
            let secret = secret(client, namespace, &reference.name).await?;
            let bytes = secret.and_then(|secret| secret.data?.remove(&reference.key));
            (format!("Secret {} has no entry {}", reference.name, reference.key), bytes.map(|bytes| bytes.0))
        }
        (None, None) => return Ok(Ok((elsewhere.url.clone(), None))),
    };
    Ok(bytes.map_or_else(|| Err(format!("the {source}")), |bytes| Ok((elsewhere.url.clone(), Some(bytes)))))
}

/// The URL of the Controller's oldest `RestApi`, so that creating another one does not change the choice.
async fn rest_api(client: &Client, namespace: &str, controller: &str) -> Result<Result<String, String>, Failure> {
    let apis: Api<RestApi> = Api::namespaced(client.clone(), namespace);
    let listed = call("listing", || format!("RestApis of {namespace}"), apis.list(&ListParams::default())).await?;
    let mine = listed.items.into_iter().filter(|api| api.spec.controller_ref.name == controller);
    let oldest = mine.min_by_key(|api| (api.creation_timestamp(), api.name_any()));
    Ok(oldest.map_or_else(
        || Err(format!("no RestApi refers to the Controller {controller}: create one, or set spec.externalRestApi")),
        |api| {
            let host = names::service_host(&names::rest_api(&api.name_any()), namespace);
            Ok(format!("http://{host}:{}", api.spec.service_port()))
        },
    ))
}

async fn secret(client: &Client, namespace: &str, name: &str) -> Result<Option<Secret>, Failure> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    call("reading", || format!("Secret {namespace}/{name}"), secrets.get_opt(name)).await
}
