//! Turns of sessions: running many together, and checking how they ended.

use djinn_client::{Create, Error, FinishReason, TensorData, TurnOutput, v1};
use tokio::task::JoinSet;

use crate::AnalysisError;

/// Sampling that always takes the most likely token.
pub fn greedy() -> v1::Sampling {
    v1::Sampling {
        temperature: Some(0.0),
        repetition_penalty: Some(1.0),
        ..v1::Sampling::default()
    }
}

/// Converts a tensor of the client to a tensor of the engine.
pub fn tensor(from: TensorData) -> djinn_engine::Tensor {
    djinn_engine::Tensor {
        shape: from.shape,
        data: from.data,
    }
}

/// Returns the error of a turn, if its last event reports one.
pub fn check_finished(turn: &TurnOutput) -> Result<(), AnalysisError> {
    let Some(end) = turn.finished() else {
        return Ok(());
    };
    match end.reason() {
        _ if !end.failure.is_empty() => Err(AnalysisError::TurnFailed(end.failure.clone())),
        FinishReason::NotANumber => Err(AnalysisError::NotANumber),
        _ => Ok(()),
    }
}

/// Opens sessions at the same time, so that the server batches them, and returns their turns in order.
pub async fn run_all(
    sessions: impl IntoIterator<Item = Create>,
) -> Result<Vec<TurnOutput>, AnalysisError> {
    let run = |session: Create| async { session.open().await?.collect().await };
    join_turns(sessions.into_iter().map(run)).await
}

/// Runs turns at the same time and returns them in order.
pub(crate) async fn join_turns<F>(
    turns: impl IntoIterator<Item = F>,
) -> Result<Vec<TurnOutput>, AnalysisError>
where
    F: Future<Output = Result<TurnOutput, Error>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (index, turn) in turns.into_iter().enumerate() {
        tasks.spawn(async move { Ok((index, turn.await?)) });
    }
    let mut turns = Vec::with_capacity(tasks.len());
    while let Some(joined) = tasks.join_next().await {
        let turn: Result<(usize, TurnOutput), Error> = joined.expect("a turn does not panic");
        turns.push(turn?);
    }
    turns.sort_by_key(|(index, _)| *index);
    let turns: Vec<TurnOutput> = turns.into_iter().map(|(_, turn)| turn).collect();
    turns.iter().try_for_each(check_finished)?;
    Ok(turns)
}
