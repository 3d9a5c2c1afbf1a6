//! A set of results that share one report.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    error::ReportError,
    result::{Check, ResultFile, summarize},
};

/// Results that share one report, sorted by experiment, name and model.
#[derive(Clone, Debug)]
pub struct ResultSet {
    results: Vec<ResultFile>,
}

impl ResultSet {
    /// Reads result files, and all `*.json` files directly inside folders. Any other JSON file in a folder
    /// is an error, so that no result is skipped by accident; the schema file is ignored.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ReportError> {
        let mut files = Vec::new();
        for path in paths {
            match path.is_dir() {
                true => files.extend(results_in(path)?),
                false => files.push(path.clone()),
            }
        }
        files.sort_by_key(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
        files.dedup_by_key(|path| fs::canonicalize(&*path).unwrap_or_else(|_| path.clone()));
        if files.is_empty() {
            let paths = paths.to_vec();
            return Err(ReportError::NoResults { paths });
        }
        let results: Result<Vec<_>, _> = files.iter().map(|path| ResultFile::read(path)).collect();
        Ok(ResultSet::of(results?))
    }

    /// Makes a set of results. Every summary is computed again from the runs; the stored one is only
    /// checked.
    pub fn of(mut results: Vec<ResultFile>) -> Self {
        for result in &mut results {
            result.summary = summarize(result);
            for baseline in &mut result.baselines {
                baseline.sum_up();
            }
        }
        let key = |result: &ResultFile| {
            (
                result.experiment,
                result.name.clone(),
                result.model.clone(),
                result.started.clone(),
                result.baseline.clone(),
            )
        };
        results.sort_by_key(key);
        ResultSet { results }
    }

    /// Returns all results, sorted by experiment, name and model.
    pub fn results(&self) -> impl ExactSizeIterator<Item = &ResultFile> {
        self.results.iter()
    }

    /// Whether no check of any result failed.
    pub fn pass(&self) -> bool {
        self.results.iter().all(|result| result.summary.pass)
    }

    /// Returns a table for the terminal: a line for each result, followed by its failed checks.
    pub fn verdict_table(&self) -> String {
        let names = self
            .results
            .iter()
            .map(|result| result.name.chars().count());
        let widest = names.max().unwrap_or(0);
        let mut text = String::new();
        for result in &self.results {
            let verdict = result.summary.verdict().word();
            let (experiment, name) = (result.experiment.name(), &result.name);
            let line = format!(
                "{verdict}  {experiment:<15}  {name:<widest$}  {}",
                result.model
            );
            append(&mut text, format_args!("{}\n", line.trim_end()));
            for Check { name, found, .. } in result.summary.failed() {
                append(&mut text, format_args!("      {name}: {found}\n"));
            }
        }
        text
    }
}

fn append(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line)
        .expect("writing to a String cannot fail");
}

/// Returns the result files directly inside a folder.
fn results_in(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let file_error = |error| ReportError::File {
        path: folder.to_owned(),
        error,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(file_error)? {
        let path = entry.map_err(file_error)?.path();
        let json = path.extension().is_some_and(|ending| ending == "json");
        if json && path.is_file() && !is_schema(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Whether a file is a JSON Schema. An unreadable file counts as a result, so that reading it reports the
/// error.
fn is_schema(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let dialect = value.get("$schema").and_then(Value::as_str);
    dialect.is_some_and(|dialect| dialect.contains("json-schema.org"))
}
