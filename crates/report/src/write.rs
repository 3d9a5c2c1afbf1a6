//! Writing of a report: figures and pages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    compare::Comparison,
    draw,
    error::ReportError,
    figures::{self, MissingData},
    pages,
    result::ResultFile,
    result_set::ResultSet,
};

/// The files of a written report, and its verdict.
#[derive(Clone, Debug)]
pub struct WrittenReport {
    /// Paths of all files, in the order in which they were written.
    pub files: Vec<PathBuf>,
    /// Names of the figures that were left out, each with the reason.
    pub left_out: Vec<(String, MissingData)>,
    /// Whether no check of any result failed.
    pub pass: bool,
}

impl ResultSet {
    /// Writes figures and pages into a folder, with a comparison if there is one. Calls `progress` with
    /// the name of each step.
    pub fn write(
        &self,
        output: &Path,
        comparison: Option<&Comparison>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<WrittenReport, ReportError> {
        let file_error = |path: &Path, error| ReportError::File {
            path: path.to_owned(),
            error,
        };
        fs::create_dir_all(output).map_err(|error| file_error(output, error))?;
        let mut files = Vec::new();
        let mut put = |name: &str, bytes: &[u8]| {
            let path = output.join(name);
            fs::write(&path, bytes).map_err(|error| file_error(&path, error))?;
            files.push(path);
            Ok::<(), ReportError>(())
        };
        let results: Vec<&ResultFile> = self.results().collect();
        let drawn = figures::draw_all(&results);
        for figure in &drawn {
            let Ok(drawing) = &figure.drawing else {
                continue;
            };
            progress(&format!("drawing {}", figure.name));
            let png = draw::png(drawing).map_err(|error| ReportError::Figure {
                figure: figure.name.to_owned(),
                reason: error.to_string(),
            })?;
            put(
                &format!("{}.svg", figure.name),
                draw::svg(drawing).as_bytes(),
            )?;
            put(&format!("{}.png", figure.name), &png)?;
            put(&format!("{}.pdf", figure.name), &draw::pdf(drawing))?;
        }
        progress("writing pages");
        put("analysis.md", pages::markdown(self, &drawn).as_bytes())?;
        if let Some(comparison) = comparison {
            put("comparison.md", comparison.markdown().as_bytes())?;
        }
        let html = pages::html(self, &drawn, comparison);
        put("report.html", html.as_bytes())?;
        let left_out = drawn.iter().filter_map(|figure| {
            let reason = figure.drawing.as_ref().err()?;
            Some((figure.name.to_owned(), reason.clone()))
        });
        Ok(WrittenReport {
            left_out: left_out.collect(),
            files,
            pass: self.pass(),
        })
    }
}
