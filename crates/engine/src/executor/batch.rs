//! The batch of a pass: which tokens of which sessions run, and in which rows.

use std::ops::Range;

use djinn_device::{Draw, Phase};
use djinn_kv::{PageStream, Pages, WINDOW_HALVES};

use crate::{Settings, session::Session};

/// Consecutive rows of one session at consecutive positions, all of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSpan {
    /// Index of the member.
    pub member: usize,
    pub phase: Phase,
    pub first_row: usize,
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
    /// Index of the operation at which the span enters the pass.
    pub enter: usize,
}

impl RowSpan {
    /// Whether a row continues the span: same member and phase, next position.
    pub fn is_followed_by(&self, row: &RowSpan) -> bool {
        let next = (self.member, self.phase, self.positions().end);
        next == (row.member, row.phase, row.position)
    }

    /// Returns the positions of the rows.
    pub fn positions(&self) -> Range<usize> {
        self.position..self.position + self.rows
    }
}

/// Rows of one pass: generated tokens first, then prompts. In each part, sessions that run the
/// whole pass come first.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub tokens: Vec<i32>,
    pub positions: Vec<i32>,
    sequences: Vec<i32>,
    tables: Vec<i32>,
    pub groups: Vec<RowSpan>,
    /// Rows that pass through the head, one span for each.
    pub head: Vec<RowSpan>,
    /// Sampling parameters of the head rows.
    draws: Vec<Draw>,
}

impl Batch {
    /// Lays out the next `shares[i]` tokens of `members[i]`. `stream` has the pages that are not
    /// on the device.
    pub fn new(
        members: &[Session],
        shares: &[usize],
        settings: &Settings,
        pages: &Pages,
        stream: Option<&PageStream>,
    ) -> Self {
        let mut batch = Batch::default();
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|&member| members[member].is_partial());
        for phase in [Phase::Generated, Phase::Prompt] {
            for &member in &order {
                let (session, rows) = (&members[member], shares[member]);
                for part in session.parts(rows).filter(|part| part.0 == phase) {
                    batch.add(member, session, part);
                }
            }
        }
        let halves = stream.map_or(1, |_| WINDOW_HALVES);
        for half in 0..halves {
            for session in members {
                match stream {
                    None => {
                        let frames = pages.frames(&session.pages);
                        batch.tables.extend(frames.map(|frame| frame.0 as i32));
                    }
                    Some(stream) => {
                        let indexes = stream.indexes(pages, &session.pages, half);
                        batch.tables.extend(indexes.map(|index| index as i32));
                    }
                }
                // Entries beyond the pages of a session are never read; a kernel would refuse −1.
                let rest = settings.table_pages() - session.pages.len();
                batch.tables.extend(std::iter::repeat_n(-1, rest));
            }
        }
        batch
    }

    /// Adds tokens of a session, all of one phase.
    fn add(
        &mut self,
        member: usize,
        session: &Session,
        (phase, position, rows): (Phase, usize, usize),
    ) {
        let group = RowSpan {
            member,
            phase,
            first_row: self.rows(),
            rows,
            position,
            enter: session.checkpoint().map_or(0, |at| at.stop.next),
        };
        let run = group.positions();
        let ids = &session.tokens[run.clone()];
        self.tokens.extend(ids.iter().map(|&t| t as i32));
        self.positions.extend(run.map(|p| p as i32));
        let sequence = std::iter::repeat_n(member as i32, rows);
        self.sequences.extend(sequence);
        let wanted = wanted_rows(session, &group);
        let draw = session.sampling.draw(session.generated());
        self.draws.extend(wanted.iter().map(|_| draw));
        self.head.extend(wanted);
        self.groups.push(group);
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Returns all ids that the device needs, in the order of
    /// [`Arena::ids`](crate::arena::Arena::ids).
    pub fn ids(&self) -> Vec<i32> {
        let head = self.head.iter().map(|row| row.first_row as i32);
        let draws = self.draws.iter().flat_map(|draw| draw.words());
        [&self.tokens, &self.positions, &self.sequences, &self.tables]
            .into_iter()
            .flatten()
            .copied()
            .chain(head)
            .chain(draws)
            .collect()
    }
}

/// Returns the number of rows of generated tokens in some spans.
pub(crate) fn generated(groups: &[RowSpan]) -> usize {
    let generated = |group: &&RowSpan| group.phase == Phase::Generated;
    groups
        .iter()
        .filter(generated)
        .map(|group| group.rows)
        .sum()
}

