//! A session that stops after a block: at its prompt, or at every generated token.

use std::time::{Duration, Instant};

use djinn_client::{Create, Resume, SessionHandle, TurnOutput};

use crate::{
    error::EvalError,
    turns::{delete_after, require_complete},
};

/// Largest time without progress while KV pages leave the device.
const LEAVING: Duration = Duration::from_secs(20);
/// Interval at which the location of KV pages is polled.
const POLL: Duration = Duration::from_millis(2);

/// Tokens at which a session stops.
#[derive(Clone, Copy)]
pub enum StopAt {
    /// The last token of the prompt.
    Prompt,
    /// Every generated token.
    Generated,
}

/// Time from resuming a session to the start of the next block, in milliseconds.
#[derive(Clone, Copy)]
pub struct ResumeTime {
    /// Time taken by the client, including the round trip to the server.
    pub ms: f64,
    /// Time taken by the engine, if it reports one.
    pub inside_ms: Option<f64>,
}

/// A session with breakpoints, and the times of its stops.
pub struct StoppingSession {
    /// Times with the KV cache on the device.
    pub on_device: Vec<ResumeTime>,
    /// Times with the KV cache in host memory.
    pub from_host: Vec<ResumeTime>,
    /// All generated tokens.
    pub tokens: Vec<u32>,
    /// The session, which the caller has to delete.
    pub session: SessionHandle,
    turn: TurnOutput,
}

impl StoppingSession {
    /// Opens the session and runs it to its first stop. Blocks are counted from 1.
    pub async fn open(create: Create, block: u64, at: StopAt) -> Result<Self, EvalError> {
        let rows = match at {
            StopAt::Prompt => "prompt",
            StopAt::Generated => "generated",
        };
        let hook = format!("blocks.{}.hook_resid_post@{rows}", block - 1);
        let events = create.breakpoint(hook).keep().open().await?;
        let session = events.session().clone();
        let result = events.collect().await.map_err(EvalError::from);
        let result = result.and_then(|turn| require_stopped(&turn).map(|()| turn));
        let turn = match result {
            Ok(turn) => turn,
            Err(error) => return delete_after(&session, Err(error)).await,
        };
        Ok(StoppingSession {
            on_device: Vec::new(),
            from_host: Vec::new(),
            tokens: turn.tokens.clone(),
            session,
            turn,
        })
    }

    /// Measures a stop with the KV cache on the device, and the next stop with the KV cache in host memory.
    pub async fn measure_both(&mut self) -> Result<(), EvalError> {
        // Other stopped sessions may have displaced the KV pages.
        if self.session.info().await?.pages_away == 0 {
            let time = self.next_block().await?;
            self.on_device.push(time);
        }
        self.resume().await?;
        if self.page_out().await? {
            let time = self.next_block().await?;
            self.from_host.push(time);
        }
        self.resume().await
    }

    /// Removes the breakpoints and runs the turn to its end.
    pub async fn finish(&mut self) -> Result<(), EvalError> {
        self.session.set_breakpoints(Vec::<String>::new()).await?;
        while self.turn.paused().is_some() {
            self.resume().await?;
        }
        require_complete(&self.turn)
    }

    /// Resumes to the next hook, where the next block begins, and returns the time.
    async fn next_block(&mut self) -> Result<ResumeTime, EvalError> {
        require_stopped(&self.turn)?;
        let begin = Instant::now();
        let resumed = self.session.resume(Resume::new().to_next_hook()).await?;
        let turn = resumed.collect().await?;
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        require_stopped(&turn)?;
        let inside_us = turn.paused().and_then(|at| at.took_us);
        let inside_ms = inside_us.map(|us| us as f64 / 1e3);
        Ok(ResumeTime { ms, inside_ms })
    }

    /// Resumes to the next breakpoint or to the end of the turn.
    async fn resume(&mut self) -> Result<(), EvalError> {
        self.turn = self.session.resume(Resume::new()).await?.collect().await?;
        self.tokens.extend(&self.turn.tokens);
        Ok(())
    }

    /// Marks the session as waiting until its KV pages have left the device. Returns whether they did.
    async fn page_out(&self) -> Result<bool, EvalError> {
        self.session.waiting(None).await?;
        let begin = Instant::now();
        let mut before = u64::MAX;
        loop {
            let info = self.session.info().await?;
            if info.pages_away >= info.pages && info.pages > 0 {
                return Ok(true);
            }
            // Pages do not leave if there is no room for them elsewhere.
            let patience = if info.pages_away == 0 {
                POLL * 50
            } else {
                LEAVING
            };
            if begin.elapsed() > patience && info.pages_away == before {
                return Ok(false);
            }
            before = info.pages_away;
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Returns an error unless the turn stopped at a breakpoint.
fn require_stopped(turn: &TurnOutput) -> Result<(), EvalError> {
    match (turn.paused(), turn.finished()) {
        (Some(_), _) => Ok(()),
        (None, Some(finished)) => Err(EvalError::NotStopped {
            reason: format!("the turn ended ({}) {}", finished.why, finished.failure),
        }),
        (None, None) => Err(EvalError::NotStopped {
            reason: "the connection closed".to_owned(),
        }),
    }
}
