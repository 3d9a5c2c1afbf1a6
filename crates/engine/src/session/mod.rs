//! Sessions: their data, state machine, requests, outputs and quotas.

pub(crate) mod checker;
pub(crate) mod failure;
pub(crate) mod ids;
pub(crate) mod lifecycle;
pub(crate) mod lifetime;
pub(crate) mod output;
pub(crate) mod probe_reserve;
pub(crate) mod quota;
pub(crate) mod request;
pub(crate) mod residency;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod view;

use std::{cmp::Ordering, ops::Range};

use djinn_device::Phase;
use djinn_kv::{PageId, PageTable, Pages};
use djinn_model::Site;
use djinn_types::SessionId;

use crate::{
    error::EngineError,
    probe::{
        Probe,
        breakpoint::{BreakCondition, RunUntil},
        capture::HEAD,
        captured::Captured,
        checkpoint::{Checkpoint, PausePlace, Paused, Rewind},
        positions::union,
    },
    sampling::{
        sampler::{Logprob, Sampling},
        stop_strings::TextStream,
    },
    scheduler::fair_share::FairShare,
};
use lifetime::Lifetime;
use output::Finish;
use probe_reserve::ProbeReserve;
use state::{OwnerAction, SessionState, Transition};

/// Tokens of a session that run together next, and the rows that they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextRun {
    /// Number of tokens.
    pub tokens: usize,
    /// Rows of the logit lens.
    pub lens_rows: usize,
    /// Rows through the head, without the logit lens.
    pub head_rows: usize,
}

/// A session: its tokens, KV pages, sampling, probe and state.
pub(crate) struct Session {
    pub id: SessionId,
    pub owner: String,
    /// Prompt, appended and generated tokens, in order of position.
    pub tokens: Vec<u32>,
    /// Positions of the given tokens: the prompt, then tokens appended later.
    pub given: Vec<Range<usize>>,
    /// Number of tokens whose keys and values lie in the pages.
    pub computed: usize,
    /// Number of tokens whose keys and values the prefix cache had, since the last input.
    pub reused: usize,
    /// Number of leading tokens after which the session last took pages from the prefix cache.
    pub adopted: usize,
    /// Whether the prefix cache was searched for the pending input.
    pub was_looked_up: bool,
    /// Number of tokens that are in the session log.
    pub logged: usize,
    /// Whether the log lacks a state that the session has reached.
    pub owes_state: bool,
    /// Number of generated tokens at which the current turn ends.
    pub max_tokens: usize,
    /// Whether the session waits for more input after a turn instead of ending.
    pub keep: bool,
    /// Maximum number of positions.
    pub context: usize,
    pub pages: PageTable,
    /// Number of leading tokens whose pages others may share: the tokens before the first
    /// position that the probe reads or edits.
    pub shares: usize,
    /// Maximum number of pages that the session may need.
    pub pages_most: usize,
    pub fair_share: FairShare,
    pub sampling: Sampling,
    /// Tokens that end a turn.
    pub eos: Vec<u32>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Decoder of the generated tokens; `None` where the model has no tokenizer.
    pub text: Option<TextStream>,
    /// For each generated token, the token and its alternatives, if requested.
    pub logprobs: Vec<Vec<Logprob>>,
    pub probe: Probe,
    pub captured: Captured,
    /// Host memory that the turn can take for its probe.
    pub reserve: ProbeReserve,
    /// Pause that the session last resumed from.
    pub last_pause: Option<Rewind>,
    pub state: SessionState,
    /// Whether the session is never written to the log.
    pub transient: bool,
    pub lifetime: Lifetime,
}

