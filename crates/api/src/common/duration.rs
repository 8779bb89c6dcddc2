//! Durations in Go notation (`1h30m`), the wire format of `metav1.Duration`.
//!
//! Not `kube::core::Duration`: it calculates with floating-point numbers, and panics if a value is too large.

use jiff::SignedDuration;
use thiserror::Error;

/// Schema pattern for [`parse`]. It checks the syntax only; a value may still be too large.
pub const PATTERN: &str = r"^[+-]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";

/// A text is not a duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{text}` is not a duration like 15m or 1h30m: {reason}")]
pub struct DurationError {
    text: String,
    reason: &'static str,
}

/// Parses like Go's `time.ParseDuration`, with its limit of about 292 years.
pub fn parse(text: &str) -> Result<SignedDuration, DurationError> {
    let nanoseconds = |text| -> Result<i64, &'static str> {
        if text == "0" {
            return Ok(0);
        }
        i64::try_from(sum(text)?).map_err(|_| TOO_LONG)
    };
    let nanoseconds = match text.strip_prefix('-') {
        Some(positive) => nanoseconds(positive).map(|nanoseconds| -nanoseconds),
        None => nanoseconds(text.strip_prefix('+').unwrap_or(text)),
    };
    nanoseconds
        .map(SignedDuration::from_nanos)
        .map_err(|reason| DurationError { text: text.chars().take(40).collect(), reason })
}

const TOO_LONG: &str = "it is too long";

/// Further decimal places are below a nanosecond in every unit.
const PLACES: usize = 15;

/// Sum of a sequence like `1h30m`, in nanoseconds.
fn sum(text: &str) -> Result<u128, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    let (mut total, mut rest) = (0, text);
    while !rest.is_empty() {
        let (whole, tail) = digits(rest);
        let (places, tail) = tail.strip_prefix('.').map_or(("", tail), digits);
        if whole.is_empty() && places.is_empty() {
            return Err("a number is missing");
        }
        let end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = nanoseconds(unit)?;
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| TOO_LONG)? };
        total += u128::from(whole) * unit + fraction(places, unit);
        if total > u128::from(u64::MAX) {
            return Err(TOO_LONG);
        }
        rest = tail;
    }
    Ok(total)
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn nanoseconds(unit: &str) -> Result<u128, &'static str> {
    Ok(match unit {
        "ns" => 1,
        // Micro sign and Greek letter mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" => return Err("a unit is missing"),
        _ => return Err("units are ns, us, ms, s, m and h"),
    })
}

/// Fraction of a unit in nanoseconds, truncated.
fn fraction(places: &str, unit: u128) -> u128 {
    let (value, scale) = places
        .chars()
        .take(PLACES)
        .filter_map(|c| c.to_digit(10))
        .fold((0, 1), |(value, scale), digit| (value * 10 + u128::from(digit), scale * 10));
    value * unit / scale
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_go_reads() {
        let table = [
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("90s", 90_000_000_000),
            ("15m", 900_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("720h", 2_592_000_000_000_000),
            ("1h1m1s1ms1us1ns", 3_661_001_001_001),
            ("1m1h", 3_660_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("-1.5m", -90_000_000_000),
            ("+5s", 5_000_000_000),
            ("1\u{b5}s", 1_000),
            ("1\u{3bc}s", 1_000),
            ("0.9ns", 0),
            ("0.3333333333333333333h", 1_199_999_999_999),
            ("2562047h47m16.854775807s", i64::MAX),
            ("000000000000000000000001s", 1_000_000_000),
        ];
        for (text, nanoseconds) in table {
            assert_eq!(parse(text), Ok(SignedDuration::from_nanos(nanoseconds)), "{text}");
        }
    }

    #[test]
    fn says_why_it_refuses() {
        let table = [
            ("", "it is empty"),
            ("-", "it is empty"),
            ("15", "a unit is missing"),
            ("1h30", "a unit is missing"),
            (".s", "a number is missing"),
            ("m", "a number is missing"),
            ("--1s", "a number is missing"),
            (" 1s", "a number is missing"),
            ("1d", "units are ns, us, ms, s, m and h"),
            ("1 s", "units are ns, us, ms, s, m and h"),
            ("1h-5m", "units are ns, us, ms, s, m and h"),
            ("2562047h47m16.854775808s", TOO_LONG),
            ("99999999999999999999s", TOO_LONG),
            ("5000000h5000000h", TOO_LONG),
        ];
        for (text, reason) in table {
            assert_eq!(parse(text), Err(DurationError { text: text.into(), reason }), "{text}");
        }
        let message = "`1d` is not a duration like 15m or 1h30m: units are ns, us, ms, s, m and h";
        assert_eq!(parse("1d").unwrap_err().to_string(), message);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn every_chain_is_the_sum_of_its_links(hours in 0_i64..10_000, minutes in 0_i64..100, milliseconds in 0_i64..5_000) {
            let text = format!("{hours}h{minutes}m{milliseconds}ms");
            prop_assert_eq!(parse(&text).unwrap().as_millis(), i128::from((hours * 60 + minutes) * 60_000 + milliseconds));
        }

        #[test]
        fn the_pattern_accepts_what_is_read(text in PATTERN.trim_start_matches('^').trim_end_matches('$')) {
            // Every match is parsed, unless it is too long.
            let fits = parse(&text).map_or_else(|error| error.reason == TOO_LONG, |_| true);
            prop_assert!(fits, "{}", text);
        }
    }
}
