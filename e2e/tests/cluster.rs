//! The local cluster works: nodes, network, DNS, volumes, exec, logs and port-forward.

use anyhow::{Context, Result, ensure};
use e2e::{SOON, Scene, ask, node_names, node_ready, server_pod, shell_pod};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::api::{LogParams, PostParams};
use serde_json::json;
use testkit::wait_for;
use tokio::io::AsyncReadExt;

#[tokio::test]
async fn every_node_is_ready() -> Result<()> {
    let client = testkit::api_server::client().await?;
    let names = node_names(&client).await?;
    assert_eq!(names, ["node1", "node2", "node3"]);
    for name in names {
        node_ready(&client, &name, true).await?;
    }
    Ok(())
}

#[tokio::test]
async fn pods_reach_each_other_by_address_and_by_service() -> Result<()> {
    let scene = Scene::start("network").await?;
    scene.pod("server", server_pod(Some("node1"), "hello")).await?;
    scene.pod("near", shell_pod(Some("node1"), "sleep infinity")).await?;
    scene.pod("far", shell_pod(Some("node2"), "sleep infinity")).await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 8080}]},
    }))?;
    scene.namespace.api::<Service>().create(&PostParams::default(), &service).await?;
    let server = scene.ready("server").await?;
    let address = server.status.and_then(|status| status.pod_ip).context("the server has no address")?;

    for client in ["near", "far"] {
        scene.ready(client).await?;
        assert_eq!(scene.exec(client, &ask(&address)).await?, "hello\n", "{client} by address");
        wait_for(&format!("an answer to {client} through the service"), SOON, async || {
            let answer = scene.exec(client, &ask("server")).await?;
            ensure!(answer == "hello\n", "{answer}");
            Ok(())
        })
        .await?;
    }
    // A pod reaches itself through its own service.
    assert_eq!(scene.exec("server", &ask("server")).await?, "hello\n");
    scene.finish().await
}

#[tokio::test]
async fn names_resolve_in_pods() -> Result<()> {
    let scene = Scene::start("dns").await?;
    scene.pod("resolver", shell_pod(None, "getent hosts kubernetes.default.svc.cluster.local")).await?;
    let output = scene.output("resolver").await?;
    assert!(output.starts_with("10.96.0.1 "), "{output}");
    scene.finish().await
}

#[tokio::test]
async fn a_dynamic_volume_is_shared_between_nodes_and_writable_without_root() -> Result<()> {
    let scene = Scene::start("volumes").await?;
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    scene.namespace.api::<PersistentVolumeClaim>().create(&PostParams::default(), &claim).await?;
    let pod = |node: &str, script: &str| {
        let mut spec = shell_pod(Some(node), script);
        spec["securityContext"] = json!({"runAsUser": 401, "runAsGroup": 401, "fsGroup": 401});
        spec["volumes"] = json!([{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
        spec
    };
    scene.pod("writer", pod("node1", "set -e; id -u; echo from node1 > /shared/file")).await?;
    assert_eq!(scene.output("writer").await?, "401\n");
    scene.pod("reader", pod("node2", "cat /shared/file")).await?;
    assert_eq!(scene.output("reader").await?, "from node1\n");
    scene.finish().await
}

#[tokio::test]
async fn exec_logs_and_port_forward_work() -> Result<()> {
    let scene = Scene::start("looking").await?;
    scene.pod("server", server_pod(Some("node3"), "forwarded")).await?;
    scene.pod("talker", shell_pod(Some("node2"), "echo one; echo two >&2; sleep infinity")).await?;
    scene.ready("server").await?;
    scene.ready("talker").await?;

    assert_eq!(scene.exec("talker", "echo $((6 * 7))").await?, "42\n");
    let failed =
        scene.exec("talker", "echo no >&2; exit 3").await.err().context("a failed command must be an error")?;
    assert!(failed.to_string().contains("exit code 3"), "{failed}");

    wait_for("the logs", SOON, async || {
        let logs = scene.pods().logs("talker", &LogParams::default()).await?;
        ensure!(logs.contains("one\n") && logs.contains("two\n"), "{logs}");
        Ok(())
    })
    .await?;

    let mut forwarder = scene.pods().portforward("server", &[8080]).await?;
    let mut stream = forwarder.take_stream(8080).context("no stream for the port")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert_eq!(answer, "forwarded\n");
    scene.finish().await
}
