//! Reads writes from the audit log of the local API server.

use std::{env, fs};

use anyhow::{Context, Result};
use jiff::Timestamp;
use testkit::audit::{Entry, entries};

/// A write request, whether or not it was allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub at: Timestamp,
    /// create, update, patch, delete or deletecollection
    pub verb: String,
    /// For example `pods` or `pods/status`.
    pub resource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty if the server generated the name.
    pub name: String,
}

/// Returns the writes of a user since `since`.
pub fn writes_of(user: &str, since: Timestamp) -> Result<Vec<Write>> {
    let path = env::var_os("AUDIT_LOG").context("AUDIT_LOG is not set: run `cargo xtask test --e2e`")?;
    let log = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    read(&log, user, since)
}

fn read(log: &str, user: &str, since: Timestamp) -> Result<Vec<Write>> {
    let entries = entries(log, user)?.into_iter();
    let is_read = |entry: &Entry| ["get", "list", "watch"].contains(&&*entry.verb);
    let complete =
        entries.filter(|entry| entry.stage == "ResponseComplete" && entry.request_received_timestamp >= since);
    Ok(complete.filter(|entry| !is_read(entry)).map(Write::from).collect())
}

impl From<Entry> for Write {
    fn from(entry: Entry) -> Self {
        Self {
            at: entry.request_received_timestamp,
            resource: entry.resource(),
            verb: entry.verb,
            namespace: entry.object_ref.namespace,
            name: entry.object_ref.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_writes_of_a_user_in_a_span() {
        let line = |user: &str, second: u8, object: &str| {
            format!(
                r#"{{"kind":"Event","level":"Metadata","stage":"ResponseComplete","verb":"patch","user":{{"username":"{user}","groups":[]}},"objectRef":{object},"responseStatus":{{"code":200}},"requestReceivedTimestamp":"2026-11-16T00:00:{second:02}.000001Z","stageTimestamp":"2026-11-16T00:00:{second:02}.000002Z"}}"#
            ) + "\n"
        };
        let pod = r#"{"resource":"pods","namespace":"a","name":"w-0","apiVersion":"v1","subresource":"status"}"#;
        let log = [
            line("operator", 1, pod),
            line("operator", 2, pod),
            line("operators", 3, pod),
            line("operator", 3, pod).replace("patch", "list"),
            r#"{"stage":"ResponseComplete","user":{"username":"operator"}"#.to_owned(),
        ];
        let since: Timestamp = "2026-11-16T00:00:02Z".parse().unwrap();
        let writes = read(&log.concat(), "operator", since).unwrap();
        let expected = Write {
            at: "2026-11-16T00:00:02.000001Z".parse().unwrap(),
            verb: "patch".into(),
            resource: "pods/status".into(),
            namespace: "a".into(),
            name: "w-0".into(),
        };
        assert_eq!(writes, [expected]);
    }
}
