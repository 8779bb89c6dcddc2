//! From nothing to the first job.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene, chart, kubectl,
    managed::{self, CLUSTER, ManagedSlurm, uids},
    slurm_version,
};
use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};
use testkit::wait_for;

#[tokio::test]
async fn every_kind_gets_ready_and_a_job_runs_on_all_workers() -> Result<()> {
    let scene = Scene::start("first-cluster").await?;
    let cluster = ManagedSlurm::start(&scene, 2).await?;
    let token = json!({"username": "slurm", "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"}});
    managed::put(&scene, "Token", "me", token).await?;
    for object in ["controller/slurm", "restapi/slurm", "nodeset/workers", "token/me"] {
        let namespace = format!("--namespace={}", scene.namespace.name());
        kubectl(&["wait", &namespace, "--for=condition=Ready", "--timeout=60s", object]).await?;
    }
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-0", "workers-1"]);

    // The Controller's status has what the operator found.
    let status = wait_for("slurmctld to answer a ping", SOON, async || {
        let status = managed::resources(&scene, "Controller").get(CLUSTER).await?.data["status"].clone();
        ensure!(status["slurmctld"][0]["responding"] == true, "{status}");
        Ok(status)
    })
    .await?;
    let version = status["slurmVersion"].as_str().unwrap_or_default();
    assert!(version.starts_with(&format!("{}.", slurm_version()?)), "{status}");
    assert!(status["restVersion"].as_str().is_some_and(|rest| rest.starts_with("v0.0.")), "{status}");
    scene.finish().await
}

/// As with `cargo xtask up`.
#[tokio::test]
async fn the_chart_creates_a_cluster_and_keeps_its_keys() -> Result<()> {
    let scene = Scene::start("chart").await?;
    chart::install(&scene, json!({"replicas": 2})).await?;
    for (kind, name) in [("Controller", "slurm"), ("RestApi", "slurm"), ("NodeSet", "slurm-worker-cpu")] {
        managed::ready(&scene, kind, name).await?;
    }
    let cluster = ManagedSlurm::of(&scene);
    assert_eq!(cluster.srun("--nodes=2 --partition=all", "hostname").await?, ["cpu-0", "cpu-1"]);

    let before = (keys(&scene).await?, pods(&scene).await?);
    chart::install(&scene, json!({"replicas": 2})).await?;
    managed::ready(&scene, "NodeSet", "slurm-worker-cpu").await?;
    assert_eq!((keys(&scene).await?, pods(&scene).await?), before, "the same values must change nothing");
    scene.finish().await
}

/// The Secrets with the keys, which an upgrade must not replace.
async fn keys(scene: &Scene) -> Result<Vec<Value>> {
    let secrets = scene.namespace.api::<Secret>();
    let mut keys = Vec::new();
    for (name, key) in [("slurm-auth-slurm", "slurm.key"), ("slurm-auth-jwt", "jwt.key")] {
        let secret = secrets.get(name).await?;
        let data = secret.data.as_ref().and_then(|data| data.get(key)).with_context(|| format!("no {key}"))?;
        ensure!(data.0.len() >= 32, "{key} is too short to be a key");
        keys.push(json!([secret.uid(), data]));
    }
    Ok(keys)
}

async fn pods(scene: &Scene) -> Result<std::collections::BTreeSet<String>> {
    Ok(uids(&scene.pods().list(&ListParams::default()).await?.items))
}
