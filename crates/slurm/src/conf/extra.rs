use std::fmt;

use super::{ConfError, Line, Pair, build::is_record, parse};

/// The user's part of a file. It is passed on unchanged; Slurm validates it.
#[derive(Clone, Default)]
pub struct Extra {
    text: String,
    lines: Vec<Line>,
    problems: Vec<ConfError>,
}

/// A parameter or record that the user's part overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The key as the user wrote it.
    pub key: String,
    /// Line number, from the start of the user's part.
    pub line: usize,
}

impl Extra {
    /// Accepts any text.
    pub fn new(text: &str) -> Self {
        let (mut lines, mut problems) = (Vec::new(), Vec::new());
        for line in parse::lines(text) {
            match line.and_then(one_parameter) {
                Ok(line) => lines.push(line),
                Err(problem) => problems.push(problem),
            }
        }
        Self { text: text.to_owned(), lines, problems }
    }

    /// Lines that Slurm would reject. They are still passed on, but ignored here.
    pub fn problems(&self) -> &[ConfError] {
        &self.problems
    }

    /// Returns the last value of a parameter.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.settings().filter(|(_, pair)| pair.has_key(key)).last().map(|(_, pair)| pair.value())
    }

    /// Returns all values of a parameter, or the names of all records of a kind.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.settings().filter(move |(_, pair)| pair.has_key(key)).map(|(_, pair)| pair.value())
    }

    /// Whether the text is empty or only whitespace.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Returns the parameter or record of each line.
    pub(super) fn settings(&self) -> impl Iterator<Item = (usize, &Pair)> {
        self.lines.iter().filter_map(|line| Some((line.number, line.pairs()?.first()?)))
    }
}

/// Slurm accepts several pairs only in a record: `Parameters=a, b=1` has one space too many.
fn one_parameter(line: Line) -> Result<Line, ConfError> {
    match line.pairs() {
        Some([first, _, ..]) if !is_record(first.key()) => {
            Err(ConfError::Trailing { line: line.number, key: first.key().to_owned() })
        }
        _ => Ok(line),
    }
}

/// The text, terminated so that whatever follows starts on a new line.
impl fmt::Display for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text.trim_matches(['\n', '\r']);
        // A trailing backslash would join the next line to this one.
        let end = if parse::ends_open(text) { "\n\n" } else { "\n" };
        write!(f, "{text}{end}")
    }
}

/// Hides the content: it may contain passwords.
impl fmt::Debug for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extra").field("lines", &self.lines).field("problems", &self.problems).finish_non_exhaustive()
    }
}

/// Merges the operator's and the user's options, sorted. If both have an option with the same name (the part before
/// `=`, case-insensitive), the operator's is kept.
///
/// Names and values keep their case: values may be paths.
pub fn merge_options<'a>(ours: impl IntoIterator<Item = &'a str>, theirs: &'a str) -> Vec<&'a str> {
    let name = |option: &str| option.split('=').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let mut merged: Vec<(String, &str)> = Vec::new();
    for option in ours.into_iter().chain(theirs.split(',')).map(str::trim).filter(|option| !option.is_empty()) {
        let name = name(option);
        if !merged.iter().any(|(other, _)| *other == name) {
            merged.push((name, option));
        }
    }
    merged.sort_unstable();
    merged.into_iter().map(|(_, option)| option).collect()
}
