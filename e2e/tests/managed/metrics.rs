//! slurmctld's own metrics, and the `ServiceMonitor` for them. There is no Prometheus here: the test requests what it would.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER},
    slurm_version,
};
use k8s_openapi::{
    api::core::v1::Service, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slurm_operator_api::{common::conditions::reason, slinky::names};
use testkit::wait_for;

const CRD: &str = "servicemonitors.monitoring.coreos.com";

#[tokio::test]
async fn slurmctld_is_scraped_if_prometheus_is_there() -> Result<()> {
    let scene = Scene::start("metrics").await?;
    let mut controller = managed::controller()?;
    controller["metrics"] =
        json!({"enabled": true, "serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}}});
    managed::put(&scene, "Controller", CLUSTER, controller).await?;
    if slurm_version()?.as_str() < "25.11" {
        managed::wait_for_problem(&scene, "Controller", CLUSTER, reason::SLURM_TOO_OLD, &["metrics"]).await?;
        return scene.finish().await;
    }
    managed::wait_for_problem(&scene, "Controller", CLUSTER, "NoServiceMonitors", &["Prometheus operator"]).await?;

    let crds = Api::<CustomResourceDefinition>::all(scene.client.clone());
    crds.create(&PostParams::default(), &crd()?).await?;
    let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", "ServiceMonitor");
    let monitors: Api<DynamicObject> = scene.namespace.dynamic_api(&ApiResource::from_gvk(&kind));
    wait_for("the API server to know the kind", SOON, async || Ok(monitors.list(&ListParams::default()).await?))
        .await?;
    managed::change(&scene, "Controller", CLUSTER, json!({"metrics": {"serviceMonitor": {"interval": "30s"}}})).await?;
    let monitor =
        wait_for("the ServiceMonitor", SOON, async || Ok(monitors.get(&names::controller(CLUSTER)).await?)).await?;
    assert_eq!(monitor.metadata.labels.context("no labels")?["release"], "prometheus");

    let service = scene.namespace.api::<Service>().get(&names::controller(CLUSTER)).await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
    let endpoints = monitor.data["spec"]["endpoints"].as_array().context("no endpoints")?.clone();
    assert_eq!(endpoints.len(), 4);
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
    for endpoint in endpoints {
        let url = format!("http://{address}:6817{}", endpoint["path"].as_str().context("no path")?);
        wait_for(&format!("metrics at {url}"), SOON, async || {
            let answer = client.get(&url).send().await?;
            let (status, text) = (answer.status(), answer.text().await?);
            ensure!(status.is_success() && text.contains("# TYPE slurm_"), "{status}: {text}");
            Ok(())
        })
        .await?;
    }

    managed::change(&scene, "Controller", CLUSTER, json!({"metrics": {"serviceMonitor": {"enabled": false}}})).await?;
    wait_for("the ServiceMonitor to go", SOON, async || {
        ensure!(monitors.get_opt(&names::controller(CLUSTER)).await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    crds.delete(CRD, &DeleteParams::default()).await?;
    scene.finish().await
}

/// The kind of the Prometheus operator, without its schema.
fn crd() -> Result<CustomResourceDefinition> {
    let schema: Value = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": CRD},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    }))?)
}
