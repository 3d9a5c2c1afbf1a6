//! Contenders beside one another: their numbers, and how many times better or worse than ours.

use super::document::{Block, Line, Table};
use crate::{
    Better, Experiment, METRICS, Metric, PointStats, ResultFile, Stats,
    contender::{Contender, contenders},
    number::{show_stats, times},
};

/// Numbers that are of every run of an experiment, but say little there.
fn aside(experiment: Experiment, metric: &Metric) -> bool {
    match experiment {
        Experiment::Steering => false,
        _ => matches!(metric.key, "output_change" | "tokens_changed" | "overhead"),
    }
}

/// Tables and, where a peer is better, sentences that say so.
pub fn blocks(result: &ResultFile) -> Vec<Block> {
    let everyone = contenders(result);
    let mut blocks = vec![Block::Table(numbers(result, &everyone))];
    blocks.extend(points(&everyone));
    blocks.extend(ratios(&everyone));
    blocks.extend(better(&everyone));
    blocks
}

/// Metrics down, contenders across: who took part without a number has a dash.
fn numbers(result: &ResultFile, everyone: &[Contender<'_>]) -> Table {
    let ran: Vec<&Contender<'_>> = everyone
        .iter()
        .filter(|who| !who.summary.metrics.is_empty())
        .collect();
    let mut table = Table::new(["metric"]);
    table
        .head
        .extend(ran.iter().map(|who| Line::from(who.label())));
    for metric in METRICS
        .iter()
        .filter(|metric| !aside(result.experiment, metric))
    {
        if ran.iter().all(|who| who.stats(metric.key).is_none()) {
            continue;
        }
        let cell = |who: &&Contender<'_>| match who.stats(metric.key) {
            Some(stats) => Line::from(show_stats(stats, metric.unit)),
            None => Line::from("–"),
        };
        let mut row = vec![Line::from(metric.title)];
        row.extend(ran.iter().map(cell));
        table.rows.push(row);
    }
    table
}

/// What was measured at several places.
fn points(everyone: &[Contender<'_>]) -> Option<Block> {
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
    let mut table = Table::new(["at"]);
    let head =
        |(who, series): &(&Contender<'_>, &str)| Line::from(format!("{}, {series}", who.label()));
    table.head.extend(columns.iter().map(head));
    for x in places {
        let mut row = vec![Line::from(x.to_string())];
        row.extend(
            columns
                .iter()
                .map(|(who, series)| match point(who, series, x) {
                    Some(stats) => Line::from(show_stats(stats, "ms")),
                    None => Line::from("–"),
                }),
        );
        table.rows.push(row);
    }
    Some(Block::Table(table))
}

/// What a contender came to at a place.
pub fn point<'a>(who: &Contender<'a>, series: &str, x: f64) -> Option<&'a Stats> {
    let wanted = |point: &&PointStats| point.series == series && point.x == x;
    who.summary
        .points
        .iter()
        .find(wanted)
        .map(|point| &point.ms)
}

/// How many times as good ours is, above 1 where ours is better; nothing where one of both is zero.
pub fn advantage(better: Better, ours: f64, other: f64) -> Option<f64> {
    let ratio = match better {
        Better::Lower => other / ours,
        Better::Higher => ours / other,
        Better::Neither => return None,
    };
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// A ratio in words: `3.20 × slower`.
fn said(metric: &Metric, ratio: f64) -> String {
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

/// Whether a number is of the same work: whole runs are where as many tokens were generated in them, by
/// as many sessions.
fn alike(ours: &Contender<'_>, other: &Contender<'_>, metric: &Metric) -> bool {
    let same = |key: &str| match (ours.stats(key), other.stats(key)) {
        (Some(mine), Some(theirs)) => mine.median == theirs.median,
        (None, None) => true,
        _ => false,
    };
    let of_points = !ours.summary.points.is_empty();
    metric.key != "total_time_ms" || (!of_points && same("tokens") && same("sessions_completed"))
}

/// Every number that can be held against ours.
fn against<'a>(everyone: &'a [Contender<'a>]) -> Vec<(&'static Metric, &'a Contender<'a>, f64)> {
    let Some((ours, others)) = everyone.split_first() else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for metric in METRICS
        .iter()
        .filter(|metric| metric.better != Better::Neither)
    {
        for other in others.iter().filter(|other| alike(ours, other, metric)) {
            let both = ours.stats(metric.key).zip(other.stats(metric.key));
            let ratio = both.and_then(|(a, b)| advantage(metric.better, a.median, b.median));
            all.extend(ratio.map(|ratio| (metric, other, ratio)));
        }
    }
    all
}

fn ratios(everyone: &[Contender<'_>]) -> Vec<Block> {
    let all = against(everyone);
    let others: Vec<&Contender<'_>> = everyone
        .iter()
        .filter(|who| all.iter().any(|(_, other, _)| other.name == who.name))
        .collect();
    if others.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(["beside ours"]);
    table
        .head
        .extend(others.iter().map(|who| Line::from(who.label())));
    for metric in METRICS {
        if !all.iter().any(|(other, _, _)| other.key == metric.key) {
            continue;
        }
        let mut row = vec![Line::from(metric.title)];
        for who in &others {
            let found = all
                .iter()
                .find(|(other, by, _)| other.key == metric.key && by.name == who.name);
            row.push(Line::from(
                found.map_or("–".to_owned(), |(_, _, ratio)| said(metric, *ratio)),
            ));
        }
        table.rows.push(row);
    }
    vec![Block::Table(table)]
}

/// Where others are better, plainly.
fn better(everyone: &[Contender<'_>]) -> Option<Block> {
    let (ours, others) = everyone.split_first()?;
    let all = against(everyone);
    let line = |other: &Contender<'_>| {
        let of_other = all
            .iter()
            .filter(|(_, by, ratio)| by.name == other.name && *ratio < 1.0);
        let numbers =
            of_other.map(|(metric, _, ratio)| (metric.title.to_owned(), said(metric, *ratio)));
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
        let told = numbers
            .chain(points)
            .filter(|(_, words)| words != "the same");
        let told: Vec<String> = told
            .map(|(what, words)| format!("{what} {words}"))
            .collect();
        let strong = Line::default().strong(format!("{} is better", other.label()));
        (!told.is_empty()).then(|| strong.and(format!(" than ours here: {}.", told.join(", "))))
    };
    let lines: Vec<Line> = others.iter().filter_map(line).collect();
    (!lines.is_empty()).then_some(Block::List(lines))
}
