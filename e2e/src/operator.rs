//! The operator as installed by its chart.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use testkit::wait_for;
use tokio::process::Command;

use crate::{SOON, helm};

/// The operator's user name in the API server.
pub const ACCOUNT: &str = "system:serviceaccount:slurm-operator:slurm-operator";

/// The kubelet waits up to five minutes before it restarts a container that keeps crashing.
const RESTARTED: Duration = Duration::from_secs(330);

pub const NAMESPACE: &str = "slurm-operator";

/// The operator's pods.
pub async fn pods(client: &Client) -> Result<Vec<Pod>> {
    let labels = ListParams::default().labels("app.kubernetes.io/name=slurm-operator");
    Ok(Api::<Pod>::namespaced(client.clone(), NAMESPACE).list(&labels).await?.items)
}

/// The number of container restarts of the operator.
pub async fn restarts(client: &Client) -> Result<i32> {
    let statuses = |pod: Pod| pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    Ok(pods(client).await?.into_iter().flat_map(statuses).map(|status| status.restart_count).sum())
}

/// Kills the operator with SIGKILL. The kubelet restarts the container with an increasing delay, so this waits until there
/// is a process to kill.
pub async fn kill(client: &Client) -> Result<()> {
    wait_for("a process of the operator to kill", RESTARTED, async || {
        let mut killed = 0_u32;
        for pod in pods(client).await? {
            for status in pod.status.and_then(|status| status.container_statuses).unwrap_or_default() {
                let Some(id) = status.container_id.as_deref().and_then(|id| id.split("://").nth(1)) else { continue };
                for process in processes_of(id)? {
                    let sent = Command::new("kill").args(["-KILL", &process]).status().await?;
                    killed += u32::from(sent.success());
                }
            }
        }
        ensure!(killed > 0, "no process of the operator on this machine");
        Ok(())
    })
    .await
}

/// The processes of a container on any of the local nodes.
fn processes_of(container: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list processes")? {
        let path = entry?.path();
        let groups = fs::read_to_string(path.join("cgroup")).unwrap_or_default();
        if groups.contains(container) {
            found.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(found)
}

/// Scales the operator, and waits until that many pods are ready.
pub async fn run(client: &Client, replicas: u8) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch_scale("slurm-operator", &PatchParams::default(), &patch).await?;
    wait_for(&format!("{replicas} pods of the operator"), SOON, async || {
        let pods = pods(client).await?;
        ensure!(pods.len() == usize::from(replicas) && pods.iter().all(is_ready), "there are {}", pods.len());
        Ok(())
    })
    .await
}

/// Turns the changes of bindings on or off; they are off by default. Sets other values of the chart, too.
pub async fn pods_binding(is_on: bool, values: &[&str]) -> Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/slurm-operator");
    let chart = chart.to_str().context("the path of the checkout is not UTF-8")?;
    let values = [&[&*format!("webhook.podsBinding={is_on}")], values].concat().join(",");
    let args = ["upgrade", "--namespace", NAMESPACE, "--reuse-values", "--wait", "--timeout", "2m"];
    helm(&[&args[..], &["--set", &values, NAMESPACE, chart]].concat()).await?;
    Ok(())
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
