//! Field deserializers that accept several formats, so that one type fits all REST versions.

use std::{fmt, marker::PhantomData};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, SeqAccess, Visitor},
};

use super::NoVal;
use crate::{hostlist::MAX_HOSTS, series};

/// The number of words in one list: features, or host names.
const MAX_WORDS: usize = MAX_HOSTS;

/// The number of errors and warnings of one response that are kept.
const MAX_FEW: usize = 1_000;

/// A list of which only the first entries are kept.
pub(super) struct Few<T>(pub(super) Vec<T>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FewVisitor(PhantomData))
    }
}

struct FewVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FewVisitor<T> {
    type Value = Few<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Few<T>, A::Error> {
        let mut few = Vec::new();
        while few.len() < MAX_FEW {
            let Some(item) = seq.next_element()? else { return Ok(Few(few)) };
            few.push(item);
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Few(few))
    }
}

/// The memory of words, besides that of their list.
pub(super) fn size_of_words(words: &[String]) -> usize {
    words.iter().map(|word| size_of::<String>() + word.len()).sum()
}

/// A string; null becomes empty.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Option::<String>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A string that becomes a label of a metric, of which no more is copied than a label may have; null becomes empty.
pub(super) fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(LabelVisitor)
}

struct LabelVisitor;

impl Visitor<'_> for LabelVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(series::cut(text).to_owned())
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

/// A list of which only the first entries are kept; null becomes empty.
pub(super) fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Option::<Few<T>>::deserialize(deserializer).map(|few| few.unwrap_or_default().0)
}

/// An integer in either format; unset and infinite become zero.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    NoVal::deserialize(deserializer).map(|number| number.number().unwrap_or(0))
}

/// A boolean; null becomes false.
pub(super) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<bool>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A time in seconds since 1970. Slurm sends zero or infinity for "never".
pub(super) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    NoVal::deserialize(deserializer).map(moment)
}

/// Converts seconds since 1970 to a time, if set.
pub(super) fn moment(seconds: NoVal) -> Option<Timestamp> {
    // Slurm's unset value for times, which some responses contain as a plain number.
    const NO_VAL: u64 = 4_294_967_294;
    let seconds = seconds.non_zero().filter(|seconds| *seconds != NO_VAL)?;
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}

/// Several words: a list, or a comma-separated string.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(ListVisitor)
}

/// A host list as a string, also if sent as a list of names.
pub(super) fn hostlist<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(JoinedVisitor)
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of words")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<String>, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = seq.next_element()? {
            if words.len() == MAX_WORDS {
                return Err(A::Error::custom("too many words"));
            }
            words.push(word);
        }
        Ok(words)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<String>, E> {
        let words = || text.split(',').filter(|word| !word.is_empty());
        if words().nth(MAX_WORDS).is_some() {
            return Err(E::custom("too many words"));
        }
        Ok(words().map(str::to_owned).collect())
    }

    fn visit_unit<E>(self) -> Result<Vec<String>, E> {
        Ok(Vec::new())
    }
}

struct JoinedVisitor;

impl<'de> Visitor<'de> for JoinedVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<String, A::Error> {
        ListVisitor.visit_seq(seq).map(|words| words.join(","))
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct All {
        #[serde(deserialize_with = "text")]
        text: String,
        #[serde(deserialize_with = "number")]
        number: u64,
        #[serde(deserialize_with = "flag")]
        flag: bool,
        #[serde(deserialize_with = "time")]
        time: Option<Timestamp>,
        #[serde(deserialize_with = "list")]
        list: Vec<String>,
        #[serde(deserialize_with = "hostlist")]
        hostlist: String,
    }

    fn read(text: &str) -> All {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn absent_and_null_are_nothing() {
        assert_eq!(read("{}"), All::default());
        let nulls = r#"{"text":null,"number":null,"flag":null,"time":null,"list":null,"hostlist":null}"#;
        assert_eq!(read(nulls), All::default());
    }

    #[test]
    fn a_long_label_is_cut_before_it_is_copied() {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Labels {
            #[serde(deserialize_with = "label")]
            name: String,
            #[serde(deserialize_with = "few")]
            few: Vec<u8>,
        }
        let text = format!(r#"{{"name":"{}","few":[{}1]}}"#, "ü".repeat(100_000), "1,".repeat(100_000));
        let labels: Labels = serde_json::from_str(&text).unwrap();
        assert_eq!((labels.name.len(), labels.name.capacity()), (series::MAX_LABEL, series::MAX_LABEL));
        assert!(labels.name.chars().all(|c| c == 'ü'));
        assert_eq!(labels.few.len(), MAX_FEW);
        let none: Labels = serde_json::from_str(r#"{"name":null,"few":null}"#).unwrap();
        assert!(none.name.is_empty() && none.few.is_empty());
        assert!(serde_json::from_str::<Labels>(r#"{"name":1}"#).is_err());
    }

    #[test]
    fn lists_come_in_two_forms() {
        assert_eq!(read(r#"{"list":["a","b"]}"#), read(r#"{"list":"a,b"}"#));
        assert_eq!(read(r#"{"list":""}"#).list, Vec::<String>::new());
        assert_eq!(read(r#"{"hostlist":["w[0-1]","x"]}"#), read(r#"{"hostlist":"w[0-1],x"}"#));
    }

    #[test]
    fn moments() {
        let second = |second| Some(Timestamp::from_second(second).unwrap());
        assert_eq!(read(r#"{"time":1794781269}"#).time, second(1_794_781_269));
        assert_eq!(read(r#"{"time":{"set":true,"number":1794781269}}"#).time, second(1_794_781_269));
        for none in ["0", "4294967294", r#"{"set":false,"infinite":true}"#, "18446744073709551615", "-5"] {
            assert_eq!(read(&format!(r#"{{"time":{none}}}"#)).time, None, "{none}");
        }
    }
}
