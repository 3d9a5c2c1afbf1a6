//! `djinn report`

use std::{fs, path::Path};

use djinn_report::{
    Comparison, ResultSet, compare, measurements_table, replace_between, summary_table,
};

use crate::{
    args::ReportArgs,
    failure::{Failure, say},
    progress::Doing,
};

/// Name of the markers around the full table of measurements.
const MEASUREMENTS: &str = "measurements";
/// Name of the markers around the short table of measurements.
const SUMMARY: &str = "summary";

/// Figures, tables and a verdict.
pub fn report(args: &ReportArgs) -> Result<(), Failure> {
    let set = ResultSet::read(&args.results)?;
    let comparison = match &args.against[..] {
        [] => None,
        old => Some(compare(&ResultSet::read(old)?, &set)),
    };
    let doing = Doing::new("drawing");
    let written = set.write(&args.output, comparison.as_ref(), &mut |what| {
        doing.now(what.to_owned());
    })?;
    drop(doing);
    if let Some(path) = &args.table {
        put_table(path, &set)?;
    }
    let mut text = set.verdict_table();
    if let Some(comparison) = &comparison {
        text += &told(comparison);
    }
    for (figure, why) in &written.left_out {
        text += &format!("{figure} is not drawn: {why}\n");
    }
    let output = args.output.display();
    let count = written.files.len();
    text += &format!("{count} files in {output}; read {output}/report.html or analysis.md\n");
    say(&text)?;
    match written.pass {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

fn told(comparison: &Comparison) -> String {
    format!("\n{}\n", comparison.terminal().trim_end())
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
