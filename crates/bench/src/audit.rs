//! What the operator asked of the API server: the audit log, read as it grows.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{ErrorKind, Read, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// How often each call was made, by verb and resource, such as `patch pods/status`.
pub type Counts = BTreeMap<String, u32>;

/// One call that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Verb and resource, such as `patch pods/status`.
    pub what: String,
    /// When it was answered.
    pub done: Timestamp,
    /// Whether it was granted.
    pub granted: bool,
}

/// The calls of one user, read from where the last look ended.
pub struct Tail {
    path: PathBuf,
    user: String,
    offset: u64,
}

impl Tail {
    /// From the present end of the log on.
    pub fn of(path: PathBuf, user: &str) -> Result<Self> {
        let mut tail = Self { path, user: user.to_owned(), offset: 0 };
        tail.news()?;
        Ok(tail)
    }

    /// What was answered since the last look.
    pub fn news(&mut self) -> Result<Vec<Call>> {
        let mut bytes = match self.unread() {
            // Nobody has asked anything yet.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        // The last line may be half written.
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        self.offset += u64::try_from(bytes.len())?;
        read(&String::from_utf8_lossy(&bytes), &self.user)
    }

    fn unread(&self) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Adds the calls up.
pub fn count(calls: &[Call]) -> Counts {
    let mut counts = Counts::new();
    for call in calls {
        *counts.entry(call.what.clone()).or_default() += 1;
    }
    counts
}

/// When the last call of a kind that was granted was answered.
pub fn last(calls: &[Call], what: &str) -> Option<Timestamp> {
    calls.iter().filter(|call| call.granted && call.what == what).map(|call| call.done).max()
}

/// Whether a call changes something.
pub fn is_write(what: &str) -> bool {
    !["get ", "list ", "watch "].iter().any(|verb| what.starts_with(verb))
}

fn read(log: &str, user: &str) -> Result<Vec<Call>> {
    let lines = log.lines().filter(|line| line.contains(user));
    let entries = lines.map(|line| serde_json::from_str::<Entry>(line).context("the audit log has a strange line"));
    entries.filter_map(|entry| entry.map(|entry| entry.call_of(user)).transpose()).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    stage: String,
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl Entry {
    fn call_of(self, user: &str) -> Option<Call> {
        // A watch is answered when it begins; other calls have no such stage.
        let answered = if self.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
        if self.stage != answered || self.user.username != user {
            return None;
        }
        let (resource, part) = (&self.object_ref.resource, &self.object_ref.subresource);
        let slash = if part.is_empty() { "" } else { "/" };
        Some(Call {
            what: format!("{} {resource}{slash}{part}", self.verb),
            done: self.stage_timestamp,
            granted: (200..300).contains(&self.response_status.code),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str, stage: &str, verb: &str, object: &str, code: u16, second: u8) -> String {
        format!(
            r#"{{"kind":"Event","level":"Metadata","stage":"{stage}","verb":"{verb}","user":{{"username":"{user}","groups":[]}},"objectRef":{object},"responseStatus":{{"metadata":{{}},"code":{code}}},"requestReceivedTimestamp":"2026-11-16T00:00:00Z","stageTimestamp":"2026-11-16T00:00:{second:02}.000001Z"}}"#
        ) + "\n"
    }

    const POD: &str = r#"{"resource":"pods","namespace":"a","name":"w-0","apiVersion":"v1"}"#;
    const STATUS: &str = r#"{"resource":"pods","namespace":"a","name":"w-0","apiVersion":"v1","subresource":"status"}"#;

    #[test]
    fn counts_each_answered_call_of_the_user_once() {
        let log = [
            line("operator", "ResponseComplete", "create", POD, 201, 1),
            line("operator", "ResponseComplete", "create", POD, 409, 3),
            line("operator", "ResponseComplete", "patch", STATUS, 200, 4),
            line("operator", "ResponseStarted", "watch", POD, 200, 5),
            line("operator", "ResponseComplete", "watch", POD, 200, 6),
            line("operators", "ResponseComplete", "create", POD, 201, 7),
        ];
        let calls = read(&log.concat(), "operator").unwrap();
        let counts = count(&calls);
        let expected = [("create pods", 2), ("patch pods/status", 1), ("watch pods", 1)];
        assert_eq!(counts, expected.into_iter().map(|(what, count)| (what.to_owned(), count)).collect());
        let first: Timestamp = "2026-11-16T00:00:01.000001Z".parse().unwrap();
        assert_eq!(last(&calls, "create pods"), Some(first), "a refused call makes nothing");
        assert_eq!(last(&calls, "delete pods"), None);
    }

    #[test]
    fn a_call_without_an_object_is_a_call() {
        let text = r#"{"stage":"ResponseComplete","verb":"get","user":{"username":"u"},"requestURI":"/version","stageTimestamp":"2026-11-16T00:00:00Z"}"#;
        let calls = read(&format!("{text}\n"), "u").unwrap();
        assert_eq!(calls.len(), 1);
        assert!(!is_write(&calls[0].what));
        assert!(is_write("patch pods/status"));
    }

    #[test]
    fn reads_on_where_it_ended_and_waits_for_the_end_of_a_line() {
        let path = std::env::temp_dir().join(format!("bench-audit-{}", std::process::id()));
        let one = line("u", "ResponseComplete", "create", POD, 201, 1);
        std::fs::write(&path, &one).unwrap();
        let mut tail = Tail::of(path.clone(), "u").unwrap();
        assert_eq!(tail.news().unwrap(), []);
        let (head, rest) = one.split_at(40);
        std::fs::write(&path, [&one, &one, head].concat()).unwrap();
        assert_eq!(tail.news().unwrap().len(), 1);
        std::fs::write(&path, [&one, &one, head, rest].concat()).unwrap();
        assert_eq!(tail.news().unwrap().len(), 1);
        std::fs::remove_file(&path).unwrap();
    }
}
