//! The requests of one user to the API server, from the audit log.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{ErrorKind, Read, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use testkit::audit::{Entry, entries};

/// Number of requests by verb and resource, such as `patch pods/status`.
pub type Counts = BTreeMap<String, u32>;

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Verb and resource, such as `patch pods/status`.
    pub call: String,
    /// When it was answered.
    pub completed: Timestamp,
    /// Whether the answer has a status code from 200 to 299.
    pub succeeded: bool,
}

/// Reads a growing audit log.
pub struct AuditLog {
    path: PathBuf,
    user: String,
    offset: u64,
}

impl AuditLog {
    /// Skips what the log contains now.
    pub fn from_end(path: PathBuf, user: &str) -> Result<Self> {
        let mut log = Self { path, user: user.to_owned(), offset: 0 };
        log.read_new()?;
        Ok(log)
    }

    /// The requests that were logged since the last call.
    pub fn read_new(&mut self) -> Result<Vec<Request>> {
        let mut bytes = match self.unread() {
            // The API server creates the log with its first entry.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        // The last line may be incomplete.
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

/// Counts requests.
pub fn count(requests: &[Request]) -> Counts {
    let mut counts = Counts::new();
    for request in requests {
        *counts.entry(request.call.clone()).or_default() += 1;
    }
    counts
}

/// When the last successful request of a kind was answered.
pub fn last_success(requests: &[Request], call: &str) -> Option<Timestamp> {
    requests.iter().filter(|request| request.succeeded && request.call == call).map(|request| request.completed).max()
}

/// Whether a request changes something.
pub fn is_write(call: &str) -> bool {
    !["get ", "list ", "watch "].iter().any(|verb| call.starts_with(verb))
}

fn read(log: &str, user: &str) -> Result<Vec<Request>> {
    Ok(entries(log, user)?.iter().filter(|entry| is_answered(entry)).map(Request::from).collect())
}

/// A watch is answered when it starts; other requests do not have this stage.
fn is_answered(entry: &Entry) -> bool {
    entry.stage == if entry.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" }
}

impl From<&Entry> for Request {
    fn from(entry: &Entry) -> Self {
        Self {
            call: format!("{} {}", entry.verb, entry.resource()),
            completed: entry.stage_timestamp,
            succeeded: entry.succeeded(),
        }
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
    fn counts_each_answered_request_of_the_user_once() {
        let log = [
            line("operator", "ResponseComplete", "create", POD, 201, 1),
            line("operator", "ResponseComplete", "create", POD, 409, 3),
            line("operator", "ResponseComplete", "patch", STATUS, 200, 4),
            line("operator", "ResponseStarted", "watch", POD, 200, 5),
            line("operator", "ResponseComplete", "watch", POD, 200, 6),
            line("operators", "ResponseComplete", "create", POD, 201, 7),
        ];
        let requests = read(&log.concat(), "operator").unwrap();
        let counts = count(&requests);
        let expected = [("create pods", 2), ("patch pods/status", 1), ("watch pods", 1)];
        assert_eq!(counts, expected.into_iter().map(|(what, count)| (what.to_owned(), count)).collect());
        let first: Timestamp = "2026-11-16T00:00:01.000001Z".parse().unwrap();
        assert_eq!(last_success(&requests, "create pods"), Some(first), "failed requests are ignored");
        assert_eq!(last_success(&requests, "delete pods"), None);
    }

    #[test]
    fn a_request_without_an_object_is_counted() {
        let text = r#"{"stage":"ResponseComplete","verb":"get","user":{"username":"u"},"requestURI":"/version","requestReceivedTimestamp":"2026-11-16T00:00:00Z","stageTimestamp":"2026-11-16T00:00:00Z"}"#;
        let requests = read(&format!("{text}\n"), "u").unwrap();
        assert_eq!(requests.len(), 1);
        assert!(!is_write(&requests[0].call));
        assert!(is_write("patch pods/status"));
    }

    #[test]
    fn reads_new_lines_once_they_are_complete() {
        let path = std::env::temp_dir().join(format!("bench-audit-{}", std::process::id()));
        let one = line("u", "ResponseComplete", "create", POD, 201, 1);
        std::fs::write(&path, &one).unwrap();
        let mut log = AuditLog::from_end(path.clone(), "u").unwrap();
        assert_eq!(log.read_new().unwrap(), []);
        let (head, rest) = one.split_at(40);
        std::fs::write(&path, [&one, &one, head].concat()).unwrap();
        assert_eq!(log.read_new().unwrap().len(), 1);
        std::fs::write(&path, [&one, &one, head, rest].concat()).unwrap();
        assert_eq!(log.read_new().unwrap().len(), 1);
        std::fs::remove_file(&path).unwrap();
    }
}
