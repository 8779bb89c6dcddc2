//! The operator itself: wiring, top to bottom, no logic.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use futures::future::{join_all, select_all};
use kube::{
    Api, Client, Config,
    runtime::events::{Recorder, Reporter},
};
use slurm_operator_api::Token;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    health::{Readiness, serve_health, serve_metrics},
    kinds::token,
    lease::Candidate,
    machine::{self, Live, Machine},
    metrics::Metrics,
    telemetry::{LogArgs, start_log},
};

/// How the operator runs.
#[derive(Args, Debug)]
pub struct ManagerArgs {
    /// Let several replicas agree on one that acts
    #[arg(long, env = "LEADER_ELECT")]
    pub leader_elect: bool,
    /// Where the Lease is; by default where the operator runs
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_namespace: Option<String>,
    /// Where to serve /healthz and /readyz
    #[arg(long, default_value = ":8081", value_parser = address)]
    pub health_addr: SocketAddr,
    /// Where to serve /metrics; 0 to serve none
    #[arg(long, default_value = ":8080", value_parser = address)]
    pub metrics_addr: SocketAddr,
    /// Look after these namespaces only, separated by commas; by default after all
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACES")]
    pub namespaces: Vec<String>,
    /// Tokens that are worked on at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub token_workers: u16,
    /// How to log
    #[command(flatten)]
    pub log: LogArgs,
}

/// `:8081` means every address, as in the flags of the Go operator.
fn address(text: &str) -> Result<SocketAddr, String> {
    let text = if text == "0" { ":0" } else { text };
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.replace("localhost", "127.0.0.1") };
    full.parse().map_err(|_| format!("`{text}` is not an address like :8081 or 127.0.0.1:8081"))
}

/// Runs until it is told to stop, or can no longer.
pub fn run(args: &ManagerArgs) -> Result<()> {
    start_log(&args.log)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(start(args))
}

async fn start(args: &ManagerArgs) -> Result<()> {
    let mut config = Config::infer().await.context("cannot find a Kubernetes cluster (KUBECONFIG, or run in a pod)")?;
    let client = Client::try_from(config.clone()).context("cannot make a client")?;
    // The lease wants the opposite of everybody else: short calls, no hidden retries.
    config.default_retry = false;
    let lease_client = Client::try_from(config).context("cannot make a client")?;

    let metrics = Metrics::default();
    let readiness = Readiness::default();
    let (leads, leading) = watch::channel(!args.leader_elect);
    let (stop, stopped) = watch::channel(false);
    let reporter = Reporter { controller: "slurm-operator".into(), instance: std::env::var("POD_NAME").ok() };
    let machine = Arc::new(Machine {
        effects: Live::new(client.clone(), Recorder::new(client.clone(), reporter)),
        client,
        leads: leading,
        metrics: metrics.clone(),
        readiness: readiness.clone(),
        now: jiff::Timestamp::now,
    });
    let candidate = Candidate {
        api: match &args.leader_elect_namespace {
            Some(namespace) => Api::namespaced(lease_client, namespace),
            None => Api::default_namespaced(lease_client),
        },
        name: "slurm-operator".into(),
        identity: format!("{}_{}", std::env::var("POD_NAME").unwrap_or_else(|_| "local".into()), uuid::Uuid::new_v4()),
    };
    let workers = args.token_workers;
    let drivers =
        scopes(&args.namespaces).into_iter().map(|scope| tokens(machine.clone(), scope, workers, stopped.clone()));
    let mut reconciling = tokio::spawn(join_all(drivers.collect::<Vec<_>>()));
    let counting = count_leadership(leads.subscribe(), metrics.clone());
    let telling = async {
        if args.metrics_addr.port() == 0 {
            return std::future::pending().await;
        }
        serve_metrics(args.metrics_addr, metrics).await
    };
    let servers = async { tokio::try_join!(serve_health(args.health_addr, readiness), telling) };
    let campaign =
        async { if args.leader_elect { candidate.campaign(&leads).await } else { std::future::pending().await } };

    tracing::info!(version = env!("CARGO_PKG_VERSION"), "started");
    let result = tokio::select! {
        lost = campaign => lost,
        served = servers => served.map(drop),
        never = counting => never,
        signalled = signals() => signalled,
        ended = &mut reconciling => ended.map(drop).context("a driver died"),
    };
    // What is under way is finished, and nothing new begun.
    stop.send_replace(true);
    let _ = tokio::time::timeout(Duration::from_secs(10), reconciling).await;
    if args.leader_elect && result.is_ok() {
        let _ = tokio::time::timeout(Duration::from_secs(3), candidate.resign()).await;
    }
    tracing::info!("stopped");
    result
}

/// Where to look: everywhere, or in each of these namespaces.
fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let named: Vec<_> = namespaces.iter().filter(|name| !name.is_empty()).cloned().map(Some).collect();
    if named.is_empty() { vec![None] } else { named }
}

async fn tokens(machine: Arc<Machine<Live>>, scope: Option<String>, workers: u16, mut stopped: watch::Receiver<bool>) {
    let client = machine.client.clone();
    let secrets = match &scope {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let objects = match &scope {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let stop = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    machine::run::<Token, _, _>(machine, objects, workers, |store| token::wake(secrets, store), stop).await;
}

async fn count_leadership(mut leads: watch::Receiver<bool>, metrics: Metrics) -> Result<()> {
    loop {
        let now = *leads.borrow_and_update();
        metrics.leads(now);
        tracing::info!(leads = now, "leadership");
        leads.changed().await.context("the election ended")?;
    }
}

async fn signals() -> Result<()> {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
    let mut streams =
        kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>().context("cannot watch for signals")?;
    select_all(streams.iter_mut().map(|stream| Box::pin(stream.recv()))).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_leave_out_the_host() {
        assert_eq!(address(":8081").unwrap().to_string(), "0.0.0.0:8081");
        assert_eq!(address("localhost:6060").unwrap().to_string(), "127.0.0.1:6060");
        assert_eq!(address("[::]:80").unwrap().to_string(), "[::]:80");
        assert!(address("8081").unwrap_err().contains("8081"));
    }

    #[test]
    fn no_namespace_means_all() {
        assert_eq!(scopes(&[]), [None]);
        assert_eq!(scopes(&[String::new()]), [None], "an empty flag, as charts render it");
        assert_eq!(scopes(&["a".into(), "b".into()]), [Some("a".into()), Some("b".into())]);
    }
}
