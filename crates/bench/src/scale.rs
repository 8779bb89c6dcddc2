//! One run: an operator is led through all phases, and each is measured.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use testkit::{
    slurmrestd::{self, JobSpec, Settings, Slurmrestd},
    wait_for,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use crate::{
    audit::{self, Call, Tail},
    budget,
    cluster::{self, Cluster},
    compare,
    load::{self, Body},
    objects::{self, NAMESPACE},
    phases,
    process::Operator,
    report::{Phase, Report, Run, Size, is_lease},
    table,
    world::{Tally, World},
};

/// Where operators look for slurmrestd when `DEBUG=1` tells them that they are being developed.
const DEBUG_URL: &str = "http://localhost:6820";

/// How often we look whether a phase is over.
const LOOK: Duration = Duration::from_millis(20);

/// An operator that wrote nothing for this long has settled.
const QUIET: Duration = Duration::from_secs(3);

/// How long that may take.
const SETTLE: Duration = Duration::from_mins(1);

/// How long nothing happens.
const IDLE: Duration = Duration::from_mins(1);

/// How often loads change, in seconds: five times as often as slurmctld asks its nodes by default.
const LOADS_CHANGE: i64 = 20;

/// Workers for each node that kwok pretends.
const DENSITY: u32 = 100;

/// Pods that come and go before anything is measured, if the nodes have room for them.
const WARM_UP: u32 = 1000;

/// Pods of a Slurm cluster without workers: slurmctld and slurmrestd.
const DAEMONS: u32 = 2;

/// How to measure.
#[derive(Args, Debug)]
pub struct ScaleArgs {
    /// How many workers; several numbers, separated by commas, are measured one after the other
    #[arg(long, required = true, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    workers: Vec<u32>,
    /// The command that starts the operator; by default ours, as a release build. It gets KUBECONFIG and, without --rest-url, DEBUG=1
    #[arg(long, env = "BENCH_OPERATOR", value_name = "COMMAND")]
    operator: String,
    /// Another build of the operator to compare with: a program that gets the same arguments and environment. Runs of both alternate, and
    /// figures are printed side by side with their ratios
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// Add what was measured of the baseline to this report, or begin it
    #[arg(long, value_name = "FILE", requires = "baseline")]
    baseline_report: Option<PathBuf>,
    /// Have the Controller name this address of slurmrestd instead of telling the operator DEBUG=1. The fake takes its port
    #[arg(long, value_name = "URL")]
    rest_url: Option<String>,
    /// Where the operator says that it is ready
    #[arg(long, default_value = "http://127.0.0.1:8081/readyz", value_name = "URL")]
    ready_url: String,
    /// The folder or file with the custom resource definitions; by default ours
    #[arg(long, env = "BENCH_CRDS", value_name = "PATH")]
    crds: PathBuf,
    /// The rules of the operator's cluster role, a YAML list; by default ours
    #[arg(long, env = "BENCH_RULES", value_name = "FILE")]
    rules: PathBuf,
    /// Add what was measured to this report, or begin it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Measure so often, each time on a new cluster, and take medians
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Nodes that kwok pretends; by default one for each hundred workers
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Unrelated pods; 0 for none
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    noise_pods: u32,
    /// Unrelated Secrets; 0 for none
    #[arg(long, default_value_t = 5_000, value_name = "N")]
    noise_secrets: u32,
    /// Give up on a phase after so many seconds
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    limit: u64,
    /// Also print every call, phase by phase
    #[arg(long)]
    calls: bool,
}

/// One of the operators that are measured, and what was measured of it.
struct Subject<'a> {
    command: String,
    report: Report,
    path: Option<&'a Path>,
}

impl<'a> Subject<'a> {
    fn new(command: String, path: Option<&'a Path>) -> Result<Self> {
        let mut report = match path {
            Some(path) if path.exists() => Report::read(path)?,
            _ => Report::default(),
        };
        without_folder(&command).clone_into(&mut report.operator);
        Ok(Self { command, report, path })
    }

