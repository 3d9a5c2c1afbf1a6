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
    /// Time in which passes ran.
    pub busy: f64,
    /// Bytes of weights that streamed.
    pub streamed: u64,
    /// Time of the whole run.
    pub seconds: f64,
    /// Generated tokens by number of the session.
    pub generated: BTreeMap<usize, Vec<u32>>,
    /// Errors of failed sessions by number.
    pub failed: BTreeMap<usize, String>,
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
    let mut measured = SessionMeasurement::default();
    let mut active: BTreeMap<SessionId, ActiveSession> = BTreeMap::new();
    // Thinking sessions, each with the time at which it returns.
    let mut thinking: Vec<(Instant, SessionId)> = Vec::new();
    let mut to_come = plans.iter().enumerate().peekable();
    let start = Instant::now();
    loop {
        let now = Instant::now();
        let since_start = (now - start).as_secs_f64();
        while let Some((number, next)) = to_come.next_if(|(_, a)| a.arrives <= since_start) {
            let session = ActiveSession {
                number,
                generated: 0,
                turns: 0,
                since: start + Duration::from_secs_f64(next.arrives),
                resumed: false,
            };
            active.insert(engine.open(next.request.clone())?, session);
        }
        thinking.sort_by_key(|(until, _)| std::cmp::Reverse(*until));
        while let Some((until, id)) = thinking.pop_if(|(until, _)| *until <= now) {
            let session = active.get_mut(&id).expect("a thinking session is open");
            let turn = &plans[session.number].turns[session.turns - 1];
            engine
                .any_session(id)?
                .append(&turn.answer, turn.output, &[])?;
            (session.since, session.resumed) = (until, true);
        }
        if engine.is_idle() {
            let arrival = to_come
                .peek()
                .map(|(_, a)| start + Duration::from_secs_f64(a.arrives));
            let next = thinking.last().map(|(until, _)| *until);
            let Some(due) = [arrival, next].into_iter().flatten().min() else {
                break;
            };
            for lost in engine.maintain(now) {
                record(&mut measured, engine, &mut active, plans, &lost);
            }
            thinking.retain(|(_, id)| active.contains_key(id));
            thread::sleep(due.saturating_duration_since(now).min(NAP));
            continue;
        }
        let before = engine.passes();
        let outputs = engine.step()?;
        measured.busy += now.elapsed().as_secs_f64();
        if engine.passes() > before {
            measured.streamed += engine.last_pass().map_or(0, |pass| pass.link_bytes);
        }
        for output in outputs {
            let id = output.session;
            let thought = record(&mut measured, engine, &mut active, plans, &output);
            if let Some(thought) = thought {
                let until = Instant::now() + Duration::from_secs_f64(thought);
                if announce {
                    engine.any_session(id)?.wait(Some(until))?;
                }
                thinking.push((until, id));
            }
        }
        // Sessions that lost their pages have ended.
        thinking.retain(|(_, id)| active.contains_key(id));
        let (done, all) = (measured.generated.len(), plans.len());
        host.progress(&format!(
            "{done} of {all} sessions done, {} think",
            thinking.len()
        ));
    }
    measured.passes = engine.passes();
    measured.seconds = start.elapsed().as_secs_f64();
    Ok(measured)
}

/// Records an output of a session. Returns the seconds that the session thinks now, if it does.
fn record(
    measured: &mut SessionMeasurement,
    engine: &mut Engine,
    active: &mut BTreeMap<SessionId, ActiveSession>,
    plans: &[SessionPlan],
    output: &Output,
) -> Option<f64> {
    let now = Instant::now();
    let session = active
        .get_mut(&output.session)
        .expect("a session with output is open");
    if output.token.is_some() {
        let time = (now - session.since).as_secs_f64();
        let times = match (session.generated, session.resumed) {
            (0, _) => &mut measured.first,
            (_, true) => &mut measured.resumed,
            (_, false) => &mut measured.next,
        };
        times.push(time);
        if let (true, Some(turn)) = (session.resumed, output.scheduled) {
            measured.served.push((now - turn).as_secs_f64());
        }
        session.generated += 1;
        (session.since, session.resumed) = (now, false);
    }
    let finish = output.finish?;
    let next = plans[session.number].turns.get(session.turns);
    if let (Finish::Length, Some(turn)) = (finish, next) {
        session.turns += 1;
        return Some(turn.think);
    }
    let transcript = engine
        .close(output.session)
        .expect("a session with output is open");
    match finish {
        Finish::Length => {
            measured
                .generated
                .insert(session.number, transcript.generated);
        }
        other => {
            let why = transcript
                .failure
                .map_or_else(|| other.to_string(), |f| f.message);
            measured.failed.insert(session.number, why);
        }
    }
    active.remove(&output.session);
    None
}
