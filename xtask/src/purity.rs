//! Checks that pure modules stay pure: the engine, and every file that plans or models, may not use a client, the runtime, a
//! clock, random numbers or the environment. Clippy's lists apply to a whole workspace, so this reads the files themselves.

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
    "crate::random",
];

/// Calls that are forbidden however their type was imported.
const FORBIDDEN_CALLS: &[&str] = &["Instant::now", "SystemTime::now", "Timestamp::now", "Zoned::now"];

/// Fails with a list of all violations.
pub fn check(checkout: &Path) -> Result<()> {
    let mut violations = Vec::new();
    for file in pure_files(&checkout.join("crates/operator/src"))? {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for path in impure_paths(&text).with_context(|| format!("cannot parse {}", file.display()))? {
            violations.push(format!("  {}: {path}", file.strip_prefix(checkout).unwrap_or(&file).display()));
        }
    }
    if !violations.is_empty() {
        bail!("pure modules must not use these (see ARCHITECTURE.md, \"Pure modules\"):\n{}", violations.join("\n"));
    }
    Ok(())
}

fn pure_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pure_files(&path)?);
        } else if is_pure(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn is_pure(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let in_engine = path.components().any(|part| part.as_os_str() == "engine");
    let plans = name.starts_with("plan") || name.starts_with("desired") || name == "model.rs";
    path.extension().is_some_and(|extension| extension == "rs") && (in_engine || plans)
}

/// The forbidden paths that a source file uses outside its tests.
fn impure_paths(source: &str) -> Result<Vec<String>> {
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
        let path = path.trim_start_matches("::");
        let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        if FORBIDDEN.iter().any(|root| below(root)) || FORBIDDEN_CALLS.iter().any(|call| path.ends_with(call)) {
            self.found.push(path.to_owned());
        }
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
            // A glob may import any of them, so it counts as all of them.
            UseTree::Glob(_) => {
                if FORBIDDEN.iter().any(|root| root.starts_with(&format!("{prefix}::"))) {
                    self.found.push(format!("{prefix}::*"));
                }
                self.check_path(prefix);
            }
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
            assert_eq!(impure_paths(source).unwrap(), [path], "{source}");
        }
    }

    #[test]
    fn accepts_pure_code_and_tests() {
        let source = "
            use jiff::Timestamp;
            use kube::{ResourceExt, core::ObjectMeta};
            use std::time::Duration;
            /// Not std::env, whatever this comment says.
            pub fn plan(now: Timestamp) -> Duration { Duration::from_secs(1) }
            #[cfg(test)]
            mod tests { use tokio::time; fn f() { std::env::var(\"X\"); } }
        ";
        assert_eq!(impure_paths(source).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn finds_the_pure_modules() {
        for (path, pure) in [
            ("src/engine/podset/removal_order.rs", true),
            ("src/frontends/slinky/nodeset/plan.rs", true),
            ("src/frontends/slinky/nodeset/plan_update.rs", true),
            ("src/frontends/slinky/nodeset/model.rs", true),
            ("src/frontends/slinky/token/desired.rs", true),
            ("src/frontends/slinky/nodeset/observe.rs", false),
            ("src/machine/execute.rs", false),
            ("src/engine/readme.md", false),
        ] {
            assert_eq!(is_pure(Path::new(path)), pure, "{path}");
        }
    }
}
