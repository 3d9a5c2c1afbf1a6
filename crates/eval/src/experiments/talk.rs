//! Sessions of several turns, with thoughts between them: what memory-pressure and agents are made of.

use std::time::{Duration, Instant};

use djinn_client::{EventStream, Generate, ModelHandle, SessionHandle};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    Config, EvalError,
    ask::{Timed, ended, session, some_tokens, timed, whole},
    lab::Loaded,
};

/// How a session's turns follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// It is kept while it thinks; its pages may go.
    Kept,
    /// It ends, and the next turn says everything again.
    Stateless,
    /// It is kept, and does not think: to compare with.
    Alone,
}

/// What a session is to do.
#[derive(Clone)]
struct Plan {
    config: Config,
    model: ModelHandle,
    vocab: u64,
    number: u64,
    style: Style,
}

/// What a session came to.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Everything it generated.
    pub tokens: Vec<u32>,
    /// Milliseconds from asking to the first token.
    pub first_ms: Vec<f64>,
    /// From the end of a thought to the next token.
    pub resumed_ms: Vec<f64>,
}

/// Positions of a session in all.
pub fn positions(config: &Config) -> u64 {
    let (inference, sessions) = (&config.experiment.inference, &config.experiment.sessions);
    let later = sessions.answer_length + inference.generation_length;
    inference.prompt_length + inference.generation_length + (sessions.turns - 1) * later
}

/// What baselines are told of so many sessions.
pub fn job(config: &Config, vocab: u64, count: u64) -> Value {
    let (inference, sessions) = (&config.experiment.inference, &config.experiment.sessions);
    json!({
        "prompt": some_tokens(vocab, inference.prompt_length, 0),
        "sessions": count, "turns": sessions.turns,
        "prompt_length": inference.prompt_length, "output": inference.generation_length,
        "answer": sessions.answer_length,
    })
}

/// Runs sessions together; those that fail say why.
pub async fn together(
    config: &Config,
    loaded: &Loaded,
    numbers: impl Iterator<Item = u64>,
    style: Style,
) -> Vec<(u64, Result<Told, String>)> {
    let mut all = JoinSet::new();
    for number in numbers {
        let plan = Plan {
            config: config.clone(),
            model: loaded.model.clone(),
            vocab: loaded.dims.vocab,
            number,
            style,
        };
        all.spawn(async move {
            let told = plan.run().await;
            (number, told.map_err(|error| error.to_string()))
        });
    }
    let mut told = Vec::new();
    while let Some(done) = all.join_next().await {
        match done {
            Ok(one) => told.push(one),
            // Nothing but a fault of this program ends a task so.
            Err(error) => told.push((u64::MAX, Err(error.to_string()))),
        }
    }
    told.sort_by_key(|(number, _)| *number);
    told
}

impl Plan {
    async fn run(&self) -> Result<Told, EvalError> {
        match self.style {
            Style::Stateless => self.stateless().await,
            Style::Kept | Style::Alone => self.kept().await,
        }
    }

    fn prompt(&self) -> Vec<u32> {
        let count = self.config.experiment.inference.prompt_length;
        some_tokens(self.vocab, count, self.number)
    }

    /// What it is told before a later turn.
    fn answer(&self, turn: u64) -> Vec<u32> {
        let count = self.config.experiment.sessions.answer_length;
        some_tokens(self.vocab, count, self.number + turn * 1009)
    }

    fn output(&self) -> u64 {
        self.config.experiment.inference.generation_length
    }

    /// Seconds it thinks; other ones for every session and turn, and the same every time.
    fn thought(&self, turn: u64) -> Duration {
        let [from, to] = self.config.experiment.sessions.think_seconds;
        let mixed = (self.number * 31 + turn * 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let share = (mixed >> 40) as f64 / (1u64 << 24) as f64;
        Duration::from_secs_f64(from + share * (to - from))
    }

    async fn kept(&self) -> Result<Told, EvalError> {
        let begin = Instant::now();
        let asked = session(&self.config, &self.model, self.prompt(), self.output());
        let keeps = self.config.experiment.sessions.turns > 1;
        let asked = if keeps { asked.keep() } else { asked };
        let events = asked.open().await?;
        let kept = events.session().clone();
        let told = self.turns(&kept, events, begin).await;
        match keeps {
            true => ended(&kept, told).await,
            false => told,
        }
    }

    /// All turns of a session that is kept.
    async fn turns(
        &self,
        kept: &SessionHandle,
        events: EventStream,
        begin: Instant,
    ) -> Result<Told, EvalError> {
        let mut told = Told::default();
        let first = told.take(timed(events, begin).await?)?;
        told.first_ms.extend(first);
        for turn in 1..self.config.experiment.sessions.turns {
            if self.style == Style::Kept {
                let thought = self.thought(turn);
                let due = tokio::time::Instant::now() + thought;
                kept.waiting(Some(thought)).await?;
                tokio::time::sleep_until(due).await;
            }
            let begin = Instant::now();
            let more = Generate::new()
                .tokens(self.answer(turn))
                .max_tokens(self.output());
            let events = kept.generate(more).await?;
            let first = told.take(timed(events, begin).await?)?;
            told.resumed_ms.extend(first);
        }
        Ok(told)
    }

    async fn stateless(&self) -> Result<Told, EvalError> {
        let (mut history, mut told) = (self.prompt(), Told::default());
        for turn in 0..self.config.experiment.sessions.turns {
            if turn > 0 {
                tokio::time::sleep(self.thought(turn)).await;
                history.extend(self.answer(turn));
            }
            let begin = Instant::now();
            let asked = session(&self.config, &self.model, history.clone(), self.output());
            let timed = timed(asked.open().await?, begin).await?;
            history.extend(&timed.turn.tokens);
            let first = told.take(timed)?;
            match turn {
                0 => told.first_ms.extend(first),
                _ => told.resumed_ms.extend(first),
            }
        }
        Ok(told)
    }
}

impl Told {
    /// Takes a turn in; one that was cut short is a failure. Gives the time to its first token.
    fn take(&mut self, timed: Timed) -> Result<Option<f64>, EvalError> {
        whole(&timed.turn)?;
        self.tokens.extend(&timed.turn.tokens);
        Ok(timed.first_ms)
    }
}
