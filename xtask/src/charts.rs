//! Rendering and checking the charts.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{shell::Cmd, tools};

/// The folder with values for tests, `<name>.values.yaml`, and the objects that the chart renders from each, `<name>.yaml`.
const CASES: &str = "charts/slurm/tests";

/// The namespace that they are rendered for.
pub const NAMESPACE: &str = "hpc";

/// Values that a chart refuses, and a part of the message.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "slurm",
        "partitions.p.enabled=true,partitions.p.nodesets={gone}",
        "names \"gone\", which is not an enabled entry",
    ),
    ("slurm", "partitions.p.enabled=true", "list entries of nodesets, or ALL"),
    ("slurm", "nodesets.cpu.replicas=two", "Expected: integer, given: string"),
    ("slurm", "nodesets.Upper.replicas=1", "Upper"),
    ("slurm", "controller.slurmctld.image.tag=null", "needs a tag or a digest"),
    ("slurm-operator", "webhook.podsBinding=true,webhook.mutating.failurePolicy=Fail", "no pod of the cluster"),
    ("slurm-operator", "webhook.metricsSecure=true", "set webhook.metricsPort"),
    ("slurm-operator", "operator.metricsSecure=true,operator.metricsPort=0", "set operator.metricsPort"),
];

/// Values of the chart `slurm-operator`, and a part of what it renders from them.
const OPERATOR: &[(&str, &str)] = &[
    ("webhook.enabled=false", "kind: Deployment"),
    ("webhook.podsBinding=true", "path: /mutate--v1-binding"),
    ("webhook.podsBinding=true,webhook.mutating.failurePolicy=Fail,webhook.namespaces=hpc", "failurePolicy: Fail"),
    (
        "certManager.enabled=true,webhook.podsBinding=true",
        "cert-manager.io/inject-ca-from: default/alps-slurm-operator-webhook",
    ),
    ("webhook.replicas=2,webhook.pdb.enabled=true", "minAvailable: 1"),
    ("webhook.image.tag=7", "image: slurm-operator:7"),
    ("operator.metricsSecure=true", "nonResourceURLs: [/metrics]"),
    ("operator.metricsSecure=true,operator.metricsPort=8443", "--metrics-secure"),
    ("webhook.metricsSecure=true,webhook.metricsPort=8443", "resources: [subjectaccessreviews]"),
    ("operator.namespaces=a\\,hpc", "namespace: hpc"),
];

/// A subcommand of helm that asks no cluster, for the Kubernetes version of ours.
fn helm(checkout: &Path, args: &[&str]) -> Result<Cmd> {
    Ok(Cmd::new(tools::helm()?).args(args).args(["--kube-version", tools::KUBERNETES_VERSION]).dir(checkout))
}

/// The objects that the chart `slurm` renders from these values.
pub fn template(checkout: &Path, namespace: &str, values: &str) -> Result<String> {
    helm(checkout, &["template", "slurm", "charts/slurm", "--namespace", namespace, "--values", "-"])?.feed(values)
}

/// The objects that the chart `slurm` renders from each of its test values, by the file that holds them.
pub fn rendered(checkout: &Path) -> Result<BTreeMap<PathBuf, String>> {
    values(checkout)?
        .into_iter()
        .map(|values| {
            let from = values.to_string_lossy();
            let template = ["template", "alps", "charts/slurm", "--namespace", NAMESPACE, "--values", &from];
            let text = helm(checkout, &template)?.text()?;
            Ok((rendering(&values), format!("# Made by `cargo xtask gen`.\n{text}")))
        })
        .collect()
}

/// The files with rendered objects.
pub fn cases(checkout: &Path) -> Result<Vec<PathBuf>> {
    Ok(values(checkout)?.iter().map(|values| rendering(values)).collect())
}

fn rendering(values: &Path) -> PathBuf {
    values.to_string_lossy().replace(".values.yaml", ".yaml").into()
}

fn values(checkout: &Path) -> Result<Vec<PathBuf>> {
    let dir = checkout.join(CASES);
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let names: Vec<_> = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    let values = |name: &&std::ffi::OsString| name.to_string_lossy().ends_with(".values.yaml");
    Ok(names.iter().filter(values).map(|name| Path::new(CASES).join(name)).collect())
}

/// Lints every chart, and checks that wrong values are refused with a helpful message.
pub fn check(checkout: &Path) -> Result<()> {
    for chart in ["charts/slurm-operator-crds", "charts/slurm-operator", "charts/slurm"] {
        helm(checkout, &["lint", "--strict", "--quiet", chart])?.text()?;
    }
    let render = |chart: &str, values: &str| {
        helm(checkout, &["template", "alps", &format!("charts/{chart}"), "--set", values])?.text()
    };
    for (chart, values, says) in REFUSED {
        match render(chart, values) {
            Ok(_) => bail!("the chart {chart} accepts {values}"),
            Err(refusal) if refusal.to_string().contains(says) => {}
            Err(refusal) => bail!("the chart {chart} refuses {values} without saying `{says}`: {refusal}"),
        }
    }
    for (values, part) in OPERATOR {
        let text = render("slurm-operator", values)?;
        ensure!(text.contains(part), "the chart slurm-operator renders {values} without `{part}`");
    }
    Ok(())
}
