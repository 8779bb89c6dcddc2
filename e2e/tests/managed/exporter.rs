//! The exporter of the chart: jobs that run and fail, nodes that are drained, and a slurmrestd that goes away and comes back. A Prometheus scrapes
//! it, the operator and slurmctld meanwhile: each expression of the dashboards has a value at some time, and alerts fire.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    chart::{self, NODE_SET, RELEASE},
    managed,
    prometheus::Prometheus,
    slurm_version,
};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use testkit::wait_for;

const SLURMCTLD: &str = "slurm-controller-0";

/// Alerts that cannot fire here: the operator is that of all tests, slurmctld has little to do, and there is no accounting. They have tests of
/// promtool.
const NEVER: &[&str] = &["SlurmOperatorNotLeading", "SlurmctldBusy", "SlurmAccountingBehind"];

/// The webhook of the tests has no metrics.
const OF_WEBHOOK: &str = "slurm_operator_admission_reviews_total";

/// slurmctld's own series, which older versions do not have.
const OF_SLURMCTLD: &[&str] = &["slurm_schedule_", "slurm_bf_", "slurm_agent_queue_size", "slurm_slurmdbd_queue_size"];

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
    let has_metrics = slurm_version()?.as_str() >= "25.11";
    let more = json!({
        "exporter": {"enabled": true, "image": image, "interval": "1s", "aliasNames": true},
        // GPUs that nobody has.
        "controller": {"extraConf": "GresTypes=gpu", "metrics": {"enabled": has_metrics}},
        "configFiles": {"gres.conf": "Name=gpu File=/dev/full\nName=gpu File=/dev/tty\n"},
    });
    chart::install_with(&scene, json!({"replicas": 2, "extraConf": "Gres=gpu:2"}), &more).await?;
    for (kind, name) in [("Controller", RELEASE), ("RestApi", RELEASE), ("NodeSet", NODE_SET)] {
        managed::ready(&scene, kind, name).await?;
    }
    let run = async |command: &str| scene.exec_in(SLURMCTLD, "slurmctld", &format!("cd /tmp; {command}")).await;
    let exporter = Exporter::of(&scene).await?;
    exporter.health_is(200, "healthy").await?;
    let prometheus = Prometheus::start(&scene, has_metrics).await?;
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
    run(&format!("{sbatch} --hold --wrap=true")).await?;
    prometheus.shows("slurm_job_info{job_state=\"PENDING\"}").await?;
    // Jobs run there until they end.
    run("scontrol update nodename=cpu-1 state=drain reason='bad disk'").await?;
    exporter.shows(&["slurm_node_fails_total{", "node_name=\"cpu-1\"", "reason=\"bad disk\"", "} 1"]).await?;
    prometheus
        .shows("slurm_node_info{node_name=\"cpu-1\",state_base=~\"ALLOCATED|MIXED\",state_is_drain=\"true\"}")
        .await?;
    run("scancel --user=slurm; scancel --user=root").await?;
    exporter.shows(&["slurm_job_info{", &job, "job_state=\"CANCELLED\"", "finished_time=\""]).await?;
    exporter.shows(&["slurm_node_draining_duration_seconds_count{", "node_name=\"cpu-1\"", "} 1"]).await?;
    prometheus.shows("slurm_node_info{node_name=\"cpu-1\",is_unavailable=\"true\"}").await?;
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

    nodes_go_down(&scene, &exporter, &prometheus).await?;
    // What was read last stays, and has an age.
    managed::change(&scene, "RestApi", RELEASE, json!({"replicas": 0})).await?;
    exporter.health_is(503, "nodes: not read for").await?;
    exporter.shows(&["slurm_node_info{", "node_name=\"cpu-0\""]).await?;
    let (_, own) = exporter.get("8081/metrics").await?;
    ensure!(!own.contains("slurm_exporter_collector_errors_total{collector=\"nodes\"} 0"), "{own}");
    let this_cluster = format!("namespace=\"{}\"", scene.namespace.name());
    prometheus.fires("SlurmUnreachable", &format!("{this_cluster},controller=\"{RELEASE}\"")).await?;
    prometheus.fires("SlurmExporterStale", &format!("{this_cluster},collector=\"nodes\"")).await?;
    managed::change(&scene, "RestApi", RELEASE, json!({"replicas": 1})).await?;
    exporter.health_is(200, "healthy").await?;
    prometheus.ends("SlurmUnreachable", &this_cluster).await?;
    objects_fail(&scene, &prometheus).await?;
    too_many_workers(&scene, &prometheus).await?;
    // A node that is gone.
    wait_for("the series of the node to go", SOON, async || {
        let (_, text) = exporter.get("8080/metrics").await?;
        ensure!(!text.lines().any(|line| line.starts_with("slurm_node_info{") && line.contains("cpu-1")), "{text}");
        Ok(())
    })
    .await?;
    prometheus.has_fired_all_but(NEVER).await?;
    let without_data: &[&str] = if has_metrics { &[] } else { OF_SLURMCTLD };
    prometheus.has_had_all_but(&[&[OF_WEBHOOK][..], without_data].concat()).await?;
    scene.finish().await
}

