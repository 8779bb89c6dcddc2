//! The operator as installed by its chart.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    pages::{self, Shell},
};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams},
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

/// The same release again, as docs/versioning.md says.
#[tokio::test]
async fn it_is_upgraded_by_the_documented_commands() -> Result<()> {
    let upgrade = pages::commands("versioning", "Upgrade the operator")?;
    Shell::new("upgrade")?.run(&upgrade).await?;
    Ok(())
}
