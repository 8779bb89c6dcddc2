//! Rolling updates, with working and broken templates.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    Scene,
    managed::{self, Job, ManagedSlurm, NODE_SET, STARTED, slurm_node},
    operator::is_ready,
    workers::{COMMON_NODE, crowd, is_terminating, new_template, status, text},
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};
use slurm_operator_api::{
    common::conditions::{self, reason},
    slinky::names,
};
use testkit::wait_for;
use tokio::time::Instant;

/// Long enough for several reconciles of an update that must not continue.
const SEVERAL_RECONCILES: Duration = Duration::from_secs(10);

#[tokio::test]
async fn updates_do_not_disturb_jobs_respect_their_budget_and_can_be_rolled_back() -> Result<()> {
    let scene = Scene::start("rolling").await?;
    let mut spec = crowd(4, COMMON_NODE)?;
    spec["revisionHistoryLimit"] = json!(5);
    spec["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, spec).await?;
    let roll = Roll { scene: &scene, cluster: &cluster };
    let first = roll.settled(4).await?;

    let second = with_jobs(&roll, &first).await?;
    let broken = broken_image(&roll, &second).await?;
    roll_back(&roll, &first).await?;
    assert_eq!(revisions(&scene).await?.into_keys().collect::<BTreeSet<_>>(), [first, second, broken].into());
    scene.finish().await
}

/// Two of four workers have jobs, which are not disturbed. Returns the name of the new revision.
async fn with_jobs(roll: &Roll<'_>, first: &str) -> Result<String> {
    let cluster = roll.cluster;
    let jobs = [cluster.hold("workers-0").await?, cluster.hold("workers-1").await?];
    let before = uids(cluster).await?;
    new_template(roll.scene, "second").await?;

    // The idle workers are replaced. One of the busy workers drains, and both stay.
    let drains = roll.until(3, "two new workers and one that drains", async || roll.updated(2).await).await?;
    let second = text(&status(roll.scene).await?, "updateRevision")?;
    assert_ne!(second, first);
    assert_eq!(text(&status(roll.scene).await?, "currentRevision")?, first, "the update must not be finished");
    let why = cluster.reason(&drains).await?;
    assert!(why.starts_with(names::REASON_PREFIX) && why.ends_with("is being updated"), "{why}");
    let progress = managed::condition(roll.scene, "NodeSet", NODE_SET, conditions::PROGRESSING).await?;
    assert_eq!((&*progress.status, &*progress.reason), ("True", reason::DRAINING), "{progress:?}");
    assert!(progress.message.contains(&drains), "{progress:?}");
    let now = uids(cluster).await?;
    for node in ["workers-0", "workers-1"] {
        assert_eq!(now.get(node), before.get(node), "{node} has a job and was replaced");
    }

    let (leaving, staying): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.node == drains);
    let ([leaving], [staying]) = (&*leaving, &*staying) else { bail!("{drains} has none of the jobs {jobs:?}") };
    runs(cluster, &jobs).await?;
    cluster.release(leaving).await?;
    let next = roll.until(3, "three new workers and one that drains", async || roll.updated(3).await).await?;
    assert_eq!(next, staying.node);
    runs(cluster, std::slice::from_ref(*staying)).await?;
    cluster.release(staying).await?;
    assert_eq!(roll.settled(3).await?, second);
    for node in ["workers-0", "workers-3"] {
        assert_eq!(cluster.srun(&format!("--nodelist={node}"), "hostname").await?, [node]);
    }
    Ok(second)
}

/// A broken template makes only one worker unavailable. Rolling back to the last good one repairs it.
async fn broken_image(roll: &Roll<'_>, good: &str) -> Result<String> {
    let before = uids(roll.cluster).await?;
    let image = managed::node_set(0)?["slurmd"]["image"].clone();
    set_image(roll.scene, json!("localhost/slurm-operator/slurmd:nowhere")).await?;
    managed::wait_for_problem(roll.scene, "NodeSet", NODE_SET, reason::PODS_NOT_READY, &["slurmd:nowhere"]).await?;
    let end = Instant::now() + SEVERAL_RECONCILES;
    let waits = async || {
        ensure!(Instant::now() >= end, "the waiting time is not over");
        Ok(())
    };
    roll.until(3, "the waiting time to end", waits).await?;
    let reported = status(roll.scene).await?;
    assert_eq!((&reported["updatedReplicas"], &reported["readyReplicas"]), (&json!(1), &json!(3)), "{reported}");
    let broken = text(&reported, "updateRevision")?;

    set_image(roll.scene, image).await?;
    assert_eq!(roll.settled(3).await?, good, "the old revision must be used again");
    let after = uids(roll.cluster).await?;
    let same = before.iter().filter(|(node, uid)| after.get(*node) == Some(*uid)).count();
    assert_eq!(same, 3, "workers that still had the good template were replaced");
    Ok(broken)
}

