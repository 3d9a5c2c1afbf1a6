//! Selection of the members of the next pass, and paging-in of their pages.

use std::{collections::BTreeMap, time::Instant};

use djinn_kv::{Granularity, PageId};
use djinn_types::SessionId;

use super::{
    decision::decide,
    owner_shares::OwnerShares,
    ready::{BatchLimits, ReadySession},
    spill_policy::SpillPolicy,
    waiting::idle_tables,
};
use crate::session::{Session, output::Output, residency::SessionMemory};

/// Factor by which a pass may take longer because it waits for pages.
const PATIENCE: f64 = 1.2;

/// Fraction of the link that pages may use while weights stream: one byte in this many.
const LINK_SHARE: u64 = 4;

/// Members of the next pass.
#[derive(Default)]
pub(crate) struct PassSelection {
    /// Sessions in order, each with its number of tokens.
    pub run: Vec<(SessionId, usize)>,
    /// Whether pages were evicted for the pass, or for a session that needs more of them to leave.
    pub has_evicted: bool,
    /// Ends of sessions whose pages could not be moved.
    pub lost: Vec<Output>,
}

/// Limits of the selection, and the traffic of weights.
pub(crate) struct SelectionLimits {
    pub pass: BatchLimits,
    /// Bytes of weights that stream through the ring in each pass.
    pub streamed_bytes: u64,
    pub page_bytes: u64,
    /// Whether weights stream through the ring.
    pub streams: bool,
}

impl SelectionLimits {
    /// Maximum number of pages to page in while a pass runs. Where weights stream, pages leave
    /// three quarters of the link to them.
    fn pages_of_a_pass(&self) -> usize {
        let pages = self.streamed_bytes / LINK_SHARE / self.page_bytes.max(1);
        match self.streamed_bytes {
            0 => usize::MAX,
            _ => usize::try_from(pages).unwrap_or(usize::MAX).max(1),
        }
    }
}

/// Whether a session runs while the scheduler drains. A kept session does not begin another turn.
pub(crate) fn runs_while_draining(session: &Session) -> bool {
    session.is_ready() && !(session.keep && session.awaits_first_pass_of_turn())
}

/// Selects the members of the next pass among the sessions that `runs` allows, and makes sure that
/// their pages are on the device. Charges their owners. `seconds_per_row` estimates how long the pass takes.
pub(crate) fn select(
    residency: &mut SessionMemory<'_>,
    runs: fn(&Session) -> bool,
    policy: &SpillPolicy,
    limits: &SelectionLimits,
    owners: &mut OwnerShares,
    seconds_per_row: f64,
    now: Instant,
) -> PassSelection {
    let sessions = &*residency.sessions;
    let ready: Vec<&Session> = sessions.iter().filter(|s| runs(s)).collect();
    let as_ready = |session| as_ready(session, limits.pass);
    let pages = residency.pager.pages();
    let decision = decide(
        &ready.iter().copied().map(as_ready).collect::<Vec<_>>(),
        &idle_tables(sessions, residency.pager),
        pages,
        policy.evictable(pages),
        limits.pass,
    );
    let run = decision.run.iter().map(|&(i, rows)| (ready[i].id, rows));
    let run: Vec<(SessionId, usize)> = run.collect();
    let stream = decision.stream.into_iter();
    let stream = stream
        .map(|(i, arriving)| (ready[i].id, arriving))
        .collect();
    let mut selection = PassSelection {
        has_evicted: !decision.evict.is_empty(),
        ..PassSelection::default()
    };
    if let Err(error) = residency.pager.evict(&decision.evict) {
        selection.lost = residency.fail_holders(&decision.evict, &error.into());
    }
    page_in(
        residency,
        limits,
        run,
        &stream,
        seconds_per_row,
        now,
        owners,
        &mut selection,
    );
    selection
}

