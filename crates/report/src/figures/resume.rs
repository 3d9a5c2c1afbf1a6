//! Figure: time to resume a stopped session, by layer.

use super::{
    figure::MissingData,
    lines::{LineFigure, Series, StyledSeries, durations, positions, series_styles, ticks_at},
};
use crate::{
    contender::label,
    draw::{Axis, Drawing, Scale},
    result::{Experiment, ResultFile},
};

pub fn draw(results: &[&ResultFile]) -> Result<Drawing, MissingData> {
    let lines = LineFigure::of(results, Experiment::ResumeLatency)?;
    // Baselines have client-side times only; the tables show both kinds.
    let lines = lines.without(|series| series.ends_with("_inside"));
    let series = styles(lines.results(), &lines.kinds());
    let titles = ("Resume latency", "Time to resume by layer, in ms");
    Ok(lines.draw(titles, &series, axes))
}

fn axes(series: &[Series<'_>]) -> (Axis<'static>, Axis<'static>) {
    let at = positions(series);
    let mut x = Axis::new("layer", Scale::whole(at.iter().copied(), 9));
    x.ticks = ticks_at(&at);
    (x, Axis::new("ms, log axis", Scale::log(durations(series))))
}

/// Gives each series the style of its contender; later series of a contender get the second style.
fn styles<'a>(results: &[&ResultFile], kinds: &[(&'a str, &'a str)]) -> Vec<StyledSeries<'a>> {
    let styles = series_styles(kinds);
    let of = |(i, (who, series)): (usize, &(&'a str, &'a str))| {
        let again = kinds[..i].iter().any(|(other, _)| other == who);
        let style = match again {
            true => styles.of(who).second(),
            false => styles.of(who),
        };
        let ours = results.iter().any(|result| result.baseline == *who);
        let alone = kinds.iter().filter(|(other, _)| other == who).count() == 1;
        StyledSeries {
            of: (who, series),
            label: series_label(who, series, ours, alone),
            style,
        }
    };
    kinds.iter().enumerate().map(of).collect()
}

/// Returns the legend label of a series: the contender, and where the KV cache was.
fn series_label(who: &str, series: &str, ours: bool, alone: bool) -> String {
    let place = match series {
        "resume" if ours && !alone => "KV on the device",
        "resume_from_host" => "KV in host memory",
        "resume" | "" => return label(who).to_owned(),
        other => other,
    };
    format!("{}, {place}", label(who))
}
