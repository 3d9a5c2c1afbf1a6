//! What was measured, as a table for a README.

use crate::{
    Experiment, ReportError, ResultFile, Set, Status,
    contender::{Contender, contenders},
    number::{show, show_range, show_size, times},
    pages::{Line, Table, markdown_table},
};

/// A Markdown table of what was measured, beside what others do: what | measured | beside. In brackets
/// stands how many times as fast ours is, below 1 where it is slower.
pub fn measurements_table(set: &Set) -> String {
    let mut table = Table::new(["what", "measured", "beside (ours is so many times as fast)"]);
    for result in set.results() {
        let rows = match result.experiment {
            Experiment::VirtualMemory => virtual_memory(result),
            Experiment::MemoryPressure => memory_pressure(result),
            Experiment::ResumeLatency => resume_latency(result),
            Experiment::Steering => steering(result),
            Experiment::Agents => agents(result),
        };
        for [what, mut measured, beside] in together(rows) {
            if !result.summary.pass {
                measured += " (not to be trusted: checks failed)";
            }
            if result.runs.len() < 2 {
                measured += " (one run)";
            }
            table
                .rows
                .push([what, measured, beside].map(Line::from).to_vec());
        }
    }
    markdown_table(&table)
}

/// One row for each thing, with everybody beside it.
fn together(rows: Vec<Row>) -> Vec<[String; 3]> {
    let mut all: Vec<[String; 3]> = Vec::new();
    for [what, measured, beside, ratio] in rows {
        let beside = match ratio == NONE {
            true => beside,
            false => format!("{beside} ({ratio})"),
        };
        match all.last_mut() {
            Some(last) if last[0] == what && last[1] == measured => {
                last[2] += &format!("; {beside}");
            }
            _ => all.push([what, measured, beside]),
        }
    }
    all
}

/// Puts a table between `<!-- NAME:begin -->` and `<!-- NAME:end -->`, and leaves all else as it is.
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

type Row = [String; 4];
const NONE: &str = "–";

/// Where it ran: the model, and the memory it had.
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

fn others(result: &ResultFile) -> impl Iterator<Item = Contender<'_>> {
    contenders(result).into_iter().skip(1)
}

/// A time beside that of everyone who has it; alone where nobody has.
fn beside(result: &ResultFile, metric: &str, what: &str) -> Vec<Row> {
    let Some(mine) = ours(result).stats(metric) else {
        return Vec::new();
    };
    let (what, measured) = (
        format!("{what}, {}", place(result)),
        show(mine.median, "ms"),
    );
    let row = |who: Contender<'_>| {
        let stats = who.stats(metric)?;
        let text = format!("{}: {}", who.label(), show(stats.median, "ms"));
        Some([
            what.clone(),
            measured.clone(),
            text,
            // Whoever has all memory is no peer of one that has not.
            match who.has_all_memory() {
                true => NONE.to_owned(),
                false => times(stats.median / mine.median),
            },
        ])
    };
    let rows: Vec<Row> = others(result).filter_map(row).collect();
    match rows.is_empty() {
        true => vec![[what, measured, NONE.to_owned(), NONE.to_owned()]],
        false => rows,
    }
}

fn virtual_memory(result: &ResultFile) -> Vec<Row> {
    let mut rows = beside(result, "per_token_ms", "a token");
    rows.extend(beside(result, "first_token_ms", "the first token"));
    let link = ours(result)
        .stats("link_gbps")
        .zip(result.environment.link_gbps);
    rows.extend(link.map(|(mine, alone)| {
        let name = result.environment.link.as_deref().unwrap_or("the link");
        [
            format!("weights over the link, {}", place(result)),
            show(mine.median, "GB/s"),
            format!("{name} alone: {}", show(alone, "GB/s")),
            show(mine.median / alone, "share"),
        ]
    }));
    rows
}

fn memory_pressure(result: &ResultFile) -> Vec<Row> {
    let count = |who: &Contender<'_>, metric| who.stats(metric).map(|stats| stats.median);
    let mine = ours(result);
    let (Some(begun), Some(done)) = (count(&mine, "sessions"), count(&mine, "sessions_completed"))
    else {
        return Vec::new();
    };
    let what = format!("{} sessions at once, {}", show(begun, ""), place(result));
    let measured = format!("{} of {} complete", show(done, ""), show(begun, ""));
    let row = |who: Contender<'_>| {
        let theirs = count(&who, "sessions_completed");
        let text = match (who.status, theirs) {
            // Where; what exactly its allocator said is in the analysis.
            (Status::OutOfMemory, _) => {
                let reason = who.reason.unwrap_or_default();
                let place = reason.split(": ").next().unwrap_or_default();
                format!("out of memory {place}")
            }
            (Status::Ran, Some(theirs)) => format!("{} complete", show(theirs, "")),
            _ => return None,
        };
        let text = format!("{}: {text}", who.label());
        Some([what.clone(), measured.clone(), text, NONE.to_owned()])
    };
    let mut rows: Vec<Row> = others(result).filter_map(row).collect();
    if rows.is_empty() {
        rows.push([what, measured, NONE.to_owned(), NONE.to_owned()]);
    }
    let whole = format!("the same, from the first to the last, {}", place(result));
    if let Some(mine) = mine.stats("total_time_ms") {
        let measured = show(mine.median, "ms");
        let row = |who: Contender<'_>| {
            let stats = who.stats("total_time_ms")?;
            let text = format!("{}: {}", who.label(), show(stats.median, "ms"));
            let ratio = times(stats.median / mine.median);
            Some([whole.clone(), measured.clone(), text, ratio])
        };
        let ran = others(result).filter(|who| who.status == Status::Ran);
        rows.extend(ran.filter_map(row));
    }
    rows
}

