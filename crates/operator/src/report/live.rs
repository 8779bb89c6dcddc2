//! What servers say that run in pods: the operator and slurmrestd. They are reached through the API server, as by `kubectl port-forward`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod as CorePod;
use kube::Api;
use serde_json::Value;
use slurm::client::{Auth, Client, Error};
use slurm_operator_api::common::port;
use tokio::{io::copy_bidirectional, net::TcpListener, task::JoinHandle};

use super::{plan_parts::text, plan_slurm::SlurmFacts};
use crate::{
    failure::call,
    frontends::{self, slinky::cluster_key},
    get,
    slurm_view::{Endpoint, EndpointLookup, describe},
    status::model::{Facts, Object},
};

/// Lifetime of the token that Slurm is asked with.
const LIFETIME: SignedDuration = SignedDuration::from_mins(5);

/// Timeout of a call to Slurm.
const CALL: Duration = Duration::from_secs(30);

/// A port of a pod on this machine. It closes when this is dropped.
struct Forward {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Forward {
    async fn to(client: &kube::Client, namespace: &str, pod: &str, port: u16) -> Result<Self, String> {
        let pods = Api::<CorePod>::namespaced(client.clone(), namespace);
        // A missing right is found here, and not by a connection that breaks.
        let title = || format!("Pod {namespace}/{pod}");
        call("forwarding a port of", title, pods.portforward(pod, &[port])).await.map_err(|failure| failure.text())?;
        let listen = async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            Ok::<_, std::io::Error>((listener.local_addr()?, listener))
        };
        let (address, listener) = listen.await.map_err(|error| format!("cannot listen on this machine: {error}"))?;
        let pod = pod.to_owned();
        let task = tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let (pods, pod) = (pods.clone(), pod.clone());
                tokio::spawn(async move {
                    // Who has connected sees that it is closed.
                    if let Ok(mut forward) = pods.portforward(&pod, &[port]).await
                        && let Some(mut stream) = forward.take_stream(port)
                    {
                        drop(copy_bidirectional(&mut connection, &mut stream).await);
                    }
                });
            }
        });
        Ok(Self { address, task })
    }
}

/// A page of the operator, from the port that a flag of its pod names.
pub async fn page(client: &kube::Client, pod: &Value, flag: &str, default: u16, path: &str) -> Result<String, String> {
    let port = port_of(pod, flag).unwrap_or(default);
    if port == 0 {
        return Err(format!("{flag} turns it off"));
    }
    let forward = Forward::to(client, text(pod, "/metadata/namespace"), text(pod, "/metadata/name"), port).await?;
    let url = format!("http://{}{path}", forward.address);
    // It blocks.
    let page = tokio::task::spawn_blocking(move || get::page(&url)).await;
    page.map_err(|error| error.to_string())?.map_err(|error| format!("{error:#}"))
}

/// The port in an argument such as `--health-addr=:8081`.
fn port_of(pod: &Value, flag: &str) -> Option<u16> {
    let args = pod.pointer("/spec/containers/0/args").and_then(Value::as_array)?;
    let value = args.iter().filter_map(Value::as_str).find_map(|arg| arg.strip_prefix(flag)?.strip_prefix('='))?;
    value.rsplit(':').next()?.parse().ok()
}

