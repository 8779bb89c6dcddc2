//! The command line.

use std::{
    ffi::{OsStr, OsString},
    io::{ErrorKind, Write},
    path::Path,
};

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::{
    crds,
    explain::{self, ExplainArgs},
    exporter::{self, ExporterArgs},
    get,
    manager::{self, ManagerArgs},
    offline_plan::{self, PlanArgs},
    rbac,
    report::{self, ReportArgs},
    status::{self, StatusArgs},
    webhook::{self, WebhookArgs},
};

/// Runs Slurm on Kubernetes.
///
/// Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "slurm-operator", version)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the custom resource definitions, ready for `kubectl apply --server-side -f -`.
    Crds(CrdsArgs),
    /// Print the RBAC rules that the operator needs: for the namespaces that it watches, and for the cluster.
    #[command(hide = true)]
    Rbac,
    /// Show clusters, daemons, sets and workers as a tree: their states, what they wait for, and what needs a human.
    ///
    /// It needs the rights to get and list the objects of the operator, pods and events; nothing else, and no operator that runs.
    Status(StatusArgs),
    /// Explain why objects are as they are, and why each worker is where it is.
    ///
    /// It needs the same rights as `status`.
    Explain(ExplainArgs),
    /// Collect what is needed to find a problem, without secrets, in one archive: objects, conditions, events, logs, and what Slurm says.
    ///
    /// It reads what you may read, and lists the rest. With the right to read Secrets, what is in them is removed wherever it is
    /// found, and Slurm is asked; with the right to forward ports, also the operator.
    Report(ReportArgs),
    /// Print what the operator would do for the objects in the given files, without a cluster.
    Plan(PlanArgs),
    /// Run the operator.
    Manager(Box<ManagerArgs>),
    /// Run the admission webhook.
    Webhook(Box<WebhookArgs>),
    /// Export the nodes, jobs and statistics of a Slurm cluster as metrics for Prometheus.
    ///
    /// It needs neither the operator nor Kubernetes. The first of these that is given is the source of tokens: --token-file,
    /// --static-token, --standalone, --cluster-name; without one, no token is sent.
    Exporter(Box<ExporterArgs>),
    /// Print a page that is served over plain HTTP, such as `http://localhost:8081/debug/vars`; fail unless the answer is a success.
    ///
    /// For `kubectl exec` and `helm test`: the image contains no other program.
    Get(GetArgs),
}

/// Arguments of `slurm-operator get`.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The page.
    pub url: String,
}

/// Flags of `slurm-operator crds`.
#[derive(Args, Debug)]
pub struct CrdsArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,

    /// The API group whose definitions are printed.
    #[arg(long, value_enum, default_value_t)]
    pub api: ApiGroup,
}

/// API groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ApiGroup {
    /// slinky.slurm.net
    #[default]
    Slinky,
    /// slurm.nebius.ai: only types, nothing acts on them yet.
    Nebius,
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One YAML document per object.
    #[default]
    Yaml,
    /// One JSON List.
    Json,
}

/// What the program was called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Operator,
    /// As `kubectl-slurm`, which is how kubectl runs `kubectl slurm`.
    Plugin,
}

/// What the first argument says that the program was called as.
pub fn program(first: Option<&OsStr>) -> Program {
    let name = first.and_then(|path| Path::new(path).file_name()).unwrap_or_default();
    if name == "kubectl-slurm" { Program::Plugin } else { Program::Operator }
}

impl Program {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "slurm-operator",
            Self::Plugin => "kubectl slurm",
        }
    }
}

/// Subcommands that are not for people with kubectl.
const SERVERS: [&str; 4] = ["manager", "webhook", "exporter", "get"];

/// Parses the command line. All subcommands work in the plugin, too, but only some are shown.
pub fn parse(program: Program, args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    if program == Program::Plugin {
        command = command.bin_name(program.name()).about("Shows and explains Slurm clusters on Kubernetes");
        for name in SERVERS {
            command = command.mut_subcommand(name, |server| server.hide(true));
        }
    }
    Cli::from_arg_matches(&command.try_get_matches_from(args)?)
}

