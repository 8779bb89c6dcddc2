//! The operator itself: wiring, top to bottom, no logic.

use std::{
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use kube::{
    Api, Client, Config, CustomResourceExt,
    runtime::events::{Recorder, Reporter},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    access::Access,
    certificates::{Current, keep_own, tls},
    frontends::{self, KindVisitor},
    health::{Pages, Readiness, Waiting, all_guarded, listen, serve_health, serve_metrics},
    kube_view::{
        KubeView,
        watches::{self, CustomWatch, Watched},
    },
    lease::{Candidate, Election},
    machine::{self, Kind, KubeEffects, Machine},
    metrics::Metrics,
    process::{address, signals},
    random,
    slurm_view::{self, Views},
    sources::Sources,
    telemetry::{LogArgs, start_log},
    trigger,
};

/// How long reconciles in progress may take after a signal.
const FINISH: Duration = Duration::from_secs(10);

/// Flags of `slurm-operator manager`.
#[derive(Args, Debug)]
pub struct ManagerArgs {
    /// Enable leader election, so that only one of several replicas is active
    #[arg(long, env = "LEADER_ELECT")]
    pub leader_elect: bool,
    /// Namespace of the leader election Lease; defaults to the namespace of the operator
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_namespace: Option<String>,
    /// Address of the health server (/healthz, /readyz)
    #[arg(long, default_value = ":8081", value_parser = address)]
    pub health_addr: SocketAddr,
    /// Address of the metrics server (/metrics); defaults to :8080, or :8443 with --metrics-secure; 0 disables it
    #[arg(long, value_parser = address)]
    pub metrics_addr: Option<SocketAddr>,
    /// Serve metrics over HTTPS, to users that Kubernetes lets read them; also /healthz, /readyz and /debug
    #[arg(long)]
    pub metrics_secure: bool,
    /// Folder with tls.crt and tls.key for --metrics-secure; defaults to a certificate that clients cannot verify
    #[arg(long, value_name = "DIR", requires = "metrics_secure")]
    pub metrics_certificate_dir: Option<PathBuf>,
    /// Comma-separated list of namespaces to watch; defaults to all namespaces
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACES")]
    pub namespaces: Vec<String>,
    /// Comma-separated list of Kubernetes node condition types to include in the drain reason of a worker
    #[arg(long, value_delimiter = ',', value_name = "TYPES")]
    pub propagated_node_conditions: Vec<String>,
    /// Maximum number of concurrent Controller reconciles
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub controller_workers: u16,
    /// Maximum number of concurrent `RestApi` reconciles
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub restapi_workers: u16,
    /// Maximum number of concurrent Accounting reconciles
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub accounting_workers: u16,
    /// Maximum number of concurrent `NodeSet` reconciles
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub nodeset_workers: u16,
    /// Maximum number of concurrent `LoginSet` reconciles
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub loginset_workers: u16,
    /// Maximum number of concurrent Token reconciles
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub token_workers: u16,
    /// Flags of the Go operator
    #[command(flatten)]
    pub compatible: CompatibleArgs,
    /// Logging options
    #[command(flatten)]
    pub log: LogArgs,
}

impl ManagerArgs {
    /// Where metrics are served.
    fn metrics_address(&self) -> SocketAddr {
        let port = if self.metrics_secure { 8443 } else { 8080 };
        self.metrics_addr.unwrap_or(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
    }

    /// The maximum number of concurrent reconciles of a kind.
    fn concurrency(&self, kind: &str) -> u16 {
        match kind {
            "controller" => self.controller_workers,
            "restapi" => self.restapi_workers,
            "accounting" => self.accounting_workers,
            "nodeset" => self.nodeset_workers,
            "loginset" => self.loginset_workers,
            "token" => self.token_workers,
            _ => 4,
        }
    }
}

/// Flags of the Go operator that are accepted, because charts and scripts pass them, and ignored.
#[derive(Args, Debug)]
pub struct CompatibleArgs {
    /// Each Slurm cluster has its own task
    #[arg(long, hide = true)]
    pub slurmclient_workers: Option<u16>,
    /// Health and metrics are served over HTTP/1 only
    #[arg(long, hide = true)]
    pub enable_http2: bool,
    /// There is no profiling server
    #[arg(long, hide = true)]
    pub profile: bool,
    /// There is no profiling server
    #[arg(long, hide = true)]
    pub profile_addr: Option<String>,
    /// The log format is set with `--log-format`
    #[arg(long, hide = true)]
    pub zap_encoder: Option<String>,
    /// The log format is set with `--log-format`
    #[arg(long, hide = true)]
    pub zap_devel: bool,
    /// The log contains no stack traces
    #[arg(long, hide = true)]
    pub zap_stacktrace_level: Option<String>,
    /// Timestamps are always in RFC 3339
    #[arg(long, hide = true)]
    pub zap_time_encoding: Option<String>,
}

/// Runs until a termination signal or an unrecoverable error.
pub fn run(args: &ManagerArgs) -> Result<()> {
    start_log(&args.log)?;
    if args.compatible.profile {
        tracing::warn!("--profile has no effect: use perf or another system profiler");
    }
    // A single thread: the work is mostly waiting for I/O, and moving tasks between threads costs more than it saves.
    // Long computations, such as decoding large lists, run on their own threads.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(start(args))
}

async fn start(args: &ManagerArgs) -> Result<()> {
    let mut config = Config::infer().await.context("cannot find a Kubernetes cluster (KUBECONFIG, or run in a pod)")?;
    let client = Client::try_from(config.clone()).context("cannot create the Kubernetes client")?;
    // Leader election needs short calls without hidden retries, unlike everything else.
    config.default_retry = false;
    let lease_client = Client::try_from(config).context("cannot create the Kubernetes client")?;

    let metrics = Metrics::default();
    let readiness = Readiness::default();
    let election = Election::new(!args.leader_elect);
    let leadership = election.leadership();
    let (stop, stopped) = watch::channel(false);
    let reporter = Reporter { controller: "slurm-operator".into(), instance: std::env::var("POD_NAME").ok() };
    let waiting = Waiting::default();
    let slurm = Views::new(trigger::channel(), metrics.clone());
    let kube = KubeView::new(client.clone(), frontends::vocabularies());
    let sources = Sources::new(kube.clone(), slurm.clone(), &args.propagated_node_conditions);
    let machine = Arc::new(Machine {
        effects: KubeEffects::new(client.clone(), Recorder::new(client.clone(), reporter), slurm.clone()),
        sources,
        leadership: leadership.clone(),
        metrics: metrics.clone(),
        readiness: readiness.clone(),
        waiting: waiting.clone(),
        now: jiff::Timestamp::now,
    });
    let candidate = candidate(args, lease_client)?;
    let scopes = scopes(&args.namespaces);
    let access = Access::new(client.clone());
    let mut kinds = Kinds { machine, args, scopes: &scopes, stopped, drivers: Vec::new(), watches: Vec::new() };
    frontends::visit(&mut kinds);
    let mut reconciling = tokio::spawn(join_all(kinds.drivers));
    // Start the watches only after every receiver has subscribed.
    let watching = watches::watch(
        kube,
        slurm.triggers(),
        metrics.clone(),
        waiting.clone(),
        &scopes,
        &kinds.watches,
        readiness.clone(),
    );
    let polling =
        slurm_view::supervise(slurm.clone(), client, frontends::clusters(), scopes.clone(), leadership.changes());
    let counting = count_leadership(leadership.changes(), metrics.clone());
    let pages = Pages { readiness, metrics, slurm: slurm.clone(), waiting };
    let metrics_server = metrics_server(args, &pages, access);
    let health_server = serve_health(args.health_addr, &pages);
    let servers = async { tokio::try_join!(health_server, metrics_server) };
    let campaign =
        async { if args.leader_elect { candidate.campaign(&election).await } else { std::future::pending().await } };

    tracing::info!(version = env!("CARGO_PKG_VERSION"), "started");
    let result = tokio::select! {
        lost = campaign => lost,
        served = servers => served.map(drop),
        never = counting => never,
        signalled = signals() => signalled,
        () = watching => Err(anyhow!("the watches ended")),
        () = polling => Err(anyhow!("the pollers ended")),
        ended = &mut reconciling => ended.map(drop).context("a controller task panicked"),
    };
    // Finish reconciles in progress; start no new ones.
    stop.send_replace(true);
    finish(reconciling, &election).await;
    if args.leader_elect && result.is_ok() {
        let _ = tokio::time::timeout(Duration::from_secs(3), candidate.resign()).await;
    }
    tracing::info!("stopped");
    result
}

/// Serves `/metrics`, as far as it is wanted.
async fn metrics_server(args: &ManagerArgs, pages: &Pages, access: Access) -> Result<()> {
    let address = args.metrics_address();
    if address.port() == 0 {
        return std::future::pending().await;
    }
    if !args.metrics_secure {
        return serve_metrics(address, pages).await;
    }
    let current = Current::default();
    let serving = tls::serve(listen(address).await?, current.clone(), all_guarded(pages, access));
    let keep = keep_own(args.metrics_certificate_dir.as_deref(), &current, &pages.readiness);
    tokio::select! {
        result = serving => result,
        () = keep => Ok(()),
    }
}

/// Waits until the reconciles in progress have ended. What then still runs is aborted: when the lease is released, another
/// process writes at once.
async fn finish<T>(mut reconciling: JoinHandle<T>, election: &Election) {
    if !reconciling.is_finished() && tokio::time::timeout(FINISH, &mut reconciling).await.is_err() {
        reconciling.abort();
        let _ = reconciling.await;
    }
    election.lost();
}

/// This process in the leader election.
fn candidate(args: &ManagerArgs, client: Client) -> Result<Candidate> {
    Ok(Candidate {
        api: match &args.leader_elect_namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::default_namespaced(client),
        },
        name: "slurm-operator".into(),
        identity: format!("{}_{}", std::env::var("POD_NAME").unwrap_or_else(|_| "local".into()), random::id()?),
    })
}

/// The scopes to watch: `None` for the whole cluster, otherwise one per namespace.
fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let named: Vec<_> = namespaces.iter().filter(|name| !name.is_empty()).cloned().map(Some).collect();
    if named.is_empty() { vec![None] } else { named }
}

