//! Sessions that arrive, think and return, run against an engine.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use djinn_engine::{Engine, Finish, Output, Request, SessionId};

use crate::{BenchError, BenchHost};

/// Longest sleep while no session can run.
const NAP: Duration = Duration::from_millis(50);

/// A session before it arrives.
pub struct SessionPlan {
    /// Request of the first turn.
    pub request: Request,
    /// Seconds between the start of the benchmark and the arrival.
    pub arrives: f64,
    /// Turns after the first.
    pub turns: Vec<FollowUp>,
}

/// A turn after the first.
pub struct FollowUp {
    /// Seconds that the session waits before the turn.
    pub think: f64,
    /// Input tokens.
    pub answer: Vec<u32>,
    /// Tokens to generate.
    pub output: usize,
}

impl SessionPlan {
    /// Tokens of the session at its end.
    pub fn tokens(&self) -> usize {
        let later = self
            .turns
            .iter()
            .map(|turn| turn.answer.len() + turn.output);
        self.request.tokens.len() + self.request.max_tokens + later.sum::<usize>()
    }
}

/// Times in seconds, and results of all sessions.
#[derive(Default)]
pub struct SessionMeasurement {
    /// Times from arrival to the first token.
    pub first: Vec<f64>,
    /// Times from one token to the next.
    pub next: Vec<f64>,
    /// Times from the end of a thought to the next token.
    pub resumed: Vec<f64>,
    /// Times from admission after a thought to the next token.
    pub served: Vec<f64>,
    /// Number of passes.
    pub passes: usize,
    /// Time of all steps of the engine: scheduling, passes and their results.
    pub busy: f64,
    /// Time of all passes, without scheduling.
    pub pass_seconds: f64,
    /// Every pass that ran.
    pub steps: Vec<StepSample>,
    /// Bytes of weights that streamed.
    pub streamed: u64,
    /// Time of the whole run.
    pub seconds: f64,
    /// Generated tokens by number of the session.
    pub generated: BTreeMap<usize, Vec<u32>>,
    /// Errors of failed sessions by number.
    pub failed: BTreeMap<usize, String>,
}

/// One pass.
pub struct StepSample {
    /// Seconds between the start of the benchmark and the start of the step.
    pub at: f64,
    /// Seconds of the step, which includes scheduling.
    pub seconds: f64,
    /// Seconds of the pass.
    pub pass_seconds: f64,
    /// Rows of the pass.
    pub rows: usize,
    /// Tokens that the pass generated.
    pub tokens: usize,
    /// Whether pages were in transit between device and host when the step began.
    pub pages_in_transit: bool,
}

/// A session that has arrived and not ended.
struct ActiveSession {
    number: usize,
    generated: usize,
    /// Number of finished turns.
    turns: usize,
    /// Time at which the wait for the next token began.
    since: Instant,
    /// Whether the session was thinking before.
    resumed: bool,
}

/// Runs all sessions to their end.
pub fn run(
    engine: &mut Engine,
    plans: &[SessionPlan],
    announce: bool,
    host: &dyn BenchHost,
) -> Result<SessionMeasurement, BenchError> {
    let mut load = SessionLoad {
        engine,
        plans,
        announce,
        start: Instant::now(),
        arrived: 0,
        active: BTreeMap::new(),
        thinking: Vec::new(),
        measured: SessionMeasurement::default(),
    };
    loop {
        let now = Instant::now();
        load.open_arrivals(now)?;
        load.resume_thinkers(now)?;
        if !load.engine.is_idle() {
            load.step()?;
            host.progress(&load.progress());
        } else if let Some(due) = load.next_due() {
            load.wait(now, due);
        } else {
            break;
        }
    }
    load.measured.passes = load.engine.passes();
    load.measured.seconds = load.start.elapsed().as_secs_f64();
    Ok(load.measured)
}

/// A running load: sessions that have arrived, and those to come.
struct SessionLoad<'a> {
    engine: &'a mut Engine,
    plans: &'a [SessionPlan],
    /// Whether a thinking session announces when it returns.
    announce: bool,
    start: Instant,
    /// Number of plans whose sessions have arrived.
    arrived: usize,
    active: BTreeMap<SessionId, ActiveSession>,
    /// Thinking sessions, each with the time at which it returns.
    thinking: Vec<(Instant, SessionId)>,
    measured: SessionMeasurement,
}

