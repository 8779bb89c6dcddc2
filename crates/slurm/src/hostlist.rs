//! Slurm's compact notation for many host names: `gpu[001-003,7],login`.
//!
//! Lists are interpreted as by `scontrol show hostnames`, with two limits that keep a few bytes of input from filling
//! the memory ([`MAX_HOSTS`], [`MAX_NAME_LEN`]). Input where scontrol guesses (`n[1-]`, spaces between brackets, a lone
//! `]`) is rejected.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

/// Maximum number of hosts in a list: Slurm's own limit for a cluster.
pub const MAX_HOSTS: usize = 65_536;

/// Maximum length of a host name in bytes. DNS allows 253; Slurm cannot reach a host with a longer name.
pub const MAX_NAME_LEN: usize = 253;

/// Maximum number of digits between brackets. Slurm accepts more and silently overflows to another number.
pub const MAX_DIGITS: usize = 18;

/// Why a text is not a host list, or names cannot be written as one. `at` is a byte offset in the text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HostlistError {
    /// A `[` without its `]`.
    #[error("the `[` at byte {at} has no matching `]`")]
    Unclosed { at: usize },
    /// A `]` without its `[`.
    #[error("the `]` at byte {at} has no matching `[`")]
    Unopened { at: usize },
    /// The text between brackets is not numbers and ranges.
    #[error("`{text}` at byte {at} is neither a number nor a range like 1-9")]
    NotARange {
        /// The invalid part, shortened.
        text: String,
        at: usize,
    },
    /// A range whose end is before its start.
    #[error("the range `{text}` at byte {at} has its end before its start")]
    Reversed { text: String, at: usize },
    /// A number with more than [`MAX_DIGITS`] digits.
    #[error("the number at byte {at} has more than {MAX_DIGITS} digits")]
    NumberTooLong { at: usize },
    /// A name longer than [`MAX_NAME_LEN`].
    #[error("the host name at byte {at} is longer than {MAX_NAME_LEN} bytes")]
    NameTooLong { at: usize },
    /// More than [`MAX_HOSTS`] hosts.
    #[error("the list has more than {MAX_HOSTS} hosts")]
    TooManyHosts,
    /// A name that cannot be written in a host list.
    #[error("`{name}` is not a valid host name: it is empty, too long, or has a comma, space, bracket or brace")]
    NotAName {
        /// The invalid name, shortened.
        name: String,
    },
}

/// Returns all names of the list, in order, with duplicates. If a name has several brackets, the last one varies
/// fastest (with three or more, scontrol returns the same names in another order).
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let (entries, count) = parse(list)?;
    let mut names = Vec::with_capacity(count);
    for entry in &entries {
        names.extend(entry.names());
    }
    Ok(names)
}

/// Counts the names that [`expand`] returns, without building them. Rejects exactly what `expand` rejects.
pub fn count(list: &str) -> Result<usize, HostlistError> {
    parse(list).map(|(_, count)| count)
}

/// Names for messages: folded, or separated by commas if one of them is not a host name.
pub fn text<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    fold(names.clone()).unwrap_or_else(|_| names.collect::<Vec<_>>().join(","))
}

/// Writes names as one list that Slurm can read back: sorted, without duplicates, trailing numbers folded into ranges.
///
/// Padding is kept: `n7` and `n07` are different hosts.
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<String, HostlistError> {
    let mut unique = BTreeSet::new();
    for name in names {
        if !is_name(name) {
            return Err(HostlistError::NotAName { name: shortened(name) });
        }
        unique.insert(name);
        if unique.len() > MAX_HOSTS {
            return Err(HostlistError::TooManyHosts);
        }
    }
    let mut families: BTreeMap<&str, Family> = BTreeMap::new();
    for name in unique {
        let (prefix, number) = split_number(name);
        families.entry(prefix).or_default().insert(number);
    }
    let entries: Vec<String> = families.into_iter().flat_map(|(prefix, family)| family.entries(prefix)).collect();
    Ok(entries.join(","))
}