/// What a Slurm cluster says, and what it did not. It is asked with a token that is signed by its key: who may not read that gets
/// nothing.
pub async fn slurm(
    client: &kube::Client,
    controller: &Object,
    facts: &Facts,
) -> Result<(SlurmFacts, Vec<String>), String> {
    let endpoint = endpoint(client, controller).await?;
    if endpoint.is_external && !endpoint.url.starts_with("https://") {
        return Err(
            "its slurmrestd is elsewhere and without TLS: the token could be read on the way from here".to_owned()
        );
    }
    let forward = if endpoint.is_external {
        None
    } else {
        let pod = rest_pod(controller, facts).ok_or("no slurmrestd pod of it is ready")?;
        let port = u16::try_from(port::SLURMRESTD).map_err(|error| error.to_string())?;
        Some(Forward::to(client, &controller.namespace, pod, port).await?)
    };
    let url = forward.as_ref().map_or_else(|| endpoint.url.clone(), |forward| format!("http://{}", forward.address));
    let builder = Client::builder(&url).auth(Auth::mint(endpoint.key.clone(), endpoint.user, LIFETIME));
    let builder = if let Some(ca) = endpoint.ca { builder.ca_pem(ca) } else { builder };
    let builder = if endpoint.is_external { builder.hide_answers() } else { builder };
    let client =
        builder.timeout(CALL).list_timeout(CALL).retries(0).connect().await.map_err(|error| describe(&error))?;
    Ok(ask(&client).await)
}

async fn endpoint(client: &kube::Client, controller: &Object) -> Result<Endpoint, String> {
    let key = cluster_key(&controller.namespace, &controller.name);
    for clusters in frontends::clusters() {
        match clusters.find(client, &key).await.map_err(|failure| failure.text())? {
            EndpointLookup::Found(endpoint) => return Ok(*endpoint),
            EndpointLookup::Missing(why) => return Err(why),
            EndpointLookup::Gone => {}
        }
    }
    Err("it is gone".to_owned())
}

/// A slurmrestd of a cluster that is ready.
fn rest_pod<'a>(controller: &Object, facts: &'a Facts) -> Option<&'a str> {
    let is_of = |object: &&Object| {
        object.kind == "RestApi"
            && object.namespace == controller.namespace
            && object.text("/spec/controllerRef/name") == controller.name
    };
    let apis: Vec<&Object> = facts.objects.iter().filter(is_of).collect();
    let is_of = |pod: &&crate::status::model::Pod| {
        pod.program == "slurmrestd"
            && pod.is_ready
            && apis.iter().any(|api| api.namespace == pod.namespace && api.name == pod.instance)
    };
    facts.pods.iter().find(is_of).map(|pod| pod.name.as_str())
}

/// Everything, each on its own.
async fn ask(client: &Client) -> (SlurmFacts, Vec<String>) {
    let mut problems = Vec::new();
    let (pings, diag, partitions, reservations, nodes, jobs) = tokio::join!(
        client.ping(),
        client.diag(),
        client.partitions(),
        client.reservations(),
        client.nodes(),
        client.jobs()
    );
    let version = client.slurm_version().map_or_else(|| "unknown".to_owned(), |version| version.to_string());
    let facts = SlurmFacts {
        version: format!("{version}, REST {}", client.rest_version()),
        pings: keep("ping", pings, &mut problems).map(|answer| answer.body).unwrap_or_default(),
        diag: keep("statistics", diag, &mut problems).map(|answer| answer.body),
        partitions: keep("partitions", partitions, &mut problems).map(|answer| answer.body.items).unwrap_or_default(),
        reservations: keep("reservations", reservations, &mut problems)
            .map(|answer| answer.body.items)
            .unwrap_or_default(),
        nodes: keep("nodes", nodes, &mut problems).map(|answer| answer.body.items).unwrap_or_default(),
        jobs: keep("jobs", jobs, &mut problems).map(|answer| answer.body.items).unwrap_or_default(),
    };
    (facts, problems)
}

fn keep<T>(what: &str, answer: Result<T, Error>, problems: &mut Vec<String>) -> Option<T> {
    answer.map_err(|error| problems.push(format!("{what}: {}", describe(&error)))).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_port_of_a_page_is_that_of_the_flag() {
        let pod =
            json!({"spec": {"containers": [{"args": ["manager", "--health-addr=:9081", "--metrics-addr=[::]:0"]}]}});
        assert_eq!(port_of(&pod, "--health-addr"), Some(9081));
        assert_eq!(port_of(&pod, "--metrics-addr"), Some(0));
        assert_eq!(port_of(&pod, "--other-addr"), None);
    }
}
