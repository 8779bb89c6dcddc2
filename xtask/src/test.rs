//! `cargo xtask test`: compiles all tests once, and runs them section by section.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    binaries::{self, Binaries, Binary, Selection},
    cache::{self, Inputs},
    charts,
    cluster::{self, Audit, Shape},
    generate, host,
    image::{self, SlurmRelease},
    install, monitoring, paths,
    paths::Lock,
    permissions, purity, shell,
    shell::{Cmd, with_retries},
    tools, upgrade,
};

const CARGO_DENY: &str = "0.20.2";

/// Tests of clusters that also run on older versions of Slurm.
const OLDER: &[&str] = &["accounting", "complete_example", "first_cluster", "scale", "outage"];

/// Tests of workers that also run on older versions of Slurm: what these cannot do, and how a slurmd registers again.
const OLDER_WORKERS: &[&str] = &["lost_state", "scheduled", "timeout"];

/// The test binaries that need an API server.
const API: &[&str] = &["access", "admission", "api", "nebius", "tokens", "writes"];

/// How many of the slowest tests are shown at the end.
const SLOWEST: usize = 10;

/// Which tests to run: all of them unless some are named.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "these are flags of a command line")]
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
    /// Use this existing cluster for --api and --e2e instead of starting a local one
    #[arg(long, env = "KUBECONFIG", value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// Run only tests whose name contains this
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
}

impl TestArgs {
    fn all(&self) -> bool {
        !(self.unit || self.api || self.e2e)
    }

    fn has_unit(&self) -> bool {
        self.unit || self.all()
    }

    fn has_api(&self) -> bool {
        self.api || self.all()
    }

    fn has_e2e(&self) -> bool {
        self.e2e || self.all()
    }

    fn is_local(&self) -> bool {
        self.kubeconfig.is_none()
    }

    /// What to compile. Whichever it is, features are those of the whole workspace, so that no dependency is compiled twice.
    fn selection(&self) -> Selection {
        match (self.has_unit(), self.has_api(), self.has_e2e()) {
            (true, _, _) => Selection::All,
            (false, true, true) => Selection::Tests(API.iter().chain(E2E).copied().collect()),
            (false, true, false) => Selection::Tests(API.to_vec()),
            (false, false, _) => Selection::Tests(E2E.to_vec()),
        }
    }
}

/// Counts and times, as the end of the output shows them.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    /// Checks and suites that failed.
    broken: Vec<String>,
    /// With a filter, a suite may have no test to run.
    filtered: bool,
    sections: Vec<(String, Duration)>,
    tests: Vec<(String, Duration)>,
}

impl Tally {
    /// Runs a check, which is one pass or one failure.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let result = check();
        shell::check_interrupt()?;
        self.sections.push((name.to_owned(), start.elapsed()));
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                shell::say(&format!("error: {name}: {error:#}"));
                self.failed += 1;
                self.broken.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// Runs test binaries, whose own counts are taken over.
    fn suite(&mut self, suite: Suite) -> Result<()> {
        let ran = suite.run("")?;
        self.add(ran);
        Ok(())
    }

    /// Runs several sequences of suites at the same time. Lines of their output begin with the name of the sequence.
    fn side_by_side(&mut self, sequences: Vec<(String, Vec<Suite>)>) -> Result<()> {
        let ran = shell::parallel(|group| {
            let run = |(name, suites): (String, Vec<Suite>)| {
                let prefix = format!("[{name}] ");
                group.start(move || suites.into_iter().map(|suite| suite.run(&prefix)).collect::<Result<Vec<_>>>())
            };
            let started: Vec<_> = sequences.into_iter().map(run).collect();
            started.into_iter().map(shell::Branch::join).collect::<Result<Vec<_>>>()
        })?;
        for ran in ran.into_iter().flatten() {
            self.add(ran);
        }
        Ok(())
    }

    fn add(&mut self, ran: Ran) {
        let Ran { name, passed, failed, is_broken, tests, time } = ran;
        self.tests.extend(tests);
        self.passed += passed;
        self.failed += failed;
        if is_broken {
            self.broken.push(name.clone());
        } else if passed == 0 && !self.filtered {
            self.failed += 1;
            self.broken.push(format!("{name} (it ran no test)"));
        }
        self.sections.push((name, time));
    }