/// Runs the subcommand and writes its output to `out`.
pub fn run(cli: &Cli, out: &mut impl Write) -> anyhow::Result<()> {
    match &cli.command {
        Command::Crds(args) => {
            let crds = match args.api {
                ApiGroup::Slinky => slurm_operator_api::slinky::crds(),
                ApiGroup::Nebius => slurm_operator_api::nebius::crds(),
            };
            let text = match args.output {
                Output::Yaml => crds::all_yaml(&crds)?,
                Output::Json => crds::all_json(&crds)?,
            };
            print(out, &text)
        }
        Command::Rbac => print(out, &(serde_json::to_string_pretty(&rbac::rules())? + "\n")),
        Command::Status(args) => status::run(args, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Report(args) => report::run(args, out),
        Command::Plan(args) => print(out, &offline_plan::run(args)?),
        Command::Manager(args) => manager::run(args),
        Command::Webhook(args) => webhook::run(args),
        Command::Exporter(args) => exporter::run(args),
        Command::Get(args) => print(out, &get::page(&args.url)?),
    }
}

/// A closed pipe (`| head`) is not an error.
fn print(out: &mut impl Write, text: &str) -> anyhow::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write the output"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A writer that always fails with the given error kind.
    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn output(args: &[&str]) -> String {
        let mut out = Vec::new();
        run(&Cli::try_parse_from(args).unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn prints_yaml_by_default() {
        let crds = slurm_operator_api::crds();
        assert_eq!(output(&["slurm-operator", "crds"]), crds::all_yaml(&crds).unwrap());
        assert_eq!(output(&["slurm-operator", "crds", "--output", "yaml"]), crds::all_yaml(&crds).unwrap());
        assert_eq!(output(&["slurm-operator", "crds", "-o", "json"]), crds::all_json(&crds).unwrap());
        assert_eq!(output(&["slurm-operator", "crds", "--api", "slinky"]), crds::all_yaml(&crds).unwrap());
    }

    #[test]
    fn prints_the_second_group_only_if_asked() {
        let crds = slurm_operator_api::nebius::crds();
        assert_eq!(output(&["slurm-operator", "crds", "--api", "nebius"]), crds::all_yaml(&crds).unwrap());
        assert!(!output(&["slurm-operator", "crds"]).contains("slurm.nebius.ai"));
    }

    #[test]
    fn wrong_usage_and_help_have_their_exit_codes() {
        let exit = |args: &[&str]| Cli::try_parse_from(args).unwrap_err().exit_code();
        assert_eq!(exit(&["slurm-operator"]), 2);
        assert_eq!(exit(&["slurm-operator", "crds", "--output", "toml"]), 2);
        assert_eq!(exit(&["slurm-operator", "--help"]), 0);
        let version = Cli::try_parse_from(["slurm-operator", "--version"]).unwrap_err();
        assert_eq!(version.exit_code(), 0);
        assert_eq!(version.to_string().trim(), format!("slurm-operator {}", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn kubectl_runs_it_as_a_plugin() {
        let called = |name: &str| program(Some(OsStr::new(name)));
        assert_eq!(called("/usr/local/bin/kubectl-slurm"), Program::Plugin);
        assert_eq!(called("slurm-operator"), Program::Operator);
        assert_eq!(program(None), Program::Operator);
        let args = |args: &[&str]| args.iter().map(OsString::from).collect::<Vec<_>>();
        let help = parse(Program::Plugin, args(&["kubectl-slurm", "--help"])).unwrap_err().to_string();
        assert!(help.contains("Usage: kubectl slurm <COMMAND>"), "{help}");
        assert!(help.contains("status") && help.contains("explain") && help.contains("report"), "{help}");
        assert!(!help.contains("manager") && !help.contains("webhook"), "{help}");
        let usage = parse(Program::Plugin, args(&["kubectl-slurm", "explain"])).unwrap_err().to_string();
        assert!(usage.contains("Usage: kubectl slurm explain"), "{usage}");
        let parsed = parse(Program::Plugin, args(&["kubectl-slurm", "status", "-n", "slurm", "--watch"])).unwrap();
        let Command::Status(status) = parsed.command else { panic!("another command") };
        assert_eq!((status.connect.namespace.as_deref(), status.watch), (Some("slurm"), true));
        let help = parse(Program::Operator, args(&["slurm-operator", "--help"])).unwrap_err().to_string();
        assert!(help.contains("Usage: slurm-operator <COMMAND>") && help.contains("manager"), "{help}");
    }

    #[test]
    fn only_a_closed_pipe_is_ignored() {
        print(&mut Broken(ErrorKind::BrokenPipe), "text").unwrap();
        let error = print(&mut Broken(ErrorKind::StorageFull), "text").unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write the output: "));
    }
}
