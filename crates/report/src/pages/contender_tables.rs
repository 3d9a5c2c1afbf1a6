//! Tables that compare the contenders of a result with Djinn.

use super::document::{DocBlock, DocTable, RichText};
use crate::{
    contender::{Contender, contenders},
    format::{show_stats, times},
    result::{Better, Experiment, METRICS, Metric, PointStats, ResultFile, Stats},
};

/// Whether a metric is irrelevant to an experiment, although its runs contain it.
fn is_irrelevant(experiment: Experiment, metric: &Metric) -> bool {
    match experiment {
        Experiment::Steering => false,
        _ => matches!(metric.key, "output_change" | "tokens_changed" | "overhead"),
    }
}

/// Returns the tables, and a list of the metrics in which a baseline is better than Djinn.
pub fn blocks(result: &ResultFile) -> Vec<DocBlock> {
    let everyone = contenders(result);
    let mut blocks = vec![DocBlock::Table(numbers(result, &everyone))];
    blocks.extend(points(&everyone));
    blocks.extend(ratios(&everyone));
    blocks.extend(better(&everyone));
    blocks
}

/// Makes the table of metrics by contender; a dash stands for a metric that was not measured.
fn numbers(result: &ResultFile, everyone: &[Contender<'_>]) -> DocTable {
    let ran: Vec<&Contender<'_>> = everyone
        .iter()
        .filter(|who| !who.summary.metrics.is_empty())
        .collect();
    let mut table = DocTable::new(["metric"]);
    table
        .head
        .extend(ran.iter().map(|who| RichText::from(who.label())));
    for metric in METRICS
        .iter()
        .filter(|metric| !is_irrelevant(result.experiment, metric))
    {
        if ran.iter().all(|who| who.stats(metric.key).is_none()) {
            continue;
        }
        let cell = |who: &&Contender<'_>| match who.stats(metric.key) {
            Some(stats) => RichText::from(show_stats(stats, metric.unit)),
            None => RichText::from("–"),
        };
        let mut row = vec![RichText::from(metric.title)];
        row.extend(ran.iter().map(cell));
        table.rows.push(row);
    }
    table
}

/// Makes the table of measured points; `None` if no contender has points.
fn points(everyone: &[Contender<'_>]) -> Option<DocBlock> {
    let mut columns: Vec<(&Contender<'_>, &str)> = Vec::new();
    let mut places: Vec<f64> = Vec::new();
    for who in everyone {
        for point in &who.summary.points {
            if !columns
                .iter()
                .any(|(other, series)| other.name == who.name && *series == point.series)
            {
                columns.push((who, &point.series));
            }
            places.push(point.x);
        }
    }
    places.sort_by(f64::total_cmp);
    places.dedup();
    if columns.is_empty() {
        return None;
    }
    let mut table = DocTable::new(["layer or agents"]);
    let head = |(who, series): &(&Contender<'_>, &str)| {
        RichText::from(format!("{}, {series}", who.label()))
    };
    table.head.extend(columns.iter().map(head));
    for x in places {
        let mut row = vec![RichText::from(x.to_string())];
        row.extend(
            columns
                .iter()
                .map(|(who, series)| match point(who, series, x) {
                    Some(stats) => RichText::from(show_stats(stats, "ms")),
                    None => RichText::from("–"),
                }),
        );
        table.rows.push(row);
    }
    Some(DocBlock::Table(table))
}

/// Returns the statistics of a contender at a point.
fn point<'a>(who: &Contender<'a>, series: &str, x: f64) -> Option<&'a Stats> {
    let wanted = |point: &&PointStats| point.series == series && point.x == x;
    who.summary
        .points
        .iter()
        .find(wanted)
        .map(|point| &point.ms)
}

