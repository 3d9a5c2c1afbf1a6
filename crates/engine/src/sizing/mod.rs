//! Sizing: how much of everything an engine gets in the memory there is.
//!
//! All commands and the server share these rules. A [`SizeRange`] says what an engine gets where
//! memory is plentiful, and the least that it can do with. [`Blueprint::sized`](crate::Blueprint::sized)
//! gives up comfort step by step until the model fits, and chooses the context if the user does not.

mod choice;
mod fit;
mod need;

use djinn_model::{Model, program::Program};

pub use choice::{ContextReason, Reduced, SizingChoice};

use crate::{EngineError, ProbeLimits, Settings, error::LimitKind, session::request::Request};

/// A number that the user set, or that may shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The user set the number. It never changes.
    Set(usize),
    /// Default that shrinks where memory is scarce.
    UpTo(usize),
}

impl Count {
    /// Takes the user's number, or else a default.
    pub fn or(set: Option<usize>, default: usize) -> Self {
        set.map_or(Count::UpTo(default), Count::Set)
    }

    fn most(self) -> usize {
        match self {
            Count::Set(n) | Count::UpTo(n) => n.max(1),
        }
    }

    fn least(self) -> usize {
        match self {
            Count::Set(n) => n.max(1),
            Count::UpTo(_) => 1,
        }
    }
}

/// Context that an engine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextDemand {
    /// The user set the context.
    Set(usize),
    /// The requests need this many positions.
    Needed(usize),
    /// The plan chooses, at least this many positions.
    Free(usize),
}

/// Sessions that an engine is sized for.
#[derive(Clone, Copy, Debug)]
pub struct SessionDemand {
    /// Context of a session.
    pub context: ContextDemand,
    /// Number of sessions in a pass.
    pub batch: Count,
    /// Number of open sessions.
    pub open: usize,
    /// Number of rows of a pass.
    pub rows: Count,
    /// Whether sessions may read and edit any hook.
    pub probes: bool,
    /// Number of sessions of the chosen context that the KV memory should hold, if the context
    /// exceeds [`SizeRange::COMFORT`].
    pub full_sessions: usize,
    /// Whether the pages of all sessions in a pass must lie on the device together, even if one
    /// session after the other could run.
    pub together: bool,
}

/// Settings where memory is plentiful, and the smallest ones that work.
#[derive(Clone, Debug)]
pub struct SizeRange {
    most: Settings,
    least: Settings,
    context: ContextDemand,
    /// Largest context that the model supports.
    model_context: usize,
    /// Pages of all sessions; `None` if they follow from the context.
    pages: Option<usize>,
    full_sessions: usize,
    together: bool,
    /// Flags that fix numbers, for errors.
    flags: Vec<String>,
}

impl SizeRange {
    /// Context in tokens that takes precedence over resident weights.
    pub const COMFORT: usize = 4096;
    /// Number of the last step, at which everything that may shrink has its smallest size.
    const LAST: u32 = 24;

    /// Sizes an engine for requests that run together.
    pub fn for_requests(
        model: &Model,
        requests: &[Request],
        rows: Option<usize>,
    ) -> Result<Self, EngineError> {
        let most = Settings::for_requests(model, requests, rows.unwrap_or(Settings::ROWS))?;
        let lenses = requests
            .iter()
            .map(|request| request.probe.lenses().count());
        Ok(Self::for_settings(
            &model.program,
            most,
            rows,
            lenses.max().unwrap_or(0),
        ))
    }

    /// Sizes an engine that has these settings where memory is plentiful. The context stays, rows
    /// and sessions of a pass may shrink. `lens_rows` is the least number of lens rows.
    pub fn for_settings(
        program: &Program,
        most: Settings,
        rows: Option<usize>,
        lens_rows: usize,
    ) -> Self {
        let least = Settings {
            rows: rows.map_or(1, |rows| rows.min(most.rows)),
            sessions: 1,
            logit_rows: 1,
            probe_limits: ProbeLimits {
                pattern_rows: 1,
                packed_rows: 1,
                lens_rows: lens_rows.min(most.probe_limits.lens_rows),
                ..most.probe_limits
            },
            ..most.clone()
        };
        SizeRange {
            context: ContextDemand::Needed(most.context),
            model_context: program.dims.context,
            pages: Some(most.pages),
            full_sessions: 1,
            together: true,
            flags: flags(&[("--rows", rows)]),
            most,
            least,
        }
    }

