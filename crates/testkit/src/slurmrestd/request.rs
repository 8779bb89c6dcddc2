//! Parses requests as leniently as slurmrestd does.

use serde_json::{Map, Value};

use super::refusal::Refusal;
use super::render::fold;

/// The JSON object in a body; `None` if it is something else.
pub(super) fn object(body: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Some(fields),
        _ => None,
    }
}

/// Words from a list, or from a comma-separated string.
pub(super) fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        }
        Value::Array(values) => values.iter().flat_map(words).collect(),
        _ => Vec::new(),
    }
}

/// Node names from a host list, or from a list of host lists.
pub(super) fn nodes(value: &Value) -> Result<Vec<String>, Refusal> {
    match value {
        Value::String(list) => super::names(list),
        Value::Array(values) => Ok(values.iter().map(nodes).collect::<Result<Vec<_>, _>>()?.concat()),
        _ => Ok(Vec::new()),
    }
}

/// A number, plain or as Slurm's object; `None` if unset or not a number.
pub(super) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Object(fields) => {
            let set = fields.get("set").is_none_or(|set| set != &Value::Bool(false));
            fields.get("number").filter(|_| set).and_then(Value::as_i64)
        }
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

/// A string; numbers are accepted too.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The type name that slurmrestd uses for a value.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "64 bit floating point number",
        Value::Number(_) => "64 bit integer",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "dictionary",
    }
}

/// Node names in an update of several nodes, as echoed by slurmrestd.
pub(super) fn names_of(body: &[u8]) -> String {
    let names = object(body).and_then(|fields| fields.get("name").map(nodes));
    let names = names.and_then(Result::ok).unwrap_or_default();
    fold(names.iter().map(String::as_str))
}

pub(super) fn name_of(body: &[u8]) -> String {
    object(body).and_then(|fields| fields.get("name").and_then(text)).unwrap_or_default()
}
