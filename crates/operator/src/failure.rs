//! Reads and writes that failed.

use std::{future::Future, time::Duration};

use slurm_operator_api::common::conditions::reason;
use thiserror::Error;

use crate::random::NoRandomness;

/// Timeout of a call to the API server.
const CALL: Duration = Duration::from_secs(10);

/// A read or write that failed.
#[derive(Debug, Error)]
#[error("{action} {object}")]
pub struct Failure {
    /// The action, for example `applying` or `deleting`.
    pub action: &'static str,
    /// The object, for example `Secret slurm/token`.
    pub object: String,
    #[source]
    pub source: FailureSource,
}

/// The cause of a failure.
#[derive(Debug, Error)]
pub enum FailureSource {
    /// The API server rejected the call, or could not be reached.
    #[error("{}", in_short(.0))]
    Kube(Box<kube::Error>),
    /// The API server or a kubelet did not respond in this time.
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
    /// An object of this name exists and has another owner.
    #[error("an object of this name already exists and has another owner: delete it, or choose another name")]
    Taken,
    /// Slurm rejected the call, or could not be reached.
    #[error(transparent)]
    Slurm(Box<slurm::client::Error>),
    /// What was to be written to in Slurm is no longer as the plan saw it.
    #[error("it has changed in Slurm")]
    Changed,
    /// Slurm is known to be unreachable.
    #[error("{0}")]
    NoSlurm(String),
    /// A command in a pod failed; the text is what it wrote.
    #[error("{0}")]
    Command(String),
    /// The system provided no randomness for a key.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

/// The message of the API server, without the other fields of its status.
fn in_short(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

impl Failure {
    /// Whether the namespace is being terminated: nothing can be created there, and nothing needs to be.
    pub fn is_of_terminating_namespace(&self) -> bool {
        let FailureSource::Kube(error) = &self.source else { return false };
        let kube::Error::Api(status) = &**error else { return false };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// Whether the API server does not know the kind, or does not let us use it.
    pub fn is_of_unknown_kind(&self) -> bool {
        let FailureSource::Kube(error) = &self.source else { return false };
        // Where there is no such path, the answer is a plain text without a reason.
        matches!(&**error, kube::Error::Api(status) if matches!(status.code, 403 | 404))
    }

    /// The class of the failure, for metrics and condition reasons: one of a fixed set.
    pub fn class(&self) -> &'static str {
        match &self.source {
            FailureSource::Timeout(_) => "Timeout",
            FailureSource::Taken => "NameTaken",
            FailureSource::Changed => "Conflict",
            FailureSource::NoRandomness(_) => "NoRandomness",
            FailureSource::Command(_) => "CommandFailed",
            FailureSource::NoSlurm(_) => reason::SLURM_UNREACHABLE,
            FailureSource::Slurm(error) if error.is_outage() => reason::SLURM_UNREACHABLE,
            FailureSource::Slurm(_) => "SlurmRefused",
            FailureSource::Kube(error) => match &**error {
                kube::Error::Api(status) if status.is_conflict() => "Conflict",
                kube::Error::Api(status) if status.is_forbidden() => "Forbidden",
                kube::Error::Api(status) if status.is_invalid() => "Invalid",
                kube::Error::Api(status) if status.is_not_found() => "NotFound",
                kube::Error::Api(_) => "Refused",
                _ => "Unreachable",
            },
        }
    }

    pub fn is_already_there(&self) -> bool {
        matches!(&self.source, FailureSource::Kube(error) if matches!(&**error, kube::Error::Api(status) if status.is_already_exists()))
    }

    /// Whether it is unknown if the write took effect.
    pub fn is_unanswered(&self) -> bool {
        match &self.source {
            FailureSource::Timeout(_) => true,
            FailureSource::Kube(error) => !matches!(&**error, kube::Error::Api(_)),
            FailureSource::Taken
            | FailureSource::Changed
            | FailureSource::Slurm(_)
            | FailureSource::NoSlurm(_)
            | FailureSource::Command(_)
            | FailureSource::NoRandomness(_) => false,
        }
    }

    /// The error with its causes, in one line.
    pub fn text(&self) -> String {
        let mut text = format!("{self}: {}", self.source);
        let mut cause = std::error::Error::source(&self.source);
        while let Some(deeper) = cause {
            let deeper_text = deeper.to_string();
            if !text.contains(&deeper_text) {
                text = format!("{text}: {deeper_text}");
            }
            cause = deeper.source();
        }
        text
    }
}

/// Calls the API server with a timeout, and adds the action and object to a failure.
pub async fn call<T>(
    action: &'static str,
    object: impl FnOnce() -> String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    let source = match tokio::time::timeout(CALL, call).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => FailureSource::Kube(Box::new(error)),
        Err(_) => FailureSource::Timeout(CALL),
    };
    Err(Failure { action, object: object(), source })
}
