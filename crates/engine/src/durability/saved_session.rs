//! A session as it is saved: its tokens, how the next ones are sampled, and its probe. The keys
//! and values follow from these, to the bit.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use djinn_types::{DType, SessionId};
use serde::{Deserialize, Serialize};

use super::{saved_id, saved_kv_dtype};

use crate::{
    error::EngineError,
    probe::{checkpoint::Paused, saved_probe::SavedProbe},
    sampling::sampler::{Logprob, Sampling},
    scheduler::fair_share::Class,
    session::{Session, output::Finish, state::SessionState, status::SessionStatus},
};

/// A session that another process can continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSession {
    /// Session id.
    #[serde(with = "saved_id")]
    pub id: SessionId,
    /// Owner of the session.
    pub owner: String,
    /// Scheduling class.
    pub class: Class,
    /// Prompt, appended and generated tokens.
    pub tokens: Vec<u32>,
    /// Ranges of the given tokens: first position, and one past the last.
    pub given: Vec<(usize, usize)>,
    /// Number of generated tokens at which the turn ends.
    pub max_tokens: usize,
    /// Whether the session waits after its turn.
    pub keep: bool,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Tokens that end a turn.
    pub eos: Vec<u32>,
    /// Strings that end a turn.
    pub stop: Vec<String>,
    /// For each generated token, the token and its alternatives, if requested.
    pub logprobs: Vec<SavedLogprobs>,
    /// Captures, edits and breakpoints.
    pub probe: Option<SavedProbe>,
    /// Deadline in seconds since 1970.
    pub deadline: Option<f64>,
    /// Seconds that the session stays open unused.
    pub lease: Option<f64>,
    /// State of the session.
    pub state: SavedState,
    /// Pause that the session last resumed from.
    #[serde(default)]
    pub past: Option<SavedStop>,
    /// Element type of the keys and values that the tokens were computed with; `None` in data of
    /// releases before 0.2.
    #[serde(
        default,
        with = "saved_kv_dtype",
        skip_serializing_if = "Option::is_none"
    )]
    pub kv_dtype: Option<DType>,
}

/// Hook at which tokens of a session paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedStop {
    /// Name of the hook.
    pub hook: String,
    /// First position that paused.
    pub position: usize,
    /// Number of positions that paused.
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

/// A token and its alternatives, each with the bits of its log-probability.
pub type SavedLogprobs = Vec<(u32, u32)>;

/// Saved state of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedState {
    /// The session has tokens to run.
    Ready,
    /// The session waits for its owner in the middle of a turn.
    Waiting,
    /// The session has generated everything that was asked for and waits for more input.
    TurnOver,
    /// The session is paused at a hook.
    Paused(SavedStop),
    /// The session has ended.
    Done {
        /// Reason for the end.
        finish: Finish,
        /// Message of the failure that ended the session.
        failure: Option<String>,
    },
}

impl SavedSession {
    pub(crate) fn of(session: &Session, kv_dtype: DType) -> Self {
        let seconds = |duration: Duration| duration.as_secs_f64();
        let logprobs = session.logprobs.iter().map(|all| save_logprobs(all));
        SavedSession {
            id: session.id,
            owner: session.owner.clone(),
            class: session.fair_share.class,
            tokens: session.tokens.clone(),
            given: session.given.iter().map(|g| (g.start, g.end)).collect(),
            max_tokens: session.max_tokens,
            keep: session.keep,
            sampling: session.sampling.clone(),
            eos: session.eos.clone(),
            stop: session.stop.clone(),
            logprobs: logprobs.collect(),
            probe: SavedProbe::of(&session.probe),
            deadline: session.lifetime.deadline.map(to_unix),
            lease: session.lifetime.lease.map(seconds),
            state: SavedState::of(session),
            past: session
                .last_pause
                .as_ref()
                .map(|past| SavedStop::of(&past.to)),
            kv_dtype: Some(kv_dtype),
        }
    }

