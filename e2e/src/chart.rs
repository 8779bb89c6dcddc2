//! A Slurm cluster as the chart makes it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{Scene, helm, slurm_version};

/// The release.
pub const RELEASE: &str = "slurm";

/// The NodeSet `cpu` of the release.
pub const NODE_SET: &str = "slurm-worker-cpu";

/// Installs or upgrades a cluster with one set of workers that has these values beside its image.
pub async fn install(scene: &Scene, mut workers: Value) -> Result<()> {
    let version = slurm_version()?;
    let image = |daemon: &str| json!({"repository": format!("localhost/slurm-operator/{daemon}"), "tag": version});
    workers["slurmd"] = json!({"image": image("slurmd")});
    let values = json!({
        "controller": {"slurmctld": {"image": image("slurmctld")}},
        "restapi": {"slurmrestd": {"image": image("slurmrestd")}},
        "nodesets": {"cpu": workers},
        "partitions": {"all": {"enabled": true}},
    });
    let sets: Vec<String> =
        values.as_object().into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    let chart = folder();
    let chart = chart.to_str().context("the checkout has a strange path")?;
    let mut args = vec!["upgrade", "--install", "--namespace", scene.namespace.name(), RELEASE, chart];
    args.extend(sets.iter().flat_map(|set| ["--set-json", set]));
    helm(&args).await?;
    Ok(())
}

/// Removes the cluster.
pub async fn uninstall(scene: &Scene) -> Result<()> {
    helm(&["uninstall", "--namespace", scene.namespace.name(), RELEASE]).await?;
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/slurm")
}
