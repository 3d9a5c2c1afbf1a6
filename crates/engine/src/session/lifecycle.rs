//! A session's life between passes: it comes, waits, is told more, goes on, and ends.

use std::time::{Duration, Instant};

use djinn_kv::{OutOfPages, PageTable};

use crate::{
    Captured, EditSpec, Engine, EngineError, Finish, Output, Probe, Request, RunUntil, SavedState,
    SessionId, Transcript,
    sampling::stop_strings::TextStream,
    scheduler::FairShare,
    session::Session,
    session::output::over,
    session::state::{State, Step},
    settings,
};

/// How long before a session is expected its pages come back: a gigabyte is under way for
/// some twenty milliseconds over a link of 55 GB/s, and others may be before it.
pub(crate) const AHEAD: Duration = Duration::from_millis(300);

impl Engine {
    /// Takes a session in; it runs as soon as its turn comes.
    pub fn open(&mut self, request: Request) -> Result<SessionId, EngineError> {
        settings::check_probe(&self.model, &request)?;
        let id = SessionId(self.next_id);
        let mut session = self.new_session(request, id)?;
        self.check_open(&session.owner, session.pages_most)?;
        self.commit_session(&mut session)?;
        self.next_id += 1;
        self.sessions.insert(id, session);
        Ok(id)
    }

    /// A session that has run nothing yet.
    pub(crate) fn new_session(
        &self,
        request: Request,
        id: SessionId,
    ) -> Result<Session, EngineError> {
        let program = &self.model.program;
        settings::check(&self.model, &request)?;
        self.check_count()?;
        self.check_limits(&request)?;
        let positions = settings::positions(program, &request);
        let (prompt, checked) = (request.tokens.len(), positions);
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
        let first = request.probe.first(settings.context, request.tokens.len());
        Ok(Session {
            id,
            given: std::iter::once(0..request.tokens.len()).collect(),
            tokens: request.tokens,
            computed: 0,
            logged: 0,
            max_tokens: request.max_tokens,
            keep: request.keep,
            context: self.session_context(request.keep),
            pages,
            shares: first.unwrap_or(usize::MAX),
            pages_most,
            admitted: false,
            account: FairShare::new(request.class, self.clock),
            turn: None,
            sampling: request.sampling,
            eos: request.eos,
            stop: request.stop,
            text,
            logprobs: Vec::new(),
            probe: request.probe.pinned(prompt, checked),
            captured: Captured::default(),
            checkpoint: None,
            past: None,
            rewind: None,
            until: RunUntil::default(),
            state: State::Ready,
            failure: None,
            turn_over: false,
            transient: request.transient,
            owner: request.owner,
            deadline: request.deadline,
            lease: request.lease,
            used: Instant::now(),
        })
    }

    /// Positions of a session: who is kept may come to all that there is room for.
    fn session_context(&self, keep: bool) -> usize {
        let context = self.model.program.dims.context;
        match keep {
            true => context.min(self.blueprint.settings.context),
            false => context,
        }
    }

    /// Refuses more sessions than this engine was laid out for.
    pub(crate) fn check_count(&self) -> Result<(), EngineError> {
        let (asked, limit) = (self.sessions.len() + 1, self.blueprint.settings.open);
        let what = "sessions";
        match asked > limit {
            true => Err(EngineError::Limit { what, asked, limit }),
            false => Ok(()),
        }
    }

    /// Refuses what this engine was not laid out for.
    fn check_limits(&self, request: &Request) -> Result<(), EngineError> {
        let limits = &self.blueprint.settings;
        let prompt = request.tokens.len();
        let positions = settings::positions(&self.model.program, request);
        limits.probe_limits.check(&request.probe, positions)?;
        let wants = [
            ("positions of a session", positions, limits.context),
            (
                "rows through the head",
                self.head_rows(&request.probe, positions, prompt),
                limits.logit_rows,
            ),
        ];
        for (what, asked, limit) in wants {
            if asked > limit {
                return Err(EngineError::Limit { what, asked, limit });
            }
        }
        Ok(())
    }

