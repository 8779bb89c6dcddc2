//! Helpers for the tests on a real cluster: pods to run commands in, and functions to inspect them.
//!
//! `cargo xtask test --e2e` starts the cluster, loads the images and sets the environment variables that are read here.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

pub mod audit;
pub mod chart;
pub mod database;
pub mod go_operator;
pub mod managed;
pub mod operator;
pub mod pages;
pub mod prometheus;
pub mod slurm;
pub mod ssh;
pub mod workers;

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{AttachParams, LogParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{
    api_server::{TEST_LABEL, TestNamespace, client},
    wait_for,
};
use tokio::{io::AsyncReadExt, process::Command};

/// Long enough for a pod to start on a busy machine.
pub const SOON: Duration = Duration::from_secs(90);

/// The image of a Slurm daemon (or `login`) in the version under test.
pub fn slurm_image(daemon: &str) -> Result<String> {
    Ok(format!("localhost/slurm-operator/{daemon}:{}", slurm_version()?))
}

/// The Slurm version under test.
pub fn slurm_version() -> Result<String> {
    env::var("SLURM_VERSION").context("SLURM_VERSION is not set: run `cargo xtask test --e2e`")
}

/// Whether to test also what rarely differs: `cargo xtask test --matrix`.
pub fn is_matrix() -> bool {
    env::var("MATRIX").is_ok_and(|value| value == "true")
}

/// An image with a shell, for tests of the cluster itself.
pub const SHELL_IMAGE: &str = "localhost/slurm-operator/slurmctld:24.11";

/// One test on the cluster: a client and its own namespace.
pub struct Scene {
    pub client: Client,
    pub namespace: TestNamespace,
}

impl Scene {
    pub async fn start(test: &str) -> Result<Self> {
        let client = client().await?;
        let namespace = TestNamespace::create(&client, test).await?;
        // Pods are rejected until the namespace has its service account.
        let accounts = namespace.api::<k8s_openapi::api::core::v1::ServiceAccount>();
        wait_for("the namespace's service account", SOON, async || Ok(accounts.get("default").await?)).await?;
        Ok(Self { client, namespace })
    }

    pub async fn finish(self) -> Result<()> {
        self.namespace.delete().await
    }

    pub fn pods(&self) -> Api<Pod> {
        self.namespace.api()
    }

    /// Creates a pod from its spec.
    pub async fn pod(&self, name: &str, spec: Value) -> Result<Pod> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": spec,
        }))?;
        self.pods().create(&PostParams::default(), &pod).await.with_context(|| format!("cannot create the pod {name}"))
    }

    /// Has the webhook look at this namespace. Those of tests are left out by default.
    pub async fn use_webhook(&self) -> Result<()> {
        let label = Patch::Merge(json!({"metadata": {"labels": {TEST_LABEL: null}}}));
        let namespaces = Api::<Namespace>::all(self.client.clone());
        namespaces.patch(self.namespace.name(), &PatchParams::default(), &label).await?;
        Ok(())
    }

    /// Waits until the scheduler has bound a new pod.
    pub async fn is_scheduled(&self, name: &str) -> Result<()> {
        self.pod(name, script_pod(SHELL_IMAGE, "true")).await?;
        wait_for(&format!("{name} to be scheduled"), SOON, async || {
            let pod = self.pods().get(name).await?;
            pod.spec.and_then(|spec| spec.node_name).context("not yet")
        })
        .await?;
        Ok(())
    }

    /// Waits until a pod is ready.
    pub async fn ready(&self, name: &str) -> Result<Pod> {
        wait_for(&format!("the pod {name} to be ready"), SOON, async || {
            let pod = self.pods().get(name).await?;
            let status = pod.status.clone().unwrap_or_default();
            let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
            ensure!(ready, "{}", json!(status));
            Ok(pod)
        })
        .await
    }

    /// Waits until a pod has finished, and returns its output.
    pub async fn output(&self, name: &str) -> Result<String> {
        let phase = wait_for(&format!("the pod {name} to end"), SOON, async || {
            let status = self.pods().get(name).await?.status.unwrap_or_default();
            let phase = status.phase.clone().unwrap_or_default();
            ensure!(matches!(&*phase, "Succeeded" | "Failed"), "{}", json!(status));
            Ok(phase)
        })
        .await?;
        let output = self.pods().logs(name, &LogParams::default()).await?;
        ensure!(phase == "Succeeded", "the pod {name} failed with output: {output}");
        Ok(output)
    }

    /// Runs a shell command in the only container of a pod, and returns its output. A non-zero exit code is an error.
    pub async fn exec(&self, pod: &str, script: &str) -> Result<String> {
        self.exec_with(pod, script, AttachParams::default()).await
    }

    /// Runs a shell command in a container of a pod.
    pub async fn exec_in(&self, pod: &str, container: &str, script: &str) -> Result<String> {
        self.exec_with(pod, script, AttachParams::default().container(container)).await
    }

    async fn exec_with(&self, pod: &str, script: &str, params: AttachParams) -> Result<String> {
        let params = params.stdout(true).stderr(true);
        let mut process = self.pods().exec(pod, ["sh", "-c", script], &params).await?;
        let mut stdout = process.stdout().context("no stdout, though it was requested")?;
        let mut stderr = process.stderr().context("no stderr, though it was requested")?;
        let status = process.take_status().context("no status, though it was requested")?;
        let (mut output, mut errors) = (String::new(), String::new());
        tokio::try_join!(stdout.read_to_string(&mut output), stderr.read_to_string(&mut errors))?;
        let status = status.await.context("the command ended without a status")?;
        if status.status.as_deref() != Some("Success") {
            bail!("`{script}` in {pod} failed: {} {errors}", status.message.unwrap_or_default());
        }
        Ok(output)
    }
}

