//! Sets of state words, as sent by slurmrestd.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, SeqAccess, Visitor},
};

/// A state or flag, as spelled by slurmrestd.
pub trait Word: Copy + PartialEq + 'static {
    /// All known words with their spelling on the wire. At most 64.
    const ALL: &'static [(Self, &'static str)];

    /// The spelling on the wire.
    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(word, _)| *word == self).map_or("", |(_, text)| text)
    }
}

/// How many unknown words are kept, and how long they may be: newer versions have a few, and a hostile server has millions.
const MAX_OTHER: usize = 32;
const MAX_LENGTH: usize = 64;

/// A set of state words. Unknown words are kept, so that newer Slurm versions work.
#[derive(Clone, PartialEq, Eq)]
pub struct States<W> {
    known: u64,
    other: Vec<String>,
    words: PhantomData<W>,
}

impl<W> Default for States<W> {
    fn default() -> Self {
        Self { known: 0, other: Vec::new(), words: PhantomData }
    }
}

impl<W: Word> States<W> {
    pub fn has(&self, word: W) -> bool {
        self.known & bit(word) != 0
    }

    pub fn has_any(&self, words: &[W]) -> bool {
        words.iter().any(|word| self.has(*word))
    }

    /// The known words, in the order of [`Word::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = W> + '_ {
        W::ALL.iter().map(|(word, _)| *word).filter(|word| self.has(*word))
    }

    /// Words that this crate does not know, unchanged.
    pub fn unknown(&self) -> &[String] {
        &self.other
    }

    /// Whether the server sent no words.
    pub fn is_empty(&self) -> bool {
        self.known == 0 && self.other.is_empty()
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let known = self.iter().map(|word| -> &str { word.as_str() });
        known.chain(self.other.iter().map(String::as_str))
    }

    fn insert(&mut self, text: &str) {
        match W::ALL.iter().find(|(_, known)| *known == text) {
            Some((word, _)) => self.known |= bit(*word),
            None if self.other.len() < MAX_OTHER && text.len() <= MAX_LENGTH => self.other.push(text.to_owned()),
            None => {}
        }
    }
}

fn bit<W: Word>(word: W) -> u64 {
    let place = W::ALL.iter().position(|(known, _)| *known == word);
    place.and_then(|place| u32::try_from(place).ok()).and_then(|place| 1_u64.checked_shl(place)).unwrap_or(0)
}

impl<W: Word> FromIterator<W> for States<W> {
    fn from_iter<I: IntoIterator<Item = W>>(words: I) -> Self {
        let known = words.into_iter().fold(0, |known, word| known | bit(word));
        Self { known, ..Self::default() }
    }
}

impl<W: Word> fmt::Display for States<W> {
    /// Joined as by sinfo: `IDLE+DRAIN`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.texts().enumerate() {
            write!(f, "{}{word}", if index == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

impl<W: Word> fmt::Debug for States<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "States({self})")
    }
}

impl<W: Word> Serialize for States<W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.texts())
    }
}

impl<'de, W: Word> Deserialize<'de> for States<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StatesVisitor(Self::default()))
    }
}

struct StatesVisitor<W>(States<W>);

impl<'de, W: Word> Visitor<'de> for StatesVisitor<W> {
    type Value = States<W>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of state words")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<States<W>, A::Error> {
        while seq.next_element_seed(WordSeed(&mut self.0))?.is_some() {}
        Ok(self.0)
    }

    /// Older versions send the state of a job as a single word.
    fn visit_str<E>(mut self, text: &str) -> Result<States<W>, E> {
        if !text.is_empty() {
            self.0.insert(text);
        }
        Ok(self.0)
    }

    fn visit_unit<E>(self) -> Result<States<W>, E> {
        Ok(self.0)
    }
}

/// Adds one word to the set without copying it.
struct WordSeed<'a, W>(&'a mut States<W>);

impl<'de, W: Word> DeserializeSeed<'de> for WordSeed<'_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<W: Word> Visitor<'_> for WordSeed<'_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a state word")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.insert(text);
        Ok(())
    }
}
