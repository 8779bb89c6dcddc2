//! The operator is killed at random moments, also while a change of the configuration is reread, and nothing is lost or duplicated.

use std::{
    collections::BTreeSet,
    env,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    Scene, go_operator,
    managed::{self, CLUSTER, Job, ManagedSlurm, NODE_SET, SLURMCTLD, STARTED, change, uids},
    operator,
};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};
use testkit::{Rng, wait_for};
use tokio::time::sleep;

/// Enough to be killed while pods are created, while they start, and while workers drain.
const LONGEST: u64 = 3000;

#[tokio::test]
async fn the_operator_is_killed_while_it_scales() -> Result<()> {
    let seed = match env::var("SEED") {
        Ok(seed) => seed.parse().context("SEED must be a number")?,
        Err(_) => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
    };
    println!("SEED={seed} repeats this test with the same moments");
    let mut random = Rng::new(seed);

    let scene = Scene::start("crash").await?;
    let cluster = ManagedSlurm::start(&scene, 1).await?;
    let job = cluster.hold("workers-0").await?;
    let controller = managed::controller()?;
    let good = controller.get("extraConf").and_then(Value::as_str).unwrap_or_default();
    for workers in [3, 1, 2] {
        cluster.scale(workers).await?;
        let parameter = format!("MaxJobCount={}", 7000 + u16::from(workers));
        change(&scene, "Controller", CLUSTER, json!({"extraConf": format!("{good}\n{parameter}")})).await?;
        let moment = Duration::from_millis(random.below(LONGEST));
        println!("scaled to {workers} workers; killed after {moment:?}");
        sleep(moment).await;
        operator::kill(&scene.client).await?;
        cluster.agree(usize::from(workers)).await?;
        cluster.in_effect(&parameter).await?;
        assert_eq!(cluster.job_state(&job).await?, "RUNNING");
    }
    cluster.release(&job).await?;
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-0", "workers-1"]);

    // Slurm works without the operator: workers find a slurmctld that was replaced.
    let without = async {
        operator::run(&scene.client, 0).await?;
        scene.pods().delete(SLURMCTLD, &DeleteParams::default()).await?;
        wait_for("workers to find the new slurmctld", STARTED, async || {
            let worker = cluster.worker("workers-1").await?.name_any();
            scene.exec_in(&worker, "slurmd", "scontrol ping | grep UP").await
        })
        .await?;
        assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-0", "workers-1"]);
        Ok::<_, anyhow::Error>(())
    }
    .await;
    let rewritten = async {
        without?;
        go_operator::rewrite(&scene).await?;
        let workers = async || -> Result<()> {
            let nodes = cluster.nodes().await?;
            ensure!(nodes.len() == 2 && nodes.values().all(|state| state == "idle"), "{nodes:?}");
            Ok(())
        };
        wait_for("the workers of the Go operator", STARTED, workers).await?;
        Ok::<_, anyhow::Error>([cluster.hold("workers-0").await?, cluster.hold("workers-1").await?])
    }
    .await;
    let before = cluster.workers().await;
    operator::run(&scene.client, 1).await?;
    take_over(&scene, &cluster, &rewritten?, &uids(&before?)).await?;
    scene.finish().await
}

/// The operator takes over the cluster of the Go operator. No worker is replaced, and its jobs go on.
async fn take_over(scene: &Scene, cluster: &ManagedSlurm<'_>, jobs: &[Job], before: &BTreeSet<String>) -> Result<()> {
    cluster.agree(2).await?;
    wait_for("everything to be ready and written by this operator", STARTED, async || {
        cluster.ready().await?;
        for (version, kind, name) in [
            ("v1", "ConfigMap", "slurm-config"),
            ("v1", "Service", "slurm-controller"),
            ("apps/v1", "StatefulSet", "slurm-controller"),
            ("apps/v1", "Deployment", "slurm-restapi"),
            ("policy/v1", "PodDisruptionBudget", "slurm-workers-pdb-slurm"),
        ] {
            let managers = go_operator::managers(scene, version, kind, name).await?;
            ensure!(!managers.contains(&"manager".to_owned()), "{kind} {name}: {managers:?}");
        }
        Ok(())
    })
    .await?;
    let budget = go_operator::spec(scene, "policy/v1", "PodDisruptionBudget", "slurm-workers-pdb-slurm").await?;
    assert!(budget.get("maxUnavailable").is_none() && budget.get("minAvailable").is_some(), "{budget}");
    let set = go_operator::spec(scene, "apps/v1", "StatefulSet", "slurm-controller").await?;
    assert_eq!(set["template"]["spec"]["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{set}");
    assert_eq!(uids(&cluster.workers().await?), *before, "a worker was replaced");
    for job in jobs {
        assert_eq!(cluster.job_state(job).await?, "RUNNING");
    }

    // It scales, and in the end replaces them.
    cluster.scale(3).await?;
    cluster.agree(3).await?;
    assert!(uids(&cluster.workers().await?).is_superset(before), "a worker was replaced");
    for job in jobs {
        cluster.release(job).await?;
    }
    cluster.scale(2).await?;
    cluster.agree(2).await?;
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}});
    let slurmd = json!({"env": [{"name": "ROLLED", "value": "yes"}]});
    change(scene, "NodeSet", NODE_SET, json!({"slurmd": slurmd, "updateStrategy": strategy})).await?;
    wait_for("new workers", STARTED, async || {
        let now = uids(&cluster.workers().await?);
        ensure!(now.is_disjoint(before), "{now:?}");
        Ok(())
    })
    .await?;
    cluster.agree(2).await?;
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["workers-0", "workers-1"]);
    Ok(())
}