    /// Sizes an engine for any sessions.
    pub fn for_sessions(program: &Program, demand: SessionDemand) -> Result<Self, EngineError> {
        let model_context = program.dims.context;
        if let ContextDemand::Set(context) | ContextDemand::Needed(context) = demand.context {
            LimitKind::ModelContext.check(context, model_context)?;
        }
        let batch = demand.batch.most();
        let (rows, sessions) = match (demand.rows, demand.batch) {
            (Count::Set(rows), Count::UpTo(batch)) => {
                (Count::Set(rows), batch.clamp(1, rows.max(1)))
            }
            (Count::UpTo(rows), _) => (Count::UpTo(rows.max(batch)), batch),
            (rows, _) => (rows, batch),
        };
        let one = Settings::for_sessions(program, 1, model_context, Settings::ROWS)?;
        let most = Settings {
            rows: rows.most(),
            sessions,
            open: demand.open.max(1),
            logit_rows: match demand.probes {
                true => Settings::LOGIT_ROWS.min(rows.most()).max(sessions),
                false => sessions,
            },
            probe_limits: match demand.probes {
                true => ProbeLimits::anything(program, model_context),
                false => ProbeLimits::default(),
            },
            ..one
        };
        let least = Settings {
            rows: rows.least(),
            sessions: demand.batch.least(),
            logit_rows: demand.batch.least(),
            probe_limits: ProbeLimits::default(),
            ..most.clone()
        };
        let sessions_flag = if demand.together {
            "--sessions"
        } else {
            "--batch"
        };
        let set = |count: Count| matches!(count, Count::Set(_)).then(|| count.most());
        Ok(SizeRange {
            most,
            least,
            context: demand.context,
            model_context,
            pages: None,
            full_sessions: demand.full_sessions.max(1),
            together: demand.together,
            flags: flags(&[
                ("--rows", set(demand.rows)),
                (sessions_flag, set(demand.batch).filter(|&batch| batch > 1)),
            ]),
        })
    }

    /// Smallest context that the engine may have.
    fn least_context(&self) -> usize {
        match self.context {
            ContextDemand::Set(context) | ContextDemand::Needed(context) => context,
            ContextDemand::Free(least) => least.clamp(1, self.model_context.max(1)),
        }
    }

    /// Settings with a context after `step` steps of shrinking. The logit lens and the rows of
    /// logits shrink by half in each step, sessions and rows of a pass in every other step.
    fn at(&self, step: u32, context: usize) -> Settings {
        let (most, least) = (&self.most, &self.least);
        let by = |most: usize, least: usize, halvings: u32| match step {
            Self::LAST => least.min(most),
            _ => (most >> halvings).max(least.min(most)),
        };
        let sessions = by(most.sessions, least.sessions, step / 2);
        let probes = match step {
            Self::LAST => least.probe_limits,
            _ => self.probes_at(step),
        };
        let one = Settings {
            context,
            sessions,
            rows: by(most.rows, least.rows, step / 2),
            logit_rows: by(most.logit_rows, least.logit_rows, step).max(sessions),
            probe_limits: ProbeLimits {
                pattern_keys: probes.pattern_keys.min(context),
                ..probes
            },
            ..most.clone()
        };
        let pages = self.pages_for(context);
        Settings { pages, ..one }
    }

    /// Pages of all sessions with a context.
    fn pages_for(&self, context: usize) -> usize {
        self.pages.unwrap_or_else(|| self.session_pages(context))
    }

    fn probes_at(&self, step: u32) -> ProbeLimits {
        let (most, least) = (self.most.probe_limits, self.least.probe_limits);
        let by = |most: usize, least: usize| (most >> step).max(least).max(most.min(1));
        ProbeLimits {
            pattern_rows: by(most.pattern_rows, 1),
            packed_rows: by(most.packed_rows, 1),
            lens_rows: by(most.lens_rows, least.lens_rows),
            ..most
        }
    }

    /// Pages of all open sessions. If the plan chooses the context, sessions are expected to have
    /// [`COMFORT`](Self::COMFORT) tokens, and memory for some has the whole context.
    fn session_pages(&self, context: usize) -> usize {
        let pages = |tokens: usize| tokens.div_ceil(self.most.page_tokens);
        let all = |tokens: usize| self.most.open.saturating_mul(pages(tokens));
        match self.context {
            ContextDemand::Free(_) => {
                let full = self.full_sessions.saturating_mul(pages(context));
                all(context.min(Self::COMFORT)).max(full)
            }
            ContextDemand::Set(_) | ContextDemand::Needed(_) => all(context),
        }
    }

    /// Least number of pages on the device with these settings.
    fn device_pages(&self, settings: &Settings) -> usize {
        let together = if self.together { settings.sessions } else { 1 };
        let pages = settings.table_pages().saturating_mul(together);
        pages.min(settings.pages)
    }
}

fn flags(flags: &[(&str, Option<usize>)]) -> Vec<String> {
    let set = flags.iter().filter_map(|(flag, n)| Some((flag, (*n)?)));
    set.map(|(flag, n)| format!("{flag} {n}")).collect()
}