/// One comma-separated element: the literal parts and the brackets of a name.
struct Entry<'a> {
    parts: Vec<Part<'a>>,
    count: usize,
}

enum Part<'a> {
    Literal(&'a str),
    Bracket(Vec<Range>),
}

/// The numbers `lo..=hi`, each padded to at least `width` digits.
struct Range {
    lo: u64,
    hi: u64,
    width: usize,
    /// Number of digits of the longest number.
    longest: usize,
}

fn parse(list: &str) -> Result<(Vec<Entry<'_>>, usize), HostlistError> {
    let mut entries = Vec::new();
    let mut total = 0;
    for (at, text) in elements(list) {
        let entry = Entry::parse(text, at)?;
        total = bounded(entry.count.checked_add(total))?;
        entries.push(entry);
    }
    Ok((entries, total))
}

/// Returns the non-empty elements of a list with their offsets.
fn elements(list: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    let mut end = 0;
    list.split_inclusive(move |c| {
        inside = c == '[' || (inside && c != ']');
        !inside && is_separator(c)
    })
    .map(move |piece| {
        let at = end;
        end += piece.len();
        (at, piece.strip_suffix(is_separator).unwrap_or(piece))
    })
    .filter(|(_, text)| !text.is_empty())
}

/// Slurm separates lists at whitespace as well as at commas.
fn is_separator(c: char) -> bool {
    c == ',' || c.is_ascii_whitespace()
}

/// Since Slurm 26.05 braces call a function that only slurmctld can evaluate.
fn is_brace(c: char) -> bool {
    matches!(c, '{' | '}')
}

fn is_name(name: &str) -> bool {
    let reserved = |c| is_separator(c) || is_brace(c) || matches!(c, '[' | ']');
    !name.is_empty() && name.len() <= MAX_NAME_LEN && !name.contains(reserved)
}

/// Shortens invalid input for error messages.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

fn bounded(hosts: Option<usize>) -> Result<usize, HostlistError> {
    hosts.filter(|&hosts| hosts <= MAX_HOSTS).ok_or(HostlistError::TooManyHosts)
}

impl<'a> Entry<'a> {
    fn parse(text: &'a str, start: usize) -> Result<Self, HostlistError> {
        let (mut parts, mut count, mut longest) = (Vec::new(), 1, 0);
        let (mut rest, mut at) = (text, start);
        loop {
            let (literal, tail) = rest.split_once('[').map_or((rest, None), |(literal, tail)| (literal, Some(tail)));
            if let Some(offset) = literal.find(']') {
                return Err(HostlistError::Unopened { at: at + offset });
            }
            if literal.contains(is_brace) {
                return Err(HostlistError::NotAName { name: shortened(text) });
            }
            longest += literal.len();
            parts.push(Part::Literal(literal));
            let Some(tail) = tail else { break };

            let open = at + literal.len();
            let (inside, after) = tail.split_once(']').ok_or(HostlistError::Unclosed { at: open })?;
            let ranges = bracket(inside, open + 1)?;
            count = bounded(hosts(&ranges)?.checked_mul(count))?;
            longest += ranges.iter().map(|range| range.longest).max().unwrap_or(0);
            parts.push(Part::Bracket(ranges));
            at = open + 1 + inside.len() + 1;
            rest = after;
        }
        if longest > MAX_NAME_LEN {
            return Err(HostlistError::NameTooLong { at: start });
        }
        Ok(Self { parts, count })
    }

    fn names(&self) -> Vec<String> {
        let mut names = vec![String::new()];
        for part in &self.parts {
            match part {
                Part::Literal(text) => names.iter_mut().for_each(|name| name.push_str(text)),
                Part::Bracket(ranges) => {
                    let numbered = |name| ranges.iter().flat_map(move |range: &Range| range.append_to(name));
                    names = names.iter().map(String::as_str).flat_map(numbered).collect();
                }
            }
        }
        names
    }
}

fn bracket(text: &str, mut at: usize) -> Result<Vec<Range>, HostlistError> {
    let mut ranges = Vec::new();
    for piece in text.split(',') {
        ranges.push(Range::parse(piece, at)?);
        at += piece.len() + 1;
    }
    Ok(ranges)
}

