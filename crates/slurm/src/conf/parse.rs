use super::{
    ConfError, Item, Line, Operator, Pair,
    pair::{is_key, is_space},
};

/// Parses a text line by line; each error concerns one line, and parsing continues after it.
///
/// The order is Slurm's: comments are removed first, then continued lines joined, then backslashes resolved, and only
/// then are keys, quotes and values parsed. So only a backslash protects a `#`; neither quotes nor a continuation do.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Result<Line, ConfError>> {
    let mut physical = text.lines().zip(1..);
    std::iter::from_fn(move || {
        let (mut code, mut comments, mut number) = (String::new(), Vec::new(), None);
        for (line, at) in physical.by_ref() {
            number.get_or_insert(at);
            let (before, comment) = split_comment(line);
            comments.extend(comment.map(|comment| comment.trim_end_matches(is_space)));
            code.push_str(continued(before).unwrap_or(before));
            if continued(before).is_none() {
                break;
            }
        }
        number.map(|number| logical(&unescape(&code), &comments, number))
    })
}

/// Whether the last line of a text would continue with whatever is written after it.
pub(super) fn ends_open(text: &str) -> bool {
    text.lines().next_back().is_some_and(|line| continued(split_comment(line).0).is_some())
}

fn split_comment(line: &str) -> (&str, Option<&str>) {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        if c == '#' && !escaped {
            let (code, comment) = line.split_at(at);
            return (code, comment.strip_prefix('#'));
        }
        escaped = c == '\\' && !escaped;
    }
    (line, None)
}

/// The line without its last backslash, if that joins it to the next line.
fn continued(code: &str) -> Option<&str> {
    let code = code.trim_end_matches(is_space);
    let backslashes = code.len() - code.trim_end_matches('\\').len();
    code.strip_suffix('\\').filter(|_| backslashes % 2 == 1)
}

fn unescape(code: &str) -> String {
    let mut plain = String::with_capacity(code.len());
    let mut rest = code.chars();
    while let Some(c) = rest.next() {
        plain.extend(if c == '\\' { rest.next() } else { Some(c) });
    }
    plain
}

fn logical(code: &str, comments: &[&str], number: usize) -> Result<Line, ConfError> {
    let comment = (!comments.is_empty()).then(|| comments.join(" "));
    let control = |text: &str| text.chars().find(|c| c.is_control() && !is_space(*c));
    if let Some(character) = control(code).or_else(|| comment.as_deref().and_then(control)) {
        return Err(ConfError::Control { line: number, character });
    }
    let item = if code.trim_matches(is_space).is_empty() {
        Item::Empty
    } else if let Some(file) = include(code) {
        let one = !file.is_empty() && !file.contains(is_space);
        Item::Include(one.then(|| file.to_owned()).ok_or(ConfError::Include { line: number })?)
    } else {
        Item::Pairs(pairs(code, number, Source::File)?)
    };
    Ok(Line { number, item, comment })
}

/// Slurm recognizes the word only at the very start of a line.
fn include(code: &str) -> Option<&str> {
    let (word, file) = code.split_at_checked("include".len())?;
    let named = word.eq_ignore_ascii_case("include") && file.starts_with(is_space);
    named.then(|| file.trim_matches(is_space))
}

/// Where a text comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A file: spaces are allowed around the operator, so a missing value silently becomes the next word.
    File,
    /// A line of options: only `Key=Value`.
    Options,
}

/// Parses all pairs of a text that starts at line `first`.
pub(super) fn pairs(text: &str, first: usize, source: Source) -> Result<Vec<Pair>, ConfError> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let (pair, tail) = pair(rest, source).map_err(|stumble| {
            let (before, _) = text.split_at(text.len() - rest.len());
            let line = first + before.matches('\n').count();
            match (stumble, pairs.last()) {
                (Stumble::NoPair, None) => ConfError::NotAPair { line },
                (Stumble::NoPair, Some(pair)) => ConfError::Trailing { line, key: pair.key().to_owned() },
                (Stumble::NoValue(key), _) => ConfError::NoValue { line, key: key.to_owned() },
                (Stumble::Quotes(key), _) => ConfError::Quotes { line, key: key.to_owned() },
            }
        })?;
        pairs.push(pair);
        rest = tail.trim_start_matches(is_space);
    }
    Ok(pairs)
}

enum Stumble<'a> {
    NoPair,
    NoValue(&'a str),
    Quotes(&'a str),
}

/// Parses the first pair of a text; returns the rest too.
fn pair(text: &str, source: Source) -> Result<(Pair, &str), Stumble<'_>> {
    let in_file = source == Source::File;
    let (key, rest) = split_where(text, |c| !is_key(c));
    let rest = if in_file { rest.trim_start_matches(is_space) } else { rest };
    let operators = if in_file { Operator::ALL.as_slice() } else { &[Operator::Set] };
    let sign = operators.iter().find_map(|operator| Some((*operator, rest.strip_prefix(operator.sign())?)));
    let (operator, rest) = sign.filter(|_| !key.is_empty()).ok_or(Stumble::NoPair)?;
    let rest = if in_file { rest.trim_start_matches(is_space) } else { rest };
    let (value, rest) = if let Some(quoted) = rest.strip_prefix('"') {
        let closed = quoted.split_once('"').filter(|(_, rest)| rest.is_empty() || rest.starts_with(is_space));
        closed.ok_or(Stumble::Quotes(key))?
    } else {
        Some(split_where(rest, is_space)).filter(|(value, _)| !value.is_empty()).ok_or(Stumble::NoValue(key))?
    };
    Ok((Pair::read(key, operator, value), rest))
}

fn split_where(text: &str, end: impl Fn(char) -> bool) -> (&str, &str) {
    text.find(end).map_or((text, ""), |at| text.split_at(at))
}