    /// Rows that may have to go through the head in a pass, where a session looks or stops
    /// there.
    pub(crate) fn head_rows(&self, probe: &Probe, positions: usize, prompt: usize) -> usize {
        let limits = &self.blueprint.settings;
        if !probe.looks_in_head() {
            return 0;
        }
        let rows = probe.head_rows(positions, prompt).max(1);
        limits.rows.min(rows.saturating_mul(limits.sessions))
    }

    /// Ends a session at any point and returns what it came to.
    pub fn close(&mut self, id: SessionId) -> Option<Transcript> {
        let transcript = self.transcript(id)?;
        self.commit_closed(id);
        let mut session = self.sessions.remove(&id)?;
        self.pager.release(&mut session.pages);
        Some(transcript)
    }

    /// Bytes that a session reads in a turn of so many more tokens.
    pub fn captured_bytes(&self, id: SessionId, tokens: usize) -> u64 {
        let Some(session) = self.sessions.get(&id) else {
            return 0;
        };
        let end = session
            .tokens
            .len()
            .saturating_add(tokens)
            .min(session.context);
        let turn = session.turn().min(end)..end;
        let (program, prompt) = (&self.model.program, session.prompt());
        session.probe.captured_bytes(program, turn, prompt)
    }

    /// What a session has read since this was last asked; from now on it has read nothing.
    pub fn take_captured(&mut self, id: SessionId) -> Captured {
        let session = self.sessions.get_mut(&id);
        session.map_or_else(Captured::default, |s| std::mem::take(&mut s.captured))
    }

    /// What a session has come to so far.
    pub fn transcript(&self, id: SessionId) -> Option<Transcript> {
        let session = self.sessions.get(&id)?;
        let finish = match session.state {
            State::Done(finish) => Some(finish),
            _ => None,
        };
        let (_, generated) = session.apart();
        Some(Transcript {
            prompt: session.tokens[..session.prompt()].to_vec(),
            generated,
            logprobs: session.logprobs.clone(),
            finish,
            failure: session.failure.clone(),
            captured: session.captured.clone(),
        })
    }

    /// A session waits for its owner from now on, who may say when to expect it back, or
    /// say so again. Then its pages stay as long as nobody needs their room, and the host has
    /// them too, unless it is back in a moment. Where nobody knows when, they go at once, as far
    /// as there is room for them.
    pub fn wait(&mut self, id: SessionId, expected: Option<Instant>) -> Result<(), EngineError> {
        let step = Step::Wait(expected);
        self.can(id, step)?;
        let session = &self.sessions[&id];
        if !session.state.is_paused() && !session.turn_over {
            self.commit_state(id, SavedState::Waiting)?;
        }
        let since = Instant::now();
        let session = self.session(id);
        session.take(step)?;
        session.used = since;
        match expected {
            None => self.send_away(id),
            Some(at) if at > since + AHEAD => self.copy_out(id),
            Some(_) => {}
        }
        Ok(())
    }

    /// Tells a session that waits something, and lets it generate up to so many more tokens.
    /// Only what is new is computed.
    pub fn say(
        &mut self,
        id: SessionId,
        tokens: &[u32],
        max_tokens: usize,
    ) -> Result<(), EngineError> {
        self.say_with(id, tokens, max_tokens, &[])
    }

    /// The same with changes on the way of what is computed for it, and of nothing after.
    pub fn say_with(
        &mut self,
        id: SessionId,
        tokens: &[u32],
        max_tokens: usize,
        edits: &[EditSpec],
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
        if session.checkpoint.is_some() {
            let (is, wanted) = ("in the middle of a pass", "waiting");
            return Err(EngineError::State { id, is, wanted });
        }
        if tokens.is_empty() && session.pending() == 0 {
            return Err(EngineError::NothingToRun(id));
        }
        let end = prompt.saturating_add(max_tokens.saturating_sub(1));
        let probe = self.probe_of_turn(session, end, edits)?;
        let max_tokens = session.generated().saturating_add(max_tokens);
        self.can(id, Step::Say)?;
        self.commit_said(id, tokens, max_tokens, &probe)?;
        self.go_on(id)?;
        let session = self.session(id);
        let start = session.tokens.len();
        session.tokens.extend(tokens);
        session.logged = session.tokens.len();
        if !tokens.is_empty() {
            session.given.push(start..session.tokens.len());
        }
        session.max_tokens = max_tokens;
        session.turn_over = false;
        session.probe = probe;
        session.shares = session.shares.min(session.first_look());
        let text = self.text_of(&self.sessions[&id]);
        self.session(id).text = text;
        Ok(())
    }

