//! User errors: reported with a helpful message, without repeated writes, and resolved when the user corrects them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene, audit,
    managed::{self, CLUSTER, ManagedSlurm, NODE_SET, SLURMCTLD, STARTED, containers},
    operator,
};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret},
    events::v1::Event,
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use slurm_operator_api::{
    common::conditions::{CONFIGURATION_VALID, reason},
    slinky::names,
};
use testkit::wait_for;
use tokio::time::sleep;

#[tokio::test]
async fn user_errors_are_reported_and_resolved() -> Result<()> {
    let scene = Scene::start("bad-input").await?;
    let restarts = operator::restarts(&scene.client).await?;

    // A NodeSet without its Controller.
    managed::put(&scene, "NodeSet", NODE_SET, managed::node_set(1)?).await?;
    reported(&scene, "NodeSet", NODE_SET, reason::REFERENCE_MISSING, &["Controller", CLUSTER]).await?;

    // A Secret without the key.
    let secrets = scene.namespace.api::<Secret>();
    let empty = json!({"metadata": {"name": "slurm-auth-slurm"}, "stringData": {"other": "key"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(empty)?).await?;
    managed::put(&scene, "Controller", CLUSTER, managed::controller()?).await?;
    managed::put(&scene, "RestApi", CLUSTER, managed::rest_api()?).await?;
    reported(&scene, "Controller", CLUSTER, reason::REFERENCE_MISSING, &["slurm-auth-slurm", "slurm.key"]).await?;
    stays_quiet(&scene).await?;
    let key = Patch::Merge(json!({"stringData": {"slurm.key": "a key that is long enough, and no secret at all"}}));
    secrets.patch("slurm-auth-slurm", &PatchParams::default(), &key).await?;
    managed::ready(&scene, "Controller", CLUSTER).await?;
    managed::ready(&scene, "NodeSet", NODE_SET).await?;

    // Invalid node parameters.
    change(&scene, json!({"extraConf": "Weight"})).await?;
    reported(&scene, "NodeSet", NODE_SET, reason::INVALID_SPEC, &["extraConf", "Weight"]).await?;
    change(&scene, json!({"extraConf": null})).await?;
    managed::ready(&scene, "NodeSet", NODE_SET).await?;

    a_mistyped_key_reaches_no_daemon(&scene).await?;

    // Another NodeSet, whose image does not exist.
    let mut nowhere = managed::node_set(1)?;
    nowhere["slurmd"]["image"] = json!("localhost/slurm-operator/slurmd:nowhere");
    nowhere["template"]["spec"]["hostname"] = json!("lost-");
    managed::put(&scene, "NodeSet", "lost", nowhere).await?;
    reported(&scene, "NodeSet", "lost", reason::PODS_NOT_READY, &["slurmd:nowhere"]).await?;
    stays_quiet(&scene).await?;
    let image = managed::node_set(1)?["slurmd"]["image"].clone();
    managed::change(&scene, "NodeSet", "lost", json!({"slurmd": {"image": image}})).await?;
    managed::ready(&scene, "NodeSet", "lost").await?;

    let cluster = ManagedSlurm::of(&scene);
    assert_eq!(cluster.srun("--nodes=2", "hostname").await?, ["lost-0", "workers-0"]);
    assert_eq!(operator::restarts(&scene.client).await?, restarts, "the operator crashed");
    scene.finish().await
}

/// Slurm ends if it does not know a key: slurmctld, and every slurmd with its jobs.
async fn a_mistyped_key_reaches_no_daemon(scene: &Scene) -> Result<()> {
    let cluster = ManagedSlurm::of(scene);
    let controller = managed::controller()?;
    let good = controller.get("extraConf").and_then(Value::as_str).unwrap_or_default();
    let write = async |line: &str| {
        managed::change(scene, "Controller", CLUSTER, json!({"extraConf": format!("{good}\n{line}")})).await
    };
    let says = async |status: &str, words: &[&str]| {
        wait_for(&format!("ConfigurationValid to be {status}"), SOON, async || {
            let valid = managed::condition(scene, "Controller", CLUSTER, CONFIGURATION_VALID).await?;
            ensure!(valid.status == status && words.iter().all(|word| valid.message.contains(word)), "{valid:?}");
            Ok(())
        })
        .await
    };
    let job = cluster.hold("workers-0").await?;
    let before = containers(scene).await?;
    write("SchedulerParamters=bf_window=1440").await?;
    says("False", &["spec.extraConf: line 2: SchedulerParamters is not known", "did you mean SchedulerParameters?"])
        .await?;
    assert_eq!(containers(scene).await?, before, "a daemon has restarted");
    assert_eq!(cluster.job_state(&job).await?, "RUNNING");
    let conf: ConfigMap = scene.namespace.api().get(&names::controller_config(CLUSTER)).await?;
    ensure!(!format!("{:?}", conf.data).contains("SchedulerParamters"), "it was written to slurm.conf");

    // A correct one is reread by slurmctld and every slurmd, and restarts none.
    let started = slurmd_started(&cluster).await?;
    write("SchedulerParameters=bf_window=1440").await?;
    cluster.in_effect("SchedulerParameters=bf_window=1440").await?;
    ensure!(slurmd_started(&cluster).await? != started, "slurmd has not reread it");
    assert_eq!(containers(scene).await?, before, "a daemon has restarted");
    // Neither do two changes in a row, a new NodeSet and a file that only slurmctld reads.
    write("SchedulerParameters=bf_window=2000").await?;
    write("SchedulerParameters=bf_window=2880").await?;
    cluster.in_effect("SchedulerParameters=bf_window=2880").await?;
    let mut other = managed::node_set(0)?;
    let fields = other.as_object_mut().context("it is an object")?;
    fields.insert("partition".to_owned(), json!({"enabled": true}));
    fields.insert("template".to_owned(), json!({"spec": {"hostname": "other-"}}));
    managed::put(scene, "NodeSet", "other", other).await?;
    wait_for("the partition of another NodeSet", STARTED, async || cluster.run("scontrol show partition other").await)
        .await?;
    managed::resources(scene, "NodeSet").delete("other", &DeleteParams::default()).await?;
    wait_for("its end", STARTED, async || {
        ensure!(cluster.run("scontrol show partition other").await.is_err(), "it is still there");
        Ok(())
    })
    .await?;
    assert_eq!(containers(scene).await?, before, "a daemon has restarted");
    assert_eq!(cluster.job_state(&job).await?, "RUNNING");

    // While slurmctld is away.
    scene.pods().delete(SLURMCTLD, &DeleteParams::default()).await?;
    write("MaxJobCount=7777").await?;
    cluster.in_effect("MaxJobCount=7777").await?;
    cluster.release(&job).await?;
    managed::ready(scene, "Controller", CLUSTER).await
}

/// When slurmd of the worker started. A slurmctld that has just started does not know that yet.
async fn slurmd_started(cluster: &ManagedSlurm<'_>) -> Result<String> {
    wait_for("slurmd to register", SOON, async || {
        let node = cluster.run("scontrol show node workers-0").await?;
        let start = node.split_whitespace().find_map(|word| word.strip_prefix("SlurmdStartTime="));
        let start = start.filter(|start| *start != "None").with_context(|| format!("no start in {node}"))?;
        Ok(start.to_owned())
    })
    .await
}

async fn change(scene: &Scene, spec: Value) -> Result<()> {
    managed::change(scene, "NodeSet", NODE_SET, spec).await
}

/// Waits until a condition and an event report the problem.
async fn reported(scene: &Scene, kind: &str, name: &str, reason: &str, words: &[&str]) -> Result<()> {
    managed::wait_for_problem(scene, kind, name, reason, words).await?;
    let events = scene.namespace.api::<Event>();
    wait_for(&format!("an event of the {kind} {name} with {words:?}"), SOON, async || {
        let events = events.list(&ListParams::default()).await?.items;
        let of_object = events.into_iter().filter(|event| {
            event
                .regarding
                .as_ref()
                .is_some_and(|it| it.name.as_deref() == Some(name) && it.kind.as_deref() == Some(kind))
        });
        let notes: Vec<String> = of_object.filter_map(|event| event.note).collect();
        ensure!(notes.iter().any(|note| words.iter().all(|word| note.contains(word))), "its events say {notes:?}");
        Ok(())
    })
    .await
}

/// Checks that a problem does not make the operator write repeatedly.
async fn stays_quiet(scene: &Scene) -> Result<()> {
    // A new NodeSet changes slurm.conf and so slurmctld rereads it, which changes the status.
    wait_for("ten seconds with at most two writes", SOON, async || {
        let since = Timestamp::now();
        sleep(Duration::from_secs(10)).await;
        let writes = audit::writes_of(operator::ACCOUNT, since)?;
        let here: Vec<_> = writes.iter().filter(|write| write.namespace == scene.namespace.name()).collect();
        ensure!(here.len() <= 2, "{} writes: {here:#?}", here.len());
        Ok(())
    })
    .await
}