    /// The times, what failed, and the closing line.
    fn print(mut self, total: Duration) -> Result<()> {
        eprintln!("\ntime by section:");
        for (name, time) in &self.sections {
            eprintln!("{:>8}  {name}", shell::human(*time));
        }
        self.tests.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        self.tests.truncate(SLOWEST);
        eprintln!("slowest tests:");
        for (name, time) in &self.tests {
            eprintln!("{:>8}  {name}", shell::human(*time));
        }
        eprintln!("took {}", shell::human(total));
        for name in &self.broken {
            eprintln!("failed: {name}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("some tests failed");
        }
        Ok(())
    }
}

/// Test binaries that are run one after the other, by name.
struct Suite {
    name: String,
    commands: Vec<(String, Cmd)>,
}

/// What came of a suite.
#[derive(Default)]
struct Ran {
    name: String,
    passed: u32,
    failed: u32,
    is_broken: bool,
    tests: Vec<(String, Duration)>,
    time: Duration,
}

impl Suite {
    fn run(self, prefix: &str) -> Result<Ran> {
        eprintln!("• {}", self.name);
        let start = Instant::now();
        let mut ran = Ran { name: self.name, ..Ran::default() };
        for (binary, command) in self.commands {
            let mut failed_here = 0;
            let success = command.watch(prefix, |line| {
                if let Some((ok, bad)) = counts(line) {
                    ran.passed += ok;
                    failed_here += bad;
                }
                if let Some((test, time)) = timed(line) {
                    ran.tests.push((format!("{binary} {test}"), time));
                }
            })?;
            // A failure that no test counted: it did not compile, or a process died.
            ran.failed += if success { failed_here } else { failed_here.max(1) };
            ran.is_broken |= !success;
        }
        ran.time = start.elapsed();
        Ok(ran)
    }
}

/// Passed and failed in a line such as `test result: ok. 12 passed; 0 failed; …`.
fn counts(line: &str) -> Option<(u32, u32)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word| counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse().ok());
    Some((number("passed")?, number("failed")?))
}

/// The name and the time in a line such as `test module::name ... ok <0.123s>`.
fn timed(line: &str) -> Option<(&str, Duration)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds: f64 = outcome.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
    Some((name, Duration::try_from_secs_f64(seconds).ok()?))
}

pub fn run(args: &TestArgs) -> Result<()> {
    let checkout = paths::checkout()?;
    let start = Instant::now();
    let mut tally = Tally { filtered: args.filter.is_some(), ..Tally::default() };
    let needs_cluster = args.has_api() || args.has_e2e();
    let lock = if needs_cluster { Some(Lock::take()?) } else { None };
    if needs_cluster && args.is_local() {
        host::install_packages()?;
    }
    let built = build(args, &mut tally)?;
    if let Some(binaries) = &built.binaries {
        if args.has_unit() {
            unit(&checkout, args, binaries, &mut tally)?;
        }
        if let Some(lock) = &lock {
            if args.has_api() {
                api(&checkout, args, lock, binaries, &mut tally)?;
            }
            if args.has_e2e() {
                e2e(args, lock, &built, binaries, &mut tally)?;
            }
        }
    }
    tally.print(start.elapsed())
}

/// What the tests need.
struct Built {
    /// None if they do not compile.
    binaries: Option<Binaries>,
    operator: Option<image::Operator>,
    /// Releases of Slurm to test on, newest first.
    slurm: Vec<SlurmRelease>,
}

