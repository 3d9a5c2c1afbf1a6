//! Choices of a sizing, and their reasons.

use std::fmt;

use super::SizeRange;
use crate::Settings;

/// Reason for the context of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextReason {
    /// The user set it.
    Set,
    /// The requests need it.
    Needed,
    /// The model supports no more.
    Model,
    /// A longer context would make weights stream.
    Resident,
    /// A longer context would exceed the share of the memory that KV gets while weights stream.
    Share,
    /// A longer context leaves no room for a ring and passes of useful size.
    Fits,
    /// A longer context exceeds the device memory that `--kv` allows.
    KvLimit,
    /// The kernels of the device support no more.
    Device,
}

/// A number that shrank because memory is scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    /// Name of the number, for example `rows of a pass`.
    pub what: &'static str,
    /// Number where memory is plentiful.
    pub from: usize,
    /// Number that the engine has.
    pub to: usize,
}

/// Choices of a sizing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizingChoice {
    /// Context in tokens.
    pub context: usize,
    /// Context of the model.
    pub model_context: usize,
    /// Reason for the context.
    pub reason: ContextReason,
    /// Largest context that would fit, with everything else at its smallest.
    pub largest: usize,
    /// Numbers that shrank.
    pub reduced: Vec<Reduced>,
}

impl SizingChoice {
    /// Context in tokens below which a chosen context is of little use.
    const SHORT: usize = 1024;

    /// Whether memory was so scarce that the chosen context is of little use.
    pub fn is_tight(&self) -> bool {
        let is_chosen = !matches!(self.reason, ContextReason::Set | ContextReason::Needed);
        is_chosen && self.context < Self::SHORT.min(self.model_context)
    }

    /// Explains the context in a few words.
    pub fn context_text(&self) -> String {
        let (context, model) = (self.context, self.model_context);
        let raise = match self.largest > context {
            true => format!("; --context allows up to {}", self.largest),
            false => String::new(),
        };
        match self.reason {
            ContextReason::Set => format!("context {context}, as set"),
            ContextReason::Needed => format!("context {context}, as needed"),
            ContextReason::Model => format!("context {context}, all that the model supports"),
            ContextReason::Resident => format!(
                "context {context} of {model}, the longest that leaves all weights in memory{raise}"
            ),
            ContextReason::Share => format!(
                "context {context} of {model}, so that KV leaves memory to the weights{raise}"
            ),
            ContextReason::Fits => {
                format!("context {context} of {model}, the longest that leaves room to work{raise}")
            }
            ContextReason::KvLimit => {
                format!("context {context} of {model}, the longest that fits in --kv")
            }
            ContextReason::Device => {
                format!("context {context} of {model}, the longest that the device supports")
            }
        }
    }

    /// Lists the numbers that shrank; empty if memory is plentiful.
    pub fn reduced_text(&self) -> String {
        let all: Vec<String> = self.reduced.iter().map(Reduced::to_string).collect();
        all.join(", ")
    }
}

impl fmt::Display for Reduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} instead of {}", self.to, self.what, self.from)
    }
}

impl fmt::Display for SizingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context_text())?;
        match self.reduced.is_empty() {
            true => Ok(()),
            false => write!(f, "; to save memory {}", self.reduced_text()),
        }
    }
}

impl SizeRange {
    /// Numbers of some settings that are smaller than where memory is plentiful.
    pub(super) fn reduced(&self, settings: &Settings) -> Vec<Reduced> {
        let most = self.at(0, settings.context);
        let (now, then) = (settings.probe_limits, most.probe_limits);
        let all = [
            ("rows in a pass", most.rows, settings.rows),
            ("sessions in a pass", most.sessions, settings.sessions),
            ("rows of logits", most.logit_rows, settings.logit_rows),
            ("rows of logit lens", then.lens_rows, now.lens_rows),
            (
                "keys of a captured pattern",
                then.pattern_keys,
                now.pattern_keys,
            ),
        ];
        let reduced = all.into_iter().filter(|(_, from, to)| to < from);
        let reduced = reduced.map(|(what, from, to)| Reduced { what, from, to });
        reduced.collect()
    }
}
