//! A Slurm cluster that the operator creates from custom resources, in the version under test.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slurm_operator_api::{common::conditions, slinky::names};
use testkit::wait_for;

use crate::{SOON, Scene, operator::is_ready, slurm_image};

/// The name of the Controller and of the RestApi.
pub const CLUSTER: &str = "slurm";

/// The name of the NodeSet, and the prefix of its Slurm nodes.
pub const NODE_SET: &str = "workers";

/// The slurmctld pod.
pub const SLURMCTLD: &str = "slurm-controller-0";

/// Long enough to start a whole cluster on a busy machine.
pub const STARTED: Duration = Duration::from_mins(3);

/// The custom resources of a scene's namespace.
pub fn resources(scene: &Scene, kind: &str) -> Api<DynamicObject> {
    scene.namespace.dynamic_api(&resource(kind))
}

fn resource(kind: &str) -> ApiResource {
    let plural = format!("{}s", kind.to_lowercase());
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(names::GROUP, names::VERSION, kind), &plural)
}

/// Applies a custom resource.
pub async fn put(scene: &Scene, kind: &str, name: &str, spec: Value) -> Result<()> {
    let object = DynamicObject::new(name, &resource(kind)).data(json!({"spec": spec}));
    let applied = testkit::api_server::apply(&resources(scene, kind), &object).await;
    applied.with_context(|| format!("cannot apply the {kind} {name}"))?;
    Ok(())
}

/// Changes some fields of a custom resource's spec; null removes one.
pub async fn change(scene: &Scene, kind: &str, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    resources(scene, kind).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A condition of a custom resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// The condition of a type. Fails while it is of an older generation.
pub async fn condition(scene: &Scene, kind: &str, name: &str, type_: &str) -> Result<Condition> {
    let object = resources(scene, kind).get(name).await?;
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array).context("no conditions")?;
    let found = conditions.iter().find(|condition| condition["type"] == type_);
    let found = found.with_context(|| format!("no condition {type_} in {}", json!(conditions)))?;
    let seen = found["observedGeneration"].as_i64();
    ensure!(seen.is_none() || seen == object.metadata.generation, "{type_} is of an older generation");
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Ok(Condition { status: text("status"), reason: text("reason"), message: text("message") })
}

/// Waits until an object is ready.
pub async fn ready(scene: &Scene, kind: &str, name: &str) -> Result<()> {
    wait_for(&format!("the {kind} {name} to be ready"), STARTED, async || {
        let ready = condition(scene, kind, name, conditions::READY).await?;
        ensure!(ready.status == "True", "{ready:?}");
        Ok(())
    })
    .await
}

/// Waits until an object is not ready or degraded with this reason, and a message that contains all of these words.
pub async fn wait_for_problem(scene: &Scene, kind: &str, name: &str, reason: &str, words: &[&str]) -> Result<()> {
    wait_for(&format!("the {kind} {name} to say {reason} with {words:?}"), SOON, async || {
        let ready = condition(scene, kind, name, conditions::READY).await?;
        let degraded = condition(scene, kind, name, conditions::DEGRADED).await?;
        let says = |condition: &Condition, status: &str| {
            let words = words.iter().all(|word| condition.message.contains(word));
            condition.status == status && condition.reason == reason && words
        };
        ensure!(says(&ready, "False") || says(&degraded, "True"), "Ready {ready:?}, Degraded {degraded:?}");
        Ok(())
    })
    .await
}

/// The spec of a Controller whose keys the operator generates.
pub fn controller() -> Result<Value> {
    Ok(json!({
        "slurmKeyRef": {"name": "slurm-auth-slurm", "key": "slurm.key"},
        "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"},
        "generateKeys": true,
        "slurmctld": {"image": slurm_image("slurmctld")?, "imagePullPolicy": "Never"},
        "template": {"spec": on_first_node()},
        "extraConf": "PartitionName=all Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP",
    }))
}

