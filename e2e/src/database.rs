//! A real MariaDB for slurmdbd.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testkit::wait_for;

use crate::{SOON, Scene};

/// Its pod, Service and claim.
pub const NAME: &str = "mariadb";

/// The Secret with the password of the user `slurm`, in the entry `password`.
pub const SECRET: &str = "mariadb-password";

/// The password that the database accepts.
pub const PASSWORD: &str = "Corr#ct horse";

/// Creates the Service and the claim, and the Secret with a password that may be wrong.
pub async fn prepare(scene: &Scene, password: Option<&str>) -> Result<()> {
    let service = json!({
        "metadata": {"name": NAME}, "spec": {"selector": {"app": NAME}, "ports": [{"port": 3306}]},
    });
    let claim = json!({
        "metadata": {"name": NAME},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let namespace = &scene.namespace;
    namespace.api::<Service>().create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    namespace.api::<PersistentVolumeClaim>().create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    if let Some(password) = password {
        let secret = json!({"metadata": {"name": SECRET}, "stringData": {"password": password}});
        namespace.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    }
    Ok(())
}

/// Starts the database with the data that it had.
pub async fn start(scene: &Scene) -> Result<()> {
    let env = |name: &str, value: &str| json!({"name": name, "value": value});
    let spec = json!({
        "nodeSelector": {"kubernetes.io/hostname": "node1"},
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "mariadb", "image": "localhost/slurm-operator/mariadb:11.8", "imagePullPolicy": "Never",
            // Slurm does not support it, and slurmdbd would end when two transactions meet.
            "args": ["--innodb-snapshot-isolation=OFF"],
            "env": [
                env("MARIADB_DATABASE", "slurm_acct_db"), env("MARIADB_USER", "slurm"), env("MARIADB_PASSWORD", PASSWORD),
            ],
            "readinessProbe": {"tcpSocket": {"port": 3306}, "periodSeconds": 1},
            "volumeMounts": [{"name": "data", "mountPath": "/var/lib/mysql"}],
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": NAME}}],
    });
    scene.pod(NAME, spec).await?;
    scene.ready(NAME).await?;
    Ok(())
}

/// Kills the database, and waits until it is gone.
pub async fn kill(scene: &Scene) -> Result<()> {
    scene.pods().delete(NAME, &DeleteParams::default().grace_period(0)).await?;
    wait_for("the database to be gone", SOON, async || {
        ensure!(scene.pods().get_opt(NAME).await?.is_none(), "it still exists");
        Ok(())
    })
    .await
}

/// Changes the password in the Secret.
pub async fn set_password(scene: &Scene, password: &str) -> Result<()> {
    let secrets: Api<Secret> = scene.namespace.api();
    let patch = Patch::Merge(json!({"stringData": {"password": password}}));
    secrets.patch(SECRET, &PatchParams::default(), &patch).await?;
    Ok(())
}