    /// Returns the same session with another id and owner, for import. A kept session that was
    /// running waits after the import.
    pub(crate) fn imported(self, id: SessionId, owner: String) -> Self {
        let state = match self.state {
            SavedState::Ready if self.keep => SavedState::Waiting,
            state => state,
        };
        SavedSession {
            id,
            owner,
            state,
            ..self
        }
    }

    /// Refuses a session whose parts do not fit together: a file may contain anything.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let mut end = 0;
        let mut is_next = |&(from, to): &(usize, usize)| {
            let follows = end <= from && from < to && to <= self.tokens.len();
            end = to;
            follows
        };
        let first = self.given.first().is_some_and(|given| given.0 == 0);
        let is_whole = first && self.given.iter().all(&mut is_next);
        // Only kept sessions have input after the prompt.
        let fits = self.keep || self.given.len() == 1 && self.generated() <= self.max_tokens;
        let stands = |at: &SavedStop| {
            at.rows > 0 && at.position.saturating_add(at.rows) <= self.tokens.len()
        };
        // Infinite numbers cannot be written, and would make a whole log unreadable.
        self.sampling.check(usize::MAX)?;
        if let Some(probe) = &self.probe {
            probe.check()?;
        }
        let at = match &self.state {
            SavedState::Paused(at) => Some(at),
            _ => None,
        };
        match is_whole && fits && at.into_iter().chain(&self.past).all(stands) {
            true => Ok(()),
            false => Err(EngineError::Unreadable(format!(
                "saved session {} is inconsistent: its given and generated tokens do not fit \
                 together",
                self.id
            ))),
        }
    }

    /// Number of generated tokens.
    pub fn generated(&self) -> usize {
        let length = |(from, to): &(usize, usize)| to.saturating_sub(*from);
        // A file may contain any numbers.
        let given = self.given.iter().map(length).fold(0, usize::saturating_add);
        self.tokens.len().saturating_sub(given)
    }
}

impl SavedState {
    pub(crate) fn of(session: &Session) -> Self {
        // A session on its way to an earlier pause is saved as paused there.
        if let Some(rewind) = session.rewind()
            && rewind.stops
        {
            return SavedState::Paused(SavedStop::of(&rewind.to));
        }
        match &session.state {
            SessionState::Queued { .. }
            | SessionState::Ready { .. }
            | SessionState::Running { .. } => SavedState::Ready,
            SessionState::Waiting { turn_over, .. } => match turn_over {
                true => SavedState::TurnOver,
                false => SavedState::Waiting,
            },
            SessionState::Paused { .. } => {
                let at = session.paused().expect("a paused session has a place");
                SavedState::Paused(SavedStop::of(&at))
            }
            SessionState::Done { finish, failure } => SavedState::Done {
                finish: *finish,
                failure: failure.as_ref().map(ToString::to_string),
            },
        }
    }

    /// Returns the status that clients see.
    pub fn status(&self) -> SessionStatus {
        match self {
            SavedState::Ready => SessionStatus::Ready,
            SavedState::Waiting | SavedState::TurnOver => SessionStatus::Waiting,
            SavedState::Paused(_) => SessionStatus::Paused,
            SavedState::Done { .. } => SessionStatus::Done,
        }
    }
}

pub(super) fn save_logprobs(all: &[Logprob]) -> SavedLogprobs {
    all.iter().map(|l| (l.token, l.logprob.to_bits())).collect()
}

pub(super) fn load_logprobs(all: &SavedLogprobs) -> Vec<Logprob> {
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

/// Converts seconds since 1970 to an instant of this process; a moment in the past becomes now.
pub(super) fn from_unix(seconds: f64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let ahead = seconds - now.map_or(0.0, |since| since.as_secs_f64());
    let ahead = Duration::try_from_secs_f64(ahead).unwrap_or_default();
    let at = Instant::now();
    at.checked_add(ahead).unwrap_or(at)
}