/// Splits rows by phase; the first `generated` are of generated tokens.
pub(crate) fn phases(generated: usize, rows: usize) -> impl Iterator<Item = (Phase, Range<usize>)> {
    let both = [
        (Phase::Generated, 0..generated),
        (Phase::Prompt, generated..rows),
    ];
    both.into_iter().filter(|(_, rows)| !rows.is_empty())
}

/// Returns the rows of a span whose logits are needed, one span for each.
fn wanted_rows(session: &Session, group: &RowSpan) -> Vec<RowSpan> {
    let row = |i: usize| RowSpan {
        first_row: group.first_row + i,
        rows: 1,
        position: group.position + i,
        ..*group
    };
    let wanted = |row: &RowSpan| {
        let sampled = session.samples() && row.position + 1 == session.tokens.len();
        sampled
            || session.probe.reads_head(row.position, session.prompt())
            || session.breaks_in_head(row.position)
    };
    (0..group.rows).map(row).filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use djinn_device::{Draw, Phase};
    use djinn_kv::Pages;
    use djinn_model::Model;
    use djinn_types::SessionId;

    use super::{Batch, RowSpan, generated, phases};
    use crate::{
        probe::probe_limits::ProbeLimits,
        sampling::sampler::Sampling,
        scheduler::fair_share::{Class, FairShare},
        session::{Session, checker::RequestChecker, lifecycle::create, request::Request},
        settings::Settings,
    };

    /// Creates a session with `prompt` given and `more` generated tokens, `computed` of them run.
    fn session(prompt: usize, more: usize, computed: usize) -> Session {
        let request = Request {
            tokens: (0..prompt as u32).collect(),
            max_tokens: 9,
            ..Request::default()
        };
        let settings = settings();
        let model = model();
        let id = SessionId::from_bits(0);
        let checked = RequestChecker::new(&model, &settings).check(request);
        let checked = checked.expect("a valid request");
        let share = FairShare::new(Class::Interactive, 0);
        let mut session = create(&model, &settings, checked, id, share);
        session.tokens.extend(prompt as u32..(prompt + more) as u32);
        session.computed = computed;
        session
    }

    fn model() -> Model {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/");
        Model::open(&format!("{root}gpt2")).expect("a golden model")
    }

    fn settings() -> Settings {
        Settings {
            rows: 16,
            sessions: 4,
            open: 4,
            context: 16,
            pages: 4,
            window_pages: 0,
            host_pages: 0,
            disk_pages: 0,
            page_tokens: 16,
            logit_rows: 4,
            probe_limits: ProbeLimits::default(),
        }
    }

    #[test]
    fn generated_rows_come_first() {
        // The end of a prompt, a generated token, the middle of a prompt, a prompt of one token.
        let members = [
            session(5, 0, 3),
            session(4, 2, 5),
            session(8, 0, 0),
            session(1, 0, 0),
        ];
        let batch = Batch::new(
            &members,
            &[2, 1, 3, 1],
            &settings(),
            &Pages::new(0, 0, 0),
            None,
        );
        let row = |group: &RowSpan| (group.member, group.first_row, group.position);
        let groups: Vec<_> = batch.groups.iter().map(row).collect();
        assert_eq!(groups, [(1, 0, 5), (0, 1, 3), (2, 3, 0), (3, 6, 0)]);
        let head: Vec<_> = batch.head.iter().map(row).collect();
        assert_eq!(head, [(1, 0, 5), (0, 2, 4), (3, 6, 0)]);
        assert_eq!(batch.positions, [5, 3, 4, 0, 1, 2, 0]);
        assert_eq!(batch.sequences, [1, 0, 0, 2, 2, 2, 3]);
        // The sampling parameters of the head rows come last.
        let steps = batch.head.iter().map(|row| [0, 2, 0, 0][row.member]);
        let draws: Vec<i32> = steps
            .flat_map(|step| Sampling::default().draw(step).words())
            .collect();
        let all = batch.ids();
        assert_eq!(all.len(), 3 * 7 + 4 + 3 + 3 * Draw::WORDS);
        assert_eq!(all[all.len() - draws.len()..], draws);
        let split: Vec<_> = phases(generated(&batch.groups), batch.rows()).collect();
        assert_eq!(split, [(Phase::Generated, 0..1), (Phase::Prompt, 1..7)]);
        assert_eq!(phases(0, 0).count(), 0);
    }
}
