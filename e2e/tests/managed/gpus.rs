//! GPUs that a worker asks for are in Slurm. The machine has none, so Kubernetes, /proc and /sys are made to show some.

use anyhow::{Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, ManagedSlurm, NODE_SET},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slurm_operator_api::common::conditions;
use testkit::wait_for;

/// The Kubernetes node with GPUs.
const NODE: &str = "node2";

/// Shows three GPUs to slurmd, as the driver of NVIDIA does.
const DRIVER: &str = r#"set -e
mount -t tmpfs driver /proc/driver
mount -t tmpfs drivers /sys/bus/pci/drivers
for gpu in 0 1 2; do
  bus=0000:0$gpu:00.0
  mkdir -p /proc/driver/nvidia/gpus/$bus /sys/bus/pci/drivers/nvidia/$bus
  printf 'Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t %s\n' $gpu > /proc/driver/nvidia/gpus/$bus/information
  cat /sys/devices/system/cpu/online > /sys/bus/pci/drivers/nvidia/$bus/local_cpulist
  [ -e /dev/nvidia$gpu ] || mknod /dev/nvidia$gpu c 195 $gpu
done
exec /usr/local/bin/entrypoint "$@"
"#;

#[tokio::test]
async fn gpus_simply_appear() -> Result<()> {
    let scene = Scene::start("gpus").await?;
    advertise(&scene, json!("2")).await?;
    let mut workers = managed::node_set(1)?;
    workers["slurmd"]["resources"] = json!({"limits": {"nvidia.com/gpu": 2}});
    workers["slurmd"]["command"] = json!(["/usr/bin/tini", "-g", "--", "sh", "-c", DRIVER, "slurmd"]);
    let cluster = ManagedSlurm::start_with(&scene, managed::controller()?, workers).await?;

    let gres = cluster.run("sinfo --noheader --format=%G").await?;
    ensure!(gres.trim().starts_with("gpu:2"), "Slurm has {gres}");
    assert_eq!(cluster.srun("--gres=gpu:1", "printenv CUDA_VISIBLE_DEVICES").await?, ["0"]);
    mismatch(&scene, "False", "Slurm has what the workers hold").await?;

    managed::change(&scene, "NodeSet", NODE_SET, json!({"extraConf": "Gres=gpu:3"})).await?;
    let says = "the workers workers-0 hold gpu:2, but Slurm has gpu:3";
    mismatch(&scene, "True", says).await?;
    advertise(&scene, Value::Null).await?;
    scene.finish().await
}

/// Makes Kubernetes believe that the node has GPUs, or removes them.
async fn advertise(scene: &Scene, gpus: Value) -> Result<()> {
    let resources = json!({"nvidia.com/gpu": gpus});
    let patch = Patch::Merge(json!({"status": {"capacity": resources, "allocatable": resources}}));
    Api::<Node>::all(scene.client.clone()).patch_status(NODE, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn mismatch(scene: &Scene, status: &str, says: &str) -> Result<()> {
    wait_for(&format!("the condition GresMismatch to be {status}"), SOON, async || {
        let found = managed::condition(scene, "NodeSet", NODE_SET, conditions::GRES_MISMATCH).await?;
        ensure!(found.status == status && found.message.contains(says), "{found:?}");
        Ok(())
    })
    .await
}
