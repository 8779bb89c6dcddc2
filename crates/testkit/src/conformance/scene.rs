//! Shared by the cases: a client, and nodes in a known state.

use std::time::Duration;

use anyhow::{Context, ensure};
use slurm::client::{Client, ClientBuilder, Error};
use slurm::wire::{Job, JobSpec, Node, NodeUpdate};

use super::Target;
use crate::wait_for;

/// Long enough for slurmctld: it runs its scheduler only every few seconds, and a job that is cancelled before its
/// script has started stays completing until slurmctld contacts the node again, which may take more than a minute.
pub(super) const SOON: Duration = Duration::from_mins(3);

/// A client connected to a target.
pub(super) struct Scene {
    pub client: Client,
    pub nodes: [String; 2],
}

impl Scene {
    /// Connects and brings both nodes into service.
    pub(super) async fn open(target: &dyn Target) -> anyhow::Result<Self> {
        let scene = Self { client: connect(target).await?, nodes: target.nodes() };
        for name in &scene.nodes {
            scene.in_service(name).await?;
        }
        Ok(scene)
    }

    /// The first of the two nodes.
    pub(super) fn node_name(&self) -> &str {
        let [first, _] = &self.nodes;
        first
    }

    pub(super) async fn node(&self, name: &str) -> anyhow::Result<Node> {
        Ok(self.client.node(name).await?.body)
    }

    /// Waits until a node matches.
    pub(super) async fn node_is(&self, name: &str, what: &str, wanted: impl Fn(&Node) -> bool) -> anyhow::Result<Node> {
        wait_for(&format!("{name} to be {what}"), SOON, async || {
            let node = self.node(name).await?;
            ensure!(wanted(&node), "{} {:?}", node.state, node.reason);
            Ok(node)
        })
        .await
    }

    /// Lifts a drain, resumes from down, and waits until jobs could start.
    pub(super) async fn in_service(&self, name: &str) -> anyhow::Result<Node> {
        let node = self.node(name).await?;
        if node.state.is_down() {
            self.client.update_node(name, &NodeUpdate::new().resume()).await?;
        } else if node.state.is_drain() {
            self.client.update_node(name, &NodeUpdate::new().undrain()).await?;
        }
        self.node_is(name, "in service and idle", |node| node.state.is_available() && node.state.is_idle()).await
    }

    /// Submits a job that sleeps on the first node, and waits until it runs.
    pub(super) async fn running_job(&self) -> anyhow::Result<Job> {
        let spec = sleeper("runs").on([self.node_name()]).requeueable();
        let id = self.client.submit(&spec).await?.job_id;
        self.job_is(id, "running", |job| job.job_state.is_running()).await
    }

    /// Waits until a job matches.
    pub(super) async fn job_is(&self, id: u32, what: &str, wanted: impl Fn(&Job) -> bool) -> anyhow::Result<Job> {
        wait_for(&format!("job {id} to be {what}"), SOON, async || {
            let job = self.client.job(id).await?.body;
            ensure!(wanted(&job), "{} because of {:?} on {:?}", job.job_state, job.state_reason, job.nodes);
            Ok(job)
        })
        .await
    }

    /// Cancels a job and waits until it is cleaned up.
    pub(super) async fn clear(&self, id: u32) -> anyhow::Result<Job> {
        self.client.cancel_job(id).await?;
        self.job_is(id, "over", |job| job.job_state.is_finished()).await
    }
}

/// A client with the target's version and tokens.
pub(super) async fn connect(target: &dyn Target) -> anyhow::Result<Client> {
    builder(target)?.connect().await.context("cannot connect")
}

/// The builder for it, for other settings.
pub(super) fn builder(target: &dyn Target) -> anyhow::Result<ClientBuilder> {
    let builder = Client::builder(&target.url()).auth(target.auth()?);
    Ok(match target.rest_version() {
        Some(rest) => builder.rest_version(rest),
        None => builder,
    })
}

/// A job that runs for five minutes.
pub(super) fn sleeper(name: &str) -> JobSpec {
    JobSpec::new(format!("conformance-{name}"), "#!/bin/sh\nsleep 300\n").tasks(1, 1).time_limit(10)
}

/// Checks that a call failed with this error class.
pub(super) fn fails_with<T>(class: &str, what: &str, outcome: Result<T, Error>) -> anyhow::Result<Error> {
    match outcome {
        Ok(_) => anyhow::bail!("{what} should fail with {class}"),
        Err(error) if error.class() == class => Ok(error),
        Err(error) => Err(anyhow::Error::new(error).context(format!("{what} should fail with {class}"))),
    }
}
