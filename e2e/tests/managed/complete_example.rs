//! The complete example of guides to the earlier charts: its values file, logins, accounting, and the clients of the REST API.

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene, chart, database, helm,
    managed::{self, STARTED},
    slurm::ADMIN,
    slurm_version,
    ssh::{CLIENT, SshClient},
};
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use reqwest::Method;
use serde_json::{Value, json};
use slurm_operator_api::slinky::names;
use testkit::wait_for;

use crate::{
    examples::{self, Http},
    keys,
};

/// The release.
const NAME: &str = "my-cluster";
const LOGIN: &str = "my-cluster-login-login";
const SLURMCTLD: &str = "my-cluster-controller-0";

#[tokio::test]
async fn it_runs_from_the_values_to_the_clients_of_the_rest_api() -> Result<()> {
    let scene = Scene::start("complete").await?;
    database::prepare(&scene, Some(database::PASSWORD)).await?;
    let ssh = SshClient::start(&scene).await?;
    chart::install_file(&scene, NAME, "tests/complete.values.yaml", &differing(&ssh.key)?).await?;
    database::start(&scene).await?;
    for (kind, name) in [
        ("Accounting", NAME),
        ("Controller", NAME),
        ("RestApi", NAME),
        ("NodeSet", "my-cluster-worker-compute"),
        ("LoginSet", LOGIN),
    ] {
        managed::ready(&scene, kind, name).await?;
    }
    // It fails unless slurmctld answers sinfo in a pod of its own.
    helm(&["test", "--namespace", scene.namespace.name(), "--timeout", "1m", NAME]).await?;

    let job = jobs_from_a_login_node(&ssh).await?;
    host_keys_stay(&ssh).await?;
    accounted(&scene, &job).await?;

    let cluster = rest_api(&scene).await?;
    examples::run(&cluster).await?;
    accounts_and_users(&scene, &Http::new(&cluster, &[])?).await?;

    let keys = keys::Cluster {
        scene: &scene,
        name: NAME,
        slurmctld: SLURMCTLD,
        secret: "my-cluster-auth-slurm",
        workers: ["compute-0", "compute-1"],
        client: CLIENT,
    };
    keys.change_key().await?;
    scene.finish().await
}

/// Values that must differ here: images, replicas, requests, load balancers, and who may log in.
fn differing(key: &str) -> Result<Value> {
    let version = slurm_version()?;
    let image = |daemon: &str| json!({"repository": format!("localhost/slurm-operator/{daemon}"), "tag": version});
    let small = json!({"requests": {"cpu": "10m", "memory": "32Mi"}});
    let service = json!({"spec": {"type": "ClusterIP"}});
    let first = json!({"nodeSelector": {"kubernetes.io/hostname": "node1"}, "terminationGracePeriodSeconds": 5});
    Ok(json!({
        "controller": {"slurmctld": {"image": image("slurmctld"), "resources": small}, "podSpec": first},
        "restapi": {"slurmrestd": {"image": image("slurmrestd"), "resources": small}, "service": service},
        "accounting": {"slurmdbd": {"image": image("slurmdbd")}, "podSpec": first},
        "nodesets": {"compute": {
            "replicas": 2,
            "slurmd": {"image": image("slurmd"), "resources": small},
            "podSpec": {"terminationGracePeriodSeconds": 5},
        }},
        "loginsets": {"login": {
            "login": {"image": image("login")}, "rootSshAuthorizedKeys": key, "service": service,
            "podSpec": {"terminationGracePeriodSeconds": 5},
        }},
    }))
}

/// Returns the id of a job that was submitted there.
async fn jobs_from_a_login_node(ssh: &SshClient<'_>) -> Result<String> {
    // The Service takes a moment.
    wait_for("the login node to let people in", SOON, async || ssh.run(LOGIN, "true").await).await?;
    let partitions = ssh.run(LOGIN, "sinfo --noheader --format %R | sort").await?;
    ensure!(partitions.split_whitespace().eq(["all", "compute"]), "{partitions}");
    let nodes = ssh.run(LOGIN, "cd /tmp; srun --nodes=2 hostname | sort").await?;
    ensure!(nodes.split_whitespace().eq(["compute-0", "compute-1"]), "{nodes}");
    let sbatch = "cd /tmp; sbatch --wait --parsable --partition=compute --output=/dev/null --wrap=hostname";
    Ok(ssh.run(LOGIN, sbatch).await?.trim().to_owned())
}

