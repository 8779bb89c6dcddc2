//! Who wrote what: the audit log of the local API server.

use std::{env, fs};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// One write, whether or not it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub at: Timestamp,
    /// create, update, patch, delete or deletecollection
    pub verb: String,
    /// For example `pods` or `pods/status`.
    pub resource: String,
    /// Empty where there is none.
    pub namespace: String,
    /// Empty where the server chose it.
    pub name: String,
}

/// What a user wrote since some time.
pub fn writes_of(user: &str, since: Timestamp) -> Result<Vec<Write>> {
    let path = env::var_os("AUDIT_LOG").context("AUDIT_LOG is not set: run `cargo xtask test --e2e`")?;
    let log = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    read(&log, user, since)
}

fn read(log: &str, user: &str, since: Timestamp) -> Result<Vec<Write>> {
    // The log is long; most lines are somebody else's. The last one may be half written.
    let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().filter(|line| line.contains(user));
    let entries = lines.map(|line| serde_json::from_str::<Entry>(line).context("the audit log has a strange line"));
    let writes = entries.filter_map(|entry| entry.map(|entry| entry.write_of(user)).transpose());
    writes.filter(|write| write.as_ref().map_or(true, |write| write.at >= since)).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    stage: String,
    verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

impl Entry {
    fn write_of(self, user: &str) -> Option<Write> {
        let object = self.object_ref.unwrap_or_default();
        let slash = if object.subresource.is_empty() { "" } else { "/" };
        (self.stage == "ResponseComplete" && self.user.username == user).then_some(Write {
            at: self.request_received_timestamp,
            verb: self.verb,
            resource: [&object.resource, slash, &object.subresource].concat(),
            namespace: object.namespace,
            name: object.name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_writes_of_a_user_in_a_span() {
        let line = |user: &str, second: u8, object: &str| {
            format!(
                r#"{{"kind":"Event","level":"Metadata","stage":"ResponseComplete","verb":"patch","user":{{"username":"{user}","groups":[]}},"objectRef":{object},"responseStatus":{{"code":200}},"requestReceivedTimestamp":"2026-11-16T00:00:{second:02}.000001Z"}}"#
            ) + "\n"
        };
        let pod = r#"{"resource":"pods","namespace":"a","name":"w-0","apiVersion":"v1","subresource":"status"}"#;
        let log = [
            line("operator", 1, pod),
            line("operator", 2, pod),
            line("operators", 3, pod),
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
