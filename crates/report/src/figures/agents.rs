//! How long agents wait, by how many there are.

use super::lines::{Drawn, Lines, Series, heights, looks, own_ticks, places};
use crate::{
    Experiment, ResultFile,
    contender::label,
    draw::{Axis, Dash, Scale},
};

/// From this many times on, numbers lie by their size.
const FAR: f64 = 20.0;

pub fn draw(results: &[&ResultFile]) -> Result<String, String> {
    let lines = Lines::of(results, Experiment::Agents)?;
    let words = (
        "Latency with many agents",
        "Latency by number of agents, in ms",
    );
    Ok(lines.draw(words, &styles(&lines.kinds()), axes))
}

fn axes(series: &[Series<'_>]) -> (Axis<'static>, Axis<'static>) {
    let at = places(series);
    let ticks = own_ticks(&at);
    let scale = match (far(&at), &ticks) {
        (true, Some(_)) => Scale::log_tight(&at),
        (true, None) => Scale::log(at.iter().copied()),
        (false, _) => Scale::whole(at.iter().copied().chain([0.0]), 9),
    };
    let x = Axis {
        label: "agents",
        scale,
        ticks,
    };
    let values: Vec<f64> = heights(series).collect();
    let y = match far(&values) {
        true => Axis::new("ms, log axis", Scale::log(values)),
        false => Axis::new("ms", Scale::from_zero(values, 7)),
    };
    (x, y)
}

/// Whether the largest is many times the smallest.
fn far(values: &[f64]) -> bool {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    low > 0.0 && high / low >= FAR
}

/// A colour for everyone; p50 with a full line, p99 with a broken one and an empty mark.
fn styles<'a>(kinds: &[(&'a str, &'a str)]) -> Vec<Drawn<'a>> {
    let looks = looks(kinds);
    let of = |(who, series): &(&'a str, &'a str)| {
        let mut look = looks.of(who);
        match *series {
            "p50" => look.dash = Dash::Solid,
            _ => look = look.second(),
        }
        let label = format!("{}, {series}", label(who));
        Drawn {
            of: (who, series),
            label,
            look,
        }
    };
    kinds.iter().map(of).collect()
}
