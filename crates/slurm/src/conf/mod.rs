//! The text of slurm.conf and its relatives: reading, writing, and putting a user's part and ours together.
//!
//! slurmdbd.conf, cgroup.conf and gres.conf have the same notation; [`check_file`] knows which other files do. What has
//! a notation of its own (topology.yaml, Lua scripts) is passed on as it is.
//!
//! Nothing that is given as *one value* can become a second key, a second line or a comment. A text that a user writes
//! as a part of the file is another type, [`Extra`]: it is written as it is, and read only to see what it changes.

mod build;
mod error;
mod extra;
mod options;
mod pair;
mod parse;

use std::fmt;

pub use build::{ConfBuilder, Record};
pub use error::{ConfError, Found};
pub use extra::{Extra, Override, merge_options};
pub use options::{NodeConf, Options, shell_word};
pub use pair::{Operator, Pair};

/// A configuration that was read, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    lines: Vec<Line>,
}

/// One line, or several that backslashes join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it starts, from 1.
    pub number: usize,
    /// What it says.
    pub item: Item,
    /// What stands after the `#`, if there is one.
    pub comment: Option<String>,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Nothing, or only a comment.
    Empty,
    /// Another file, which is left to Slurm to read.
    Include(String),
    /// At least one pair. The first names the parameter or record (`NodeName=…`); any further ones belong to it.
    Pairs(Vec<Pair>),
}

impl Conf {
    /// Reads a whole file, or says in which line Slurm would stumble first.
    ///
    /// Keys and values are not judged: each daemon of each version knows others.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let lines = parse::lines(text).collect::<Result<_, _>>()?;
        Ok(Self { lines })
    }

    /// All lines in their order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The last value of a parameter, which is the one that Slurm takes (unless an `Include` changes it).
    pub fn get(&self, key: &str) -> Option<&str> {
        self.records(key).last().and_then(<[Pair]>::first).map(Pair::value)
    }

    /// All lines about a key that may be there many times, such as `NodeName` or `SlurmctldHost`.
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

/// The same configuration, each logical line on one line.
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

/// Configuration files in the notation of slurm.conf. All others are passed on unread; so is topology.conf, whose
/// plugins each have their own ideas.
const KEY_VALUE_FILES: &[&str] = &[
    "acct_gather.conf",
    "burst_buffer.conf",
    "cgroup.conf",
    "gres.conf",
    "helpers.conf",
    "job_container.conf",
    "mpi.conf",
    "oci.conf",
    "slurm.conf",
    "slurmdbd.conf",
];

/// Says in which line of a configuration file Slurm would stumble; files in another notation always pass.
pub fn check_file(name: &str, text: &str) -> Result<(), ConfError> {
    if KEY_VALUE_FILES.contains(&name) { Conf::parse(text).map(drop) } else { Ok(()) }
}
