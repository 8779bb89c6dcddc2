//! The QOS that partitions refer to. They are records of slurmdbd, and slurmctld ends if one of them does not exist.

use std::collections::BTreeSet;

use super::{Options, Pair, keys::nearest_of};

/// The keys of partitions with names of QOS.
pub const QOS_KEYS: &[&str] = &["AllowQos", "DenyQos", "QOS"];

/// What options of a partition say about QOS that do not exist. `known` are those that do.
pub fn unknown_qos(options: &str, known: &BTreeSet<String>) -> Vec<String> {
    // What cannot be parsed is reported elsewhere.
    Options::parse(options).map_or_else(|_| Vec::new(), |options| unknown(options.pairs(), known))
}

pub(super) fn unknown(pairs: &[Pair], known: &BTreeSet<String>) -> Vec<String> {
    let lists = pairs.iter().filter(|pair| QOS_KEYS.iter().any(|key| pair.has_key(key)));
    let names = lists.flat_map(|pair| pair.value().split(',').map(move |name| (pair, name.trim())));
    let is_unknown = |(pair, name): &(&Pair, &str)| {
        let is_all = !pair.has_key("QOS") && name.eq_ignore_ascii_case("ALL");
        !name.is_empty() && !is_all && !known.iter().any(|known| known.eq_ignore_ascii_case(name))
    };
    names.filter(is_unknown).map(|(pair, name)| text(pair.key(), name, known)).collect()
}

fn text(key: &str, name: &str, known: &BTreeSet<String>) -> String {
    let name: String = name.chars().take(64).collect();
    let hint = nearest_of(&name, known.iter().map(String::as_str)).map_or_else(
        || format!("create it with sacctmgr add qos {name}, or correct the line"),
        |near| format!("did you mean {near}?"),
    );
    format!("{key}: the QOS {name} is not known to slurmdbd; {hint}")
}
