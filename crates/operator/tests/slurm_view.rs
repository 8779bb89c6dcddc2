//! Views of Slurm against a fake slurmrestd.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use engine::{
    plan::{ClusterKey, JobsOnNodes, Needs, ServiceState, SlurmCall, SlurmWrite},
    podset::{Jobs, SlurmObservation, Snapshot},
};
use jiff::Timestamp;
use serde_json::json;
use slurm::{
    token::Key,
    wire::{JobId, NodeUpdate},
};
use slurm_operator::{
    frontends::{self, slinky},
    metrics::Metrics,
    offline_plan,
    slurm_view::{Views, supervise},
    trigger,
};
use testkit::{
    slurmrestd::{Cluster, Fault, Faults, Job, JobSpec, Machine, Options, Release, Settings, Slurmrestd, StateSave},
    wait_for,
};
use tokio::sync::watch;

const KEY: [u8; 32] = [0x2a; 32];
const SOON: Duration = Duration::from_secs(30);

/// A Slurm cluster and the operator's view of it.
struct Scene {
    slurm: Slurmrestd,
    views: Views,
    metrics: Metrics,
    leads: watch::Sender<bool>,
}

impl Scene {
    async fn start(release: Release) -> Result<Self> {
        let mut cluster = Cluster::new(Settings { release, ..Settings::default() }, Timestamp::now().as_second());
        cluster.register_many("w", 3, &Machine::default());
        let slurm = Slurmrestd::start(cluster, Options { key: Some(Key::new(&KEY)?), ..Options::default() }).await?;
        let objects = vec![
            json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
                "metadata": {"name": "slurm", "namespace": "ns", "uid": "c"},
                "spec": {
                    "slurmKeyRef": {"name": "keys", "key": "slurm.key"},
                    "jwtKeyRef": {"name": "keys", "key": "jwt.key"},
                    "externalRestApi": {"url": slurm.url()},
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "ns"},
                "data": {"jwt.key": STANDARD.encode(KEY)},
            }),
        ];
        let metrics = Metrics::default();
        let views = Views::new(trigger::channel(), metrics.clone());
        let (leads, leading) = watch::channel(true);
        let client = offline_plan::client(&Arc::new(objects));
        tokio::spawn(supervise(views.clone(), client, frontends::clusters(), vec![None], leading));
        Ok(Self { slurm, views, metrics, leads })
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>> {
        match self.views.cluster_status(&cluster()).observation {
            SlurmObservation::Clear(snapshot) => Ok(snapshot),
            SlurmObservation::Blind { why, .. } | SlurmObservation::NoClient { why } => bail!("blind: {why}"),
        }
    }

    /// Waits until the view satisfies the check.
    async fn sees(&self, what: &str, check: impl Fn(&Snapshot) -> bool) -> Result<Arc<Snapshot>> {
        wait_for(what, SOON, async || {
            let snapshot = self.snapshot()?;
            ensure!(check(&snapshot), "{snapshot:?}");
            Ok(snapshot)
        })
        .await
    }

    async fn run(&self, write: &SlurmWrite) -> Result<()> {
        self.views.run(write).await.map_err(|failure| anyhow::anyhow!(failure.text()))
    }

    /// Waits until jobs are read.
    async fn sees_jobs(&self) -> Result<Arc<Snapshot>> {
        // What is asked of a view that does not exist yet is lost.
        self.sees("the nodes", |_| true).await?;
        self.views.want(&Needs { cluster: cluster(), jobs: true, reservations: false }, Timestamp::now());
        self.sees("the jobs", |snapshot| snapshot.jobs.read().is_some()).await
    }

    fn submit(&self, spec: JobSpec) -> Result<u32> {
        self.slurm.cluster(|cluster| cluster.submit(spec)).map_err(|_| anyhow::anyhow!("refused"))
    }

    fn runs(&self, job: u32) -> bool {
        self.slurm.cluster(|cluster| cluster.job(job).is_some_and(Job::holds_nodes))
    }

    fn admin_drains(&self, node: &str) -> Result<()> {
        let change = testkit::slurmrestd::NodeUpdate::drain("bad disk");
        let done = self.slurm.cluster(|cluster| cluster.update_nodes(&[node.into()], &change, "root"));
        done.map(drop).map_err(|_| anyhow::anyhow!("refused"))
    }

    async fn is_blind(&self, hint: &str) -> Result<()> {
        wait_for("the view to be blind", SOON, async || match self.snapshot() {
            Err(error) if error.to_string().contains(hint) => Ok(()),
            Err(error) => bail!("it says {error}"),
            Ok(_) => bail!("Slurm is still reachable"),
        })
        .await
    }
}

