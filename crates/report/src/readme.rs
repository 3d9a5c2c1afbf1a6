//! The table of measurements for a README.

use crate::{
    contender::{Contender, contenders},
    error::ReportError,
    format::{show, show_range, show_size, times},
    pages::{DocTable, RichText, markdown_table},
    result::{BaselineStatus, Experiment, ResultFile},
    result_set::ResultSet,
};

/// Amount of detail in a table of measurements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TableDetail {
    /// All measurements and all baselines, with the speed-up of Djinn.
    Full,
    /// The most important measurements, compared with other programs under the same memory budget.
    Short,
}

/// Returns a Markdown table of all measurements of Djinn and of the baselines. The speed-up of Djinn is in
/// brackets; it is below 1 where Djinn is slower.
pub fn measurements_table(set: &ResultSet) -> String {
    let headers = ["Measurement", "Djinn", "Compared with (speed-up of Djinn)"];
    table(set, headers, TableDetail::Full)
}

/// Returns a short Markdown table of the most important measurements, compared with other programs.
pub fn summary_table(set: &ResultSet) -> String {
    let headers = ["Measurement", "Djinn", "Compared with"];
    table(set, headers, TableDetail::Short)
}

fn table(set: &ResultSet, headers: [&str; 3], detail: TableDetail) -> String {
    let mut table = DocTable::new(headers);
    for result in set.results() {
        let rows = match result.experiment {
            Experiment::VirtualMemory => virtual_memory(result, detail),
            Experiment::MemoryPressure => memory_pressure(result, detail),
            Experiment::ResumeLatency => resume_latency(result, detail),
            Experiment::Steering => steering(result, detail),
            Experiment::Agents => agents(result, detail),
        };
        for [name, mut djinn, others] in merged(rows) {
            if !result.summary.pass {
                djinn += " (invalid: checks failed)";
            }
            if result.runs.len() < 2 {
                djinn += " (one run)";
            }
            table
                .rows
                .push([name, djinn, others].map(RichText::from).to_vec());
        }
    }
    markdown_table(&table)
}

/// Merges the rows of the same measurement, so that all baselines share one cell.
fn merged(rows: Vec<ReadmeRow>) -> Vec<[String; 3]> {
    let mut all: Vec<[String; 3]> = Vec::new();
    for row in rows {
        let other = match row.ratio {
            None => row.other.unwrap_or_else(|| NONE.to_owned()),
            Some(ratio) => format!("{} ({ratio})", row.other.unwrap_or_default()),
        };
        match all.last_mut() {
            Some(last) if last[0] == row.name && last[1] == row.djinn => {
                last[2] += &format!("; {other}");
            }
            _ => all.push([row.name, row.djinn, other]),
        }
    }
    all
}

/// Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` by a table.
pub fn replace_between(text: &str, marker: &str, table: &str) -> Result<String, ReportError> {
    let missing = || ReportError::Marker {
        marker: marker.to_owned(),
    };
    let (begin, end) = (
        format!("<!-- {marker}:begin -->"),
        format!("<!-- {marker}:end -->"),
    );
    let from = text.find(&begin).ok_or_else(missing)? + begin.len();
    let to = from + text[from..].find(&end).ok_or_else(missing)?;
    let table = table.trim_matches('\n');
    Ok(format!("{}\n{table}\n{}", &text[..from], &text[to..]))
}

/// Text of a cell without a value.
const NONE: &str = "–";

/// A measurement of Djinn, compared with at most one baseline.
#[derive(Clone)]
struct ReadmeRow {
    /// Name of the measurement.
    name: String,
    /// Value of Djinn.
    djinn: String,
    /// Name and value of the baseline, if there is one.
    other: Option<String>,
    /// Speed-up of Djinn, where both are comparable.
    ratio: Option<String>,
}

impl ReadmeRow {
    /// Makes a row without a baseline.
    fn new(name: String, djinn: String) -> Self {
        let (other, ratio) = (None, None);
        ReadmeRow {
            name,
            djinn,
            other,
            ratio,
        }
    }

    /// Returns the measurement compared with a baseline.
    fn compared_with(&self, other: String, ratio: Option<String>) -> Self {
        ReadmeRow {
            other: Some(other),
            ratio,
            ..self.clone()
        }
    }

    /// Returns the rows of a measurement, or the measurement alone if there are no baselines.
    fn or_alone(self, rows: Vec<ReadmeRow>) -> Vec<ReadmeRow> {
        if rows.is_empty() { vec![self] } else { rows }
    }
}

/// Returns the model and its memory budget: `llama-2-13b f16 in 16 GB`.
fn place(result: &ResultFile) -> String {
    let model = result.short_model();
    match result.budget_mb {
        Some(budget) => format!("{model} in {}", show_size(budget)),
        None => model,
    }
}

fn ours(result: &ResultFile) -> Contender<'_> {
    contenders(result)[0]
}

