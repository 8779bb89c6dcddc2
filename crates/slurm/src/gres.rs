//! Generic resources as Slurm writes them: `gpu:2(S:0)`, `gpu:h100:8(S:0-1),fpga:1K`.

use std::collections::BTreeMap;

/// The counts in a list of generic resources, by name: types of the same resource are added up.
pub fn counts(text: &str) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (item, after) = first(rest);
        rest = after;
        let item = item.split('(').next().unwrap_or_default().trim();
        let mut words = item.split(':');
        let name = words.next().unwrap_or_default();
        if name.is_empty() {
            continue;
        }
        // Without a count there is one. Between name and count may be a type.
        let count = words.next_back().and_then(number).unwrap_or(1);
        let total: &mut u64 = counts.entry(name).or_default();
        *total = total.saturating_add(count);
    }
    counts
}

/// The first item of a list, and the others. Commas in parentheses do not separate items.
fn first(list: &str) -> (&str, &str) {
    let mut depth = 0_u32;
    for (at, c) in list.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return (list.get(..at).unwrap_or_default(), list.get(at + 1..).unwrap_or_default()),
            _ => {}
        }
    }
    (list, "")
}

/// A count, which may have a binary suffix.
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match text.get(digits.len()..)? {
        "" => 0,
        "K" | "k" => 1,
        "M" | "m" => 2,
        "G" | "g" => 3,
        "T" | "t" => 4,
        "P" | "p" => 5,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1024_u64.checked_pow(power)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_by_name() {
        for (text, expected) in [
            ("", &[][..]),
            ("(null)", &[]),
            ("gpu", &[("gpu", 1)]),
            ("gpu:2", &[("gpu", 2)]),
            ("gpu:2(S:0)", &[("gpu", 2)]),
            ("gpu:h100", &[("gpu", 1)]),
            ("gpu:h100:8(S:0-1)", &[("gpu", 8)]),
            ("gpu:1g.10gb:7(S:0,2),gpu:a100:1(S:1)", &[("gpu", 8)]),
            ("fpga:1K,gpu:no_consume:4", &[("fpga", 1024), ("gpu", 4)]),
            ("gpu:0", &[("gpu", 0)]),
            (",:,gpu:99999999999999999999P", &[("gpu", 1)]),
        ] {
            assert_eq!(counts(text).into_iter().collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