impl Session {
    /// Clones the session with other pages and nothing captured.
    pub fn duplicate(&self, id: SessionId, pages: PageTable, text: Option<TextStream>) -> Self {
        Session {
            id,
            owner: self.owner.clone(),
            tokens: self.tokens.clone(),
            given: self.given.clone(),
            pages,
            sampling: self.sampling.clone(),
            eos: self.eos.clone(),
            stop: self.stop.clone(),
            text,
            logprobs: self.logprobs.clone(),
            probe: self.probe.clone(),
            captured: Captured::default(),
            last_pause: self.last_pause.clone(),
            state: self.state.clone(),
            lifetime: self.lifetime.clone(),
            ..*self
        }
    }

    /// Advances the session over `rows` tokens that went through the whole pass.
    pub fn advance(&mut self, rows: usize) {
        self.computed += rows;
        let computed = self.computed;
        let is_past = |place: &mut PausePlace| match place {
            PausePlace::Here(_) => true,
            PausePlace::Replay(rewind) => rewind.to.position + rewind.to.rows <= computed,
        };
        if let Some(route) = self.state.route_mut() {
            route.place.take_if(is_past);
        }
    }

    /// Notes that the last `tokens` of the computed tokens came from the prefix cache.
    pub fn adopt(&mut self, tokens: usize) {
        self.reused += tokens;
        if tokens > 0 {
            self.adopted = self.computed;
        }
    }

    /// Returns the number of leading pages that the session can continue from although `page` is
    /// lost: if nothing ran since the session took pages from the prefix cache. `None` if the
    /// session must compute more than those.
    pub fn pages_before_lost(&self, page: PageId) -> Option<usize> {
        let at = self.pages.pages().iter().position(|&own| own == page)?;
        let page_tokens = self.pages.page_tokens();
        let is_unused = self.is_ready() && self.paused().is_none();
        // Pages that are shared hold no position that the probe reads or edits.
        let is_shared = self.computed == self.adopted && self.computed <= self.shares;
        (is_unused && is_shared && (at + 1) * page_tokens <= self.computed).then_some(at)
    }

    /// Returns to the first `pages` pages, of which the caller released the others.
    pub fn return_to(&mut self, pages: usize) {
        let computed = pages * self.pages.page_tokens();
        self.reused = self.reused.saturating_sub(self.computed - computed);
        self.computed = computed;
        self.adopted = computed;
    }

    /// Advances the session over the first of `rows` tokens of a pass, and pauses it with the
    /// others at a checkpoint.
    pub fn pause(&mut self, rows: usize, checkpoint: Checkpoint) -> Result<(), EngineError> {
        self.computed += rows - checkpoint.rows;
        self.apply(Transition::Pause(checkpoint))?;
        self.lifetime.touch();
        Ok(())
    }

    /// Returns the host memory that counts for the session: what its turn can take at most, or,
    /// after the turn, what its captures take until they are taken.
    pub fn probe_bytes(&self) -> u64 {
        let captured = self.captured.bytes();
        match self.state.is_turn_over() || self.state.is_done() {
            true => captured,
            false => {
                let captures = self.reserve.captures.max(captured);
                captures.saturating_add(self.reserve.checkpoint)
            }
        }
    }

    /// Notes that the log has all tokens and the state of the session.
    pub fn note_logged(&mut self) {
        self.logged = self.tokens.len();
        self.owes_state = false;
    }

    /// Interrupts a kept session after a fault that took its keys and values: the session waits,
    /// and computes its tokens again when it continues. The caller releases the pages. Captures of
    /// an interrupted turn are dropped, because the turn captures them again.
    pub fn interrupt(&mut self) -> Result<(), EngineError> {
        let rewind = match (self.state.place(), self.paused()) {
            (Some(place), Some(at)) => Some(place.passed(at)),
            _ => self.last_pause.clone(),
        };
        let is_complete = self.state.is_turn_over();
        self.apply(Transition::Fault(rewind))?;
        if !is_complete {
            self.captured = Captured::default();
        }
        self.computed = 0;
        self.lifetime.touch();
        Ok(())
    }

