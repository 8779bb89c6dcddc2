//! The software bill of materials of the operator's program, in the format of `CycloneDX`. It depends only on Cargo.lock, so that two
//! runs print the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::paths;

/// The program that images contain.
const ROOT: &str = "slurm-operator";

/// The platform of images. Those for arm64 have the same crates.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// What `cargo metadata` prints, as far as it is used.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// Absent for the crates of this repository.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// Absent for what is linked; `build` and `dev` are not in the program.
    kind: Option<String>,
}

impl Dependency {
    fn is_linked(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }
}

/// Prints it.
pub fn run(checkout: &Path) -> Result<String> {
    let args = ["metadata", "--format-version=1", "--locked", "--filter-platform", PLATFORM];
    let metadata = paths::cargo()?.args(args).text()?;
    let metadata = serde_json::from_str(&metadata).context("cannot read what `cargo metadata` printed")?;
    let lock = fs::read_to_string(checkout.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    Ok(format!("{:#}\n", bill(&metadata, &checksums(&lock))?))
}

fn bill(metadata: &Metadata, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let nodes: BTreeMap<&str, &Node> = metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let linked = |id: &str| -> BTreeSet<&str> {
        let deps = nodes.get(id).into_iter().flat_map(|node| &node.deps);
        deps.filter(|dep| dep.is_linked()).map(|dep| dep.pkg.as_str()).collect()
    };
    let root = metadata.packages.iter().find(|package| package.name == ROOT && package.source.is_none());
    let root = root.with_context(|| format!("there is no crate {ROOT}"))?;
    let (mut found, mut left) = (BTreeSet::new(), vec![root.id.as_str()]);
    while let Some(id) = left.pop() {
        if found.insert(id) {
            left.extend(linked(id));
        }
    }
    let of = |id: &str| packages.get(id).copied().with_context(|| format!("cargo does not describe {id}"));
    let mut components = BTreeMap::new();
    let mut dependencies = BTreeMap::new();
    for id in found {
        let package = of(id)?;
        let needs = linked(id).into_iter().map(|id| Ok(purl(of(id)?))).collect::<Result<BTreeSet<_>>>()?;
        dependencies.insert(purl(package), needs);
        if package.id != root.id {
            components.insert(purl(package), component(package, checksums));
        }
    }
    let dependencies: Vec<Value> =
        dependencies.into_iter().map(|(name, needs)| json!({"ref": name, "dependsOn": needs})).collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": purl(root), "name": root.name, "version": root.version, "purl": purl(root),
        }},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

fn component(package: &Package, checksums: &BTreeMap<(String, String), String>) -> Value {
    let mut component = json!({
        "type": "library", "bom-ref": purl(package), "name": package.name, "version": package.version,
        "purl": purl(package),
    });
    let Some(fields) = component.as_object_mut() else { return component };
    if let Some(license) = &package.license {
        // Old crates separate licences by a slash.
        let expression = license.replace('/', " OR ");
        fields.insert("licenses".to_owned(), json!([{"expression": expression}]));
    }
    if let Some(checksum) = checksums.get(&(package.name.clone(), package.version.clone())) {
        fields.insert("hashes".to_owned(), json!([{"alg": "SHA-256", "content": checksum}]));
    }
    component
}

/// The name of a crate among all package managers.
fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

/// The checksums in Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let entries = lock.split("[[package]]").skip(1).filter_map(|entry| {
        let field = |name: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        Some(((field("name")?, field("version")?), field("checksum")?))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_what_is_linked_and_nothing_else() {
        let package = |name: &str, source: Value, license: Value| json!({"id": name, "name": name, "version": "1.0.0", "source": source, "license": license});
        let dep = |name: &str, kinds: Value| json!({"pkg": name, "dep_kinds": kinds});
        let linked = json!([{"kind": null}]);
        let metadata = json!({
            "packages": [
                package(ROOT, json!(null), json!("Apache-2.0")),
                package("used", json!("registry"), json!("MIT/Apache-2.0")),
                package("deeper", json!("registry"), json!(null)),
                package("tests", json!("registry"), json!("MIT")),
                package("elsewhere", json!("registry"), json!("MIT")),
            ],
            "resolve": {"nodes": [
                {"id": ROOT, "deps": [dep("used", linked.clone()), dep("tests", json!([{"kind": "dev"}]))]},
                {"id": "used", "deps": [dep("deeper", json!([{"kind": "build"}, {"kind": null}]))]},
                {"id": "deeper", "deps": []}, {"id": "tests", "deps": []},
                {"id": "elsewhere", "deps": [dep("used", linked)]},
            ]},
        });
        let lock = "version = 4\n\n[[package]]\nname = \"used\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bill = bill(&serde_json::from_value(metadata).unwrap(), &checksums(lock)).unwrap();
        let names: Vec<_> = bill["components"].as_array().unwrap().iter().map(|found| found["name"].clone()).collect();
        assert_eq!(names, ["deeper", "used"]);
        let used = &bill["components"][1];
        assert_eq!(used["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(used["hashes"][0]["content"], "abc");
        assert_eq!(bill["components"][0].get("hashes"), None);
        assert_eq!(bill["dependencies"][2]["dependsOn"], json!(["pkg:cargo/deeper@1.0.0"]));
        assert_eq!(bill["metadata"]["component"]["name"], ROOT);
    }
}
