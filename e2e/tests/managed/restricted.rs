//! Pod Security "restricted".

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene, database,
    managed::{self, CLUSTER},
    slurm_image,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testkit::wait_for;

/// The API server refuses every pod of this namespace that does not pass.
#[tokio::test]
async fn daemons_that_need_no_root_pass_pod_security_restricted() -> Result<()> {
    let scene = Scene::start("restricted").await?;
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    namespaces.patch(scene.namespace.name(), &PatchParams::default(), &Patch::Merge(labels)).await?;

    let mut controller = managed::controller()?;
    controller["inplaceReconfigure"] = json!(true);
    managed::put(&scene, "Controller", CLUSTER, controller).await?;
    managed::put(&scene, "RestApi", CLUSTER, managed::rest_api()?).await?;
    managed::ready(&scene, "Controller", CLUSTER).await?;
    managed::ready(&scene, "RestApi", CLUSTER).await?;

    // Its database does not exist, but it runs.
    database::prepare(&scene, Some("secret")).await?;
    let accounting = json!({
        "slurmKeyRef": {"name": "slurm-auth-slurm", "key": "slurm.key"},
        "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"},
        "slurmdbd": {"image": slurm_image("slurmdbd")?, "imagePullPolicy": "Never"},
        "storageConfig": {"host": "nowhere", "passwordKeyRef": {"name": database::SECRET, "key": "password"}},
        "template": {"spec": {"terminationGracePeriodSeconds": 1}},
    });
    managed::put(&scene, "Accounting", "acct", accounting).await?;
    wait_for("slurmdbd to run", SOON, async || {
        let pod = scene.pods().get("acct-accounting-0").await?;
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        ensure!(phase == "Running", "{phase}");
        Ok(())
    })
    .await?;
    scene.finish().await
}
