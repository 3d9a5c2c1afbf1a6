//! Benchmark `prefix`: first-token time of a prompt that is sent again and again.

use djinn_client::{ModelHandle, v1};
use djinn_types::text::{seconds, table};
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport,
    first_token::{FirstToken, check_model_context, new_prompt, request},
};

/// Options of the benchmark `prefix`.
pub struct PrefixOptions {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Number of times that the prompt is sent after the first time.
    pub repeat: usize,
}

/// Sends the same prompt several times to a model of a server. The prompt is new to the server, so the first
/// time computes all of it.
pub async fn prefix(
    options: &PrefixOptions,
    model: &ModelHandle,
    info: &v1::Model,
) -> Result<BenchReport, BenchError> {
    check_model_context(info, options.tokens)?;
    let prompt = new_prompt(info, options.tokens);
    let mut runs = Vec::new();
    for _ in 0..=options.repeat {
        runs.push(request(model, &prompt).await?);
    }
    Ok(report(options, &runs))
}

fn report(options: &PrefixOptions, runs: &[FirstToken]) -> BenchReport {
    let first = runs[0].seconds;
    let row = |(number, run): (usize, &FirstToken)| {
        vec![
            (number + 1).to_string(),
            seconds(run.seconds),
            run.cached.to_string(),
            format!("{:.1}x", first / run.seconds),
        ]
    };
    let rows: Vec<Vec<String>> = runs.iter().enumerate().map(row).collect();
    let to_json = |run: &FirstToken| -> Value {
        json!({
            "first_token_s": run.seconds, "cached_tokens": run.cached,
            "speedup": first / run.seconds,
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
    use super::{FirstToken, PrefixOptions, report};

    #[test]
    fn the_report_has_every_request() {
        let options = PrefixOptions {
            tokens: 100,
            repeat: 1,
        };
        let runs = [(0.5, 0), (0.01, 96)];
        let runs = runs.map(|(seconds, cached)| FirstToken {
            seconds,
            cached,
            id: 7,
        });
        let report = report(&options, &runs);
        assert_eq!(report.json["runs"][1]["cached_tokens"], 96);
        assert_eq!(report.json["runs"][1]["speedup"], 50.0);
        assert_eq!(report.text.lines().count(), 4);
    }
}
