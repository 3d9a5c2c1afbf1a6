//! The prefix cache: sessions with equal beginnings share KV pages.

use djinn_kv::{PageContent, Pager};

use crate::session::{Session, table::SessionTable};

/// Sharing of pages between sessions, and how many tokens it saved.
#[derive(Debug, Default)]
pub(crate) struct PrefixCache {
    reused: usize,
}

impl PrefixCache {
    /// Number of tokens that sessions did not compute because the cache had their pages.
    pub fn reused(&self) -> usize {
        self.reused
    }

    /// Gives ready sessions the pages of their next tokens that other sessions have computed.
    pub fn lookup(&mut self, sessions: &mut SessionTable, pager: &mut Pager) {
        // A session that is resumed from a pause continues with its own pages.
        let can = |session: &&mut Session| session.is_ready() && session.paused().is_none();
        for session in sessions.iter_mut().filter(can) {
            let reused = reuse(session, pager);
            session.reused += reused;
            self.reused += reused;
        }
    }
}

/// Advances a session over pages that other sessions have computed. Returns the number of tokens.
fn reuse(session: &mut Session, pager: &mut Pager) -> usize {
    let page = session.pages.page_tokens();
    let start = session.computed;
    loop {
        let at = session.computed / page;
        let end = (at + 1) * page;
        // The last token always runs, because the next one is sampled from its logits.
        let is_shared = end < session.tokens.len() && end <= session.shares;
        // Tokens that may pause at a hook must run.
        if !is_shared || session.may_pause(session.computed..end) {
            break;
        }
        let content = page_content(session, at);
        if !pager.lookup_prefix(&mut session.pages, at, &content) {
            break;
        }
        session.computed = end;
    }
    session.computed - start
}

/// Adds the pages to the cache that a session has filled since it had computed `before` tokens.
pub(crate) fn insert(session: &mut Session, pager: &mut Pager, before: usize) {
    let page = session.pages.page_tokens();
    let filled = session.computed.min(session.shares) / page;
    for at in before / page..filled {
        let content = page_content(session, at);
        pager.insert_prefix(&mut session.pages, at, content);
    }
}

/// Returns the key of a page: its tokens, and the owner. The owner is part of the key because the
/// speed of a prompt must not reveal to one owner what another has sent.
fn page_content(session: &Session, at: usize) -> PageContent {
    let page = session.pages.page_tokens();
    let tokens = at * page..(at + 1) * page;
    let tokens = tokens.map(|position| (session.tokens[position], session.is_given(position)));
    PageContent::new(&session.owner, tokens)
}
