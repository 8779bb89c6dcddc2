//! slurmrestd answers while its pods are replaced.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER},
};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::{ResourceExt, api::ListParams};
use serde_json::json;
use slurm_operator_api::slinky::names;
use testkit::wait_for;
use tokio::{sync::watch, task::JoinSet, time};

/// Fifty requests a second.
const PERIOD: Duration = Duration::from_millis(20);

/// One pod, so that there is no other that could answer.
#[tokio::test]
async fn no_request_fails_while_slurmrestd_is_replaced() -> Result<()> {
    let scene = Scene::start("rest").await?;
    managed::put(&scene, "Controller", CLUSTER, managed::controller()?).await?;
    let mut rest_api = managed::rest_api()?;
    // It is shorter than slurmrestd takes to end.
    rest_api["template"]["spec"]["terminationGracePeriodSeconds"] = json!(30);
    managed::put(&scene, "RestApi", CLUSTER, rest_api).await?;
    let token = json!({"username": "slurm", "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"}});
    managed::put(&scene, "Token", "load", token).await?;
    for (kind, name) in [("Controller", CLUSTER), ("RestApi", CLUSTER), ("Token", "load")] {
        managed::ready(&scene, kind, name).await?;
    }
    let client = Arc::new(Client::new(&scene).await?);
    wait_for("slurmrestd to answer", SOON, async || client.ping().await).await?;

    let (stop, stopped) = watch::channel(false);
    let load = tokio::spawn(load(Arc::clone(&client), stopped));
    let before = pods(&scene).await?;
    let again = json!({"template": {"metadata": {"annotations": {"example.com/restarted": "once"}}}});
    managed::change(&scene, "RestApi", CLUSTER, again).await?;
    wait_for("the old pod to end", SOON, async || {
        let now = pods(&scene).await?;
        ensure!(now.len() == 1 && now.iter().all(|pod| !before.contains(pod)), "{before:?} became {now:?}");
        Ok(())
    })
    .await?;
    managed::ready(&scene, "RestApi", CLUSTER).await?;
    let _ = stop.send(true);
    let (answered, failures) = load.await?;
    ensure!(failures.is_empty(), "{} of {} failed: {failures:?}", failures.len(), answered + failures.len());
    ensure!(answered > 100, "only {answered} requests were sent");
    scene.finish().await
}

/// The slurmrestd pods, also those that end.
async fn pods(scene: &Scene) -> Result<Vec<String>> {
    let labels = format!("{}={CLUSTER},{}=slurmrestd", names::label::INSTANCE, names::label::NAME);
    let pods = scene.namespace.api::<Pod>().list(&ListParams::default().labels(&labels)).await?;
    Ok(pods.iter().map(ResourceExt::name_any).collect())
}

/// Sends requests until it is stopped. Returns how many were answered, and why others failed.
async fn load(client: Arc<Client>, stopped: watch::Receiver<bool>) -> (usize, Vec<String>) {
    let mut requests = JoinSet::new();
    let mut clock = time::interval(PERIOD);
    while !*stopped.borrow() {
        clock.tick().await;
        let client = Arc::clone(&client);
        requests.spawn(async move { client.ping().await });
    }
    let results = requests.join_all().await;
    let sent = results.len();
    let failures: Vec<String> = results.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    (sent - failures.len(), failures)
}

struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Client {
    /// For the Service of slurmrestd. Like curl, it makes a new connection for each request.
    async fn new(scene: &Scene) -> Result<Self> {
        let service = scene.namespace.api::<Service>().get(&names::rest_api(CLUSTER)).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        let rest = wait_for("the version of the REST API", SOON, async || {
            let status = managed::resources(scene, "Controller").get(CLUSTER).await?.data;
            Ok(status
                .pointer("/status/restVersion")
                .and_then(serde_json::Value::as_str)
                .context("it is not known yet")?
                .to_owned())
        })
        .await?;
        let secret = scene.namespace.api::<Secret>().get("load-jwt-slurm").await?;
        let token = secret.data.and_then(|mut data| data.remove("SLURM_JWT")).context("the Secret has no token")?;
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let builder = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0);
        Ok(Self {
            http: builder.timeout(Duration::from_secs(20)).build()?,
            url: format!("http://{address}:6820/slurm/{rest}/ping"),
            token: String::from_utf8(token.0)?,
        })
    }

    async fn ping(&self) -> Result<()> {
        let response = self.http.get(&self.url).header("X-SLURM-USER-TOKEN", &self.token).send().await?;
        let (status, text) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "{status}: {text}");
        Ok(())
    }
}
