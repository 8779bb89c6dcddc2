//! What is generated from the values of a chart: the template that refuses unknown keys, and the table in its README.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

/// The charts that have values.
const CHARTS: &[&str] = &["charts/slurm", "charts/slurm-operator"];

/// The line of a README that is followed by the generated part.
const MARK: &str = "## Values\n";

/// The generated files of all charts.
pub fn files(checkout: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    for chart in CHARTS.iter().map(Path::new) {
        let read = |name: &str| {
            let path = chart.join(name);
            fs::read_to_string(checkout.join(&path)).with_context(|| format!("cannot read {}", path.display()))
        };
        let schema: Value = serde_json::from_str(&read("values.schema.json")?)
            .with_context(|| format!("{}/values.schema.json", chart.display()))?;
        let known = include_str!("keys.tpl").replace("@KNOWN@", &serde_json::to_string(&keys(&schema, &schema))?);
        files.insert(chart.join("templates/values/known/keys.yaml"), known);
        let readme = read("README.md")?;
        let (text, _) = readme.split_once(MARK).with_context(|| format!("README.md has no line {MARK:?}"))?;
        files.insert(chart.join("README.md"), format!("{text}{MARK}\n{}", table(&read("values.yaml")?)));
    }
    Ok(files)
}

/// The keys that a schema knows: those of an object as an object, with `*` for all others if it has any, and null for whatever
/// is no object.
fn keys(schema: &Value, root: &Value) -> Value {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        return root.pointer(name.trim_start_matches('#')).map_or(Value::Null, |schema| keys(schema, root));
    }
    if let Some(alternatives) = schema.get("oneOf").and_then(Value::as_array) {
        return alternatives.iter().map(|schema| keys(schema, root)).find(Value::is_object).unwrap_or_default();
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties").map(|schema| ("*".to_owned(), keys(schema, root)));
    let own = properties.into_iter().flatten().map(|(name, schema)| (name.clone(), keys(schema, root)));
    let known: Map<_, _> = own.chain(others).collect();
    if known.is_empty() { Value::Null } else { Value::Object(known) }
}

/// A key of values.yaml.
struct Row {
    depth: usize,
    path: String,
    default: String,
    text: String,
}

/// The keys of values.yaml as a table: each with its default, if it is short, and the comment above it.
fn table(values: &str) -> String {
    let mut rows: Vec<Row> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in values.lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix('#') {
            // Two spaces: an example.
            if !text.starts_with("  ") {
                comment.push(text.trim());
            }
            continue;
        }
        let text = std::mem::take(&mut comment).join(" ");
        // A list item, or a line of a text.
        let Some((key, value)) = line.split_once(':').filter(|(key, _)| is_key(key)) else { continue };
        let parent = rows.iter().rev().find(|row| row.depth < depth);
        if parent.is_some_and(|parent| parent.default == "|") {
            continue;
        }
        let path = parent.map_or_else(|| key.to_owned(), |parent| format!("{}.{key}", parent.path));
        // What follows a key without a value belongs to it.
        rows.push(Row { depth, path, default: value.trim().to_owned(), text });
    }
    let shown = rows.iter().filter(|row| !row.default.is_empty() || !row.text.is_empty());
    let line = |row: &Row| {
        let default = match row.default.as_str() {
            "" | "|" => String::new(),
            default => format!("`{default}`"),
        };
        format!("| `{}` | {default} | {} |\n", row.path, row.text.replace('|', "\\|").replace('<', "\\<"))
    };
    format!(
        "Made by `cargo xtask gen` from values.yaml.\n\n| key | default | meaning |\n|---|---|---|\n{}",
        shown.map(line).collect::<String>()
    )
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn knows_the_keys_of_a_schema() {
        let schema = json!({
            "definitions": {"image": {"oneOf": [{"type": "string"}, {"properties": {"tag": {}}}]}},
            "properties": {
                "image": {"$ref": "#/definitions/image"},
                "container": {"properties": {"image": {"$ref": "#/definitions/image"}}, "additionalProperties": true},
                "sets": {"additionalProperties": {"properties": {"replicas": {}}}},
                "map": {"type": "object"},
            },
        });
        let image = json!({"tag": null});
        let known = json!({
            "image": image, "container": {"image": image, "*": null}, "sets": {"*": {"replicas": null}}, "map": null,
        });
        assert_eq!(keys(&schema, &schema), known);
    }

    #[test]
    fn shows_values_with_their_comments() {
        let values = "\
# About names,
# in two lines.
name: null

# Not about the next key.

group:
  plain: 1
  # A | <b>.
  inner:
    list:
      - path: /a
    text: |
      key: value
    after: {}
# Entries.
sets: {}
#  example:
#    replicas: 2
";
        let table = table(values);
        let rows: Vec<&str> = table.lines().skip(4).collect();
        assert_eq!(
            rows,
            [
                "| `name` | `null` | About names, in two lines. |",
                "| `group.plain` | `1` |  |",
                "| `group.inner` |  | A \\| \\<b>. |",
                "| `group.inner.text` |  |  |",
                "| `group.inner.after` | `{}` |  |",
                "| `sets` | `{}` | Entries. |",
            ]
        );
    }
}
