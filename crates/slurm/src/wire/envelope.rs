//! The frame of every answer: `meta`, `errors` and `warnings` next to the one thing that was asked for.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor},
};
use thiserror::Error;

use super::{ErrorEntry, Meta, NoVal, Warning};

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<B> {
    /// What was asked for.
    pub body: B,
    /// Who answered.
    pub meta: Meta,
    /// What went wrong. An answer with errors is a failure, whatever its HTTP status.
    pub errors: Vec<ErrorEntry>,
    /// What the server did not like and did anyway.
    pub warnings: Vec<Warning>,
}

/// What stands in an answer next to its frame.
///
/// Fields are handed over one by one instead of flattened: flattening copies a large answer before it reads it.
pub trait Body: Default {
    /// What it becomes once the whole answer is read.
    type Output;

    /// Reads the value of a key that it knows. False leaves the value for the caller to skip.
    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;

    /// The finished thing, or the key without which there is none.
    fn finish(self) -> Result<Self::Output, &'static str>;
}

/// An answer that holds nothing but its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nothing;

impl Body for Nothing {
    type Output = ();

    fn take<'de, A: MapAccess<'de>>(&mut self, _: &str, _: &mut A) -> Result<bool, A::Error> {
        Ok(false)
    }

    fn finish(self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Records of one kind, and the moment of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// The records, in the server's order.
    pub items: Vec<T>,
    /// When slurmctld wrote this answer, in its own seconds since 1970; zero if it did not say.
    pub last_update: u64,
}

impl<T> Listing<T> {
    /// The records, in the server's order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }
}

impl<T> IntoIterator for Listing<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Listing<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

/// A record that comes in lists.
pub trait Record: DeserializeOwned {
    /// The key of its lists.
    const KEY: &'static str;
}

/// An answer that lists records. Without the list it is no answer: an empty list would be a lie.
#[derive(Clone, Debug)]
pub struct Records<T> {
    items: Option<Vec<T>>,
    last_update: NoVal,
}

impl<T> Default for Records<T> {
    fn default() -> Self {
        Self { items: None, last_update: NoVal::Unset }
    }
}

impl<T: Record> Body for Records<T> {
    type Output = Listing<T>;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == T::KEY {
            self.items = Some(map.next_value()?);
        } else if key == "last_update" {
            self.last_update = map.next_value()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn finish(self) -> Result<Listing<T>, &'static str> {
        let items = self.items.ok_or(T::KEY)?;
        Ok(Listing { items, last_update: self.last_update.number().unwrap_or(0) })
    }
}

/// An answer that could not be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("at `{path}`: {reason}")]
pub struct DecodeError {
    /// Where in the JSON it went wrong: `nodes[3].state`.
    pub path: String,
    /// What was wrong.
    pub reason: String,
}

/// Reads a whole answer.
pub fn decode<B: Body>(json: &[u8]) -> Result<Envelope<B>, DecodeError> {
    // That it is text is cheaper to find out once than for each of a million words. Following the path costs time, too, so it is
    // followed only once something is known to be wrong.
    let read = std::str::from_utf8(json).map_err(serde_json::Error::custom).and_then(serde_json::from_str);
    read.map_err(|error| {
        let mut again = serde_json::Deserializer::from_slice(json);
        match serde_path_to_error::deserialize::<_, Envelope<B>>(&mut again) {
            Err(error) => DecodeError { path: error.path().to_string(), reason: error.inner().to_string() },
            // The value was good, but not alone.
            Ok(_) => DecodeError { path: ".".to_owned(), reason: error.to_string() },
        }
    })
}

impl<'de, B: Body> Deserialize<'de> for Envelope<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EnvelopeVisitor(PhantomData))
    }
}

struct EnvelopeVisitor<B>(PhantomData<B>);

impl<'de, B: Body> Visitor<'de> for EnvelopeVisitor<B> {
    type Value = Envelope<B>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer of slurmrestd")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope<B>, A::Error> {
        let mut envelope =
            Envelope { body: B::default(), meta: Meta::default(), errors: Vec::new(), warnings: Vec::new() };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "meta" => envelope.meta = map.next_value::<Option<Meta>>()?.unwrap_or_default(),
                "errors" => envelope.errors = map.next_value::<Option<Vec<ErrorEntry>>>()?.unwrap_or_default(),
                "warnings" => envelope.warnings = map.next_value::<Option<Vec<Warning>>>()?.unwrap_or_default(),
                key => {
                    if !envelope.body.take(key, &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
        }
        Ok(envelope)
    }
}

impl<B: Body> Envelope<B> {
    /// The finished answer. Fails where the answer lacks what was asked for.
    pub fn finish(self) -> Result<Envelope<B::Output>, DecodeError> {
        let missing = |key: &str| DecodeError {
            path: key.to_owned(),
            reason: serde_json::Error::custom("missing in the answer").to_string(),
        };
        let body = self.body.finish().map_err(missing)?;
        Ok(Envelope { body, meta: self.meta, errors: self.errors, warnings: self.warnings })
    }
}
