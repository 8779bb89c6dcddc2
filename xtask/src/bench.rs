//! Measuring at scale: the program that measures is `crates/bench`; here is what it needs around it.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{cluster, home, home::Lock, shell, shell::Cmd};

/// Has `crates/bench` do what the arguments say.
pub fn run(args: &[OsString]) -> Result<()> {
    // Only a measurement needs a cluster and an operator.
    let measures = args.first().is_some_and(|task| task == "scale");
    let asks = args.iter().any(|arg| arg == "--help" || arg == "-h");
    if !measures || asks {
        return Err(Cmd::new(build(&["bench"])?.join("bench")).args(args).exec());
    }
    let lock = Lock::take()?;
    let programs = build(&["bench", "slurm-operator"])?;
    let checkout = home::checkout()?;
    let manager = format!(
        "{} manager --leader-elect --leader-elect-namespace slurm-operator --metrics-addr 0",
        programs.join("slurm-operator").display()
    );
    let bench = Cmd::new(programs.join("bench"))
        .args(args)
        .env("BENCH_OPERATOR", manager)
        .env("BENCH_CRDS", checkout.join("charts/slurm-operator-crds/templates"))
        .env("BENCH_RULES", checkout.join("charts/slurm-operator/files/operator_rbac_rules.yaml"))
        .env("BENCH_LOG", home::logs().join("bench-operator.log"))
        .env("XTASK", env::current_exe().context("cannot find myself")?)
        .env("AUDIT_LOG", cluster::audit_log())
        .env("KUBECONFIG", cluster::kubeconfig());
    // It says itself what was wrong.
    let kept = home::lend(&lock, bench).watch(|_| {});
    shell::forget_interrupt();
    cluster::down(&lock).context("cannot take the cluster down")?;
    if !kept? {
        bail!("see above");
    }
    Ok(())
}

/// Release builds of these packages; where their programs are.
fn build(packages: &[&str]) -> Result<PathBuf> {
    let what = format!("compiling {}", packages.join(" and "));
    Cmd::new("cargo")
        .args(["build", "--locked", "--release"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .dir(&home::checkout()?)
        .run_showing(&what, &home::logs().join("bench-build.log"))?;
    // Cargo puts us next to them, wherever that is.
    let me = env::current_exe().context("cannot find myself")?;
    let target = me.parent().and_then(Path::parent).context("xtask must lie in cargo's target folder")?;
    Ok(target.join("release"))
}
