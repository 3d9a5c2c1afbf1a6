//! Results of a run: counts, the longest wait, and broken promises.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Largest number of broken promises that are kept; a run that has them is over.
const VIOLATIONS_MAX: usize = 40;

#[derive(Debug, Default)]
struct Collected {
    counts: BTreeMap<&'static str, u64>,
    violations: Vec<String>,
    longest_wait: Duration,
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct Findings(Mutex<Collected>);

impl Findings {
    fn collected(&self) -> MutexGuard<'_, Collected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one event of a kind.
    pub fn count(&self, kind: &'static str) {
        self.add(kind, 1);
    }

    /// Adds to the count of a kind.
    pub fn add(&self, kind: &'static str, more: u64) {
        *self.collected().counts.entry(kind).or_default() += more;
    }

    /// Count of a kind.
    pub fn get(&self, kind: &str) -> u64 {
        self.collected().counts.get(kind).copied().unwrap_or(0)
    }

    /// All counts by kind.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.collected().counts.clone()
    }

    /// Reports a broken promise, and prints it at once.
    pub fn broken(&self, promise: String) {
        let mut collected = self.collected();
        if collected.violations.len() < VIOLATIONS_MAX {
            println!("BROKEN: {promise}");
            collected.violations.push(promise);
        }
    }

    /// Broken promises.
    pub fn violations(&self) -> Vec<String> {
        self.collected().violations.clone()
    }

    /// Notes how long a small request waited.
    pub fn waited(&self, time: Duration) {
        let mut collected = self.collected();
        collected.longest_wait = collected.longest_wait.max(time);
    }

    /// Longest wait of a small request.
    pub fn longest_wait(&self) -> Duration {
        self.collected().longest_wait
    }
}