/// Rolls back to the first template, two workers at a time.
async fn roll_back(roll: &Roll<'_>, first: &str) -> Result<()> {
    let spec = json!({
        "template": {"metadata": null},
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": "50%"}},
    });
    managed::change(roll.scene, "NodeSet", NODE_SET, spec).await?;
    assert_eq!(roll.settled(2).await?, first);
    let newest = revisions(roll.scene).await?.into_iter().max_by_key(|(_, number)| *number);
    assert_eq!(newest.context("there are no revisions")?.0, first, "it must be the newest again");
    Ok(())
}

async fn set_image(scene: &Scene, image: Value) -> Result<()> {
    managed::change(scene, "NodeSet", NODE_SET, json!({"slurmd": {"image": image}})).await
}

async fn runs(cluster: &ManagedSlurm<'_>, jobs: &[Job]) -> Result<()> {
    for job in jobs {
        let state = cluster.job_state(job).await?;
        ensure!(state == "RUNNING", "the job on {} is {state}", job.node);
    }
    Ok(())
}

/// The UIDs of the workers' pods, by Slurm node.
async fn uids(cluster: &ManagedSlurm<'_>) -> Result<BTreeMap<String, Option<String>>> {
    Ok(cluster.workers().await?.iter().map(|pod| (slurm_node(pod), pod.uid())).collect())
}

/// The revisions of the NodeSet: name and number.
async fn revisions(scene: &Scene) -> Result<BTreeMap<String, i64>> {
    let all = scene.namespace.api::<ControllerRevision>().list(&ListParams::default()).await?;
    let named = all.into_iter().map(|revision| (revision.name_any(), revision.revision));
    // slurmctld's StatefulSet has revisions, too.
    Ok(named.filter(|(name, _)| name.starts_with(&format!("{NODE_SET}-"))).collect())
}

/// An update that is monitored.
struct Roll<'a> {
    scene: &'a Scene,
    cluster: &'a ManagedSlurm<'a>,
}

impl Roll<'_> {
    /// Waits until the probe succeeds. At each attempt, at least `serving` workers must be in service.
    async fn until<T>(&self, serving: usize, what: &str, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let mut short = Vec::new();
        let answer = wait_for(what, STARTED, async || {
            short.extend(self.shortage(serving).await?);
            probe().await
        })
        .await?;
        ensure!(short.is_empty(), "while waiting for {what}, fewer than {serving} workers were in service: {short:#?}");
        Ok(answer)
    }

    /// Describes the workers if fewer are in service. The two lists are read at different times, so workers are counted in
    /// each of them separately.
    async fn shortage(&self, serving: usize) -> Result<Option<String>> {
        let nodes = self.cluster.nodes().await?;
        // A star marks a node that has just registered and was not pinged yet.
        let state = |state: &str| matches!(state.trim_end_matches('*'), "idle" | "mixed" | "allocated" | "completing");
        let in_slurm = nodes.values().filter(|found| state(found)).count();
        let pods = self.cluster.workers().await?;
        let ready = pods.iter().filter(|pod| is_ready(pod) && !is_terminating(pod)).count();
        let names: Vec<_> = pods.iter().map(|pod| (slurm_node(pod), is_ready(pod), is_terminating(pod))).collect();
        Ok((in_slurm < serving || ready < serving).then(|| format!("Slurm {nodes:?}, pods {names:?}")))
    }

    /// Returns the only worker that drains, once this many have the new template.
    async fn updated(&self, workers: u8) -> Result<String> {
        let reported = status(self.scene).await?;
        ensure!(reported["updatedReplicas"] == workers && reported["readyReplicas"] == 4, "{reported}");
        let draining = self.cluster.draining().await?;
        let [drains] = &*draining else { bail!("{draining:?} are draining") };
        Ok(drains.clone())
    }

    /// Waits until all workers have the newest template, and returns its name.
    async fn settled(&self, serving: usize) -> Result<String> {
        let update = self
            .until(serving, "all workers to have the newest template", async || {
                let reported = status(self.scene).await?;
                let (current, update) = (text(&reported, "currentRevision")?, text(&reported, "updateRevision")?);
                ensure!(
                    current == update && reported["updatedReplicas"] == 4 && reported["readyReplicas"] == 4,
                    "{reported}"
                );
                ensure!(reported["unavailableReplicas"] == 0 && reported["currentReplicas"] == 4, "{reported}");
                Ok(update)
            })
            .await?;
        self.cluster.agree(4).await?;
        Ok(update)
    }
}
