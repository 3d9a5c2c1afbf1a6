//! Turns of kept sessions: reads them, and takes up interrupted ones until they are complete.

use std::time::Duration;

use djinn_client::{Error, ErrorCode, EventStream, SessionHandle, TurnEvent, v1};

use crate::{
    record::KeptRecord,
    script::resume_at,
    world::{CallProblem, World, in_time},
};

/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(50);
/// Attempts without progress and without a fault after which a session counts as stuck.
const ATTEMPTS_MAX: usize = 200;

/// State of a turn when its stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The turn is over.
    Over,
    /// The session stopped at a breakpoint.
    AtBreakpoint,
    /// The turn failed, and the session is kept.
    Interrupted,
    /// The client left on purpose.
    Left,
}

impl World {
    /// Reads a turn. With a limit, the client vanishes after that many tokens.
    pub async fn read(
        &self,
        mut events: EventStream,
        kept: &mut KeptRecord,
        limit: Option<usize>,
    ) -> Result<StreamEnd, CallProblem> {
        let mut count = 0;
        loop {
            if limit.is_some_and(|limit| count >= limit) {
                self.findings.count("streams left by the client");
                return Ok(StreamEnd::Left);
            }
            let broken = |why: &str| Err(CallProblem::Broken(format!("{}: {why}", kept.name)));
            match in_time(events.next()).await? {
                Some(TurnEvent::Token(token)) => {
                    kept.push(&token).map_err(CallProblem::Broken)?;
                    self.findings.count("tokens");
                    count += 1;
                }
                Some(TurnEvent::Captured(..)) => {}
                Some(TurnEvent::Paused(_)) => return Ok(StreamEnd::AtBreakpoint),
                Some(TurnEvent::Finished(end)) => return finished(&end, kept),
                None => return broken("the stream ended without a last event"),
            }
        }
    }

    /// Completes the session's turn, whatever happened to it. Returns an error if the server
    /// broke a promise; the session is given up then.
    pub async fn settle(&self, kept: &mut KeptRecord) -> Result<(), String> {
        let mut attempts = 0;
        while !kept.is_complete() {
            let (since, before) = (self.board.mark(), kept.tokens.len());
            let advanced = self.advance(kept).await;
            let is_excused = self.board.overlaps(since);
            match advanced {
                Ok(StreamEnd::Interrupted) if !is_excused => {
                    return Err(format!("{}: interrupted without a fault", kept.name));
                }
                Ok(_) => {}
                Err(CallProblem::Broken(text)) => return Err(text),
                Err(CallProblem::Failed(text)) if !is_excused => {
                    self.findings.count("errors");
                    return Err(format!("{}: failed without a fault: {text}", kept.name));
                }
                Err(CallProblem::Failed(_)) => self.findings.count("calls failed in faults"),
            }
            match is_excused || kept.tokens.len() > before {
                true => attempts = 0,
                false => attempts += 1,
            }
            if attempts > ATTEMPTS_MAX {
                return Err(format!("{}: the turn does not continue", kept.name));
            }
            if !kept.is_complete() {
                tokio::time::sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Takes the next step of a session, depending on its state on the server.
    async fn advance(&self, kept: &mut KeptRecord) -> Result<StreamEnd, CallProblem> {
        let session = self.client(kept.owner).await?.session(&kept.name);
        let info = self.patiently(session.info()).await?;
        kept.compare(&info).map_err(CallProblem::Broken)?;
        let events = match (info.state.as_str(), info.paused) {
            ("paused", Some(at)) => self.resume(&session, kept, &at).await?,
            ("waiting", _) if kept.pending.is_some() => {
                let turn = kept.pending.clone().expect("a turn is pending");
                let events = self.patiently(session.generate(turn.request())).await?;
                kept.turn_accepted();
                events
            }
            ("waiting", _) if kept.is_complete() => return Ok(StreamEnd::Over),
            ("waiting", _) => {
                self.findings.count("turns taken up again");
                self.patiently(session.resuming()).await?;
                return Ok(StreamEnd::Left);
            }
            _ => {
                self.patiently(session.follow(kept.generated as u64))
                    .await?
            }
        };
        self.read(events, kept, None).await
    }

    /// Reads the activation at a breakpoint, then resumes.
    async fn resume(
        &self,
        session: &SessionHandle,
        kept: &mut KeptRecord,
        at: &v1::Paused,
    ) -> Result<EventStream, CallProblem> {
        self.findings.count("breakpoints");
        let read = self.patiently(session.activation("", "")).await;
        let read = match read {
            // After a restart the session first runs to its breakpoint again.
            Err(CallProblem::Broken(text)) if text.starts_with(ErrorCode::Conflict.name()) => {
                self.findings.count("recalls");
                self.patiently(recall(session)).await?;
                self.patiently(session.activation("", "")).await?
            }
            read => read?,
        };
        let known = kept.activations.entry(at.position);
        let known = known.or_insert_with(|| read.data.clone());
        if *known != read.data {
            let text = format!(
                "{}: the activation at position {} changed",
                kept.name, at.position
            );
            return Err(CallProblem::Broken(text));
        }
        self.patiently(session.resume(resume_at(at))).await
    }
}

async fn recall(session: &SessionHandle) -> Result<(), Error> {
    session.recall().await?.collect().await.map(drop)
}

/// Judges the last event of a turn of a kept session.
fn finished(end: &v1::Finished, kept: &KeptRecord) -> Result<StreamEnd, CallProblem> {
    let text = match end.failure.as_str() {
        "" => &end.why,
        failure => failure,
    };
    if !end.kept {
        let text = format!("{}: the kept session was lost: {text}", kept.name);
        return Err(CallProblem::Broken(text));
    }
    match kept.is_complete() {
        true => Ok(StreamEnd::Over),
        false => Ok(StreamEnd::Interrupted),
    }
}
