//! A session: tokens, pages, sampler, probe, and where it stands.

use std::{fmt, ops::Range, time::Instant};

use djinn_device::{Event, Phase};
use djinn_memory::PageTable;

use crate::{Captured, Class, Logprob, Probe, Sampling, schedule::Account, text::TextStream};

/// Names a session of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// What a client asks for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Tokens to generate at most; 0 only runs the prompt.
    pub max_tokens: usize,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end the session.
    pub eos: Vec<u32>,
    /// Texts that end it; they are not part of the output.
    pub stop: Vec<String>,
    /// What to read and change on the way.
    pub probe: Probe,
    /// How urgent it is beside others.
    pub class: Class,
    /// Whether the session waits for more when it has generated what was asked for, as an
    /// agent does for its tool, instead of being over.
    pub keep: bool,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It generated as much as was asked for.
    Length,
    /// No position is left in the context.
    Context,
    /// The model said so.
    Eos,
    /// A stop string was reached.
    Stop,
    /// The model computed something that is not a number: weights or edits are broken.
    NotANumber,
    /// The device failed in the middle of a pass.
    Failed,
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Eos => "eos",
            Finish::Stop => "stop",
            Finish::NotANumber => "not-a-number",
            Finish::Failed => "failed",
        })
    }
}

/// What is left of a session when it is closed.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// What was generated, the ending token included.
    pub generated: Vec<u32>,
    /// For each generated token, itself and its alternatives, when asked for.
    pub logprobs: Vec<Vec<Logprob>>,
    /// Why it ended; `None` where it was closed before its end.
    pub finish: Option<Finish>,
    /// What was captured.
    pub captured: Captured,
}

/// A session's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Has tokens to run.
    Ready,
    /// Waits for its owner, and holds no memory that others need.
    Waiting {
        /// When it is expected back, if it said.
        expected: Option<Instant>,
    },
    /// Will run no more.
    Done(Finish),
}

impl State {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Waiting { .. } => "waiting",
            State::Done(_) => "done",
        }
    }
}

pub(crate) struct Session {
    pub id: SessionId,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// Which of them were given, in order: the prompt, and what was said later.
    pub given: Vec<Range<usize>>,
    /// Tokens whose keys and values lie in the pages.
    pub computed: usize,
    /// Generated tokens at which its turn ends, and whether it is kept then.
    pub max_tokens: usize,
    pub keep: bool,
    pub context: usize,
    pub pages: PageTable,
    /// By when all of them are where passes run, if some are on their way.
    pub arriving: Option<Event>,
    /// Pages it may come to, and whether it may hold any.
    pub pages_most: usize,
    pub admitted: bool,
    /// What it has paid for its turns.
    pub account: Account,
    pub sampling: Sampling,
    pub eos: Vec<u32>,
    pub stop: Vec<String>,
    pub text: Option<TextStream>,
    pub logprobs: Vec<Vec<Logprob>>,
    pub probe: Probe,
    pub captured: Captured,
    pub state: State,
}

impl Session {
    /// Tokens of the prompt.
    pub fn prompt(&self) -> usize {
        self.given.first().map_or(0, |given| given.end)
    }

    /// Tokens not yet run.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// What the tokens run next are.
    pub fn phase(&self) -> Phase {
        match self.given_from(self.computed) {
            Some(given) if given.start <= self.computed => Phase::Prompt,
            _ => Phase::Generated,
        }
    }

    /// How many of the tokens not yet run are of that kind.
    pub fn next_run(&self) -> usize {
        let end = match self.given_from(self.computed) {
            Some(given) if given.start <= self.computed => given.end,
            Some(given) => given.start,
            None => self.tokens.len(),
        };
        end - self.computed
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
