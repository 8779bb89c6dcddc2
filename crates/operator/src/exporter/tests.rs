//! The exporter against fake slurmrestds.

use anyhow::{bail, ensure};
use axum::{Router, response::Html};
use base64::{Engine, engine::general_purpose::STANDARD};
use clap::Parser;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use slurm::token::{self, Claims, Key};
use testkit::{
    slurmrestd::{Cluster, Fault, JobSpec, Machine, NodeUpdate, Options, Settings, Slurmrestd},
    wait_for,
};
use tokio::{net::TcpListener, task::JoinHandle};

use super::*;
use crate::{
    cli::{Cli, Command},
    get, offline_plan,
};

const SOON: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(100);
const KEY: [u8; 32] = [0x2a; 32];

fn args(flags: &str) -> ExporterArgs {
    try_args(flags).unwrap()
}

fn try_args(flags: &str) -> Result<ExporterArgs> {
    let line = format!("slurm-operator exporter {flags}");
    let Command::Exporter(args) = Cli::try_parse_from(line.split_whitespace())?.command else {
        bail!("another command")
    };
    Ok(*args)
}

/// An exporter that runs.
struct Running {
    store: Store,
    own: OwnMetrics,
    url: String,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Running {
    async fn start(origin: Origin, flags: &str) -> Self {
        Self::every(OFTEN, origin, flags).await
    }

    async fn every(interval: Duration, origin: Origin, flags: &str) -> Self {
        let args = ExporterArgs { collection_interval: interval, ..args(flags) };
        let exporter = Exporter::new(origin, &args);
        let (store, own, pages) = (exporter.store.clone(), exporter.own.clone(), exporter.metrics());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, pages).await.unwrap() });
        let collecting = tokio::spawn(async move { exporter.collect().await.unwrap() });
        Self { store, own, url, tasks: [serving, collecting] }
    }

    /// A page, as Prometheus reads it.
    async fn get(&self, path: &str) -> Result<String> {
        let url = format!("{}{path}", self.url);
        tokio::task::spawn_blocking(move || get::page(&url)).await.unwrap()
    }

    /// Waits until the metrics satisfy the check.
    async fn shows(&self, what: &str, check: impl Fn(&str) -> bool) -> Result<String> {
        wait_for(what, SOON, async || {
            let text = self.get("/metrics").await?;
            ensure!(check(&text), "{text}");
            Ok(text)
        })
        .await
    }

    async fn is_unhealthy(&self, part: &str, why: &str) -> Result<()> {
        wait_for("/health to say it", SOON, async || match self.get("/health").await {
            Ok(text) => bail!("it says {text}"),
            Err(error) => {
                let text = format!("{error:#}");
                let says = text.contains("503") && text.contains(&format!("{part}: not read for "));
                ensure!(says && text.contains(why), "it says {text}");
                Ok(())
            }
        })
        .await
    }

    async fn is_healthy(&self) -> Result<()> {
        wait_for("/health to be fine", SOON, async || {
            ensure!(self.get("/health").await? == "healthy");
            Ok(())
        })
        .await
    }
}

async fn slurm(settings: Settings) -> Slurmrestd {
    let mut cluster = Cluster::new(settings, Timestamp::now().as_second());
    cluster.register_many("w", 3, &Machine { gres: "gpu:8".to_owned(), ..Machine::default() });
    let options = Options { key: Some(Key::new(&KEY).unwrap()), ..Options::default() };
    Slurmrestd::start(cluster, options).await.unwrap()
}

fn token(key: &[u8]) -> Token {
    let claims = Claims::new("id", "slurm", Timestamp::now(), SignedDuration::from_hours(1));
    token::mint(&Key::new(key).unwrap(), &claims)
}

fn origin_of(slurm: &Slurmrestd) -> Origin {
    Origin::Url { url: slurm.url(), ca_file: None, tokens: TokenSource::Static(token(&KEY)) }
}

