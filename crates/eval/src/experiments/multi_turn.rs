//! Sessions of several turns with pauses between them, for memory-pressure and agents.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use djinn_client::{EventStream, Generate, ModelHandle, SessionHandle};
use djinn_report::{RunRecord, percentile};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    config::EvalConfig,
    error::EvalError,
    testbed::{ModelUnderTest, Testbed},
    turns::{TimedTurn, delete_after, require_complete, session, synthetic_tokens, timed},
};

/// How a session is kept between its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnStyle {
    /// The session stays open during pauses; its KV pages may leave the device.
    Kept,
    /// The session ends; the next turn sends the whole history.
    Stateless,
    /// The session stays open and does not pause, as a reference.
    Alone,
}

/// The turns of one session.
#[derive(Clone)]
struct TurnPlan {
    config: EvalConfig,
    model: ModelHandle,
    vocab: u64,
    number: u64,
    style: TurnStyle,
}

/// Tokens and times of one session.
#[derive(Clone, Debug, Default)]
pub struct SessionOutcome {
    /// All generated tokens.
    pub tokens: Vec<u32>,
    /// Milliseconds from the request to the first token.
    pub first_ms: Vec<f64>,
    /// Milliseconds from the end of each pause to the next token.
    pub resumed_ms: Vec<f64>,
}

/// Returns the length of a session after its last turn, in tokens.
pub fn session_tokens(config: &EvalConfig) -> u64 {
    let (inference, sessions) = (&config.experiment.inference, &config.experiment.sessions);
    let later = sessions.answer_length + inference.generation_length;
    inference.prompt_length + inference.generation_length + (sessions.turns - 1) * later
}

/// Returns the part of a baseline job that describes the sessions.
pub fn job(config: &EvalConfig, vocab: u64, count: u64) -> Value {
    let (inference, sessions) = (&config.experiment.inference, &config.experiment.sessions);
    json!({
        "prompt": synthetic_tokens(vocab, inference.prompt_length, 0),
        "sessions": count, "turns": sessions.turns,
        "prompt_length": inference.prompt_length, "output": inference.generation_length,
        "answer": sessions.answer_length,
    })
}

/// Runs sessions concurrently, and returns the outcome or the error message of each.
pub async fn run_sessions(
    config: &EvalConfig,
    loaded: &ModelUnderTest,
    numbers: impl Iterator<Item = u64>,
    style: TurnStyle,
) -> Vec<(u64, Result<SessionOutcome, String>)> {
    let mut all = JoinSet::new();
    for number in numbers {
        let plan = TurnPlan {
            config: config.clone(),
            model: loaded.model.clone(),
            vocab: loaded.dims.vocab,
            number,
            style,
        };
        all.spawn(async move {
            let outcome = plan.run().await;
            (number, outcome.map_err(|error| error.to_string()))
        });
    }
    let mut outcomes = Vec::new();
    while let Some(done) = all.join_next().await {
        match done {
            Ok(one) => outcomes.push(one),
            // A task fails only if it panics.
            Err(error) => outcomes.push((u64::MAX, Err(error.to_string()))),
        }
    }
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes
}

impl TurnPlan {
    async fn run(&self) -> Result<SessionOutcome, EvalError> {
        match self.style {
            TurnStyle::Stateless => self.stateless().await,
            TurnStyle::Kept | TurnStyle::Alone => self.kept().await,
        }
    }

    fn prompt(&self) -> Vec<u32> {
        let count = self.config.experiment.inference.prompt_length;
        synthetic_tokens(self.vocab, count, self.number)
    }

    /// Returns the prompt of a later turn.
    fn answer(&self, turn: u64) -> Vec<u32> {
        let count = self.config.experiment.sessions.answer_length;
        synthetic_tokens(self.vocab, count, self.number + turn * 1009)
    }

    fn output(&self) -> u64 {
        self.config.experiment.inference.generation_length
    }