/// A node is down, and again: with the drain before, that is three times.
async fn nodes_go_down(scene: &Scene, exporter: &Exporter, prometheus: &Prometheus) -> Result<()> {
    let set = async |state: &str| {
        let command = format!("scontrol update nodename=cpu-1 state={state}");
        scene.exec_in(SLURMCTLD, "slurmctld", &command).await
    };
    let labels = format!("namespace=\"{}\",nodeset=\"{NODE_SET}\"", scene.namespace.name());
    for times in ["} 1", "} 2"] {
        set("down reason=fan").await?;
        exporter.shows(&["slurm_node_fails_total{", "node_name=\"cpu-1\"", "reason=\"fan\"", times]).await?;
        prometheus.fires("SlurmWorkersDown", &labels).await?;
        set("resume").await?;
        exporter.shows(&["slurm_node_info{", "node_name=\"cpu-1\"", "state_base=\"IDLE\""]).await?;
        prometheus.ends("SlurmWorkersDown", &labels).await?;
    }
    let labels = format!("namespace=\"{}\",node_name=\"cpu-1\"", scene.namespace.name());
    prometheus.fires("SlurmNodeFlapping", &labels).await
}

/// The API server refuses the Service of slurmrestd.
async fn objects_fail(scene: &Scene, prometheus: &Prometheus) -> Result<()> {
    let affinity = async |value: Value| {
        managed::change(scene, "RestApi", RELEASE, json!({"service": {"spec": {"sessionAffinity": value}}})).await
    };
    affinity(json!("Sometimes")).await?;
    prometheus.fires("SlurmObjectsFailing", "kind=\"restapi\"").await?;
    // Counters of failures are new: there must be two samples.
    prometheus.shows("rate(slurm_operator_failures_total{kind=\"restapi\"}[10s])").await?;
    affinity(Value::Null).await?;
    managed::ready(scene, "RestApi", RELEASE).await
}

/// More workers than Kubernetes nodes, and then only one, while a job still runs on two.
async fn too_many_workers(scene: &Scene, prometheus: &Prometheus) -> Result<()> {
    let labels = format!("namespace=\"{}\",nodeset=\"{NODE_SET}\"", scene.namespace.name());
    managed::change(scene, "NodeSet", NODE_SET, json!({"replicas": 5})).await?;
    prometheus.fires("SlurmWorkersMissing", &labels).await?;
    let run = async |command: &str| scene.exec_in(SLURMCTLD, "slurmctld", &format!("cd /tmp; {command}")).await;
    let sbatch = "sbatch --parsable --output=/dev/null --nodes=2 --nodelist=cpu-0,cpu-1 --wrap='sleep 600'";
    let job = run(sbatch).await?;
    prometheus.shows(&format!("slurm_node_job{{job_id=\"{}\"}}", job.trim())).await?;
    managed::change(scene, "NodeSet", NODE_SET, json!({"replicas": 1})).await?;
    prometheus.fires("SlurmDrainSlow", &labels).await?;
    run(&format!("scancel {}", job.trim())).await?;
    prometheus.ends("SlurmWorkersMissing", &labels).await
}
