//! Evictions, as requested by `kubectl drain` and autoscalers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, Job, ManagedSlurm, NODE_SET},
    workers::{COMMON_NODE, crowd},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{EvictParams, ObjectMeta, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use slurm_operator_api::{
    common::conditions::reason,
    slinky::names::{self, label},
};
use testkit::wait_for;

/// The kubelet would bring a changed file to slurmctld, which would push it to every slurmd, and these would end with their jobs.
async fn a_file_that_slurmd_cannot_read_is_refused(scene: &Scene) -> Result<()> {
    let maps: Api<ConfigMap> = scene.namespace.api();
    let write = async |data| {
        let patch = Patch::Merge(json!({ "data": data }));
        maps.patch("files", &PatchParams::default(), &patch).await
    };
    write(json!({"gres.conf": "Name=gpu Flie=/dev/nope\n"})).await?;
    let words = &["gres.conf in the ConfigMap files: line 1: Flie is not known", "did you mean File?"];
    managed::wait_for_problem(scene, "Controller", CLUSTER, reason::INVALID_SPEC, words).await?;
    write(json!({"gres.conf": "AutoDetect=off\n", "cgroup.conf": "CgroupPlugin=cgroup/v9\n"})).await?;
    let words = &["slurmd of", "cgroup/v9", "The last good configuration is kept"];
    managed::wait_for_problem(scene, "Controller", CLUSTER, reason::INVALID_SPEC, words).await?;
    let mounted = maps.get(&names::controller_config_copy(CLUSTER, "files")).await?;
    let files = mounted.data.unwrap_or_default();
    let is_same = files.len() == 1 && files.get("gres.conf").is_some_and(|text| text == "AutoDetect=off\n");
    ensure!(is_same, "slurmctld's files have changed: {files:?}");
    write(json!({"cgroup.conf": null})).await?;
    wait_for("the problem to be gone", SOON, async || {
        let degraded = managed::condition(scene, "Controller", CLUSTER, "Degraded").await?;
        ensure!(degraded.status == "False", "{degraded:?}");
        Ok(())
    })
    .await
}

/// A job is noticed within two seconds; the rest is for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn busy_workers_are_not_evicted() -> Result<()> {
    let scene = Scene::start("protect").await?;
    let files = ConfigMap {
        metadata: ObjectMeta { name: Some("files".to_owned()), ..ObjectMeta::default() },
        data: Some([("gres.conf".to_owned(), "AutoDetect=off\n".to_owned())].into()),
        ..ConfigMap::default()
    };
    scene.namespace.api().create(&PostParams::default(), &files).await?;
    let mut controller = managed::controller()?;
    (controller["inplaceReconfigure"], controller["configFileRefs"]) = (json!(true), json!([{"name": "files"}]));
    let cluster = ManagedSlurm::start_with(&scene, controller, crowd(3, COMMON_NODE)?).await?;
    let guard = Guard { cluster: &cluster, pods: impatient(&scene).await? };

    let first = guard.busy("workers-0").await?;
    a_file_that_slurmd_cannot_read_is_refused(&scene).await?;
    guard.refused("workers-0").await?;
    guard.granted("workers-2").await?;
    cluster.agree(3).await?;

    // While a scale-in waits for one busy worker, both are protected.
    let second = guard.busy("workers-1").await?;
    cluster.scale(1).await?;
    wait_for("one busy worker to drain and the idle one to be removed", SOON, async || {
        let (draining, workers) = (cluster.draining().await?, cluster.workers().await?);
        ensure!(draining.len() == 1 && workers.len() == 2, "{draining:?} drain, there are {} workers", workers.len());
        Ok(())
    })
    .await?;
    let drains = cluster.draining().await?;
    for job in [&first, &second] {
        guard.refused(&job.node).await?;
        assert_eq!(cluster.job_state(job).await?, "RUNNING");
    }
    let (leaving, staying) = if drains == [first.node.clone()] { (first, second) } else { (second, first) };
    cluster.release(&leaving).await?;
    cluster.agree(1).await?;
    guard.refused(&staying.node).await?;
    cluster.release(&staying).await?;
    guard.unprotected(&staying.node).await?;
    guard.granted(&staying.node).await?;
    cluster.agree(1).await?;

    // The same with one worker for each Kubernetes node.
    let spec = json!({"scalingMode": "DaemonSet", "template": {"spec": {"hostname": null}}});
    managed::change(&scene, "NodeSet", NODE_SET, spec).await?;
    wait_for("the worker of the node", SOON, async || {
        let workers = cluster.workers().await?;
        ensure!(workers.len() == 1, "there are {} workers", workers.len());
        cluster.worker(COMMON_NODE).await
    })
    .await?;
    cluster.agree(1).await?;
    let job = guard.busy(COMMON_NODE).await?;
    guard.refused(COMMON_NODE).await?;
    cluster.release(&job).await?;
    guard.unprotected(COMMON_NODE).await?;
    guard.granted(COMMON_NODE).await?;
    cluster.agree(1).await?;
    scene.finish().await
}

