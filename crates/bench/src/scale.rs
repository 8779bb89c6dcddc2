//! `bench scale`: measures sizes, prints tables and checks budgets.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use jiff::Timestamp;

use crate::{
    budget, compare,
    report::{Report, Run, Size},
    run::Runner,
    table,
};

/// Options of `bench scale`.
#[derive(Args, Debug)]
pub struct ScaleArgs {
    /// Number of workers; several numbers, separated by commas, are measured one after the other
    #[arg(long, required = true, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    workers: Vec<u32>,
    /// Command that starts the operator; by default a release build of this one. KUBECONFIG is set in its environment, and DEBUG=1
    /// unless --rest-url is given
    #[arg(long, env = "BENCH_OPERATOR", value_name = "COMMAND")]
    operator: String,
    /// Another build of the operator to compare with: a program that gets the same arguments and environment. Runs of both alternate, and
    /// their figures are printed side by side with ratios
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// Report to which the measurements of the baseline are added; created if it does not exist
    #[arg(long, value_name = "FILE", requires = "baseline")]
    baseline_report: Option<PathBuf>,
    /// URL of slurmrestd to set in the Controller, instead of DEBUG=1. The fake slurmrestd listens on its port
    #[arg(long, value_name = "URL")]
    pub rest_url: Option<String>,
    /// Readiness endpoint of the operator
    #[arg(long, default_value = "http://127.0.0.1:8081/readyz", value_name = "URL")]
    pub ready_url: String,
    /// Folder or file with the custom resource definitions; by default those of this operator
    #[arg(long, env = "BENCH_CRDS", value_name = "PATH")]
    pub crds: PathBuf,
    /// YAML lists of the rules of the operator's cluster role; by default those of this operator
    #[arg(long, env = "BENCH_RULES", value_name = "FILES", value_delimiter = ',')]
    pub rules: Vec<PathBuf>,
    /// Report to which the measurements are added; created if it does not exist
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Number of runs, each on a new cluster; medians are reported
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Number of fake Kubernetes nodes; by default one for each hundred workers
    #[arg(long, value_name = "N")]
    pub nodes: Option<u32>,
    /// Number of unrelated pods in the noise phase
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub noise_pods: u32,
    /// Number of unrelated Secrets in the noise phase
    #[arg(long, default_value_t = 5_000, value_name = "N")]
    pub noise_secrets: u32,
    /// Limit of each phase
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    pub limit: u64,
    /// Print the requests of each phase, too
    #[arg(long)]
    calls: bool,
}

impl ScaleArgs {
    /// Limit of each phase.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }
}

/// An operator to measure, and its report.
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

/// Measures all sizes. Returns whether the operator met all budgets; the baseline is not checked.
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
    let mut all_met = true;
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
        all_met &= size.verdicts.iter().all(budget::Verdict::is_met);
        operator.add(size)?;
    }
    let growth = budget::growth(&operator.report);
    if !growth.is_empty() {
        println!("{}", table::verdicts(&growth));
    }
    Ok(all_met && growth.iter().all(budget::Verdict::is_met))
}

/// Measures each command `--repeat` times; the commands alternate.
async fn measure(args: &ScaleArgs, workers: u32, commands: &[&str]) -> Result<Vec<Size>> {
    let mut runs = vec![Vec::new(); commands.len()];
    for number in 1..=args.repeat {
        for index in order(commands.len(), number) {
            let (Some(command), Some(runs)) = (commands.get(index), runs.get_mut(index)) else { continue };
            eprintln!("• {workers} workers, run {number} of {}: {command}", args.repeat);
            runs.push(Runner::start(args, command, workers).await?.run().await?);
        }
    }
    Ok(runs.into_iter().map(|runs| summarize(workers, runs)).collect())
}

/// The first command of a round changes, so that no command is always measured right after the other.
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
        verdicts: budget::check_all(workers, &runs),
        median,
        runs,
    }
}

/// A command without the folder of its program: reports may be published.
fn without_folder(command: &str) -> &str {
    let program = command.split(' ').next().unwrap_or_default();
    program.rfind('/').and_then(|slash| command.get(slash + 1..)).unwrap_or(command)
}

/// The same command with another program.
fn with_program(command: &str, program: &Path) -> String {
    let arguments = command.split_once(' ').map_or("", |(_, arguments)| arguments);
    format!("{} {arguments}", program.display()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_does_not_contain_the_folder_of_the_program() {
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
    fn the_first_operator_of_a_round_changes() {
        let all: Vec<Vec<usize>> = (1..=3).map(|number| order(2, number)).collect();
        assert_eq!(all, [[0, 1], [1, 0], [0, 1]]);
        assert_eq!(order(1, 2), [0]);
    }
}
