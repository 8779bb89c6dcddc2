//! The curl, Python and Go examples of guides to Slurm's REST API: the same requests, headers and bodies, with the corrections that
//! Slurm needs (docs/differences.md).

#![expect(clippy::indexing_slicing, reason = "test code: responses are JSON")]

use anyhow::{Context, Result, bail, ensure};
use e2e::{SOON, slurm_version};
use reqwest::{
    Client, Method,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::{Value, json};
use slurm::version::SlurmVersion;
use testkit::wait_for;

/// The cluster that they talk to.
pub struct Cluster {
    /// The URL of slurmrestd.
    pub url: String,
    pub token: String,
    pub slurmctld: &'static str,
    /// Two nodes, sorted.
    pub nodes: [&'static str; 2],
    /// Sorted.
    pub partitions: [&'static str; 2],
}

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// Runs all examples.
pub async fn run(cluster: &Cluster) -> Result<()> {
    curl(&Http::new(cluster, &[])?).await.context("the curl example")?;
    python(&Http::new(cluster, JSON)?).await.context("the Python example")?;
    go(&Http::new(cluster, JSON)?).await.context("the Go example")
}

/// Sends requests as the examples do.
pub struct Http<'a> {
    cluster: &'a Cluster,
    client: Client,
    offered: Vec<String>,
}

struct Answer {
    status: u16,
    text: String,
}

impl<'a> Http<'a> {
    /// Sends a token and these headers with every request.
    pub fn new(cluster: &'a Cluster, headers: &[(&'static str, &'static str)]) -> Result<Self> {
        // An error only means that a provider is already installed.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let mut all = HeaderMap::new();
        all.insert("x-slurm-user-token", HeaderValue::from_str(&cluster.token)?);
        for (name, value) in headers {
            all.insert(*name, HeaderValue::from_static(value));
        }
        let client = Client::builder().default_headers(all).no_proxy().timeout(SOON).build()?;
        let release =
            SlurmVersion::from_image_tag(&slurm_version()?).context("SLURM_VERSION is not a Slurm version")?;
        let offered = release.rest_versions().iter().map(ToString::to_string).collect();
        Ok(Self { cluster, client, offered })
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer> {
        let mut request = self.client.request(method, format!("{}{path}", self.cluster.url));
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
    pub async fn ok(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let path = self.meant(path).await?;
        let answer = self.send(method, &path, body.as_ref()).await?;
        ensure!(answer.status == 200, "{path} gets {} {}", answer.status, answer.text);
        let answer: Value = serde_json::from_str(&answer.text)?;
        ensure!(answer["errors"] == json!([]), "{path} gets {}", answer["errors"]);
        Ok(answer)
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
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
pub fn names(answer: &Value, key: &str) -> Result<Vec<String>> {
    let Some(records) = answer[key].as_array() else { bail!("no {key} in {answer}") };
    let mut names: Vec<String> =
        records.iter().filter_map(|record| record["name"].as_str()).map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}

/// The shell script: reads everything and submits a job.
async fn curl(http: &Http<'_>) -> Result<()> {
    let ping = http.get("/slurm/v0.0.41/ping").await?;
    ensure!(ping["pings"][0]["hostname"] == http.cluster.slurmctld && ping["pings"][0]["pinged"] == "UP", "{ping}");
    ensure!(names(&http.get("/slurm/v0.0.41/nodes").await?, "nodes")? == http.cluster.nodes);
    let jobs = http.get("/slurm/v0.0.41/jobs").await?;
    ensure!(jobs["jobs"].is_array(), "{jobs}");
    ensure!(names(&http.get("/slurm/v0.0.41/partitions").await?, "partitions")? == http.cluster.partitions);
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
    let refused = anonymous.get(format!("{}{path}", http.cluster.url)).send().await?.status();
    ensure!(refused.as_u16() == 401, "{refused} without a token");
    Ok(())
}

/// The Python class: all of its methods.
async fn python(http: &Http<'_>) -> Result<()> {
    let ping = http.get("/slurm/v0.0.41/ping").await?;
    ensure!(ping["pings"][0]["hostname"] == http.cluster.slurmctld, "{ping}");
    let diag = http.get("/slurm/v0.0.41/diag").await?;
    ensure!(diag["statistics"].is_object(), "{diag}");

    let nodes = http.get("/slurm/v0.0.41/nodes").await?;
    ensure!(names(&nodes, "nodes")? == http.cluster.nodes);
    for node in nodes["nodes"].as_array().into_iter().flatten() {
        ensure!(node["state"].is_array(), "{}", node["state"]);
    }
    let node = format!("/slurm/v0.0.41/node/{}", http.cluster.nodes[1]);
    http.ok(Method::POST, &node, Some(json!({"state": ["DRAIN"], "reason": "maintenance"}))).await?;
    let drained = http.get(&node).await?;
    let (state, reason) = (&drained["nodes"][0]["state"], &drained["nodes"][0]["reason"]);
    ensure!(words(state).contains(&"DRAIN".to_owned()) && reason == "maintenance", "{state} {reason}");
    http.ok(Method::POST, &node, Some(json!({"state": ["RESUME"]}))).await?;
    let resumed = http.get(&node).await?;
    ensure!(!words(&resumed["nodes"][0]["state"]).contains(&"DRAIN".to_owned()), "{resumed}");

    let partitions = http.get("/slurm/v0.0.41/partitions").await?;
    ensure!(names(&partitions, "partitions")? == http.cluster.partitions);
    let name = http.cluster.partitions[0];
    let partition = http.get(&format!("/slurm/v0.0.41/partition/{name}")).await?;
    ensure!(names(&partition, "partitions")? == [name]);

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
async fn go(http: &Http<'_>) -> Result<()> {
    let nodes = http.get("/slurm/v0.0.44/nodes/").await?;
    ensure!(names(&nodes, "nodes")? == http.cluster.nodes);
    let idle = |node: &Value| words(&node["state"]).contains(&"IDLE".to_owned());
    ensure!(nodes["nodes"].as_array().into_iter().flatten().any(idle), "{nodes}");
    let jobs = http.get("/slurm/v0.0.44/jobs/").await?;
    for job in jobs["jobs"].as_array().with_context(|| format!("no jobs in {jobs}"))? {
        ensure!(job["job_id"].is_u64() && job["job_state"].is_array(), "{job}");
    }
    Ok(())
}