    fn add(&mut self, size: Size) -> Result<()> {
        self.report.put(size);
        self.path.map_or(Ok(()), |path| self.report.write(path))
    }
}

/// Measures all sizes. Whether the operator kept all budgets; of the baseline, nothing is demanded.
pub async fn run(args: &ScaleArgs) -> Result<bool> {
    let mut operator = Subject::new(args.operator.clone(), args.report.as_deref())?;
    let mut baseline = match &args.baseline {
        Some(program) => {
            let command = with_program(&args.operator, program);
            let mut baseline = Subject::new(command, args.baseline_report.as_deref())?;
            baseline.report.operator.insert_str(0, "baseline: ");
            Some(baseline)
        }
        None => None,
    };
    let mut kept = true;
    for workers in &args.workers {
        let commands: Vec<&str> = [Some(&operator), baseline.as_ref()]
            .into_iter()
            .flatten()
            .map(|subject| subject.command.as_str())
            .collect();
        let sizes = measure(args, *workers, &commands).await.with_context(|| format!("with {workers} workers"))?;
        let mut sizes = sizes.into_iter();
        let Some(size) = sizes.next() else { continue };
        println!("\n{workers} workers, {} on {} cores\n\n{}", size.measured_at, size.cores, table::phases(&size));
        println!("{}", table::verdicts(&size.verdicts));
        if args.calls {
            println!("{}", table::calls(&size.median));
        }
        if let (Some(baseline), Some(base)) = (&mut baseline, sizes.next()) {
            println!("A: {}\nB: {}, the baseline\n", operator.command, baseline.command);
            println!("{}", compare::sizes(&size, &base));
            baseline.add(base)?;
        }
        kept &= size.verdicts.iter().all(budget::Verdict::is_met);
        operator.add(size)?;
    }
    let growth = budget::growth(&operator.report);
    if !growth.is_empty() {
        println!("{}", table::verdicts(&growth));
    }
    Ok(kept && growth.iter().all(budget::Verdict::is_met))
}

/// Measures each command as often as asked for, in turns, and takes medians.
async fn measure(args: &ScaleArgs, workers: u32, commands: &[&str]) -> Result<Vec<Size>> {
    let mut runs = vec![Vec::new(); commands.len()];
    for number in 1..=args.repeat {
        for index in order(commands.len(), number) {
            let (Some(command), Some(runs)) = (commands.get(index), runs.get_mut(index)) else { continue };
            eprintln!("• {workers} workers, run {number} of {}: {command}", args.repeat);
            let nodes = args.nodes.unwrap_or(workers.div_ceil(DENSITY).max(2));
            let cluster = Cluster::start(nodes, &args.crds, &args.rules).await?;
            runs.push(Bench::start(args, command, workers, nodes, cluster).await?.run().await?);
        }
    }
    Ok(runs.into_iter().map(|runs| summarize(workers, runs)).collect())
}

/// Turns begin with another command each time, so that none is always measured on the machine that another one left behind.
fn order(commands: usize, number: u32) -> Vec<usize> {
    if number.is_multiple_of(2) { (0..commands).rev().collect() } else { (0..commands).collect() }
}

fn summarize(workers: u32, runs: Vec<Run>) -> Size {
    let median = Run::median(&runs);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    Size {
        workers,
        measured_at: format!("{:.0}", Timestamp::now()),
        cores: u32::try_from(cores).unwrap_or(0),
        verdicts: budget::judge(workers, &median),
        median,
        runs,
    }
}

/// One run while it lasts.
struct Bench<'a> {
    args: &'a ScaleArgs,
    workers: u32,
    cluster: Cluster,
    world: World,
    operator: Operator,
    audit: Tail,
    /// Calls of the present phase that were read from the log already.
    calls: Vec<Call>,
    slurm_calls: BTreeMap<String, u64>,
    cpu_seconds: f64,
    since: Timestamp,
    run: Run,
}

