//! Rendering and checking the charts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::{permissions, shell::Cmd, tools};

/// The folder with values for tests, `<name>.values.yaml`, and the objects that the chart renders from each, `<name>.yaml`.
const CASES: &str = "charts/slurm/tests";

/// The namespace that they are rendered for.
pub const NAMESPACE: &str = "hpc";

/// The charts with values for tests, `tests/sets.yaml`. Those of `slurm-operator` need an image.
const SETS: &[(&str, &[&str])] =
    &[("slurm", &[]), ("slurm-operator", &["--values", "charts/slurm-operator/tests/image.yaml"])];

/// API groups that are not on our API server.
const ABSENT: [&str; 2] = ["apiVersion: cert-manager.io/", "apiVersion: monitoring.coreos.com/"];

/// Values, and what matters of the objects that a chart renders from them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    name: String,
    #[serde(default)]
    values: Value,
    /// Kinds that the cluster has in addition, such as `monitoring.coreos.com/v1/ServiceMonitor`.
    #[serde(default)]
    apis: Vec<String>,
    /// Parts of objects that must be there: see `contains`.
    #[serde(default)]
    has: Vec<Value>,
    /// Kinds that must not be there.
    #[serde(default)]
    lacks: Vec<String>,
    /// All that `ClusterRoles` allow, such as `get nodes`.
    #[serde(default)]
    cluster_wide: Option<BTreeSet<String>>,
    /// The chart refuses these values, with a message that contains this.
    #[serde(default)]
    refused: Option<String>,
}

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

/// Lints every chart, and checks what they render from the values for tests.
pub fn check(checkout: &Path) -> Result<()> {
    for chart in ["charts/slurm-operator-crds", "charts/slurm-operator-crds-nebius"] {
        helm(checkout, &["lint", "--strict", "--quiet", chart])?.text()?;
    }
    for (chart, options) in SETS {
        helm(checkout, &["lint", "--strict", "--quiet", &format!("charts/{chart}")])?.args(*options).text()?;
    }
    sets(checkout).map(drop)
}

/// What the charts render from all values for tests, after it was checked: YAML documents, each once.
pub fn sets(checkout: &Path) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for (chart, options) in SETS {
        let file = format!("charts/{chart}/tests/sets.yaml");
        let text = fs::read_to_string(checkout.join(&file)).with_context(|| format!("cannot read {file}"))?;
        let sets: Vec<Set> = serde_saphyr::from_str(&text).with_context(|| file.clone())?;
        for set in sets {
            let template = ["template", "alps", &format!("charts/{chart}"), "--namespace", NAMESPACE];
            let apis = set.apis.iter().flat_map(|api| ["--api-versions", api]);
            let template = helm(checkout, &template)?.args(*options).args(apis).args(["--values", "-"]);
            let rendered = template.feed(&set.values.to_string());
            all.extend(set.check(rendered).with_context(|| format!("{file}: {}", set.name))?);
        }
    }
    Ok(all)
}

/// What the chart of the operator has for Grafana and Prometheus: the dashboards, and the `PrometheusRule`.
pub fn monitoring(checkout: &Path) -> Result<Vec<Value>> {
    let template =
        ["template", "slurm-operator", "charts/slurm-operator", "--values", "charts/slurm-operator/tests/image.yaml"];
    let text = helm(checkout, &template)?
        .args(["--set", "dashboards.enabled=true,alerts.enabled=true"])
        .args([
            "--show-only",
            "templates/monitoring/dashboards.yaml",
            "--show-only",
            "templates/monitoring/alerts.yaml",
        ])
        .args(["--api-versions", "monitoring.coreos.com/v1/PrometheusRule"])
        .text()?;
    documents(&text)
}

fn documents(text: &str) -> Result<Vec<Value>> {
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).context("not YAML")).collect()
}

impl Set {
    /// Returns the documents.
    fn check(&self, rendered: Result<String>) -> Result<Vec<String>> {
        let text = match (rendered, &self.refused) {
            (Ok(text), None) => text,
            (Ok(_), Some(_)) => bail!("these values are accepted"),
            (Err(error), None) => return Err(error),
            (Err(error), Some(says)) => {
                ensure!(error.to_string().contains(says.as_str()), "the refusal does not say `{says}`: {error}");
                return Ok(Vec::new());
            }
        };
        let objects = documents(&text)?;
        for part in &self.has {
            ensure!(objects.iter().any(|object| contains(object, part)), "no object has {part}: {text}");
        }
        for kind in &self.lacks {
            let is_there = objects.iter().any(|object| object.get("kind").and_then(Value::as_str) == Some(kind));
            ensure!(!is_there, "there is an object of kind {kind}: {text}");
        }
        if let Some(expected) = &self.cluster_wide {
            let found = cluster_wide(&objects);
            ensure!(found == *expected, "ClusterRoles allow {found:?}: {text}");
        }
        let is_known =
            |document: &String| !ABSENT.iter().any(|group| document.contains(group)) && document.contains("kind:");
        Ok(text.split("\n---\n").map(str::to_owned).filter(is_known).collect())
    }
}

/// What `ClusterRoles` allow, whoever is bound to them.
fn cluster_wide(objects: &[Value]) -> BTreeSet<String> {
    let found = objects.iter().filter(|object| object.get("kind").and_then(Value::as_str) == Some("ClusterRole"));
    let rules = found.filter_map(|role| role.get("rules")?.as_array()).flatten();
    rules.flat_map(permissions::permissions).map(|(_, resource, verb)| format!("{verb} {resource}")).collect()
}

/// Whether a value has a part: an object has its fields, and null means that it has not; each item of a list is a part of an
/// item; and a text that begins with `~` is a part of a text.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| contains(whole.get(key).unwrap_or(&Value::Null), part))
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|part| whole.iter().any(|whole| contains(whole, part)))
        }
        (Value::String(whole), Value::String(part)) => match part.strip_prefix('~') {
            Some(part) => whole.contains(part),
            None => whole == part,
        },
        (whole, part) => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_parts() {
        let whole = json!({"kind": "A", "list": [{"a": 1, "b": 2}, {"c": "a long text"}], "empty": []});
        for part in [
            json!({}),
            json!({"kind": "A", "gone": null}),
            json!({"list": [{"c": "~long"}, {"a": 1}]}),
            json!({"empty": []}),
        ] {
            assert!(contains(&whole, &part), "{part}");
        }
        for part in
            [json!({"kind": null}), json!({"kind": "B"}), json!({"list": [{"a": 1, "c": "~long"}]}), json!({"gone": 1})]
        {
            assert!(!contains(&whole, &part), "{part}");
        }
    }
}
