//! Writes to Slurm.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use engine::{
    plan::{ClusterKey, JobsOnNodes, ServiceState, SlurmCall, SlurmWrite},
    podset::Written,
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use slurm::{
    client::{Answer, Call, Client as Slurm, Error},
    hostlist,
    states::NodeStates,
    wire::{JobId, Node, NodeUpdate},
};

use super::{LIST, View, Views};
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
        let (view, client) = self.connection(&write.cluster).map_err(failure)?;
        let result = self.perform(&view, &client, &write.call).await;
        // Poll soon, also after a failure: a write that timed out may have succeeded.
        view.poll_soon.notify_one();
        match result {
            Ok(true) => Ok(()),
            Ok(false) => Err(failure(FailureSource::Changed)),
            Err(error) => Err(failure(view.failed(error))),
        }
    }

    /// Reads these nodes once more, and returns those that are still drained as a plan saw them, without jobs. Between the
    /// plan and this read, an admin may have resumed a node, and a job may have started there.
    pub async fn still_drained(
        &self,
        cluster: &ClusterKey,
        nodes: &BTreeMap<&str, &ServiceState>,
    ) -> Result<HashSet<String>, Failure> {
        let object = || format!("{} nodes of Slurm cluster {}", nodes.len(), cluster.name);
        let failure = |source| Failure { action: "reading", object: object(), source };
        let (view, client) = self.connection(cluster).map_err(failure)?;
        let names: Vec<&str> = nodes.keys().copied().collect();
        let fresh = self.read_again(&view, &client, &names).await.map_err(|error| failure(view.failed(error)))?;
        let is_drained = |(name, state): &(&&str, &&ServiceState)| {
            let fresh = fresh.get(**name);
            fresh.is_some_and(|(reason, states)| state.is(reason, states) && states.is_drained())
        };
        let still: HashSet<String> = nodes.iter().filter(is_drained).map(|(name, _)| (*name).to_owned()).collect();
        if still.len() < nodes.len() {
            let left = names.into_iter().filter(|name| !still.contains(*name));
            log_changed(&view, left);
        }
        Ok(still)
    }

    /// The view and the client of a cluster, unless it is known to be unreachable.
    fn connection(&self, cluster: &ClusterKey) -> Result<(Arc<View>, Slurm), FailureSource> {
        let away = |why: &str| FailureSource::NoSlurm(why.to_owned());
        let view = self.view(cluster).ok_or_else(|| away("no connection to this Slurm cluster yet"))?;
        let client = {
            let state = lock(&view.state);
            match (&state.problem, &state.client) {
                (Some((_, why)), _) => return Err(away(why)),
                (None, Some(client)) => client.clone(),
                (None, None) => return Err(away("not connected to slurmrestd yet")),
            }
        };
        Ok((view, client))
    }

    /// Returns false if the plan depends on a write that was not made, because the plan saw something else.
    async fn perform(&self, view: &View, client: &Slurm, call: &SlurmCall) -> Result<bool, Error> {
        let done = match call {
            SlurmCall::SetState { nodes, change } => self.set_state(view, client, nodes, change).await,
            SlurmCall::Update { node, change } => self.update(view, client, std::slice::from_ref(node), change).await,
            SlurmCall::Forget { node, state } => return self.forget_node(view, client, node, state).await,
            SlurmCall::Requeue(jobs) => self.end_jobs(view, client, jobs, true).await,
            SlurmCall::Cancel(jobs) => self.end_jobs(view, client, jobs, false).await,
            SlurmCall::Reserve(reservation) => {
                self.timed("write_reservation", client.write_reservation(reservation)).await.map(drop)
            }
            SlurmCall::Unreserve { name } => {
                absent_is_fine(self.timed("delete_reservation", client.delete_reservation(name)).await)
            }
        };
        done.map(|()| true)
    }

    /// Deletes a node record, if the node is still as the plan saw it and no job names it. Returns false if not.
    async fn forget_node(
        &self,
        view: &View,
        client: &Slurm,
        node: &String,
        state: &ServiceState,
    ) -> Result<bool, Error> {
        // Lists are large: this is the last one, not a new one for each node.
        let is_named = || lock(&view.state).jobs.as_ref().is_none_or(|list| list.jobs.names(node));
        let fresh = self.read_again(view, client, &[node]).await?;
        let is_same = |(reason, states): &(String, NodeStates)| state.is(reason, states);
        // The next list must be a full one: slurmctld does not count a deleted node as a change.
        view.nodes_written.store(true, Ordering::Relaxed);
        if fresh.get(node).is_some_and(|fresh| !is_same(fresh)) || is_named() {
            log_changed(view, std::iter::once(node.as_str()));
            return Ok(false);
        }
        let done = self.timed("delete_node", client.delete_node(node)).await;
        if !is_refused(&done) {
            view.wrote([node], &Written::Other);
        }
        absent_is_fine(done).map(|()| true)
    }

    /// Requeues or cancels jobs, if their nodes are still as the plan saw them. An admin may have resumed one.
    async fn end_jobs(&self, view: &View, client: &Slurm, jobs: &JobsOnNodes, requeue: bool) -> Result<(), Error> {
        view.jobs_changed.store(true, Ordering::Relaxed);
        let names: Vec<&str> = jobs.nodes.keys().map(String::as_str).collect();
        let fresh = self.read_again(view, client, &names).await?;
        let is_same = |(node, state): &(&String, &ServiceState)| {
            fresh.get(*node).is_some_and(|(reason, states)| state.is(reason, states))
        };
        let (same, changed): (BTreeMap<_, _>, BTreeMap<_, _>) = jobs.nodes.iter().partition(is_same);
        if !changed.is_empty() {
            log_changed(view, changed.into_keys().map(String::as_str));
        }
        let calls: Vec<_> = jobs
            .jobs
            .iter()
            .filter(|(_, node)| same.contains_key(node))
            .map(|(job, node)| self.end_job(view, client, *job, node, requeue))
            .collect();
        let results: Vec<_> = stream::iter(calls).buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect()
    }

    /// Requeues or cancels a job, if it still is on this node. If it was requeued since the list, it would be ended in the queue,
    /// or on a worker that stays.
    async fn end_job(
        &self,
        view: &View,
        client: &Slurm,
        job: JobId,
        node: &String,
        requeue: bool,
    ) -> Result<(), Error> {
        let found = match self.timed("job", client.job_brief(job.id)).await {
            Err(error) if error.is_not_found() => return Ok(()),
            found => found?.body,
        };
        let is_there = || hostlist::expand(&found.nodes).is_ok_and(|nodes| nodes.contains(node));
        if !found.job_state.holds_nodes() || !is_there() {
            tracing::info!(cluster = %view.cluster, %job, "left alone, because it is no longer on {node}");
            return Ok(());
        }
        if !requeue {
            return absent_is_fine(self.timed("cancel_job", client.cancel_job(job)).await);
        }
        match self.timed("requeue_job", client.requeue_job(job)).await {
            // Interactive jobs, and those submitted with --no-requeue. The condition about the timeout names their node.
            Err(error) if !error.is_outage() => {
                tracing::warn!(cluster = %view.cluster, %job, %error, "the job cannot be requeued and keeps running");
                Ok(())
            }
            done => done.map(drop),
        }
    }

    /// Changes the state of the nodes that are still as the plan saw them. Slurm has no preconditions: if an admin
    /// drained a node since, our write would overwrite the admin's reason.
    async fn set_state(
        &self,
        view: &View,
        client: &Slurm,
        nodes: &BTreeMap<String, ServiceState>,
        change: &NodeUpdate,
    ) -> Result<(), Error> {
        let names: Vec<&str> = nodes.keys().map(String::as_str).collect();
        let fresh = self.read_again(view, client, &names).await?;
        let is_same = |(name, state): &(&String, &ServiceState)| {
            fresh.get(*name).is_some_and(|(reason, states)| state.is(reason, states))
        };
        let (same, changed): (Vec<_>, Vec<_>) = nodes.iter().partition(is_same);
        if !changed.is_empty() {
            log_changed(view, changed.into_iter().map(|(name, _)| name.as_str()));
        }
        let same: Vec<String> = same.into_iter().map(|(name, _)| name.clone()).collect();
        self.update(view, client, &same, change).await
    }

    /// Updates several nodes in one call. Slurm rejects the whole call if one of them is unknown; then each node is
    /// updated on its own, and a missing node needs no change.
    async fn update(&self, view: &View, client: &Slurm, nodes: &[String], change: &NodeUpdate) -> Result<(), Error> {
        let what = change.drain_reason().map_or(Written::Other, |reason| Written::Drain { reason: reason.to_owned() });
        let what = &what;
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
                // If what was refused counted as a write, the next read would trigger the same one again, every second. slurmctld
                // may have applied a part of it, such as the comment, which the next list shows.
                if change.has_state() || !is_refused(&done) {
                    view.wrote([node], what);
                }
                absent_is_fine(done)
            })
            .collect();
        let results: Vec<_> = stream::iter(calls).buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect()
    }

    /// Reason and states of these nodes, from a read that starts now. Nodes that do not exist are left out.
    async fn read_again(
        &self,
        view: &View,
        client: &Slurm,
        nodes: &[&str],
    ) -> Result<HashMap<String, (String, NodeStates)>, Error> {
        let all = lock(&view.state).nodes.len();
        if nodes.len() <= FEW.max(all / FEW_OF) {
            let calls: Vec<_> = nodes.iter().map(|node| self.timed("node", client.node(node))).collect();
            let found: Vec<_> = stream::iter(calls).buffer_unordered(CONCURRENCY).collect().await;
            let found = found.into_iter().filter(|found| !matches!(found, Err(e) if e.is_not_found()));
            let essence = |Answer { body: node, .. }: Answer<Node>| (node.name, (node.reason, node.state));
            return found.map(|found| found.map(essence)).collect();
        }
        let all = view.read_anew().await.ok_or(Error::Timeout { call: Call::Nodes, after: LIST })?;
        let essence = |name: &str| all.get(name).map(|node| (node.reason.clone(), node.states.clone()));
        Ok(nodes.iter().filter_map(|name| Some(((*name).to_owned(), essence(name)?))).collect())
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

/// Logs that these nodes were not written to, or their pods not deleted.
fn log_changed<'a>(view: &View, nodes: impl Iterator<Item = &'a str>) {
    let names: Vec<&str> = nodes.collect();
    let folded = hostlist::text(names.iter().copied());
    let objects = (names.len() > 1).then(|| names.join(" "));
    tracing::info!(cluster = %view.cluster, objects, "left alone, because they have changed in Slurm: {folded}");
}

