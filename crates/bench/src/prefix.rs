//! Benchmark `prefix`: first-token time of a prompt that is sent again and again.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use djinn_client::{ModelHandle, TurnEvent, v1};
use djinn_types::text::{seconds, table};
use serde_json::{Value, json};

use crate::{BenchError, BenchReport};

/// Options of the benchmark `prefix`.
pub struct PrefixOptions {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Number of times that the prompt is sent after the first time.
    pub repeat: usize,
}

/// One request.
struct PrefixRun {
    /// Seconds from the request to the first token.
    first_token: f64,
    /// Tokens of the prompt that the prefix cache had.
    cached: u64,
}

/// Sends the same prompt several times to a model of a server. The prompt is new to the server, so the first
/// time computes all of it.
pub async fn prefix(
    options: &PrefixOptions,
    model: &ModelHandle,
    info: &v1::Model,
) -> Result<BenchReport, BenchError> {
    let limits = info.limits.unwrap_or_default();
    let (needed, context) = (options.tokens + 1, limits.context as usize);
    if needed > context {
        return Err(BenchError::Context { needed, context });
    }
    let vocab = info.dims.map_or(0, |dims| dims.vocab);
    let prompt = new_prompt(vocab, options.tokens);
    let mut runs = Vec::new();
    for _ in 0..=options.repeat {
        runs.push(run(model, &prompt).await?);
    }
    Ok(report(options, &runs))
}

/// Returns tokens that no earlier call has returned.
fn new_prompt(vocab: u64, count: usize) -> Vec<u32> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let salt = time.map_or(0, |time| time.as_nanos() as u64);
    let at = |i: u64| (salt >> (8 * (i % 8))).wrapping_add(i * 7919) % vocab.max(1);
    (0..count as u64).map(|i| at(i) as u32).collect()
}

async fn run(model: &ModelHandle, prompt: &[u32]) -> Result<PrefixRun, BenchError> {
    let session = model.session().tokens(prompt.to_vec()).max_tokens(1);
    let (mut first_token, mut cached) = (None, 0);
    let began = Instant::now();
    let mut events = session.ignore_eos().open().await?;
    while let Some(event) = events.next().await? {
        match event {
            TurnEvent::Token(_) => {
                first_token.get_or_insert(began.elapsed().as_secs_f64());
            }
            TurnEvent::Finished(finished) => cached = finished.cached_tokens,
            TurnEvent::Captured(..) | TurnEvent::Paused(_) => {}
        }
    }
    Ok(PrefixRun {
        first_token: first_token.ok_or(BenchError::StreamEnded)?,
        cached,
    })
}

fn report(options: &PrefixOptions, runs: &[PrefixRun]) -> BenchReport {
    let first = runs[0].first_token;
    let row = |(number, run): (usize, &PrefixRun)| {
        vec![
            (number + 1).to_string(),
            seconds(run.first_token),
            run.cached.to_string(),
            format!("{:.1}x", first / run.first_token),
        ]
    };
    let rows: Vec<Vec<String>> = runs.iter().enumerate().map(row).collect();
    let to_json = |run: &PrefixRun| -> Value {
        json!({
            "first_token_s": run.first_token, "cached_tokens": run.cached,
            "speedup": first / run.first_token,
        })
    };
    let text = format!(
        "Prompt of {} tokens, sent {} times\n{}",
        options.tokens,
        runs.len(),
        table(
            &["request", "first token", "cached tokens", "speedup"],
            &rows
        )
    );
    let json = json!({
        "tokens": options.tokens, "runs": runs.iter().map(to_json).collect::<Vec<_>>(),
    });
    BenchReport::new(text, json)
}

#[cfg(test)]
mod tests {
    use super::{PrefixOptions, PrefixRun, report};

    #[test]
    fn the_report_has_every_request() {
        let options = PrefixOptions {
            tokens: 100,
            repeat: 1,
        };
        let runs = [(0.5, 0), (0.01, 96)];
        let runs = runs.map(|(first_token, cached)| PrefixRun {
            first_token,
            cached,
        });
        let report = report(&options, &runs);
        assert_eq!(report.json["runs"][1]["cached_tokens"], 96);
        assert_eq!(report.json["runs"][1]["speedup"], 50.0);
        assert_eq!(report.text.lines().count(), 4);
    }
}
