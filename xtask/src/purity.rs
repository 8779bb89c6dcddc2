//! Checks what the compiler cannot: pure code stays pure, the engine knows no API group, and the modules of the operator
//! depend on each other in one direction.
//!
//! The engine, and every file that plans, models or validates, may not use a client, the runtime, a clock, random numbers
//! or the environment. Clippy's lists apply to a whole workspace, so this reads the files themselves.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use syn::{
    Attribute, ItemMod, ItemUse, Macro, UseTree,
    visit::{self, Visit},
};

/// Paths that pure code may not use, with everything below them.
const FORBIDDEN: &[&str] = &[
    "aws_lc_rs::rand",
    "getrandom",
    "hyper",
    "jiff::Timestamp::now",
    "jiff::Zoned::now",
    "kube::Api",
    "kube::Client",
    "kube::api::Api",
    "kube::client",
    "kube::runtime",
    "rand",
    "reqwest",
    "slurm::client",
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
    "crate::host_keys",
    "crate::random",
];

/// What the engine may use of the API: what all groups have in common.
const API: (&str, &str) = ("slurm_operator_api", "slurm_operator_api::common");

/// The modules of the operator. Each may use those before it, and not those after it.
const LAYERS: &[&str] = &[
    "lock",
    "process",
    "random",
    "host_keys",
    "telemetry",
    "failure",
    "access",
    "trigger",
    "metrics",
    "slurm_view",
    "health",
    "certificates",
    "kube_view",
    "sources",
    "lease",
    "machine",
    "frontends",
    "crds",
    "rbac",
    "get",
    "offline_plan",
    "status",
    "explain",
    "report",
    "manager",
    "webhook",
    "exporter",
    "cli",
    "main",
    "lib",
];

/// Calls that are forbidden however their type was imported.
const FORBIDDEN_CALLS: &[&str] = &["Instant::now", "SystemTime::now", "Timestamp::now", "Zoned::now"];

/// Fails with a list of all violations.
pub fn check(checkout: &Path) -> Result<()> {
    let mut violations = Vec::new();
    for root in ["crates/engine/src", "crates/operator/src"].map(|root| checkout.join(root)) {
        for file in files(&root)? {
            let inside = file.strip_prefix(&root).unwrap_or(&file);
            let is_engine = root.ends_with("engine/src");
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let paths = paths(&text).with_context(|| format!("cannot parse {}", file.display()))?;
            let wrong = paths.iter().filter(|path| {
                let is_impure = (is_engine || is_pure(inside)) && is_impure(path);
                is_impure || (is_engine && is_of_group(path)) || (!is_engine && is_upwards(inside, path))
            });
            violations.extend(wrong.map(|path| format!("  {}: {path}", inside.display())));
        }
    }
    if !violations.is_empty() {
        violations.dedup();
        bail!("these uses are not allowed (see ARCHITECTURE.md, \"Rules\"):\n{}", violations.join("\n"));
    }
    Ok(())
}

