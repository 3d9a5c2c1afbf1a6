//! `djinn report`

use std::{fs, path::Path};

use djinn_report::{ResultSet, compare, measurements_table, replace_between, summary_table};
use djinn_terminal::{Failure, say};

use crate::{args::ReportArgs, progress::Spinner};

/// Name of the markers around the full table of measurements.
const MEASUREMENTS: &str = "measurements";
/// Name of the markers around the short table of measurements.
const SUMMARY: &str = "summary";

/// Draws figures, writes tables and judges results.
pub fn report(args: &ReportArgs) -> Result<(), Failure> {
    let set = ResultSet::read(&args.results)?;
    let comparison = match &args.against[..] {
        [] => None,
        old => Some(compare(&ResultSet::read(old)?, &set)),
    };
    let spinner = Spinner::new("drawing");
    let written = set.write(&args.output, comparison.as_ref(), &mut |what| {
        spinner.show(what.to_owned());
    })?;
    drop(spinner);
    if let Some(path) = &args.table {
        put_table(path, &set)?;
    }
    let mut text = set.verdict_table();
    if let Some(comparison) = &comparison {
        text += &format!("\n{}\n", comparison.terminal().trim_end());
    }
    for (figure, why) in &written.left_out {
        text += &format!("{figure} was not drawn: {why}\n");
    }
    let output = args.output.display();
    let count = written.files.len();
    text += &format!("{count} files in {output}; open {output}/report.html or analysis.md\n");
    say(&text)?;
    match written.pass {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

/// Writes a table of measurements into a file: the short one between `summary` markers, the full one between
/// `measurements` markers.
fn put_table(path: &Path, set: &ResultSet) -> Result<(), Failure> {
    let fault = |error: std::io::Error| Failure::Message(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(fault)?;
    let text = match text.contains(&format!("<!-- {SUMMARY}:begin -->")) {
        true => replace_between(&text, SUMMARY, &summary_table(set))?,
        false => replace_between(&text, MEASUREMENTS, &measurements_table(set))?,
    };
    fs::write(path, text).map_err(fault)
}
