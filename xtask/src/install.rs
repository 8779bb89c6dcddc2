//! Our charts on a cluster.

use std::path::Path;

use anyhow::Result;

use crate::{
    home,
    shell::{Cmd, Progress},
    tools,
};

const NAMESPACE: &str = "slurm-operator";

/// Installs the custom resource definitions.
pub fn crds(kubeconfig: &Path) -> Result<()> {
    helm(kubeconfig, "slurm-operator-crds", &[])
}

/// Installs the operator from the image that was built here, and waits until it is ready.
pub fn operator(kubeconfig: &Path) -> Result<()> {
    let values = ["operator.image.repository=localhost/slurm-operator/operator", "operator.image.tag=dev"];
    helm(kubeconfig, "slurm-operator", &values)
}

fn helm(kubeconfig: &Path, chart: &str, values: &[&str]) -> Result<()> {
    let progress = Progress::new(format!("installing the chart {chart}"));
    Cmd::new(tools::helm()?)
        .args([
            "upgrade",
            "--install",
            "--wait",
            "--timeout",
            "2m",
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            chart,
        ])
        .arg(home::checkout()?.join("charts").join(chart))
        .args(values.iter().flat_map(|value| ["--set", value]))
        .env("KUBECONFIG", kubeconfig)
        .text()?;
    progress.done();
    Ok(())
}
