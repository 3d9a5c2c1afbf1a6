//! A session: tokens, pages, sampler, probe, and state.

pub(crate) mod lifecycle;
pub(crate) mod output;
pub(crate) mod quota;
pub(crate) mod request;
pub(crate) mod state;

use std::{
    cmp::Ordering,
    ops::Range,
    time::{Duration, Instant},
};

use djinn_device::Phase;
use djinn_kv::{PageTable, Pages};
use djinn_model::Site;

use crate::{
    BreakCondition, Captured, EngineError, Finish, Logprob, Probe, RunUntil, Sampling, SessionId,
    probe::{
        HEAD,
        checkpoint::{Checkpoint, Paused, Rewind},
    },
    sampling::stop_strings::TextStream,
    scheduler::FairShare,
};
use state::{State, Step};

pub(crate) struct Session {
    pub id: SessionId,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// Which of them were given, in order: the prompt, and what was said later.
    pub given: Vec<Range<usize>>,
    /// Tokens whose keys and values lie in the pages.
    pub computed: usize,
    /// Tokens that are in the log, where there is one.
    pub logged: usize,
    /// Generated tokens at which its turn ends, and whether it is kept then.
    pub max_tokens: usize,
    pub keep: bool,
    pub context: usize,
    pub pages: PageTable,
    /// Tokens whose pages others may hold too: those before the first that is read or
    /// changed on the way.
    pub shares: usize,
    /// Pages it may come to, and whether it may hold any.
    pub pages_most: usize,
    pub admitted: bool,
    /// What it has paid for its turns.
    pub account: FairShare,
    /// When its turn came, if it has since it was last ready.
    pub turn: Option<Instant>,
    pub sampling: Sampling,
    pub eos: Vec<u32>,
    pub stop: Vec<String>,
    pub text: Option<TextStream>,
    pub logprobs: Vec<Vec<Logprob>>,
    pub probe: Probe,
    pub captured: Captured,
    /// What it goes on from where it stopped in the middle of a pass.
    pub checkpoint: Option<Checkpoint>,
    /// Where it stopped last, and went on from.
    pub past: Option<Paused>,
    /// Where it stood when it was written down, if it has not come there again.
    pub rewind: Option<Rewind>,
    /// How far it goes on, beside its breakpoints.
    pub until: RunUntil,
    pub state: State,
    pub failure: Option<String>,
    /// Whether it generated what was asked for, and waits to be told more.
    pub turn_over: bool,
    /// Whether it is written down where sessions are.
    pub transient: bool,
    pub owner: String,
    pub deadline: Option<Instant>,
    /// How long it stays unused, and since when it is.
    pub lease: Option<Duration>,
    pub used: Instant,
}

impl Session {
    /// The same with other pages and nothing captured.
    pub fn again(&self, pages: PageTable, text: Option<TextStream>) -> Self {
        Session {
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
            checkpoint: self.checkpoint.clone(),
            past: self.past.clone(),
            rewind: self.rewind.clone(),
            failure: None,
            owner: self.owner.clone(),
            ..*self
        }
    }

    /// So many of its tokens were in a pass, and went all the way; or `stopped`, those from
    /// its checkpoint on.
    pub fn ran(&mut self, rows: usize, stopped: bool) {
        if !stopped {
            self.checkpoint = None;
        }
        self.computed += rows - self.checkpoint.as_ref().map_or(0, |at| at.rows);
        // It is where it stood, or past that.
        let computed = self.computed;
        self.rewind
            .take_if(|rewind| rewind.to.position + rewind.to.rows <= computed);
    }

    /// Where a step leads it, or an error that says in which states it could be taken.
    pub fn after(&self, step: Step) -> Result<State, EngineError> {
        let (id, is) = (self.id, self.state.name());
        let next = self.state.after(step);
        next.map_err(|wanted| EngineError::State { id, is, wanted })
    }

    /// Something happens to it.
    pub fn take(&mut self, step: Step) -> Result<(), EngineError> {
        self.state = self.after(step)?;
        Ok(())
    }

