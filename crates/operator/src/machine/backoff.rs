//! Exponential backoff per object.

use std::{collections::HashMap, hash::Hash, sync::Mutex, time::Duration};

use crate::lock::lock;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);

/// Consecutive failures of each object.
#[derive(Debug)]
pub struct Backoff<K> {
    failures: Mutex<HashMap<K, u32>>,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self { failures: Mutex::default() }
    }
}

impl<K: Eq + Hash> Backoff<K> {
    /// Records a failure and returns the delay before the retry. It doubles from one second to one minute.
    pub fn failed(&self, object: K) -> Duration {
        let mut failures = lock(&self.failures);
        let count = failures.entry(object).or_insert(0);
        let wait = FIRST.saturating_mul(1 << (*count).min(6)).min(LONGEST);
        *count = count.saturating_add(1);
        wait
    }

    /// Resets an object after a success or its deletion.
    pub fn succeeded(&self, object: &K) {
        lock(&self.failures).remove(object);
    }

    /// The number of objects in backoff.
    pub fn len(&self) -> usize {
        lock(&self.failures).len()
    }

    /// Whether no object is in backoff.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_minute_and_resets_after_a_success() {
        let backoff = Backoff::default();
        let waits: Vec<u64> = (0..9).map(|_| backoff.failed("a").as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.failed("b").as_secs(), 1, "each object on its own");
        assert_eq!(backoff.len(), 2);
        backoff.succeeded(&"a");
        assert_eq!(backoff.failed("a").as_secs(), 1);
    }
}