#[test]
fn flags_are_those_of_soperators_exporter() {
    let line = "--metrics-bind-address :8080 --monitoring-bind-address :8081 --slurm-api-server http://rest:6820 \
                --cluster-namespace ns --cluster-name c --collection-interval 1d --max-collector-inflight 2 \
                --job-source accounting --accounting-jobs-lookback 1h30m --log-format plain --log-level debug \
                --scontrol-path /usr/bin/scontrol --key-rotation-interval 1w --kubeconfig-path /k --standalone";
    let parsed = args(line);
    assert_eq!(parsed.collection_interval, Duration::from_hours(24));
    assert_eq!(parsed.accounting_jobs_lookback, Duration::from_mins(90));
    assert_eq!(parsed.key_rotation_interval, Duration::from_hours(7 * 24));
    assert_eq!((parsed.job_source, parsed.log_format), (JobSource::Accounting, LogFormat::Pretty));
    let defaults = args("");
    assert_eq!((defaults.collection_interval, defaults.max_collector_inflight), (Duration::from_secs(30), 1));
    assert_eq!((defaults.metrics_bind_address.port(), defaults.monitoring_bind_address.port()), (8080, 8081));
    for (wrong, says) in [
        ("--collection-interval 0s", "less than a second"),
        ("--collection-interval 30", "not a duration"),
        ("--collection-interval 99999999999999999y", "not a duration"),
        ("--job-source sacct", "controller, accounting"),
        ("--max-collector-inflight 0", "1.."),
        ("--token-file t --standalone", "cannot be used with"),
        ("--static-token t --token-file f", "cannot be used with"),
    ] {
        let error = try_args(wrong).unwrap_err().to_string();
        assert!(error.contains(says), "{wrong}: {error}");
    }
}

#[tokio::test]
async fn a_source_of_tokens_is_chosen() {
    let chosen = async |flags: &str| {
        let origin = origin(&args(flags)).await.unwrap();
        let Origin::Url { url, tokens, .. } = origin else { return "a Controller".to_owned() };
        let tokens = match tokens {
            TokenSource::None => "none",
            TokenSource::Static(_) => "static",
            TokenSource::File(_) => "file",
            TokenSource::Scontrol { .. } => "scontrol",
        };
        format!("{tokens} {url}")
    };
    // As soperator's charts call it, with the name of the cluster in any case.
    assert_eq!(chosen("--cluster-name c --static-token t").await, format!("static {LOCAL}"));
    assert_eq!(chosen("--token-file f --slurm-api-server http://r:1").await, "file http://r:1");
    assert_eq!(chosen("--standalone --cluster-name c").await, format!("scontrol {LOCAL}"));
    assert_eq!(chosen("--slurm-api-server=").await, format!("none {LOCAL}"));
    let error = origin(&args("--cluster-name c --kubeconfig-path /no/such/file")).await.err().unwrap();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}