/// The spec of a pod that runs a shell script once.
pub fn script_pod(image: &str, script: &str) -> Value {
    json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "enableServiceLinks": false,
        "containers": [{
            "name": "main", "image": image, "imagePullPolicy": "Never", "command": ["bash", "-c", script],
        }],
    })
}

/// The spec of a pod that runs a shell script on a node, or on any node if `node` is `None`.
pub fn shell_pod(node: Option<&str>, script: &str) -> Value {
    let mut spec = script_pod(SHELL_IMAGE, script);
    if let Some(node) = node {
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    }
    spec
}

/// The spec of a pod that answers each connection on port 8080 with this text.
pub fn server_pod(node: Option<&str>, answer: &str) -> Value {
    // The image has neither netcat nor Python, but every Debian has the base modules of Perl.
    let script = format!(
        "exec perl -MIO::Socket::INET -e '
            $s = IO::Socket::INET->new(LocalPort => 8080, Listen => 5, ReuseAddr => 1) or die $!;
            while ($c = $s->accept) {{ print $c \"{answer}\\n\"; close $c }}'"
    );
    let mut spec = shell_pod(node, &script);
    spec["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    spec
}

/// A script that prints the answer of a [`server_pod`].
pub fn ask(address: &str) -> String {
    format!("bash -c 'timeout 5 cat < /dev/tcp/{address}/8080'")
}

/// Breaks or repairs a node of the local cluster.
pub async fn xtask_node(action: &str, node: u8) -> Result<()> {
    xtask(&["cluster", "node", action, &node.to_string()]).await.map(drop)
}

/// Runs kubectl and returns its output.
pub async fn kubectl(args: &[&str]) -> Result<String> {
    xtask(&[&["cluster", "kubectl"], args].concat()).await
}

/// Runs helm and returns its output.
pub async fn helm(args: &[&str]) -> Result<String> {
    xtask(&[&["cluster", "helm"], args].concat()).await
}

async fn xtask(args: &[&str]) -> Result<String> {
    let xtask = PathBuf::from(env::var_os("XTASK").context("XTASK is not set: run `cargo xtask test --e2e`")?);
    let output = Command::new(xtask).args(args).output().await?;
    ensure!(output.status.success(), "{}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until a node is ready or, if `ready` is false, not ready.
pub async fn node_ready(client: &Client, name: &str, ready: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    wait_for(&format!("the node {name} to be ready: {ready}"), SOON, async || {
        let node = nodes.get(name).await?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions.iter().find(|c| c.type_ == "Ready").context("it has no Ready condition")?;
        ensure!((condition.status == "True") == ready, "Ready is {}", condition.status);
        Ok(())
    })
    .await
}

/// The names of the cluster's nodes.
pub async fn node_names(client: &Client) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    Ok(nodes.list(&kube::api::ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
}