fn cluster() -> ClusterKey {
    slinky::cluster_key("ns", "slurm")
}

/// A drain of nodes that were in service when it was planned.
fn drain(nodes: &[&str]) -> SlurmWrite {
    let nodes = nodes.iter().map(|node| ((*node).to_owned(), ServiceState::default())).collect();
    let change = Box::new(NodeUpdate::new().drain("slurm-operator: test"));
    SlurmWrite { cluster: cluster(), call: SlurmCall::SetState { nodes, change } }
}

/// The deletion of the record of a node that was like this when it was planned.
fn forget(node: &str, state: ServiceState) -> SlurmWrite {
    SlurmWrite { cluster: cluster(), call: SlurmCall::Forget { node: node.to_owned(), state } }
}

/// A job that a plan saw on this node, in this snapshot.
fn job_on(job: u32, node: &str, snapshot: &Snapshot) -> JobsOnNodes {
    let state =
        snapshot.nodes.get(node).map(|found| ServiceState::of(&found.reason, &found.states)).unwrap_or_default();
    JobsOnNodes { jobs: [(JobId::from(job), node.to_owned())].into(), nodes: [(node.to_owned(), state)].into() }
}

#[tokio::test]
async fn sees_nodes_and_triggers_the_right_objects() -> Result<()> {
    for release in [Release::V24_11, Release::V26_05] {
        let scene = Scene::start(release).await?;
        let mut triggers = scene.views.triggers().subscribe();
        scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
        let known = scene.views.cluster_status(&cluster());
        assert!(known.slurm_version.is_some() && known.rest_version.is_some(), "{known:?}");
        wait_for("a ping", SOON, async || {
            ensure!(scene.views.cluster_status(&cluster()).pings.iter().any(|ping| ping.responding), "none yet");
            Ok(())
        })
        .await?;
        while triggers.try_recv().is_ok() {}
        scene.slurm.cluster(|cluster| cluster.register("w9", Machine::default()));
        let trigger = tokio::time::timeout(SOON, triggers.recv()).await??;
        assert_eq!((&*trigger.namespace, &*trigger.name), ("ns", "slurm"));
        scene.sees("the fourth node", |snapshot| snapshot.nodes.contains_key("w9")).await?;
        assert!(scene.metrics.text().contains("slurm_operator_slurm_call_seconds_count{call=\"nodes\"}"));
    }
    Ok(())
}

#[tokio::test]
async fn a_written_node_is_pending_until_a_later_read() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    scene.run(&drain(&["w0", "w1"])).await?;
    let now = scene.snapshot()?;
    let is_new = now.nodes["w0"].states.is_drain();
    assert!(is_new || now.pending.contains_key("w0"), "an old list must not be trusted");
    let later = scene.sees("the drain", |snapshot| !snapshot.pending.contains_key("w0")).await?;
    assert!(later.nodes["w0"].states.is_drained() && later.nodes["w1"].states.is_drained());
    assert!(!later.nodes["w2"].states.is_drain());
    Ok(())
}

#[tokio::test]
async fn a_missing_node_does_not_block_the_update_of_others() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    scene.run(&drain(&["w0", "gone"])).await?;
    scene.sees("the drain", |snapshot| snapshot.nodes["w0"].states.is_drain()).await?;
    scene.sees_jobs().await?;
    scene.run(&forget("gone", ServiceState::default())).await?;
    Ok(())
}

