//! Slurm configuration files such as slurm.conf: parsing, writing, and merging the user's part with the operator's.
//!
//! slurmdbd.conf, cgroup.conf and gres.conf have the same syntax; [`check`] knows which other files do, and which keys a release
//! of Slurm knows. Files with another syntax (Lua scripts) are passed on unchanged.
//!
//! A *single value* can never become a second key, a second line or a comment. Text that a user writes as part of the
//! file has its own type, [`Extra`]: it is written unchanged, and parsed only to find out what it overrides.

mod build;
mod check;
mod cluster;
mod error;
mod extra;
mod keys;
mod node;
mod options;
mod pair;
mod parse;
mod qos;
mod topology;

use std::fmt;

pub use build::{ConfBuilder, Record};
pub use check::{Finding, Severity, check, check_node, check_partition};
pub use cluster::{Report, UserConf, UserFile, check_cluster};
pub use error::{ConfError, Found};
pub use extra::{Extra, Override, merge_options};
pub use node::{Hardware, StaticLines, StaticNodes};
pub use options::{NodeConf, Options, shell_word};
pub use pair::{Operator, Pair};
pub use qos::{QOS_KEYS, unknown_qos};

/// A parsed configuration, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    lines: Vec<Line>,
}

/// One logical line: a line, or several joined by backslashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Line number where it starts, from 1.
    pub number: usize,
    pub item: Item,
    /// The text after the `#`, if any.
    pub comment: Option<String>,
}

/// Content of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Nothing, or only a comment.
    Empty,
    /// Another file, which Slurm reads.
    Include(String),
    /// At least one pair. The first names the parameter or record (`NodeName=…`); the others belong to it.
    Pairs(Vec<Pair>),
}

impl Conf {
    /// Parses a whole file, or returns the first line that Slurm would reject.
    ///
    /// Keys and values are not validated, see [`check`]: they differ between daemons and versions.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let lines = parse::lines(text).collect::<Result<_, _>>()?;
        Ok(Self { lines })
    }

    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Returns the last value of a parameter, which is the one that Slurm uses (unless an `Include` changes it).
    pub fn get(&self, key: &str) -> Option<&str> {
        self.records(key).last().and_then(<[Pair]>::first).map(Pair::value)
    }

    /// Returns all lines with a key that may occur many times, such as `NodeName` or `SlurmctldHost`.
    pub fn records<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a [Pair]> {
        self.lines.iter().filter_map(Line::pairs).filter(move |pairs| pairs.first().is_some_and(|p| p.has_key(key)))
    }
}

impl Line {
    fn pairs(&self) -> Option<&[Pair]> {
        match &self.item {
            Item::Pairs(pairs) => Some(pairs),
            Item::Empty | Item::Include(_) => None,
        }
    }
}

/// The same configuration, with each logical line on one line.
impl fmt::Display for Conf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.item {
            Item::Empty => {}
            Item::Include(file) => write!(f, "Include {}", pair::Escaped(file))?,
            Item::Pairs(pairs) => {
                for (n, pair) in pairs.iter().enumerate() {
                    let blank = if n == 0 { "" } else { " " };
                    write!(f, "{blank}{pair}")?;
                }
            }
        }
        match &self.comment {
            Some(comment) if self.item == Item::Empty => write!(f, "#{comment}"),
            Some(comment) => write!(f, " #{comment}"),
            None => Ok(()),
        }
    }
}
