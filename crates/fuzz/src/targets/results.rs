//! Result files of experiments, and the reports made from them.

use djinn_report::{ResultFile, ResultSet, compare, judge, measurements_table, summary_table};

use crate::scratch;

/// Reads a result file and makes its report.
pub fn run(data: &[u8]) {
    let folder = scratch::folder();
    scratch::write(folder.path(), "r.json", data);
    let path = folder.path().join("r.json");
    let Ok(file) = ResultFile::read(&path) else {
        return;
    };
    let _ = judge(&file);
    let set = ResultSet::of(vec![file]);
    let comparison = compare(&set, &set);
    let _ = (
        set.verdict_table(),
        measurements_table(&set),
        summary_table(&set),
    );
    let output = folder.path().join("report");
    set.write(&output, Some(&comparison), &mut |_| {})
        .expect("a valid result has a report");
}
