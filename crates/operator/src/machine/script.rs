//! Runs a script in a container of a pod.

use std::time::Duration;

use engine::plan::ObjectVersion;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::failure::{Failure, FailureSource, call};

/// The most that is read of the output.
const MAX_OUTPUT: u64 = 4096;

/// A script of the shell, and where it runs.
pub(super) struct Script<'a> {
    pub pod: &'a ObjectVersion,
    pub container: &'a str,
    /// What it is for, as in messages: `changing the keys in`.
    pub action: &'static str,
    pub text: &'static str,
    /// From `$0` on.
    pub arguments: &'a [&'a str],
    /// A kubelet that does not respond in this time is tried again later.
    pub within: Duration,
}

/// What a script has written.
pub(super) struct Output {
    pub text: String,
    errors: String,
}

impl Output {
    /// The errors, for a message.
    pub fn errors(&self) -> String {
        without_ports(self.errors.trim())
    }
}

impl Script<'_> {
    pub async fn run(&self, client: &Client) -> Result<Output, Failure> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), self.pod.namespace.as_deref().unwrap_or_default());
        let params = AttachParams::default().container(self.container).stdout(true).stderr(true);
        let command: Vec<_> = ["/bin/sh", "-c", self.text].iter().chain(self.arguments).copied().collect();
        let output = async {
            let process = pods.exec(&self.pod.name, command, &params);
            Ok(read(call("running a command in", || self.title(), process).await?).await)
        };
        match tokio::time::timeout(self.within, output).await {
            Ok(output) => output,
            Err(_) => Err(self.failure(FailureSource::Timeout(self.within))),
        }
    }

    /// The script ran, and did not do what it should.
    pub fn failed(&self, output: &Output) -> Failure {
        self.failure(FailureSource::Command(output.errors()))
    }

    fn failure(&self, source: FailureSource) -> Failure {
        Failure { action: self.action, object: self.title(), source }
    }

    fn title(&self) -> String {
        format!("Pod {}/{}", self.pod.namespace.as_deref().unwrap_or_default(), self.pod.name)
    }
}

/// What the process writes. If it could not be run, the kubelet says why.
async fn read(mut process: AttachedProcess) -> Output {
    let (stdout, stderr, status) = (process.stdout(), process.stderr(), process.take_status());
    let (text, mut errors) = tokio::join!(text(stdout), text(stderr));
    if errors.is_empty() && text.is_empty() {
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        errors = status.and_then(|status| status.message).unwrap_or_default();
    }
    Output { text, errors }
}

async fn text(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was read before an error is enough for a message.
        let _ = stream.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Removes the numbers of ports: they differ in each attempt, and a status that differs is written.
pub(super) fn without_ports(text: &str) -> String {
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        if digits < 4 { text + ":" + part } else { text + part.get(digits..).unwrap_or_default() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_ports() {
        let text = "read tcp 10.0.0.1:43210->10.0.0.2:10250: i/o timeout at 12:30";
        assert_eq!(without_ports(text), "read tcp 10.0.0.1->10.0.0.2: i/o timeout at 12:30");
    }
}