#[tokio::test]
async fn detects_outages_and_recovers() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;

    // slurmctld stops and comes back.
    scene.slurm.cluster(Cluster::stop);
    scene.is_blind("").await?;
    let failure = scene.views.run(&drain(&["w0"])).await.err().context("Slurm is unreachable")?;
    assert_eq!(failure.class(), "SlurmUnreachable");
    scene.slurm.cluster(|cluster| cluster.start(StateSave::Kept));
    scene.sees("the nodes again", |snapshot| snapshot.nodes.len() == 3).await?;

    // The key differs for a while.
    scene.slurm.set_key(Some(Key::new(&[7; 32])?));
    scene.is_blind("not authorised").await?;
    scene.slurm.set_key(Some(Key::new(&KEY)?));
    scene.sees("the nodes again", |snapshot| snapshot.nodes.len() == 3).await?;

    // slurmrestd itself is replaced.
    let Scene { slurm, views, metrics, leads } = scene;
    let scene = Scene { slurm: slurm.restart().await?, views, metrics, leads };
    scene.slurm.cluster(|cluster| cluster.register("w9", Machine::default()));
    scene.sees("a new node", |snapshot| snapshot.nodes.len() == 4).await?;
    scene.slurm.faults(Faults::clear);

    // A process that does not lead does not poll.
    scene.leads.send_replace(false);
    wait_for("the view to end", SOON, async || match scene.views.cluster_status(&cluster()).observation {
        SlurmObservation::NoClient { .. } => Ok(()),
        observation => bail!("{observation:?}"),
    })
    .await?;
    Ok(())
}

/// After an upgrade of Slurm its newest REST version is used, without a restart of the operator.
#[tokio::test]
async fn an_upgrade_of_slurm_negotiates_the_rest_version_again() -> Result<()> {
    let scene = Scene::start(Release::V24_11).await?;
    let rest = || scene.views.cluster_status(&cluster()).rest_version;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    assert_eq!(rest().as_deref(), Some("v0.0.42"));
    // Both releases have v0.0.42, so no call fails.
    scene.slurm.cluster(|cluster| {
        cluster.settings.release = Release::V26_05;
        cluster.register("w3", Machine::default());
    });
    wait_for("the newest REST version", SOON, async || {
        ensure!(rest().as_deref() == Some("v0.0.45"), "{:?}", rest());
        Ok(())
    })
    .await?;
    scene.sees("four nodes", |snapshot| snapshot.nodes.len() == 4).await?;
    Ok(())
}

#[tokio::test]
async fn jobs_are_read_only_on_request() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene
        .slurm
        .cluster(|cluster| cluster.submit(JobSpec { nodes: 1, ..JobSpec::default() }))
        .map_err(|_| anyhow::anyhow!("refused"))?;
    let unread = |snapshot: &Snapshot| matches!(snapshot.jobs, Jobs::Unread);
    scene.sees("nodes alone", unread).await?;
    let needs = Needs { cluster: cluster(), jobs: true, reservations: false };
    scene.views.want(&needs, Timestamp::now());
    scene
        .sees("the job", |snapshot| {
            snapshot.jobs.read().is_some_and(|jobs| jobs.by_node.values().map(Vec::len).sum::<usize>() == 1)
        })
        .await?;
    let snapshot = scene.snapshot()?;
    let jobs = snapshot.jobs.read().context("they were read")?;
    let (node, running) = jobs.by_node.iter().next().context("one node")?;
    let job = running.first().context("one job")?.id;
    let call = SlurmCall::Cancel(job_on(job, node, &snapshot));
    scene.run(&SlurmWrite { cluster: cluster(), call }).await?;
    scene.sees("no job", |snapshot| snapshot.jobs.read().is_some_and(|jobs| jobs.by_node.is_empty())).await?;
    Ok(())
}

#[tokio::test]
async fn a_job_that_cannot_be_requeued_does_not_fail_the_plan() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    let snapshot = scene.sees("all nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    let job = scene.submit(JobSpec { requeue: false, required: vec!["w1".to_owned()], ..JobSpec::default() })?;
    let call = SlurmCall::Requeue(job_on(job, "w1", &snapshot));
    scene.run(&SlurmWrite { cluster: cluster(), call }).await?;
    ensure!(scene.runs(job), "the job was ended");
    Ok(())
}

