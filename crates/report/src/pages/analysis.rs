//! What is said of results: an overview, then everything of each.

use serde_json::Value;

use super::{
    Shown, beside,
    document::{Block, Line, Table},
};
use crate::{
    Check, Experiment, Outcome, ResultFile, Set, Status,
    contender::contenders,
    number::{show, show_size},
    set::failed,
};

/// The whole page.
pub fn blocks(set: &Set, figures: &[Shown]) -> Vec<Block> {
    let mut blocks = overview(set);
    let mut placed: Vec<&str> = Vec::new();
    let mut before = None;
    for result in set.results() {
        let experiment = result.experiment;
        if before != Some(experiment) {
            blocks.push(Block::Title(2, about(experiment)));
            for figure in figures
                .iter()
                .filter(|figure| figure.experiments.contains(&experiment))
            {
                if figure.svg.is_ok() && !placed.contains(&figure.name) {
                    placed.push(figure.name);
                    let (name, caption) = (figure.name.to_owned(), figure.caption.to_owned());
                    blocks.push(Block::Figure { name, caption });
                }
            }
            before = Some(experiment);
        }
        blocks.extend(of_result(result));
    }
    blocks.extend(left_out(figures));
    blocks
}

fn about(experiment: Experiment) -> Line {
    let what = match experiment {
        Experiment::VirtualMemory => "a model larger than the memory it runs in",
        Experiment::MemoryPressure => "more sessions than memory holds",
        Experiment::ResumeLatency => "how long a session that stopped takes to go on",
        Experiment::Steering => "what a change inside the model does, and costs",
        Experiment::Agents => "many agents that think most of the time",
    };
    Line::from(format!("{}: {what}", experiment.name()))
}

fn overview(set: &Set) -> Vec<Block> {
    let count = set.results().len();
    let bad = set.results().filter(|result| !result.summary.pass).count();
    let noun = if count == 1 { "result" } else { "results" };
    let verdict = Line::default()
        .and("Overall: ")
        .verdict(Outcome::of(bad == 0))
        .and(match bad {
            0 => format!(". Nothing failed in {count} {noun}."),
            bad => format!(". {bad} of {count} {noun} failed."),
        });
    let mut table = Table::new([
        "experiment",
        "name",
        "model",
        "runs",
        "verdict",
        "what failed",
    ]);
    for result in set.results() {
        let open = result
            .summary
            .checks
            .iter()
            .filter(|check| check.outcome == Outcome::NotJudged)
            .count();
        let mut outcome = Line::default().verdict(Outcome::of(result.summary.pass));
        if open > 0 {
            outcome = outcome.and(format!(", {open} not judged"));
        }
        let why: Vec<&str> = failed(&result.summary)
            .map(|check| check.name.as_str())
            .collect();
        table.rows.push(vec![
            Line::from(result.experiment.name()),
            Line::from(result.name.as_str()),
            Line::from(result.model.as_str()),
            Line::from(result.runs.len().to_string()),
            outcome,
            Line::from(why.join("; ")),
        ]);
    }
    vec![
        Block::Title(1, Line::from("Results of djinn eval")),
        Block::Text(verdict),
        Block::Table(table),
        Block::Text(Line::from(
            "Numbers are medians of the measured runs, with the smallest and the largest behind them; \
             the spread is the distance between these two, of the median. Everything is computed from \
             the runs, not from what a file says of itself.",
        )),
    ]
}

fn of_result(result: &ResultFile) -> Vec<Block> {
    let title = Line::from(format!("{} ", result.name)).verdict(Outcome::of(result.summary.pass));
    let mut blocks = vec![Block::Title(3, title)];
    if !result.description.is_empty() {
        blocks.push(Block::Text(Line::from(result.description.as_str())));
    }
    blocks.push(tried(result));
    blocks.push(Block::Title(4, Line::from("Verdict")));
    blocks.push(checks(&result.summary.checks));
    blocks.push(Block::Title(4, Line::from("Measured")));
    blocks.extend(beside::blocks(result));
    blocks.extend(settings(result));
    if !result.notes.is_empty() {
        blocks.push(Block::Title(4, Line::from("Notes")));
        blocks.push(Block::List(
            result
                .notes
                .iter()
                .map(|note| Line::from(note.as_str()))
                .collect(),
        ));
    }
    blocks
}

