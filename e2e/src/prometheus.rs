//! A real Prometheus, which scrapes a release of the chart `slurm` and the operator, with the alerts of the chart and the expressions of its
//! dashboards.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use reqwest::Url;
use serde_json::{Value, json};
use slurm_operator_api::slinky::names;
use testkit::wait_for;

use crate::{SOON, Scene, chart::RELEASE, operator};

const NAME: &str = "prometheus";

/// Limits of the alerts, and those that a test can wait for.
const LIMITS: &[(&str, &str)] = &[
    ("(slurm_operator_slurm_snapshot_age_seconds) > 60", "(slurm_operator_slurm_snapshot_age_seconds) > 5"),
    ("(slurm_exporter_data_age_seconds) > 300", "(slurm_exporter_data_age_seconds) > 5"),
    ("(slurm_operator_oldest_drain_seconds) > 86400", "(slurm_operator_oldest_drain_seconds) > 1"),
    ("{state=\"updated\"}[15m]", "{state=\"updated\"}[5s]"),
];

/// A running Prometheus, and what it scrapes every second.
pub struct Prometheus {
    http: reqwest::Client,
    address: String,
    namespace: String,
    since: Timestamp,
}

impl Prometheus {
    /// Starts it, and waits until it has scraped everything. slurmctld has metrics only in newer versions.
    pub async fn start(scene: &Scene, scrapes_slurmctld: bool) -> Result<Self> {
        let namespace = scene.namespace.name();
        let scrapes = scrapes(namespace, scrapes_slurmctld);
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"], "scrape_configs": scrapes,
        });
        let files = json!({
            "metadata": {"name": NAME}, "data": {"prometheus.yml": config.to_string(), "alerts.yaml": impatient_alerts()?},
        });
        scene.namespace.api::<ConfigMap>().create(&PostParams::default(), &serde_json::from_value(files)?).await?;
        let spec = json!({
            "nodeSelector": {"kubernetes.io/hostname": "node1"},
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": NAME, "image": "localhost/slurm-operator/prometheus:2.53", "imagePullPolicy": "Never",
                "args": ["--config.file=/config/prometheus.yml", "--storage.tsdb.path=/tmp/data"],
                "readinessProbe": {"httpGet": {"path": "/-/ready", "port": 9090}, "periodSeconds": 1},
                "volumeMounts": [{"name": "config", "mountPath": "/config"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": NAME}}],
        });
        let since = Timestamp::now();
        scene.pod(NAME, spec).await?;
        let pod = scene.ready(NAME).await?;
        let address = pod.status.and_then(|status| status.pod_ip).context("the pod has no address")?;
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
        let started = Self { http, address, namespace: namespace.to_owned(), since };
        // The exporter has two ports.
        let targets = scrapes.len() + 1;
        started.shows(&format!("count(up == 1) == {targets}")).await?;
        Ok(started)
    }

    async fn get(&self, page: &str, parameters: &[(&str, &str)]) -> Result<Vec<Value>> {
        let url = Url::parse_with_params(&format!("http://{}:9090/api/v1/{page}", self.address), parameters)?;
        let text = self.http.get(url).send().await?.text().await?;
        let answer: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        ensure!(answer.pointer("/status") == Some(&json!("success")), "{parameters:?}: {text}");
        Ok(answer.pointer("/data/result").and_then(Value::as_array).context("no result")?.clone())
    }

    /// Waits until an expression has a value.
    pub async fn shows(&self, expression: &str) -> Result<()> {
        wait_for(&format!("data of {expression}"), SOON, async || {
            ensure!(!self.get("query", &[("query", expression)]).await?.is_empty(), "there are none");
            Ok(())
        })
        .await
    }

    /// Waits until an alert with these labels fires.
    pub async fn fires(&self, alert: &str, labels: &str) -> Result<()> {
        self.shows(&firing(alert, labels)).await
    }

    /// Waits until it does not fire any more.
    pub async fn ends(&self, alert: &str, labels: &str) -> Result<()> {
        self.shows(&format!("absent({})", firing(alert, labels))).await
    }

    /// Checks that each alert has fired, or is among these.
    pub async fn has_fired_all_but(&self, others: &[&str]) -> Result<()> {
        let alerts = fs::read_to_string(file("alerts.yaml"))?;
        let alerts = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        let found = self.since_start("group by (alertname) (ALERTS{alertstate=\"firing\"})").await?;
        let fired = found.iter().filter_map(|series| series.pointer("/metric/alertname")?.as_str());
        let known: BTreeSet<&str> = fired.chain(others.iter().copied()).collect();
        let missing: Vec<&str> = alerts.filter(|alert| !known.contains(alert)).collect();
        ensure!(missing.is_empty(), "these alerts have not fired: {missing:?}");
        Ok(())
    }

    /// Checks that each expression of a dashboard has had a value, unless it has one of these series.
    pub async fn has_had_all_but(&self, others: &[&str]) -> Result<()> {
        let mut missing = Vec::new();
        let expressions = expressions(&self.namespace)?;
        ensure!(expressions.len() > 50, "there are only {} expressions", expressions.len());
        for expression in expressions {
            let is_number = |value: &Value| value.get(1).and_then(Value::as_str).is_some_and(|number| number != "NaN");
            let found = self.since_start(&expression).await?;
            let mut values = found.iter().filter_map(|series| series.pointer("/values")?.as_array()).flatten();
            if !values.any(is_number) && !others.iter().any(|series| expression.contains(series)) {
                missing.push(expression);
            }
        }
        ensure!(missing.is_empty(), "these expressions have had no value: {missing:#?}");
        Ok(())
    }

    /// The values of an expression in each second since the start.
    async fn since_start(&self, expression: &str) -> Result<Vec<Value>> {
        let (start, end) = (self.since.as_second().to_string(), Timestamp::now().as_second().to_string());
        self.get("query_range", &[("query", expression), ("start", &start), ("end", &end), ("step", "1")]).await
    }
}

