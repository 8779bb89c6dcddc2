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

/// `Key=Value Key=Value …`: what a user adds to one line of ours. Line breaks count as blanks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pairs: Vec<Pair>,
}

impl Options {
    /// Reads them, and refuses whatever could become another line, another record or a comment.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let pairs = parse::pairs(text, 1, Source::Options)?;
        for pair in &pairs {
            if is_record(pair.key()) {
                return Err(ConfError::Starts { key: pair.key().to_owned() });
            }
            // Nobody resolves escapes in such a text, so there can be none.
            if !pair.value().is_empty() {
                pair::check(pair.key(), pair.value(), Kind::Words)?;
            }
        }
        Ok(Self { pairs })
    }

    /// In the order of the text.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }
}

/// What `slurmd --conf` takes: the properties of a node that registers itself.
///
/// It is written sorted by key. `Feature` and `Features` are one key, sorted and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConf {
    features: BTreeSet<String>,
    /// By the key in lower case; the pair has the key as it was first written.
    others: BTreeMap<String, Pair>,
}

impl NodeConf {
    /// Reads what a user wants; of a key that is there more than once all values are taken, with commas between.
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

    /// Adds a feature.
    pub fn feature(&mut self, name: &str) -> Result<&mut Self, ConfError> {
        pair::check("Features", name, Kind::Option)?;
        self.features.insert(name.to_owned());
        Ok(self)
    }

    /// Sets a key, unless the user did.
    pub fn set_default(&mut self, key: &str, value: &str) -> Result<&mut Self, ConfError> {
        let pair = Pair::new(key, value, Kind::Word)?;
        self.others.entry(key.to_ascii_lowercase()).or_insert(pair);
        Ok(self)
    }

    /// The value of a key; of `Features`, all of them with commas between.
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

/// A text as one word of a shell command, whatever is in it: the images of slurmd evaluate their arguments.
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