/// Returns the ratio by which Djinn is better: above 1 if Djinn is better, `None` if a value is zero.
fn advantage(better: Better, ours: f64, other: f64) -> Option<f64> {
    let ratio = match better {
        Better::Lower => other / ours,
        Better::Higher => ours / other,
        Better::Neither => return None,
    };
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// Describes a ratio from the view of the baseline: `3.20 × slower`.
fn described(metric: &Metric, ratio: f64) -> String {
    let (worse, better) = match (metric.unit, metric.better) {
        ("ms", _) => ("slower", "faster"),
        (_, Better::Higher) => ("less", "more"),
        _ => ("more", "less"),
    };
    match ratio {
        ratio if times(ratio) == times(1.0) => "the same".to_owned(),
        ratio if ratio > 1.0 => format!("{} {worse}", times(ratio)),
        ratio => format!("{} {better}", times(1.0 / ratio)),
    }
}

/// Whether both contenders did the same work for a metric. Whole runs are comparable only if they
/// generated the same number of tokens in the same number of sessions.
fn is_comparable(ours: &Contender<'_>, other: &Contender<'_>, metric: &Metric) -> bool {
    let same = |key: &str| match (ours.stats(key), other.stats(key)) {
        (Some(mine), Some(theirs)) => mine.median == theirs.median,
        (None, None) => true,
        _ => false,
    };
    let of_points = !ours.summary.points.is_empty();
    metric.key != "total_time_ms" || (!of_points && same("tokens") && same("sessions_completed"))
}

/// Returns the ratio to Djinn for every comparable metric of every baseline.
fn ratios_to_djinn<'a>(
    everyone: &'a [Contender<'a>],
) -> Vec<(&'static Metric, &'a Contender<'a>, f64)> {
    let Some((ours, others)) = everyone.split_first() else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for metric in METRICS
        .iter()
        .filter(|metric| metric.better != Better::Neither)
    {
        for other in others
            .iter()
            .filter(|other| is_comparable(ours, other, metric))
        {
            let both = ours.stats(metric.key).zip(other.stats(metric.key));
            let ratio = both.and_then(|(a, b)| advantage(metric.better, a.median, b.median));
            all.extend(ratio.map(|ratio| (metric, other, ratio)));
        }
    }
    all
}

/// Makes the table of ratios to Djinn.
fn ratios(everyone: &[Contender<'_>]) -> Vec<DocBlock> {
    let all = ratios_to_djinn(everyone);
    let others: Vec<&Contender<'_>> = everyone
        .iter()
        .filter(|who| all.iter().any(|(_, other, _)| other.name == who.name))
        .collect();
    if others.is_empty() {
        return Vec::new();
    }
    let mut table = DocTable::new(["compared with Djinn"]);
    table
        .head
        .extend(others.iter().map(|who| RichText::from(who.label())));
    for metric in METRICS {
        if !all.iter().any(|(other, _, _)| other.key == metric.key) {
            continue;
        }
        let mut row = vec![RichText::from(metric.title)];
        for who in &others {
            let found = all
                .iter()
                .find(|(other, by, _)| other.key == metric.key && by.name == who.name);
            row.push(RichText::from(
                found.map_or("–".to_owned(), |(_, _, ratio)| described(metric, *ratio)),
            ));
        }
        table.rows.push(row);
    }
    vec![DocBlock::Table(table)]
}

/// Lists the metrics in which a baseline is better than Djinn.
fn better(everyone: &[Contender<'_>]) -> Option<DocBlock> {
    let (ours, others) = everyone.split_first()?;
    let all = ratios_to_djinn(everyone);
    let line = |other: &Contender<'_>| {
        let of_other = all
            .iter()
            .filter(|(_, by, ratio)| by.name == other.name && *ratio < 1.0);
        let numbers =
            of_other.map(|(metric, _, ratio)| (metric.title.to_owned(), described(metric, *ratio)));
        let faster = |mine: &PointStats| {
            let theirs = point(other, &mine.series, mine.x)?.median;
            let ratio =
                (theirs > 0.0 && theirs < mine.ms.median).then(|| mine.ms.median / theirs)?;
            Some((
                format!("{} at {}", mine.series, mine.x),
                format!("{} faster", times(ratio)),
            ))
        };
        let points = ours.summary.points.iter().filter_map(faster);
        let all = numbers
            .chain(points)
            .filter(|(_, words)| words != "the same");
        let all: Vec<String> = all
            .map(|(metric, words)| format!("{metric} {words}"))
            .collect();
        let strong = RichText::default().strong(format!("{} is better", other.label()));
        (!all.is_empty()).then(|| strong.and(format!(" than Djinn in: {}.", all.join(", "))))
    };
    let lines: Vec<RichText> = others.iter().filter_map(line).collect();
    (!lines.is_empty()).then_some(DocBlock::List(lines))
}
