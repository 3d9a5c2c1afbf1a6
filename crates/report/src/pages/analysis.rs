//! The analysis page: an overview, then every result in detail.

use serde_json::Value;

use super::{
    contender_tables,
    document::{DocBlock, DocTable, RichText},
};
use crate::{
    contender::contenders,
    figures::DrawnFigure,
    format::{show, show_size},
    result::{BaselineStatus, Check, Experiment, Outcome, ResultFile},
    result_set::ResultSet,
};

/// Returns the blocks of the page.
pub fn blocks(set: &ResultSet, figures: &[DrawnFigure]) -> Vec<DocBlock> {
    let mut blocks = overview(set);
    let mut placed: Vec<&str> = Vec::new();
    let mut before = None;
    for result in set.results() {
        let experiment = result.experiment;
        if before != Some(experiment) {
            blocks.push(DocBlock::Title(2, about(experiment)));
            for figure in figures
                .iter()
                .filter(|figure| figure.experiments.contains(&experiment))
            {
                if figure.drawing.is_ok() && !placed.contains(&figure.name) {
                    placed.push(figure.name);
                    let (name, caption) = (figure.name.to_owned(), figure.caption.to_owned());
                    blocks.push(DocBlock::Figure { name, caption });
                }
            }
            before = Some(experiment);
        }
        blocks.extend(of_result(result));
    }
    blocks.extend(left_out(figures));
    blocks
}

fn about(experiment: Experiment) -> RichText {
    let subject = match experiment {
        Experiment::VirtualMemory => "a model larger than the memory budget",
        Experiment::MemoryPressure => "more sessions than device memory holds",
        Experiment::ResumeLatency => "time to resume a stopped session",
        Experiment::Steering => "effect and cost of an edit inside the model",
        Experiment::Agents => "many agents that pause between turns",
    };
    RichText::from(format!("{}: {subject}", experiment.name()))
}

fn overview(set: &ResultSet) -> Vec<DocBlock> {
    let count = set.results().len();
    let bad = set.results().filter(|result| !result.summary.pass).count();
    let noun = if count == 1 { "result" } else { "results" };
    let verdict = RichText::default()
        .and("Overall: ")
        .verdict(Outcome::of(bad == 0))
        .and(match bad {
            0 => format!(". All checks passed in {count} {noun}."),
            bad => format!(". {bad} of {count} {noun} failed."),
        });
    let mut table = DocTable::new([
        "experiment",
        "name",
        "model",
        "runs",
        "verdict",
        "failed checks",
    ]);
    for result in set.results() {
        let open = result
            .summary
            .checks
            .iter()
            .filter(|check| check.outcome == Outcome::NotJudged)
            .count();
        let mut outcome = RichText::default().verdict(Outcome::of(result.summary.pass));
        if open > 0 {
            outcome = outcome.and(format!(", {open} not judged"));
        }
        let why: Vec<&str> = result
            .summary
            .failed()
            .map(|check| check.name.as_str())
            .collect();
        table.rows.push(vec![
            RichText::from(result.experiment.name()),
            RichText::from(result.name.as_str()),
            RichText::from(result.model.as_str()),
            RichText::from(result.runs.len().to_string()),
            outcome,
            RichText::from(why.join("; ")),
        ]);
    }
    vec![
        DocBlock::Title(1, RichText::from("Results of djinn eval")),
        DocBlock::Text(verdict),
        DocBlock::Table(table),
        DocBlock::Text(RichText::from(
            "Values are medians of the measured runs, followed by the smallest and the largest value. The \
             spread is the difference between these two as a share of the median. All statistics are \
             computed from the runs, not taken from the summary in the file.",
        )),
    ]
}

fn of_result(result: &ResultFile) -> Vec<DocBlock> {
    let title =
        RichText::from(format!("{} ", result.name)).verdict(Outcome::of(result.summary.pass));
    let mut blocks = vec![DocBlock::Title(3, title)];
    if !result.description.is_empty() {
        blocks.push(DocBlock::Text(RichText::from(result.description.as_str())));
    }
    blocks.push(setup(result));
    blocks.push(DocBlock::Title(4, RichText::from("Verdict")));
    blocks.push(checks(&result.summary.checks));
    blocks.push(DocBlock::Title(4, RichText::from("Measurements")));
    blocks.extend(contender_tables::blocks(result));
    blocks.extend(settings(result));
    if !result.notes.is_empty() {
        blocks.push(DocBlock::Title(4, RichText::from("Notes")));
        blocks.push(DocBlock::List(
            result
                .notes
                .iter()
                .map(|note| RichText::from(note.as_str()))
                .collect(),
        ));
    }
    blocks
}

