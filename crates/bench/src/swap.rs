//! Benchmark `swap`: two models take turns on a device that has memory for one of them.

use djinn_client::{ModelHandle, v1};
use djinn_types::{
    Size,
    text::{seconds, table},
};
use serde_json::json;

use crate::{
    BenchError, BenchReport,
    first_token::{FirstToken, check_model_context, new_prompt, request},
    sample::median_of,
};

/// Options of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct SwapOptions {
    /// Tokens of a prompt.
    pub tokens: usize,
    /// Number of times that each model returns to the device.
    pub rounds: usize,
}

/// One turn of a model on the device.
struct ModelTurn {
    /// Request that brings the model back to the device.
    returning: FirstToken,
    /// Request that finds the model there.
    resident: FirstToken,
}

/// Sends requests to two equal models in turns. In each turn the first request finds the model off the
/// device, and the second one finds it there. The models answer the same prompts, so a token that
/// depends on the swap is found.
pub async fn swap(
    options: &SwapOptions,
    models: &[ModelHandle; 2],
    info: &v1::Model,
) -> Result<BenchReport, BenchError> {
    check_model_context(info, options.tokens)?;
    let mut turns = Vec::new();
    for _ in 0..options.rounds {
        let prompts = [(); 2].map(|()| new_prompt(info, options.tokens));
        for (number, model) in models.iter().enumerate() {
            if model.info().await?.state() != v1::ModelState::SwappedOut {
                return Err(BenchError::NothingSwaps);
            }
            turns.push(ModelTurn {
                returning: request(model, &prompts[number]).await?,
                resident: request(model, &prompts[1 - number]).await?,
            });
        }
    }
    Ok(report(info, &turns))
}

/// Number of prompts whose token differs between a model that returned and one that was there.
fn differing(turns: &[ModelTurn]) -> usize {
    let rounds = turns.chunks_exact(2);
    let differs = rounds.flat_map(|round| {
        [(0, 1), (1, 0)].map(|(a, b)| round[a].returning.id != round[b].resident.id)
    });
    differs.filter(|&differs| differs).count()
}

fn report(info: &v1::Model, turns: &[ModelTurn]) -> BenchReport {
    let weights = info.memory.map_or(0, |memory| memory.resident_bytes);
    let returning = median_of(turns, |turn| turn.returning.seconds);
    let resident = median_of(turns, |turn| turn.resident.seconds);
    let differing = differing(turns);
    let row = |(number, turn): (usize, &ModelTurn)| {
        vec![
            (number / 2 + 1).to_string(),
            ["first", "second"][number % 2].to_owned(),
            seconds(turn.returning.seconds),
            seconds(turn.resident.seconds),
        ]
    };
    let rows: Vec<Vec<String>> = turns.iter().enumerate().map(row).collect();
    let head = [
        "round",
        "model",
        "first token, swapped out",
        "first token, on the device",
    ];
    let text = format!(
        "Two models with {} of resident weights each, in turns\n{}\
         median of the first token: {} after a swap, {} without; differing tokens: {differing}\n",
        Size(weights),
        table(&head, &rows),
        seconds(returning),
        seconds(resident),
    );
    let to_json = |turn: &ModelTurn| json!({ "returning_s": turn.returning.seconds, "resident_s": turn.resident.seconds });
    let json = json!({
        "resident_bytes": weights, "returning_s": returning, "resident_s": resident,
        "differing_tokens": differing, "turns": turns.iter().map(to_json).collect::<Vec<_>>(),
    });
    let mut report = BenchReport::new(text, json);
    report.passed = differing == 0;
    report
}

#[cfg(test)]
mod tests {
    use super::{FirstToken, ModelTurn, report, v1};

    fn turn(returning: u32, resident: u32) -> ModelTurn {
        let token = |id, seconds| FirstToken {
            seconds,
            cached: 0,
            id,
        };
        ModelTurn {
            returning: token(returning, 0.6),
            resident: token(resident, 0.1),
        }
    }

    #[test]
    fn a_token_that_depends_on_the_swap_fails_the_benchmark() {
        let same = report(&v1::Model::default(), &[turn(1, 2), turn(2, 1)]);
        assert!(same.passed);
        assert_eq!(same.json["returning_s"], 0.6);
        let other = report(&v1::Model::default(), &[turn(1, 2), turn(3, 1)]);
        assert!(!other.passed);
        assert_eq!(other.json["differing_tokens"], 1);
    }
}
