//! Results that are reported on together.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    Check, Comparison, Outcome, ReportError, ResultFile, Summary, draw,
    figures::FIGURES,
    pages::{self, Shown},
    summarize,
};

/// Results that are reported on together, in an order that does not depend on where they lie.
#[derive(Clone, Debug)]
pub struct Set {
    results: Vec<ResultFile>,
}

/// What a report came to.
#[derive(Clone, Debug)]
pub struct Written {
    /// Every file, in the order they were written.
    pub files: Vec<PathBuf>,
    /// Figures that were left out, and why.
    pub left_out: Vec<(String, String)>,
    /// Whether no check of any result failed.
    pub pass: bool,
}

impl Set {
    /// Reads results: files, or all `*.json` that lie directly in a folder. A JSON file there that is no
    /// result is an error, lest one is left out unseen; only the schema may lie beside them.
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
            return Err(ReportError::Nothing { paths });
        }
        let results: Result<Vec<_>, _> = files.iter().map(|path| ResultFile::read(path)).collect();
        Ok(Set::of(results?))
    }

    /// Of these. Each is judged and summed up anew: what a file says of itself is only checked.
    pub fn of(mut results: Vec<ResultFile>) -> Self {
        for result in &mut results {
            result.summary = summarize(result);
            for baseline in &mut result.baselines {
                baseline.sum_up();
            }
        }
        let key = |result: &ResultFile| {
            let ResultFile {
                experiment,
                name,
                model,
                started,
                baseline,
                ..
            } = result;
            (
                *experiment,
                name.clone(),
                model.clone(),
                started.clone(),
                baseline.clone(),
            )
        };
        results.sort_by_key(key);
        Set { results }
    }

    /// All results, by experiment, name and model.
    pub fn results(&self) -> impl ExactSizeIterator<Item = &ResultFile> {
        self.results.iter()
    }

    /// Whether no check of any result failed.
    pub fn pass(&self) -> bool {
        self.results.iter().all(|result| result.summary.pass)
    }

    /// For a terminal: a line for each result, and under it the checks that failed.
    pub fn verdict_table(&self) -> String {
        let names = self
            .results
            .iter()
            .map(|result| result.name.chars().count());
        let widest = names.max().unwrap_or(0);
        let mut text = String::new();
        for result in &self.results {
            let verdict = verdict(&result.summary);
            let (experiment, name) = (result.experiment.name(), &result.name);
            let line = format!(
                "{verdict}  {experiment:<15}  {name:<widest$}  {}",
                result.model
            );
            put(&mut text, format_args!("{}\n", line.trim_end()));
            for Check { name, found, .. } in failed(&result.summary) {
                put(&mut text, format_args!("      {name}: {found}\n"));
            }
        }
        text
    }

    /// Draws the figures and writes the pages into a folder, with a comparison where there is one, and
    /// says what it is at.
    pub fn write(
        &self,
        output: &Path,
        comparison: Option<&Comparison>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Written, ReportError> {
        let file = |path: &Path, error| ReportError::File {
            path: path.to_owned(),
            error,
        };
        fs::create_dir_all(output).map_err(|error| file(output, error))?;
        let mut files = Vec::new();
        let mut put = |name: &str, bytes: &[u8]| {
            let path = output.join(name);
            fs::write(&path, bytes).map_err(|error| file(&path, error))?;
            files.push(path);
            Ok::<(), ReportError>(())
        };
        let shown = self.figures();
        for figure in &shown {
            let Ok(svg) = &figure.svg else { continue };
            progress(&format!("drawing {}", figure.name));
            let forms = draw::render(svg).map_err(|reason| ReportError::Figure {
                figure: figure.name.to_owned(),
                reason,
            })?;
            put(&format!("{}.svg", figure.name), svg.as_bytes())?;
            put(&format!("{}.png", figure.name), &forms.png)?;
            put(&format!("{}.pdf", figure.name), &forms.pdf)?;
        }
        progress("writing pages");
        put("analysis.md", pages::markdown(self, &shown).as_bytes())?;
        if let Some(comparison) = comparison {
            put("comparison.md", comparison.markdown().as_bytes())?;
        }
        put(
            "report.html",
            pages::html(self, &shown, comparison).as_bytes(),
        )?;
        let left_out = shown.iter().filter_map(|figure| {
            let reason = figure.svg.as_ref().err()?;
            Some((figure.name.to_owned(), reason.clone()))
        });
        let (left_out, pass) = (left_out.collect(), self.pass());
        Ok(Written {
            files,
            left_out,
            pass,
        })
    }

    /// Every figure, drawn or left out.
    fn figures(&self) -> Vec<Shown> {
        let results: Vec<&ResultFile> = self.results.iter().collect();
        let shown = |figure: &crate::figures::Figure| Shown {
            name: figure.name,
            caption: figure.caption,
            experiments: figure.experiments,
            svg: figure.draw(&results),
        };
        FIGURES.iter().map(shown).collect()
    }
}

/// PASS or FAIL.
pub fn verdict(summary: &Summary) -> &'static str {
    Outcome::of(summary.pass).word()
}

/// The checks that failed.
pub fn failed(summary: &Summary) -> impl Iterator<Item = &Check> {
    summary
        .checks
        .iter()
        .filter(|check| check.outcome == Outcome::Fail)
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a string takes everything");
}

/// All results that lie directly in a folder.
fn results_in(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let fault = |error| ReportError::File {
        path: folder.to_owned(),
        error,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let json = path.extension().is_some_and(|ending| ending == "json");
        if json && path.is_file() && !is_schema(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Whether a file says that it is a schema. One that cannot be read is not: reading it will say why.
fn is_schema(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let says = value.get("$schema").and_then(Value::as_str);
    says.is_some_and(|says| says.contains("json-schema.org"))
}