/// The spec of a `RestApi`.
pub fn rest_api() -> Result<Value> {
    Ok(json!({
        "controllerRef": {"name": CLUSTER},
        "slurmrestd": {"image": slurm_image("slurmrestd")?, "imagePullPolicy": "Never"},
        "template": {"spec": on_first_node()},
    }))
}

/// Other tests break the other nodes.
fn on_first_node() -> Value {
    json!({"nodeSelector": {"kubernetes.io/hostname": "node1"}, "terminationGracePeriodSeconds": 5})
}

/// The spec of a `NodeSet`.
pub fn node_set(replicas: u8) -> Result<Value> {
    Ok(json!({
        "controllerRef": {"name": CLUSTER},
        "replicas": replicas,
        "slurmd": {"image": slurm_image("slurmd")?, "imagePullPolicy": "Never"},
        "template": {"spec": {"hostname": format!("{NODE_SET}-"), "terminationGracePeriodSeconds": 5}},
    }))
}

/// Id and number of restarts of each container of slurmctld and slurmd. Those of trials come and go.
pub async fn containers(scene: &Scene) -> Result<BTreeMap<String, (Option<String>, i32)>> {
    let selector = ListParams::default().labels("app.kubernetes.io/name in (slurmctld, slurmd)");
    let mut found = BTreeMap::new();
    for pod in scene.pods().list(&selector).await? {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone()).unwrap_or_default();
        for status in statuses.into_iter().filter(|status| ["slurmctld", "slurmd"].contains(&&*status.name)) {
            found.insert(format!("{}/{}", pod.name_any(), status.name), (status.container_id, status.restart_count));
        }
    }
    Ok(found)
}

/// The cluster; it is deleted with the scene's namespace.
pub struct ManagedSlurm<'a> {
    pub(crate) scene: &'a Scene,
}

/// A job that keeps its node busy until it is released.
#[derive(Clone, Debug)]
pub struct Job {
    pub id: String,
    /// The Slurm node.
    pub node: String,
}

impl<'a> ManagedSlurm<'a> {
    /// A cluster that is created by other means, such as the chart.
    pub fn of(scene: &'a Scene) -> Self {
        Self { scene }
    }

    /// Applies everything and waits until all of it is ready.
    pub async fn start(scene: &'a Scene, workers: u8) -> Result<Self> {
        Self::start_with(scene, controller()?, node_set(workers)?).await
    }

    /// Like [`start`](Self::start), with a custom Controller and `NodeSet`.
    pub async fn start_with(scene: &'a Scene, controller: Value, workers: Value) -> Result<Self> {
        let replicas = workers["replicas"].as_u64().and_then(|number| usize::try_from(number).ok());
        let replicas = replicas.context("the NodeSet has no replicas")?;
        put(scene, "Controller", CLUSTER, controller).await?;
        put(scene, "RestApi", CLUSTER, rest_api()?).await?;
        put(scene, "NodeSet", NODE_SET, workers).await?;
        let cluster = Self { scene };
        cluster.ready().await?;
        cluster.agree(replicas).await?;
        Ok(cluster)
    }

    /// Waits until all objects are ready.
    pub async fn ready(&self) -> Result<()> {
        ready(self.scene, "Controller", CLUSTER).await?;
        ready(self.scene, "RestApi", CLUSTER).await?;
        ready(self.scene, "NodeSet", NODE_SET).await
    }

    /// Runs a command in the slurmctld pod, and returns its output.
    pub async fn run(&self, script: &str) -> Result<String> {
        self.scene.exec_in(SLURMCTLD, "slurmctld", &format!("cd /tmp; {script}")).await
    }

    /// Whether slurmctld has this parameter, such as `MaxJobCount=7777`.
    pub async fn has(&self, parameter: &str) -> Result<bool> {
        let (key, value) = parameter.split_once('=').context("no parameter")?;
        let config = self.run("scontrol show config").await?;
        let line = config.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap_or_default();
        Ok(line.ends_with(&format!("= {value}")))
    }

