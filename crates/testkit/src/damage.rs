//! Malformed objects.

use serde_json::{Value, json};

use crate::Rng;

/// Replaces something in the value by something else.
pub fn damage(value: &mut Value, rng: &mut Rng) {
    let children = match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if children == 0 || rng.below(4) == 0 {
        let long = "x".repeat(300);
        let odd = [
            json!(null),
            json!(-1),
            json!(1e300),
            json!(u64::MAX),
            json!(true),
            json!(""),
            json!("\u{0}\n%s"),
            json!([]),
            json!({}),
            json!([{"name": null}]),
            json!({"a": {"b": []}}),
            json!(long),
            json!("0%"),
            json!("é=1 b"),
        ];
        let chosen = usize::try_from(rng.below(u64::try_from(odd.len()).unwrap_or(1))).unwrap_or_default();
        *value = odd.get(chosen).cloned().unwrap_or_default();
        return;
    }
    let chosen = usize::try_from(rng.below(u64::try_from(children).unwrap_or(1))).unwrap_or_default();
    match value {
        Value::Object(fields) => {
            if let Some(child) = fields.values_mut().nth(chosen) {
                damage(child, rng);
            }
        }
        Value::Array(items) => {
            if let Some(child) = items.get_mut(chosen) {
                damage(child, rng);
            }
        }
        _ => {}
    }
}
