//! The test binaries: compiled by one call of cargo, and run one by one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{paths, shell::Cmd};

/// Which targets to compile.
pub enum Selection {
    All,
    /// Only the integration tests of these names.
    Tests(Vec<&'static str>),
}

/// A message of `cargo test --message-format=json`, as far as it is of interest.
#[derive(Deserialize)]
struct Message {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A compiled program.
#[derive(Debug, PartialEq, Eq)]
pub struct Binary {
    /// The folder of its package.
    dir: PathBuf,
    /// The name of its target.
    pub target: String,
    kind: String,
    is_test: bool,
    path: PathBuf,
}

impl Binary {
    pub fn is_integration_test(&self) -> bool {
        self.kind == "test"
    }

    pub fn is_in(&self, package: &str) -> bool {
        self.dir.file_name().is_some_and(|name| name == package)
    }

    /// How people find it: its package, and its target if that is another one.
    pub fn name(&self) -> String {
        let package = self.dir.file_name().unwrap_or_default().to_string_lossy();
        if self.kind == "test" { format!("{package}/{}", self.target) } else { package.into_owned() }
    }

    /// The call that runs its tests, or those whose name contains the filter.
    pub fn command(&self, filter: Option<&str>) -> Cmd {
        let command = Cmd::new(&self.path)
            .dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            // A test's own message says more than a page of frames.
            .env("RUST_BACKTRACE", "0");
        // It has a main function of its own and takes no arguments.
        if self.kind == "bench" {
            return command;
        }
        // Times are behind a flag that only a nightly compiler offers, or this variable. The compiler must not see it:
        // build scripts ask for it, and all dependencies would be compiled again.
        command.env("RUSTC_BOOTSTRAP", "1").args(["-Z", "unstable-options", "--report-time"]).args(filter)
    }
}

pub struct Binaries(Vec<Binary>);

impl Binaries {
    pub fn tests(&self) -> impl Iterator<Item = &Binary> {
        self.0.iter().filter(|binary| binary.is_test)
    }

    /// A program of the workspace, compiled along with its tests.
    pub fn program(&self, name: &str) -> Result<&Path> {
        let program = self.0.iter().find(|binary| !binary.is_test && binary.kind == "bin" && binary.target == name);
        program.map(|binary| &*binary.path).with_context(|| format!("cargo did not build {name}"))
    }

    fn read(messages: &str) -> Self {
        let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
        let binary = |message: Message| {
            let kind = message.target.kind.into_iter().next()?;
            Some(Binary {
                dir: message.manifest_path.parent()?.to_owned(),
                target: message.target.name,
                is_test: message.profile.test || kind == "bench",
                kind,
                path: message.executable?,
            })
        };
        let mut binaries: Vec<_> = artifacts.filter_map(binary).collect();
        binaries.sort_by(|a, b| (&a.dir, &a.kind, &a.target).cmp(&(&b.dir, &b.kind, &b.target)));
        Self(binaries)
    }
}

/// Compiles tests, always with the features of the whole workspace.
pub fn build(selection: &Selection) -> Result<Binaries> {
    let only = match selection {
        Selection::All => &[][..],
        Selection::Tests(names) => names,
    };
    let messages = paths::cargo()?
        .args(["test", "--no-run", "--locked", "--workspace", "--all-features"])
        .arg("--message-format=json-render-diagnostics")
        .args(only.iter().flat_map(|name| ["--test", name]))
        .compile_with_output("compiling the tests", &paths::logs().join("tests.log"))?;
    Ok(Binaries::read(&messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_messages_of_cargo() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/c/crates/slurm/Cargo.toml","target":{"kind":["test"],"name":"conf"},"profile":{"test":true},"executable":"/t/conf-1"}
{"reason":"compiler-artifact","manifest_path":"/c/crates/operator/Cargo.toml","target":{"kind":["bin"],"name":"slurm-operator"},"profile":{"test":false},"executable":"/t/slurm-operator"}
{"reason":"compiler-artifact","manifest_path":"/c/crates/operator/Cargo.toml","target":{"kind":["lib"],"name":"slurm_operator"},"profile":{"test":true},"executable":"/t/lib-1"}
{"reason":"compiler-artifact","manifest_path":"/r/serde/Cargo.toml","target":{"kind":["lib"],"name":"serde"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}"#;
        let binaries = Binaries::read(messages);
        assert_eq!(binaries.tests().map(Binary::name).collect::<Vec<_>>(), ["operator", "slurm/conf"]);
        assert_eq!(binaries.program("slurm-operator").unwrap(), Path::new("/t/slurm-operator"));
        assert!(binaries.program("slurm_operator").is_err());
        assert!(binaries.tests().any(|binary| binary.is_in("slurm")));
    }
}