/// Collects the controllers and watches of all kinds.
struct Kinds<'a> {
    machine: Arc<Machine<KubeEffects>>,
    args: &'a ManagerArgs,
    scopes: &'a [Option<String>],
    stopped: watch::Receiver<bool>,
    drivers: Vec<BoxFuture<'static, ()>>,
    watches: Vec<CustomWatch>,
}

impl KindVisitor for Kinds<'_> {
    fn kind<K: Kind>(&mut self) {
        let concurrency = self.args.concurrency(K::NAME);
        for scope in self.scopes {
            let (machine, scope, stopped) = (self.machine.clone(), scope.clone(), self.stopped.clone());
            self.drivers.push(drive::<K>(machine, scope, concurrency, stopped).boxed());
        }
    }

    fn referenced<K: Watched + CustomResourceExt>(&mut self) {
        self.watches.push(watches::custom::<K>);
    }
}

/// Runs the controller of a kind in one scope.
async fn drive<K: Kind>(
    machine: Arc<Machine<KubeEffects>>,
    scope: Option<String>,
    concurrency: u16,
    mut stopped: watch::Receiver<bool>,
) {
    if K::USES_STORES {
        machine.sources.kube.workers.ready().await;
        machine.sources.kube.nodes.ready().await;
    }
    let objects = K::objects(machine.sources.kube.client.clone(), scope.as_deref());
    let stop = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    machine::run::<K, _>(machine, objects, concurrency, stop).await;
}

