use std::fmt;

use super::{
    ConfError, Extra, Item, Line, NodeConf, Options, Override, Pair, merge_options,
    pair::{self, Kind},
};

/// Builds a configuration file in the order of the calls.
///
/// Each value has a kind that restricts its characters; a value that does not conform is rejected rather than changed.
/// Parameters set with [`list`](Self::list) are merged with the user's value of the same parameter.
#[derive(Clone, Debug, Default)]
pub struct ConfBuilder {
    lines: Vec<Line>,
    lists: Vec<List>,
}

#[derive(Clone, Debug)]
struct List {
    key: String,
    options: Vec<String>,
}

impl ConfBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a heading.
    pub fn section(&mut self, title: &str) -> Result<&mut Self, ConfError> {
        self.comment("")?.comment(&format!("## {title} ###"))
    }

    /// Adds a comment line.
    pub fn comment(&mut self, text: &str) -> Result<&mut Self, ConfError> {
        if text.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')) {
            return Err(ConfError::Comment);
        }
        self.push(Item::Empty, Some(text.to_owned()));
        Ok(self)
    }

    /// Adds a value without whitespace: a path, an address, a plugin.
    pub fn word(&mut self, key: &str, value: &str) -> Result<&mut Self, ConfError> {
        Ok(self.pair(Pair::new(key, value, Kind::Word)?))
    }

    /// Adds a value that is a single name, for example of a cluster or a user.
    pub fn name(&mut self, key: &str, value: &str) -> Result<&mut Self, ConfError> {
        Ok(self.pair(Pair::new(key, value, Kind::Name)?))
    }

    /// Adds a single-line value with any characters, such as a password. Rejects only quotation marks that Slurm's
    /// syntax cannot express.
    pub fn text(&mut self, key: &str, value: &str) -> Result<&mut Self, ConfError> {
        Ok(self.pair(Pair::new(key, value, Kind::Text)?))
    }

    pub fn number(&mut self, key: &str, value: impl Into<u64>) -> Result<&mut Self, ConfError> {
        self.word(key, &value.into().to_string())
    }

    /// Adds a comma-separated list of options in this order; an empty list omits the key.
    pub fn list<'a>(&mut self, key: &str, options: impl IntoIterator<Item = &'a str>) -> Result<&mut Self, ConfError> {
        let options: Vec<String> = options.into_iter().map(str::to_owned).collect();
        for option in &options {
            pair::check(key, option, Kind::Option)?;
        }
        if !options.is_empty() {
            self.word(key, &options.join(","))?;
        }
        self.lists.push(List { key: key.to_owned(), options });
        Ok(self)
    }

    /// Adds a line of several pairs.
    pub fn record(&mut self, record: Record) -> &mut Self {
        self.push(Item::Pairs(record.pairs), None);
        self
    }

    /// Parameters that the user's part overrides: Slurm uses the last value of a key. Lists of this configuration are
    /// merged instead and are not reported.
    pub fn overrides(&self, extra: &Extra) -> Vec<Override> {
        let listed = |pair: &Pair| self.lists.iter().any(|list| pair.has_key(&list.key));
        let mut found = Vec::new();
        for (number, theirs) in extra.settings() {
            let ours = self.lines.iter().filter_map(Line::pairs).filter_map(<[Pair]>::first);
            let same_key: Vec<&Pair> = ours.filter(|ours| ours.has_key(theirs.key())).collect();
            // A record with another name is an addition, not an override.
            let another_record = is_record(theirs.key()) && !same_key.iter().any(|p| p.value() == theirs.value());
            let same_value = !is_record(theirs.key()) && same_key.last().is_some_and(|p| p.value() == theirs.value());
            if !same_key.is_empty() && !another_record && !same_value && !listed(theirs) {
                found.push(Override { key: theirs.key().to_owned(), line: number });
            }
        }
        found
    }

    /// Renders the whole file: the operator's part, the user's part unchanged, then the merged lists that both set.
    pub fn render(&self, extra: &Extra) -> Result<String, ConfError> {
        let ours = self.to_string();
        if extra.is_empty() {
            return Ok(ours);
        }
        let mut heading = Self::new();
        heading.section("EXTRA CONFIG")?;
        let mut merged = Self::new();
        for list in &self.lists {
            let Some(theirs) = extra.get(&list.key) else { continue };
            if merged.lines.is_empty() {
                merged.section("MERGED CONFIG")?;
            }
            let options = merge_options(list.options.iter().map(String::as_str), theirs);
            merged.text(&list.key, &options.join(","))?;
        }
        Ok(format!("{ours}{heading}{extra}{merged}"))
    }

    fn pair(&mut self, pair: Pair) -> &mut Self {
        self.record(Record { pairs: vec![pair] })
    }

    fn push(&mut self, item: Item, comment: Option<String>) {
        self.lines.push(Line { number: self.lines.len() + 1, item, comment });
    }
}

/// The operator's part alone.
impl fmt::Display for ConfBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Keys that start a record, a line of several pairs.
const RECORDS: &[&str] = &["DownNodes", "FrontendName", "Name", "NodeName", "NodeSet", "PartitionName", "PowerAction"];

pub(super) fn is_record(key: &str) -> bool {
    RECORDS.iter().any(|record| record.eq_ignore_ascii_case(key))
}

/// A line of several pairs: a node, a node set, a partition, a generic resource.
#[derive(Clone, Debug)]
pub struct Record {
    pairs: Vec<Pair>,
}

impl Record {
    /// Starts a record with the key that identifies its type, and its name.
    pub fn new(key: &str, name: &str) -> Result<Self, ConfError> {
        Ok(Self { pairs: vec![Pair::new(key, name, Kind::Name)?] })
    }

    /// Starts a record for many nodes, with a host list instead of a name.
    pub(super) fn hosts(key: &str, hosts: &str) -> Result<Self, ConfError> {
        Ok(Self { pairs: vec![Pair::new(key, hosts, Kind::Word)?] })
    }

    /// Adds a pair whose value has no whitespace.
    pub fn word(self, key: &str, value: &str) -> Result<Self, ConfError> {
        let pair = Pair::new(key, value, Kind::Word)?;
        self.with(pair)
    }

    /// Adds a pair whose value is a name.
    pub fn name(self, key: &str, value: &str) -> Result<Self, ConfError> {
        let pair = Pair::new(key, value, Kind::Name)?;
        self.with(pair)
    }

    /// Adds the user's pairs. A key that is already set is rejected.
    pub fn options(self, options: &Options) -> Result<Self, ConfError> {
        options.pairs().iter().try_fold(self, |record, pair| record.with(pair.clone()))
    }

    /// Adds the properties of a node. A key that is already set is rejected.
    pub(super) fn node(self, conf: &NodeConf) -> Result<Self, ConfError> {
        conf.pairs().try_fold(self, Self::with)
    }

    fn with(mut self, pair: Pair) -> Result<Self, ConfError> {
        if self.pairs.iter().any(|other| other.has_key(pair.key())) {
            return Err(ConfError::Taken { key: pair.key().to_owned() });
        }
        self.pairs.push(pair);
        Ok(self)
    }
}