impl<'a> Bench<'a> {
    async fn start(args: &'a ScaleArgs, command: &str, workers: u32, nodes: u32, cluster: Cluster) -> Result<Self> {
        let url = args.rest_url.as_deref().unwrap_or(DEBUG_URL);
        let (_, port) = host_and_port(url)?;
        let settings = Settings { ping_every: LOADS_CHANGE, ..Settings::default() };
        // A slurmctld that started long ago: young ones are not trusted to know all of their nodes.
        let started = Timestamp::now().as_second() - 3600;
        let options = slurmrestd::Options { port, ..slurmrestd::Options::default() };
        let world = World::new(Slurmrestd::start(slurmrestd::Cluster::new(settings, started), options).await?);
        load::make_namespace(&cluster.admin, NAMESPACE).await?;
        let pods = WARM_UP.min(nodes.saturating_mul(DENSITY));
        load::warm_up(&cluster.admin, pods, Duration::from_secs(args.limit)).await?;
        let audit = Tail::of(cluster.audit_log.clone(), cluster::USER)?;
        let kubeconfig = cluster.kubeconfig.display().to_string();
        let mut environment = vec![("KUBECONFIG", kubeconfig.as_str())];
        if args.rest_url.is_none() {
            environment.push(("DEBUG", "1"));
        }
        let since = Timestamp::now();
        let log = cluster::path_of("BENCH_LOG")?;
        eprintln!("  the operator's log is {}", log.display());
        let operator = Operator::start(command, &environment, &log)?;
        Ok(Self {
            args,
            workers,
            cluster,
            world,
            operator,
            audit,
            calls: Vec::new(),
            slurm_calls: BTreeMap::new(),
            cpu_seconds: 0.0,
            since,
            run: Run::default(),
        })
    }

    async fn run(mut self) -> Result<Run> {
        let follower = tokio::spawn(self.world.clone().follow(self.cluster.admin.clone(), NAMESPACE.to_owned()));
        self.come_up().await?;
        let body = self.grow().await?;
        self.idle().await?;
        self.work().await?;
        self.roll().await?;
        self.noise().await?;
        self.shrink().await?;
        let Self { cluster, world, operator, workers, mut run, args, .. } = self;
        operator.stop().await?;
        let limit = Duration::from_secs(args.limit);
        // What the operator left, Kubernetes collects.
        reach("the workers to go", limit, &world, |tally| tally.all == 0).await?;
        run.bare_create_seconds = Some(load::create_pods(&cluster.operator, NAMESPACE, &body, workers).await?);
        reach("bare pods to run", limit, &world, |tally| tally.running == workers).await?;
        run.bare_delete_seconds = Some(load::delete_pods(&cluster.operator, NAMESPACE, workers).await?);
        reach("bare pods to go", limit, &world, |tally| tally.all == 0).await?;
        follower.abort();
        Ok(run)
    }

    /// Until the operator is ready, and until slurmctld and slurmrestd are.
    async fn come_up(&mut self) -> Result<()> {
        let url = &self.args.ready_url;
        let ready = wait_for("the operator to be ready", Duration::from_mins(1), async || {
            anyhow::ensure!(is_ready(url).await?, "{url} says that it is not");
            Ok(())
        });
        ready.await.context("see its log")?;
        self.finish(phases::START, true)?;
        self.begin();
        objects::make_cluster(&self.cluster.admin, self.args.rest_url.as_deref()).await?;
        let reached = self.until(Duration::from_mins(1), |world| world.tally().daemons_ready == DAEMONS).await?;
        let seconds = reached.then(|| self.passed());
        // The fewer daemons still start, the less they share the machine with what is measured next.
        self.quiet().await?;
        self.finish_after(phases::CLUSTER, seconds).map(drop)
    }