fn hosts(ranges: &[Range]) -> Result<usize, HostlistError> {
    ranges.iter().try_fold(0_usize, |sum, range| bounded(range.count().and_then(|count| sum.checked_add(count))))
}

impl Range {
    fn parse(text: &str, at: usize) -> Result<Self, HostlistError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        if [first, last].iter().any(|digits| digits.is_empty() || digits.contains(|c: char| !c.is_ascii_digit())) {
            return Err(HostlistError::NotARange { text: shortened(text), at });
        }
        let lo = number(first, at)?;
        let hi = number(last, at + text.len() - last.len())?;
        if lo > hi {
            return Err(HostlistError::Reversed { text: text.to_owned(), at });
        }
        let width = first.len();
        Ok(Self { lo, hi, width, longest: last.trim_start_matches('0').len().max(width) })
    }

    fn count(&self) -> Option<usize> {
        usize::try_from(self.hi - self.lo).ok()?.checked_add(1)
    }

    fn append_to(&self, name: &str) -> impl Iterator<Item = String> {
        (self.lo..=self.hi).map(move |number| format!("{name}{number:0width$}", width = self.width))
    }
}

/// Parses digits only.
fn number(digits: &str, at: usize) -> Result<u64, HostlistError> {
    let number = digits.parse().ok().filter(|_| digits.len() <= MAX_DIGITS);
    number.ok_or(HostlistError::NumberTooLong { at })
}

/// The number at the end of a name.
#[derive(Clone, Copy)]
struct Suffix {
    value: u64,
    digits: usize,
    padded: bool,
}

/// Splits off the trailing number; a number that cannot be written between brackets stays in the prefix.
fn split_number(name: &str) -> (&str, Option<Suffix>) {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name.strip_prefix(prefix).unwrap_or_default();
    match number(digits, 0) {
        Ok(value) => {
            let padded = digits.len() > 1 && digits.starts_with('0');
            (prefix, Some(Suffix { value, digits: digits.len(), padded }))
        }
        Err(_) => (name, None),
    }
}

/// All names with the same prefix.
#[derive(Default)]
struct Family {
    /// Whether the prefix itself is a name.
    bare: bool,
    /// Digits and value of the numbers without leading zeros.
    plain: BTreeSet<(usize, u64)>,
    /// Numbers with leading zeros, by number of digits.
    padded: BTreeMap<usize, BTreeSet<u64>>,
}

impl Family {
    fn insert(&mut self, suffix: Option<Suffix>) {
        let Some(Suffix { value, digits, padded }) = suffix else {
            self.bare = true;
            return;
        };
        if padded {
            self.padded.entry(digits).or_default().insert(value);
        } else {
            self.plain.insert((digits, value));
        }
    }

    /// Returns the bare name, then one entry for all numbers.
    fn entries(self, prefix: &str) -> Vec<String> {
        let mut groups = self.padded;
        groups.insert(0, BTreeSet::new());
        // A number that is long enough shows no padding: 100 may continue 098-099.
        for (digits, value) in self.plain {
            if let Some((_, group)) = groups.range_mut(..=digits).next_back() {
                group.insert(value);
            }
        }
        let mut pieces = Vec::new();
        for (width, group) in groups {
            pieces.extend(
                runs(group).into_iter().map(|(lo, hi)| {
                    if lo == hi { format!("{lo:0width$}") } else { format!("{lo:0width$}-{hi:0width$}") }
                }),
            );
        }
        let mut entries = Vec::new();
        if self.bare {
            entries.push(prefix.to_owned());
        }
        match pieces.as_slice() {
            [] => {}
            [single] if !single.contains('-') => entries.push(format!("{prefix}{single}")),
            _ => entries.push(format!("{prefix}[{}]", pieces.join(","))),
        }
        entries
    }
}

/// Splits ascending numbers into runs without gaps.
fn runs(numbers: BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, hi)) if *hi + 1 == number => *hi = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}
