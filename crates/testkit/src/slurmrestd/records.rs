//! Records of real daemons, one file for each REST version, which the fake fills with its own values.
//!
//! So a record has every field that a real one has, with the right type, and about as many bytes. The files were taken
//! from the answers in `crates/slurm/tests/golden`; a test compares the fake with those.

use anyhow::Context;
use serde_json::{Map, Value};

use super::release::RestVersion;

/// The records of one REST version.
#[derive(Debug)]
pub(super) struct Records {
    pub node: Template,
    pub job: Template,
    values: Map<String, Value>,
}

impl Records {
    pub(super) fn of(version: RestVersion) -> anyhow::Result<Self> {
        let text = match version {
            RestVersion::V41 => include_str!("records/v0.0.41.json"),
            RestVersion::V42 => include_str!("records/v0.0.42.json"),
            RestVersion::V43 => include_str!("records/v0.0.43.json"),
            RestVersion::V44 => include_str!("records/v0.0.44.json"),
            // v0.0.46 was not recorded yet.
            RestVersion::V45 | RestVersion::V46 => include_str!("records/v0.0.45.json"),
        };
        let mut values: Map<String, Value> = serde_json::from_str(text)?;
        for meta in ["meta", "db_meta"] {
            if let Some(parser) = values.get_mut(meta).and_then(|meta| meta.pointer_mut("/plugin/data_parser")) {
                *parser = Value::String(format!("data_parser/{version}"));
            }
        }
        let template = |kind| {
            let record = values.get(kind).and_then(Value::as_object);
            Template::new(record.with_context(|| format!("the records of {version} have no {kind}"))?)
        };
        Ok(Self { node: template("node")?, job: template("job")?, values })
    }

    /// A record with some of its fields replaced; fields that this version does not have are left out.
    pub(super) fn fill(&self, kind: &str, fields: Value) -> Value {
        let mut record = self.values.get(kind).cloned().unwrap_or_default();
        overlay(&mut record, fields);
        record
    }
}

/// Puts values in place of others, as deep as both are objects.
pub(super) fn overlay(target: &mut Value, values: Value) {
    match (target, values) {
        (Value::Object(target), Value::Object(values)) => {
            for (key, value) in values {
                if let Some(slot) = target.get_mut(&key) {
                    overlay(slot, value);
                }
            }
        }
        (target, value) => *target = value,
    }
}

/// A record whose unchanging part is already text: lists of ten thousand must be cheap.
#[derive(Debug)]
pub(super) struct Template {
    fields: Vec<(String, Vec<u8>)>,
}

/// Records stand in a list in an object, and slurmrestd indents by two.
const INDENT: &[u8] = b"\n      ";

impl Template {
    fn new(record: &Map<String, Value>) -> anyhow::Result<Self> {
        let field = |(key, value): (&String, &Value)| anyhow::Ok((key.clone(), pretty(value)?));
        Ok(Self { fields: record.iter().map(field).collect::<anyhow::Result<_>>()? })
    }

    /// The text of a record; `value` gives what is to stand in a field instead of what the real daemon had there.
    pub(super) fn render(&self, mut value: impl FnMut(&str) -> Option<Value>) -> Vec<u8> {
        let mut text = Vec::with_capacity(4096);
        let mut before = b'{';
        for (key, recorded) in &self.fields {
            text.push(before);
            before = b',';
            text.extend_from_slice(INDENT);
            text.push(b'"');
            text.extend_from_slice(key.as_bytes());
            text.extend_from_slice(b"\": ");
            // What cannot be written (no value of ours) stays as it was recorded.
            match value(key).map(|value| pretty(&value)) {
                Some(Ok(value)) => text.extend_from_slice(&value),
                _ => text.extend_from_slice(recorded),
            }
        }
        text.extend_from_slice(b"\n    }");
        text
    }
}

/// JSON as slurmrestd writes it, indented for a field of a record.
fn pretty(value: &Value) -> serde_json::Result<Vec<u8>> {
    let plain = serde_json::to_vec_pretty(value)?;
    if !plain.contains(&b'\n') {
        return Ok(plain);
    }
    let mut text = Vec::with_capacity(plain.len() * 2);
    for (index, line) in plain.split(|byte| *byte == b'\n').enumerate() {
        if index > 0 {
            text.extend_from_slice(INDENT);
        }
        text.extend_from_slice(line);
    }
    Ok(text)
}
