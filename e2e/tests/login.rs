//! Login nodes: people log in with ssh and run jobs from there, and keep their sessions while login nodes are replaced.

#![expect(clippy::indexing_slicing, reason = "test code")]

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, ManagedSlurm},
    slurm_image,
    ssh::{CLIENT, SSSD_CONF, SshClient},
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testkit::wait_for;

const LOGIN: &str = "front";

#[tokio::test]
async fn people_log_in_and_keep_their_sessions_while_login_nodes_are_replaced() -> Result<()> {
    let scene = Scene::start("login").await?;
    let people = People { scene: &scene, client: SshClient::start(&scene).await? };
    let cluster = ManagedSlurm::start(&scene, 1).await?;

    a_missing_sssd_conf_is_reported(&people).await?;
    jobs_run_from_a_login_node(&people, &cluster).await?;
    an_open_session_survives_an_update(&people).await?;
    it_scales(&people).await?;
    scene.finish().await
}

async fn a_missing_sssd_conf_is_reported(people: &People<'_>) -> Result<()> {
    let scene = people.scene;
    let spec = json!({
        "controllerRef": {"name": CLUSTER},
        "login": {"image": slurm_image("login")?, "imagePullPolicy": "Never"},
        "rootSshAuthorizedKeys": people.client.key,
        "sssdConfRef": {"name": "nowhere", "key": "sssd.conf"},
    });
    managed::put(scene, "LoginSet", LOGIN, spec).await?;
    managed::wait_for_problem(scene, "LoginSet", LOGIN, "ReferenceMissing", &["nowhere", "create it"]).await?;
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "sssd"}, "stringData": {"sssd.conf": SSSD_CONF}}))?;
    scene.namespace.api::<Secret>().create(&PostParams::default(), &secret).await?;
    managed::change(scene, "LoginSet", LOGIN, json!({"sssdConfRef": {"name": "sssd"}})).await?;
    managed::ready(scene, "LoginSet", LOGIN).await
}

async fn jobs_run_from_a_login_node(people: &People<'_>, cluster: &ManagedSlurm<'_>) -> Result<()> {
    // The Service takes a moment.
    wait_for("the login node to let people in", SOON, async || people.ssh("true").await).await?;
    let nodes = people.ssh("sinfo --noheader --Node --format %N").await?;
    ensure!(nodes.lines().any(|node| node.trim() == "workers-0"), "{nodes}");
    people.ssh("getent hosts workers-0").await.context("workers have names")?;
    ensure!(people.ssh("srun hostname").await?.trim() == "workers-0");
    let job = people.ssh("cd /tmp && sbatch --parsable --wait --output=/tmp/job.out --wrap='echo done'").await?;
    let state = cluster.run(&format!("squeue --job={} --states=all --noheader --format=%T", job.trim())).await?;
    ensure!(state.trim() == "COMPLETED", "{state}");
    Ok(())
}

async fn an_open_session_survives_an_update(people: &People<'_>) -> Result<()> {
    let scene = people.scene;
    let pods = people.login_nodes().await?;
    let [old] = &*pods else { anyhow::bail!("{} login nodes", pods.len()) };
    let old = old.name_any();
    people.start_session().await?;

    managed::change(scene, "LoginSet", LOGIN, json!({"extraSshdConfig": "PrintMotd no"})).await?;
    wait_for("the old login node to be replaced", SOON, async || {
        let pods = people.login_nodes().await?;
        let ends = |pod: &&Pod| pod.metadata.deletion_timestamp.is_some();
        ensure!(pods.len() == 2 && pods.iter().filter(ends).all(|pod| pod.name_any() == old), "{}", pods.len());
        ensure!(pods.iter().any(|pod| ends(&pod)), "it is not ending yet");
        Ok(())
    })
    .await?;
    managed::ready(scene, "LoginSet", LOGIN).await?;
    // With the same host keys. The Service takes a moment.
    wait_for("new sessions to go to the new login node", SOON, async || {
        let node = people.ssh("hostname").await?;
        ensure!(node.trim() != old, "they go to {node}");
        Ok(())
    })
    .await?;
    let ticks = people.ticks().await?;
    // Longer than an idle login node takes to end.
    wait_for("the session to go on", SOON, async || {
        let now = people.ticks().await?;
        ensure!(now > ticks + 30, "{now} ticks after {ticks}");
        Ok(())
    })
    .await?;
    let pod = scene.pods().get(&old).await?;
    let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    ensure!(statuses.iter().all(|status| status.ready && status.restart_count == 0), "{}", json!(statuses));

    scene.exec_in(&old, "login", "touch /tmp/leave").await?;
    wait_for("the session to end by itself", SOON, async || {
        let text = scene.exec(CLIENT, "cat /tmp/session").await?;
        ensure!(text.trim_end().ends_with("left"), "{text}");
        Ok(())
    })
    .await?;
    wait_for("the old login node to go with its last session", SOON, async || {
        let pods = people.login_nodes().await?;
        ensure!(pods.len() == 1, "{} login nodes", pods.len());
        Ok(())
    })
    .await
}

/// As an autoscaler does it.
async fn it_scales(people: &People<'_>) -> Result<()> {
    let login_sets = managed::resources(people.scene, "LoginSet");
    for replicas in [2, 1] {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        login_sets.patch_scale(LOGIN, &PatchParams::default(), &patch).await?;
        wait_for(&format!("{replicas} login nodes"), SOON, async || {
            let scale = login_sets.get_scale(LOGIN).await?.status.context("no status")?;
            ensure!(scale.replicas == replicas, "{scale:?}");
            let pods: Api<Pod> = people.scene.pods();
            let found = pods.list(&ListParams::default().labels(&scale.selector.unwrap_or_default())).await?;
            ensure!(found.items.len() == usize::try_from(replicas)?, "{} pods", found.items.len());
            Ok(())
        })
        .await?;
        managed::ready(people.scene, "LoginSet", LOGIN).await?;
    }
    Ok(())
}

struct People<'a> {
    scene: &'a Scene,
    client: SshClient<'a>,
}

impl People<'_> {
    /// Runs a command on a login node.
    async fn ssh(&self, command: &str) -> Result<String> {
        self.client.run(LOGIN, command).await
    }

    /// Starts a session that prints a line every fifth of a second, until it is told to leave.
    async fn start_session(&self) -> Result<()> {
        let session = "until [ -e /tmp/leave ]; do echo tick; sleep 0.2; done; echo left";
        let background = format!("setsid {} '{session}' </dev/null >/tmp/session 2>&1 &", SshClient::command(LOGIN));
        self.scene.exec(CLIENT, &background).await?;
        wait_for("the session to start", SOON, async || {
            ensure!(self.ticks().await? > 0);
            Ok(())
        })
        .await
    }

    async fn ticks(&self) -> Result<usize> {
        Ok(self.scene.exec(CLIENT, "cat /tmp/session").await?.lines().filter(|line| *line == "tick").count())
    }

    /// The pods of the set, also those that are ending.
    async fn login_nodes(&self) -> Result<Vec<Pod>> {
        let status: Value = managed::resources(self.scene, "LoginSet").get(LOGIN).await?.data["status"].clone();
        let selector = status["selector"].as_str().context("no selector")?;
        Ok(self.scene.pods().list(&ListParams::default().labels(selector)).await?.items)
    }
}
