//! A check together with its kind, so that programs need not read its text.

use super::summary::{Check, Outcome};

/// Requirement that a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// At least one run was measured, and every duration is positive.
    RunsMeasured,
    /// Every number of the runs is finite.
    FiniteNumbers,
    /// The logits match those of the reference run.
    Logits,
    /// The tokens equal those of the reference run.
    Tokens,
    /// Every session completed.
    SessionsCompleted,
    /// Weights streamed in every run of a model that exceeds the memory budget.
    WeightsStreamed,
    /// KV pages left the device and came back in every run whose KV cache exceeds the memory budget.
    PagesMoved,
    /// Djinn's baselines and warm-up runs computed the same results.
    OtherRuns,
    /// The device memory stayed within the budget.
    MemoryBudget,
    /// A target of the configuration was reached.
    Target,
    /// The stored summary agrees with the stored runs.
    Summary,
}

/// A check, its kind, and the run that decided it.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Requirement that was checked.
    pub kind: CheckKind,
    /// Number of the run that failed the check, where a single run decided it.
    pub run: Option<u32>,
    /// The check as it is stored and shown.
    pub check: Check,
}

impl Judgement {
    /// A check that passed or failed.
    pub fn new(
        kind: CheckKind,
        name: impl Into<String>,
        pass: bool,
        found: impl Into<String>,
    ) -> Self {
        Judgement::with_outcome(kind, name, Outcome::of(pass), found)
    }

    /// A check whose data is missing.
    pub fn not_judged(kind: CheckKind, name: impl Into<String>, found: impl Into<String>) -> Self {
        Judgement::with_outcome(kind, name, Outcome::NotJudged, found)
    }

    /// A check that failed because of one run.
    pub fn failed_run(
        kind: CheckKind,
        name: impl Into<String>,
        run: u32,
        found: impl Into<String>,
    ) -> Self {
        Judgement {
            run: Some(run),
            ..Judgement::new(kind, name, false, found)
        }
    }

    fn with_outcome(
        kind: CheckKind,
        name: impl Into<String>,
        outcome: Outcome,
        found: impl Into<String>,
    ) -> Self {
        let (name, found) = (name.into(), found.into());
        let check = Check {
            name,
            outcome,
            found,
        };
        Judgement {
            kind,
            run: None,
            check,
        }
    }
}