/// Describes the model, the machine and the command.
fn setup(result: &ResultFile) -> DocBlock {
    let place = &result.environment;
    let memory = place
        .device_memory_mb
        .map(|mb| format!(", {}", show(mb, "MB")));
    let mut table = DocTable::new(["property", "value"]);
    let mut row = |name: &str, text: RichText| table.rows.push(vec![RichText::from(name), text]);
    row("model", RichText::default().code(result.model.as_str()));
    row(
        "device",
        RichText::from(format!(
            "{} ({}{})",
            place.device_name,
            place.device,
            memory.unwrap_or_default()
        )),
    );
    if let Some(budget) = result.budget_mb {
        row("budget", RichText::from(show_size(budget)));
    }
    let alone = place
        .link_gbps
        .map(|gbps| format!("{} without compute", show(gbps, "GB/s")));
    let link: Vec<String> = place.link.clone().into_iter().chain(alone).collect();
    if !link.is_empty() {
        row("link", RichText::from(link.join(", ")));
    }
    let driver = place.driver.iter().map(|driver| format!("driver {driver}"));
    let cuda = place.cuda.iter().map(|cuda| format!("CUDA {cuda}"));
    let software: Vec<String> = driver.chain(cuda).chain([place.system.clone()]).collect();
    row(
        "processor",
        RichText::from(format!(
            "{}, {} cores, {}",
            place.processor,
            place.cores,
            show(place.host_memory_mb, "MB")
        )),
    );
    row("system", RichText::from(software.join(", ")));
    row(
        "version",
        RichText::from(format!("djinn {}, commit ", place.djinn)).code(place.commit.as_str()),
    );
    row("date", RichText::from(result.started.as_str()));
    row(
        "runs",
        RichText::from(format!(
            "{} measured, {} warm-up",
            result.runs.len(),
            result.warmup.len()
        )),
    );
    row("server", RichText::from(place.server.as_str()));
    row("command", RichText::default().code(place.command.as_str()));
    DocBlock::Table(table)
}

fn checks(checks: &[Check]) -> DocBlock {
    let mut table = DocTable::new(["check", "outcome", "found"]);
    for check in checks {
        table.rows.push(vec![
            RichText::from(check.name.as_str()),
            RichText::default().verdict(check.outcome),
            RichText::from(check.found.as_str()),
        ]);
    }
    DocBlock::Table(table)
}

/// Describes the settings of each contender, and why some were not measured.
fn settings(result: &ResultFile) -> Vec<DocBlock> {
    let mut table = DocTable::new(["contender", "program", "status", "settings"]);
    for who in contenders(result) {
        let outcome = match who.status {
            BaselineStatus::Ran => RichText::from("ran"),
            _ => RichText::from(who.absence()),
        };
        let settings: Vec<String> = who
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
            RichText::from(format!("{} (", who.label()))
                .code(who.name)
                .and(")"),
            RichText::from(program),
            outcome,
            RichText::default().code(settings.join(", ")),
        ]);
    }
    vec![
        DocBlock::Title(4, RichText::from("Contenders and settings")),
        DocBlock::Table(table),
    ]
}

fn setting(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => format!("{key}={text}"),
        value => format!("{key}={value}"),
    }
}

fn left_out(figures: &[DrawnFigure]) -> Vec<DocBlock> {
    let line = |figure: &DrawnFigure| {
        let reason = figure.drawing.as_ref().err()?;
        Some(
            RichText::default()
                .code(figure.name)
                .and(format!(": {reason}")),
        )
    };
    let lines: Vec<RichText> = figures.iter().filter_map(line).collect();
    if lines.is_empty() {
        return Vec::new();
    }
    vec![
        DocBlock::Title(2, RichText::from("Omitted figures")),
        DocBlock::List(lines),
    ]
}
