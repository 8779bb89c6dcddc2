//! topology.conf and topology.yaml: slurmctld and slurmd end if the switches are not a tree.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Item, Pair, keys::Table, parse};
use crate::hostlist;

/// A switch, a block or a ring.
struct Part {
    name: String,
    /// The switches below it, as a host list.
    children: Option<String>,
}

/// Checks what topology.conf says, not its keys. Included files are not read.
pub(super) fn check_conf(table: Table, text: &str) -> Vec<String> {
    let (first, what) = match table {
        Table::TopologyBlock => ("BlockName", "block"),
        Table::TopologyRing => ("RingName", "ring"),
        _ => ("SwitchName", "switch"),
    };
    let (mut parts, mut found, mut includes) = (Vec::new(), Vec::new(), false);
    for line in parse::lines(text).filter_map(Result::ok) {
        let pairs = match line.item {
            Item::Pairs(pairs) => pairs,
            Item::Include(_) => {
                includes = true;
                continue;
            }
            Item::Empty => continue,
        };
        let value = |key: &str| pairs.iter().find(|pair| pair.has_key(key)).map(|pair| Pair::value(pair).to_owned());
        let Some(name) = pairs.first().filter(|pair| pair.has_key(first)).map(|pair| pair.value().to_owned()) else {
            continue;
        };
        let children = value("Switches").filter(|_| table == Table::TopologyTree);
        if children.is_some() && value("Nodes").is_some() {
            found.push(format!(
                "line {}: the switch {name} has both Nodes and Switches: remove one of them",
                line.number
            ));
        }
        parts.push(Part { name, children });
    }
    if !includes {
        found.extend(check_parts(what, &parts));
    }
    found
}

/// Checks what topology.yaml says: one topology, or a list of them.
pub(super) fn check_yaml(text: &str) -> Vec<String> {
    let Ok(root) = serde_saphyr::from_str::<Value>(text) else { return vec!["it is not valid YAML".to_owned()] };
    let topologies = match &root {
        Value::Array(list) => list.as_slice(),
        Value::Object(_) => std::slice::from_ref(&root),
        _ => return vec!["it must be a topology or a list of topologies".to_owned()],
    };
    let mut found = Vec::new();
    for topology in topologies {
        let name = topology.get("topology").and_then(Value::as_str).unwrap_or_default();
        for (plugin, list, what) in
            [("tree", "switches", "switch"), ("block", "blocks", "block"), ("ring", "rings", "ring")]
        {
            let Some(config) = topology.get(plugin) else { continue };
            let items = config.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let text = |item: &Value, key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
            let part = |item| Part {
                name: text(item, what).unwrap_or_default(),
                // Of a switch with nodes they are ignored.
                children: text(item, "children").filter(|_| what == "switch" && text(item, "nodes").is_none()),
            };
            let parts: Vec<Part> = items.iter().map(part).collect();
            found.extend(check_parts(what, &parts).into_iter().map(|text| format!("topology {name}: {text}")));
        }
    }
    found
}

/// More than Slurm has room for: a few short lines can be many names.
const MAX_CHILDREN: usize = 100_000;

fn check_parts(what: &str, parts: &[Part]) -> Vec<String> {
    if parts.is_empty() {
        return vec![format!("there is no {what}: define at least one")];
    }
    let (mut found, mut total) = (Vec::new(), 0);
    let mut children: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for part in parts {
        let list = part.children.as_deref().unwrap_or_default();
        total += hostlist::count(list).unwrap_or_default();
        if total > MAX_CHILDREN {
            return vec![format!("there are more than {MAX_CHILDREN} links between {what} and {what}: remove some")];
        }
        let expanded = match hostlist::expand(list) {
            Ok(names) => names,
            Err(_) if part.children.is_none() => Vec::new(),
            Err(error) => {
                found.push(format!("the children of the {what} {} are not a list: {error}", part.name));
                Vec::new()
            }
        };
        if part.name.is_empty() {
            found.push(format!("a {what} has no name"));
        } else if children.insert(&part.name, expanded).is_some() {
            found.push(format!("the {what} {} is defined twice: remove one of them", part.name));
        }
    }
    for (name, below) in &children {
        let unknown = below.iter().find(|child| !children.contains_key(child.as_str()));
        found.extend(unknown.map(|child| {
            format!("the {what} {name} has the child {child}, which is not defined: define it, or remove it there")
        }));
    }
    if let Some(cycle) = cycle(&children) {
        let path = cycle.join(" > ");
        found.push(format!(
            "the {what} {} is below itself ({path}): remove one of the links",
            cycle.first().unwrap_or(&"")
        ));
    }
    found
}

/// The first cycle: its names, from a part back to itself.
fn cycle<'a>(children: &'a BTreeMap<&str, Vec<String>>) -> Option<Vec<&'a str>> {
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for start in children.keys() {
        // The path from the start, with the children that are left to visit. Not recursive: a chain may be long.
        let mut path: Vec<(&str, std::slice::Iter<String>)> = Vec::new();
        let mut on_path: BTreeSet<&str> = BTreeSet::new();
        let enter = |name: &'a str| children.get(name).map(|below| (name, below.iter()));
        let mut next = enter(start);
        loop {
            if let Some((name, below)) = next.take().filter(|(name, _)| !done.contains(name)) {
                on_path.insert(name);
                path.push((name, below));
            }
            let Some((name, below)) = path.last_mut() else { break };
            let Some(child) = below.next() else {
                on_path.remove(name);
                done.insert(name);
                path.pop();
                continue;
            };
            if on_path.contains(child.as_str()) {
                let names = path.iter().map(|(name, _)| *name).skip_while(|name| name != child);
                return Some(names.chain([child.as_str()]).collect());
            }
            next = enter(child);
        }
    }
    None
}
