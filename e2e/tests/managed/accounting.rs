//! slurmdbd with a real MariaDB: a database that is late, a wrong password, records of jobs, and an outage under load.

use anyhow::{Context, Result, ensure};
use e2e::{
    Scene, database,
    managed::{self, CLUSTER, ManagedSlurm, SLURMCTLD, STARTED, containers},
    operator::is_ready,
    slurm::ADMIN,
    slurm_image,
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};
use slurm::{
    client::{Auth, Client, JobFilter},
    token::Key,
};
use slurm_operator_api::common::conditions::CONFIGURATION_VALID;
use testkit::wait_for;

const ACCOUNTING: &str = "acct";
const SLURMDBD: &str = "acct-accounting-0";

/// Of the load, of a second each.
const TASKS: usize = 15;

#[tokio::test]
async fn accounting_keeps_every_job() -> Result<()> {
    let scene = Scene::start("accounting").await?;
    database::prepare(&scene, Some("wrong")).await?;
    managed::put(&scene, "Accounting", ACCOUNTING, accounting()?).await?;
    let mut controller = managed::controller()?;
    controller["accountingRef"] = json!({"name": ACCOUNTING});
    managed::put(&scene, "Controller", CLUSTER, controller).await?;
    managed::put(&scene, "RestApi", CLUSTER, managed::rest_api()?).await?;
    managed::put(&scene, "NodeSet", managed::NODE_SET, managed::node_set(1)?).await?;

    // There is no database yet, and its password is wrong.
    managed::wait_for_problem(&scene, "Accounting", ACCOUNTING, "DatabaseUnreachable", &["mariadb:3306"]).await?;
    let waits = "waits until slurmdbd of the Accounting acct answers";
    managed::wait_for_problem(&scene, "Controller", CLUSTER, "Starting", &[waits]).await?;
    database::start(&scene).await?;
    let words = ["mariadb:3306", "Access denied for user 'slurm'", "the Secret mariadb-password"];
    managed::wait_for_problem(&scene, "Accounting", ACCOUNTING, "DatabaseRefused", &words).await?;
    let restarts = restarts(&scene).await?;
    ensure!(restarts == 0, "slurmdbd waits for its database, and was restarted {restarts} times");
    ensure!(scene.pods().get_opt(SLURMCTLD).await?.is_none(), "slurmctld did not wait");
    database::set_password(&scene, database::PASSWORD).await?;
    managed::ready(&scene, "Accounting", ACCOUNTING).await?;
    let cluster = ManagedSlurm::of(&scene);
    cluster.ready().await?;
    cluster.agree(1).await?;
    registered(&scene, "True").await?;

    // Records of jobs, accounts and users, by Slurm's commands and by REST.
    let job = cluster.hold("workers-0").await?;
    cluster.release(&job).await?;
    accounted(&cluster, &job.id).await?;
    cluster
        .run("sacctmgr --immediate add account physics && sacctmgr --immediate add user alice account=physics")
        .await?;
    let rest = rest(&scene).await?;
    let accounts: Vec<String> = rest.accounts().await?.body.items.into_iter().map(|account| account.name).collect();
    ensure!(accounts.iter().any(|name| name == "physics"), "{accounts:?}");
    let users = rest.users().await?.body.items;
    ensure!(users.iter().any(|user| user.name == "alice" && user.default.account == "physics"), "{users:?}");
    let jobs = rest.accounted_jobs(&JobFilter::default()).await?.body.items;
    ensure!(jobs.iter().any(|found| found.job_id.to_string() == job.id), "{jobs:?}");

    configured(&scene, &cluster).await?;

    // The database is lost under load, and then slurmdbd and slurmctld, too.
    let tasks = format!("sbatch --parsable --array=1-{TASKS} --output=/dev/null --wrap='sleep 1'");
    let load = cluster.run(&tasks).await?.trim().to_owned();
    ended(&cluster, &load, 1).await?;
    database::kill(&scene).await?;
    registered(&scene, "False").await?;
    managed::wait_for_problem(&scene, "Accounting", ACCOUNTING, "DatabaseUnreachable", &["mariadb:3306"]).await?;
    // slurmctld has state, so it starts without slurmdbd.
    scene.pods().delete(SLURMDBD, &DeleteParams::default()).await?;
    let before = scene.pods().get(SLURMCTLD).await?.uid();
    scene.pods().delete(SLURMCTLD, &DeleteParams::default()).await?;
    wait_for("a new slurmctld without slurmdbd", STARTED, async || {
        let pod = scene.pods().get(SLURMCTLD).await?;
        ensure!(pod.uid() != before && is_ready(&pod), "it is not ready");
        Ok(())
    })
    .await?;
    // Jobs go on, and all that happened is recorded later.
    ended(&cluster, &load, TASKS).await?;
    database::start(&scene).await?;
    managed::ready(&scene, "Accounting", ACCOUNTING).await?;
    wait_for("the load in sacct", STARTED, async || {
        let sacct = format!("sacct --allocations --noheader --parsable2 --format=State --jobs={load}");
        let found = cluster.run(&sacct).await?;
        let completed = found.lines().filter(|state| *state == "COMPLETED").count();
        ensure!(completed == TASKS && found.lines().count() == TASKS, "{completed} of {TASKS}: {found}");
        Ok(())
    })
    .await?;
    registered(&scene, "True").await?;
    scene.finish().await
}