/// Evicts workers.
struct Guard<'a> {
    cluster: &'a ManagedSlurm<'a>,
    pods: Api<Pod>,
}

impl Guard<'_> {
    /// Starts a job and waits until its worker is protected; checks that it did not take long.
    async fn busy(&self, node: &str) -> Result<Job> {
        let job = self.cluster.hold(node).await?;
        let start = Instant::now();
        self.label(node, true).await?;
        let took = start.elapsed();
        eprintln!("{node} is protected {took:?} after its job started");
        ensure!(took < AT_ONCE, "{node} was protected only {took:?} after its job started");
        Ok(job)
    }

    async fn unprotected(&self, node: &str) -> Result<()> {
        self.label(node, false).await
    }

    async fn label(&self, node: &str, wanted: bool) -> Result<()> {
        wait_for(&format!("the worker {node} to be protected: {wanted}"), SOON, async || {
            let pod = self.cluster.worker(node).await?;
            ensure!(pod.labels().contains_key(label::POD_PROTECT) == wanted, "{:?}", pod.labels());
            Ok(())
        })
        .await
    }

    async fn evict(&self, node: &str) -> Result<kube::Result<()>> {
        let pod = self.cluster.worker(node).await?.name_any();
        Ok(self.pods.evict(&pod, &EvictParams::default()).await.map(drop))
    }

    /// Checks that the `PodDisruptionBudget` refuses the eviction.
    async fn refused(&self, node: &str) -> Result<()> {
        let before = self.cluster.worker(node).await?;
        match self.evict(node).await? {
            Err(kube::Error::Api(status)) if status.code == 429 => {}
            other => bail!("the eviction of {node}, which has a job, was answered with {other:?}"),
        }
        let after = self.cluster.worker(node).await?;
        ensure!(
            after.uid() == before.uid() && after.metadata.deletion_timestamp.is_none(),
            "{node} was deleted or replaced all the same"
        );
        Ok(())
    }

    /// Checks that the eviction is granted, and waits until the pod is gone.
    async fn granted(&self, node: &str) -> Result<()> {
        let pod = self.cluster.worker(node).await?;
        self.evict(node).await?.with_context(|| format!("the idle worker {node} could not be evicted"))?;
        wait_for(&format!("the evicted worker {node} to be gone"), SOON, async || {
            let now = self.pods.get_opt(&pod.name_any()).await?;
            ensure!(now.is_none_or(|now| now.uid() != pod.uid()), "it still exists");
            Ok(())
        })
        .await
    }
}

/// The pods, with a client that does not retry: the default one retries for minutes.
async fn impatient(scene: &Scene) -> Result<Api<Pod>> {
    let kubeconfig = Kubeconfig::from_env()?.context("KUBECONFIG is not set")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Api::namespaced(Client::try_from(config)?, scene.namespace.name()))
}