/// Pages in the sessions that run next. A session whose pages arrive while earlier blocks compute
/// runs in the pass; one that would delay the others joins a later pass. If all have to wait, the
/// first runs. A session of `stream` always runs, because its pages arrive in every pass.
#[allow(clippy::too_many_arguments)]
fn page_in(
    residency: &mut SessionMemory<'_>,
    limits: &SelectionLimits,
    run: Vec<(SessionId, usize)>,
    stream: &BTreeMap<SessionId, Vec<PageId>>,
    seconds_per_row: f64,
    now: Instant,
    owners: &mut OwnerShares,
    selection: &mut PassSelection,
) {
    let mut stream_s = 0.0;
    let mut absent = Vec::new();
    for (id, rows) in run {
        let session = residency.sessions.known_mut(id);
        if !session.is_ready() {
            continue;
        }
        session.state.note_scheduled(now);
        if let Some(arriving) = stream.get(&id) {
            match page_in_part(residency, id, arriving) {
                Ok(seconds) => {
                    stream_s += seconds;
                    join(residency, id, rows, owners, selection);
                }
                Err(lost) => selection.lost.extend(lost.map(|lost| *lost)),
            }
            continue;
        }
        match residency.move_pages(id, |pager, session| Ok(pager.is_resident(&session.pages)?)) {
            Ok(true) => join(residency, id, rows, owners, selection),
            Ok(false) => absent.push((id, rows)),
            Err(lost) => selection.lost.extend(lost.map(|lost| *lost)),
        }
    }
    let rows: usize = selection.run.iter().map(|(_, rows)| rows).sum();
    let (pass_s, mut coming_s) = (seconds_per_row * rows as f64 + stream_s, 0.0);
    let mut most = limits.pages_of_a_pass();
    for (id, rows) in absent {
        let session = residency.sessions.known(id);
        let awaited = residency.pager.awaited(&session.pages);
        coming_s += residency.pager.copy_in_seconds(awaited);
        let joins = selection.run.is_empty() || coming_s <= PATIENCE * pass_s;
        let coming = match joins {
            true => residency.move_pages(id, |pager, session| {
                let first = session.first_block();
                Ok(pager.copy_in(session.pages.pages(), Granularity::FromBlock(first))?)
            }),
            false => page_in_some(residency, limits, id, &mut most),
        };
        match coming {
            Ok(()) if joins => join(residency, id, rows, owners, selection),
            Ok(()) => {}
            Err(lost) => selection.lost.extend(lost.map(|lost| *lost)),
        }
    }
}

/// Pages in some pages of a session whose other pages stream. Returns how many seconds its pages
/// need to arrive.
fn page_in_part(
    residency: &mut SessionMemory<'_>,
    id: SessionId,
    arriving: &[PageId],
) -> Result<f64, Option<Box<Output>>> {
    residency.move_pages(id, |pager, session| {
        let seconds = pager.copy_in_seconds(pager.pages().nonresident(&session.pages));
        pager.copy_in(arriving, Granularity::FromBlock(session.first_block()))?;
        Ok(seconds)
    })
}

/// Pages in up to `most` pages of a session, behind the weights that are in transit.
fn page_in_some(
    residency: &mut SessionMemory<'_>,
    limits: &SelectionLimits,
    id: SessionId,
    most: &mut usize,
) -> Result<(), Option<Box<Output>>> {
    let pages = residency.pager.pages();
    let is_away = |page: &&PageId| pages.device_frame(**page).is_none();
    let own = residency.sessions.known(id).pages.pages();
    let away = own.iter().filter(is_away);
    let away: Vec<PageId> = away.copied().take(*most).collect();
    *most -= away.len();
    residency.move_pages(id, |pager, _| {
        if limits.streams && !away.is_empty() {
            pager.order_after_weights()?;
        }
        Ok(pager.copy_in(&away, Granularity::WholePage)?)
    })
}

/// Adds a session to the pass with `rows` tokens.
fn join(
    residency: &mut SessionMemory<'_>,
    id: SessionId,
    rows: usize,
    owners: &mut OwnerShares,
    selection: &mut PassSelection,
) {
    let there = residency.move_pages(id, |pager, session| {
        let tokens = session.computed..session.computed + rows;
        Ok(pager.prepare_write(&mut session.pages, tokens)?)
    });
    match there {
        Ok(()) => {
            let session = residency.sessions.known_mut(id);
            session.fair_share.charge();
            owners.charge(&session.owner, session.fair_share.class, rows);
            selection.run.push((id, rows));
        }
        Err(lost) => selection.lost.extend(lost.map(|lost| *lost)),
    }
}

/// Returns a session as the decision sees it, with no more tokens than the head and the logit lens
/// have rows for.
fn as_ready(session: &Session, limits: BatchLimits) -> ReadySession<'_> {
    // Every other session of the pass may need a row of the head for its next token.
    let head_rows = limits.head_rows.saturating_sub(limits.sessions - 1).max(1);
    let run = session.run_under(limits.lens_rows, head_rows);
    ReadySession {
        fair_share: session.fair_share,
        table: &session.pages,
        computed: session.computed,
        pending: run.tokens,
        whole: session.runs_whole(),
        lens_rows: run.lens_rows,
        head_rows: run.head_rows,
    }
}
