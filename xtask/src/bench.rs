//! `cargo xtask bench`: builds `crates/bench` and the operator, and gives them a cluster.

use std::{env, ffi::OsString, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{cluster, paths, paths::Lock, shell, shell::Cmd};

/// Runs `crates/bench` with these arguments. What it measures is built, too.
pub fn run(args: &[OsString]) -> Result<()> {
    let asks = args.iter().any(|arg| arg == "--help" || arg == "-h");
    let measured = args.first().filter(|_| !asks).and_then(|task| task.to_str()).unwrap_or_default();
    match measured {
        "scale" => scale(args),
        "exporter" => {
            let programs = build(&["bench", "slurm-operator"])?;
            let exporter = format!("{} exporter", programs.join("slurm-operator").display());
            let bench = Cmd::new(programs.join("bench")).args(args).env("BENCH_EXPORTER", exporter);
            Err(bench.env("BENCH_LOG", paths::logs().join("bench-exporter.log")).exec())
        }
        _ => Err(Cmd::new(build(&["bench"])?.join("bench")).args(args).exec()),
    }
}

/// Measures the operator on a cluster of its own.
fn scale(args: &[OsString]) -> Result<()> {
    let lock = Lock::take()?;
    let programs = build(&["bench", "slurm-operator"])?;
    let checkout = paths::checkout()?;
    let manager = format!(
        "{} manager --leader-elect --leader-elect-namespace slurm-operator --metrics-addr 0",
        programs.join("slurm-operator").display()
    );
    let rules = ["operator_rbac_rules.yaml", "operator_rbac_cluster_rules.yaml"]
        .map(|file| checkout.join("charts/slurm-operator/files").join(file).display().to_string());
    let bench = Cmd::new(programs.join("bench"))
        .args(args)
        .env("BENCH_OPERATOR", manager)
        .env("BENCH_CRDS", checkout.join("charts/slurm-operator-crds/templates"))
        .env("BENCH_RULES", rules.join(","))
        .env("BENCH_LOG", paths::logs().join("bench-operator.log"))
        .env("XTASK", env::current_exe().context("cannot find the path of this program")?)
        .env("AUDIT_LOG", cluster::audit_log())
        .env("KUBECONFIG", cluster::kubeconfig());
    // It prints its own errors.
    let passed = paths::lend(&lock, bench).watch("", |_| {});
    shell::forget_interrupt();
    cluster::down(&lock).context("cannot take the cluster down")?;
    if !passed? {
        bail!("see above");
    }
    Ok(())
}

/// Builds these packages with the release profile; the folder with their programs.
fn build(packages: &[&str]) -> Result<PathBuf> {
    let what = format!("compiling {} for release", packages.join(" and "));
    paths::cargo()?
        .args(["build", "--locked", "--release"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .run_showing(&what, &paths::logs().join("bench-build.log"))?;
    Ok(paths::target()?.join("release"))
}
