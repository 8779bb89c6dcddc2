//! The operator as installed by its chart.

use std::{env, fs, process};

use anyhow::{Context, Result, ensure};
use e2e::{SOON, Scene, chart, helm};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::json;
use testkit::wait_for;

fn tokens(scene: &Scene) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("slinky.slurm.net", "v1beta1", "Token");
    scene.namespace.dynamic_api(&ApiResource::from_gvk_with_plural(&kind, "tokens"))
}

async fn put_token(scene: &Scene, name: &str) -> Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("slinky.slurm.net", "v1beta1", "Token"));
    let spec = json!({"spec": {"username": "alice", "jwtKeyRef": {"name": "keys", "key": "jwt.key"}}});
    let token = DynamicObject::new(name, &kind).data(spec);
    tokens(scene).create(&PostParams::default(), &token).await?;
    Ok(())
}

/// Waits until a Token is ready and its Secret has a token.
async fn ready(scene: &Scene, name: &str) -> Result<()> {
    let secrets = scene.namespace.api::<Secret>();
    wait_for(&format!("the Token {name} to be ready"), SOON, async || {
        let token = tokens(scene).get(name).await?;
        let conditions = token.data.pointer("/status/conditions").and_then(|all| all.as_array()).context("none yet")?;
        ensure!(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"), "{conditions:?}");
        let secret = secrets.get(&format!("{name}-jwt-alice")).await?;
        ensure!(secret.data.unwrap_or_default().contains_key("SLURM_JWT"), "the Secret has no token");
        Ok(())
    })
    .await
}

/// The operator runs with the permissions of its chart, unlike in the API server tests.
#[tokio::test]
async fn a_token_gets_its_secret_also_after_the_operator_was_killed() -> Result<()> {
    let scene = Scene::start("operator").await?;
    let keys = Secret {
        metadata: ObjectMeta { name: Some("keys".into()), ..ObjectMeta::default() },
        data: Some([("jwt.key".to_owned(), ByteString(vec![7; 32]))].into()),
        ..Secret::default()
    };
    scene.namespace.api::<Secret>().create(&PostParams::default(), &keys).await?;
    put_token(&scene, "first").await?;
    ready(&scene, "first").await?;

    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), "slurm-operator");
    let labels = ListParams::default().labels("app.kubernetes.io/name=slurm-operator");
    let operators = pods.list(&labels).await?;
    ensure!(!operators.items.is_empty(), "the operator is not installed");
    for pod in operators {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    }
    put_token(&scene, "second").await?;
    ready(&scene, "second").await?;

    // The Secret is deleted with its Token.
    tokens(&scene).delete("first", &DeleteParams::default()).await?;
    wait_for("its Secret to be deleted", SOON, async || {
        let left = scene.namespace.api::<Secret>().get_opt("first-jwt-alice").await?;
        ensure!(left.is_none(), "it still exists");
        Ok(())
    })
    .await?;
    scene.finish().await
}

/// The Go operator's chart contains the keys of a cluster, and ours does not: Helm deletes what a release no longer contains.
#[tokio::test]
async fn an_upgrade_from_the_chart_of_the_go_operator_does_not_delete_keys() -> Result<()> {
    let scene = Scene::start("helm-upgrade").await?;
    let theirs = env::temp_dir().join(format!("chart-{}", process::id()));
    fs::create_dir_all(theirs.join("templates"))?;
    fs::write(theirs.join("Chart.yaml"), "{apiVersion: v2, name: slurm, version: 1.3.0}")?;
    let secret = |name: &str, key: &str| {
        let metadata = json!({"name": name, "namespace": scene.namespace.name()});
        json!({"apiVersion": "v1", "kind": "Secret", "immutable": true, "metadata": metadata, "stringData": {key: "k".repeat(64)}})
    };
    let secrets = [secret("slurm-auth-slurm", "slurm.key"), secret("slurm-auth-jwt", "jwt.key")];
    fs::write(theirs.join("templates/keys.yaml"), secrets.map(|secret| secret.to_string()).join("\n---\n"))?;
    let ours = chart::folder();
    let (theirs_path, ours) = (theirs.to_str().context("not UTF-8")?, ours.to_str().context("not UTF-8")?);
    let release = ["--namespace", scene.namespace.name(), chart::RELEASE];
    helm(&[&["install"], &release[..], &[theirs_path]].concat()).await?;
    fs::remove_dir_all(&theirs)?;
    // Only the keys matter here.
    let values = ["--set", "controller.external=true,controller.externalConfig.host=slurm.example,restapi.replicas=0"];
    let upgrade = [&["upgrade"], &release[..], &[ours], &values[..]].concat();

    let refused = helm(&upgrade).await.err().context("Helm would have deleted the keys")?.to_string();
    let command = "annotate secret slurm-auth-slurm slurm-auth-jwt helm.sh/resource-policy=keep";
    ensure!(refused.contains(command), "{refused}");
    let keys = scene.namespace.api::<Secret>();
    let keep = Patch::Merge(json!({"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}));
    for name in ["slurm-auth-slurm", "slurm-auth-jwt"] {
        keys.patch(name, &PatchParams::default(), &keep).await?;
    }
    helm(&upgrade).await?;
    for name in ["slurm-auth-slurm", "slurm-auth-jwt"] {
        ensure!(keys.get_opt(name).await?.is_some(), "{name} is gone");
    }
    helm(&upgrade).await?;
    chart::uninstall(&scene).await?;
    scene.finish().await
}
