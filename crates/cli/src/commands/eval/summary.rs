//! Summaries of results on a terminal.

use std::path::{Path, PathBuf};

use djinn_eval::EvalConfig;
use djinn_report::{Outcome, ResultFile};
use djinn_terminal::{Colour, coloured};
use djinn_types::text::table;

/// Numbers, checks and notes of one result.
pub fn of_result(result: &ResultFile, output: &Path, config: &EvalConfig) -> String {
    let number = |value: f64| format!("{value:.3}");
    let metrics: Vec<Vec<String>> = djinn_report::METRICS
        .iter()
        .filter(|metric| config.shows(metric.key))
        .filter_map(|metric| {
            let stats = result.summary.metrics.get(metric.key)?;
            let numbers = [stats.median, stats.mean, stats.std, stats.min, stats.max];
            let name = std::iter::once(metric.key.to_owned());
            Some(name.chain(numbers.map(number)).collect())
        })
        .collect();
    let points: Vec<Vec<String>> = result
        .summary
        .points
        .iter()
        .map(|point| {
            let numbers = [point.ms.median, point.ms.min, point.ms.max];
            let name = std::iter::once(format!("{} at {}", point.series, point.x));
            name.chain(numbers.map(number)).collect()
        })
        .collect();
    let mut text = format!(
        "{} · {} · {}\n{}",
        result.experiment.name(),
        result.name,
        result.model,
        table(&["", "median", "mean", "std", "min", "max"], &metrics)
    );
    if !points.is_empty() {
        text += &table(&["ms", "median", "min", "max"], &points);
    }
    for check in &result.summary.checks {
        let colour = match check.outcome {
            Outcome::Pass => Colour::Green,
            Outcome::Fail => Colour::Red,
            Outcome::NotJudged => Colour::Yellow,
        };
        let word = coloured(check.outcome.word(), colour);
        text += &format!("{word}: {}: {}\n", check.name, check.found);
    }
    for note in &result.notes {
        text += &format!("note: {note}\n");
    }
    text + &format!("written to {}\n", output.display())
}

/// Table with a line for each result.
pub fn of_results(results: &[(ResultFile, PathBuf)]) -> String {
    let row = |(result, path): &(ResultFile, PathBuf)| {
        let verdict = match result.summary.pass {
            true => coloured("PASS", Colour::Green),
            false => coloured("FAIL", Colour::Red),
        };
        let checks = result.summary.checks.iter();
        let failed: Vec<String> = checks
            .filter(|check| check.outcome == Outcome::Fail)
            .map(|check| format!("{}: {}", check.name, check.found))
            .collect();
        vec![
            result.experiment.name().to_owned(),
            result.name.clone(),
            verdict,
            path.display().to_string(),
            failed.join("; "),
        ]
    };
    let rows: Vec<Vec<String>> = results.iter().map(row).collect();
    table(
        &["experiment", "configuration", "verdict", "result", ""],
        &rows,
    )
}