#[tokio::test]
async fn what_runs_is_shown_and_what_is_gone_is_not() -> Result<()> {
    let slurm = slurm(Settings { min_job_age: 0, ..Settings::default() }).await;
    let job = slurm
        .cluster(|cluster| cluster.submit(JobSpec { name: "a \"b\"\n".into(), ..JobSpec::default() }))
        .ok()
        .unwrap();
    let exporter = Running::start(origin_of(&slurm), "--alias-names").await;
    let text = exporter.shows("the job", |text| text.contains("slurm_job_info{")).await?;
    let node = format!("slurm_node_job{{job_id=\"{job}\",node_name=\"w0\"}} 1\n");
    assert!(text.contains("job_state=\"RUNNING\"") && text.contains("job_name=\"a \\\"b\\\"\\n\""), "{text}");
    assert!(text.contains(&node), "{text}");
    let text =
        exporter.shows("all lists", |text| text.matches("slurm_exporter_data_age_seconds{").count() == 3).await?;
    assert!(text.contains("slurm_rpc_calls_total{method="), "{text}");
    let gpus = |text: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with("slurm_node_gpu_seconds_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    exporter.shows("GPU seconds", |text| gpus(text) > 1.0).await?;
    let text = exporter.get("/metrics").await?;
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    let own = exporter.own.text()?;
    assert!(own.contains(&format!("slurm_exporter_metrics_exported {lines}\n")), "{lines}: {own}");
    assert!(
        own.contains("\nsoperator_metrics_requests_total ") && own.contains("\nscollector_collection_errors_total ")
    );
    // A node and a job that are gone.
    let gone = |cluster: &mut Cluster| {
        let _ = cluster.finish(job);
        let name = cluster.nodes().last().map(|node| node.name.clone()).unwrap();
        let _ = cluster.delete_node(&name);
        name
    };
    let name = slurm.cluster(gone);
    exporter.shows("the node to be gone", |text| !text.contains(&format!("\"{name}\""))).await?;
    exporter.shows("the job to have ended or be gone", |text| !text.contains("job_state=\"RUNNING\"")).await?;
    // A drain is a failure of a node that was seen before.
    let first = slurm.cluster(|cluster| cluster.nodes().next().map(|node| node.name.clone())).unwrap();
    let drained = slurm.cluster(|cluster| cluster.update_nodes(&[first], &NodeUpdate::drain("bad disk"), "root"));
    assert!(drained.is_ok());
    exporter
        .shows("the failure", |text| {
            text.contains("slurm_node_fails_total{") && text.contains("reason=\"bad disk\"} 1\n")
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_scrape_does_not_ask_slurm() -> Result<()> {
    let slurm = slurm(Settings::default()).await;
    let exporter = Running::every(Duration::from_hours(1), origin_of(&slurm), "").await;
    exporter.shows("all lists", |text| text.matches("slurm_exporter_data_age_seconds{").count() == 3).await?;
    let before = slurm.calls();
    for _ in 0..20 {
        exporter.get("/metrics").await?;
        exporter.get("/health").await?;
    }
    assert_eq!(slurm.calls(), before);
    for list in ["nodes/", "jobs/", "diag/"] {
        let calls: u64 = before.iter().filter(|(call, _)| call.ends_with(list)).map(|(_, count)| count).sum();
        assert_eq!(calls, 1, "{before:?}");
    }
    Ok(())
}

/// The age of a list in seconds.
fn age(text: &str, part: &str) -> f64 {
    let series = format!("slurm_exporter_data_age_seconds{{collector=\"{part}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn old_series_stay_while_slurm_is_away() -> Result<()> {
    let mut slurm = slurm(Settings::default()).await;
    let exporter = Running::start(origin_of(&slurm), "").await;
    exporter.shows("all lists", |text| text.matches("slurm_exporter_data_age_seconds{").count() == 3).await?;
    exporter.is_healthy().await?;
    // One list fails: the others go on.
    for (fault, why) in
        [(Fault::Error, "Unspecified error"), (Fault::Garbage, "cannot be read"), (Fault::Cut, "not reachable")]
    {
        slurm.faults(|faults| faults.next(u32::MAX, "/jobs", fault));
        exporter.is_unhealthy("jobs", why).await?;
        exporter.shows("newer nodes", |text| age(text, "nodes") < age(text, "jobs")).await?;
        slurm.faults(testkit::slurmrestd::Faults::clear);
        exporter.is_healthy().await?;
    }
    // slurmctld is away.
    slurm.cluster(Cluster::stop);
    exporter.is_unhealthy("nodes", "").await?;
    let text = exporter.get("/metrics").await?;
    assert!(text.contains("slurm_node_info{node_name=\"w"), "{text}");
    assert!(age(&text, "nodes") > 0.3, "{text}");
    slurm.cluster(|cluster| cluster.start(testkit::slurmrestd::StateSave::Kept));
    exporter.is_healthy().await?;
    // slurmrestd is replaced.
    slurm = slurm.restart().await?;
    exporter.is_healthy().await?;
    let own = exporter.own.text()?;
    assert!(!own.contains("slurm_exporter_collection_failures_total 0\n"), "{own}");
    drop(slurm);
    exporter.is_unhealthy("diag", "not reachable").await?;
    Ok(())
}

#[tokio::test]
async fn a_token_file_may_be_replaced() -> Result<()> {
    let slurm = slurm(Settings::default()).await;
    let file = std::env::temp_dir().join(format!("exporter-token-{}", std::process::id()));
    std::fs::write(&file, token(&KEY).expose())?;
    let origin = Origin::Url { url: slurm.url(), ca_file: None, tokens: TokenSource::File(file.clone()) };
    let exporter = Running::start(origin, "").await;
    exporter.shows("the nodes", |text| text.contains("slurm_node_info{")).await?;
    let other = [0x2b; 32];
    slurm.set_key(Some(Key::new(&other)?));
    exporter.is_unhealthy("nodes", "not authorised").await?;
    std::fs::write(&file, token(&other).expose())?;
    exporter.is_healthy().await?;
    std::fs::remove_file(&file)?;
    exporter.is_unhealthy("jobs", "no token").await
}

#[tokio::test]
async fn a_controller_names_slurmrestd_and_the_key() -> Result<()> {
    let slurm = slurm(Settings::default()).await;
    let objects = |key: &[u8]| {
        vec![
            json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
                "metadata": {"name": "slurm", "namespace": "ns", "uid": "c"},
                "spec": {
                    "slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "jwtKeyRef": {"name": "keys", "key": "jwt.key"},
                    "externalRestApi": {"url": slurm.url()},
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "ns"},
                "data": {"jwt.key": STANDARD.encode(key)},
            }),
        ]
    };
    let of = |name: &str, key: &[u8], url: Option<String>| Origin::Controller {
        client: offline_plan::client(&Arc::new(objects(key))),
        cluster: slinky::cluster_key("ns", name),
        url,
        ca_file: None,
    };
    let exporter = Running::start(of("slurm", &KEY, None), "").await;
    exporter.shows("the nodes", |text| text.contains("slurm_node_info{")).await?;
    let wrong = Running::start(of("slurm", b"another key", None), "").await;
    wrong.is_unhealthy("nodes", "not authorised").await?;
    let other = Running::start(of("slurm", &KEY, Some("http://127.0.0.1:1".to_owned())), "").await;
    other.is_unhealthy("nodes", "not reachable").await?;
    let missing = Running::start(of("nobody", &KEY, None), "").await;
    missing.is_unhealthy("nodes", "there is no Controller ns/nobody").await
}

#[tokio::test]
async fn jobs_of_slurmdbd() -> Result<()> {
    let slurm = slurm(Settings::default()).await;
    let job = slurm.cluster(|cluster| cluster.submit(JobSpec::default())).ok().unwrap();
    let exporter = Running::start(origin_of(&slurm), "--job-source accounting").await;
    exporter.shows("the job", |text| text.contains(&format!("slurm_job_info{{job_id=\"{job}\""))).await?;
    // Nothing but the jobs needs slurmdbd.
    slurm.cluster(|cluster| cluster.set_accounting_up(false));
    exporter.is_unhealthy("jobs", "").await?;
    assert!(exporter.get("/metrics").await?.contains("slurm_job_info{"), "the old ones stay");
    let without = self::slurm(Settings { accounting: false, ..Settings::default() }).await;
    let exporter = Running::start(origin_of(&without), "--job-source accounting").await;
    exporter.is_unhealthy("jobs", "slurmrestd has no accounting; use --job-source controller").await?;
    exporter.shows("the nodes", |text| text.contains("slurm_node_info{")).await.map(drop)
}

#[tokio::test]
async fn a_server_that_is_no_slurmrestd() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let pages = Router::new().fallback(async || Html("<html>welcome</html>".repeat(100_000)));
    let server = tokio::spawn(async move { axum::serve(listener, pages).await });
    let origin = Origin::Url { url, ca_file: None, tokens: TokenSource::None };
    let exporter = Running::start(origin, "").await;
    exporter.is_unhealthy("nodes", "cannot").await?;
    let health = format!("{:#}", exporter.get("/health").await.unwrap_err());
    assert!(health.len() < 2_000, "{} bytes", health.len());
    assert_eq!(exporter.store.shown().count, 0);
    server.abort();
    Ok(())
}