/// Builds everything before the first test runs, in parallel: images wait for the network, the rest for the compilers.
fn build(args: &TestArgs, tally: &mut Tally) -> Result<Built> {
    let start = Instant::now();
    let shape = if args.has_e2e() { Shape::Nodes(3) } else { API_SERVER };
    let (needs_cluster, needs_nodes) = (args.has_api() || args.has_e2e(), args.has_e2e());
    let checks = args.has_unit() && args.filter.is_none();
    let (binaries, operator, slurm) = shell::parallel(|group| {
        let slurm = (needs_nodes && args.is_local()).then(|| group.start(build_slurm));
        let operator = needs_nodes.then(|| group.start(move || image::operator_for_tests(args.is_local())));
        let cluster = (needs_cluster && args.is_local()).then(|| group.start(move || cluster::build(shape)));
        let tools = (checks || needs_cluster).then(|| group.start(move || build_tools(checks)));
        if checks {
            tally.check("formatting", || paths::cargo()?.args(["fmt", "--all", "--check"]).run())?;
            tally.check("clippy", clippy)?;
        }
        let compile = Instant::now();
        let binaries = match binaries::build(&args.selection()) {
            Ok(binaries) => Some(binaries),
            Err(error) => {
                shell::check_interrupt()?;
                tally.check("compiling the tests", || Err(error))?;
                None
            }
        };
        tally.sections.push(("compiling the tests".to_owned(), compile.elapsed()));
        let operator = operator.map(shell::Branch::join).transpose()?;
        let slurm = slurm.map(shell::Branch::join).transpose()?;
        cluster.map(shell::Branch::join).transpose()?;
        tools.map(shell::Branch::join).transpose()?;
        Ok((binaries, operator, slurm))
    })?;
    let mut releases = vec![SlurmRelease::stable()];
    match slurm {
        // Images are only built for the local cluster.
        None => releases = SlurmRelease::known()?.into_iter().rev().collect(),
        Some(Ok(newest)) => releases.insert(0, newest),
        Some(Err(error)) => tally.check("images of the newest Slurm", || Err(error))?,
    }
    tally.sections.push(("all that was built in parallel, until the first test".to_owned(), start.elapsed()));
    Ok(Built { binaries, operator, slurm: releases })
}

/// Builds all images of Slurm. The stable release must be there; without the newest one, tests run on the stable one alone.
fn build_slurm() -> Result<Result<SlurmRelease>> {
    image::build_for_tests()?;
    SlurmRelease::stable().build(image::SLURM_DAEMONS)?;
    let newest = SlurmRelease::newest().and_then(|newest| newest.build(image::SLURM_DAEMONS).map(|_| newest));
    shell::check_interrupt()?;
    Ok(newest)
}

fn build_tools(checks: bool) -> Result<()> {
    tools::helm()?;
    if checks {
        cargo_deny()?;
    }
    Ok(())
}

fn clippy() -> Result<()> {
    let arguments = ["--locked", "--quiet", "--workspace", "--all-targets", "--all-features"];
    paths::cargo()?
        .arg("clippy")
        .args(arguments)
        .args(["--", "--deny", "warnings"])
        .compile("clippy", &paths::logs().join("clippy.log"))
}

fn needs_api_server(binary: &Binary) -> bool {
    binary.is_integration_test() && !binary.is_in("e2e") && API.contains(&&*binary.target)
}

fn is_e2e(binary: &Binary) -> bool {
    binary.is_integration_test() && binary.is_in("e2e")
}

fn unit(checkout: &Path, args: &TestArgs, binaries: &Binaries, tally: &mut Tally) -> Result<()> {
    if args.filter.is_none() {
        tally.check("pure modules", || purity::check(checkout))?;
        tally.check("generated files", || generate::run(checkout, Some(binaries.program("slurm-operator")?), true))?;
        tally.check("charts", || charts::check(checkout))?;
        tally.check("dashboards and alerts", || monitoring::check(checkout))?;
        tally.check("dependencies", || deny(checkout))?;
    }
    let is_unit = |binary: &&Binary| !needs_api_server(binary) && !is_e2e(binary);
    let filter = args.filter.as_deref();
    let commands = binaries.tests().filter(is_unit).map(|binary| (binary.name(), binary.command(filter))).collect();
    tally.suite(Suite { name: "unit tests".to_owned(), commands })
}

/// Licences, sources and duplicates of what we depend on. Advisories need a database from outside the registries, so they
/// are looked at where that is reachable: `cargo deny check advisories`.
fn deny(checkout: &Path) -> Result<()> {
    let program = cargo_deny()?;
    // It looks at the crates of every platform, also at those that were not compiled here: they may have to be fetched.
    with_retries("checking dependencies", || {
        Cmd::new(&program)
            .args(["--log-level", "error", "--locked", "check", "bans", "licenses", "sources"])
            .dir(checkout)
            .text()
            .map(drop)
    })
}

