//! Which tokens of which sessions go through the next pass, and in which rows.

use crate::{Settings, session::Session};

/// Consecutive rows of one session at consecutive positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Which member of the pass.
    pub member: usize,
    pub first_row: usize,
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
}

/// The rows of one pass, ready to be uploaded.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub tokens: Vec<i32>,
    pub positions: Vec<i32>,
    pub sequences: Vec<i32>,
    pub tables: Vec<i32>,
    pub groups: Vec<Group>,
}

/// How many tokens of each session run next: one for those that generate, then as
/// much of the waiting prompts, in order, as the pass still has rows for.
pub(crate) fn share(pending: &[usize], rows: usize) -> Vec<usize> {
    let mut shares: Vec<usize> = pending.iter().map(|&n| n.min(1)).collect();
    let mut left = rows - shares.iter().sum::<usize>();
    for (share, &pending) in shares.iter_mut().zip(pending) {
        let more = pending.saturating_sub(1).min(left);
        *share += more;
        left -= more;
    }
    shares
}

impl Batch {
    /// Lays out the next `shares[i]` tokens of `members[i]`.
    pub fn new(members: &[&mut Session], shares: &[usize], settings: &Settings) -> Self {
        let mut batch = Batch::default();
        let table_pages = settings.context.div_ceil(settings.page_tokens).max(1);
        for (member, (session, &rows)) in members.iter().zip(shares).enumerate() {
            batch.groups.push(Group {
                member,
                first_row: batch.tokens.len(),
                rows,
                position: session.computed,
            });
            let run = session.computed..session.computed + rows;
            let ids = &session.tokens[run.clone()];
            batch.tokens.extend(ids.iter().map(|&t| t as i32));
            batch.positions.extend(run.map(|p| p as i32));
            batch
                .sequences
                .extend(std::iter::repeat_n(member as i32, rows));
            let pages = session.pages.pages();
            batch.tables.extend(pages.iter().map(|page| page.0 as i32));
            // Slots beyond a session's pages are never looked at; page −1 would be refused.
            let rest = table_pages - pages.len();
            batch.tables.extend(std::iter::repeat_n(-1, rest));
        }
        batch
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::share;

    #[test]
    fn generating_sessions_never_wait_for_prompts() {
        let check = |pending: &[usize], rows: usize, expect: &[usize]| {
            assert_eq!(share(pending, rows), expect, "{pending:?} in {rows}");
        };
        check(&[100, 1, 1], 8, &[6, 1, 1]);
        check(&[3, 100, 1], 8, &[3, 4, 1]);
        check(&[5], 512, &[5]);
        check(&[9, 9], 2, &[1, 1]);
    }

    proptest! {
        #[test]
        fn every_session_moves_and_no_row_is_wasted(
            pending in prop::collection::vec(1usize..50, 1..10), extra in 0usize..100,
        ) {
            let rows = pending.len() + extra;
            let shares = share(&pending, rows);
            prop_assert!(shares.iter().zip(&pending).all(|(s, p)| 1 <= *s && s <= p));
            let total: usize = shares.iter().sum();
            prop_assert_eq!(total, rows.min(pending.iter().sum()));
        }
    }
}