    /// Waits until slurmctld has this parameter, and every slurmd the file.
    pub async fn in_effect(&self, parameter: &str) -> Result<()> {
        wait_for(&format!("{parameter} to be in effect"), STARTED, async || {
            let told = condition(self.scene, "Controller", CLUSTER, conditions::CONFIGURATION_IN_EFFECT).await?;
            ensure!(told.status == "True", "{told:?}");
            ensure!(self.has(parameter).await?, "slurmctld has another value, although the condition is True");
            Ok(())
        })
        .await
    }

    /// Slurm's nodes and their states, such as `idle` or `mixed`.
    pub async fn nodes(&self) -> Result<BTreeMap<String, String>> {
        let nodes = self.run("sinfo --noheader --Node --format '%N %T'").await?;
        let pair = |line: &str| line.trim().split_once(' ').map(|(node, state)| (node.to_owned(), state.to_owned()));
        Ok(nodes.lines().filter_map(pair).collect())
    }

    /// The pods of the workers, including those that are being deleted.
    pub async fn workers(&self) -> Result<Vec<Pod>> {
        let labels = format!("{}={NODE_SET},{}=slurmd", names::label::INSTANCE, names::label::NAME);
        Ok(self.scene.pods().list(&ListParams::default().labels(&labels)).await?.items)
    }

    /// The worker with a Slurm node.
    pub async fn worker(&self, node: &str) -> Result<Pod> {
        let workers = self.workers().await?;
        workers.into_iter().find(|pod| slurm_node(pod) == node).with_context(|| format!("there is no worker {node}"))
    }