#[tokio::test]
async fn jobs_that_have_left_their_node_are_not_ended() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    let snapshot = scene.sees("all nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    let job = scene.submit(JobSpec { required: vec!["w2".to_owned()], ..JobSpec::default() })?;
    let write = |call| SlurmWrite { cluster: cluster(), call };
    for call in [SlurmCall::Cancel, SlurmCall::Requeue] {
        // When the plan was made, it was on another node.
        scene.run(&write(call(job_on(job, "w1", &snapshot)))).await?;
        ensure!(scene.runs(job), "the job has moved, and was ended");
    }
    let planned = job_on(job, "w2", &snapshot);
    scene.admin_drains("w2")?;
    scene.run(&write(SlurmCall::Cancel(planned.clone()))).await?;
    ensure!(scene.runs(job), "the node is no longer as the plan saw it, and its job was ended");
    let resume = testkit::slurmrestd::NodeUpdate::state("RESUME");
    let resumed = scene.slurm.cluster(|cluster| cluster.update_nodes(&["w2".to_owned()], &resume, "root"));
    ensure!(resumed.is_ok(), "refused");
    let reason = scene.slurm.cluster(|cluster| cluster.node("w2").map(|node| node.reason.clone()));
    let state = ServiceState { reason: reason.unwrap_or_default(), ..ServiceState::default() };
    scene.run(&write(SlurmCall::Cancel(JobsOnNodes { nodes: [("w2".to_owned(), state)].into(), ..planned }))).await?;
    ensure!(!scene.runs(job), "it is where the plan saw it");
    Ok(())
}

#[tokio::test]
async fn a_record_that_has_changed_or_is_named_by_a_job_is_kept() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees_jobs().await?;
    scene.admin_drains("w0")?;
    let failure = scene.views.run(&forget("w0", ServiceState::default())).await.err().context("it was deleted")?;
    assert_eq!(failure.class(), "Conflict", "it was drained since, and the plan is made again");
    let spec = JobSpec { required: vec!["w1".to_owned()], hold: true, ..JobSpec::default() };
    let job = scene.submit(spec)?;
    scene.sees("the job", |snapshot| snapshot.jobs.read().is_some_and(|jobs| jobs.names("w1"))).await?;
    let failure = scene.views.run(&forget("w1", ServiceState::default())).await.err().context("it was deleted")?;
    assert_eq!(failure.class(), "Conflict", "job {job} names it");
    let there = |node: &str| scene.slurm.cluster(|cluster| cluster.node(node).is_some());
    assert!(there("w0") && there("w1"), "{job}");
    scene.run(&forget("w2", ServiceState::default())).await?;
    assert!(!there("w2"));
    Ok(())
}

#[tokio::test]
async fn a_drain_by_an_admin_is_kept_if_the_poller_sees_it_before_the_write() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    let planned = drain(&["w0"]);
    scene.admin_drains("w0")?;
    // The view no longer is what the plan was made from.
    scene.sees("the admin's drain", |snapshot| snapshot.nodes["w0"].states.is_drain()).await?;
    scene.run(&planned).await?;
    let reason = scene.slurm.cluster(|cluster| cluster.node("w0").map(|node| node.reason.clone()));
    assert_eq!(reason.as_deref(), Some("bad disk"));
    Ok(())
}

