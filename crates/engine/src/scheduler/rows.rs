//! How the rows of a pass are dealt out.

use super::{Limits, Ready};

/// Tokens that are soon run: what a session is told when it comes back, not its first
/// prompt.
const FEW: usize = 64;

/// What a session has to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The one token that comes of each pass.
    Token,
    Few,
    Many,
}

fn kind(session: &Ready<'_>) -> Kind {
    match session.pending {
        0..=1 => Kind::Token,
        2..=FEW => Kind::Few,
        _ => Kind::Many,
    }
}

/// Rows that nobody has yet.
pub(super) struct RowsLeft {
    all: usize,
    /// Those that are not kept for sessions that generate, and of these those that are not
    /// kept for sessions with few tokens either.
    spare: usize,
    many: usize,
    /// Those under the lens.
    lens: usize,
}

impl RowsLeft {
    pub fn new(ready: &[Ready<'_>], limits: Limits) -> Self {
        let of = |wanted: Kind| ready.iter().filter(move |session| kind(session) == wanted);
        let tokens = of(Kind::Token).count().min(limits.sessions);
        let spare = limits.rows - tokens.min(limits.rows);
        let few: usize = of(Kind::Few).map(|session| session.pending).sum();
        RowsLeft {
            all: limits.rows,
            spare,
            // Half of what is spare is for long prompts, however many short ones there are.
            many: spare - few.min(spare / 2),
            lens: limits.lens,
        }
    }

    /// Rows for a session: long prompts take what there is for them, in order, since many
    /// that have one each would not get anywhere. The first always has some.
    pub fn of(&self, session: &Ready<'_>, is_first: bool) -> usize {
        if session.lens > self.lens {
            return 0;
        }
        let least = usize::from(is_first);
        let rows = match kind(session) {
            Kind::Token => 1,
            Kind::Few => session.pending.min(self.spare.max(least)),
            Kind::Many => session.pending.min(self.many.max(least)),
        };
        let rows = rows.min(self.all);
        match session.whole && rows < session.pending {
            // All of a pass is enough: as many ran together before.
            true if is_first => session.pending.min(self.all),
            true => 0,
            false => rows,
        }
    }

    pub fn take(&mut self, session: &Ready<'_>, rows: usize) {
        self.all -= rows;
        self.lens -= session.lens;
        if kind(session) == Kind::Many {
            self.many = self.many.saturating_sub(rows);
        }
        if kind(session) != Kind::Token {
            self.spare = self.spare.saturating_sub(rows);
            self.many = self.many.min(self.spare);
        }
    }
}
