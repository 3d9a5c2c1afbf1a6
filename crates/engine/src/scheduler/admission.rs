//! Admission of queued sessions to KV memory.

use djinn_kv::Pager;
use djinn_types::SessionId;

use super::{
    commitment::{PageCommitment, admissible},
    owner_shares::OwnerShares,
    spill_policy::SpillPolicy,
};
use crate::session::{Session, state::Transition, table::SessionTable};

/// Returns the queued sessions in order of their owners' shares, and of arrival.
fn queue(sessions: &SessionTable) -> Vec<&Session> {
    let mut queue: Vec<&Session> = sessions.iter().filter(|s| s.is_queued()).collect();
    queue.sort_by_key(|session| {
        let share = session.fair_share;
        (share.turn, share.virtual_time, session.id)
    });
    queue
}

/// Returns the pages that the admitted sessions may need.
pub(crate) fn committed(
    sessions: &SessionTable,
    pager: &Pager,
    policy: &SpillPolicy,
) -> PageCommitment {
    let pages = pager.pages();
    let held = PageCommitment::new(policy.room(pages), pages.held());
    let admitted = sessions.iter().filter(|s| s.state.is_admitted());
    admitted.fold(held, |all, session| {
        let copied = session.copied_pages(pages);
        all.and(session.pages_most + copied, session.more_pages(pages))
    })
}

/// Returns the queued sessions that KV memory has room for.
fn next_admitted(sessions: &SessionTable, pager: &Pager, policy: &SpillPolicy) -> Vec<SessionId> {
    let queue = queue(sessions);
    if queue.is_empty() {
        return Vec::new();
    }
    let most = queue.iter().map(|session| session.pages_most);
    let count = admissible(committed(sessions, pager, policy), most);
    queue[..count].iter().map(|session| session.id).collect()
}

/// Whether a session could run now: it is ready, or the queue has one that may be admitted.
pub(crate) fn can_run(sessions: &SessionTable, pager: &Pager, policy: &SpillPolicy) -> bool {
    sessions.iter().any(Session::is_ready) || !next_admitted(sessions, pager, policy).is_empty()
}

/// Admits queued sessions as long as all admitted ones can run to their end.
pub(crate) fn admit(
    sessions: &mut SessionTable,
    pager: &Pager,
    policy: &SpillPolicy,
    owners: &OwnerShares,
) {
    for id in next_admitted(sessions, pager, policy) {
        let session = sessions.known_mut(id);
        let admitted = session.apply(Transition::Admit);
        admitted.expect("a queued session can be admitted");
        let virtual_time = owners.session_clock(&session.owner);
        session.fair_share = session.fair_share.rejoin(virtual_time);
    }
}
