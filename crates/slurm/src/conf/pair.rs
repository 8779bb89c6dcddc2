use std::fmt;

use super::{ConfError, Found};

/// One `Key=Value`, with the value as Slurm interprets it: without quotes and escapes.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    key: String,
    operator: Operator,
    value: String,
}

/// Operator between key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    #[default]
    Set,
    /// `+=`
    Add,
    /// `-=`
    Subtract,
    /// `*=`
    Multiply,
    /// `/=`
    Divide,
}

impl Operator {
    pub(super) const ALL: [Self; 5] = [Self::Set, Self::Add, Self::Subtract, Self::Multiply, Self::Divide];

    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Set => "=",
            Self::Add => "+=",
            Self::Subtract => "-=",
            Self::Multiply => "*=",
            Self::Divide => "/=",
        }
    }
}

/// What a value may contain.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// One word: a path, an address, a number, a comma-separated list.
    Word,
    /// One name, which must not turn into several.
    Name,
    /// One option of a comma-separated list.
    Option,
    /// One or more words, quoted if needed, without escapes.
    Words,
    /// Any single-line text that can be expressed with quotes and escapes.
    Text,
}

impl Pair {
    pub(super) fn new(key: &str, value: &str, kind: Kind) -> Result<Self, ConfError> {
        if key.is_empty() || !key.chars().all(is_key) {
            return Err(ConfError::Key { key: key.chars().take(40).collect() });
        }
        check(key, value, kind)?;
        Ok(Self { key: key.to_owned(), operator: Operator::Set, value: value.to_owned() })
    }

    /// Creates a pair from parsed text, which can therefore be written again.
    pub(super) fn read(key: &str, operator: Operator, value: &str) -> Self {
        Self { key: key.to_owned(), operator, value: value.to_owned() }
    }

    /// The key as written.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether it has this key; Slurm ignores the case.
    pub fn has_key(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The value without quotes and escapes.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.value.is_empty() || self.value.contains(is_space) { "\"" } else { "" };
        write!(f, "{}{}{quote}{}{quote}", self.key, self.operator.sign(), Escaped(&self.value))
    }
}

/// Hides the value: it may be a password.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.key.to_ascii_lowercase().contains("pass");
        let value = if secret { "(hidden)" } else { self.value.as_str() };
        write!(f, "{}{}{value:?}", self.key, self.operator.sign())
    }
}

/// Writes `#` and `\` so that Slurm reads them literally.
pub(super) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.0.split_inclusive(['#', '\\']) {
            match piece.strip_suffix(['#', '\\']) {
                Some(plain) => {
                    f.write_str(plain)?;
                    f.write_str(if piece.ends_with('#') { "\\#" } else { "\\\\" })?;
                }
                None => f.write_str(piece)?,
            }
        }
        Ok(())
    }
}

pub(super) fn is_key(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.')
}

/// C's isspace: what separates words in Slurm.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// Rejects a value that Slurm would not read back unchanged.
pub(super) fn check(key: &str, value: &str, kind: Kind) -> Result<(), ConfError> {
    let found = if value.is_empty() {
        Some(Found::Nothing)
    } else {
        let blanks = value.contains(is_space);
        // Quotes cannot be escaped within quotes, and a leading one would open them.
        let quotes = match kind {
            Kind::Text => blanks && value.contains('"') || value.starts_with('"'),
            _ => value.contains('"'),
        };
        quotes.then_some(Found::Quote).or_else(|| value.chars().find_map(|c| objection(c, kind)))
    };
    found.map_or(Ok(()), |found| Err(ConfError::Value { key: key.to_owned(), found }))
}

fn objection(c: char, kind: Kind) -> Option<Found> {
    match (c, kind) {
        ('\n' | '\r' | '\x0b' | '\x0c' | '\u{85}' | '\u{2028}' | '\u{2029}', _) => Some(Found::LineBreak),
        (' ' | '\t', Kind::Words | Kind::Text) => None,
        (c, _) if c.is_control() && c != '\t' => Some(Found::Control),
        ('#' | '\\', Kind::Text) => None,
        (c, Kind::Name) if !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) => Some(Found::NotInName(c)),
        (c, Kind::Word | Kind::Option) if c.is_whitespace() => Some(Found::Blank),
        ('#', _) => Some(Found::Hash),
        ('\\', _) => Some(Found::Backslash),
        (',', Kind::Option) => Some(Found::Comma),
        _ => None,
    }
}