impl SessionLoad<'_> {
    /// Time at which the next session arrives.
    fn next_arrival(&self) -> Option<Instant> {
        let plan = self.plans.get(self.arrived)?;
        Some(self.start + Duration::from_secs_f64(plan.arrives))
    }

    /// Time of the next arrival or return, whichever is first.
    fn next_due(&self) -> Option<Instant> {
        let returns = self.thinking.iter().map(|(until, _)| *until).min();
        [self.next_arrival(), returns].into_iter().flatten().min()
    }

    /// Opens the sessions that have arrived by now.
    fn open_arrivals(&mut self, now: Instant) -> Result<(), BenchError> {
        while let Some(since) = self.next_arrival().filter(|time| *time <= now) {
            let session = ActiveSession {
                number: self.arrived,
                generated: 0,
                turns: 0,
                since,
                resumed: false,
            };
            let request = self.plans[self.arrived].request.clone();
            self.active.insert(self.engine.open(request)?, session);
            self.arrived += 1;
        }
        Ok(())
    }

    /// Starts the next turn of every session that has thought long enough.
    fn resume_thinkers(&mut self, now: Instant) -> Result<(), BenchError> {
        self.thinking
            .sort_by_key(|(until, _)| std::cmp::Reverse(*until));
        while let Some((until, id)) = self.thinking.pop_if(|(until, _)| *until <= now) {
            let session = self
                .active
                .get_mut(&id)
                .expect("a thinking session is open");
            let turn = &self.plans[session.number].turns[session.turns - 1];
            self.engine
                .any_session(id)?
                .append(&turn.answer, turn.output, &[])?;
            (session.since, session.resumed) = (until, true);
        }
        Ok(())
    }

    /// Runs one pass and records its outputs.
    fn step(&mut self) -> Result<(), BenchError> {
        let (_, pages_in_transit) = self.engine.paging_stats_so_far()?;
        let (before, start) = (self.engine.passes(), Instant::now());
        let outputs = self.engine.step()?;
        let seconds = start.elapsed().as_secs_f64();
        self.measured.busy += seconds;
        if let Some(pass) = self.engine.last_pass()
            && self.engine.passes() > before
        {
            self.measured.streamed += pass.link_bytes;
            self.measured.pass_seconds += pass.seconds;
            self.measured.steps.push(StepSample {
                at: (start - self.start).as_secs_f64(),
                seconds,
                pass_seconds: pass.seconds,
                rows: pass.rows,
                tokens: outputs.iter().filter(|o| o.token.is_some()).count(),
                pages_in_transit,
            });
        }
        for output in outputs {
            if let Some(thought) = self.record(&output) {
                let until = Instant::now() + Duration::from_secs_f64(thought);
                if self.announce {
                    self.engine.any_session(output.session)?.wait(Some(until))?;
                }
                self.thinking.push((until, output.session));
            }
        }
        self.forget_ended();
        Ok(())
    }

    /// Moves pages of waiting sessions while no session can run, and sleeps until `due`, at most `NAP`.
    fn wait(&mut self, now: Instant, due: Instant) {
        for lost in self.engine.maintain(now) {
            self.record(&lost);
        }
        self.forget_ended();
        thread::sleep(due.saturating_duration_since(now).min(NAP));
    }

    /// Forgets thinking sessions that ended because they lost their pages.
    fn forget_ended(&mut self) {
        self.thinking.retain(|(_, id)| self.active.contains_key(id));
    }

    fn progress(&self) -> String {
        let (done, all) = (self.measured.generated.len(), self.plans.len());
        format!(
            "{done} of {all} sessions done, {} think",
            self.thinking.len()
        )
    }

    /// Records an output of a session. Returns the seconds that the session thinks now, if it does.
    fn record(&mut self, output: &Output) -> Option<f64> {
        let session = self
            .active
            .get_mut(&output.session)
            .expect("a session with output is open");
        if output.token.is_some() {
            session.record_token(output, &mut self.measured);
        }
        let finish = output.finish?;
        let next = self.plans[session.number].turns.get(session.turns);
        if let (Finish::Length, Some(turn)) = (finish, next) {
            session.turns += 1;
            return Some(turn.think);
        }
        let transcript = self
            .engine
            .close(output.session)
            .expect("a session with output is open");
        let number = session.number;
        self.active.remove(&output.session);
        match finish {
            Finish::Length => {
                let generated = transcript.generated;
                self.measured.generated.insert(number, generated);
            }
            other => {
                let failure = output.failure.as_ref();
                let why = failure.map_or_else(|| other.to_string(), ToString::to_string);
                self.measured.failed.insert(number, why);
            }
        }
        None
    }
}

impl ActiveSession {
    /// Records the time of a token.
    fn record_token(&mut self, output: &Output, measured: &mut SessionMeasurement) {
        let now = Instant::now();
        let times = match (self.generated, self.resumed) {
            (0, _) => &mut measured.first,
            (_, true) => &mut measured.resumed,
            (_, false) => &mut measured.next,
        };
        times.push((now - self.since).as_secs_f64());
        if let (true, Some(scheduled)) = (self.resumed, output.scheduled) {
            measured.served.push((now - scheduled).as_secs_f64());
        }
        self.generated += 1;
        (self.since, self.resumed) = (now, false);
    }
}
