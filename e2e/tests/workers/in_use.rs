//! What jobs depend on is not removed or replaced under them.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, Job, ManagedSlurm, NODE_SET, SLURMCTLD, STARTED, uids},
    workers::{COMMON_NODE, crowd},
};
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::common::conditions::CONFIGURATION_IN_EFFECT;
use testkit::wait_for;

/// Submits a job that waits in the queue.
async fn held_job(cluster: &ManagedSlurm<'_>, options: &str) -> Result<Job> {
    let id = cluster.run(&format!("sbatch --parsable --hold {options} --output=/dev/null --wrap=hostname")).await?;
    let job = Job { id: id.trim().to_owned(), node: String::new() };
    cluster.job_is(&job, "PENDING").await?;
    Ok(job)
}

/// Waits until slurmctld has another configuration, and answers.
async fn has(scene: &Scene, cluster: &ManagedSlurm<'_>, words: &str) -> Result<()> {
    wait_for(&format!("slurmctld to run with {words}"), STARTED, async || {
        let conf = scene.exec_in(SLURMCTLD, "slurmctld", "cat /etc/slurm/slurm.conf").await?;
        ensure!(conf.contains(words), "not yet");
        ensure!(cluster.run("scontrol ping").await?.contains("UP"), "it does not answer");
        Ok(())
    })
    .await?;
    managed::ready(scene, "RestApi", CLUSTER).await?;
    wait_for("the Controller to be done", STARTED, async || {
        let in_effect = managed::condition(scene, "Controller", CLUSTER, CONFIGURATION_IN_EFFECT).await?;
        ensure!(in_effect.status == "True", "{in_effect:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_partition_and_a_record_that_jobs_use_stay() -> Result<()> {
    let scene = Scene::start("in-use").await?;
    let mut spec = crowd(2, COMMON_NODE)?;
    spec["partition"] = json!({"enabled": true});
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, spec).await?;
    // They wait for a node and for a partition that are to be removed.
    let for_node = held_job(&cluster, "--nodelist=workers-1").await?;
    let for_partition = held_job(&cluster, &format!("--partition={NODE_SET}")).await?;
    let sbatch = format!("sbatch --parsable --partition={NODE_SET} --nodelist=workers-0 --output=/dev/null");
    let wait = "until [ -e /tmp/release-$SLURM_JOB_ID ]; do sleep 0.2; done";
    let id = cluster.run(&format!("{sbatch} --wrap='{wait}'")).await?.trim().to_owned();
    let running = Job { id, node: "workers-0".to_owned() };
    cluster.job_is(&running, "RUNNING").await?;

    cluster.scale(1).await?;
    wait_for("the idle worker to be gone", STARTED, async || {
        let workers = cluster.workers().await?;
        ensure!(workers.len() == 1, "there are {}", workers.len());
        Ok(())
    })
    .await?;

    // A new prefix is a new name of the partition, and slurmctld rereads its files.
    let renamed = json!({"template": {"spec": {"hostname": "fresh-"}}});
    managed::change(&scene, "NodeSet", NODE_SET, renamed).await?;
    has(&scene, &cluster, "PartitionName=fresh").await?;
    for (job, state) in [(&running, "RUNNING"), (&for_node, "PENDING"), (&for_partition, "PENDING")] {
        cluster.job_is(job, state).await?;
    }
    let words = &["workers", "slurm.conf"];
    managed::wait_for_problem(&scene, "Controller", CLUSTER, "PartitionInUse", words).await?;
    ensure!(cluster.nodes().await?.contains_key("workers-1"), "the record of workers-1 is gone, and a job asks for it");

    // Once nobody uses them, they go by themselves.
    cluster.run(&format!("scancel {} {}", for_node.id, for_partition.id)).await?;
    cluster.release(&running).await?;
    wait_for("the old partition to be gone", STARTED, async || {
        let conf = scene.exec_in(SLURMCTLD, "slurmctld", "cat /etc/slurm/slurm.conf").await?;
        ensure!(!conf.contains("PartitionName=workers"), "it is still there");
        let nodes = cluster.nodes().await?;
        ensure!(nodes.get("fresh-0").is_some_and(|state| state == "idle") && nodes.len() == 1, "{nodes:?}");
        Ok(())
    })
    .await?;
    scene.finish().await
}

#[tokio::test]
async fn without_persistence_a_restart_waits_and_suspended_jobs_and_names_are_safe() -> Result<()> {
    let scene = Scene::start("scratch").await?;
    let mut controller = managed::controller()?;
    controller["persistence"] = json!({"enabled": false});
    let conf = format!("{}\nSelectTypeParameters=CR_Core", controller["extraConf"].as_str().unwrap_or_default());
    controller["extraConf"] = json!(conf);
    let cluster = ManagedSlurm::start_with(&scene, controller, crowd(1, COMMON_NODE)?).await?;
    let job = cluster.hold("workers-0").await?;
    let slurmctld = scene.pods().get(SLURMCTLD).await?.uid();

    // A second set changes slurm.conf, which is reread. The workers of a third would have the same names.
    let twin = |hostname: &str, replicas| -> Result<Value> {
        let mut spec = crowd(replicas, COMMON_NODE)?;
        spec["template"]["spec"]["hostname"] = json!(hostname);
        Ok(spec)
    };
    managed::put(&scene, "NodeSet", "other", twin("other-", 0)?).await?;
    has(&scene, &cluster, "NodeSet=other").await?;
    let restart = json!({"template": {"metadata": {"annotations": {"example.com/restarted": "once"}}}});
    managed::change(&scene, "Controller", CLUSTER, restart).await?;
    let words = &["not persistent", "controller.slinky.slurm.net/allow-job-loss"];
    managed::wait_for_problem(&scene, "Controller", CLUSTER, "JobsWouldBeLost", words).await?;
    managed::put(&scene, "NodeSet", "twin", twin("workers-", 1)?).await?;
    managed::wait_for_problem(&scene, "NodeSet", "twin", "HostnameTaken", &["workers-0", NODE_SET, "hostname"]).await?;
    ensure!(scene.pods().get(SLURMCTLD).await?.uid() == slurmctld, "slurmctld was restarted");
    cluster.job_is(&job, "RUNNING").await?;

    // A suspended job leaves an idle node behind.
    cluster.run(&format!("scontrol suspend {}", job.id)).await?;
    cluster.job_is(&job, "SUSPENDED").await?;
    let before = uids(&cluster.workers().await?);
    cluster.scale(0).await?;
    wait_for("the scale-in to wait for the suspended job", SOON, async || {
        let progressing = managed::condition(&scene, "NodeSet", NODE_SET, "Progressing").await?;
        ensure!(progressing.message.contains(&format!("blocked by job {}", job.id)), "{progressing:?}");
        Ok(())
    })
    .await?;
    ensure!(uids(&cluster.workers().await?) == before, "the worker was removed");
    cluster.run(&format!("scontrol resume {}", job.id)).await?;
    cluster.job_is(&job, "RUNNING").await?;
    cluster.release(&job).await?;
    wait_for("the worker to be removed", STARTED, async || {
        ensure!(cluster.workers().await?.is_empty(), "it is still there");
        Ok(())
    })
    .await?;
    scene.finish().await
}

/// slurmctld ends with an error if a Slurm NodeSet has the name of a node that it knows.
#[tokio::test]
async fn sets_with_names_of_nodes_do_not_stop_slurmctld() -> Result<()> {
    let scene = Scene::start("names").await?;
    // Workers are called after their set.
    let set = |replicas| -> Result<Value> {
        let mut spec = crowd(replicas, COMMON_NODE)?;
        spec["template"]["spec"].as_object_mut().context("no template")?.remove("hostname");
        Ok(spec)
    };
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, crowd(2, COMMON_NODE)?).await?;
    let job = cluster.hold("workers-1").await?;
    // The node is there before the set of its name.
    managed::put(&scene, "NodeSet", "workers-1", set(1)?).await?;
    let words = &["workers-1", "a node of NodeSet workers", "hostname"];
    managed::wait_for_problem(&scene, "Controller", CLUSTER, "NodeSetInvalid", words).await?;
    managed::wait_for_problem(&scene, "NodeSet", "workers-1", "HostnameTaken", &["workers-1", "hostname"]).await?;
    cluster.job_is(&job, "RUNNING").await?;
    managed::resources(&scene, "NodeSet").delete("workers-1", &kube::api::DeleteParams::default()).await?;

    // The set is there before the node of its name.
    managed::put(&scene, "NodeSet", "w-1", set(1)?).await?;
    managed::ready(&scene, "NodeSet", "w-1").await?;
    managed::put(&scene, "NodeSet", "w", set(2)?).await?;
    managed::wait_for_problem(&scene, "NodeSet", "w", "HostnameTaken", &["w-1", "the Slurm NodeSet w-1"]).await?;
    managed::change(&scene, "NodeSet", "w", json!({"replicas": 1})).await?;
    managed::ready(&scene, "NodeSet", "w").await?;
    let nodes = cluster.nodes().await?;
    ensure!(nodes.contains_key("w-0") && nodes.contains_key("w-1-0") && !nodes.contains_key("w-1"), "{nodes:?}");
    cluster.release(&job).await?;
    scene.finish().await
}
