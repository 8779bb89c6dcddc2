//! Durations of what happened to one node.

use std::time::Duration;

use super::{Label, Writer};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The buckets: from half a minute to 30 days.
const BUCKETS: [u64; 16] = [
    30,
    MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    4 * HOUR,
    8 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    3 * DAY,
    7 * DAY,
    14 * DAY,
    30 * DAY,
];

/// How often something took how long.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    /// The number of durations in each bucket and in none of the smaller ones.
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: Duration,
}

impl Histogram {
    pub(super) fn observe(&mut self, took: Duration) {
        let fits = BUCKETS.iter().position(|bucket| took <= Duration::from_secs(*bucket));
        if let Some(count) = fits.and_then(|place| self.counts.get_mut(place)) {
            *count += 1;
        }
        self.count += 1;
        self.sum += took;
    }

    /// Writes the series of one node.
    pub(super) fn write(&self, name: &str, node: Label<'_>, writer: &mut Writer) {
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (most, count) in BUCKETS.iter().zip(self.counts) {
            below += count;
            writer.sample(&bucket, &[node, ("le", &most.to_string())], below);
        }
        writer.sample(&bucket, &[node, ("le", "+Inf")], self.count);
        writer.sample(&format!("{name}_sum"), &[node], self.sum.as_secs_f64());
        writer.sample(&format!("{name}_count"), &[node], self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_all_larger_buckets() {
        let mut histogram = Histogram::default();
        for seconds in [30, 61, 40 * DAY] {
            histogram.observe(Duration::from_secs(seconds));
        }
        let mut writer = Writer::default();
        histogram.write("x", ("node_name", "a"), &mut writer);
        let series = writer.finish().unwrap();
        assert_eq!(series.count, 19);
        let value = |of: &str| series.text.lines().find_map(|line| line.strip_prefix(&format!("x_{of} ")));
        let bucket = |le: &str| value(&format!("bucket{{node_name=\"a\",le=\"{le}\"}}"));
        assert_eq!(
            [bucket("30"), bucket("60"), bucket("300"), bucket("2592000"), bucket("+Inf")],
            [Some("1"), Some("1"), Some("2"), Some("2"), Some("3")]
        );
        assert_eq!(value("sum{node_name=\"a\"}"), Some("3456091"));
        assert_eq!(value("count{node_name=\"a\"}"), Some("3"));
    }
}
