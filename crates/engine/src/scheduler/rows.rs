//! Distribution of the rows of a pass over sessions.

use super::ready::{BatchLimits, ReadySession};

/// Maximum length of a short input: an answer appended to a session, not its first prompt.
const SHORT: usize = 64;

/// Kind of input that a session has to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InputKind {
    /// One generated token.
    Token,
    /// A short input.
    Short,
    /// A long prompt.
    Long,
}

fn kind(session: &ReadySession<'_>) -> InputKind {
    match session.pending {
        0..=1 => InputKind::Token,
        2..=SHORT => InputKind::Short,
        _ => InputKind::Long,
    }
}

/// Rows of a pass that are still free.
pub(super) struct FreeRows {
    /// All free rows.
    all: usize,
    /// Free rows that are not reserved for generated tokens.
    spare: usize,
    /// Free rows that are reserved neither for generated tokens nor for short inputs.
    long: usize,
    /// Free rows of the logit lens.
    lens: usize,
    /// Free rows of the head.
    head: usize,
}

impl FreeRows {
    /// Reserves rows for the generated tokens and short inputs of the ready sessions.
    pub fn new(ready: &[ReadySession<'_>], limits: BatchLimits) -> Self {
        let of = |wanted: InputKind| ready.iter().filter(move |session| kind(session) == wanted);
        let tokens = of(InputKind::Token).count().min(limits.sessions);
        let spare = limits.rows - tokens.min(limits.rows);
        let short: usize = of(InputKind::Short).map(|session| session.pending).sum();
        FreeRows {
            all: limits.rows,
            spare,
            // Long prompts get at least half of the spare rows.
            long: spare - short.min(spare / 2),
            lens: limits.lens_rows,
            head: limits.head_rows,
        }
    }

    /// Number of rows that a session may use. Long prompts take their rows in order, because
    /// many prompts with one row each would make no progress. The first session always gets
    /// some.
    pub fn available(&self, session: &ReadySession<'_>, is_first: bool) -> usize {
        if session.lens_rows > self.lens || session.head_rows > self.head {
            return 0;
        }
        let least = usize::from(is_first);
        let rows = match kind(session) {
            InputKind::Token => 1,
            InputKind::Short => session.pending.min(self.spare.max(least)),
            InputKind::Long => session.pending.min(self.long.max(least)),
        };
        let rows = rows.min(self.all);
        match session.whole && rows < session.pending {
            // A whole pass is enough, because as many tokens ran together before.
            true if is_first => session.pending.min(self.all),
            true => 0,
            false => rows,
        }
    }

    /// Assigns rows to a session.
    pub fn take(&mut self, session: &ReadySession<'_>, rows: usize) {
        self.all -= rows;
        self.lens -= session.lens_rows;
        self.head -= session.head_rows;
        if kind(session) == InputKind::Long {
            self.long = self.long.saturating_sub(rows);
        }
        if kind(session) != InputKind::Token {
            self.spare = self.spare.saturating_sub(rows);
            self.long = self.long.min(self.spare);
        }
    }
}
