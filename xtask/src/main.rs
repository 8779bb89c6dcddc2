//! `cargo xtask`: a real Kubernetes and a real Slurm on this machine, and the tests that run there.

mod bench;
mod cache;
mod charts;
mod cluster;
mod generate;
mod host;
mod image;
mod install;
mod paths;
mod purity;
mod shell;
mod slurm;
mod test;
mod tools;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::{
    cluster::{Audit, NodeAction, Shape},
    image::Profile,
    paths::Lock,
    shell::Cmd,
    test::TestArgs,
    tools::Kubernetes,
};

#[derive(Parser)]
#[command(name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a local Kubernetes with the operator and a Slurm cluster, and run jobs there
    Up {
        #[command(flatten)]
        shape: ShapeArgs,
        /// The version of Slurm
        #[arg(long, default_value = slurm::NEWEST, value_parser = slurm::versions())]
        slurm: String,
        /// Use this existing cluster instead of a local one
        #[arg(long, env = "KUBECONFIG", value_name = "PATH")]
        kubeconfig: Option<PathBuf>,
    },
    /// End the local Kubernetes and remove every trace
    Down,
    /// Run the tests; every one of them unless some are named
    Test(TestArgs),
    /// Write the files that are made from the code
    Gen {
        /// Only tell which are out of date
        #[arg(long)]
        check: bool,
    },
    /// A local Kubernetes
    #[command(subcommand)]
    Cluster(ClusterTask),
    /// Build the container images, and load them into the running cluster
    Image {
        /// Compile the operator with link-time optimisation, as a released image has it
        #[arg(long)]
        release: bool,
    },
    /// Measure an operator at scale: `cargo xtask bench --help` tells how
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

#[derive(Subcommand)]
enum ClusterTask {
    /// Start it, or find that it runs
    Up(ShapeArgs),
    /// End it and remove every trace, whoever started it
    Down,
    /// What runs
    Status,
    /// Break and mend a node
    Node {
        #[arg(value_enum)]
        action: NodeAction,
        number: u8,
    },
    /// kubectl on this cluster, or on the one that KUBECONFIG names
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// helm on this cluster, or on the one that KUBECONFIG names
    #[command(disable_help_flag = true)]
    Helm {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    #[command(hide = true)]
    OpenVolumes { dir: PathBuf },
}

#[derive(Args)]
struct ShapeArgs {
    /// Real nodes, each with a containerd and a kubelet
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=50))]
    nodes: u8,
    /// Only etcd, API server, controller manager and scheduler
    #[arg(long, conflicts_with = "nodes")]
    control_plane_only: bool,
    /// Nodes that kwok pretends
    #[arg(long, default_value_t = 0, requires = "control_plane_only", value_name = "N")]
    kwok: u32,
    /// What the audit log has
    #[arg(long, value_enum, default_value_t, requires = "control_plane_only")]
    audit: Audit,
}

impl ShapeArgs {
    fn shape(&self) -> Shape {
        if self.control_plane_only {
            Shape::ControlPlane { kwok: self.kwok, audit: self.audit }
        } else {
            Shape::Nodes(self.nodes)
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match shell::catch_signals().and_then(|()| run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Up { shape, slurm, kubeconfig } => match kubeconfig {
            Some(kubeconfig) => up_elsewhere(&kubeconfig),
            None => up(shape.shape(), &slurm),
        },
        Task::Down => cluster::down(&Lock::take()?),
        Task::Test(args) => test::run(&args),
        Task::Gen { check } => generate::run(&paths::checkout()?, check),
        Task::Cluster(task) => run_cluster(task),
        Task::Image { release } => {
            let profile = if release { Profile::Release } else { Profile::Local };
            let _lock = Lock::take()?;
            let mut archives = image::build_slurm()?;
            archives.push(image::build_operator(profile)?);
            cluster::load_images(&archives)
        }
        Task::Bench { args } => bench::run(&args),
    }
}

/// From nothing to a Slurm cluster that has run jobs.
fn up(shape: Shape, slurm: &str) -> Result<()> {
    let lock = Lock::take()?;
    let kubeconfig = cluster::kubeconfig();
    let Shape::Nodes(nodes) = shape else {
        cluster::up(&lock, shape)?;
        install::crds(&kubeconfig)?;
        println!("An API server with our custom resource definitions runs: export KUBECONFIG={}", kubeconfig.display());
        return Ok(());
    };
    image::build_slurm()?;
    let operator = image::build_operator(Profile::Local)?;
    cluster::up(&lock, shape)?;
    // A cluster that ran before has an older one.
    cluster::load_images(std::slice::from_ref(&operator))?;
    install::crds(&kubeconfig)?;
    install::operator(&kubeconfig, &operator)?;
    slurm::up(&kubeconfig, slurm, nodes.min(2))?;
    slurm::what_next(&kubeconfig)
}

/// On somebody's own cluster: only what needs no image, since that cluster can pull none of ours.
fn up_elsewhere(kubeconfig: &Path) -> Result<()> {
    let _lock = Lock::take()?;
    eprintln!("using the existing cluster of {}", kubeconfig.display());
    install::crds(kubeconfig)?;
    println!("The custom resource definitions are installed. docs/getting-started.md tells how to go on from here.");
    Ok(())
}

fn run_cluster(task: ClusterTask) -> Result<()> {
    match task {
        ClusterTask::Up(args) => cluster::up(&Lock::take()?, args.shape()),
        ClusterTask::Down => cluster::down(&Lock::take()?),
        ClusterTask::Status => {
            cluster::status();
            Ok(())
        }
        ClusterTask::Node { action, number } => cluster::node(&Lock::take()?, action, number),
        ClusterTask::Kubectl { args } => Err(on_cluster(Kubernetes::build()?.program("kubectl"), args)),
        ClusterTask::Helm { args } => Err(on_cluster(tools::helm()?, args)),
        ClusterTask::OpenVolumes { dir } => cluster::volumes::open_all(&dir),
    }
}

/// Becomes the program, with our kubeconfig unless the user named one.
fn on_cluster(program: PathBuf, args: Vec<OsString>) -> anyhow::Error {
    let cmd = Cmd::new(program).args(args);
    let cmd = if std::env::var_os("KUBECONFIG").is_some() { cmd } else { cmd.env("KUBECONFIG", cluster::kubeconfig()) };
    cmd.exec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_comes_after_bench_is_for_bench() {
        let cli = Cli::try_parse_from(["xtask", "bench", "scale", "--workers", "5", "--help"]).unwrap();
        let Task::Bench { args } = cli.command else { panic!("another task") };
        assert_eq!(args, ["scale", "--workers", "5", "--help"]);
    }

    #[test]
    fn the_audit_log_is_chosen_with_the_shape() {
        let shape = |args: &[&str]| {
            let all = ["xtask", "cluster", "up"].iter().chain(args);
            match Cli::try_parse_from(all).map(|cli| cli.command) {
                Ok(Task::Cluster(ClusterTask::Up(args))) => Some(args.shape()),
                _ => None,
            }
        };
        let counted = ["--control-plane-only", "--kwok", "7", "--audit", "operator"];
        assert_eq!(shape(&counted), Some(Shape::ControlPlane { kwok: 7, audit: Audit::Operator }));
        let usual = shape(&["--control-plane-only"]);
        assert_eq!(usual, Some(Shape::ControlPlane { kwok: 0, audit: Audit::Writes }));
        assert_eq!(shape(&[]), Some(Shape::Nodes(3)));
        assert_eq!(shape(&["--audit", "operator"]), None, "real nodes have the usual one");
    }
}
