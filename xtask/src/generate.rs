//! Files that are made from the code: the CRD chart's templates.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::Cmd;

/// Writes the generated files, or only tells which of them are out of date.
pub fn run(checkout: &Path, check: bool) -> Result<()> {
    let dir = checkout.join("charts/slurm-operator-crds/templates");
    let wanted = crd_templates(checkout)?;
    let found = read_all(&dir)?;
    if found == wanted {
        return Ok(());
    }
    if check {
        let names = |name: &&String| wanted.get(*name) != found.get(*name);
        let stale: Vec<&str> = wanted.keys().chain(found.keys()).filter(names).map(String::as_str).collect();
        bail!("{} differs from the code ({}): run `cargo xtask gen`", dir.display(), stale.join(", "));
    }
    for name in found.keys().filter(|name| !wanted.contains_key(*name)) {
        fs::remove_file(dir.join(name))?;
    }
    fs::create_dir_all(&dir)?;
    for (name, text) in &wanted {
        fs::write(dir.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

/// Each CRD as a template. They are templates, not files in `crds/`, because Helm never updates the latter; and they stay
/// when the chart goes, because removing a CRD removes everybody's objects.
fn crd_templates(checkout: &Path) -> Result<BTreeMap<String, String>> {
    let printed = Cmd::new("cargo")
        .args(["run", "--quiet", "--locked", "--package", "slurm-operator", "--", "crds", "--output", "json"])
        .dir(checkout)
        .text()?;
    let list: Value = serde_json::from_str(&printed).context("`slurm-operator crds` did not print JSON")?;
    let crds = list.get("items").and_then(Value::as_array).context("`slurm-operator crds` did not print a list")?;
    crds.iter()
        .cloned()
        .map(|mut crd| {
            let plural = crd.pointer("/spec/names/plural").and_then(Value::as_str).context("a CRD without a plural")?;
            let name = format!("{plural}.yaml");
            let metadata = crd.get_mut("metadata").and_then(Value::as_object_mut).context("a CRD without metadata")?;
            metadata.insert("annotations".into(), serde_json::json!({"helm.sh/resource-policy": "keep"}));
            let yaml = serde_saphyr::to_string(&crd).with_context(|| format!("cannot write {name}"))?;
            Ok((name, format!("# Made by `cargo xtask gen`.\n{yaml}")))
        })
        .collect()
}

fn read_all(dir: &Path) -> Result<BTreeMap<String, String>> {
    if !dir.exists() {
        return Ok(BTreeMap::new());
    }
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    entries
        .map(|entry| {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, fs::read_to_string(&path)?))
        })
        .collect()
}