    /// Whether it has tokens to run and may hold pages.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready && self.admitted
    }

    /// Pages it holds that its next tokens are written to.
    pub fn pages_ahead(&self) -> usize {
        let done = self.computed / self.pages.page_tokens();
        self.pages.len().saturating_sub(done)
    }

    /// Pages it may still come to take.
    pub fn more_pages(&self, pages: &Pages) -> usize {
        self.pages_left() + self.copied_pages(pages)
    }

    /// Pages it has not come to yet.
    pub fn pages_left(&self) -> usize {
        self.pages_most.saturating_sub(self.pages.len())
    }

    /// Pages that it has to copy before it writes its next tokens, since others hold them too.
    pub fn copied_pages(&self, pages: &Pages) -> usize {
        let rows = self.checkpoint.as_ref().map_or(1, |at| at.rows);
        let next = self.computed..self.computed + rows;
        pages.frames_needed(&self.pages, &next) - self.pages.missing(next.end)
    }

    /// Whether a token was given, not generated.
    pub fn is_given(&self, position: usize) -> bool {
        let given = self.given_from(position);
        given.is_some_and(|given| given.start <= position)
    }

    /// Tokens of the prompt.
    pub fn prompt(&self) -> usize {
        self.given.first().map_or(0, |given| given.end)
    }

    /// The first position that its next turn computes: the last token it generated is run with
    /// what it is told next.
    pub fn turn(&self) -> usize {
        let last = self.tokens.len() - 1;
        last + usize::from(self.is_given(last))
    }

    /// The first of its positions at which anything is read or changed.
    pub fn first_look(&self) -> usize {
        let first = self.probe.first(self.context, self.prompt());
        first.unwrap_or(usize::MAX)
    }

    /// Tokens not yet run.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// How many of the tokens not yet run go together: given ones do, with a generated one
    /// before them; others run one by one as they did when they were generated.
    pub fn next_run(&self) -> usize {
        if let Some(checkpoint) = &self.checkpoint {
            return checkpoint.rows;
        }
        let run = match self.given_from(self.computed) {
            Some(given) if given.start <= self.computed + 1 => given.end - self.computed,
            _ => 1,
        };
        match &self.rewind {
            Some(Rewind { to, .. }) if self.computed < to.position => {
                run.min(to.position - self.computed)
            }
            Some(Rewind { to, .. }) => run.min(to.position + to.rows - self.computed),
            None => run,
        }
    }

    /// How many of those go together under a lens of so many rows, and how many rows of it
    /// they take.
    pub fn run_under(&self, lens: usize) -> (usize, usize) {
        let (run, prompt) = (self.next_run(), self.prompt());
        if self.probe.lenses().next().is_none() {
            return (run, 0);
        }
        let mut under = 0;
        for i in 0..run {
            let at = self.computed + i;
            let rows = self.probe.lens_rows(at..at + 1, prompt);
            if under + rows > lens {
                // Those that go together were under it together before.
                return (if self.runs_whole() { run } else { i.max(1) }, under);
            }
            under += rows;
        }
        (run, under)
    }

    /// Whether they run in one pass or not at all: they stop, or have stopped, together.
    pub fn runs_whole(&self) -> bool {
        let comes_to = |rewind: &Rewind| rewind.stops && rewind.to.position == self.computed;
        self.checkpoint.is_some() || self.rewind.as_ref().is_some_and(comes_to)
    }

    /// How many tokens it had generated before one of its own.
    pub fn step_of(&self, position: usize) -> usize {
        let before =
            |given: &Range<usize>| given.end.min(position + 1) - given.start.min(position + 1);
        position + 1 - self.given.iter().map(before).sum::<usize>()
    }

    /// Whether it stops before this operation, or not, on its way to where it once stood;
    /// nothing where it is past that.
    pub fn rewinds(&self, next: usize) -> Option<bool> {
        let Rewind {
            to,
            next: there,
            stops,
        } = self.rewind.as_ref()?;
        match next.cmp(there) {
            _ if self.computed < to.position => Some(false),
            _ if self.computed >= to.position + to.rows => None,
            Ordering::Less => Some(false),
            Ordering::Equal => Some(*stops),
            Ordering::Greater => None,
        }
    }

    /// Whether some of these rows may stop at any hook.
    pub fn may_stop(&self, rows: Range<usize>) -> bool {
        let breaks = |site| self.breaks(site, rows.clone()).next().is_some();
        self.rewind.is_some()
            || self.until != RunUntil::Breakpoint
            || self.probe.break_sites().any(breaks)
    }

    /// Whether a breakpoint behind the last block may be for a row.
    pub fn breaks_in_head(&self, row: usize) -> bool {
        let breaks = |site| self.breaks(site, row..row + 1).next().is_some();
        HEAD.into_iter().any(breaks)
    }

    /// The breakpoints of a hook that may be for some of these rows, each with the row.
    pub fn breaks(
        &self,
        site: Site,
        rows: Range<usize>,
    ) -> impl Iterator<Item = (&BreakCondition, usize)> {
        let (whens, prompt) = (self.probe.breaks(site), self.prompt());
        whens.iter().flat_map(move |when| {
            let may =
                move |&at: &usize| when.may_hold(at, prompt, self.step_of(at), self.tokens[at]);
            rows.clone().filter(may).map(move |at| (when, at))
        })
    }

    /// Whether it comes in the middle of a pass, or leaves there; who does both comes last.
    pub fn is_passing(&self) -> (bool, bool) {
        (
            self.until != RunUntil::Breakpoint,
            self.checkpoint.is_some(),
        )
    }

    /// The first block it goes through next.
    pub fn first_block(&self) -> usize {
        let site = self.checkpoint.as_ref().map(|at| at.stop.site);
        match site {
            Some(Site::ResidPost(block)) => block + 1,
            site => site.and_then(Site::block).unwrap_or(0),
        }
    }

    /// Where it stands, if it stopped.
    pub fn paused(&self) -> Option<Paused> {
        let stopped = self.checkpoint.as_ref().map(|checkpoint| Paused {
            site: checkpoint.stop.site,
            position: self.computed,
            rows: checkpoint.rows,
        });
        stopped.or_else(|| self.rewind.as_ref().map(|rewind| rewind.to.clone()))
    }

    /// So many tokens not yet run, by what they are: each part with its first position and
    /// how many they are.
    pub fn parts(&self, rows: usize) -> impl Iterator<Item = (Phase, usize, usize)> {
        let generated = usize::from(!self.is_given(self.computed));
        let parts = [
            (Phase::Generated, self.computed, generated),
            (Phase::Prompt, self.computed + generated, rows - generated),
        ];
        parts.into_iter().filter(|(_, _, rows)| *rows > 0)
    }

    /// The tokens given that hold a position or come next after it.
    fn given_from(&self, position: usize) -> Option<&Range<usize>> {
        self.given.iter().find(|given| position < given.end)
    }

    /// How many tokens it generated.
    pub fn generated(&self) -> usize {
        let given: usize = self.given.iter().map(ExactSizeIterator::len).sum();
        self.tokens.len() - given
    }

    /// What was given to it and what it generated.
    pub fn apart(&self) -> (Vec<u32>, Vec<u32>) {
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

    /// Whether the last token's logits will be sampled from.
    pub fn samples(&self) -> bool {
        self.generated() < self.max_tokens
    }

    /// Whether the session is over now that `token` is its last.
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
