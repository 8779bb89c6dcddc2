//! The schemas have the fields of `fields.txt`, and no others.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{KINDS, PROMETHEUS_DURATION, is_opaque, schema, stored, visit};

const TABLE: &str = include_str!("fields.txt");

/// What the table says about a field.
#[derive(Clone, Debug, Default, PartialEq)]
struct Field {
    type_: String,
    is_required: bool,
    choices: BTreeSet<String>,
    bounds: BTreeMap<String, i64>,
    has_pattern: bool,
    default: Option<Value>,
}

/// A line of the table: the field, its name, the fields that it has as well, and its own.
#[derive(Clone, Debug)]
struct Line {
    name: String,
    field: Field,
    shared: Option<String>,
    fields: Vec<Line>,
}

fn line(text: &str) -> Line {
    let (text, shared) = match text.rsplit_once(" @") {
        Some((text, shared)) => (text, Some(shared.to_owned())),
        None => (text, None),
    };
    let (text, default) = match text.split_once(" = ") {
        Some((text, default)) => (text, Some(serde_json::from_str(default).unwrap())),
        None => (text, None),
    };
    let mut words = text.split_whitespace();
    let name = words.next().unwrap();
    let type_ = words.next().unwrap_or_default().to_owned();
    let mut field = Field { type_, is_required: name.ends_with('!'), default, ..Field::default() };
    for word in words {
        match word.split_once('=') {
            Some((bound, number)) => field.bounds.extend([(bound.to_owned(), number.parse().unwrap())]),
            None if word == "pattern" => field.has_pattern = true,
            None if word == "~" => {}
            None => field.choices = word.split('|').map(str::to_owned).collect(),
        }
    }
    Line { name: name.trim_end_matches('!').to_owned(), field, shared, fields: Vec::new() }
}

/// The lines below `depth`, of which the first is that of the parent.
fn children(lines: &[&str], depth: usize) -> Vec<Line> {
    let indent = |line: &str| (line.len() - line.trim_start().len()) / 2;
    let starts: Vec<usize> = (0..lines.len()).filter(|at| indent(lines[*at]) == depth).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    let item = |(start, end): (usize, usize)| Line {
        fields: children(&lines[start + 1..end], depth + 1),
        ..line(lines[start].trim())
    };
    starts.iter().copied().zip(ends).map(item).collect()
}

/// The fields of each kind, by path.
fn table() -> BTreeMap<String, BTreeMap<String, Field>> {
    fn put(all: &[Line], fields: &[Line], prefix: &str, found: &mut BTreeMap<String, Field>) {
        for line in fields {
            let path = format!("{prefix}{}", line.name);
            assert_eq!(found.insert(path.clone(), line.field.clone()), None, "{path}");
            let below = match line.field.type_.chars().next() {
                Some('[') => "[].",
                Some('{') => "{}.",
                _ => ".",
            };
            let shared =
                line.shared.iter().flat_map(|name| all.iter().filter(move |line| line.name == format!("@{name}")));
            let fields: Vec<Line> = shared.flat_map(|line| line.fields.clone()).chain(line.fields.clone()).collect();
            assert!(line.shared.is_none() || !fields.is_empty(), "{path}");
            put(all, &fields, &format!("{path}{below}"), found);
        }
    }
    let lines: Vec<&str> = TABLE.lines().filter(|line| !line.starts_with('#')).collect();
    let all = children(&lines, 0);
    let kinds = all.iter().filter(|line| !line.name.starts_with('@'));
    kinds
        .map(|kind| {
            let mut found = BTreeMap::new();
            put(&all, &kind.fields, "", &mut found);
            (kind.name.clone(), found)
        })
        .collect()
}

/// The type of a schema in the words of the table.
fn type_of(schema: &Value) -> String {
    let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    match schema["type"].as_str() {
        _ if schema["x-kubernetes-int-or-string"] == true => {
            if schema["pattern"].is_string() {
                "quantity".into()
            } else {
                "int-or-string".into()
            }
        }
        Some("string") if schema["pattern"] == PROMETHEUS_DURATION => "duration".into(),
        Some("array") if schema["x-kubernetes-list-type"] == "map" => "[condition]".into(),
        Some("array") if schema["items"]["x-kubernetes-map-type"] == "atomic" => "[reference]".into(),
        Some("array") => format!("[{}]", type_of(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("{{{}}}", type_of(&schema["additionalProperties"]))
        }
        Some("object") if is_open && schema["properties"].is_object() => "volume".into(),
        Some("object") if is_open => "embedded".into(),
        Some(type_) => type_.into(),
        None => String::new(),
    }
}

/// What a schema says, in the words of the table.
fn field(schema: &Value, is_required: bool) -> Field {
    let type_ = type_of(schema);
    let item = if schema["type"] == "array" { &schema["items"] } else { schema };
    let choices = item["enum"].as_array().into_iter().flatten();
    let bounds = [("min", "minimum"), ("max", "maximum"), ("length", "minLength"), ("items", "minItems")];
    let bound = |(short, name): (&str, &str)| {
        let number = schema[name].as_f64()?;
        Some((short.to_owned(), serde_json::from_str(&format!("{number:.0}")).unwrap()))
    };
    let has_pattern = type_ == "string" && schema["pattern"].is_string();
    Field {
        is_required,
        choices: choices.map(|choice| choice.as_str().unwrap().to_owned()).collect(),
        bounds: bounds.into_iter().filter_map(bound).collect(),
        has_pattern,
        default: schema.get("default").map(|default| stored(schema, default)),
        type_,
    }
}

#[test]
fn the_table_has_every_field_of_both_versions() {
    let table = table();
    assert_eq!(table.keys().collect::<Vec<_>>(), KINDS.iter().collect::<Vec<_>>());
    let counts: Vec<usize> = table.values().map(BTreeMap::len).collect();
    assert_eq!(counts, [113, 11, 49, 102, 13, 529]);
    let worker = &table["SlurmCluster"]["spec.slurmNodes.worker.volumes.jailSubMounts[].mountPath"];
    assert_eq!(worker, &Field { type_: "string".into(), is_required: true, ..Field::default() });
    let threads = &table["SlurmCluster"]["spec.slurmNodes.rest.threadCount"];
    assert_eq!(threads.bounds, BTreeMap::from([("min".into(), 2), ("max".into(), 1024)]));
    assert_eq!(threads.default, Some(json!(3)));
    let rebooter = &table["NodeConfigurator"]["spec.rebooter.evictionMethod"];
    assert_eq!(rebooter.choices, BTreeSet::from(["evict".to_owned()]));
}

#[test]
fn the_schemas_have_the_fields_of_the_table() {
    for (kind, mut expected) in table() {
        let root = schema(&kind);
        // Nested defaults are filled in on both sides.
        for (path, field) in &mut expected {
            let at = path.replace("[]", "/items").replace("{}", "/additionalProperties").replace('.', "/properties/");
            let schema =
                root.pointer(&format!("/properties/{at}")).unwrap_or_else(|| panic!("{kind}.{path} is missing"));
            field.default = field.default.as_ref().map(|default| stored(schema, default));
        }
        let mut found = BTreeMap::new();
        visit(&kind, &mut |schema, path, is_required| {
            if !is_opaque(path) {
                found.insert(path.to_owned(), field(schema, is_required));
            }
        });
        for (path, field) in &found {
            assert_eq!(Some(field), expected.get(path), "{kind}.{path}");
        }
        assert_eq!(found.len(), expected.len(), "{kind}");
    }
}
