//! The one test command.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    cache::{self, Inputs},
    charts,
    cluster::{self, Audit, Shape},
    generate, image, install, paths,
    paths::Lock,
    purity, shell,
    shell::{Cmd, with_retries},
    slurm,
};

const CARGO_DENY: &str = "0.20.2";

/// What of the clusters that the operator makes is tested also on older versions of Slurm.
const OLDER: &[&str] = &["first_cluster", "scale", "outage"];

/// The same of their workers: what older versions cannot do.
const OLDER_WORKERS: &[&str] = &["scheduled", "timeout"];

/// Which tests to run: all of them unless some are named.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags are what a command line has")]
pub struct TestArgs {
    /// Formatting, lints, dependencies, generated files, unit tests
    #[arg(long)]
    unit: bool,
    /// Tests on a real API server, without nodes
    #[arg(long)]
    api: bool,
    /// Tests on a real cluster with real Slurm
    #[arg(long)]
    e2e: bool,
    /// Run all of e2e on every Slurm version, not only on the newest with a smoke pass on the others
    #[arg(long)]
    matrix: bool,
    /// Use this existing cluster for --api and --e2e instead of a local one of our own
    #[arg(long, env = "KUBECONFIG", value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Run only tests whose name contains this
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
}

/// What passed and what did not, counted as the closing line says it.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    /// Checks and suites that failed, to name them at the end.
    broken: Vec<String>,
    /// With a filter, a suite may well have nothing to run.
    filtered: bool,
}

impl Tally {
    /// A check that is one pass or one failure.
    fn check(&mut self, name: &str, result: Result<()>) -> Result<()> {
        shell::check_interrupt()?;
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                eprintln!("error: {name}: {error:#}");
                self.failed += 1;
                self.broken.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// A run of `cargo test`, whose own counts are taken over.
    fn suite(&mut self, name: &str, cargo: Cmd) -> Result<()> {
        eprintln!("• {name}");
        let (mut passed, mut failed) = (0, 0);
        let success = cargo.watch(|line| {
            if let Some((ok, bad)) = counts(line) {
                passed += ok;
                failed += bad;
            }
        })?;
        self.passed += passed;
        self.failed += failed;
        if !success {
            // Something broke that no test counted: it did not compile, or a process died.
            self.failed += u32::from(failed == 0);
            self.broken.push(name.to_owned());
        } else if passed == 0 && !self.filtered {
            self.failed += 1;
            self.broken.push(format!("{name} (it ran no test)"));
        }
        Ok(())
    }
}

/// Passed and failed in a line such as `test result: ok. 12 passed; 0 failed; …`.
fn counts(line: &str) -> Option<(u32, u32)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word| counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse().ok());
    Some((number("passed")?, number("failed")?))
}