#[tokio::test]
async fn a_node_that_was_resumed_or_is_busy_is_no_longer_drained() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    scene.run(&drain(&["w0", "w1"])).await?;
    let snapshot = scene.sees("the drains", |snapshot| snapshot.nodes["w1"].states.is_drained()).await?;
    let states: BTreeMap<String, ServiceState> = (0..3)
        .map(|number| format!("w{number}"))
        .map(|name| {
            let node = &snapshot.nodes[&name];
            (name, ServiceState::of(&node.reason, &node.states))
        })
        .collect();
    let resume = testkit::slurmrestd::NodeUpdate::state("RESUME");
    let resumed = scene.slurm.cluster(|cluster| cluster.update_nodes(&["w1".to_owned()], &resume, "root"));
    ensure!(resumed.is_ok(), "refused");
    let nodes = states.iter().map(|(name, state)| (name.as_str(), state)).collect();
    let still =
        scene.views.still_drained(&cluster(), &nodes).await.map_err(|failure| anyhow::anyhow!(failure.text()))?;
    assert_eq!(still, HashSet::from(["w0".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn a_deleted_node_disappears_although_slurmctld_reports_no_change() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    scene.sees_jobs().await?;
    for node in ["w0", "w1", "w2"] {
        scene.run(&forget(node, ServiceState::default())).await?;
    }
    scene.sees("no nodes", |snapshot| snapshot.nodes.is_empty()).await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_topology_is_no_write_that_a_later_read_confirms() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    scene.slurm.cluster(|cluster| cluster.settings.topologies = vec!["racks".to_owned()]);
    let describe = |change: NodeUpdate| SlurmWrite {
        cluster: cluster(),
        call: SlurmCall::Update { node: "w0".into(), change: Box::new(change.topology("nowhere:rack9")) },
    };
    assert!(scene.run(&describe(NodeUpdate::new().comment("ours"))).await.is_err(), "the plan reports it");
    scene.sees("the comment", |snapshot| snapshot.nodes["w0"].comment == "ours" && snapshot.pending.is_empty()).await?;
    assert!(scene.run(&describe(NodeUpdate::new())).await.is_err());
    assert!(scene.snapshot()?.pending.is_empty(), "nothing was written that a later read could confirm");
    Ok(())
}

#[tokio::test]
async fn a_concurrent_drain_by_an_admin_is_kept() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    // Right before our write, after the last list.
    scene.admin_drains("w0")?;
    scene.run(&drain(&["w0", "w1"])).await?;
    let snapshot = scene.sees("the drains", |snapshot| snapshot.nodes["w1"].states.is_drain()).await?;
    assert_eq!(snapshot.nodes["w0"].reason, "bad disk");
    assert!(snapshot.nodes["w1"].reason.starts_with("slurm-operator: "));
    Ok(())
}

#[tokio::test]
async fn a_drain_by_an_admin_is_kept_among_many_of_ours() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.slurm.cluster(|cluster| cluster.register_many("x", 20, &Machine::default()));
    scene.sees("all nodes", |snapshot| snapshot.nodes.len() == 23).await?;
    scene.admin_drains("x3")?;
    let names: Vec<String> = (0..20).map(|number| format!("x{number}")).collect();
    let ours = drain(&names.iter().map(String::as_str).collect::<Vec<_>>());
    scene.run(&ours).await?;
    let drained = |snapshot: &Snapshot| names.iter().all(|name| snapshot.nodes[name].states.is_drain());
    let snapshot = scene.sees("the drains", drained).await?;
    for name in &names {
        let is_ours = snapshot.nodes[name].reason.starts_with("slurm-operator: ");
        assert_eq!(is_ours, name != "x3", "{name}: {}", snapshot.nodes[name].reason);
    }
    Ok(())
}

#[tokio::test]
async fn answers_that_cannot_be_decoded_cause_no_hot_loop() -> Result<()> {
    let scene = Scene::start(Release::V26_05).await?;
    scene.sees("three nodes", |snapshot| snapshot.nodes.len() == 3).await?;
    scene.slurm.faults(|faults| faults.next(u32::MAX, "/nodes", Fault::Garbage));
    // A list without changes is not sent at all.
    scene.slurm.cluster(|cluster| cluster.register("w3", Machine::default()));
    scene.is_blind("").await?;
    let reads = || {
        let text = scene.metrics.text();
        let series = "slurm_operator_slurm_call_seconds_count{call=\"connect\"} ";
        text.lines().find_map(|line| line.strip_prefix(series)?.parse::<u64>().ok()).unwrap_or_default()
    };
    let before = reads();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(reads() - before < 10, "{} connections in four seconds", reads() - before);
    // The same for the list of what is offered, which is read first.
    scene.slurm.faults(|faults| {
        faults.clear();
        faults.next(u32::MAX, "/openapi", Fault::Garbage);
    });
    scene.is_blind("list what is offered").await?;
    let before = reads();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(reads() - before < 4, "{} connections in six seconds", reads() - before);
    scene.slurm.faults(Faults::clear);
    scene.sees("the nodes again", |snapshot| snapshot.nodes.len() == 4).await?;
    Ok(())
}
