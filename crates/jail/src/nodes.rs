//! Finds a node in slurm.conf.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tree::Tree;

/// Relative to the jail.
pub const SLURM_CONF: &str = "etc/slurm/slurm.conf";

/// Files that are read: includes may not go round in circles.
const MOST_FILES: usize = 64;

/// Whether slurm.conf, or a file that it includes, has a line for this node.
pub fn is_in_slurm_conf(jail: &Tree, node: &str) -> Result<bool> {
    let folder = Path::new(SLURM_CONF).parent().unwrap_or(Path::new(""));
    let mut files = vec![PathBuf::from(SLURM_CONF)];
    for _ in 0..MOST_FILES {
        let Some(file) = files.pop() else { break };
        let Some(content) = jail.read(&file)? else { continue };
        for line in String::from_utf8_lossy(&content).lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(included) = value(line, "include") {
                files.push(folder.join(included.trim_start_matches("/etc/slurm/")));
            } else if value(line, "NodeName").is_some_and(|list| is_in(list, node)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The first word after this key, if the line begins with it. Keys are in any case.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (word, rest) = (line.get(..key.len())?, line.get(key.len()..)?);
    if !word.eq_ignore_ascii_case(key) || !rest.starts_with(['=', ' ', '\t']) {
        return None;
    }
    rest.trim_start_matches(['=', ' ', '\t']).split_whitespace().next()
}

/// Whether a list of hosts such as `gpu-[0-9,12],login` has this one.
fn is_in(list: &str, node: &str) -> bool {
    let mut depth = 0_u32;
    let parts = list.split(|character| {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.into_iter().any(|part| matches(part, node))
}

/// Whether one name with brackets, such as `gpu-[0-9,12]`, covers this one.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('[') else { return pattern == name };
    let (Some(name), Some((ranges, after))) = (name.strip_prefix(before), rest.split_once(']')) else { return false };
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    // What follows the brackets may begin with a digit, too.
    (1..=digits).any(|length| {
        let (Some(number), Some(end)) = (name.get(..length), name.get(length..)) else { return false };
        ranges.split(',').any(|range| has(range, number)) && matches(after, end)
    })
}

/// Whether a range such as `08-12` has this number, with the same padding.
fn has(range: &str, number: &str) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (Ok(low), Ok(high), Ok(value)) = (first.parse::<u64>(), last.parse::<u64>(), number.parse::<u64>()) else {
        return false;
    };
    let is_padded_alike = format!("{value:0width$}", width = first.len()) == number;
    (low..=high).contains(&value) && is_padded_alike
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_host() {
        for (list, node, expected) in [
            ("gpu-0", "gpu-0", true),
            ("gpu-0", "gpu-01", false),
            ("gpu-[0-9,12]", "gpu-9", true),
            ("gpu-[0-9,12]", "gpu-12", true),
            ("gpu-[0-9,12]", "gpu-11", false),
            ("gpu-[0-9,12]", "gpu-", false),
            ("gpu-[0-9,12]", "cpu-1", false),
            ("gpu-[08-12]", "gpu-8", false),
            ("gpu-[08-12]", "gpu-08", true),
            ("gpu-[08-12]", "gpu-10", true),
            ("gpu-[0-9]", "gpu-07", false),
            ("cpu-1,gpu-[0-1],login", "login", true),
            ("r[1-2]n[1-3]", "r2n3", true),
            ("r[1-2]n[1-3]", "r3n3", false),
            ("a[1-2]0", "a20", true),
            ("a[1-2]0", "a2", false),
            ("a[1-", "a1", false),
            ("a[x-y]", "a1", false),
            ("", "a1", false),
        ] {
            assert_eq!(is_in(list, node), expected, "{list} {node}");
        }
    }

    #[test]
    fn reads_the_value_of_a_key() {
        for (line, expected) in [
            ("NodeName=a-[0-1] State=CLOUD", Some("a-[0-1]")),
            ("nodename = a", Some("a")),
            ("NodeNameX=a", None),
            ("NodeName", None),
            ("NodeName=", None),
            ("NodeSet=x Nodes=a", None),
        ] {
            assert_eq!(value(line, "NodeName"), expected, "{line}");
        }
        assert_eq!(value("Include slurm_base.conf.noedit", "include"), Some("slurm_base.conf.noedit"));
    }
}
