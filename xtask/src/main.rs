//! `cargo xtask`: a real Kubernetes and a real Slurm on this machine, and the tests that run there.

mod bench;
mod binaries;
mod cache;
mod charts;
mod cluster;
mod docs;
mod generate;
mod host;
mod image;
mod install;
mod monitoring;
mod nebius;
mod paths;
mod permissions;
mod purity;
mod sbom;
mod shell;
mod slurm;
mod test;
mod tools;
mod upgrade;
mod values;

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
        /// The version of Slurm: 24.11, or the one that Debian's unstable suite carries
        #[arg(long, default_value = image::NEWEST, value_name = "VERSION")]
        slurm: String,
        /// Use this existing cluster instead of a local one
        #[arg(long, env = "KUBECONFIG", value_name = "PATH")]
        kubeconfig: Option<PathBuf>,
    },
    /// Stop the local Kubernetes and remove its data
    Down,
    /// Run all tests, or some of them
    Test(TestArgs),
    /// Generate files from the code: CRDs, permissions, renderings of the charts
    Gen {
        /// Only report which are out of date
        #[arg(long)]
        check: bool,
    },
    /// Start, stop and use a local Kubernetes without the operator
    #[command(subcommand)]
    Cluster(ClusterTask),
    /// Build the container images, and load them into the running cluster
    Image {
        /// Compile the operator with link-time optimisation, as a released image has it
        #[arg(long)]
        release: bool,
        /// Only the Slurm images of this API group
        #[arg(long, value_enum, conflicts_with = "release")]
        api: Option<Api>,
    },
    /// Print the software bill of materials of the operator, in the format of `CycloneDX`
    Sbom,
    /// Measure an operator at scale: see `cargo xtask bench --help`
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Api {
    /// slinky.slurm.net
    Slinky,
    /// slurm.nebius.ai
    Nebius,
}

#[derive(Subcommand)]
enum ClusterTask {
    /// Start it, unless it runs already
    Up(ShapeArgs),
    /// Stop it and remove its data, also if another checkout started it
    Down,
    /// Show what is running
    Status,
    /// Stop and start a node or its kubelet
    Node {
        #[arg(value_enum)]
        action: NodeAction,
        number: u8,
    },
    /// Run kubectl on this cluster, or on the one that KUBECONFIG names
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run helm on this cluster, or on the one that KUBECONFIG names
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
    /// Number of nodes, each with a containerd and a kubelet
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=50))]
    nodes: u8,
    /// Only etcd, API server, controller manager and scheduler
    #[arg(long, conflicts_with = "nodes")]
    control_plane_only: bool,
    /// Number of nodes simulated by kwok
    #[arg(long, default_value_t = 0, requires = "control_plane_only", value_name = "N")]
    kwok: u32,
    /// What is written to the audit log
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
        Task::Gen { check } => generate::run(&paths::checkout()?, None, check),
        Task::Cluster(task) => run_cluster(task),
        Task::Image { release, api } => {
            let profile = if release { Profile::Release } else { Profile::Local };
            let _lock = Lock::take()?;
            host::install_packages()?;
            let archives = match api {
                Some(Api::Slinky) => image::build_slurm()?,
                Some(Api::Nebius) => nebius::build_all()?,
                None => shell::parallel(|group| {
                    let images = group.start(image::build_all);
                    let operator = image::build_operator(profile)?;
                    Ok(images.join()?.into_iter().chain([operator]).collect::<Vec<_>>())
                })?,
            };
            cluster::load_images(&archives)
        }
        Task::Sbom => {
            print!("{}", sbom::run(&paths::checkout()?)?);
            Ok(())
        }
        Task::Bench { args } => bench::run(&args),
    }
}

/// Builds everything, starts a cluster, installs the operator and a Slurm cluster, and runs jobs there.
fn up(shape: Shape, slurm: &str) -> Result<()> {
    let lock = Lock::take()?;
    let kubeconfig = cluster::kubeconfig();
    let Shape::Nodes(nodes) = shape else {
        cluster::up(&lock, shape)?;
        install::crds(&kubeconfig)?;
        println!(
            "An API server with the custom resource definitions is running: export KUBECONFIG={}",
            kubeconfig.display()
        );
        return Ok(());
    };
    host::install_packages()?;
    // Images wait for the network, the rest for the compilers.
    let (release, mut archives, operator) = shell::parallel(|group| {
        let slurm = group.start(move || slurm::build_images(slurm));
        let cluster = group.start(move || cluster::build(shape));
        let helm = group.start(tools::helm);
        let operator = image::build_operator(Profile::Local)?;
        let (release, archives) = slurm.join()?;
        cluster.join()?;
        helm.join()?;
        Ok((release, archives, operator))
    })?;
    cluster::up(&lock, shape)?;
    archives.push(operator.clone());
    cluster::load_images(&archives)?;
    install::crds(&kubeconfig)?;
    install::operator(&kubeconfig, &operator)?;
    slurm::up(&kubeconfig, &release.version, nodes.min(2))?;
    slurm::what_next(&kubeconfig)
}

/// On an existing cluster: only what needs no image, since that cluster cannot pull the images that were built here.
fn up_elsewhere(kubeconfig: &Path) -> Result<()> {
    let _lock = Lock::take()?;
    eprintln!("using the existing cluster of {}", kubeconfig.display());
    install::crds(kubeconfig)?;
    println!("The custom resource definitions are installed. To go on from here, see docs/getting-started.md.");
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

/// Executes the program, with the local cluster's kubeconfig unless KUBECONFIG is set.
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