/// Returns the baselines of a table. The short table omits other modes of Djinn, and programs that hold the
/// whole model in device memory.
fn others(result: &ResultFile, detail: TableDetail) -> impl Iterator<Item = Contender<'_>> {
    let is_djinn = |name: &str| {
        ["djinn", "ring_buffer"]
            .iter()
            .any(|own| name.starts_with(own))
    };
    let is_shown = move |who: &Contender<'_>| {
        detail == TableDetail::Full || !(is_djinn(who.name) || who.has_all_memory())
    };
    contenders(result).into_iter().skip(1).filter(is_shown)
}

/// Returns the rows of a duration: Djinn, compared with every baseline that measured it.
fn durations(result: &ResultFile, metric: &str, name: &str, detail: TableDetail) -> Vec<ReadmeRow> {
    let Some(mine) = ours(result).stats(metric) else {
        return Vec::new();
    };
    let name = format!("{name}, {}", place(result));
    let row = ReadmeRow::new(name, show(mine.median, "ms"));
    let compared = |who: Contender<'_>| {
        let stats = who.stats(metric)?;
        let text = format!("{}: {}", who.label(), show(stats.median, "ms"));
        // A contender with the whole model in device memory is not comparable.
        let is_comparable = detail == TableDetail::Full && !who.has_all_memory();
        let ratio = is_comparable.then(|| times(stats.median / mine.median));
        Some(row.compared_with(text, ratio))
    };
    let rows = others(result, detail).filter_map(compared).collect();
    row.clone().or_alone(rows)
}

fn virtual_memory(result: &ResultFile, detail: TableDetail) -> Vec<ReadmeRow> {
    let has_peers = others(result, detail).any(|who| who.stats("per_token_ms").is_some());
    let mut rows = Vec::new();
    if has_peers || detail == TableDetail::Full {
        let per_token = durations(result, "per_token_ms", "time per token", detail);
        let first_token = durations(result, "first_token_ms", "time to first token", detail);
        rows.extend(per_token.into_iter().chain(first_token));
    }
    if has_peers && detail == TableDetail::Short {
        return rows;
    }
    let link = ours(result)
        .stats("link_gbps")
        .zip(result.environment.link_gbps);
    rows.extend(link.map(|(mine, idle)| {
        let link = result.environment.link.as_deref().unwrap_or("link");
        let name = format!("link throughput, {}", place(result));
        let text = format!("{link} without compute: {}", show(idle, "GB/s"));
        let share = show(mine.median / idle, "share");
        ReadmeRow::new(name, show(mine.median, "GB/s")).compared_with(text, Some(share))
    }));
    rows
}

fn memory_pressure(result: &ResultFile, detail: TableDetail) -> Vec<ReadmeRow> {
    let count = |who: &Contender<'_>, metric| who.stats(metric).map(|stats| stats.median);
    let mine = ours(result);
    let (Some(started), Some(done)) =
        (count(&mine, "sessions"), count(&mine, "sessions_completed"))
    else {
        return Vec::new();
    };
    let sessions = format!("{} concurrent sessions", show(started, ""));
    let row = ReadmeRow::new(
        format!("{sessions}, {}", place(result)),
        format!("{} of {} complete", show(done, ""), show(started, "")),
    );
    let compared = |who: Contender<'_>| {
        let theirs = count(&who, "sessions_completed");
        let text = match (who.status, theirs) {
            // The table shows where the baseline stopped; the analysis shows the allocator message.
            (BaselineStatus::OutOfMemory, _) => {
                let reason = who.reason.unwrap_or_default();
                let place = reason.split(": ").next().unwrap_or_default();
                format!("out of memory {place}")
            }
            (BaselineStatus::Ran, Some(theirs)) => format!("{} complete", show(theirs, "")),
            _ => return None,
        };
        Some(row.compared_with(format!("{}: {text}", who.label()), None))
    };
    let completed = others(result, detail).filter_map(compared).collect();
    let mut rows = row.clone().or_alone(completed);
    if let Some(mine) = mine
        .stats("total_time_ms")
        .filter(|_| detail == TableDetail::Full)
    {
        let name = format!("{sessions}, total time, {}", place(result));
        let row = ReadmeRow::new(name, show(mine.median, "ms"));
        let compared = |who: Contender<'_>| {
            let stats = who.stats("total_time_ms")?;
            let text = format!("{}: {}", who.label(), show(stats.median, "ms"));
            Some(row.compared_with(text, Some(times(stats.median / mine.median))))
        };
        let ran = others(result, detail).filter(|who| who.status == BaselineStatus::Ran);
        rows.extend(ran.filter_map(compared));
    }
    rows
}

/// Returns the position and median of each point of a series.
fn series(who: &Contender<'_>, name: &str) -> Vec<(f64, f64)> {
    let points = who
        .summary
        .points
        .iter()
        .filter(|point| point.series == name);
    points.map(|point| (point.x, point.ms.median)).collect()
}

/// Returns the smallest and the largest value; `None` for no values.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

