//! The audit log of an API server.

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// One stage of a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// For example `ResponseComplete`.
    pub stage: String,
    /// For example `patch`.
    pub verb: String,
    user: User,
    /// Empty for requests such as `/version`.
    #[serde(default)]
    pub object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    /// When the request arrived.
    pub request_received_timestamp: Timestamp,
    /// When it reached this stage.
    pub stage_timestamp: Timestamp,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    username: String,
}

/// The object of a request. Fields that do not apply are empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    resource: String,
    subresource: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name; empty if the server chooses it.
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl Entry {
    /// The resource with its subresource, such as `pods` or `pods/status`.
    pub fn resource(&self) -> String {
        let ObjectRef { resource, subresource, .. } = &self.object_ref;
        let slash = if subresource.is_empty() { "" } else { "/" };
        [resource, slash, subresource].concat()
    }

    /// Whether the status code of the answer is one of 200 to 299.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.response_status.code)
    }
}

/// The entries of one user. The last line is ignored unless it is complete.
///
/// # Errors
///
/// A line of this user cannot be parsed.
pub fn entries(log: &str, user: &str) -> Result<Vec<Entry>> {
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    // Most lines belong to other users; this is faster than parsing them.
    let lines = complete.lines().filter(|line| line.contains(user));
    let entries = lines.map(|line| serde_json::from_str(line).context("cannot parse a line of the audit log"));
    entries.filter(|entry| entry.as_ref().map_or(true, |entry: &Entry| entry.user.username == user)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_complete_entries_of_a_user() {
        let line = |user: &str, rest: &str| {
            format!(
                r#"{{"stage":"ResponseComplete","verb":"patch","user":{{"username":"{user}"}},"requestReceivedTimestamp":"2026-11-16T00:00:00Z","stageTimestamp":"2026-11-16T00:00:01Z"{rest}}}"#
            )
        };
        let pod = r#","objectRef":{"resource":"pods","subresource":"status","namespace":"a","name":"w-0"},"responseStatus":{"code":201}"#;
        let log = [line("u", pod), line("users", pod), line("u", ""), line("u", pod)].join("\n");
        let entries = entries(&log, "u").unwrap();
        let seen: Vec<_> = entries.iter().map(|entry| (entry.resource(), entry.succeeded())).collect();
        assert_eq!(seen, [("pods/status".to_owned(), true), (String::new(), false)]);
        assert_eq!(entries[0].object_ref.name, "w-0");
    }
}
