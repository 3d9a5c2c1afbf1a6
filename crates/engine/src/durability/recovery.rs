//! Recovery: sessions of a state folder or of a file become open sessions again.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use djinn_model::{Model, StopPoint, hook};
use djinn_types::{DType, SessionId};

use super::saved_prefixes::SavedPrefixes;
use super::saved_session::{SavedSession, SavedState, SavedStop, from_unix, load_logprobs};
use super::state_folder::StateDamage;
use crate::{
    error::EngineError,
    probe::{
        Probe,
        checkpoint::{PausePlace, Paused, Rewind},
        saved_probe::load_probe,
    },
    scheduler::fair_share::FairShare,
    session::{
        Session,
        checker::RequestChecker,
        failure::SessionFailure,
        lifecycle::{create, text_of},
        request::{Request, check_tokens},
        state::{PassRoute, SessionState},
    },
    settings::Settings,
};

/// Result of restoring a state folder.
#[derive(Debug, Default)]
pub struct Restored {
    /// Sessions that are open again.
    pub sessions: Vec<SessionId>,
    /// Sessions that the engine has no room for, each with the reason. They stay in the folder.
    pub refused: Vec<(SessionId, EngineError)>,
    /// Number of bytes that the last crash left half written.
    pub torn: u64,
    /// Losses that damage of the folder caused. A session that is named here and open again
    /// continues from its last consistent point.
    pub damaged: Vec<StateDamage>,
    /// Pages of the prefix cache that were read.
    pub prefixes: SavedPrefixes,
    /// Reason why other saved pages of the prefix cache were not read.
    pub prefixes_left: Option<EngineError>,
}

/// Sessions of a state folder to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreScope {
    /// All sessions.
    All,
    /// One session.
    One(SessionId),
    /// No session: the engine starts empty, and the sessions stay in the folder.
    None,
}

impl RestoreScope {
    /// Whether the scope includes a session.
    pub(crate) fn includes(self, id: SessionId) -> bool {
        match self {
            RestoreScope::All => true,
            RestoreScope::One(one) => one == id,
            RestoreScope::None => false,
        }
    }
}

/// Properties of the engine that recovery needs.
pub(crate) struct RecoveryContext<'a> {
    pub model: &'a Model,
    pub settings: &'a Settings,
    /// Hooks at which sessions can pause, by the index of the next operation.
    pub stops: &'a BTreeMap<usize, Arc<StopPoint>>,
    pub virtual_time: u64,
    pub checker: &'a RequestChecker,
    /// Element type of keys and values.
    pub kv_dtype: DType,
    /// Element type of keys and values of sessions whose data does not tell.
    pub legacy_kv_dtype: DType,
}

impl RecoveryContext<'_> {
    /// Recreates a saved session, with nothing computed yet.
    pub fn restore(&self, saved: &SavedSession) -> Result<Session, EngineError> {
        let program = &self.model.program;
        saved.check()?;
        self.check_kv_dtype(saved)?;
        let prompt = saved.tokens[..saved.given[0].1].to_vec();
        let probe = match &saved.probe {
            Some(probe) => load_probe(program, probe)?,
            None => Probe::default(),
        };
        probe.check_rows(prompt.len(), program.dims.context)?;
        let request = request(saved, prompt, probe.clone());
        let id = saved.id;
        let checked = self.checker.check_restored(request)?;
        let share = FairShare::new(saved.class, self.virtual_time);
        let mut session = create(self.model, self.settings, checked, id, share);
        check_tokens(program, &saved.tokens)?;
        // The saved probe was bound to the positions that the session had when it was opened.
        session.probe = probe.resolved(session.prompt());
        let range = |&(start, end): &(usize, usize)| -> Range<usize> { start..end };
        session.given = saved.given.iter().map(range).collect();
        session.tokens.clone_from(&saved.tokens);
        session.logged = saved.tokens.len();
        session.max_tokens = saved.max_tokens;
        // The last generated token has not run yet.
        let runs = session.turn_start();
        let context = session.context.min(self.settings.context);
        if runs > context {
            let prompt = session.tokens.len();
            return Err(EngineError::PromptTooLong { prompt, context });
        }
        let rest = session.max_tokens.saturating_sub(session.generated());
        let end = session.tokens.len().saturating_add(rest).min(context);
        session.reserve = self
            .checker
            .reserve(&session.probe, 0..end, session.prompt());
        session.logprobs = saved.logprobs.iter().map(load_logprobs).collect();
        session.text = text_of(self.model, &session);
        let past = saved.past.as_ref().map(|past| self.rewind_to(past));
        let past = past.transpose()?;
        session.last_pause.clone_from(&past);
        session.state = self.state(&saved.state, past)?;
        Ok(session)
    }

    /// Refuses a session whose tokens were computed with keys and values of another type: its
    /// next tokens would not be those of an uninterrupted run.
    fn check_kv_dtype(&self, saved: &SavedSession) -> Result<(), EngineError> {
        let theirs = saved.kv_dtype.unwrap_or(self.legacy_kv_dtype);
        match theirs == self.kv_dtype {
            true => Ok(()),
            false => Err(EngineError::OtherKvDtype {
                theirs,
                ours: self.kv_dtype,
            }),
        }
    }

    fn state(&self, saved: &SavedState, past: Option<Rewind>) -> Result<SessionState, EngineError> {
        let route = PassRoute {
            place: past.map(PausePlace::Replay),
            ..PassRoute::default()
        };
        Ok(match saved {
            SavedState::Ready => SessionState::Queued { route },
            SavedState::Waiting | SavedState::TurnOver => SessionState::Waiting {
                route,
                admitted: false,
                turn_over: *saved == SavedState::TurnOver,
                expected: None,
            },
            SavedState::Paused(at) => SessionState::Paused {
                place: PausePlace::Replay(self.rewind_to(at)?),
                admitted: false,
                expected: None,
            },
            SavedState::Done { finish, failure } => SessionState::Done {
                finish: *finish,
                failure: failure.clone().map(SessionFailure::restored),
            },
        })
    }

    /// Returns the way back to a saved pause.
    fn rewind_to(&self, at: &SavedStop) -> Result<Rewind, EngineError> {
        hook::find(&self.model.program, &at.hook)?;
        let mut stops = self.stops.values();
        let stop = stops.find(|stop| stop.site.to_string() == at.hook);
        let stop = stop.ok_or_else(|| EngineError::NoStop(at.hook.clone()))?;
        let to = Paused {
            site: stop.site,
            position: at.position,
            rows: at.rows,
        };
        Ok(Rewind {
            to,
            next: stop.next,
            stops: false,
        })
    }
}

fn request(saved: &SavedSession, prompt: Vec<u32>, probe: Probe) -> Request {
    let lease = |seconds| std::time::Duration::try_from_secs_f64(seconds).ok();
    Request {
        tokens: prompt,
        // The limit of a kept session counts the tokens of earlier turns too.
        max_tokens: match saved.keep {
            true => 0,
            false => saved.max_tokens,
        },
        sampling: saved.sampling.clone(),
        eos: saved.eos.clone(),
        stop: saved.stop.clone(),
        probe,
        class: saved.class,
        keep: saved.keep,
        transient: false,
        owner: saved.owner.clone(),
        deadline: saved.deadline.map(from_unix),
        lease: saved.lease.and_then(lease),
    }
}
