//! Daemons and keys of a cluster are lost and replaced, and no worker is affected.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, Job, ManagedSlurm, SLURMCTLD, STARTED, uids},
    operator::is_ready,
    slurm::ADMIN,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use slurm::{
    client::{Auth, Client},
    token::Key,
};
use slurm_operator_api::common::conditions;
use testkit::wait_for;

#[tokio::test]
async fn daemons_and_keys_are_replaced_and_workers_stay() -> Result<()> {
    let scene = Scene::start("outage").await?;
    let cluster = ManagedSlurm::start(&scene, 2).await?;
    let workers = uids(&cluster.workers().await?);
    let job = cluster.hold("workers-0").await?;

    lose_pods(&scene, "app.kubernetes.io/name=slurmrestd").await?;
    reachable(&scene).await?;
    let queued = format!("sbatch --parsable --dependency=afterok:{} --output=/dev/null --wrap=true", job.id);
    let queued = Job { id: cluster.run(&queued).await?.trim().to_owned(), node: job.node.clone() };
    cluster.saved(&queued).await?;
    kill_slurmctld(&scene).await?;
    reachable(&scene).await?;
    assert_eq!(cluster.job_state(&job).await?, "RUNNING");
    assert_eq!(cluster.job_state(&queued).await?, "PENDING");
    let with_old_key = scene.pods().get(SLURMCTLD).await?.metadata.uid;
    rotate_jwt_key(&scene).await?;
    // It may read the new key before, with its files. A job that starts or ends while slurmctld does stays in its list for minutes.
    wait_for("a slurmctld that was started with the new key", STARTED, async || {
        let pod = scene.pods().get(SLURMCTLD).await?;
        ensure!(pod.metadata.uid != with_old_key && is_ready(&pod), "it is not ready");
        Ok(())
    })
    .await?;
    reachable(&scene).await?;
    answers_with_new_key(&scene).await?;

    cluster.agree(2).await?;
    assert_eq!(uids(&cluster.workers().await?), workers, "a worker was replaced");
    cluster.release(&job).await?;
    cluster.job_is(&queued, "COMPLETED").await?;
    // The operator can use Slurm again.
    cluster.scale(1).await?;
    cluster.agree(1).await?;
    scene.finish().await
}

/// Deletes the pods of a daemon and waits until their replacements are ready.
async fn lose_pods(scene: &Scene, label: &str) -> Result<()> {
    let labels = ListParams::default().labels(label);
    let lost = scene.pods().list(&labels).await?.items;
    ensure!(!lost.is_empty(), "no pod has {label}");
    for pod in &lost {
        scene.pods().delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    wait_for(&format!("new pods with {label}"), STARTED, async || {
        let pods = scene.pods().list(&labels).await?.items;
        ensure!(uids(&pods).is_disjoint(&uids(&lost)), "the old ones still exist");
        ensure!(pods.len() == lost.len() && pods.iter().all(is_ready), "they are not ready");
        Ok(())
    })
    .await
}

/// Kills slurmctld with SIGKILL, and waits until the kubelet has started another one.
async fn kill_slurmctld(scene: &Scene) -> Result<()> {
    let restarts = async || -> Result<i32> {
        let status = scene.pods().get(SLURMCTLD).await?.status.unwrap_or_default();
        let containers = status.container_statuses.into_iter().flatten();
        Ok(containers.filter(|status| status.name == "slurmctld").map(|status| status.restart_count).sum::<i32>())
    };
    let before = restarts().await?;
    // The command may end with its container.
    drop(scene.exec_in(SLURMCTLD, "slurmctld", "pkill -KILL -x slurmctld").await);
    wait_for("another slurmctld", STARTED, async || {
        ensure!(restarts().await? > before && is_ready(&scene.pods().get(SLURMCTLD).await?), "it is not ready");
        Ok(())
    })
    .await
}

/// Waits until the operator reaches Slurm, and slurmctld answers.
async fn reachable(scene: &Scene) -> Result<()> {
    wait_for("the operator to reach Slurm", STARTED, async || {
        let reachable = managed::condition(scene, "Controller", CLUSTER, conditions::SLURM_REACHABLE).await?;
        ensure!(reachable.status == "True", "{reachable:?}");
        scene.exec_in(SLURMCTLD, "slurmctld", "scontrol ping | grep UP").await?;
        Ok(())
    })
    .await
}

async fn rotate_jwt_key(scene: &Scene) -> Result<()> {
    let secrets = scene.namespace.api::<Secret>();
    let old = secrets.get("slurm-auth-jwt").await?;
    secrets.delete("slurm-auth-jwt", &DeleteParams::default()).await?;
    let key = format!("another key of {}, made at {}", scene.namespace.name(), Timestamp::now());
    let secret = json!({"metadata": {"name": "slurm-auth-jwt"}, "stringData": {"jwt.key": key}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    ensure!(secrets.get("slurm-auth-jwt").await?.data != old.data, "the key was not changed");
    Ok(())
}

/// Waits until slurmrestd and slurmctld accept tokens signed with the new key.
async fn answers_with_new_key(scene: &Scene) -> Result<()> {
    let service = scene.namespace.api::<Service>().get("slurm-restapi").await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("slurmrestd's Service has no address")?;
    wait_for("slurmrestd to accept the new key", SOON, async || {
        let secret = scene.namespace.api::<Secret>().get("slurm-auth-jwt").await?;
        let key = secret.data.unwrap_or_default().remove("jwt.key").context("no key")?;
        let auth = Auth::mint(Key::new(&key.0)?, ADMIN, SignedDuration::from_mins(5));
        let client = Client::builder(&format!("http://{address}:6820")).auth(auth).connect().await?;
        client.partitions().await?;
        Ok(())
    })
    .await
}
