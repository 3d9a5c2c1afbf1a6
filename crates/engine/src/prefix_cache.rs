//! Equal beginnings: sessions hold the same pages, and a fork costs no copy.

use std::time::Instant;

use djinn_kv::PageContent;

use crate::{Engine, EngineError, Sampling, SessionId, session::Session};

impl Engine {
    /// Gives sessions with tokens to run the pages that others have computed already.
    pub(crate) fn adopt(&mut self) {
        // Who stopped goes on with its own.
        let can = |session: &&mut Session| session.is_ready() && session.paused().is_none();
        for session in self.sessions.values_mut().filter(can) {
            let page = session.pages.page_tokens();
            loop {
                let at = session.computed / page;
                let end = (at + 1) * page;
                // The last token is always run: by its logits the next is chosen.
                if end >= session.tokens.len() || end > session.shares {
                    break;
                }
                // Whoever stops on the way has to go it.
                if session.may_stop(session.computed..end) {
                    break;
                }
                let chunk = session.chunk(at);
                if !self.pager.lookup_prefix(&mut session.pages, at, &chunk) {
                    break;
                }
                self.adopted += end - session.computed;
                session.computed = end;
            }
        }
    }

    /// Lets others have the pages that a session has filled since it had run so many
    /// tokens.
    pub(crate) fn publish(&mut self, id: SessionId, before: usize) {
        let session = self.sessions.get_mut(&id).expect("an open session");
        let page = session.pages.page_tokens();
        let filled = session.computed.min(session.shares) / page;
        for at in before / page..filled {
            let chunk = session.chunk(at);
            self.pager.insert_prefix(&mut session.pages, at, chunk);
        }
    }

    /// Tokens that were not computed because others had done so.
    pub fn adopted(&self) -> usize {
        self.adopted
    }

    /// Another session that goes on from where this one is, in the same state, with another
    /// sampling if one is given. It holds the same pages until one of the two writes to
    /// them. Where there is no room for what it may come to, it waits for that and computes
    /// again what others do not have by then.
    pub fn fork(
        &mut self,
        id: SessionId,
        sampling: Option<Sampling>,
    ) -> Result<SessionId, EngineError> {
        let session = self.sessions.get(&id).ok_or(EngineError::NoSession(id))?;
        if session.state.is_done() {
            let (is, wanted) = (session.state.name(), "ready or waiting");
            return Err(EngineError::State { id, is, wanted });
        }
        if let Some(sampling) = &sampling {
            sampling.check(self.model.program.dims.vocab)?;
        }
        self.check_open(&session.owner, session.pages_most)?;
        self.check_count()?;
        let pages = self.pager.pages();
        let (more, copied) = (session.pages_left(), session.pages_ahead());
        // The session itself may have to copy its pages once they are shared, if it had not.
        let not_yet = copied.saturating_sub(session.copied_pages(pages));
        let promised = self.promised();
        let promised = promised.and_fork(session.pages_most, more + not_yet, copied);
        let fits = promised.fits(pages.device().total(), self.elsewhere());
        let can_wait = session.probe.is_empty() && session.paused().is_none();
        if !fits && !can_wait {
            return Err(EngineError::NoRoomToFork(id));
        }
        let fork_id = SessionId(self.next_id);
        let session = &self.sessions[&id];
        let text = self.text_of(session);
        let holds = fits && session.admitted;
        let pages = match holds {
            true => self.pager.share(&session.pages),
            false => djinn_kv::PageTable::new(session.pages.page_tokens()),
        };
        let mut fork = Session {
            id: fork_id,
            computed: if holds { session.computed } else { 0 },
            admitted: holds,
            used: Instant::now(),
            sampling: sampling.unwrap_or_else(|| session.sampling.clone()),
            ..session.again(pages, text)
        };
        fork.account = fork.account.back(self.clock);
        if let Err(error) = self.commit_session(&mut fork) {
            self.pager.release(&mut fork.pages);
            return Err(error);
        }
        self.next_id += 1;
        self.sessions.insert(fork_id, fork);
        Ok(fork_id)
    }
}

impl Session {
    /// The tokens of a page.
    fn chunk(&self, at: usize) -> PageContent {
        let page = self.pages.page_tokens();
        let tokens = at * page..(at + 1) * page;
        let tokens = tokens.map(|position| (self.tokens[position], self.is_given(position)));
        // How fast a prompt runs must not tell one owner what another has said.
        PageContent::new(&self.owner, tokens)
    }
}
