//! Answers of requests without a session.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Answers by the number of the request.
#[derive(Debug, Default)]
pub struct OneShotTable(Mutex<BTreeMap<usize, String>>);

impl OneShotTable {
    /// Notes an answer. Returns whether it equals the first answer of this request.
    pub fn note(&self, number: usize, answer: String) -> bool {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry(number).or_insert_with(|| answer.clone()) == answer
    }

    /// Answers so far.
    pub fn answers(&self) -> BTreeMap<usize, String> {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.clone()
    }
}
