//! Figure: latency of agents by their number.

use super::{
    figure::MissingData,
    lines::{LineFigure, Series, StyledSeries, durations, positions, series_styles, ticks_at},
};
use crate::{
    contender::label,
    draw::{Axis, Dash, Drawing, Scale},
    result::{Experiment, ResultFile},
};

/// Ratio of the largest to the smallest value from which an axis is logarithmic.
const FAR: f64 = 20.0;

pub fn draw(results: &[&ResultFile]) -> Result<Drawing, MissingData> {
    let lines = LineFigure::of(results, Experiment::Agents)?;
    let titles = (
        "Latency with many agents",
        "Latency by number of agents, in ms",
    );
    Ok(lines.draw(titles, &styles(&lines.kinds()), axes))
}

fn axes(series: &[Series<'_>]) -> (Axis<'static>, Axis<'static>) {
    let at = positions(series);
    let ticks = ticks_at(&at);
    let scale = match (is_wide(&at), &ticks) {
        (true, Some(_)) => Scale::log_tight(&at),
        (true, None) => Scale::log(at.iter().copied()),
        (false, _) => Scale::whole(at.iter().copied().chain([0.0]), 9),
    };
    let x = Axis {
        label: "agents",
        scale,
        ticks,
    };
    let values: Vec<f64> = durations(series).collect();
    let y = match is_wide(&values) {
        true => Axis::new("ms, log axis", Scale::log(values)),
        false => Axis::new("ms", Scale::from_zero(values, 7)),
    };
    (x, y)
}

/// Whether the largest value is many times the smallest.
fn is_wide(values: &[f64]) -> bool {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    low > 0.0 && high / low >= FAR
}

/// Gives each contender a colour; p50 gets a solid line, p99 a dashed line with hollow markers.
fn styles<'a>(kinds: &[(&'a str, &'a str)]) -> Vec<StyledSeries<'a>> {
    let styles = series_styles(kinds);
    let of = |(who, series): &(&'a str, &'a str)| {
        let mut style = styles.of(who);
        match *series {
            "p50" => style.dash = Dash::Solid,
            _ => style = style.second(),
        }
        let label = format!("{}, {series}", label(who));
        StyledSeries {
            of: (who, series),
            label,
            style,
        }
    };
    kinds.iter().map(of).collect()
}