fn resume_latency(result: &ResultFile, detail: TableDetail) -> Vec<ReadmeRow> {
    let locations = [
        ("resume", "KV on the device"),
        ("resume_from_host", "KV in host memory"),
    ];
    let shown = if detail == TableDetail::Full { 2 } else { 1 };
    let rows = locations.into_iter().take(shown);
    rows.flat_map(|(name, kv)| resume_rows(result, name, kv, detail))
        .collect()
}

/// Returns the rows of one series of resume times.
fn resume_rows(result: &ResultFile, name: &str, kv: &str, detail: TableDetail) -> Vec<ReadmeRow> {
    let points = series(&ours(result), name);
    let (Some((first, last)), Some((low, high))) = (
        range(points.iter().map(|(x, _)| *x)),
        range(points.iter().map(|(_, ms)| *ms)),
    ) else {
        return Vec::new();
    };
    let layers = show_range(first, last, "");
    let row = ReadmeRow::new(
        format!("resume at layer {layers}, {kv}, {}", place(result)),
        show_range(low, high, "ms"),
    );
    let compared = |who: Contender<'_>| {
        let theirs = series(&who, "resume");
        let (low, high) = range(theirs.iter().map(|(_, ms)| *ms))?;
        let both = points.iter().filter_map(|(x, ms)| {
            let (_, their_ms) = theirs.iter().find(|(at, _)| at == x)?;
            Some(their_ms / ms)
        });
        let ratio = range(both).map(|(low, high)| match times(low) == times(high) {
            true => times(low),
            false => format!("{}–{}", times(low).trim_end_matches(" ×"), times(high)),
        });
        let text = format!("{}: {}", who.label(), show_range(low, high, "ms"));
        // A manual offload copies the whole KV cache before the next block; Djinn copies only the part that
        // the block needs. Their times from host memory are not comparable.
        let is_comparable =
            detail == TableDetail::Full && (name == "resume" || who.name != "manual_offload");
        Some(row.compared_with(text, ratio.filter(|_| is_comparable)))
    };
    let rows = others(result, detail).filter_map(compared).collect();
    row.clone().or_alone(rows)
}

fn steering(result: &ResultFile, detail: TableDetail) -> Vec<ReadmeRow> {
    let Some(overhead) = ours(result).stats("overhead") else {
        return durations(
            result,
            "per_token_ms",
            "time per token with steering",
            detail,
        );
    };
    let name = format!("steering overhead per token, {}", place(result));
    let row = ReadmeRow::new(name, show(overhead.median, "share"));
    let compared = |who: Contender<'_>| {
        let theirs = who.stats("overhead")?;
        let text = format!("{}: {}", who.label(), show(theirs.median, "share"));
        Some(row.compared_with(text, None))
    };
    let rows = others(result, detail).filter_map(compared).collect();
    row.clone().or_alone(rows)
}

fn agents(result: &ResultFile, detail: TableDetail) -> Vec<ReadmeRow> {
    let omitted = if detail == TableDetail::Full { 0 } else { 1 };
    let rows = ["p50", "p99"].into_iter().skip(omitted);
    rows.flat_map(|name| agent_rows(result, name, detail))
        .collect()
}

/// Returns the rows of one percentile, at the largest number of agents.
fn agent_rows(result: &ResultFile, percentile: &str, detail: TableDetail) -> Vec<ReadmeRow> {
    let points = series(&ours(result), percentile);
    let Some((agents, ms)) = points.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Vec::new();
    };
    let name = format!(
        "next token with {} agents, {percentile}, {}",
        show(agents, ""),
        place(result)
    );
    let row = ReadmeRow::new(name, show(ms, "ms"));
    let compared = |who: Contender<'_>| {
        let theirs = series(&who, percentile);
        let (_, theirs) = theirs.into_iter().find(|(x, _)| *x == agents)?;
        let text = format!("{}: {}", who.label(), show(theirs, "ms"));
        let ratio = (detail == TableDetail::Full).then(|| times(theirs / ms));
        Some(row.compared_with(text, ratio))
    };
    let rows = others(result, detail).filter_map(compared).collect();
    row.clone().or_alone(rows)
}

#[cfg(test)]
mod tests {
    use super::replace_between;
    use crate::error::ReportError;

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let text = "a\n<!-- T:begin -->\nold\n<!-- T:end -->\nb\n";
        let new = replace_between(text, "T", "| x |\n").unwrap();
        assert_eq!(new, "a\n<!-- T:begin -->\n| x |\n<!-- T:end -->\nb\n");
        assert_eq!(replace_between(&new, "T", "| x |").unwrap(), new);
        for broken in ["", "<!-- T:begin -->", "<!-- T:end --><!-- T:begin -->"] {
            let error = replace_between(broken, "T", "x").unwrap_err();
            assert!(
                matches!(&error, ReportError::Marker { marker } if marker == "T"),
                "{error}"
            );
        }
    }
}
