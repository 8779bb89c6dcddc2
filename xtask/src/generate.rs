//! Generated files: the templates of the CRD charts, the operator's permissions, the known keys and the READMEs of the charts, and what the
//! chart `slurm` renders from its test values.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{charts, paths, shell::Cmd, values};

const HEADER: &str = "# Made by `cargo xtask gen`.\n";

/// The API groups, and the folders for their CRDs.
pub const CRDS: &[(&str, &str)] = &[
    ("slinky", "charts/slurm-operator-crds/templates"),
    ("nebius", "charts/slurm-operator-crds-nebius/templates/crds"),
];

/// Writes the generated files, or only reports which of them are out of date. The operator of this checkout is compiled
/// unless its program is given.
pub fn run(checkout: &Path, operator: Option<&Path>, check: bool) -> Result<()> {
    let mut wanted: BTreeMap<PathBuf, String> = rbac_rules(operator)?.into_iter().collect();
    let mut found = Vec::new();
    for (api, crds) in CRDS {
        wanted.extend(crd_templates(operator, api, Path::new(crds))?);
        found.extend(files_in(checkout, Path::new(crds))?);
    }
    // The chart must have them before it renders anything.
    let of_values = values::files(checkout)?;
    if !check {
        for (path, text) in &of_values {
            write(checkout, path, text)?;
        }
    }
    wanted.extend(of_values);
    wanted.extend(charts::rendered(checkout)?);
    let stale: Vec<PathBuf> = wanted
        .iter()
        .filter(|(path, text)| fs::read_to_string(checkout.join(path)).ok().as_ref() != Some(text))
        .map(|(path, _)| path.clone())
        .chain(found.into_iter().filter(|path| !wanted.contains_key(path)))
        .collect();
    if check && !stale.is_empty() {
        let names: Vec<_> = stale.iter().map(|path| path.display().to_string()).collect();
        bail!("these files differ from the code: {}: run `cargo xtask gen`", names.join(", "));
    }
    for path in stale {
        match wanted.get(&path) {
            None => {
                fs::remove_file(checkout.join(&path)).with_context(|| format!("cannot remove {}", path.display()))?;
            }
            Some(text) => write(checkout, &path, text)?,
        }
    }
    Ok(())
}

fn write(checkout: &Path, path: &Path, text: &str) -> Result<()> {
    let full = checkout.join(path);
    let write = || full.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&full, text));
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Each CRD as a template. They are templates, not files in `crds/`, because Helm never updates the latter; and they stay
/// when the chart goes, because removing a CRD removes all objects of its kind.
fn crd_templates(program: Option<&Path>, api: &str, dir: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let list = operator(program, &["crds", "--api", api, "--output", "json"])?;
    let crds = list.get("items").and_then(Value::as_array).context("`slurm-operator crds` did not print a list")?;
    crds.iter()
        .cloned()
        .map(|mut crd| {
            // With the group: kinds of two groups may have one name.
            let name = crd.pointer("/metadata/name").and_then(Value::as_str).context("a CRD without a name")?;
            let path = dir.join(format!("{name}.yaml"));
            let metadata = crd.get_mut("metadata").and_then(Value::as_object_mut).context("a CRD without metadata")?;
            metadata.insert("annotations".into(), serde_json::json!({"helm.sh/resource-policy": "keep"}));
            Ok((path, yaml(&crd)?))
        })
        .collect()
}

fn rbac_rules(program: Option<&Path>) -> Result<Vec<(PathBuf, String)>> {
    let rules = operator(program, &["rbac"])?;
    let file = |(key, name): (&str, &str)| {
        let rules = rules.get(key).with_context(|| format!("`slurm-operator rbac` printed no {key} rules"))?;
        Ok((Path::new("charts/slurm-operator/files").join(name), yaml(rules)?))
    };
    [("namespaced", "operator_rbac_rules.yaml"), ("cluster", "operator_rbac_cluster_rules.yaml")]
        .map(file)
        .into_iter()
        .collect()
}

fn yaml(value: &Value) -> Result<String> {
    Ok(format!("{HEADER}{}", serde_saphyr::to_string(value).context("cannot write YAML")?))
}

/// What the operator of this checkout prints.
fn operator(program: Option<&Path>, args: &[&str]) -> Result<Value> {
    let run = ["run", "--quiet", "--locked", "--package", "slurm-operator", "--"];
    let command = match program {
        Some(program) => Cmd::new(program),
        None => paths::cargo()?.args(run),
    };
    let printed = command.args(args).text()?;
    serde_json::from_str(&printed).with_context(|| format!("`slurm-operator {}` did not print JSON", args.join(" ")))
}

fn files_in(checkout: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    let full = checkout.join(dir);
    if !full.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&full).with_context(|| format!("cannot read {}", full.display()))?;
    entries.map(|entry| Ok(dir.join(entry?.file_name()))).collect()
}
