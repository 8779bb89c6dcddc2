//! Slurm's numbers that may be unset or infinite.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{IgnoredAny, MapAccess, Visitor},
    ser::SerializeStruct,
};

/// A number that may be unset or infinite; `{set, infinite, number}` on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NoVal {
    #[default]
    Unset,
    /// Without limit.
    Infinite,
    Is(u64),
}

impl NoVal {
    /// Returns the number, if set and finite.
    pub const fn number(self) -> Option<u64> {
        match self {
            Self::Is(number) => Some(number),
            Self::Unset | Self::Infinite => None,
        }
    }

    /// Returns the number, if set, finite and not zero: Slurm often sends zero for "none".
    pub const fn non_zero(self) -> Option<u64> {
        match self {
            Self::Is(0) | Self::Unset | Self::Infinite => None,
            Self::Is(number) => Some(number),
        }
    }
}

impl From<u64> for NoVal {
    fn from(number: u64) -> Self {
        Self::Is(number)
    }
}

impl Serialize for NoVal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("NoVal", 3)?;
        out.serialize_field("set", &matches!(self, Self::Is(_)))?;
        out.serialize_field("infinite", &matches!(self, Self::Infinite))?;
        out.serialize_field("number", &self.number().unwrap_or(0))?;
        out.end()
    }
}

impl<'de> Deserialize<'de> for NoVal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NoValVisitor)
    }
}

struct NoValVisitor;

impl<'de> Visitor<'de> for NoValVisitor {
    type Value = NoVal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or {set, infinite, number}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NoVal, A::Error> {
        let (mut set, mut infinite, mut number) = (false, false, NoVal::Unset);
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::Set => set = map.next_value()?,
                Key::Infinite => infinite = map.next_value()?,
                // Not an object again: a malicious response could nest without limit.
                Key::Number => number = map.next_value::<Plain>()?.0,
                Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        // v0.0.41 and later send infinite with `set` false; older versions with both true.
        Ok(match (infinite, set) {
            (true, _) => NoVal::Infinite,
            (false, true) => number,
            (false, false) => NoVal::Unset,
        })
    }

    fn visit_u64<E>(self, number: u64) -> Result<NoVal, E> {
        Ok(NoVal::Is(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<NoVal, E> {
        Ok(signed(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<NoVal, E> {
        Ok(fraction(number))
    }

    fn visit_unit<E>(self) -> Result<NoVal, E> {
        Ok(NoVal::Unset)
    }
}

/// Negative numbers mean "none" in Slurm's C API.
fn signed(number: i64) -> NoVal {
    u64::try_from(number).map_or(NoVal::Unset, NoVal::Is)
}

/// The fraction of averages is dropped. A number that is too large counts as unset.
fn fraction(number: f64) -> NoVal {
    // Through text, because a float cast is unchecked.
    format!("{number:.0}").parse().map_or(NoVal::Unset, NoVal::Is)
}

/// A plain number, not an object.
struct Plain(NoVal);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlainVisitor;
        impl Visitor<'_> for PlainVisitor {
            type Value = NoVal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_u64<E>(self, number: u64) -> Result<NoVal, E> {
                Ok(NoVal::Is(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<NoVal, E> {
                Ok(signed(number))
            }

            fn visit_f64<E>(self, number: f64) -> Result<NoVal, E> {
                Ok(fraction(number))
            }

            fn visit_unit<E>(self) -> Result<NoVal, E> {
                Ok(NoVal::Unset)
            }
        }
        deserializer.deserialize_any(PlainVisitor).map(Plain)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Set,
    Infinite,
    Number,
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_say_a_number() {
        let table = [
            (r#"{"set":true,"infinite":false,"number":7}"#, NoVal::Is(7)),
            (r#"{"number":7,"infinite":false,"set":true,"new":[1,{}]}"#, NoVal::Is(7)),
            (r#"{"set":true,"number":7}"#, NoVal::Is(7)),
            (r#"{"set":true,"infinite":false,"number":0}"#, NoVal::Is(0)),
            (r#"{"set":false,"infinite":false,"number":7}"#, NoVal::Unset),
            (r#"{"set":false,"infinite":true,"number":0}"#, NoVal::Infinite),
            (r#"{"set":true,"infinite":true,"number":0}"#, NoVal::Infinite),
            (r#"{"set":true,"infinite":false,"number":-1}"#, NoVal::Unset),
            (r#"{"set":true,"infinite":false,"number":1.5}"#, NoVal::Is(2)),
            (r#"{"set":true}"#, NoVal::Unset),
            ("{}", NoVal::Unset),
            ("null", NoVal::Unset),
            ("12", NoVal::Is(12)),
            ("-12", NoVal::Unset),
            ("12.0", NoVal::Is(12)),
            ("1e300", NoVal::Unset),
            ("18446744073709551615", NoVal::Is(u64::MAX)),
        ];
        for (text, expected) in table {
            assert_eq!(serde_json::from_str::<NoVal>(text).unwrap(), expected, "{text}");
        }
        for text in ["[]", "\"7\"", r#"{"set":1}"#, r#"{"set":true,"number":{"set":true}}"#] {
            serde_json::from_str::<NoVal>(text).unwrap_err();
        }
    }

    #[test]
    fn zero_is_often_none() {
        assert_eq!((NoVal::Is(0).number(), NoVal::Is(0).non_zero()), (Some(0), None));
        assert_eq!((NoVal::Is(3).number(), NoVal::Is(3).non_zero()), (Some(3), Some(3)));
        assert_eq!((NoVal::Infinite.number(), NoVal::Unset.non_zero()), (None, None));
    }

    #[test]
    fn written_as_slurm_reads_it() {
        for value in [NoVal::Is(5), NoVal::Infinite, NoVal::Unset] {
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<NoVal>(&text).unwrap(), value, "{text}");
        }
        assert_eq!(serde_json::to_string(&NoVal::Is(5)).unwrap(), r#"{"set":true,"infinite":false,"number":5}"#);
    }
}