    /// What a session reads and changes from its next turn on, which runs the positions before
    /// `end` at most.
    fn probe_of_turn(
        &self,
        session: &Session,
        end: usize,
        edits: &[EditSpec],
    ) -> Result<Probe, EngineError> {
        let (start, prompt, context) = (session.turn(), session.prompt(), session.context);
        let new = Probe::default().with_turn_edits(&self.model.program, edits)?;
        let new = new.starting_at(start, context, prompt);
        let positions = end.min(context);
        new.check(prompt, positions)?;
        self.blueprint
            .settings
            .probe_limits
            .check(&new, positions)?;
        let new = new.pinned(prompt, positions);
        Ok(session.probe.after_turn(start, prompt).and_edits(&new))
    }

    /// What makes text of the tokens that a session will generate, told what it has since it
    /// was last given some: a stop string may have begun.
    pub(crate) fn text_of(&self, session: &Session) -> Option<TextStream> {
        let given = session.given.last().map_or(0, |given| given.end);
        let mut stream = self.text(&session.tokens[..given], &session.stop)?;
        for token in &session.tokens[given..] {
            stream.push(*token);
        }
        Some(stream)
    }

    /// The same for what comes after these tokens.
    fn text(&self, tokens: &[u32], stop: &[String]) -> Option<TextStream> {
        let text = self.model.tokenizer.as_ref()?;
        Some(TextStream::new(text.decoder(tokens, true), stop.to_vec()))
    }

    /// A session that waited, or stopped at a hook, goes on as soon as its turn comes. One that
    /// has generated what was asked for is expected to be told more: its pages come back.
    pub fn resume(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.can(id, Step::Resume)?;
        if self.sessions[&id].turn_over {
            return self.wait(id, Some(Instant::now()));
        }
        if self.sessions[&id].state.is_paused() {
            return self.go_on_from(id, &[], RunUntil::Breakpoint);
        }
        self.commit_state(id, SavedState::Ready)?;
        self.go_on(id)
    }

    pub(crate) fn go_on(&mut self, id: SessionId) -> Result<(), EngineError> {
        let clock = self.clock;
        let session = self.session(id);
        session.take(Step::Resume)?;
        session.turn = None;
        session.used = Instant::now();
        session.account = session.account.back(clock);
        Ok(())
    }

    /// An error unless there is such a session, and this could happen to it.
    pub(crate) fn can(&self, id: SessionId, step: Step) -> Result<(), EngineError> {
        let session = self.sessions.get(&id).ok_or(EngineError::NoSession(id))?;
        session.after(step).map(drop)
    }

    /// A session has generated what was asked for, or is over. Says which.
    pub(crate) fn end_turn(&mut self, id: SessionId, finish: Finish) -> Finish {
        let ended = matches!(finish, Finish::Length | Finish::Eos | Finish::Stop);
        let session = self.sessions.get_mut(&id).expect("it ran in this pass");
        if !session.keep || !ended {
            self.end_session(id, finish);
            return finish;
        }
        session.take(Step::TurnOver).expect("it ran in this pass");
        session.until = RunUntil::Breakpoint;
        session.used = Instant::now();
        session.turn_over = true;
        self.copy_out(id);
        finish
    }

    /// A session is over and gives its pages back.
    pub(crate) fn end_session(&mut self, id: SessionId, finish: Finish) {
        let session = self.sessions.get_mut(&id).expect("an open session");
        // Whatever else goes wrong afterwards, why it ended stays.
        let _ = session.take(Step::End(finish));
        (session.checkpoint, session.rewind) = (None, None);
        session.admitted = false;
        self.pager.release(&mut session.pages);
    }

    /// Something went wrong that is the end of a session, which is told why.
    pub(crate) fn fail(&mut self, id: SessionId, error: &EngineError) -> Output {
        self.end_session(id, Finish::Failed);
        let failure = error.to_string();
        self.session(id).failure = Some(failure.clone());
        Output {
            failure: Some(failure),
            ..over(id, Finish::Failed)
        }
    }
}
