//! Writes to Slurm.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::Arc,
    time::Instant,
};

use engine::{
    plan::{SlurmCall, SlurmWrite},
    podset::Written,
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use slurm::{
    client::{Answer, Client as Slurm, Error},
    hostlist,
    states::NodeStates,
    wire::{Node, NodeUpdate},
};

use super::{View, Views};
use crate::{
    failure::{Failure, FailureSource},
    lock::lock,
};

/// Maximum concurrent calls for single nodes.
const CONCURRENCY: usize = 8;

/// Up to this many nodes (in a large cluster, one in a hundred) are checked with single calls; for more, the poller
/// lists all nodes at once.
const FEW: usize = 4;
const FEW_OF: usize = 100;

impl Views {
    /// Performs a write. Fails immediately while Slurm is known to be unreachable; the poller notices when it is
    /// back.
    pub async fn run(&self, write: &SlurmWrite) -> Result<(), Failure> {
        let failure = |source| Failure { action: "updating", object: title(write), source };
        let away = |why: String| failure(FailureSource::NoSlurm(why));
        let Some(view) = self.view(&write.cluster) else {
            return Err(away("no connection to this Slurm cluster yet".to_owned()));
        };
        let client = {
            let state = lock(&view.state);
            match (&state.problem, &state.client) {
                (Some((_, why)), _) => return Err(away(why.clone())),
                (None, Some(client)) => client.clone(),
                (None, None) => return Err(away("not connected to slurmrestd yet".to_owned())),
            }
        };
        let result = self.perform(&view, &client, &write.call).await;
        // Poll soon, also after a failure: a write that timed out may have succeeded.
        view.poll_soon.notify_one();
        result.map_err(|error| {
            if error.is_outage() {
                lock(&view.state).problem = Some((Timestamp::now(), describe(&error)));
            }
            failure(FailureSource::Slurm(Box::new(error)))
        })
    }

    async fn perform(&self, view: &View, client: &Slurm, call: &SlurmCall) -> Result<(), Error> {
        match call {
            SlurmCall::Update { nodes, change } => self.update(view, client, nodes, change).await,
            SlurmCall::Forget { node } => {
                let done = self.timed("delete_node", client.delete_node(node)).await;
                view.wrote([node], &Written::Other);
                absent_is_fine(done)
            }
            SlurmCall::Requeue { job } => self.timed("requeue_job", client.requeue_job(*job)).await.map(drop),
            SlurmCall::Reserve(reservation) => {
                self.timed("write_reservation", client.write_reservation(reservation)).await.map(drop)
            }
            SlurmCall::Unreserve { name } => {
                absent_is_fine(self.timed("delete_reservation", client.delete_reservation(name)).await)
            }
            SlurmCall::Cancel { job } => absent_is_fine(self.timed("cancel_job", client.cancel_job(*job)).await),
        }
    }

    /// Updates several nodes in one call. Slurm rejects the whole call if one of them is unknown; then each node is
    /// updated on its own, and a missing node needs no change.
    async fn update(&self, view: &View, client: &Slurm, nodes: &[String], change: &NodeUpdate) -> Result<(), Error> {
        let what = change.drain_reason().map_or(Written::Other, |reason| Written::Drain { reason: reason.to_owned() });
        let what = &what;
        let checked;
        let nodes = if change.has_state() {
            checked = self.unchanged(view, client, nodes).await?;
            if checked.len() < nodes.len() {
                let written: HashSet<&String> = checked.iter().collect();
                let left = nodes.iter().filter(|node| !written.contains(node)).map(String::as_str);
                let left = hostlist::text(left);
                tracing::info!(cluster = %view.cluster, "left alone in Slurm, because they have changed: {left}");
            }
            checked.as_slice()
        } else {
            nodes
        };
        if nodes.len() > 1 {
            let done = self.timed("update_nodes", client.update_nodes(nodes.iter().cloned(), change)).await;
            view.wrote(nodes, what);
            match done {
                Err(error) if error.is_outage() => return Err(error),
                Err(_) => {}
                Ok(_) => return Ok(()),
            }
        }
        let calls: Vec<_> = nodes
            .iter()
            .map(|node| async move {
                let done = self.timed("update_node", client.update_node(node, change)).await;
                view.wrote([node], what);
                absent_is_fine(done)
            })
            .collect();
        let results: Vec<_> = stream::iter(calls).buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect()
    }

    /// The nodes whose state (drain, down) and reason are as the plan knew them. Slurm has no preconditions: if an
    /// admin drained a node since the last list, our write would overwrite the admin's reason.
    async fn unchanged(&self, view: &View, client: &Slurm, nodes: &[String]) -> Result<Vec<String>, Error> {
        let known = Arc::clone(&lock(&view.state).nodes);
        let fresh: HashMap<String, (String, NodeStates)> = if nodes.len() <= FEW.max(known.len() / FEW_OF) {
            let calls: Vec<_> = nodes.iter().map(|node| self.timed("node", client.node(node))).collect();
            let found: Vec<_> = stream::iter(calls).buffer_unordered(CONCURRENCY).collect().await;
            let found = found.into_iter().filter(|found| !matches!(found, Err(e) if e.is_not_found()));
            let essence = |Answer { body: node, .. }: Answer<Node>| (node.name, (node.reason, node.state));
            found.map(|found| found.map(essence)).collect::<Result<_, _>>()?
        } else {
            let all = view.read_anew().await.unwrap_or_default();
            let essence = |name: &String| all.get(name).map(|node| (node.reason.clone(), node.states.clone()));
            nodes.iter().filter_map(|name| Some((name.clone(), essence(name)?))).collect()
        };
        let is_same = |name: &&String| match (known.get(*name), fresh.get(*name)) {
            (Some(known), Some((reason, states))) => {
                let service = |states: &NodeStates| (states.is_drain(), states.is_down());
                known.reason == *reason && service(&known.states) == service(states)
            }
            _ => false,
        };
        Ok(nodes.iter().filter(is_same).cloned().collect())
    }

    /// Runs a call and records its duration and outcome.
    pub(super) async fn timed<T>(
        &self,
        call: &'static str,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let result = future.await;
        self.0.metrics.slurm_call(call, start.elapsed(), result.as_ref().err().map(Error::class));
        result
    }
}

impl View {
    /// Marks these nodes as written: the last list, and any list in progress, predates this write.
    fn wrote<'a>(&self, nodes: impl IntoIterator<Item = &'a String>, what: &Written) {
        let mut state = lock(&self.state);
        let reads = state.reads;
        state.written.extend(nodes.into_iter().map(|node| (node.clone(), (reads, what.clone()))));
    }
}

fn absent_is_fine<T>(done: Result<T, Error>) -> Result<(), Error> {
    match done {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.map(drop),
    }
}

fn title(write: &SlurmWrite) -> String {
    let what = match &write.call {
        SlurmCall::Update { nodes, .. } => match nodes.as_slice() {
            [one] => format!("node {one}"),
            many => format!("{} nodes", many.len()),
        },
        SlurmCall::Forget { node } => format!("the record of node {node}"),
        SlurmCall::Reserve(_) => "a reservation".to_owned(),
        SlurmCall::Unreserve { name } => format!("reservation {name}"),
        SlurmCall::Requeue { job } | SlurmCall::Cancel { job } => format!("job {job}"),
    };
    format!("{what} of Slurm cluster {}", write.cluster.name)
}

/// An error with its causes, in one line.
pub(super) fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text
}
