//! A Slurm cluster that the operator does not run gets workers and login nodes from it.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, STARTED},
    slurm::SlurmCluster,
    slurm_image,
    ssh::{SSSD_CONF, SshClient},
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testkit::wait_for;

/// The NodeSet, and the prefix of its Slurm nodes.
const BURST: &str = "burst";
const LOGIN: &str = "front";

#[tokio::test]
async fn an_external_slurmctld_gets_workers_and_login_nodes() -> Result<()> {
    let scene = Scene::start("hybrid").await?;
    let ssh = SshClient::start(&scene).await?;
    let site = SlurmCluster::start(&scene).await?;
    let host = format!("slurmctld.{}", scene.namespace.name());
    let controller = json!({
        "external": true,
        "externalConfig": {"host": host, "port": 6817},
        "clusterName": "e2e",
        "slurmKeyRef": {"name": "keys", "key": "slurm.key"},
        "jwtKeyRef": {"name": "keys", "key": "jwt.key"},
    });
    managed::put(&scene, "Controller", CLUSTER, controller).await?;
    managed::put(&scene, "RestApi", CLUSTER, managed::rest_api()?).await?;
    let workers = json!({
        "controllerRef": {"name": CLUSTER},
        "replicas": 1,
        "slurmd": {"image": slurm_image("slurmd")?, "imagePullPolicy": "Never"},
        "template": {"spec": {"hostname": format!("{BURST}-"), "terminationGracePeriodSeconds": 5}},
    });
    managed::put(&scene, "NodeSet", BURST, workers).await?;
    // Only the accounts of the image.
    let sssd = json!({"metadata": {"name": "sssd"}, "stringData": {"sssd.conf": SSSD_CONF}});
    scene.namespace.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(sssd)?).await?;
    let login = json!({
        "controllerRef": {"name": CLUSTER},
        "login": {"image": slurm_image("login")?, "imagePullPolicy": "Never"},
        "rootSshAuthorizedKeys": ssh.key,
        "sssdConfRef": {"name": "sssd", "key": "sssd.conf"},
    });
    managed::put(&scene, "LoginSet", LOGIN, login).await?;
    for (kind, name) in [("Controller", CLUSTER), ("RestApi", CLUSTER), ("NodeSet", BURST), ("LoginSet", LOGIN)] {
        managed::ready(&scene, kind, name).await?;
    }

    // From the site to our worker, and from our login node to a node of the site and to our worker.
    let output = site.run("cd /tmp; timeout 60 srun --nodelist=burst-0 hostname").await?;
    ensure!(output.trim() == "burst-0", "{output}");
    wait_for("the login node to let people in", SOON, async || ssh.run(LOGIN, "true").await).await?;
    for node in ["w0", "burst-0"] {
        let output = ssh.run(LOGIN, &format!("cd /tmp; timeout 60 srun --nodelist={node} hostname")).await?;
        ensure!(output.trim() == node, "{output} instead of {node}");
    }

    // A scale-in waits for a job of the site, and leaves its own nodes alone.
    let sbatch = "cd /tmp; sbatch --parsable --nodelist=burst-0 --output=/dev/null --wrap='sleep infinity'";
    let job = site.run(sbatch).await?.trim().to_owned();
    wait_for("the job to run", STARTED, async || {
        let state = site.run(&format!("squeue --noheader --format=%T --job={job}")).await?;
        ensure!(state.trim() == "RUNNING", "{state}");
        Ok(())
    })
    .await?;
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    managed::resources(&scene, "NodeSet").patch_scale(BURST, &PatchParams::default(), &none).await?;
    wait_for("the worker to drain", SOON, async || {
        let state = site.run("sinfo --noheader --nodes=burst-0 --format=%T").await?;
        ensure!(state.trim() == "draining", "{state}");
        Ok(())
    })
    .await?;
    site.run(&format!("scancel {job}")).await?;
    wait_for("the worker to leave the site", STARTED, async || {
        let nodes = site.run("sinfo --noheader --Node --format='%N %T'").await?;
        ensure!(nodes.lines().eq(["w0 idle", "w1 idle"]), "{nodes}");
        ensure!(scene.pods().get_opt("burst-0").await?.is_none(), "its pod still exists");
        Ok(())
    })
    .await?;

    // The site outlives our objects.
    managed::resources(&scene, "Controller").delete(CLUSTER, &DeleteParams::foreground()).await?;
    wait_for("the Controller to be gone", SOON, async || {
        ensure!(managed::resources(&scene, "Controller").get_opt(CLUSTER).await?.is_none(), "it still exists");
        Ok(())
    })
    .await?;
    site.nodes_idle().await?;
    scene.finish().await
}