impl View {
    /// Records an outage, so that other calls fail at once.
    fn failed(&self, error: Error) -> FailureSource {
        if error.is_outage() {
            lock(&self.state).problem = Some((Timestamp::now(), describe(&error)));
        }
        if matches!(error, Error::NotOffered { .. }) {
            self.reconnect.notify_one();
        }
        FailureSource::Slurm(Box::new(error))
    }

    /// Marks these nodes as written: the last list, and any list in progress, predates this write.
    fn wrote<'a>(&self, nodes: impl IntoIterator<Item = &'a String>, what: &Written) {
        let mut state = lock(&self.state);
        let reads = state.reads;
        state.written.extend(nodes.into_iter().map(|node| (node.clone(), (reads, what.clone()))));
        self.nodes_written.store(true, Ordering::Relaxed);
    }
}

/// Whether Slurm has answered that it does not want to.
fn is_refused<T>(done: &Result<T, Error>) -> bool {
    matches!(done, Err(Error::Refused { .. }))
}

fn absent_is_fine<T>(done: Result<T, Error>) -> Result<(), Error> {
    match done {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.map(drop),
    }
}

fn title(write: &SlurmWrite) -> String {
    let what = match &write.call {
        SlurmCall::SetState { nodes, .. } => match (nodes.first_key_value(), nodes.len()) {
            (Some((one, _)), 1) => format!("node {one}"),
            (_, many) => format!("{many} nodes"),
        },
        SlurmCall::Update { node, .. } => format!("node {node}"),
        SlurmCall::Forget { node, .. } => format!("the record of node {node}"),
        SlurmCall::Reserve(_) => "a reservation".to_owned(),
        SlurmCall::Unreserve { name } => format!("reservation {name}"),
        SlurmCall::Requeue(jobs) | SlurmCall::Cancel(jobs) => format!("{} jobs", jobs.jobs.len()),
    };
    format!("{what} of Slurm cluster {}", write.cluster.name)
}

/// An error with its causes, in one line.
pub fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use slurm::version::RestVersion;

    use super::*;

    #[test]
    fn a_write_that_is_no_longer_offered_connects_again() {
        let cluster = ClusterKey { group: "example.org", namespace: "ns".to_owned(), name: "slurm".to_owned() };
        let view = View::new(cluster, Timestamp::UNIX_EPOCH);
        let connects = || view.reconnect.notified().now_or_never().is_some();
        view.failed(Error::NotFound { call: Call::UpdateNode, what: "w0".to_owned() });
        assert!(!connects());
        view.failed(Error::NotOffered { call: Call::UpdateNode, rest: RestVersion::V41 });
        assert!(connects());
    }
}