    /// Applies a transition, or returns an error that names the statuses that allow it.
    pub fn apply(&mut self, transition: Transition) -> Result<(), EngineError> {
        let (id, status) = (self.id, self.state.status());
        let applied = self.state.apply(transition);
        applied.map_err(|allowed| EngineError::WrongStatus {
            id,
            status,
            allowed,
        })
    }

    /// Checks that the owner may do something in the current state.
    pub fn check(&self, action: OwnerAction) -> Result<(), EngineError> {
        let checked = self.state.check(action);
        checked.map_err(|allowed| EngineError::WrongStatus {
            id: self.id,
            status: self.state.status(),
            allowed,
        })
    }

    /// Whether the session has tokens to run and may hold pages.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, SessionState::Ready { .. })
    }

    /// Whether the session has tokens to run and waits for admission to KV memory.
    pub fn is_queued(&self) -> bool {
        matches!(self.state, SessionState::Queued { .. })
    }

    /// Whether the session runs or is about to.
    pub fn is_active(&self) -> bool {
        self.is_ready() || self.is_queued() || self.state.is_running()
    }

    /// Whether the session has tokens to run, and no pass has taken it since it got them.
    pub fn awaits_first_pass(&self) -> bool {
        self.is_queued() || (self.is_ready() && self.state.scheduled().is_none())
    }

    /// Whether no pass has run a token of the session, although the prefix cache may have had some.
    pub fn has_run_nothing(&self) -> bool {
        let never_paused = self.paused().is_none() && self.last_pause.is_none();
        never_paused && self.generated() == 0 && self.computed == self.adopted
    }

    /// Whether the session has another turn to run, and nothing of its input is computed.
    pub fn awaits_first_pass_of_turn(&self) -> bool {
        let input = self.given.last().map_or(0, |given| given.start);
        let is_at_turn = self.paused().is_none() && self.computed <= input;
        self.is_ready() && self.awaits_first_pass() && is_at_turn
    }

    /// Returns the checkpoint that the session is paused at or continues from.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.state.place()?.checkpoint()
    }

    /// Returns the pause that the session has to run to again.
    pub fn rewind(&self) -> Option<&Rewind> {
        self.state.place()?.rewind()
    }

    /// Returns the hook and tokens at which the session is paused or was paused last.
    pub fn paused(&self) -> Option<Paused> {
        match self.state.place()? {
            PausePlace::Here(checkpoint) => Some(Paused {
                site: checkpoint.stop.site,
                position: self.computed,
                rows: checkpoint.rows,
            }),
            PausePlace::Replay(rewind) => Some(rewind.to.clone()),
        }
    }

    /// Number of held pages that the next tokens are written to.
    pub fn pages_ahead(&self) -> usize {
        let done = self.computed / self.pages.page_tokens();
        self.pages.len().saturating_sub(done)
    }

    /// Number of pages that the session may still allocate, copies of shared pages included.
    pub fn more_pages(&self, pages: &Pages) -> usize {
        self.pages_left() + self.copied_pages(pages)
    }

    /// Number of pages between the held pages and the maximum.
    pub fn pages_left(&self) -> usize {
        self.pages_most.saturating_sub(self.pages.len())
    }

    /// Number of shared pages that the session must copy before it writes its next tokens.
    pub fn copied_pages(&self, pages: &Pages) -> usize {
        let rows = self.checkpoint().map_or(1, |at| at.rows);
        let next = self.computed..self.computed + rows;
        pages.frames_needed(&self.pages, &next) - self.pages.missing(next.end)
    }

    /// Whether the token at a position was given, not generated.
    pub fn is_given(&self, position: usize) -> bool {
        let given = self.given_from(position);
        given.is_some_and(|given| given.start <= position)
    }

    /// Number of tokens of the prompt.
    pub fn prompt(&self) -> usize {
        self.given.first().map_or(0, |given| given.end)
    }

    /// First position that the next turn computes: the last generated token runs with the
    /// tokens appended after it.
    pub fn turn_start(&self) -> usize {
        let last = self.tokens.len() - 1;
        last + usize::from(self.is_given(last))
    }

    /// First position that the probe reads or edits.
    pub fn first_probed(&self) -> usize {
        let first = self.probe.first(self.context, self.prompt());
        first.unwrap_or(usize::MAX)
    }

    /// Number of tokens that have not run yet.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Number of pending tokens that run together. Given tokens run together, with the
    /// generated token before them; generated tokens run one by one, as they did when they were generated.
    pub fn next_run(&self) -> usize {
        if let Some(checkpoint) = self.checkpoint() {
            return checkpoint.rows;
        }
        let run = match self.given_from(self.computed) {
            Some(given) if given.start <= self.computed + 1 => given.end - self.computed,
            _ => 1,
        };
        match self.rewind() {
            Some(Rewind { to, .. }) if self.computed < to.position => {
                run.min(to.position - self.computed)
            }
            Some(Rewind { to, .. }) => run.min(to.position + to.rows - self.computed),
            None => run,
        }
    }

    /// Rows of the head that the tokens at these positions need.
    pub fn head_rows(&self, positions: Range<usize>) -> usize {
        let last = self.tokens.len().saturating_sub(1);
        let samples = self.samples() && positions.contains(&last);
        if !self.probe.looks_in_head() {
            return usize::from(samples);
        }
        let looked = self.probe.head_rows(positions, self.prompt());
        let sampled = samples.then_some(last..last + 1);
        let rows = union(looked.into_iter().chain(sampled));
        rows.iter().map(ExactSizeIterator::len).sum()
    }

    /// Number of pending tokens that run together where the logit lens has room for `lens` rows and
    /// the head for `head` rows, and the rows that they need.
    pub fn run_under(&self, lens: usize, head: usize) -> NextRun {
        let (tokens, prompt) = (self.next_run(), self.prompt());
        let of = |tokens: usize| {
            let next = self.computed..self.computed + tokens;
            NextRun {
                tokens,
                lens_rows: self.probe.lens_rows(next.clone(), prompt),
                head_rows: self.head_rows(next),
            }
        };
        let all = of(tokens);
        let fits = |run: NextRun| run.lens_rows <= lens && run.head_rows <= head;
        if fits(all) {
            return all;
        }
        // The largest number of tokens that has room; more tokens never need fewer rows.
        let (mut least, mut exceeds) = (0, tokens);
        while exceeds - least > 1 {
            let middle = least.midpoint(exceeds);
            match fits(of(middle)) {
                true => least = middle,
                false => exceeds = middle,
            }
        }
        NextRun {
            // Tokens that must run together had room together before.
            tokens: if self.runs_whole() {
                tokens
            } else {
                least.max(1)
            },
            ..of(least)
        }
    }

    /// Whether the next tokens run in one pass or not at all, because they pause together or
    /// continue from one checkpoint.
    pub fn runs_whole(&self) -> bool {
        match self.state.place() {
            Some(PausePlace::Here(_)) => true,
            Some(PausePlace::Replay(rewind)) => rewind.stops && rewind.to.position == self.computed,
            None => false,
        }
    }

    /// Number of tokens generated up to a position.
    pub fn step_of(&self, position: usize) -> usize {
        let before =
            |given: &Range<usize>| given.end.min(position + 1) - given.start.min(position + 1);
        position + 1 - self.given.iter().map(before).sum::<usize>()
    }

    /// Whether a session that runs to an earlier pause again pauses before operation `next`. `None`
    /// after that pause.
    pub fn rewinds(&self, next: usize) -> Option<bool> {
        let Rewind {
            to,
            next: there,
            stops,
        } = self.rewind()?;
        match next.cmp(there) {
            _ if self.computed < to.position => Some(false),
            _ if self.computed >= to.position + to.rows => None,
            Ordering::Less => Some(false),
            Ordering::Equal => Some(*stops),
            Ordering::Greater => None,
        }
    }

    /// Whether some of these rows may pause at any hook.
    pub fn may_pause(&self, rows: Range<usize>) -> bool {
        let breaks = |site| self.breaks(site, rows.clone()).next().is_some();
        self.rewind().is_some()
            || self.state.until() != RunUntil::Breakpoint
            || self.probe.break_sites().any(breaks)
    }

    /// Whether a breakpoint after the last block may match a row.
    pub fn breaks_in_head(&self, row: usize) -> bool {
        let breaks = |site| self.breaks(site, row..row + 1).next().is_some();
        HEAD.into_iter().any(breaks)
    }

    /// Breakpoints of a hook that may match some of these rows, each with its row.
    pub fn breaks(
        &self,
        site: Site,
        rows: Range<usize>,
    ) -> impl Iterator<Item = (&BreakCondition, usize)> {
        let (conditions, prompt) = (self.probe.breaks(site), self.prompt());
        conditions.iter().flat_map(move |condition| {
            let may = move |&at: &usize| {
                condition.may_hold(at, prompt, self.step_of(at), self.tokens[at])
            };
            rows.clone().filter(may).map(move |at| (condition, at))
        })
    }

    /// Whether the session may leave in the middle of a pass, and whether it starts in the middle of one.
    /// Batches place sessions that do neither first.
    pub fn is_partial(&self) -> (bool, bool) {
        let leaves = self.state.until() != RunUntil::Breakpoint;
        (leaves, self.checkpoint().is_some())
    }

    /// First block that the next pass runs for this session.
    pub fn first_block(&self) -> usize {
        let site = self.checkpoint().map(|at| at.stop.site);
        match site {
            Some(Site::ResidPost(block)) => block + 1,
            site => site.and_then(Site::block).unwrap_or(0),
        }
    }

    /// Splits the next `rows` tokens by phase; each part has its first position and length.
    pub fn parts(&self, rows: usize) -> impl Iterator<Item = (Phase, usize, usize)> {
        let generated = usize::from(!self.is_given(self.computed));
        let parts = [
            (Phase::Generated, self.computed, generated),
            (Phase::Prompt, self.computed + generated, rows - generated),
        ];
        parts.into_iter().filter(|(_, _, rows)| *rows > 0)
    }

    /// Range of given tokens that contains a position or follows it.
    fn given_from(&self, position: usize) -> Option<&Range<usize>> {
        self.given.iter().find(|given| position < given.end)
    }

    /// Number of generated tokens.
    pub fn generated(&self) -> usize {
        let given: usize = self.given.iter().map(ExactSizeIterator::len).sum();
        self.tokens.len() - given
    }

    /// Separates the given tokens from the generated ones.
    pub fn given_and_generated(&self) -> (Vec<u32>, Vec<u32>) {
        let mut given = self.given.iter().flat_map(Range::clone).peekable();
        let mut apart = (Vec::new(), Vec::new());
        for (position, &token) in self.tokens.iter().enumerate() {
            match given.next_if_eq(&position) {
                Some(_) => apart.0.push(token),
                None => apart.1.push(token),
            }
        }
        apart
    }

    /// Whether a token is sampled from the logits of the last token.
    pub fn samples(&self) -> bool {
        self.generated() < self.max_tokens
    }

    /// Returns why the turn ends now that `token` is the last token, if it does.
    pub fn finished_by(&self, token: u32, stopped: bool) -> Option<Finish> {
        if stopped {
            Some(Finish::Stop)
        } else if self.eos.contains(&token) {
            Some(Finish::Eos)
        } else if self.generated() >= self.max_tokens {
            Some(Finish::Length)
        } else if self.tokens.len() > self.context {
            Some(Finish::Context)
        } else {
            None
        }
    }
}
