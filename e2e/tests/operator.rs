//! The operator as installed by its chart.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

use anyhow::{Context, Result, ensure};
use e2e::{
    SHELL_IMAGE, SOON, Scene, helm, operator,
    pages::{self, Shell},
    script_pod,
};
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        core::v1::{Binding, Node, Pod, Secret},
    },
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use testkit::wait_for;
use tokio::sync::Mutex;

/// Held by tests that upgrade the operator's release, which Helm does one by one, that end the operator, or that ask it.
static ALONE: Mutex<()> = Mutex::const_new(());

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
    let _alone = ALONE.lock().await;
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

/// `helm test` asks the operator and the webhook whether they are ready, with the program in their image.
#[tokio::test]
async fn helm_test_passes_and_the_debug_page_is_printed_in_the_pod() -> Result<()> {
    let _alone = ALONE.lock().await;
    // The Service needs a moment if another test has just ended the operator.
    wait_for("helm test to pass", SOON, async || {
        let test = ["test", "--namespace", operator::NAMESPACE, "--timeout", "1m", operator::NAMESPACE];
        let passed = helm(&test).await?;
        ensure!(passed.matches("Succeeded").count() == 2, "{passed}");
        Ok(())
    })
    .await?;
    let scene = Scene::start("debug-page").await?;
    let shell = Shell::new(scene.namespace.name())?;
    let get = "-- /slurm-operator get http://localhost:8081/debug/vars";
    let page =
        shell.run(&format!("kubectl --namespace {} exec deployment/slurm-operator {get}", operator::NAMESPACE)).await?;
    let page: Value = serde_json::from_str(&page).context(page)?;
    ensure!(page["slurm"].is_array() && page["waiting"].is_object(), "{page}");
    scene.finish().await
}

/// Scales the webhook, and waits until that many pods are ready.
async fn run_webhooks(scene: &Scene, replicas: i32) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(scene.client.clone(), operator::NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch_scale("slurm-operator-webhook", &PatchParams::default(), &patch).await?;
    let pods = Api::<Pod>::namespaced(scene.client.clone(), operator::NAMESPACE);
    let labels = ListParams::default().labels("app.kubernetes.io/name=slurm-operator-webhook");
    wait_for(&format!("{replicas} webhooks"), SOON, async || {
        let ready = pods.list(&labels).await?.iter().filter(|pod| operator::is_ready(pod)).count();
        ensure!(i32::try_from(ready)? == replicas, "{ready} are ready");
        Ok(())
    })
    .await
}

/// A worker for the binding below: no scheduler binds it.
fn unbound(name: &str) -> Result<Pod> {
    let mut spec = script_pod(SHELL_IMAGE, "true");
    spec["schedulerName"] = json!("nobody");
    let labels = json!({"app.kubernetes.io/name": "slurmd"});
    Ok(serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}))?)
}

/// Binds a new worker to a node, and returns its topology.
async fn topology(scene: &Scene, name: &str, node: &str) -> Result<Option<String>> {
    scene.pods().create(&PostParams::default(), &unbound(name)?).await?;
    let binding: Binding =
        serde_json::from_value(json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}))?;
    let _: Value = scene.pods().create_subresource("binding", name, &PostParams::default(), &binding).await?;
    let pod = scene.pods().get(name).await?;
    ensure!(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node), "it is not bound");
    Ok(pod.annotations().get("topology.slinky.slurm.net/spec").cloned())
}

/// What the webhook does with the permissions and the configuration of the chart, and that nothing else needs it.
#[tokio::test]
async fn the_webhook_refuses_mistakes_and_its_absence_stops_no_pod() -> Result<()> {
    let _alone = ALONE.lock().await;
    let scene = Scene::start("webhook").await?;
    let name = scene.namespace.name().to_owned();
    scene.use_webhook().await?;
    let nodes = Api::<Node>::all(scene.client.clone());
    let place = json!({"topology.slinky.slurm.net/spec": "tree:s1"});
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "annotations": place}}))?;

    operator::pods_binding(true, &[]).await?;
    nodes.create(&PostParams::default(), &node).await?;
    let result = with_and_without_webhook(&scene, &name).await;
    // Whatever happened: other tests run on this cluster.
    let removed = nodes.delete(&name, &DeleteParams::default()).await;
    run_webhooks(&scene, 1).await?;
    operator::pods_binding(false, &[]).await?;
    result?;
    removed?;
    scene.finish().await
}

async fn with_and_without_webhook(scene: &Scene, node: &str) -> Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("slinky.slurm.net", "v1beta1", "Token"));
    let token = |name: &str, lifetime: &str| {
        let key = json!({"name": "keys", "key": "jwt.key"});
        let spec = json!({"spec": {"username": "alice", "jwtKeyRef": key, "lifetime": lifetime}});
        DynamicObject::new(name, &kind).data(spec)
    };
    let create = async |token: DynamicObject| tokens(scene).create(&PostParams::default(), &token).await;
    wait_for("mistakes to be refused", SOON, async || {
        let refused = create(token("short", "1s")).await.err().context("it was accepted")?.to_string();
        ensure!(refused.contains("denied the request: spec.lifetime: must be at least 30 seconds"), "{refused}");
        Ok(())
    })
    .await?;
    create(token("good", "1h")).await?;
    let mut pods = 0;
    wait_for("a worker to get its topology when it is bound", SOON, async || {
        pods += 1;
        let found = topology(scene, &format!("worker-{pods}"), node).await?;
        ensure!(found.as_deref() == Some("tree:s1"), "{found:?}");
        Ok(())
    })
    .await?;

    run_webhooks(scene, 0).await?;
    wait_for("changes to be refused without a webhook", SOON, async || {
        let refused = create(token("another", "1h")).await.err().context("it was accepted")?.to_string();
        ensure!(refused.contains("failed calling webhook"), "{refused}");
        Ok(())
    })
    .await?;
    scene.is_scheduled("other").await?;
    assert_eq!(topology(scene, "late-0", node).await?, None);
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    tokens(scene).patch("good", &PatchParams::default(), &label).await?;
    tokens(scene).delete("good", &DeleteParams::default()).await?;
    Ok(())
}

/// The same release again, as docs/versioning.md says.
#[tokio::test]
async fn it_is_upgraded_by_the_documented_commands() -> Result<()> {
    let _alone = ALONE.lock().await;
    let upgrade = pages::commands("versioning", "Upgrade the operator")?;
    Shell::new("upgrade")?.run(&upgrade).await?;
    Ok(())
}
