//! `bench exporter`: what reads and scrapes cost, on the fake slurmrestd.

use std::{net::Ipv4Addr, path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use jiff::Timestamp;
use testkit::{
    slurmrestd::{Cluster, JobSpec, Machine, Options, Settings, Slurmrestd},
    wait_for,
};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};

use crate::{budget::Verdict, probe, process::Operator, table};

/// Options of `bench exporter`.
#[derive(Args, Debug)]
pub struct ExporterArgs {
    /// Number of Slurm nodes
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Number of jobs: one runs on each node, the others wait
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    jobs: u32,
    /// Number of reads that are measured
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    reads: u32,
    /// Command that starts the exporter; by default a release build of this one
    #[arg(long, env = "BENCH_EXPORTER", value_name = "COMMAND")]
    exporter: String,
    /// File for the log of the exporter
    #[arg(long, env = "BENCH_LOG", value_name = "FILE")]
    log: PathBuf,
}

/// How often the exporter reads Slurm. Less than the default of 30 s, so that the measurement is short.
const INTERVAL: Duration = Duration::from_secs(10);

/// The limit for the first read of everything.
const STARTED: Duration = Duration::from_mins(2);

/// Scrapes that are measured.
const SCRAPES: u32 = 20;

/// What was measured.
#[derive(Debug)]
struct Measured {
    /// CPU time of a read of everything.
    cpu_seconds: f64,
    /// The slowest scrape.
    scrape_seconds: f64,
    scrape_megabytes: f64,
    peak_megabytes: f64,
    /// Calls to Slurm for each read of everything, with the scrapes.
    calls: f64,
    /// From the end of a job, and of its node, to a scrape without them, in intervals.
    gone: f64,
}

/// Measures, prints a table, and returns whether all budgets are met.
pub async fn run(args: &ExporterArgs) -> Result<bool> {
    let measured = measure(args).await?;
    let verdicts = check(args, &measured);
    println!("{} nodes, {} jobs, {:.0}\n", args.nodes, args.jobs, Timestamp::now());
    println!("{}", table::verdicts(&verdicts));
    Ok(verdicts.iter().all(Verdict::is_met))
}

fn check(args: &ExporterArgs, measured: &Measured) -> Vec<Verdict> {
    let is_small = args.nodes <= 1_000 && args.jobs <= 10_000;
    let is_large = args.nodes <= 10_000 && args.jobs <= 20_000;
    let small = |limit: f64| is_small.then_some(limit);
    let verdict = |budget: &str, value: f64, limit: Option<f64>, unit: &str| Verdict {
        budget: budget.to_owned(),
        value: Some(value),
        limit,
        unit: unit.to_owned(),
    };
    vec![
        verdict("CPU of a read", measured.cpu_seconds, small(1.0), "s"),
        verdict("the slowest scrape", measured.scrape_seconds, small(0.2), "s"),
        verdict("size of a scrape", measured.scrape_megabytes, None, "MB"),
        verdict("peak memory", measured.peak_megabytes, small(60.0).or(is_large.then_some(150.0)), "MB"),
        verdict("calls to Slurm for a read and its scrapes", measured.calls, Some(3.0), ""),
        verdict("intervals until what is gone is not shown", measured.gone, Some(1.5), ""),
    ]
}

async fn measure(args: &ExporterArgs) -> Result<Measured> {
    let slurm = start_slurm(args).await?;
    let (metrics, own) = (free_port().await?, free_port().await?);
    let command = format!(
        "{} --slurm-api-server {} --static-token measured --collection-interval {}s --metrics-bind-address {metrics} \
         --monitoring-bind-address {own}",
        args.exporter,
        slurm.url(),
        INTERVAL.as_secs()
    );
    let mut exporter = Operator::start(&command, &[], &args.log)?;
    wait_for("the first read", STARTED, async || {
        exporter.check()?;
        let answer = probe::get(&format!("http://{metrics}/metrics")).await?;
        let text = String::from_utf8_lossy(&answer);
        let has = |series: &str| text.lines().any(|line| line.starts_with(series));
        ensure!(has("slurm_node_info{") && has("slurm_job_info{") && has("slurm_controller_rpc"), "a part is missing");
        Ok(())
    })
    .await?;

    // From the middle between two reads.
    let reads = || slurm.calls().iter().filter(|(call, _)| call.contains("/diag")).map(|(_, count)| count).sum::<u64>();
    let read = async |count: u64| {
        wait_for("the next read", INTERVAL * 3, async || {
            ensure!(reads() >= count, "{} of {count}", reads());
            Ok(())
        })
        .await?;
        sleep(INTERVAL / 2).await;
        anyhow::Ok(())
    };
    slurm.forget_calls();
    read(1).await?;
    let before = exporter.cpu_seconds()?;
    for number in 1..=args.reads {
        read(u64::from(number) + 1).await?;
    }
    let cpu_seconds = (exporter.cpu_seconds()? - before) / f64::from(args.reads);

    let (mut scrape_seconds, mut size) = (0.0_f64, 0);
    slurm.forget_calls();
    for _ in 0..SCRAPES {
        let began = Instant::now();
        size = probe::get(&format!("http://{metrics}/metrics")).await?.len();
        scrape_seconds = scrape_seconds.max(began.elapsed().as_secs_f64());
    }
    read(1).await?;
    let calls = slurm.calls();
    let all: u64 = calls.values().sum();
    let calls = count(all) / count(reads());

    let gone = gone(&slurm, &format!("http://{metrics}/metrics")).await?;
    let peak_megabytes = exporter.memory()?.peak_rss_mb;
    exporter.stop().await?;
    Ok(Measured {
        cpu_seconds,
        scrape_seconds,
        scrape_megabytes: count(u64::try_from(size)?) / 1e6,
        peak_megabytes,
        calls,
        gone: gone.as_secs_f64() / INTERVAL.as_secs_f64(),
    })
}