/// What was tried, where and when.
fn tried(result: &ResultFile) -> Block {
    let place = &result.environment;
    let memory = place
        .device_memory_mb
        .map(|mb| format!(", {}", show(mb, "MB")));
    let mut table = Table::new(["what", ""]);
    let mut row = |what: &str, text: Line| table.rows.push(vec![Line::from(what), text]);
    row("model", Line::default().code(result.model.as_str()));
    row(
        "device",
        Line::from(format!(
            "{} ({}{})",
            place.device_name,
            place.device,
            memory.unwrap_or_default()
        )),
    );
    if let Some(budget) = result.budget_mb {
        row("budget", Line::from(show_size(budget)));
    }
    let alone = place
        .link_gbps
        .map(|gbps| format!("{} alone", show(gbps, "GB/s")));
    let link: Vec<String> = place.link.clone().into_iter().chain(alone).collect();
    if !link.is_empty() {
        row("link", Line::from(link.join(", ")));
    }
    let driver = place.driver.iter().map(|driver| format!("driver {driver}"));
    let cuda = place.cuda.iter().map(|cuda| format!("CUDA {cuda}"));
    let software: Vec<String> = driver.chain(cuda).chain([place.system.clone()]).collect();
    row(
        "processor",
        Line::from(format!(
            "{}, {} cores, {}",
            place.processor,
            place.cores,
            show(place.host_memory_mb, "MB")
        )),
    );
    row("system", Line::from(software.join(", ")));
    row(
        "version",
        Line::from(format!("djinn {}, commit ", place.djinn)).code(place.commit.as_str()),
    );
    row("date", Line::from(result.started.as_str()));
    row(
        "runs",
        Line::from(format!(
            "{} measured, {} to warm up",
            result.runs.len(),
            result.warmup.len()
        )),
    );
    row("server", Line::from(place.server.as_str()));
    row("command", Line::default().code(place.command.as_str()));
    Block::Table(table)
}

fn checks(checks: &[Check]) -> Block {
    let mut table = Table::new(["check", "outcome", "found"]);
    for check in checks {
        table.rows.push(vec![
            Line::from(check.name.as_str()),
            Line::default().verdict(check.outcome),
            Line::from(check.found.as_str()),
        ]);
    }
    Block::Table(table)
}

/// What each contender was given, and why some are not there.
fn settings(result: &ResultFile) -> Vec<Block> {
    let mut table = Table::new(["contender", "program", "what came of it", "settings"]);
    for who in contenders(result) {
        let outcome = match who.status {
            Status::Ran => Line::from("ran"),
            _ => Line::from(who.fate()),
        };
        let told: Vec<String> = who
            .settings
            .iter()
            .map(|(key, value)| setting(key, value))
            .collect();
        let program = if who.ours {
            format!("djinn {}", result.environment.djinn)
        } else {
            who.program.to_owned()
        };
        table.rows.push(vec![
            Line::from(format!("{} (", who.label()))
                .code(who.name)
                .and(")"),
            Line::from(program),
            outcome,
            Line::default().code(told.join(", ")),
        ]);
    }
    vec![
        Block::Title(4, Line::from("Contenders and their settings")),
        Block::Table(table),
    ]
}

fn setting(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => format!("{key}={text}"),
        value => format!("{key}={value}"),
    }
}

fn left_out(figures: &[Shown]) -> Vec<Block> {
    let line = |figure: &Shown| {
        let reason = figure.svg.as_ref().err()?;
        Some(Line::default().code(figure.name).and(format!(": {reason}")))
    };
    let lines: Vec<Line> = figures.iter().filter_map(line).collect();
    if lines.is_empty() {
        return Vec::new();
    }
    vec![
        Block::Title(2, Line::from("Figures that were left out")),
        Block::List(lines),
    ]
}
