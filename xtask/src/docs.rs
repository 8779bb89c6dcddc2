//! The YAML in the documentation: Kubernetes objects and values of the chart `slurm`. Its commands are run by e2e.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{charts, install::kubectl};

/// The namespace of the examples.
const NAMESPACE: &str = "slurm";

/// What the first line of values of the chart `slurm` begins with.
const VALUES: &str = "# values.yaml";

/// API groups that are not on our API server. Pages say that these examples are not tested.
const ABSENT: &[&str] = &["keda.sh/", "external-secrets.io/"];

/// Has the API server validate all objects of the documentation, and those that the chart renders from its values.
pub fn dry_run(checkout: &Path, kubeconfig: &Path) -> Result<()> {
    kubectl(kubeconfig, &["create", "namespace", NAMESPACE])?.text()?;
    for page in pages(checkout)? {
        let text = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        let mut objects = Vec::new();
        for block in blocks(&text) {
            let place = || format!("{}: {block}", page.display());
            if block.starts_with(VALUES) {
                objects.push(charts::template(checkout, NAMESPACE, &block).with_context(place)?);
            } else if block.contains("apiVersion:") {
                objects.extend(block.split("\n---\n").filter(|object| is_known(object)).map(str::to_owned));
            } else {
                // A part of an object.
                serde_saphyr::from_str::<Value>(&block).with_context(place)?;
            }
        }
        if objects.is_empty() {
            continue;
        }
        let apply = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "--namespace", NAMESPACE];
        let apply = kubectl(kubeconfig, &apply)?.args(["--filename", "-"]);
        apply.feed(&objects.join("\n---\n")).with_context(|| format!("the YAML in {}", page.display()))?;
    }
    kubectl(kubeconfig, &["delete", "namespace", NAMESPACE])?.text().map(drop)
}

fn pages(checkout: &Path) -> Result<Vec<PathBuf>> {
    let dir = checkout.join("docs");
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut pages = vec![checkout.join("README.md")];
    for entry in entries {
        pages.push(entry?.path());
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    Ok(pages)
}

/// The YAML blocks of a page.
fn blocks(page: &str) -> Vec<String> {
    let mut parts = page.split("```yaml\n");
    parts.next();
    parts.filter_map(|part| Some(part.split_once("\n```")?.0.to_owned())).collect()
}

fn is_known(object: &str) -> bool {
    let version = object.lines().find_map(|line| line.strip_prefix("apiVersion: "));
    !version.is_some_and(|version| ABSENT.iter().any(|group| version.starts_with(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_yaml_of_a_page() {
        let page = "# A\n```yaml\na: 1\nb: 2\n```\n```sh\nls\n```\n\n```yaml\nc: 3\n```\n";
        assert_eq!(blocks(page), ["a: 1\nb: 2", "c: 3"]);
    }

    #[test]
    fn knows_what_is_not_here() {
        assert!(is_known("apiVersion: v1\nkind: Secret"));
        assert!(!is_known("apiVersion: keda.sh/v1alpha1\nkind: ScaledObject"));
    }
}
