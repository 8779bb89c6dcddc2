//! A Slurm cluster installed with the chart.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{Scene, helm, slurm_version};

pub const RELEASE: &str = "slurm";

/// The NodeSet `cpu` of the release.
pub const NODE_SET: &str = "slurm-worker-cpu";

/// Installs or upgrades a cluster with one NodeSet that has these values and the image under test.
pub async fn install(scene: &Scene, workers: Value) -> Result<()> {
    install_with(scene, workers, &json!({})).await
}

/// The same with further values.
pub async fn install_with(scene: &Scene, mut workers: Value, more: &Value) -> Result<()> {
    let version = slurm_version()?;
    let image = |daemon: &str| json!({"repository": format!("localhost/slurm-operator/{daemon}"), "tag": version});
    workers["slurmd"] = json!({"image": image("slurmd")});
    let values = json!({
        "controller": {"slurmctld": {"image": image("slurmctld")}},
        "restapi": {"slurmrestd": {"image": image("slurmrestd")}},
        "nodesets": {"cpu": workers},
        "partitions": {"all": {"enabled": true}},
    });
    upgrade(scene, RELEASE, &[], &[&values, more]).await
}

/// Installs or upgrades a release with a values file of the chart's folder, and these values over it.
pub async fn install_file(scene: &Scene, release: &str, file: &str, values: &Value) -> Result<()> {
    let file = folder().join(file);
    let file = file.to_str().context("the path of the checkout is not UTF-8")?;
    upgrade(scene, release, &["--values", file], &[values]).await
}

async fn upgrade(scene: &Scene, release: &str, options: &[&str], values: &[&Value]) -> Result<()> {
    let mut sets = Vec::new();
    for values in values {
        leaves(values, "", &mut sets);
    }
    let chart = folder();
    let chart = chart.to_str().context("the path of the checkout is not UTF-8")?;
    let mut args = vec!["upgrade", "--install", "--namespace", scene.namespace.name(), release, chart];
    args.extend(options);
    args.extend(sets.iter().flat_map(|set| ["--set-json", set]));
    helm(&args).await?;
    Ok(())
}

/// The values as options of helm, each with its path: an object as a whole would replace that of a file.
fn leaves(values: &Value, path: &str, sets: &mut Vec<String>) {
    match values {
        Value::Object(fields) => {
            for (name, value) in fields {
                // A dot in a name separates no fields.
                let name = name.replace('.', "\\.");
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                leaves(value, &path, sets);
            }
        }
        _ => sets.push(format!("{path}={values}")),
    }
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