    /// From nothing to registered workers.
    async fn grow(&mut self) -> Result<Body> {
        let workers = self.workers;
        self.begin();
        let start = self.since;
        objects::make_node_set(&self.cluster.admin, workers).await?;
        let mut calls = self.phase(phases::CREATED, |tally| tally.all >= workers).await?;
        if self.run.phase(phases::CREATED).is_none_or(|phase| phase.seconds.is_none()) {
            bail!("only {} workers were created within {} s", self.world.tally().all, self.args.limit);
        }
        // The log may tell of the last call a moment after the watch tells of the pod.
        calls.extend(self.phase(phases::READY, |tally| tally.ready == workers).await?);
        self.run.create_seconds = since(start, audit::last(&calls, "create pods"));
        self.phase(phases::REGISTERED, |tally| tally.registered == workers).await?;
        let settled = self.quiet().await?;
        self.finish(phases::SETTLED, settled)?;
        objects::some_worker(&self.cluster.admin).await.map(Body::of)
    }

    async fn idle(&mut self) -> Result<()> {
        self.begin();
        self.until(IDLE, |_| false).await?;
        // Not earlier: phases end by what pods show, and a status may follow late or never.
        self.run.ready_lag_seconds = self.world.ready_lag(self.workers);
        self.finish(phases::IDLE, true).map(drop)
    }

    /// A job comes and goes on a tenth of the nodes.
    async fn work(&mut self) -> Result<()> {
        let nodes = (self.workers / 10).max(1);
        self.begin();
        let job = JobSpec { nodes, cpus: 0, time_limit: Some(60), ..JobSpec::default() };
        let job = self.world.slurm.cluster(|cluster| cluster.submit(job));
        let job = job.map_err(|refusal| anyhow!("the fake refuses a job: {refusal:?}"))?;
        self.phase_with_rest(phases::BUSY, |tally| tally.protected == nodes).await?;
        self.begin();
        let finished = self.world.slurm.cluster(|cluster| cluster.finish(job));
        finished.map_err(|refusal| anyhow!("the job does not run: {refusal:?}"))?;
        self.phase_with_rest(phases::FREE, |tally| tally.protected == 0).await.map(drop)
    }

    async fn roll(&mut self) -> Result<()> {
        let workers = self.workers;
        self.world.begin_anew();
        self.begin();
        objects::change_node_set(&self.cluster.admin, &json!({"slurmd": {"image": "slurmd:2"}})).await?;
        let is_done = |tally: &Tally| tally.new == workers && tally.all == workers;
        self.phase_with_rest(phases::ROLL, is_done).await.map(drop)
    }

    async fn noise(&mut self) -> Result<()> {
        let (pods, secrets) = (self.args.noise_pods, self.args.noise_secrets);
        if pods == 0 && secrets == 0 {
            return Ok(());
        }
        self.begin();
        let before = self.operator.memory()?.rss_mb;
        load::make_noise(&self.cluster.admin, pods, secrets).await?;
        // Whoever watches them all has heard of the last one by then.
        self.until(QUIET, |_| false).await?;
        self.run.noise_rss_mb = Some((before, self.operator.memory()?.rss_mb));
        load::end_noise(&self.cluster.admin, pods, secrets).await?;
        self.finish(phases::NOISE, true).map(drop)
    }

    async fn shrink(&mut self) -> Result<()> {
        self.begin();
        let start = self.since;
        objects::change_node_set(&self.cluster.admin, &json!({"replicas": 0})).await?;
        let calls = self.phase_with_rest(phases::SCALE_IN, |tally| tally.all == 0).await?;
        if self.run.phase(phases::SCALE_IN).is_some_and(|phase| phase.seconds.is_some()) {
            self.run.delete_seconds = since(start, audit::last(&calls, "delete pods"));
        }
        self.begin();
        objects::delete_node_set(&self.cluster.admin).await?;
        self.phase(phases::DELETED, |tally| !tally.has_node_set).await.map(drop)
    }