/// A restart of the login node changes no host key: the client would refuse to connect.
async fn host_keys_stay(ssh: &SshClient<'_>) -> Result<()> {
    let pods = ssh.scene.namespace.api::<Pod>();
    let labels = ListParams::default().labels(&format!("{}={LOGIN}", names::label::INSTANCE));
    let before = pods.list(&labels).await?.items;
    ensure!(before.len() == 1, "{} login nodes", before.len());
    for pod in &before {
        pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    wait_for("the next login node to let people in", STARTED, async || {
        let node = ssh.run(LOGIN, "hostname").await?;
        ensure!(before.iter().all(|pod| pod.name_any() != node.trim()), "it is still {node}");
        Ok(())
    })
    .await
}

/// Waits until slurmdbd has the job as completed.
async fn accounted(scene: &Scene, job: &str) -> Result<()> {
    let sacct = format!("sacct --allocations --noheader --parsable2 --format=JobID,State,Partition --jobs={job}");
    wait_for("the job in sacct", SOON, async || {
        let found = scene.exec_in(SLURMCTLD, "slurmctld", &sacct).await?;
        ensure!(found.trim() == format!("{job}|COMPLETED|compute"), "{found}");
        Ok(())
    })
    .await
}

/// The Service of slurmrestd, and a Token for a user that exists in the pods.
async fn rest_api(scene: &Scene) -> Result<examples::Cluster> {
    let token = json!({
        "username": ADMIN, "lifetime": "1h", "refresh": true,
        "jwtHs256KeyRef": {"name": "my-cluster-auth-jwt", "key": "jwt.key"},
        "secretRef": {"name": "admin-jwt-secret", "key": "SLURM_JWT"},
    });
    managed::put(scene, "Token", "admin-token", token).await?;
    managed::ready(scene, "Token", "admin-token").await?;
    let secret = scene.namespace.api::<Secret>().get("admin-jwt-secret").await?;
    let token = secret.data.and_then(|mut data| data.remove("SLURM_JWT")).context("the Secret has no token")?;
    let service = scene.namespace.api::<Service>().get("my-cluster-restapi").await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
    Ok(examples::Cluster {
        url: format!("http://{address}:6820"),
        token: String::from_utf8(token.0)?,
        slurmctld: SLURMCTLD,
        nodes: ["compute-0", "compute-1"],
        partitions: ["all", "compute"],
    })
}

/// By sacctmgr and by slurmrestd; each sees what the other has added.
async fn accounts_and_users(scene: &Scene, http: &Http<'_>) -> Result<()> {
    let add = "sacctmgr --immediate add account physics && sacctmgr --immediate add user alice account=physics";
    scene.exec_in(SLURMCTLD, "slurmctld", add).await?;
    let account = json!({
        "association_condition": {"accounts": ["chemistry"]},
        "account": {"description": "chemistry", "organization": "science"},
    });
    http.ok(Method::POST, "/slurmdb/v0.0.41/accounts_association/", Some(account)).await?;
    let user = json!({
        "association_condition": {"users": ["bob"], "accounts": ["chemistry"]},
        "user": {"defaultaccount": "chemistry"},
    });
    http.ok(Method::POST, "/slurmdb/v0.0.41/users_association/", Some(user)).await?;

    let accounts = examples::names(&http.get("/slurmdb/v0.0.41/accounts/").await?, "accounts")?;
    let users = examples::names(&http.get("/slurmdb/v0.0.41/users/").await?, "users")?;
    ensure!(["chemistry", "physics"].iter().all(|name| accounts.iter().any(|found| found == name)), "{accounts:?}");
    ensure!(["alice", "bob"].iter().all(|name| users.iter().any(|found| found == name)), "{users:?}");
    let list = "sacctmgr --noheader --parsable2 list association format=account,user user=alice,bob";
    let listed = scene.exec_in(SLURMCTLD, "slurmctld", list).await?;
    ensure!(listed.lines().any(|line| line == "chemistry|bob"), "{listed}");
    ensure!(listed.lines().any(|line| line == "physics|alice"), "{listed}");
    Ok(())
}
