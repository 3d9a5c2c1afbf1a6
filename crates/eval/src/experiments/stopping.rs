//! A session that stops behind a block: where its prompt is computed, or at every token it generates.

use std::time::{Duration, Instant};

use djinn_client::{Create, Resume, SessionHandle, TurnOutput};

use crate::{
    EvalError,
    ask::{ended, whole},
};

/// How long pages may take to leave, and how often that is looked at.
const LEAVING: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(2);

/// What it stops at.
#[derive(Clone, Copy)]
pub enum At {
    /// The last of its prompt.
    Prompt,
    /// Everything it generates.
    Generated,
}

/// Milliseconds until a block began.
#[derive(Clone, Copy)]
pub struct Took {
    /// As the client saw it: with its way there and back.
    pub ms: f64,
    /// As the engine did, where it says so.
    pub inside_ms: Option<f64>,
}

/// It, and what its stops came to.
pub struct Stopping {
    /// Until the next block began, with KV on the device.
    pub here: Vec<Took>,
    /// The same with KV on the host.
    pub away: Vec<Took>,
    /// Everything it generated.
    pub tokens: Vec<u32>,
    /// The session, which whoever opened it has to end.
    pub session: SessionHandle,
    turn: TurnOutput,
}

impl Stopping {
    /// To its first stop. Blocks are counted from one.
    pub async fn open(asked: Create, block: u64, at: At) -> Result<Self, EvalError> {
        let rows = match at {
            At::Prompt => "prompt",
            At::Generated => "generated",
        };
        let hook = format!("blocks.{}.hook_resid_post@{rows}", block - 1);
        let events = asked.breakpoint(hook).keep().open().await?;
        let session = events.session().clone();
        let came = events.collect().await.map_err(EvalError::from);
        let came = came.and_then(|turn| is_stopped(&turn).map(|()| turn));
        let turn = match came {
            Ok(turn) => turn,
            Err(error) => return ended(&session, Err(error)).await,
        };
        Ok(Stopping {
            here: Vec::new(),
            away: Vec::new(),
            tokens: turn.tokens.clone(),
            session,
            turn,
        })
    }

    /// Goes on with its KV here, and at its next stop with its KV away.
    pub async fn here_then_away(&mut self) -> Result<(), EvalError> {
        // Others that stopped may have taken its place.
        if self.session.info().await?.pages_away == 0 {
            let took = self.next_block().await?;
            self.here.push(took);
        }
        self.go_on().await?;
        if self.leave().await? {
            let took = self.next_block().await?;
            self.away.push(took);
        }
        self.go_on().await
    }

    /// To the end of its turn.
    pub async fn finish(&mut self) -> Result<(), EvalError> {
        self.session.set_breakpoints(Vec::<String>::new()).await?;
        while self.turn.paused().is_some() {
            self.go_on().await?;
        }
        whole(&self.turn)
    }

    /// How long until it has come to the next hook, where the next block begins.
    async fn next_block(&mut self) -> Result<Took, EvalError> {
        is_stopped(&self.turn)?;
        let begin = Instant::now();
        let resumed = self.session.resume(Resume::new().to_next_hook()).await?;
        let turn = resumed.collect().await?;
        let ms = begin.elapsed().as_secs_f64() * 1e3;
        is_stopped(&turn)?;
        let inside_us = turn.paused().and_then(|at| at.took_us);
        let inside_ms = inside_us.map(|us| us as f64 / 1e3);
        Ok(Took { ms, inside_ms })
    }

    /// To the next breakpoint, or to the end of the turn.
    async fn go_on(&mut self) -> Result<(), EvalError> {
        self.turn = self.session.resume(Resume::new()).await?.collect().await?;
        self.tokens.extend(&self.turn.tokens);
        Ok(())
    }

    /// Lets all its pages go, where there is somewhere to go to. Says whether they did.
    async fn leave(&self) -> Result<bool, EvalError> {
        self.session.waiting(None).await?;
        let begin = Instant::now();
        let mut before = u64::MAX;
        loop {
            let told = self.session.info().await?;
            if told.pages_away >= told.pages && told.pages > 0 {
                return Ok(true);
            }
            // Nothing leaves where there is nowhere to go to.
            let patience = if told.pages_away == 0 {
                LOOK * 50
            } else {
                LEAVING
            };
            if begin.elapsed() > patience && told.pages_away == before {
                return Ok(false);
            }
            before = told.pages_away;
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn is_stopped(turn: &TurnOutput) -> Result<(), EvalError> {
    match (turn.paused(), turn.finished()) {
        (Some(_), _) => Ok(()),
        (None, Some(finished)) => Err(EvalError::Asked(format!(
            "a session ended before it stopped: {} {}",
            finished.why, finished.failure
        ))),
        (None, None) => Err(EvalError::Asked("a session was lost".to_owned())),
    }
}
