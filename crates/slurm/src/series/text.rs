//! The text format of Prometheus.

use std::fmt::{self, Display, Write as _};

use thiserror::Error;

/// The number of bytes of a label's value that are kept.
pub const MAX_LABEL: usize = 1024;

/// The memory that the series of one list may take. Few bytes of a host list can be millions of series.
const MAX_TEXT: usize = 64 << 20;

/// The beginning of a text that is too long for a label.
pub fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_LABEL)).unwrap_or_default()
}

/// Series as text, family by family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    pub text: String,
    /// The number of series.
    pub count: u64,
    /// What could not be shown, if there is such a thing; the first one.
    pub problem: Option<String>,
}

/// Why there are no series of a list.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SeriesError {
    #[error("the series would take more than {} MiB", MAX_TEXT >> 20)]
    TooLarge,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
    Histogram,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// A label: its name and its value.
pub type Label<'a> = (&'a str, &'a str);

/// Writes series.
#[derive(Debug, Default)]
pub struct Writer {
    series: Series,
    is_too_large: bool,
}

impl Writer {
    /// Begins a family: its series follow before the next one begins.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let _ = writeln!(self.series.text, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
    }

    /// Writes one series.
    pub fn sample(&mut self, name: &str, labels: &[Label<'_>], value: impl Display) {
        let text = &mut self.series.text;
        if text.len() > MAX_TEXT {
            self.is_too_large = true;
            return;
        }
        text.push_str(name);
        let mut separator = '{';
        // A label without a value is the same as no label, and stores limit the number of labels.
        for (label, value) in labels.iter().filter(|(_, value)| !value.is_empty()) {
            text.push(separator);
            let _ = write!(text, "{label}=\"{}\"", Escaped(cut(value)));
            separator = ',';
        }
        if separator == ',' {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
        self.series.count += 1;
    }

    /// Whether there are too many series already.
    pub fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Remembers what cannot be shown.
    pub fn problem(&mut self, problem: impl FnOnce() -> String) {
        self.series.problem.get_or_insert_with(problem);
    }

    /// The series, unless there are too many.
    pub fn finish(mut self) -> Result<Series, SeriesError> {
        self.series.text.shrink_to_fit();
        if self.is_too_large { Err(SeriesError::TooLarge) } else { Ok(self.series) }
    }
}

/// The value of a label.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                // A zero byte ends the text for Prometheus.
                c if c.is_control() => f.write_char(char::REPLACEMENT_CHARACTER)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_with_its_series() {
        let mut writer = Writer::default();
        writer.family("x_total", Kind::Counter, "All x");
        writer.sample("x_total", &[], 1);
        writer.sample("x_total", &[("empty", ""), ("name", "a \"b\" \\ c\nd\0e\r ü"), ("other", "o")], 0.5);
        writer.sample("x_total", &[("empty", "")], 1_000_000_000_000_000_000_000_f64);
        let series = writer.finish().unwrap();
        let expected = "# HELP x_total All x\n# TYPE x_total counter\nx_total 1\n\
            x_total{name=\"a \\\"b\\\" \\\\ c\\nd\u{fffd}e\u{fffd} ü\",other=\"o\"} 0.5\nx_total 1000000000000000000000\n";
        assert_eq!((series.text.as_str(), series.count, series.problem), (expected, 3, None));
    }

    #[test]
    fn labels_and_series_are_bounded() {
        let mut writer = Writer::default();
        let name = "ü".repeat(100_000);
        writer.sample("x", &[("name", &name)], 1);
        writer.problem(|| "first".to_owned());
        writer.problem(|| "second".to_owned());
        assert!(writer.series.text.len() < MAX_LABEL + 20);
        assert_eq!(writer.series.problem.as_deref(), Some("first"));
        while !writer.is_too_large {
            writer.sample("x", &[("name", &name)], 1);
        }
        assert!(writer.series.text.len() < MAX_TEXT + 2 * MAX_LABEL);
        assert_eq!(writer.finish().unwrap_err().to_string(), "the series would take more than 64 MiB");
    }
}
