//! A session as it is written down: its tokens, how the next ones are chosen, and what it
//! changes on the way. Everything else follows from these, to the bit.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{
    Class, EngineError, Finish, Logprob, Paused, Sampling, probe::SavedProbe,
    probe::checkpoint::Rewind, session::Session, session::state::State,
};

/// A session that can go on in another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSession {
    /// Its number.
    pub id: u64,
    /// Whose it is.
    pub owner: String,
    /// How urgent.
    pub class: Class,
    /// Prompt, and what was said and generated since.
    pub tokens: Vec<u32>,
    /// Which of them were given: first, and one past the last.
    pub given: Vec<(usize, usize)>,
    /// Generated tokens at which its turn ends.
    pub max_tokens: usize,
    /// Whether it waits then.
    pub keep: bool,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end its turn.
    pub eos: Vec<u32>,
    /// Texts that do.
    pub stop: Vec<String>,
    /// Of each generated token, itself and its alternatives, where asked for.
    pub logprobs: Vec<SavedLogprobs>,
    /// What is read and changed on the way.
    pub probe: Option<SavedProbe>,
    /// Seconds since 1970 at which it is over.
    pub deadline: Option<f64>,
    /// Seconds it stays unused.
    pub lease: Option<f64>,
    /// Where it stands.
    pub state: SavedState,
    /// Where it stopped last, and went on from.
    #[serde(default)]
    pub past: Option<SavedStop>,
}

/// A hook at which a session stopped, on the way of some of its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedStop {
    /// Which.
    pub hook: String,
    /// The first of them.
    pub position: usize,
    /// How many.
    pub rows: usize,
}

impl SavedStop {
    pub(crate) fn of(at: &Paused) -> Self {
        SavedStop {
            hook: at.site.to_string(),
            position: at.position,
            rows: at.rows,
        }
    }
}

/// A token and its alternatives: each with the bits of its logarithm.
pub type SavedLogprobs = Vec<(u32, u32)>;

/// Where a session stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedState {
    /// Has tokens to run.
    Ready,
    /// Waits for its owner in the middle of a turn.
    Waiting,
    /// Has generated what was asked for, and waits to be told more.
    TurnOver,
    /// Stopped at a hook.
    Paused(SavedStop),
    /// Is over.
    Done {
        /// Why.
        finish: Finish,
        /// What went wrong, where something did.
        failure: Option<String>,
    },
}

impl SavedSession {
    pub(crate) fn of(session: &Session) -> Self {
        let seconds = |duration: Duration| duration.as_secs_f64();
        SavedSession {
            id: session.id.0,
            owner: session.owner.clone(),
            class: session.account.class,
            tokens: session.tokens.clone(),
            given: session.given.iter().map(|g| (g.start, g.end)).collect(),
            max_tokens: session.max_tokens,
            keep: session.keep,
            sampling: session.sampling.clone(),
            eos: session.eos.clone(),
            stop: session.stop.clone(),
            logprobs: session
                .logprobs
                .iter()
                .map(|all| save_logprobs(all))
                .collect(),
            probe: session.probe.saved(),
            deadline: session.deadline.map(to_unix),
            lease: session.lease.map(seconds),
            state: SavedState::of(session),
            past: session.past.as_ref().map(SavedStop::of),
        }
    }

    /// An error unless its parts fit together: what comes from a file may be anything.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let mut end = 0;
        let mut is_next = |&(from, to): &(usize, usize)| {
            let follows = end <= from && from < to && to <= self.tokens.len();
            end = to;
            follows
        };
        let first = self.given.first().is_some_and(|given| given.0 == 0);
        let is_whole = first && self.given.iter().all(&mut is_next);
        // Who is not kept is told nothing after its prompt.
        let fits = self.keep || self.given.len() == 1 && self.generated() <= self.max_tokens;
        let stands = |at: &SavedStop| {
            at.rows > 0 && at.position.saturating_add(at.rows) <= self.tokens.len()
        };
        let at = match &self.state {
            SavedState::Paused(at) => Some(at),
            _ => None,
        };
        match is_whole && fits && at.into_iter().chain(&self.past).all(stands) {
            true => Ok(()),
            false => Err(EngineError::NotRead(format!(
                "session {} is not whole: what it was given and what it generated do not fit \
                 together",
                self.id
            ))),
        }
    }

    /// How many of its tokens it generated.
    pub fn generated(&self) -> usize {
        let length = |(from, to): &(usize, usize)| to.saturating_sub(*from);
        let given: usize = self.given.iter().map(length).sum();
        self.tokens.len().saturating_sub(given)
    }
}

impl SavedState {
    pub(crate) fn of(session: &Session) -> Self {
        // Who is on its way to where it stood, to stop there again, stands there.
        if let Some(Rewind {
            to, stops: true, ..
        }) = &session.rewind
            && !session.state.is_done()
        {
            return SavedState::Paused(SavedStop::of(to));
        }
        match session.state {
            State::Ready | State::Running => SavedState::Ready,
            State::Waiting { .. } if session.turn_over => SavedState::TurnOver,
            State::Waiting { .. } => SavedState::Waiting,
            State::Paused { .. } => {
                let at = session.paused().expect("it stopped somewhere");
                SavedState::Paused(SavedStop::of(&at))
            }
            State::Done(finish) => SavedState::Done {
                finish,
                failure: session.failure.clone(),
            },
        }
    }

    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            SavedState::Ready => "ready",
            SavedState::Waiting | SavedState::TurnOver => "waiting",
            SavedState::Paused(_) => "paused",
            SavedState::Done { .. } => "done",
        }
    }
}

pub(crate) fn save_logprobs(all: &[Logprob]) -> SavedLogprobs {
    all.iter().map(|l| (l.token, l.logprob.to_bits())).collect()
}

pub(crate) fn load_logprobs(all: &SavedLogprobs) -> Vec<Logprob> {
    let load = |&(token, bits): &(u32, u32)| Logprob {
        token,
        logprob: f32::from_bits(bits),
    };
    all.iter().map(load).collect()
}

fn to_unix(at: Instant) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0.0, |since| since.as_secs_f64());
    let (ahead, behind) = (at.saturating_duration_since(Instant::now()), at.elapsed());
    now + ahead.as_secs_f64() - behind.as_secs_f64()
}

/// The same moment in this process; now, where it is past or was never one.
pub(crate) fn from_unix(seconds: f64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let ahead = seconds - now.map_or(0.0, |since| since.as_secs_f64());
    let ahead = Duration::try_from_secs_f64(ahead).unwrap_or_default();
    let at = Instant::now();
    at.checked_add(ahead).unwrap_or(at)
}
