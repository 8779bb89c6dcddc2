//! The commands of the documentation work as they are written, up to the upgrade of Slurm.

use anyhow::{Result, ensure};
use e2e::{
    Scene, database,
    managed::{self, Job, ManagedSlurm, STARTED},
    pages::{self, Shell},
    slurm_version,
};
use serde_json::{Value, json};
use testkit::wait_for;

/// The oldest release, which the upgrade begins with.
const OLDEST: &str = "24.11";

/// Which commands run, in which order: page and section.
const PAGES: &[(&str, &str)] = &[
    ("accounting", "Set it up"),
    ("concepts", "The objects"),
    ("concepts", "How the operator works"),
    ("login", ""),
    ("autoscaling", ""),
    ("external-secrets", "The keys must exist before"),
    ("hybrid", "Set it up"),
    ("key-rotation", "slurm.key"),
    ("status", "What is going on"),
    ("status", "Why"),
    ("troubleshooting", "Accounting does not answer"),
    ("troubleshooting", "Logging in fails"),
];

#[tokio::test]
async fn commands_work_as_they_are_written() -> Result<()> {
    let newest = slurm_version()?;
    let scene = Scene::start("documented").await?;
    let shell = Shell::new(scene.namespace.name())?;
    database::prepare(&scene, None).await?;
    database::start(&scene).await?;
    shell.write("values.yaml", &values().to_string())?;
    let run = async |page: &str, section: &str| {
        let here = pages::commands(page, section)?
            .replace("--namespace slurm ", &format!("--namespace {} ", scene.namespace.name()))
            .replace("--namespace slurm\n", &format!("--namespace {}\n", scene.namespace.name()))
            .replace("password=…", &format!("password='{}'", database::PASSWORD))
            .replace("=26.05", &format!("={newest}"));
        shell.run(&here).await.map_err(|error| error.context(format!("docs/{page}.md, {section}")))
    };
    for (page, section) in PAGES {
        run(page, section).await?;
    }

    // A job runs while everything but its worker is upgraded. All daemons have the new key as soon as the last slurmctld with the
    // old one has ended.
    let cluster = ManagedSlurm::of(&scene);
    wait_for("slurmctld to answer", STARTED, async || cluster.run("scontrol ping | grep UP").await).await?;
    let job = cluster.run("sbatch --parsable --nodelist=cpu-0 --output=/dev/null --wrap='sleep 20'").await?;
    run("upgrade-slurm", "The steps").await?;
    cluster.job_is(&Job { id: job.trim().to_owned(), node: "cpu-0".to_owned() }, "COMPLETED").await?;
    let versions = run("versioning", "Slurm").await?;
    ensure!(versions.contains(&format!("{newest}.")), "{versions}");
    for (kind, name) in [("Accounting", "slurm"), ("NodeSet", "slurm-worker-cpu"), ("LoginSet", "slurm-login-people")] {
        managed::ready(&scene, kind, name).await?;
    }
    let records = cluster.run("sacct --allusers --allocations --noheader --parsable2 --format=State").await?;
    ensure!(records.lines().any(|state| state == "COMPLETED"), "{records}");
    scene.finish().await
}

fn values() -> Value {
    let container =
        |daemon: &str| json!({"image": {"repository": format!("localhost/slurm-operator/{daemon}"), "tag": OLDEST}});
    json!({
        "controller": {"slurmctld": container("slurmctld"), "podSpec": {"terminationGracePeriodSeconds": 5}},
        "restapi": {"slurmrestd": container("slurmrestd")},
        "accounting": {
            "enabled": true, "slurmdbd": container("slurmdbd"), "podSpec": {"terminationGracePeriodSeconds": 5},
        },
        "nodesetDefaults": {"slurmd": container("slurmd"), "podSpec": {"terminationGracePeriodSeconds": 5}},
        "loginsetDefaults": {
            "login": container("login"), "service": {"spec": {"type": "ClusterIP"}},
            "podSpec": {"terminationGracePeriodSeconds": 5},
        },
        "nodesets": {"cpu": {"replicas": 1}},
        "loginsets": {"people": {}},
        "partitions": {"all": {"enabled": true}},
    })
}
