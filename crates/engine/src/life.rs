//! A session's life between passes: it comes, waits, is told more, goes on, and ends.

use std::time::{Duration, Instant};

use djinn_memory::{OutOfPages, PageTable};

use crate::{
    Captured, Engine, EngineError, Finish, Request, SessionId, Transcript,
    schedule::Account,
    session::{Session, State},
    settings,
    text::TextStream,
};

/// How long before a session is expected its pages come back: a gigabyte is under way for
/// some twenty milliseconds over a link of 55 GB/s, and others may be before it.
pub(crate) const AHEAD: Duration = Duration::from_millis(300);

impl Engine {
    /// Takes a session in; it runs as soon as its turn comes.
    pub fn open(&mut self, request: Request) -> Result<SessionId, EngineError> {
        let program = &self.model.program;
        settings::check(&self.model, &request)?;
        self.check_limits(&request)?;
        let positions = settings::positions(program, &request);
        let text = self.text(&request.tokens, &request.stop);
        let settings = &self.blueprint.settings;
        let pages = PageTable::new(settings.page_tokens);
        // Who is kept may come to all that one session can.
        let positions = if request.keep {
            settings.context
        } else {
            positions
        };
        let (pages_most, total) = (pages.missing(positions), settings.pages);
        if pages_most > total {
            let (wanted, free) = (pages_most, total);
            return Err(OutOfPages {
                wanted,
                free,
                total,
            }
            .into());
        }
        let id = SessionId(self.next_id);
        self.next_id += 1;
        let session = Session {
            id,
            given: std::iter::once(0..request.tokens.len()).collect(),
            tokens: request.tokens,
            computed: 0,
            max_tokens: request.max_tokens,
            keep: request.keep,
            context: match request.keep {
                true => program.dims.context.min(settings.context),
                false => program.dims.context,
            },
            pages,
            arriving: None,
            pages_most,
            admitted: false,
            account: Account::new(request.class, self.clock),
            sampling: request.sampling,
            eos: request.eos,
            stop: request.stop,
            text,
            logprobs: Vec::new(),
            probe: request.probe,
            captured: Captured::default(),
            state: State::Ready,
        };
        self.sessions.insert(id, session);
        Ok(id)
    }

    /// Refuses what this engine was not laid out for.
    fn check_limits(&self, request: &Request) -> Result<(), EngineError> {
        let limits = &self.blueprint.settings;
        let dims = &self.model.program.dims;
        let pattern = request.probe.touches_pattern();
        let positions = settings::positions(&self.model.program, request);
        let wants = [
            ("sessions", self.sessions.len() + 1, limits.open),
            ("positions of a session", positions, limits.context),
            (
                "keys of an attention pattern",
                if pattern { positions } else { 0 },
                limits.pattern_keys,
            ),
            (
                "width of an edit's operand",
                request.probe.operand_width(dims),
                limits.operand_width,
            ),
        ];
        for (what, asked, limit) in wants {
            if asked > limit {
                return Err(EngineError::Limit { what, asked, limit });
            }
        }
        Ok(())
    }

    /// Ends a session at any point and returns what it came to.
    pub fn close(&mut self, id: SessionId) -> Option<Transcript> {
        let mut session = self.sessions.remove(&id)?;
        self.pager.release(&mut session.pages);
        let finish = match session.state {
            State::Done(finish) => Some(finish),
            State::Ready | State::Waiting { .. } => None,
        };
        let (_, generated) = session.apart();
        session.tokens.truncate(session.prompt());
        Some(Transcript {
            prompt: session.tokens,
            generated,
            logprobs: session.logprobs,
            finish,
            captured: session.captured,
        })
    }

    /// A session waits for its owner from now on, who may say when to expect it back, or
    /// say so again. Its pages go at once, as far as there is room for them, unless it is
    /// back in a moment.
    pub fn wait(&mut self, id: SessionId, expected: Option<Instant>) -> Result<(), EngineError> {
        let session = self.in_state(id, "ready", |state| !matches!(state, State::Done(_)))?;
        session.state = State::Waiting { expected };
        if expected.is_some_and(|at| at <= Instant::now() + AHEAD) {
            return Ok(());
        }
        self.send_away(id, usize::MAX)
    }

    /// Tells a session that waits something, and lets it generate up to so many more tokens.
    /// Only what is new is computed.
    pub fn say(
        &mut self,
        id: SessionId,
        tokens: &[u32],
        max_tokens: usize,
    ) -> Result<(), EngineError> {
        let session = self.sessions.get(&id).ok_or(EngineError::NoSession(id))?;
        settings::check_tokens(&self.model.program, tokens)?;
        if !session.keep {
            return Err(EngineError::NotKept(id));
        }
        let prompt = session.tokens.len() + tokens.len();
        let context = session.context;
        if prompt > context {
            return Err(EngineError::PromptTooLong { prompt, context });
        }
        self.resume(id)?;
        let session = self.sessions.get_mut(&id).expect("it was resumed");
        let start = session.tokens.len();
        session.tokens.extend(tokens);
        if !tokens.is_empty() {
            session.given.push(start..session.tokens.len());
        }
        session.max_tokens = session.generated() + max_tokens;
        let (all, stop) = (session.tokens.clone(), session.stop.clone());
        let text = self.text(&all, &stop);
        self.sessions.get_mut(&id).expect("as above").text = text;
        Ok(())
    }

    /// What makes text of the tokens that come after these.
    fn text(&self, tokens: &[u32], stop: &[String]) -> Option<TextStream> {
        let text = self.model.text.as_ref()?;
        Some(TextStream::new(text.decoder(tokens, true), stop.to_vec()))
    }

    /// A session that waited goes on as soon as its turn comes.
    pub fn resume(&mut self, id: SessionId) -> Result<(), EngineError> {
        let clock = self.clock;
        let is_waiting = |state| matches!(state, State::Waiting { .. });
        let session = self.in_state(id, "waiting", is_waiting)?;
        session.state = State::Ready;
        session.account = session.account.back(clock);
        Ok(())
    }

    /// A session in a state that is wanted of it.
    fn in_state(
        &mut self,
        id: SessionId,
        wanted: &'static str,
        is_wanted: impl Fn(State) -> bool,
    ) -> Result<&mut Session, EngineError> {
        let session = self.sessions.get_mut(&id);
        let session = session.ok_or(EngineError::NoSession(id))?;
        if !is_wanted(session.state) {
            let is = session.state.name();
            return Err(EngineError::State { id, is, wanted });
        }
        Ok(session)
    }

    /// A session has generated what was asked for, or is over. Says which.
    pub(crate) fn end_turn(&mut self, id: SessionId, finish: Finish) -> Finish {
        let ended = matches!(finish, Finish::Length | Finish::Eos | Finish::Stop);
        let session = self.sessions.get_mut(&id).expect("it ran in this pass");
        if !session.keep || !ended {
            self.end_session(id, finish);
            return finish;
        }
        session.state = State::Waiting { expected: None };
        let sent = self.send_away(id, usize::MAX);
        sent.map_or(Finish::Failed, |()| finish)
    }
}