/// All source files, without those of tests.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests") {
                found.extend(files(&path)?);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn is_pure(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("plan") || name == "model.rs" || name == "validate.rs"
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn is_impure(path: &str) -> bool {
    // A glob may import any of them, so it counts as all of them.
    let glob = path.strip_suffix("*");
    FORBIDDEN.iter().any(|root| is_below(path, root) || glob.is_some_and(|prefix| root.starts_with(prefix)))
        || FORBIDDEN_CALLS.iter().any(|call| path.ends_with(call))
}

/// Whether the path is of one API group.
fn is_of_group(path: &str) -> bool {
    is_below(path, API.0) && !is_below(path, API.1)
}

/// Whether a file of the operator uses a module that may use it.
fn is_upwards(file: &Path, path: &str) -> bool {
    let layer = |name: &str| LAYERS.iter().position(|known| *known == name);
    let own = file.components().next().map(|first| first.as_os_str().to_string_lossy().into_owned());
    let own = own.and_then(|name| layer(name.trim_end_matches(".rs")));
    let used = path.strip_prefix("crate::").and_then(|rest| layer(rest.split("::").next().unwrap_or_default()));
    used.is_some_and(|used| own.is_none_or(|own| used > own))
}

/// All paths that a source file uses outside its tests.
fn paths(source: &str) -> Result<Vec<String>> {
    let mut finder = Finder::default();
    finder.visit_file(&syn::parse_file(source)?);
    Ok(finder.found)
}

#[derive(Default)]
struct Finder {
    found: Vec<String>,
}

impl Finder {
    fn check_path(&mut self, path: &str) {
        self.found.push(path.trim_start_matches("::").to_owned());
    }

    fn check_tree(&mut self, prefix: &str, tree: &UseTree) {
        let join = |name: &dyn std::fmt::Display| {
            if prefix.is_empty() { name.to_string() } else { format!("{prefix}::{name}") }
        };
        match tree {
            UseTree::Path(path) => self.check_tree(&join(&path.ident), &path.tree),
            UseTree::Name(name) if name.ident == "self" => self.check_path(prefix),
            UseTree::Name(name) => self.check_path(&join(&name.ident)),
            UseTree::Rename(rename) => self.check_path(&join(&rename.ident)),
            UseTree::Glob(_) => self.check_path(&format!("{prefix}::*")),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.check_tree(prefix, item)),
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.check_tree("", &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.check_path(&names.join("::"));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast Macro) {
        // Inside a macro there are only tokens: look for the paths as text.
        let tokens = mac.tokens.to_string().replace(' ', "");
        for path in FORBIDDEN.iter().filter(|path| path.contains("::")).chain(FORBIDDEN_CALLS) {
            if tokens.contains(path) {
                self.found.push((*path).to_owned());
            }
        }
        visit::visit_macro(self, mac);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impure(source: &str) -> Vec<String> {
        paths(source).unwrap().into_iter().filter(|path| is_impure(path)).collect()
    }

    #[test]
    fn finds_every_way_to_use_a_forbidden_path() {
        for (source, path) in [
            ("use tokio::sync::watch;", "tokio::sync::watch"),
            ("use kube::{Api, ResourceExt};", "kube::Api"),
            ("use kube::*;", "kube::*"),
            ("use std::env::{self};", "std::env"),
            ("use std::time::Instant as Clock;", "std::time::Instant"),
            ("fn f() { let now = jiff::Timestamp::now(); }", "jiff::Timestamp::now"),
            ("fn f(c: kube::Client) {}", "kube::Client"),
            ("use jiff::Timestamp; fn f() -> Timestamp { Timestamp::now() }", "Timestamp::now"),
            ("fn f() { println!(\"{:?}\", std::env::args()); }", "std::env"),
        ] {
            assert!(impure(source).contains(&path.to_owned()), "{source}");
        }
    }

    #[test]
    fn accepts_pure_code_and_tests() {
        let source = "
            use std::time::Duration;

            use jiff::Timestamp;
            use kube::{ResourceExt, core::ObjectMeta};
            /// Not std::env, whatever this comment says.
            pub fn plan(now: Timestamp) -> Duration { Duration::from_secs(1) }
            #[cfg(test)]
            mod tests { use tokio::time; fn f() { std::env::var(\"X\"); } }
        ";
        assert_eq!(impure(source), Vec::<String>::new());
    }

    #[test]
    fn finds_the_pure_modules() {
        for (path, pure) in [
            ("frontends/slinky/nodeset/plan.rs", true),
            ("frontends/slinky/nodeset/plan_revision.rs", true),
            ("frontends/slinky/nodeset/model.rs", true),
            ("frontends/slinky/nodeset/validate.rs", true),
            ("frontends/slinky/nodeset/observe.rs", false),
            ("machine/execute.rs", false),
        ] {
            assert_eq!(is_pure(Path::new(path)), pure, "{path}");
        }
    }

    #[test]
    fn the_engine_knows_no_api_group() {
        for (path, is_wrong) in [
            ("slurm_operator_api::slinky::NodeSet", true),
            ("slurm_operator_api::crds", true),
            ("slurm_operator_api::common::port", false),
            ("slurm::version", false),
        ] {
            assert_eq!(is_of_group(path), is_wrong, "{path}");
        }
    }

    #[test]
    fn modules_use_only_those_before_them() {
        for (file, path, is_wrong) in [
            ("machine/execute.rs", "crate::frontends::slinky", true),
            ("machine/execute.rs", "crate::machine::Kind", false),
            ("machine/execute.rs", "crate::failure::Failure", false),
            ("kube_view/watches.rs", "crate::sources::Sources", true),
            ("metrics.rs", "crate::machine::Kind", true),
            ("metrics.rs", "crate::lock::lock", false),
            ("new.rs", "crate::lock::lock", true),
            ("manager.rs", "kube::Client", false),
        ] {
            assert_eq!(is_upwards(Path::new(file), path), is_wrong, "{file}: {path}");
        }
    }
}