    /// From now on the clock runs for the next phase.
    fn begin(&mut self) {
        self.since = Timestamp::now();
    }

    fn passed(&self) -> f64 {
        Timestamp::now().duration_since(self.since).as_secs_f64()
    }

    /// Waits for the end of a phase and measures it; its calls.
    async fn phase(&mut self, name: &str, done: impl Fn(&Tally) -> bool) -> Result<Vec<Call>> {
        let seconds = self.wait(name, done).await?;
        self.finish_after(name, seconds)
    }

    /// The same, but what the operator has to do after that is part of the cost, though not of the time.
    async fn phase_with_rest(&mut self, name: &str, done: impl Fn(&Tally) -> bool) -> Result<Vec<Call>> {
        let seconds = self.wait(name, done).await?;
        self.quiet().await?;
        self.finish_after(name, seconds)
    }

    async fn wait(&mut self, name: &str, done: impl Fn(&Tally) -> bool) -> Result<Option<f64>> {
        let limit = Duration::from_secs(self.args.limit);
        let reached = self.until(limit, |world| done(&world.tally())).await?;
        if !reached {
            eprintln!("  {name}: not within {} s; {:?}", self.args.limit, self.world.tally());
        }
        Ok(reached.then(|| self.passed()))
    }

    /// Whether it came true within the limit.
    async fn until(&mut self, limit: Duration, done: impl Fn(&World) -> bool) -> Result<bool> {
        let start = tokio::time::Instant::now();
        while !done(&self.world) {
            self.operator.check().context("see its log")?;
            if start.elapsed() >= limit {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
        Ok(true)
    }

    /// Waits until the operator writes nothing for a while. Whether it did.
    async fn quiet(&mut self) -> Result<bool> {
        let start = Timestamp::now();
        loop {
            self.until(Duration::from_millis(500), |_| false).await?;
            let news = self.audit.news()?;
            self.calls.extend(news);
            let writes = self.calls.iter().filter(|call| audit::is_write(&call.what) && !is_lease(&call.what));
            let last = writes.map(|call| call.done).max().unwrap_or(start).max(start);
            let now = Timestamp::now();
            if now.duration_since(last).unsigned_abs() >= QUIET {
                return Ok(true);
            }
            if now.duration_since(start).unsigned_abs() >= SETTLE {
                eprintln!("  the operator does not come to rest");
                return Ok(false);
            }
        }
    }

    fn finish(&mut self, name: &str, reached: bool) -> Result<Vec<Call>> {
        let seconds = reached.then(|| self.passed());
        self.finish_after(name, seconds)
    }

    /// Writes down what a phase cost; its calls.
    fn finish_after(&mut self, name: &str, seconds: Option<f64>) -> Result<Vec<Call>> {
        let cpu_seconds = self.operator.cpu_seconds()?;
        let peak_rss_mb = self.operator.memory()?.peak_rss_mb;
        self.operator.reset_peak()?;
        let mut calls = std::mem::take(&mut self.calls);
        calls.extend(self.audit.news()?);
        let slurm = self.world.slurm.calls();
        let phase = Phase {
            name: name.to_owned(),
            seconds,
            cpu_seconds: cpu_seconds - self.cpu_seconds,
            peak_rss_mb,
            api: audit::count(&calls),
            slurm: newer(&slurm, &self.slurm_calls),
        };
        eprintln!("  {name}: {:.2} s, {:.2} s of CPU", seconds.unwrap_or(f64::NAN), phase.cpu_seconds);
        self.run.phases.push(phase);
        self.cpu_seconds = cpu_seconds;
        self.slurm_calls = slurm;
        self.since = Timestamp::now();
        Ok(calls)
    }
}

/// What was called more often than before.
fn newer(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> audit::Counts {
    let more = |(what, count): (&String, &u64)| {
        let more = count.saturating_sub(before.get(what).copied().unwrap_or(0));
        (more > 0).then(|| (what.clone(), u32::try_from(more).unwrap_or(u32::MAX)))
    };
    now.iter().filter_map(more).collect()
}

fn since(start: Timestamp, end: Option<Timestamp>) -> Option<f64> {
    end.map(|end| end.duration_since(start).as_secs_f64())
}

async fn reach(what: &str, limit: Duration, world: &World, done: impl Fn(&Tally) -> bool) -> Result<()> {
    wait_for(what, limit, async || {
        let tally = world.tally();
        anyhow::ensure!(done(&tally), "{tally:?}");
        Ok(())
    })
    .await
}

/// A command without the place of its program, which is nobody's business.
fn without_folder(command: &str) -> &str {
    let program = command.split(' ').next().unwrap_or_default();
    program.rfind('/').and_then(|slash| command.get(slash + 1..)).unwrap_or(command)
}

/// The same command with another program.
fn with_program(command: &str, program: &Path) -> String {
    let arguments = command.split_once(' ').map_or("", |(_, arguments)| arguments);
    format!("{} {arguments}", program.display()).trim_end().to_owned()
}

/// Host and port of an address such as `http://localhost:6820/readyz`.
fn host_and_port(url: &str) -> Result<(&str, u16)> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url} does not begin with http://"))?;
    let (host, port) = rest
        .split('/')
        .next()
        .and_then(|authority| authority.rsplit_once(':'))
        .with_context(|| format!("{url} names no port"))?;
    Ok((host, port.parse().with_context(|| format!("{url} names no port"))?))
}

/// Whether a GET there is answered with 200.
async fn is_ready(url: &str) -> Result<bool> {
    let (host, port) = host_and_port(url)?;
    let path = url.splitn(4, '/').nth(3).unwrap_or_default();
    let mut stream = TcpStream::connect((host, port)).await?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(host_and_port("http://localhost:6820").unwrap(), ("localhost", 6820));
        assert_eq!(host_and_port("http://127.0.0.1:8081/readyz").unwrap(), ("127.0.0.1", 8081));
        assert!(host_and_port("https://localhost:1").is_err());
        assert!(host_and_port("http://localhost").is_err());
    }