    /// Returns the pause before a turn. It depends on session and turn, and is the same in every run.
    fn pause(&self, turn: u64) -> Duration {
        let [from, to] = self.config.experiment.sessions.think_seconds;
        let mixed = (self.number * 31 + turn * 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let share = (mixed >> 40) as f64 / (1u64 << 24) as f64;
        Duration::from_secs_f64(from + share * (to - from))
    }

    async fn kept(&self) -> Result<SessionOutcome, EvalError> {
        let begin = Instant::now();
        let create = session(&self.config, &self.model, self.prompt(), self.output());
        let keeps = self.config.experiment.sessions.turns > 1;
        let create = if keeps { create.keep() } else { create };
        let events = create.open().await?;
        let kept = events.session().clone();
        let outcome = self.turns(&kept, events, begin).await;
        match keeps {
            true => delete_after(&kept, outcome).await,
            false => outcome,
        }
    }

    /// Runs all turns of a session that stays open.
    async fn turns(
        &self,
        kept: &SessionHandle,
        events: EventStream,
        begin: Instant,
    ) -> Result<SessionOutcome, EvalError> {
        let mut outcome = SessionOutcome::default();
        let first = outcome.take(timed(events, begin).await?)?;
        outcome.first_ms.extend(first);
        for turn in 1..self.config.experiment.sessions.turns {
            if self.style == TurnStyle::Kept {
                let pause = self.pause(turn);
                let due = tokio::time::Instant::now() + pause;
                kept.waiting(Some(pause)).await?;
                tokio::time::sleep_until(due).await;
            }
            let begin = Instant::now();
            let more = Generate::new()
                .tokens(self.answer(turn))
                .max_tokens(self.output());
            let events = kept.generate(more).await?;
            let first = outcome.take(timed(events, begin).await?)?;
            outcome.resumed_ms.extend(first);
        }
        Ok(outcome)
    }

    async fn stateless(&self) -> Result<SessionOutcome, EvalError> {
        let (mut history, mut outcome) = (self.prompt(), SessionOutcome::default());
        for turn in 0..self.config.experiment.sessions.turns {
            if turn > 0 {
                tokio::time::sleep(self.pause(turn)).await;
                history.extend(self.answer(turn));
            }
            let begin = Instant::now();
            let create = session(&self.config, &self.model, history.clone(), self.output());
            let timed = timed(create.open().await?, begin).await?;
            history.extend(&timed.turn.tokens);
            let first = outcome.take(timed)?;
            match turn {
                0 => outcome.first_ms.extend(first),
                _ => outcome.resumed_ms.extend(first),
            }
        }
        Ok(outcome)
    }
}

impl SessionOutcome {
    /// Adds a turn, and returns the time to its first token. An incomplete turn is an error.
    fn take(&mut self, timed: TimedTurn) -> Result<Option<f64>, EvalError> {
        require_complete(&timed.turn)?;
        self.tokens.extend(&timed.turn.tokens);
        Ok(timed.first_ms)
    }
}

/// Expected tokens of each session, by its number.
pub type SessionTokens = BTreeMap<u64, Vec<u32>>;

/// Runs some of the sessions alone, and returns their tokens as a reference.
pub async fn run_alone(
    config: &EvalConfig,
    testbed: &Testbed,
    loaded: &ModelUnderTest,
    all: u64,
) -> Result<SessionTokens, EvalError> {
    let count = config.experiment.sessions.check.min(all);
    let mut tokens = SessionTokens::new();
    for i in 0..count {
        let number = i * all / count;
        testbed.report_step(&format!("running session {number} alone as reference"));
        let one = std::iter::once(number);
        for (number, outcome) in run_sessions(config, loaded, one, TurnStyle::Alone).await {
            let failed = |reason| EvalError::IncompleteTurn { reason };
            tokens.insert(number, outcome.map_err(failed)?.tokens);
        }
    }
    Ok(tokens)
}

/// Writes the outcomes of sessions into a run. The tokens of a session have to equal its tokens when it ran
/// alone or in earlier runs.
pub fn record_sessions(
    run: &mut RunRecord,
    outcomes: Vec<(u64, Result<SessionOutcome, String>)>,
    known: &mut SessionTokens,
) {
    let (mut first, mut resumed, mut same) = (Vec::new(), Vec::new(), true);
    run.sessions = Some(outcomes.len() as u64);
    let mut completed = 0;
    for (number, outcome) in outcomes {
        match outcome {
            Ok(outcome) => {
                completed += 1;
                first.extend(outcome.first_ms);
                resumed.extend(outcome.resumed_ms);
                let tokens = outcome.tokens;
                same &= *known.entry(number).or_insert_with(|| tokens.clone()) == tokens;
            }
            Err(why) => run.failures.push(format!("session {number}: {why}")),
        }
    }
    run.sessions_completed = Some(completed);
    run.tokens_match = Some(same && completed > 0);
    run.first_token_ms = percentile(&first, 50);
    run.resume_p50_ms = percentile(&resumed, 50);
    run.resume_p99_ms = percentile(&resumed, 99);
}

#[cfg(test)]
mod tests {
    use djinn_report::RunRecord;

    use super::{SessionOutcome, SessionTokens, record_sessions};

    #[test]
    fn lost_sessions_and_different_tokens_are_recorded() {
        let outcome = |tokens: &[u32]| {
            Ok(SessionOutcome {
                tokens: tokens.to_vec(),
                ..SessionOutcome::default()
            })
        };
        let mut known = SessionTokens::from([(0, vec![1, 2])]);
        let mut run = RunRecord::default();
        record_sessions(
            &mut run,
            vec![(0, outcome(&[1, 2])), (1, outcome(&[3]))],
            &mut known,
        );
        assert_eq!((run.sessions, run.sessions_completed), (Some(2), Some(2)));
        assert_eq!(run.tokens_match, Some(true));
        let mut run = RunRecord::default();
        record_sessions(
            &mut run,
            vec![(0, outcome(&[1, 2])), (1, outcome(&[4]))],
            &mut known,
        );
        assert_eq!(run.tokens_match, Some(false), "differs from the run before");
        let mut run = RunRecord::default();
        let lost = Err("no pages".to_owned());
        record_sessions(&mut run, vec![(0, outcome(&[1, 2])), (1, lost)], &mut known);
        assert_eq!((run.sessions, run.sessions_completed), (Some(2), Some(1)));
        assert_eq!(run.failures, ["session 1: no pages"]);
    }
}
