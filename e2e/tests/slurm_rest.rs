//! slurmrestd of the version under test passes the same conformance suite as the fake, and answers the requests of the curl,
//! Python and Go examples.

#![expect(clippy::indexing_slicing, reason = "test code: responses are JSON")]

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    SOON, Scene,
    slurm::{ADMIN, NODE_SET, PARTITION, SILENT, SlurmCluster, WORKERS},
    slurm_version,
};
use jiff::SignedDuration;
use reqwest::{
    Client, Method,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::{Value, json};
use slurm::{
    client::Auth,
    token::Key,
    version::{RestVersion, SlurmVersion},
};
use testkit::{
    conformance::{self, Case, Running, SILENT_REASON, Slurmd, Target},
    wait_for,
};
use tokio::time::sleep;

fn release() -> Result<SlurmVersion> {
    SlurmVersion::from_image_tag(&slurm_version()?).context("SLURM_VERSION is not a Slurm version")
}

/// The cluster, as the suite needs it.
struct Real<'a> {
    cluster: &'a SlurmCluster<'a>,
    release: SlurmVersion,
    rest: Option<RestVersion>,
}

impl Target for Real<'_> {
    fn name(&self) -> String {
        let rest = self.rest.map(|rest| format!(" by {rest}")).unwrap_or_default();
        format!("real {}{rest}", self.release)
    }

    fn url(&self) -> String {
        self.cluster.url().to_owned()
    }

    fn auth(&self) -> Result<Auth> {
        Ok(Auth::mint(Key::new(self.cluster.jwt_key())?, ADMIN, SignedDuration::from_mins(15)))
    }

    fn user(&self) -> &str {
        ADMIN
    }

    fn release(&self) -> SlurmVersion {
        self.release
    }

    fn rest_version(&self) -> Option<RestVersion> {
        self.rest
    }

    fn nodes(&self) -> [String; 2] {
        WORKERS.map(str::to_owned)
    }

    fn has_accounting(&self) -> bool {
        false
    }

    fn node_set(&self) -> &str {
        NODE_SET
    }

    fn silent_node(&self) -> &str {
        SILENT
    }

    fn start_slurmd(&self, slurmd: Slurmd) -> Running<'_> {
        Box::pin(async move {
            if slurmd.is_rebooted {
                // A boot takes its time. slurmctld counts whole seconds, and must not have heard of the node in that one.
                sleep(Duration::from_secs(2)).await;
            }
            let options = if slurmd.is_rebooted { "-b" } else { "" };
            let conf = if slurmd.is_small { "Features=other CPUs=1" } else { "Features=other" };
            self.cluster.start_slurmd(&slurmd.node, options, conf).await
        })
    }

    fn stop_slurmd(&self, node: &str) -> Running<'_> {
        let node = node.to_owned();
        Box::pin(async move { self.cluster.stop_slurmd(&node).await })
    }

    fn suspend(&self, job: u32) -> Running<'_> {
        Box::pin(self.cluster.scontrol(format!("suspend {job}")))
    }

    fn resume(&self, job: u32) -> Running<'_> {
        Box::pin(self.cluster.scontrol(format!("resume {job}")))
    }

    fn stop_slurmctld(&self) -> Running<'_> {
        Box::pin(self.cluster.stop_slurmctld())
    }

    fn start_slurmctld(&self) -> Running<'_> {
        Box::pin(self.cluster.start_slurmctld())
    }
}

/// Cases that take long and show what slurmctld does, whatever the REST version is.
const ONCE: [&str; 5] = ["bad_registration", "rebooted", "second_slurmd", "node_named_as_node_set", "slurmctld_down"];

/// One test: a Slurm cluster takes longer to start than most cases take to run, and the cases must not run in parallel.
#[tokio::test]
async fn real_slurmrestd_conforms_in_all_its_rest_versions() -> Result<()> {
    let scene = Scene::start("slurm-rest").await?;
    let cluster = SlurmCluster::start(&scene).await?;
    cluster.add_machine(SILENT_REASON).await?;
    let release = release()?;
    // All cases with the version that a client chooses by default, and most also with the oldest one; with --matrix, with all
    // between.
    conformance::run(&Real { cluster: &cluster, release, rest: None }).await?;
    for name in ONCE {
        Case::named(name)?;
    }
    let (_, older) = release.rest_versions().split_last().context("no REST version at all")?;
    let count = if e2e::is_matrix() { older.len() } else { 1 };
    for &rest in older.iter().take(count) {
        let target = Real { cluster: &cluster, release, rest: Some(rest) };
        for case in conformance::CASES.iter().filter(|case| !ONCE.contains(&case.name)) {
            case.run(&target).await?;
        }
    }
    scene.finish().await
}

/// The examples: the same requests, headers and bodies.
async fn example(
    name: &str,
    headers: &[(&'static str, &'static str)],
    run: impl AsyncFnOnce(&Http) -> Result<()>,
) -> Result<()> {
    let scene = Scene::start(&format!("example-{name}")).await?;
    let cluster = SlurmCluster::start(&scene).await?;
    run(&Http::new(&cluster, release()?, headers)?).await?;
    scene.finish().await
}

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

