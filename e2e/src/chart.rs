//! A Slurm cluster installed with the chart.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{Scene, helm, slurm_version};

pub const RELEASE: &str = "slurm";

/// The NodeSet `cpu` of the release.
pub const NODE_SET: &str = "slurm-worker-cpu";

/// Installs or upgrades a cluster with one NodeSet that has these values and the image under test.
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
    let chart = chart.to_str().context("the path of the checkout is not UTF-8")?;
    let mut args = vec!["upgrade", "--install", "--namespace", scene.namespace.name(), RELEASE, chart];
    args.extend(sets.iter().flat_map(|set| ["--set-json", set]));
    helm(&args).await?;
    Ok(())
}

/// Uninstalls the release.
pub async fn uninstall(scene: &Scene) -> Result<()> {
    helm(&["uninstall", "--namespace", scene.namespace.name(), RELEASE]).await?;
    Ok(())
}

/// The chart `slurm`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/slurm")
}
