//! `slurm-operator webhook`: refuses wrong objects when they are created or changed, and tells workers their topology.
//!
//! Nothing depends on it: the operator validates every object itself, and reports what is wrong as a condition.

mod binding;
mod keeper;
mod metrics;
mod review;
mod routes;
mod validate;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use kube::{Client, Config};
use tokio::net::TcpListener;

pub use keeper::{Keeper, Source};
pub use metrics::Metrics;

use crate::{
    access::Access,
    certificates::{
        Current, Lifetimes,
        tls::{self, TlsListener},
    },
    health::{Readiness, guarded, listen, probes, serve},
    process::{address, signals},
    telemetry::{LogArgs, start_log},
};
use routes::Context as Handlers;

/// How long the API server may still send new calls after the pod was told to end.
const LEAVE: Duration = Duration::from_secs(5);

/// How long calls in progress may then take.
const FINISH: Duration = Duration::from_secs(10);

/// Flags of `slurm-operator webhook`.
#[derive(Args, Debug)]
pub struct WebhookArgs {
    /// Address of the HTTPS server that the API server calls
    #[arg(long, default_value = ":9443", value_parser = address)]
    pub server_addr: SocketAddr,
    /// Address of the health server (/healthz, /readyz)
    #[arg(long, default_value = ":8081", value_parser = address)]
    pub health_addr: SocketAddr,
    /// Address of the metrics server (/metrics); 0 disables it
    #[arg(long, default_value = "0", value_parser = address)]
    pub metrics_addr: SocketAddr,
    /// Serve metrics over HTTPS, with the certificate of the webhook, to users that Kubernetes lets read them
    #[arg(long)]
    pub metrics_secure: bool,
    /// Secret for certificates that the webhook manages itself; without it, they are read from --certificate-dir
    #[arg(long, value_name = "NAME", requires = "dns_names")]
    pub certificate_secret: Option<String>,
    /// Folder with tls.crt and tls.key, for example from cert-manager
    #[arg(long, value_name = "DIR", default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub certificate_dir: PathBuf,
    /// Comma-separated list of DNS names of the webhook's Service
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub dns_names: Vec<String>,
    /// Namespace of the Secret; defaults to that of the pod
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// `ValidatingWebhookConfiguration` to write the certificate authority to
    #[arg(long, value_name = "NAME")]
    pub validating_configuration: Option<String>,
    /// `MutatingWebhookConfiguration` to write the certificate authority to
    #[arg(long, value_name = "NAME")]
    pub mutating_configuration: Option<String>,
    /// Flags of the Go operator
    #[command(flatten)]
    pub compatible: CompatibleArgs,
    /// Logging options
    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of the Go operator's webhook that are accepted, because charts and scripts pass them, and ignored.
#[derive(Args, Debug)]
pub struct CompatibleArgs {
    /// All replicas serve; the first one that finds a certificate due renews it
    #[arg(long, hide = true)]
    pub leader_elect: bool,
    /// There is no leader election
    #[arg(long, hide = true)]
    pub leader_elect_namespace: Option<String>,
    /// The webhook configurations say which namespaces are checked
    #[arg(long, hide = true)]
    pub namespaces: Option<String>,
    /// Everything is served over HTTP/1 only
    #[arg(long, hide = true)]
    pub enable_http2: bool,
}

/// Runs until a termination signal or an unrecoverable error.
pub fn run(args: &WebhookArgs) -> Result<()> {
    start_log(&args.log)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(start(args))
}

async fn start(args: &WebhookArgs) -> Result<()> {
    let config = Config::infer().await.context("cannot find a Kubernetes cluster (KUBECONFIG, or run in a pod)")?;
    let own_namespace = config.default_namespace.clone();
    let client = Client::try_from(config).context("cannot create the Kubernetes client")?;
    let source = match &args.certificate_secret {
        None => Source::Files(args.certificate_dir.clone()),
        Some(secret) => Source::Secret(Box::new(Keeper {
            client: client.clone(),
            namespace: args.namespace.clone().unwrap_or(own_namespace),
            secret: secret.clone(),
            names: args.dns_names.clone(),
            validating: args.validating_configuration.clone(),
            mutating: args.mutating_configuration.clone(),
            lifetimes: Lifetimes::default(),
        })),
    };
    let (readiness, metrics, current) = (Readiness::default(), Metrics::default(), Current::default());
    let listener = listen(args.server_addr).await?;
    let metrics_server = async {
        if args.metrics_addr.port() == 0 {
            return std::future::pending().await;
        }
        let pages = metrics::pages(metrics.clone());
        if !args.metrics_secure {
            return serve(args.metrics_addr, pages).await;
        }
        let pages = guarded(pages, readiness.clone(), Access::new(client.clone()));
        tls::serve(listen(args.metrics_addr).await?, current.clone(), pages).await
    };
    let leave = async {
        let signalled = signals().await;
        // Until the Service has lost this pod everywhere, it is still called.
        readiness.expect("shutting down");
        tokio::time::sleep(LEAVE).await;
        tracing::info!("stopping");
        signalled
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "started");
    tokio::select! {
        served = serve_reviews(listener, client.clone(), metrics.clone(), current.clone(), leave) => served,
        served = serve(args.health_addr, probes(readiness.clone())) => served,
        served = metrics_server => served,
        () = source.keep(&current, &readiness) => Ok(()),
    }
}

/// Answers the API server until `stop`, and then finishes what has begun.
pub async fn serve_reviews(
    listener: TcpListener,
    client: Client,
    metrics: Metrics,
    current: Current,
    stop: impl Future<Output = Result<()>>,
) -> Result<()> {
    let router = routes::router(Handlers { client, metrics });
    let (ended, mut stopped) = tokio::sync::watch::channel(false);
    let stopping = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let server = axum::serve(TlsListener::new(listener, current)?, router).with_graceful_shutdown(stopping);
    let mut server = tokio::spawn(server.into_future());
    let result = tokio::select! {
        stopped = stop => stopped,
        ended = &mut server => return ended.context("the HTTPS server panicked")?.context("the HTTPS server stopped"),
    };
    ended.send_replace(true);
    let _ = tokio::time::timeout(FINISH, server).await;
    result
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};

    #[test]
    fn flags_of_the_go_webhook_are_accepted() {
        let line = "slurm-operator webhook --server-addr :9443 --health-addr :8081 --metrics-addr 0 --leader-elect \
                    --leader-elect-namespace ns --namespaces a,b --enable-http2 --zap-log-level info";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Webhook(args) = cli.command else { panic!("{cli:?}") };
        assert_eq!((args.server_addr.port(), args.metrics_addr.port(), args.certificate_secret), (9443, 0, None));
        let unnamed = Cli::try_parse_from(["slurm-operator", "webhook", "--certificate-secret", "tls"]).unwrap_err();
        assert!(unnamed.to_string().contains("--dns-names"), "{unnamed}");
    }
}