fn firing(alert: &str, labels: &str) -> String {
    format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\",{labels}}}")
}

/// What is scraped, with the labels that the `ServiceMonitor`s lead to.
fn scrapes(namespace: &str, has_slurmctld: bool) -> Vec<Value> {
    let scrape = |name: &str, path: &str, targets: &[String], namespace: &str, job: &str| {
        json!({
            "job_name": name, "metrics_path": path, "honor_labels": true,
            "static_configs": [{"targets": targets, "labels": {"namespace": namespace, "job": job}}],
        })
    };
    let host = |service: &str, port: u16| format!("{service}.{namespace}:{port}");
    let operator = format!("slurm-operator.{}:8080", operator::NAMESPACE);
    let exporter = format!("{RELEASE}-exporter");
    let exporters = [host(&exporter, 8080), host(&exporter, 8081)];
    let slurmctld = names::controller(RELEASE);
    let pages: &[&str] = if has_slurmctld { &["jobs", "nodes", "partitions", "scheduler"] } else { &[] };
    let pages = pages.iter().map(|page| {
        let mut page = scrape(page, &format!("/metrics/{page}"), &[host(&slurmctld, 6817)], namespace, &slurmctld);
        page["relabel_configs"] = json!([{"source_labels": ["__metrics_path__"], "target_label": "metrics_path"}]);
        page
    });
    let others = [
        scrape("operator", "/metrics", &[operator], operator::NAMESPACE, "slurm-operator"),
        scrape("exporter", "/metrics", &exporters, namespace, &exporter),
    ];
    others.into_iter().chain(pages).collect()
}

/// A file of the operator's chart.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/slurm-operator/files").join(name)
}

/// The alerts of the chart, which fire after a second.
fn impatient_alerts() -> Result<String> {
    let mut alerts = fs::read_to_string(file("alerts.yaml"))?;
    for (limit, short) in LIMITS {
        ensure!(alerts.contains(limit), "no alert has the limit {limit}");
        alerts = alerts.replace(limit, short);
    }
    let line = |line: &str| match line.split_once("for: ") {
        Some((indentation, _)) if indentation.trim().is_empty() => format!("{indentation}for: 1s\n"),
        _ => format!("{line}\n"),
    };
    Ok(alerts.lines().map(line).collect())
}

/// The expressions of all dashboards, with this namespace, and everything chosen otherwise.
fn expressions(namespace: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(file("dashboards"))? {
        let dashboard: Value = serde_json::from_slice(&fs::read(entry?.path())?)?;
        let panels = dashboard.pointer("/panels").and_then(Value::as_array).context("no panels")?;
        let targets = panels.iter().filter_map(|panel| panel.get("targets")?.as_array()).flatten();
        let expressions = targets.filter_map(|target| target.get("expr")?.as_str());
        found.extend(expressions.map(|expression| {
            let expression = expression.replace("$__rate_interval", "10s").replace("$namespace", namespace);
            expression.replace("$job", ".*").replace("$nodeset", ".*")
        }));
    }
    Ok(found)
}
