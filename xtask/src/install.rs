//! Installing the charts on a cluster.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    charts, docs, generate, paths,
    shell::{Cmd, Progress},
    tools::{self, Kubernetes},
};

const NAMESPACE: &str = "slurm-operator";

/// Installs the custom resource definitions.
pub fn crds(kubeconfig: &Path) -> Result<()> {
    helm(kubeconfig, "slurm-operator-crds", NAMESPACE, &json!({}))
}

/// Installs the operator from the image that was built here, and waits until it is ready.
pub fn operator(kubeconfig: &Path, image: &Path) -> Result<()> {
    // Each image has the same tag; the name of its archive differs, so that a pod with an older image is replaced.
    let archive = image.file_name().unwrap_or_default().to_string_lossy();
    // Tests kill nodes, also the one that runs the operator; another one must run it soon.
    let soon = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
    let tolerations = [soon("node.kubernetes.io/not-ready"), soon("node.kubernetes.io/unreachable")];
    let annotations = json!({"slurm-operator/image": archive});
    // Most tests are of the operator alone: it must report what the webhook would have refused.
    let unchecked = json!({"matchExpressions": [{"key": "slurm-operator/test", "operator": "DoesNotExist"}]});
    let values = json!({
        "operator": {
            "tolerations": tolerations,
            "image": {"repository": "localhost/slurm-operator/operator", "tag": "dev"},
            "podAnnotations": annotations,
        },
        "webhook": {
            "tolerations": tolerations,
            "podAnnotations": annotations,
            "validating": {"namespaceSelector": unchecked},
        },
    });
    helm(kubeconfig, "slurm-operator", NAMESPACE, &values)
}

/// Installs or upgrades a release with the name of its chart.
pub fn helm(kubeconfig: &Path, chart: &str, namespace: &str, values: &Value) -> Result<()> {
    let progress = Progress::new(format!("installing the chart {chart}"));
    Cmd::new(tools::helm()?)
        .args(["upgrade", "--install", "--wait", "--timeout", "2m", "--create-namespace", "--namespace", namespace])
        .arg(chart)
        .arg(paths::checkout()?.join("charts").join(chart))
        .args(["--values", "-"])
        .env("KUBECONFIG", kubeconfig)
        .feed(&values.to_string())?;
    progress.done();
    Ok(())
}

/// kubectl on a cluster.
pub fn kubectl(kubeconfig: &Path, args: &[&str]) -> Result<Cmd> {
    Ok(Cmd::new(Kubernetes::build()?.program("kubectl")).args(args).env("KUBECONFIG", kubeconfig))
}

/// A server-side apply that changes nothing and accepts no unknown field.
fn dry_apply(kubeconfig: &Path) -> Result<Cmd> {
    kubectl(kubeconfig, &["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"])
}

/// Has the API server validate what the charts render and what the documentation shows, unknown fields included.
pub fn dry_run(checkout: &Path, kubeconfig: &Path) -> Result<()> {
    for (_, folder) in generate::CRDS {
        let crds = checkout.join(folder).display().to_string();
        kubectl(kubeconfig, &["apply", "--server-side", "--force-conflicts", "--filename", &crds])?.text()?;
        kubectl(kubeconfig, &["wait", "--for=condition=Established", "--timeout=30s", "--filename", &crds])?.text()?;
    }
    kubectl(kubeconfig, &["create", "namespace", charts::NAMESPACE])?.text()?;
    for case in charts::cases(checkout)? {
        let file = checkout.join(case).display().to_string();
        dry_apply(kubeconfig)?.args(["--filename", &file]).text()?;
    }
    let sets: Vec<String> = charts::sets(checkout)?.into_iter().collect();
    dry_apply(kubeconfig)?.args(["--filename", "-"]).feed(&sets.join("\n---\n"))?;
    kubectl(kubeconfig, &["delete", "namespace", charts::NAMESPACE])?.text()?;
    docs::dry_run(checkout, kubeconfig)
}