    #[test]
    fn a_report_does_not_tell_where_the_program_is() {
        assert_eq!(without_folder("/a/b/manager --config /etc/c"), "manager --config /etc/c");
        assert_eq!(without_folder("manager --config /etc/c"), "manager --config /etc/c");
    }

    #[test]
    fn a_baseline_gets_the_same_arguments() {
        let old = Path::new("/old/slurm-operator");
        assert_eq!(with_program("/new/slurm-operator manager --a b", old), "/old/slurm-operator manager --a b");
        assert_eq!(with_program("manager", old), "/old/slurm-operator");
    }

    #[test]
    fn operators_take_turns_at_being_first() {
        let all: Vec<Vec<usize>> = (1..=3).map(|number| order(2, number)).collect();
        assert_eq!(all, [[0, 1], [1, 0], [0, 1]]);
        assert_eq!(order(1, 2), [0]);
    }

    #[test]
    fn only_new_calls_count() {
        let counts = |list: &[(&str, u64)]| list.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect();
        let (now, before) = (counts(&[("a", 5), ("b", 2), ("c", 1)]), counts(&[("a", 3), ("b", 2)]));
        assert_eq!(newer(&now, &before), [("a".to_owned(), 2), ("c".to_owned(), 1)].into());
    }

    #[tokio::test]
    async fn readiness_is_an_answer_of_200() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/readyz", listener.local_addr().unwrap());
        let server = async {
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let read = stream.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"GET /readyz HTTP/1.1\r\n"));
                stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await.unwrap();
            }
        };
        let client = async { [is_ready(&url).await.unwrap(), is_ready(&url).await.unwrap()] };
        let (answers, ()) = tokio::join!(client, server);
        assert_eq!(answers, [false, true]);
    }
}
