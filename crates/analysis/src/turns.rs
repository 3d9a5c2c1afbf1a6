//! Turns of sessions: running many together, and checking how they ended.

use djinn_client::{Create, Error, FinishReason, ModelHandle, TensorData, TurnOutput, v1};
use tokio::task::JoinSet;

use crate::AnalysisError;

/// Largest number of turns that run at the same time.
const CONCURRENT: usize = 64;

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

/// Describes a model. Loads it first on a server that has not, since only a loaded model has dimensions.
pub async fn loaded_info(model: &ModelHandle) -> Result<v1::Model, Error> {
    let info = model.info().await?;
    if info.dims.is_some() {
        return Ok(info);
    }
    // Listing hooks loads the model.
    model.hooks("hook_embed").await?;
    model.info().await
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

/// Runs up to [`CONCURRENT`] turns at the same time and returns them in order. After an error no further
/// turn starts; turns that run already are awaited.
pub(crate) async fn join_turns<F, E>(
    turns: impl IntoIterator<Item = F>,
) -> Result<Vec<TurnOutput>, AnalysisError>
where
    F: Future<Output = Result<TurnOutput, E>> + Send + 'static,
    E: Into<AnalysisError> + Send + 'static,
{
    let mut waiting = turns.into_iter().enumerate();
    let (mut tasks, mut done, mut failed) = (JoinSet::new(), Vec::new(), None);
    loop {
        while failed.is_none() && tasks.len() < CONCURRENT {
            let Some((index, turn)) = waiting.next() else {
                break;
            };
            tasks.spawn(async move { Ok::<_, E>((index, turn.await?)) });
        }
        let Some(joined) = tasks.join_next().await else {
            break;
        };
        match joined.expect("a turn does not panic") {
            Ok(turn) => done.push(turn),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    done.sort_by_key(|(index, _)| *index);
    let turns: Vec<TurnOutput> = done.into_iter().map(|(_, turn)| turn).collect();
    turns.iter().try_for_each(check_finished)?;
    Ok(turns)
}