#[tokio::test]
async fn the_curl_example_gets_its_answers() -> Result<()> {
    example("curl", &[], curl).await
}

#[tokio::test]
async fn the_python_example_gets_its_answers() -> Result<()> {
    example("python", JSON, python).await
}

#[tokio::test]
async fn the_go_example_gets_its_answers() -> Result<()> {
    example("go", JSON, go).await
}

/// Sends requests as the examples do.
struct Http {
    client: Client,
    base: String,
    offered: Vec<String>,
}

struct Answer {
    status: u16,
    text: String,
}

impl Http {
    /// Sends a token and these headers with every request.
    fn new(
        cluster: &SlurmCluster<'_>,
        release: SlurmVersion,
        headers: &[(&'static str, &'static str)],
    ) -> Result<Self> {
        // An error only means that a provider is already installed.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let mut all = HeaderMap::new();
        all.insert("x-slurm-user-token", HeaderValue::from_str(cluster.token(ADMIN)?.expose())?);
        for (name, value) in headers {
            all.insert(*name, HeaderValue::from_static(value));
        }
        let client = Client::builder().default_headers(all).no_proxy().timeout(SOON).build()?;
        let offered = release.rest_versions().iter().map(ToString::to_string).collect();
        Ok(Self { client, base: cluster.url().to_owned(), offered })
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        let response = request.send().await.with_context(|| path.to_owned())?;
        Ok(Answer { status: response.status().as_u16(), text: response.text().await? })
    }

    /// The path as written if this release has its REST version. Otherwise checks that it is rejected, and uses the nearest
    /// version.
    async fn meant(&self, written: &str) -> Result<String> {
        let version = written.split('/').nth(2).context("a path with a version")?;
        if self.offered.iter().any(|offered| offered == version) {
            return Ok(written.to_owned());
        }
        let refused = self.send(Method::GET, written, None).await?;
        ensure!(refused.status == 404, "{written} gets {} {}", refused.status, refused.text);
        let older = self.offered.iter().rfind(|offered| offered.as_str() < version);
        let nearest = older.or(self.offered.first()).context("no REST version at all")?;
        Ok(written.replacen(version, nearest, 1))
    }

    /// Sends a request that must succeed without errors.
    async fn ok(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let path = self.meant(path).await?;
        let answer = self.send(method, &path, body.as_ref()).await?;
        ensure!(answer.status == 200, "{path} gets {} {}", answer.status, answer.text);
        let answer: Value = serde_json::from_str(&answer.text)?;
        ensure!(answer["errors"] == json!([]), "{path} gets {}", answer["errors"]);
        Ok(answer)
    }

    async fn get(&self, path: &str) -> Result<Value> {
        self.ok(Method::GET, path, None).await
    }

    /// Submits the job of the example.
    ///
    /// The examples write the time limit as `HH:MM:SS`, which no supported slurmrestd accepts; they accept minutes.
    async fn submit(&self, path: &str, mut body: Value, minutes: u64) -> Result<u64> {
        let meant = self.meant(path).await?;
        let refused = self.send(Method::POST, &meant, Some(&body)).await?;
        let errors: Value = serde_json::from_str(&refused.text)?;
        let about = errors["errors"][0]["source"].as_str().unwrap_or_default();
        ensure!(refused.status == 500 && about.contains("time_limit"), "{} {}", refused.status, refused.text);
        body["job"]["time_limit"] = json!({"set": true, "number": minutes});
        let submitted = self.ok(Method::POST, path, Some(body)).await?;
        submitted["job_id"].as_u64().with_context(|| format!("no job id in {submitted}"))
    }

