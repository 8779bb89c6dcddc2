use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    ConfError, Operator, Pair,
    build::is_record,
    pair::{self, Kind},
    parse::{self, Source},
};

/// `Key=Value Key=Value …`: the user's additions to one of the operator's lines. Line breaks count as spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pairs: Vec<Pair>,
}

impl Options {
    /// Parses options and rejects everything that could become another line, another record or a comment.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let pairs = parse::pairs(text, 1, Source::Options)?;
        for pair in &pairs {
            if is_record(pair.key()) {
                return Err(ConfError::Starts { key: pair.key().to_owned() });
            }
            // Escapes are not resolved in such a text, so there can be none.
            if !pair.value().is_empty() {
                pair::check(pair.key(), pair.value(), Kind::Words)?;
            }
        }
        Ok(Self { pairs })
    }

    /// The pairs in the order of the text.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }
}

/// Node properties for `slurmd --conf`, with which a node registers itself.
///
/// Written sorted by key. `Feature` and `Features` are the same key, sorted and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConf {
    features: BTreeSet<String>,
    /// By lower-case key; the pair has the key as first written.
    others: BTreeMap<String, Pair>,
}

impl NodeConf {
    /// Parses the user's text; the values of a repeated key are joined with commas.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        for pair in Options::parse(text)?.pairs() {
            if pair.has_key("Feature") || pair.has_key("Features") {
                conf.features.extend(pair.value().split(',').filter(|name| !name.is_empty()).map(str::to_owned));
                continue;
            }
            let joined =
                |first: &Pair| Pair::read(first.key(), Operator::Set, &[first.value(), pair.value()].join(","));
            let key = pair.key().to_ascii_lowercase();
            let value = conf.others.get(&key).map_or_else(|| pair.clone(), joined);
            conf.others.insert(key, value);
        }
        Ok(conf)
    }

    pub fn feature(&mut self, name: &str) -> Result<&mut Self, ConfError> {
        pair::check("Features", name, Kind::Option)?;
        self.features.insert(name.to_owned());
        Ok(self)
    }

    /// Sets a key unless the user set it.
    pub fn set_default(&mut self, key: &str, value: &str) -> Result<&mut Self, ConfError> {
        let pair = Pair::new(key, value, Kind::Word)?;
        self.others.entry(key.to_ascii_lowercase()).or_insert(pair);
        Ok(self)
    }

    /// Removes a key. Returns whether it was set.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        self.others.remove(&key.to_ascii_lowercase()).is_some()
    }

    /// The pairs, sorted by key.
    pub(super) fn pairs(&self) -> impl Iterator<Item = Pair> {
        self.all().into_values()
    }

    /// Returns the value of a key; `Features` are joined with commas.
    pub fn get(&self, key: &str) -> Option<String> {
        self.all().remove(&key.to_ascii_lowercase()).map(|pair| pair.value().to_owned())
    }

    fn all(&self) -> BTreeMap<String, Pair> {
        let mut all = self.others.clone();
        let features: Vec<&str> = self.features.iter().map(String::as_str).collect();
        if !features.is_empty() {
            all.insert("features".to_owned(), Pair::read("Features", Operator::Set, &features.join(",")));
        }
        all
    }
}

impl fmt::Display for NodeConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.all().values().map(Pair::to_string).collect();
        f.write_str(&pairs.join(" "))
    }
}

/// Quotes a text as one shell word: the slurmd images evaluate their arguments in a shell.
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