/// A count as a number that ratios can be made of. None here is beyond 32 bits.
fn count(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::INFINITY, f64::from)
}

/// How long a node whose record was deleted is shown.
async fn gone(slurm: &Slurmrestd, url: &str) -> Result<Duration> {
    let node = name(0);
    slurm.cluster(|cluster| {
        let jobs: Vec<u32> = cluster.jobs().filter(|job| job.nodes.contains(&node)).map(|job| job.id).collect();
        for job in jobs {
            cluster.finish(job).map_err(|refusal| anyhow!("the job does not end: {refusal:?}"))?;
        }
        cluster.delete_node(&node).map_err(|refusal| anyhow!("the node is not deleted: {refusal:?}"))
    })?;
    let began = Instant::now();
    wait_for("the node to go", INTERVAL * 5, async || {
        let answer = probe::get(url).await?;
        let shown = format!("slurm_node_info{{node_name=\"{node}\"");
        ensure!(!String::from_utf8_lossy(&answer).contains(&shown), "it is still shown");
        Ok(())
    })
    .await?;
    Ok(began.elapsed())
}

async fn start_slurm(args: &ExporterArgs) -> Result<Slurmrestd> {
    let mut cluster = Cluster::new(Settings { epilog: 0, ..Settings::default() }, Timestamp::now().as_second());
    for number in 0..args.nodes {
        cluster.register(&name(number), Machine::default());
    }
    for number in 0..args.jobs {
        let runs = number < args.nodes;
        let required = if runs { vec![name(number)] } else { Vec::new() };
        let job = JobSpec { required, hold: !runs, time_limit: Some(60), ..JobSpec::default() };
        cluster.submit(job).map_err(|refusal| anyhow!("the fake slurmrestd refuses a job: {refusal:?}"))?;
    }
    Slurmrestd::start(cluster, Options::default()).await
}

fn name(number: u32) -> String {
    format!("worker-{number}")
}

/// An address that nothing listens on.
async fn free_port() -> Result<std::net::SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("there is no free port")?;
    Ok(listener.local_addr()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(nodes: u32, jobs: u32) -> ExporterArgs {
        ExporterArgs { nodes, jobs, reads: 1, exporter: String::new(), log: PathBuf::new() }
    }

    fn exceeded(nodes: u32, jobs: u32, change: impl FnOnce(&mut Measured)) -> Vec<String> {
        let mut measured = Measured {
            cpu_seconds: 0.5,
            scrape_seconds: 0.1,
            scrape_megabytes: 5.0,
            peak_megabytes: 50.0,
            calls: 3.0,
            gone: 1.0,
        };
        change(&mut measured);
        let verdicts = check(&args(nodes, jobs), &measured).into_iter();
        verdicts.filter(|verdict| !verdict.is_met()).map(|verdict| verdict.budget).collect()
    }

    #[test]
    fn each_budget_is_enforced() {
        assert_eq!(exceeded(1_000, 10_000, |_| {}), [""; 0]);
        assert_eq!(exceeded(1_000, 10_000, |measured| measured.cpu_seconds = 1.1), ["CPU of a read"]);
        assert_eq!(exceeded(1_000, 10_000, |measured| measured.scrape_seconds = 0.3), ["the slowest scrape"]);
        assert_eq!(exceeded(1_000, 10_000, |measured| measured.peak_megabytes = 61.0), ["peak memory"]);
        assert_eq!(exceeded(10_000, 20_000, |measured| measured.peak_megabytes = 149.0), [""; 0]);
        assert_eq!(exceeded(10_000, 20_000, |measured| measured.peak_megabytes = 151.0), ["peak memory"]);
        assert_eq!(exceeded(1, 1, |measured| measured.calls = 3.1), ["calls to Slurm for a read and its scrapes"]);
        assert_eq!(exceeded(1, 1, |measured| measured.gone = 1.6), ["intervals until what is gone is not shown"]);
    }
}