    /// Scales the `NodeSet`, as `kubectl scale` does.
    pub async fn scale(&self, replicas: u8) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        resources(self.scene, "NodeSet").patch_scale(NODE_SET, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until there are this many workers, and Kubernetes, the NodeSet's status and Slurm agree about them.
    pub async fn agree(&self, workers: usize) -> Result<()> {
        wait_for(&format!("{workers} workers in Kubernetes, the status and Slurm"), STARTED, async || {
            let pods = self.workers().await?;
            let names: BTreeSet<String> = pods.iter().map(slurm_node).collect();
            ensure!(names.len() == pods.len(), "two workers have the same Slurm node: {names:?}");
            ensure!(pods.len() == workers && pods.iter().all(is_ready), "there are {names:?}, or not all are ready");
            let nodes = self.nodes().await?;
            ensure!(nodes.keys().cloned().collect::<BTreeSet<_>>() == names, "workers {names:?}, Slurm {nodes:?}");
            let usable = |state: &String| matches!(&**state, "idle" | "mixed" | "allocated" | "completing");
            ensure!(nodes.values().all(usable), "{nodes:?}");
            let status = resources(self.scene, "NodeSet").get(NODE_SET).await?.data["status"].clone();
            for field in ["desired", "replicas", "readyReplicas", "slurmRegistered"] {
                ensure!(status[field] == workers, "{field} is {} in {status}", status[field]);
            }
            Ok(())
        })
        .await?;
        ready(self.scene, "NodeSet", NODE_SET).await
    }

    /// Starts a job that keeps a node busy until it is released, and waits until it runs.
    pub async fn hold(&self, node: &str) -> Result<Job> {
        self.hold_with("", node).await
    }

    /// The same with options of sbatch.
    pub async fn hold_with(&self, options: &str, node: &str) -> Result<Job> {
        self.submit(options, node, "until [ -e /tmp/release-$SLURM_JOB_ID ]; do sleep 0.2; done").await
    }

    /// Like [`hold`](Self::hold), with a job that counts.
    pub async fn count(&self, node: &str) -> Result<Job> {
        // Written in one step, so that it is never read empty.
        let step =
            "n=$((n + 1)); echo $n >/tmp/next-$SLURM_JOB_ID; mv /tmp/next-$SLURM_JOB_ID /tmp/count-$SLURM_JOB_ID";
        self.job(node, &format!("n=0; until [ -e /tmp/release-$SLURM_JOB_ID ]; do {step}; sleep 0.2; done")).await
    }

    /// What a job has counted.
    pub async fn counted(&self, job: &Job) -> Result<u64> {
        let pod = self.worker(&job.node).await?.name_any();
        wait_for("the job to count", SOON, async || {
            let text = self.scene.exec_in(&pod, "slurmd", &format!("cat /tmp/count-{}", job.id)).await?;
            text.trim().parse().with_context(|| format!("the job has counted {text}"))
        })
        .await
    }

    /// Waits until a job has counted more than this.
    pub async fn goes_on(&self, job: &Job, counted: u64) -> Result<()> {
        wait_for("the job to go on", SOON, async || {
            ensure!(self.counted(job).await? > counted, "it stopped at {counted}");
            Ok(())
        })
        .await
    }

    /// Starts a job on a node, and waits until it runs.
    pub async fn job(&self, node: &str, script: &str) -> Result<Job> {
        self.submit("", node, script).await
    }

    async fn submit(&self, options: &str, node: &str, script: &str) -> Result<Job> {
        let sbatch =
            format!("sbatch --parsable {options} --nodelist={node} --output=/tmp/job-%j.out --wrap='{script}'");
        let id = self.run(&sbatch).await?.trim().to_owned();
        let job = Job { id, node: node.to_owned() };
        self.job_is(&job, "RUNNING").await?;
        Ok(job)
    }

    /// Lets a job end, and waits until it is completed.
    pub async fn release(&self, job: &Job) -> Result<()> {
        let pod = self.worker(&job.node).await?.name_any();
        // A kubelet that has just started does not know its pods yet.
        wait_for("the job to be released", SOON, async || {
            self.scene.exec_in(&pod, "slurmd", &format!("touch /tmp/release-{}", job.id)).await
        })
        .await?;
        self.job_is(job, "COMPLETED").await
    }

    /// A job's state, such as RUNNING. slurmctld may start or reread its files, so this may take a while.
    pub async fn job_state(&self, job: &Job) -> Result<String> {
        let squeue = format!("squeue --job={} --states=all --noheader --format=%T", job.id);
        let state = wait_for("slurmctld to answer", SOON, async || self.run(&squeue).await).await?;
        Ok(state.trim().to_owned())
    }

    /// Waits until a job has this state; fails at once if it ends in another one.
    pub async fn job_is(&self, job: &Job, state: &str) -> Result<()> {
        let end = wait_for(&format!("the job {} to be {state}", job.id), SOON, async || {
            let now = self.job_state(job).await?;
            let ended = ["COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"].contains(&&*now);
            ensure!(now == state || ended, "it is {now}");
            Ok(now)
        })
        .await?;
        if end != state {
            let detail = self.run(&format!("scontrol show job {}", job.id)).await.unwrap_or_default();
            bail!("the job {} on {} should be {state} and is {end}: {detail}", job.id, job.node);
        }
        Ok(())
    }

    /// Waits until slurmctld has saved a job. It does so some seconds later: a job that is younger is lost if slurmctld is killed.
    pub async fn saved(&self, job: &Job) -> Result<()> {
        self.run(&format!("touch /tmp/before && scontrol update job={} comment=saved", job.id)).await?;
        wait_for("slurmctld to save the job", SOON, async || {
            let files = self.run("find /var/spool/slurmctld -name job_state -newer /tmp/before").await?;
            ensure!(!files.is_empty(), "job_state is older");
            Ok(())
        })
        .await
    }

    /// Runs a command with srun options such as `--nodes=2`, and returns the sorted lines of its output.
    pub async fn srun(&self, place: &str, command: &str) -> Result<Vec<String>> {
        let output = self.run(&format!("timeout 60 srun {place} {command}")).await?;
        let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    }
}

/// The Slurm node of a worker.
pub fn slurm_node(pod: &Pod) -> String {
    pod.labels().get(names::label::POD_HOSTNAME).cloned().unwrap_or_default()
}

/// The UIDs of pods, to check that they were not replaced.
pub fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}