async fn count_leadership(mut leads: watch::Receiver<bool>, metrics: Metrics) -> Result<()> {
    loop {
        let now = *leads.borrow_and_update();
        metrics.leads(now);
        tracing::info!(leads = now, "leadership changed");
        leads.changed().await.context("the election ended")?;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn flags_of_the_go_operator_are_accepted() {
        let line = "slurm-operator manager --leader-elect --zap-log-level info --zap-encoder json --namespaces a,b \
                    --accounting-workers 4 --loginset-workers 4 --slurmclient-workers 2 --nodeset-workers 4 --profile \
                    --profile-addr localhost:6060 --enable-http2 --propagated-node-conditions A,B";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Manager(args) = cli.command else { panic!("{cli:?}") };
        assert_eq!((args.namespaces.len(), args.propagated_node_conditions.len(), args.nodeset_workers), (2, 2, 4));
    }

    #[test]
    fn metrics_have_another_port_if_they_are_secure() {
        let port = |flags: &str| {
            let line = format!("slurm-operator manager {flags}");
            let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
            let Command::Manager(args) = cli.command else { panic!("{cli:?}") };
            args.metrics_address().port()
        };
        assert_eq!([port(""), port("--metrics-secure"), port("--metrics-addr 0")], [8080, 8443, 0]);
        assert_eq!(port("--metrics-secure --metrics-addr :8080"), 8080, "as the charts of the Go operator say it");
        let plain =
            Cli::try_parse_from(["slurm-operator", "manager", "--metrics-certificate-dir", "/tls"]).unwrap_err();
        assert!(plain.to_string().contains("--metrics-secure"), "{plain}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_lease_is_released() {
        let election = Election::new(true);
        let leadership = election.leadership();
        let stuck = tokio::spawn(std::future::pending::<()>());
        let handle = stuck.abort_handle();
        finish(stuck, &election).await;
        assert!(handle.is_finished() && !leadership.may_write());
        let ended = tokio::spawn(async {});
        tokio::task::yield_now().await;
        finish(ended, &election).await;
    }

    #[test]
    fn no_namespace_means_all() {
        assert_eq!(scopes(&[]), [None]);
        assert_eq!(scopes(&[String::new()]), [None], "an empty flag, as charts render it");
        assert_eq!(scopes(&["a".into(), "b".into()]), [Some("a".into()), Some("b".into())]);
    }
}
