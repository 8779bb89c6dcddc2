//! The exporter of the chart: jobs that run and fail, nodes that are drained, and a slurmrestd that goes away and comes back. There is no
//! Prometheus here: the test requests what it would.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    chart::{self, NODE_SET, RELEASE},
    managed,
};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use testkit::wait_for;

const SLURMCTLD: &str = "slurm-controller-0";

/// What Prometheus reads.
struct Exporter {
    http: reqwest::Client,
    address: String,
}

impl Exporter {
    async fn of(scene: &Scene) -> Result<Self> {
        let service = scene.namespace.api::<Service>().get("slurm-exporter").await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        Ok(Self { http: reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?, address })
    }

    async fn get(&self, page: &str) -> Result<(u16, String)> {
        let answer = self.http.get(format!("http://{}:{page}", self.address)).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// Waits until a line of the metrics has all of these parts.
    async fn shows(&self, parts: &[&str]) -> Result<()> {
        wait_for(&format!("a series with {parts:?}"), SOON, async || {
            let (status, text) = self.get("8080/metrics").await?;
            ensure!(status == 200 && text.lines().any(|line| parts.iter().all(|part| line.contains(part))), "{text}");
            Ok(())
        })
        .await
    }

    async fn health_is(&self, wanted: u16, part: &str) -> Result<()> {
        wait_for(&format!("/health to answer {wanted}"), SOON, async || {
            let (status, text) = self.get("8080/health").await?;
            ensure!(status == wanted && text.contains(part), "{status}: {text}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn nodes_and_jobs_are_exported() -> Result<()> {
    let scene = Scene::start("exporter").await?;
    let image = json!({"repository": "localhost/slurm-operator/operator", "tag": "dev"});
    let more = json!({
        "exporter": {"enabled": true, "image": image, "interval": "1s", "aliasNames": true},
        // GPUs that nobody has.
        "controller": {"extraConf": "GresTypes=gpu"},
        "configFiles": {"gres.conf": "Name=gpu File=/dev/full\nName=gpu File=/dev/tty\n"},
    });
    chart::install_with(&scene, json!({"replicas": 2, "extraConf": "Gres=gpu:2"}), &more).await?;
    for (kind, name) in [("Controller", RELEASE), ("RestApi", RELEASE), ("NodeSet", NODE_SET)] {
        managed::ready(&scene, kind, name).await?;
    }
    let run = async |command: &str| scene.exec_in(SLURMCTLD, "slurmctld", &format!("cd /tmp; {command}")).await;
    let exporter = Exporter::of(&scene).await?;
    exporter.health_is(200, "healthy").await?;
    for node in ["node_name=\"cpu-0\"", "node_name=\"cpu-1\""] {
        exporter
            .shows(&["slurm_node_info{", node, "state_base=\"IDLE\",state_is_drain=\"false\"", "address=\""])
            .await?;
        exporter.shows(&["slurm_node_partition{", node, "partition=\"all\""]).await?;
    }
    // As many as Slurm has.
    let nodes = run("sinfo --noheader --Node --format '%n %G'").await?;
    ensure!(nodes.contains("gpu:2"), "{nodes}");
    wait_for("GPU seconds", SOON, async || {
        let (_, text) = exporter.get("8080/metrics").await?;
        let seconds = text.lines().filter(|line| line.starts_with("slurm_node_gpu_seconds_total{"));
        let seconds: f64 = seconds.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        ensure!(seconds > 1.0, "{text}");
        Ok(())
    })
    .await?;

    let sbatch = "sbatch --parsable --output=/dev/null --job-name='a \"quoted\" name'";
    let job = run(&format!("{sbatch} --nodes=2 --wrap='sleep 600'")).await?;
    let job = format!("job_id=\"{}\"", job.trim());
    exporter.shows(&["slurm_job_info{", &job, "job_state=\"RUNNING\"", "job_name=\"a \\\"quoted\\\" name\""]).await?;
    exporter.shows(&["slurm_node_job{", &job, "node_name=\"cpu-1\""]).await?;
    exporter.shows(&["slurm_job_duration_seconds{", &job]).await?;
    exporter.shows(&["slurm_job_cpus{", &job]).await?;
    // Jobs run there until they end.
    run("scontrol update nodename=cpu-1 state=drain reason='bad disk'").await?;
    exporter.shows(&["slurm_node_fails_total{", "node_name=\"cpu-1\"", "reason=\"bad disk\"", "} 1"]).await?;
    run("scancel --user=slurm; scancel --user=root").await?;
    exporter.shows(&["slurm_job_info{", &job, "job_state=\"CANCELLED\"", "finished_time=\""]).await?;
    exporter.shows(&["slurm_node_draining_duration_seconds_count{", "node_name=\"cpu-1\"", "} 1"]).await?;
    exporter.shows(&["slurm_node_info{", "node_name=\"cpu-1\"", "is_unavailable=\"true\""]).await?;
    run("scontrol update nodename=cpu-1 state=undrain").await?;
    exporter.shows(&["slurm_node_unavailability_duration_seconds_count{", "node_name=\"cpu-1\"", "} 1"]).await?;
    let failed = run(&format!("{sbatch} --wrap='exit 3'")).await?;
    let failed = format!("job_id=\"{}\"", failed.trim());
    exporter
        .shows(&["slurm_job_info{", &failed, "job_state=\"FAILED\"", "job_state_reason=\"NonZeroExitCode\""])
        .await?;
    for name in ["slurm_controller_rpc_calls_total{message_type=\"REQUEST_", "slurm_rpc_calls_total{method=\"REQUEST_"]
    {
        exporter.shows(&[name]).await?;
    }

    // What was read last stays, and has an age.
    managed::change(&scene, "RestApi", RELEASE, json!({"replicas": 0})).await?;
    exporter.health_is(503, "nodes: not read for").await?;
    exporter.shows(&["slurm_node_info{", "node_name=\"cpu-0\""]).await?;
    let (_, own) = exporter.get("8081/metrics").await?;
    ensure!(!own.contains("slurm_exporter_collector_errors_total{collector=\"nodes\"} 0"), "{own}");
    managed::change(&scene, "RestApi", RELEASE, json!({"replicas": 1})).await?;
    exporter.health_is(200, "healthy").await?;
    // A node that is gone.
    managed::change(&scene, "NodeSet", NODE_SET, json!({"replicas": 1})).await?;
    wait_for("the series of the node to go", SOON, async || {
        let (_, text) = exporter.get("8080/metrics").await?;
        ensure!(!text.lines().any(|line| line.starts_with("slurm_node_info{") && line.contains("cpu-1")), "{text}");
        Ok(())
    })
    .await?;
    scene.finish().await
}