/// The program cargo-deny.
fn cargo_deny() -> Result<PathBuf> {
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
    Ok(root.join("bin/cargo-deny"))
}

/// Runs a suite on a fresh local cluster, which is removed afterwards, or on the one that the user named.
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

/// The cluster of the API server tests.
const API_SERVER: Shape = Shape::ControlPlane { kwok: 0, audit: Audit::Writes };

fn api(checkout: &Path, args: &TestArgs, lock: &Lock, binaries: &Binaries, tally: &mut Tally) -> Result<()> {
    on_cluster(args, lock, API_SERVER, |kubeconfig| {
        let tests = binaries.tests().filter(|binary| needs_api_server(binary));
        let command = |binary: &Binary| binary.command(args.filter.as_deref()).env("KUBECONFIG", kubeconfig);
        let commands = tests.map(|binary| (binary.name(), command(binary))).collect();
        tally.suite(Suite { name: "API server tests".to_owned(), commands })?;
        // It creates a namespace of a fixed name, so not on an existing cluster.
        if args.filter.is_none() && args.is_local() {
            tally.check("charts and documentation on an API server", || install::dry_run(checkout, kubeconfig))?;
            tally.check("upgrades from the charts of the Go operator", || upgrade::check(checkout, kubeconfig))?;
        }
        Ok(())
    })
}

/// All test binaries of e2e.
const E2E: &[&str] = &[
    "broken_nodes",
    "cluster",
    "conf",
    "crash",
    "ha",
    "hostlist",
    "login",
    "lost_node",
    "managed",
    "operator",
    "slurm_rest",
    "smoke",
    "workers",
];