    async fn job_is(&self, path: &str, id: u64, states: &[&str]) -> Result<()> {
        wait_for(&format!("job {id} to be {states:?}"), SOON, async || {
            let answer = self.get(&format!("{path}/{id}")).await?;
            let found = &answer["jobs"][0]["job_state"];
            ensure!(words(found).iter().any(|word| states.contains(&word.as_str())), "{found}");
            Ok(())
        })
        .await
    }
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The sorted names of the records in a response.
fn names(answer: &Value, key: &str) -> Result<Vec<String>> {
    let Some(records) = answer[key].as_array() else { bail!("no {key} in {answer}") };
    let mut names: Vec<String> =
        records.iter().filter_map(|record| record["name"].as_str()).map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}

/// The shell script: reads everything and submits a job.
async fn curl(http: &Http) -> Result<()> {
    let ping = http.get("/slurm/v0.0.41/ping").await?;
    ensure!(ping["pings"][0]["hostname"] == "slurmctld" && ping["pings"][0]["pinged"] == "UP", "{ping}");
    ensure!(names(&http.get("/slurm/v0.0.41/nodes").await?, "nodes")? == WORKERS);
    let jobs = http.get("/slurm/v0.0.41/jobs").await?;
    ensure!(jobs["jobs"].is_array(), "{jobs}");
    ensure!(names(&http.get("/slurm/v0.0.41/partitions").await?, "partitions")? == [PARTITION]);
    let job = json!({
        "job": {
            "name": "test-job",
            "nodes": "1",
            "tasks": 1,
            "cpus_per_task": 1,
            "time_limit": "00:10:00",
            "current_working_directory": "/tmp",
            "environment": ["PATH=/usr/bin:/bin"],
            "script": "#!/bin/bash\necho Hello World\nsleep 60",
        }
    });
    let id = http.submit("/slurm/v0.0.41/job/submit", job, 10).await?;
    http.job_is("/slurm/v0.0.41/job", id, &["RUNNING"]).await?;
    let listed = http.get("/slurm/v0.0.41/jobs").await?;
    ensure!(names(&listed, "jobs")?.contains(&"test-job".to_owned()), "{listed}");
    http.ok(Method::DELETE, &format!("/slurm/v0.0.41/job/{id}"), None).await?;

    // The same request without a token.
    let path = http.meant("/slurm/v0.0.41/ping").await?;
    let anonymous = Client::builder().no_proxy().timeout(SOON).build()?;
    let refused = anonymous.get(format!("{}{path}", http.base)).send().await?.status();
    ensure!(refused.as_u16() == 401, "{refused} without a token");
    Ok(())
}

/// The Python class: all of its methods.
async fn python(http: &Http) -> Result<()> {
    let ping = http.get("/slurm/v0.0.41/ping").await?;
    ensure!(ping["pings"][0]["hostname"] == "slurmctld", "{ping}");
    let diag = http.get("/slurm/v0.0.41/diag").await?;
    ensure!(diag["statistics"].is_object(), "{diag}");

    let nodes = http.get("/slurm/v0.0.41/nodes").await?;
    ensure!(names(&nodes, "nodes")? == WORKERS);
    for node in nodes["nodes"].as_array().into_iter().flatten() {
        ensure!(node["state"].is_array(), "{}", node["state"]);
    }
    let node = format!("/slurm/v0.0.41/node/{}", WORKERS[1]);
    http.ok(Method::POST, &node, Some(json!({"state": ["DRAIN"], "reason": "maintenance"}))).await?;
    let drained = http.get(&node).await?;
    let (state, reason) = (&drained["nodes"][0]["state"], &drained["nodes"][0]["reason"]);
    ensure!(words(state).contains(&"DRAIN".to_owned()) && reason == "maintenance", "{state} {reason}");
    http.ok(Method::POST, &node, Some(json!({"state": ["RESUME"]}))).await?;
    let resumed = http.get(&node).await?;
    ensure!(!words(&resumed["nodes"][0]["state"]).contains(&"DRAIN".to_owned()), "{resumed}");

    let partitions = http.get("/slurm/v0.0.41/partitions").await?;
    ensure!(names(&partitions, "partitions")? == [PARTITION]);
    let partition = http.get(&format!("/slurm/v0.0.41/partition/{PARTITION}")).await?;
    ensure!(names(&partition, "partitions")? == [PARTITION]);

    let job = json!({
        "job": {
            "name": "test-job",
            "nodes": "1",
            "tasks": 1,
            "cpus_per_task": 1,
            "time_limit": "00:05:00",
            "current_working_directory": "/tmp",
            "environment": ["PATH=/usr/bin:/bin"],
            "script": "#!/bin/bash\necho Hello from Slurm!\nhostname\nsleep 30",
        }
    });
    let id = http.submit("/slurm/v0.0.41/job/submit", job, 5).await?;
    let jobs = http.get("/slurm/v0.0.41/jobs").await?;
    ensure!(names(&jobs, "jobs")?.contains(&"test-job".to_owned()), "{jobs}");
    http.job_is("/slurm/v0.0.41/job", id, &["RUNNING", "PENDING"]).await?;
    http.ok(Method::DELETE, &format!("/slurm/v0.0.41/job/{id}"), None).await?;
    http.job_is("/slurm/v0.0.41/job", id, &["CANCELLED"]).await
}

/// The requests of the Go program: nodes and jobs, in the REST version of its types.
async fn go(http: &Http) -> Result<()> {
    let nodes = http.get("/slurm/v0.0.44/nodes/").await?;
    ensure!(names(&nodes, "nodes")? == WORKERS);
    let idle = |node: &Value| words(&node["state"]).contains(&"IDLE".to_owned());
    ensure!(nodes["nodes"].as_array().into_iter().flatten().any(idle), "{nodes}");
    let jobs = http.get("/slurm/v0.0.44/jobs/").await?;
    for job in jobs["jobs"].as_array().with_context(|| format!("no jobs in {jobs}"))? {
        ensure!(job["job_id"].is_u64() && job["job_state"].is_array(), "{job}");
    }
    Ok(())
}