/// Medians of a series, by place.
fn series(who: &Contender<'_>, name: &str) -> Vec<(f64, f64)> {
    let points = who
        .summary
        .points
        .iter()
        .filter(|point| point.series == name);
    points.map(|point| (point.x, point.ms.median)).collect()
}

/// From the smallest to the largest.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

fn resume_latency(result: &ResultFile) -> Vec<Row> {
    let mine = ours(result);
    let mut rows = Vec::new();
    for (name, kv) in [
        ("resume", "KV on the device"),
        ("resume_from_host", "KV in host memory"),
    ] {
        let points = series(&mine, name);
        let (Some((first, last)), Some((low, high))) = (
            ends(points.iter().map(|(x, _)| *x)),
            ends(points.iter().map(|(_, ms)| *ms)),
        ) else {
            continue;
        };
        let layers = show_range(first, last, "");
        let what = format!("resume at layer {layers}, {kv}, {}", place(result));
        let measured = show_range(low, high, "ms");
        let before = rows.len();
        for who in others(result) {
            let theirs = series(&who, "resume");
            let Some((low, high)) = ends(theirs.iter().map(|(_, ms)| *ms)) else {
                continue;
            };
            let both = points.iter().filter_map(|(x, ms)| {
                let (_, beside) = theirs.iter().find(|(at, _)| at == x)?;
                Some(beside / ms)
            });
            let ratio = ends(both).map(|(low, high)| match times(low) == times(high) {
                true => times(low),
                false => format!("{}–{}", times(low).trim_end_matches(" ×"), times(high)),
            });
            let text = format!("{}: {}", who.label(), show_range(low, high, "ms"));
            // By hand everything comes back before the next block, and with Djinn what that block needs.
            let alike = name == "resume" || who.name != "manual_offload";
            let ratio = ratio.filter(|_| alike).unwrap_or(NONE.to_owned());
            rows.push([what.clone(), measured.clone(), text, ratio]);
        }
        if rows.len() == before {
            rows.push([what, measured, NONE.to_owned(), NONE.to_owned()]);
        }
    }
    rows
}

fn steering(result: &ResultFile) -> Vec<Row> {
    let mine = ours(result);
    let Some(overhead) = mine.stats("overhead") else {
        return beside(result, "per_token_ms", "a token of a steered model");
    };
    let what = format!("added to a token by steering, {}", place(result));
    let measured = show(overhead.median, "share");
    let row = |who: Contender<'_>| {
        let theirs = who.stats("overhead")?;
        let text = format!("{}: {}", who.label(), show(theirs.median, "share"));
        Some([what.clone(), measured.clone(), text, NONE.to_owned()])
    };
    let rows: Vec<Row> = others(result).filter_map(row).collect();
    match rows.is_empty() {
        true => vec![[what, measured, NONE.to_owned(), NONE.to_owned()]],
        false => rows,
    }
}

fn agents(result: &ResultFile) -> Vec<Row> {
    let mine = ours(result);
    let mut rows = Vec::new();
    for (name, words) in [("p50", "half of the time"), ("p99", "99 % of the time")] {
        let points = series(&mine, name);
        let Some((agents, ms)) = points.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)) else {
            continue;
        };
        let what = format!(
            "next token of one of {} agents, {words}, {}",
            show(agents, ""),
            place(result)
        );
        let measured = format!("at most {}", show(ms, "ms"));
        let before = rows.len();
        for who in others(result) {
            let theirs = series(&who, name).into_iter().find(|(x, _)| *x == agents);
            let Some((_, theirs)) = theirs else { continue };
            let text = format!("{}: {}", who.label(), show(theirs, "ms"));
            rows.push([what.clone(), measured.clone(), text, times(theirs / ms)]);
        }
        if rows.len() == before {
            rows.push([what, measured, NONE.to_owned(), NONE.to_owned()]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::replace_between;

    #[test]
    fn only_what_is_between_changes() {
        let text = "a\n<!-- T:begin -->\nold\n<!-- T:end -->\nb\n";
        let new = replace_between(text, "T", "| x |\n").unwrap();
        assert_eq!(new, "a\n<!-- T:begin -->\n| x |\n<!-- T:end -->\nb\n");
        assert_eq!(replace_between(&new, "T", "| x |").unwrap(), new);
        for broken in ["", "<!-- T:begin -->", "<!-- T:end --><!-- T:begin -->"] {
            let error = replace_between(broken, "T", "x").unwrap_err().to_string();
            assert!(error.contains("T:begin"), "{error}");
        }
    }
}