fn e2e(args: &TestArgs, lock: &Lock, built: &Built, binaries: &Binaries, tally: &mut Tally) -> Result<()> {
    on_cluster(args, lock, Shape::Nodes(3), |kubeconfig| {
        let operator = built.operator.as_ref().context("the operator was not compiled")?;
        if let Some(image) = &operator.image {
            install::crds(kubeconfig)?;
            install::operator(kubeconfig, image)?;
        }
        let me = std::env::current_exe().context("cannot find the path of this program")?;
        let is_local = args.is_local();
        let suite = |name: String, tests: &[&str], slurm: &str, chosen: &[&str]| {
            let command = |binary: &Binary| {
                let mut command = binary
                    .command(args.filter.as_deref())
                    .env("KUBECONFIG", kubeconfig)
                    .env("SLURM_VERSION", slurm)
                    .env("MATRIX", args.matrix.to_string())
                    .env("XTASK", &me)
                    .env("OPERATOR", &operator.program)
                    // They wait far more than they work.
                    .env("RUST_TEST_THREADS", "5");
                if is_local {
                    command = command.env("AUDIT_LOG", cluster::audit_log());
                }
                // Tests that the user named run, whichever would be chosen otherwise.
                if args.filter.is_none() {
                    command = command.args(chosen);
                }
                paths::lend(lock, command)
            };
            let of_suite = |binary: &&Binary| is_e2e(binary) && tests.contains(&&*binary.target);
            let commands = binaries.tests().filter(of_suite).map(|binary| (binary.name(), command(binary))).collect();
            Suite { name, commands }
        };
        // There is no access to the audit log of an existing cluster.
        let managed: &[&str] = if is_local { &[] } else { &["--skip=quiet", "--skip=bad_input"] };
        let newest = built.slurm.first().map_or("", |release| &release.version);
        // They mostly wait, each in namespaces of its own.
        let sequences = built.slurm.iter().enumerate().map(|(age, release)| {
            let slurm = &*release.version;
            let suites = if age == 0 || args.matrix {
                vec![
                    suite(format!("e2e on Slurm {slurm}"), &["smoke", "hostlist", "conf", "slurm_rest"], slurm, &[]),
                    suite(format!("e2e of clusters on Slurm {slurm}"), &["managed"], slurm, managed),
                    suite(format!("e2e of workers on Slurm {slurm}"), &["workers"], slurm, &[]),
                    suite(format!("e2e of login nodes on Slurm {slurm}"), &["login"], slurm, &[]),
                ]
            } else {
                // What differs between versions is what slurmrestd answers, so that is never left out.
                vec![
                    suite(format!("smoke pass on Slurm {slurm}"), &["smoke", "slurm_rest"], slurm, &[]),
                    suite(format!("clusters on Slurm {slurm}"), &["managed"], slurm, OLDER),
                    suite(format!("workers on Slurm {slurm}"), &["workers"], slurm, OLDER_WORKERS),
                ]
            };
            (slurm.to_owned(), suites)
        });
        tally.side_by_side(sequences.collect())?;
        // These stop the operator or nodes under all others.
        tally.suite(suite(
            "e2e of the operator and of the cluster itself".to_owned(),
            &["operator", "cluster"],
            "",
            &[],
        ))?;
        if is_local {
            tally.suite(suite("e2e with a killed operator".to_owned(), &["crash"], newest, &[]))?;
            tally.suite(suite("e2e with broken nodes".to_owned(), &["broken_nodes"], "", &[]))?;
            tally.suite(suite("e2e with lost workers".to_owned(), &["lost_node"], newest, &[]))?;
            tally.suite(suite("e2e with backups of slurmctld".to_owned(), &["ha"], newest, &[]))?;
        }
        if is_local && args.filter.is_none() {
            let checkout = paths::checkout()?;
            tally.check("permissions of the operator", || permissions::check(&checkout, &cluster::audit_log()))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counts_of_a_test_binary() {
        let ok = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        let bad = "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        assert_eq!(counts(ok), Some((12, 0)));
        assert_eq!(counts(bad), Some((4, 2)));
        assert_eq!(counts("running 12 tests"), None);
        assert_eq!(counts("test result: "), None);
    }

    #[test]
    fn reads_the_time_of_a_test() {
        let time = |line| timed(line).map(|(name, time)| (name, time.as_millis()));
        assert_eq!(time("test a::b ... ok <1.234s>"), Some(("a::b", 1234)));
        assert_eq!(time("test a - should panic ... FAILED <0.001s>"), Some(("a - should panic", 1)));
        assert_eq!(time("test a ... ok"), None);
        assert_eq!(time("test result: ok. 1 passed; 0 failed; finished in 0.01s"), None);
    }

    fn of(name: &str, script: &str) -> Suite {
        let commands = vec![("binary".to_owned(), Cmd::new("sh").args(["-c", script]))];
        Suite { name: name.to_owned(), commands }
    }

    fn suite(script: &str) -> Tally {
        let mut tally = Tally::default();
        tally.suite(of("suite", script)).unwrap();
        tally
    }

    #[test]
    fn suites_run_side_by_side_and_all_count() {
        let mut tally = Tally::default();
        let ok = "echo 'test result: ok. 3 passed; 0 failed'";
        // Each waits until the other one has started.
        let meets = |mine: &str, other: &str| {
            let dir = std::env::temp_dir().join(format!("side-by-side-{}", std::process::id()));
            let dir = dir.display();
            format!("mkdir -p {dir}; touch {dir}/{mine}; until [ -e {dir}/{other} ]; do sleep 0.01; done; {ok}")
        };
        let bad = "echo 'test result: FAILED. 1 passed; 2 failed'; exit 101";
        let sequences = vec![
            ("a".to_owned(), vec![of("first", &meets("a", "b")), of("second", bad)]),
            ("b".to_owned(), vec![of("third", &meets("b", "a"))]),
        ];
        tally.side_by_side(sequences).unwrap();
        assert_eq!((tally.passed, tally.failed), (7, 2));
        assert_eq!(tally.broken, ["second"]);
    }

    #[test]
    fn a_suite_without_tests_is_a_failure() {
        let tally = suite("true");
        assert_eq!((tally.passed, tally.failed), (0, 1));
    }

    #[test]
    fn a_suite_that_dies_is_a_failure_even_if_no_test_failed() {
        let tally = suite("echo 'test result: ok. 3 passed; 0 failed'; exit 101");
        assert_eq!((tally.passed, tally.failed), (3, 1));
    }

    /// A test binary that is not in any list would never run.
    #[test]
    fn every_test_binary_of_e2e_is_listed() {
        let entries = std::fs::read_dir(paths::checkout().unwrap().join("e2e/tests")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        assert_eq!(names, E2E);
    }
}
