//! The envelope of every response: `meta`, `errors` and `warnings` next to the content.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use thiserror::Error;

use super::{ErrorEntry, Meta, NoVal, Warning, fields::Few};

/// A whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<B> {
    pub body: B,
    /// The server that responded.
    pub meta: Meta,
    /// Errors. A response with errors is a failure, whatever its HTTP status.
    pub errors: Vec<ErrorEntry>,
    /// What the server complained about but accepted.
    pub warnings: Vec<Warning>,
}

/// Content of a response, without the envelope.
///
/// Fields are passed one by one instead of flattened: flattening would copy a large response before decoding it.
pub trait Body: Default {
    /// The decoded result.
    type Output;

    /// Decodes the value of a known key. Returns false if the caller must skip the value.
    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;

    /// Returns the result, or the required key that is missing.
    fn finish(self) -> Result<Self::Output, &'static str>;
}

/// A response with only the envelope.
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

/// A list of records and the time of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// The records, in the server's order.
    pub items: Vec<T>,
    /// When slurmctld wrote the list, in seconds since 1970 by its clock; zero if missing.
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

/// A record that is returned in lists.
pub trait Record: DeserializeOwned {
    /// The key of the list in a response.
    const KEY: &'static str;

    /// The memory that the decoded records of a list may take. Whoever controls the server could otherwise fill the memory of its
    /// clients: three bytes of JSON are a record of hundreds.
    const MOST: usize = 128 << 20;

    /// The memory that this record takes, as far as it matters.
    fn size(&self) -> usize {
        size_of::<Self>()
    }
}

/// A list of records that does not take too much memory.
struct Bounded<T>(Vec<T>);

impl<'de, T: Record> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVisitor(PhantomData))
    }
}

struct BoundedVisitor<T>(PhantomData<T>);

impl<'de, T: Record> Visitor<'de> for BoundedVisitor<T> {
    type Value = Bounded<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bounded<T>, A::Error> {
        let (mut items, mut size): (Vec<T>, usize) = (Vec::new(), 0);
        while let Some(item) = seq.next_element::<T>()? {
            size += item.size();
            if size > T::MOST {
                return Err(A::Error::custom("the list is too long"));
            }
            items.push(item);
        }
        Ok(Bounded(items))
    }
}

/// A response with a list of records. A missing list is an error: it must not be mistaken for an empty one.
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
            self.items = Some(map.next_value::<Bounded<T>>()?.0);
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

/// A response could not be decoded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("at `{path}`: {reason}")]
pub struct DecodeError {
    /// Path in the JSON: `nodes[3].state`.
    pub path: String,
    pub reason: String,
}

/// Decodes a whole response.
pub fn decode<B: Body>(json: &[u8]) -> Result<Envelope<B>, DecodeError> {
    // Checking UTF-8 once is cheaper than for each of a million words. Tracking the path is also slow, so it is done
    // only after an error.
    let read = std::str::from_utf8(json).map_err(serde_json::Error::custom).and_then(serde_json::from_str);
    read.map_err(|error| {
        let mut again = serde_json::Deserializer::from_slice(json);
        match serde_path_to_error::deserialize::<_, Envelope<B>>(&mut again) {
            Err(error) => DecodeError { path: error.path().to_string(), reason: error.inner().to_string() },
            // The value is valid, but followed by more data.
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
        f.write_str("a slurmrestd response")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope<B>, A::Error> {
        let mut envelope =
            Envelope { body: B::default(), meta: Meta::default(), errors: Vec::new(), warnings: Vec::new() };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "meta" => envelope.meta = map.next_value::<Option<Meta>>()?.unwrap_or_default(),
                "errors" => envelope.errors = map.next_value::<Option<Few<_>>>()?.unwrap_or_default().0,
                "warnings" => envelope.warnings = map.next_value::<Option<Few<_>>>()?.unwrap_or_default().0,
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
    /// Returns the result. Fails if the response lacks the requested content.
    pub fn finish(self) -> Result<Envelope<B::Output>, DecodeError> {
        let missing = |key: &str| DecodeError {
            path: key.to_owned(),
            reason: serde_json::Error::custom("missing in the response").to_string(),
        };
        let body = self.body.finish().map_err(missing)?;
        Ok(Envelope { body, meta: self.meta, errors: self.errors, warnings: self.warnings })
    }
}
