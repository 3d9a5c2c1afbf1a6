//! Reasons why a turn ends.

use crate::v1;

/// Reason why a turn ended, as [`v1::Finished::why`] names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The turn generated the maximum number of tokens.
    Length,
    /// The context is full.
    Context,
    /// The model generated an end-of-text token.
    Eos,
    /// The output reached a stop string.
    Stop,
    /// The model computed a value that is not a number.
    NotANumber,
    /// The deadline of the session passed.
    Deadline,
    /// The lease of the session ran out.
    Lease,
    /// The turn failed.
    Failed,
    /// A newer server sent a reason that this program does not know.
    Unknown,
}

impl FinishReason {
    /// All reasons with a name.
    pub const ALL: [FinishReason; 8] = [
        FinishReason::Length,
        FinishReason::Context,
        FinishReason::Eos,
        FinishReason::Stop,
        FinishReason::NotANumber,
        FinishReason::Deadline,
        FinishReason::Lease,
        FinishReason::Failed,
    ];

    /// Name of the reason in messages.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Eos => "eos",
            FinishReason::Stop => "stop",
            FinishReason::NotANumber => "not-a-number",
            FinishReason::Deadline => "deadline",
            FinishReason::Lease => "lease",
            FinishReason::Failed => "failed",
            FinishReason::Unknown => "unknown",
        }
    }

    /// Reason of this name.
    pub fn from_name(name: &str) -> Self {
        let mut known = FinishReason::ALL.into_iter();
        known
            .find(|reason| reason.name() == name)
            .unwrap_or(FinishReason::Unknown)
    }
}

impl v1::Finished {
    /// Reason why the turn ended.
    pub fn reason(&self) -> FinishReason {
        FinishReason::from_name(&self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::FinishReason;

    #[test]
    fn names_are_read_back() {
        for reason in FinishReason::ALL {
            assert_eq!(FinishReason::from_name(reason.name()), reason);
        }
        assert_eq!(FinishReason::from_name("other"), FinishReason::Unknown);
    }
}