pub fn run(args: &TestArgs) -> Result<()> {
    let checkout = paths::checkout()?;
    let all = !(args.unit || args.api || args.e2e);
    let start = Instant::now();
    let mut tally = Tally { filtered: args.filter.is_some(), ..Tally::default() };
    if args.unit || all {
        unit(&checkout, args, &mut tally)?;
    }
    if args.api || args.e2e || all {
        let lock = Lock::take()?;
        if args.api || all {
            api(&checkout, args, &lock, &mut tally)?;
        }
        if args.e2e || all {
            e2e(&checkout, args, &lock, &mut tally)?;
        }
    }
    eprintln!("took {}", shell::human(start.elapsed()));
    for name in &tally.broken {
        eprintln!("failed: {name}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 {
        bail!("some tests failed");
    }
    Ok(())
}

fn cargo(checkout: &Path, args: &[&str]) -> Cmd {
    Cmd::new("cargo").args(args).dir(checkout)
}

fn cargo_test(checkout: &Path, args: &[&str], filter: Option<&str>) -> Cmd {
    // A test's own message says more than a page of frames.
    cargo(checkout, &["test", "--locked", "--no-fail-fast"]).args(args).args(filter).env("RUST_BACKTRACE", "0")
}

fn unit(checkout: &Path, args: &TestArgs, tally: &mut Tally) -> Result<()> {
    if args.filter.is_none() {
        tally.check("formatting", cargo(checkout, &["fmt", "--all", "--check"]).run())?;
        let clippy = [
            "clippy",
            "--locked",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "--deny",
            "warnings",
        ];
        tally.check("clippy", cargo(checkout, &clippy).run())?;
        tally.check("pure rooms", purity::check(checkout))?;
        tally.check("generated files", generate::run(checkout, true))?;
        tally.check("charts", charts::check(checkout))?;
        tally.check("dependencies", deny(checkout))?;
    }
    tally.suite("unit tests", cargo_test(checkout, &[], args.filter.as_deref()))?;
    tally.suite("unit tests of e2e", cargo_test(checkout, &["--package=e2e", "--lib"], args.filter.as_deref()))
}

/// Licences, sources and duplicates of what we depend on. Advisories need a database from outside the registries, so they
/// are looked at where that is reachable: `cargo deny check advisories`.
fn deny(checkout: &Path) -> Result<()> {
    let hash = Inputs::default().text(CARGO_DENY).hash();
    let root = cache::get("cargo-deny", &hash, |out| {
        let what = format!("installing cargo-deny {CARGO_DENY}");
        with_retries(&what, || {
            Cmd::new("cargo")
                .args(["install", "--locked", "--debug", "cargo-deny", "--version", CARGO_DENY, "--root"])
                .arg(out)
                .run_showing(&what, &paths::logs().join("cargo-deny.log"))
        })
    })?;
    // It looks at the crates of every platform, also at those that nobody here has compiled: they may have to be fetched.
    with_retries("checking dependencies", || {
        Cmd::new(root.join("bin/cargo-deny"))
            .args(["--log-level", "error", "--locked", "check", "bans", "licenses", "sources"])
            .dir(checkout)
            .text()
            .map(drop)
    })
}

/// A cluster for the length of a suite: ours, fresh, and gone afterwards; or the one that the user named.
fn on_cluster(args: &TestArgs, lock: &Lock, shape: Shape, suite: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if let Some(kubeconfig) = &args.kubeconfig {
        eprintln!("testing on the existing cluster of {}", kubeconfig.display());
        return suite(kubeconfig);
    }
    cluster::down(lock)?;
    cluster::up(lock, shape)?;
    let result = suite(&cluster::kubeconfig());
    shell::forget_interrupt();
    cluster::down(lock).context("cannot take the cluster down")?;
    result
}

fn api(checkout: &Path, args: &TestArgs, lock: &Lock, tally: &mut Tally) -> Result<()> {
    on_cluster(args, lock, Shape::ControlPlane { kwok: 0, audit: Audit::Writes }, |kubeconfig| {
        let arguments = [
            "--package=testkit",
            "--package=slurm-operator",
            "--features=testkit/api-server,slurm-operator/api-server",
            "--test=api",
            "--test=tokens",
        ];
        let suite = cargo_test(checkout, &arguments, args.filter.as_deref());
        tally.suite("API server tests", suite.env("KUBECONFIG", kubeconfig))?;
        // It makes a namespace of a fixed name, which is nothing for somebody's own cluster.
        if args.filter.is_none() && args.kubeconfig.is_none() {
            tally.check("charts on an API server", install::dry_run(checkout, kubeconfig))?;
        }
        Ok(())
    })
}

fn e2e(checkout: &Path, args: &TestArgs, lock: &Lock, tally: &mut Tally) -> Result<()> {
    let operator = if args.kubeconfig.is_none() {
        image::build_slurm()?;
        Some(image::build_operator(image::Profile::Local)?)
    } else {
        None
    };
    on_cluster(args, lock, Shape::Nodes(3), |kubeconfig| {
        if let Some(operator) = &operator {
            install::crds(kubeconfig)?;
            install::operator(kubeconfig, operator)?;
        }
        let me = std::env::current_exe().context("cannot find myself")?;
        let is_local = args.kubeconfig.is_none();
        let mut suite = |name: String, tests: &[&str], slurm: &str, chosen: &[&str]| {
            let arguments: Vec<&str> =
                ["--package", "e2e"].into_iter().chain(tests.iter().flat_map(|test| ["--test", test])).collect();
            let mut cargo = cargo_test(checkout, &arguments, args.filter.as_deref())
                .env("KUBECONFIG", kubeconfig)
                .env("SLURM_VERSION", slurm)
                .env("XTASK", &me)
                // They wait far more than they work.
                .env("RUST_TEST_THREADS", "5");
            if is_local {
                cargo = cargo.env("AUDIT_LOG", cluster::audit_log());
            }
            // Who names tests gets those, whatever else would be chosen.
            if args.filter.is_none() && !chosen.is_empty() {
                cargo = cargo.arg("--").args(chosen);
            }
            tally.suite(&name, paths::lend(lock, cargo))
        };
        // Elsewhere nobody lets us read an audit log.
        let managed: &[&str] = if is_local { &[] } else { &["--skip=quiet", "--skip=bad_input"] };
        // The last version is the newest.
        for (age, (slurm, _)) in image::SLURM.iter().rev().enumerate() {
            if age == 0 || args.matrix {
                suite(format!("e2e on Slurm {slurm}"), &["smoke", "hostlist", "conf", "slurm_rest"], slurm, &[])?;
                suite(format!("e2e of clusters on Slurm {slurm}"), &["managed"], slurm, managed)?;
                suite(format!("e2e of workers on Slurm {slurm}"), &["workers"], slurm, &[])?;
            } else {
                // What differs between versions is what slurmrestd answers, so that is never left out.
                suite(format!("smoke pass on Slurm {slurm}"), &["smoke", "slurm_rest"], slurm, &[])?;
                suite(format!("clusters on Slurm {slurm}"), &["managed"], slurm, OLDER)?;
                suite(format!("workers on Slurm {slurm}"), &["workers"], slurm, OLDER_WORKERS)?;
            }
        }
        suite("e2e of the operator and of the cluster itself".to_owned(), &["operator", "cluster"], "", &[])?;
        if is_local {
            suite("e2e with a killed operator".to_owned(), &["crash"], slurm::NEWEST, &[])?;
            suite("e2e with broken nodes".to_owned(), &["broken_nodes"], "", &[])?;
            suite("e2e with lost workers".to_owned(), &["lost_node"], slurm::NEWEST, &[])?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counts_of_cargo_test() {
        let ok = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        let bad = "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        assert_eq!(counts(ok), Some((12, 0)));
        assert_eq!(counts(bad), Some((4, 2)));
        assert_eq!(counts("running 12 tests"), None);
        assert_eq!(counts("test result: "), None);
    }

    #[test]
    fn a_suite_without_tests_is_a_failure() {
        let mut tally = Tally::default();
        tally.suite("nothing", Cmd::new("true")).unwrap();
        assert_eq!((tally.passed, tally.failed), (0, 1));
    }

    #[test]
    fn a_suite_that_dies_is_a_failure_even_if_no_test_failed() {
        let mut tally = Tally::default();
        let died = Cmd::new("sh").args(["-c", "echo 'test result: ok. 3 passed; 0 failed'; exit 101"]);
        tally.suite("dies", died).unwrap();
        assert_eq!((tally.passed, tally.failed), (3, 1));
    }
}