/// What a configuration takes from slurmdbd is compared with it: what it does not have would end slurmctld.
async fn configured(scene: &Scene, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let job = cluster.hold("workers-0").await?;
    let before = containers(scene).await?;
    cluster.run("sacctmgr --immediate add qos fast").await?;
    let controller = managed::controller()?;
    let old = controller.get("extraConf").and_then(Value::as_str).context("no extraConf")?;
    let lines = "GresTypes=gpu\nAccountingStorageTRES=gres/gpu\nMaxJobCount=7777\nPartitionName=quick Nodes=ALL";
    for (qos, status, words) in [
        ("QOS=fats", "False", "QOS: the QOS fats is not known to slurmdbd; did you mean fast?"),
        ("AllowQos=normal,fast QOS=Fast", "True", "AccountingStorageTRES"),
    ] {
        let conf = json!({"extraConf": format!("{old}\n{lines} {qos}")});
        managed::change(scene, "Controller", CLUSTER, conf).await?;
        wait_for(&format!("ConfigurationValid={status} with {words}"), STARTED, async || {
            let found = managed::condition(scene, "Controller", CLUSTER, CONFIGURATION_VALID).await?;
            ensure!(found.status == status && found.message.contains(words), "{found:?}");
            Ok(())
        })
        .await?;
    }
    cluster.in_effect("MaxJobCount=7777").await?;
    let partition = cluster.run("scontrol show partition quick").await?;
    ensure!(partition.contains("QoS=Fast") && partition.contains("AllowQos=normal,fast"), "{partition}");
    let tres = cluster.run("sacctmgr --noheader --parsable2 show tres").await?;
    ensure!(tres.contains("gres|gpu|"), "{tres}");
    ensure!(containers(scene).await? == before, "a daemon has restarted");
    cluster.job_is(&job, "RUNNING").await?;
    cluster.release(&job).await
}

/// Waits until slurmctld has completed this many tasks of a job array.
async fn ended(cluster: &ManagedSlurm<'_>, array: &str, count: usize) -> Result<()> {
    wait_for(&format!("{count} tasks to end"), STARTED, async || {
        let squeue = format!("squeue --array --noheader --states=COMPLETED --format=%i --jobs={array}");
        let found = cluster.run(&squeue).await?.lines().count();
        ensure!(found >= count, "{found}");
        Ok(())
    })
    .await
}

fn accounting() -> Result<Value> {
    Ok(json!({
        "slurmKeyRef": {"name": "slurm-auth-slurm", "key": "slurm.key"},
        "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"},
        "slurmdbd": {"image": slurm_image("slurmdbd")?, "imagePullPolicy": "Never"},
        "storageConfig": {
            "host": database::NAME, "username": "slurm", "passwordKeyRef": {"name": database::SECRET, "key": "password"},
        },
        "template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node1"}, "terminationGracePeriodSeconds": 5}},
    }))
}

/// How often the container of slurmdbd was restarted.
async fn restarts(scene: &Scene) -> Result<i32> {
    let status = scene.pods().get(SLURMDBD).await?.status.context("slurmdbd has no status")?;
    Ok(status.container_statuses.iter().flatten().map(|container| container.restart_count).sum())
}

/// Waits until the Controller says whether its cluster is registered and slurmdbd answers.
async fn registered(scene: &Scene, status: &str) -> Result<()> {
    wait_for(&format!("AccountingReachable={status}"), STARTED, async || {
        let found = managed::condition(scene, "Controller", CLUSTER, "AccountingReachable").await?;
        ensure!(found.status == status, "{found:?}");
        Ok(())
    })
    .await
}

/// Waits until slurmdbd has a job as completed.
async fn accounted(cluster: &ManagedSlurm<'_>, job: &str) -> Result<()> {
    let sacct = format!("sacct --allocations --noheader --parsable2 --format=JobID,State --jobs={job}");
    wait_for(&format!("the job {job} in sacct"), STARTED, async || {
        let found = cluster.run(&sacct).await?;
        ensure!(found.trim() == format!("{job}|COMPLETED"), "{found}");
        Ok(())
    })
    .await
}

/// A client of slurmrestd.
async fn rest(scene: &Scene) -> Result<Client> {
    let service = scene.namespace.api::<Service>().get("slurm-restapi").await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("slurmrestd's Service has no address")?;
    let secret = scene.namespace.api::<Secret>().get("slurm-auth-jwt").await?;
    let key = secret.data.unwrap_or_default().remove("jwt.key").context("no key")?;
    let auth = Auth::mint(Key::new(&key.0)?, ADMIN, SignedDuration::from_mins(5));
    Ok(Client::builder(&format!("http://{address}:6820")).auth(auth).connect().await?)
}
