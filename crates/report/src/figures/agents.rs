//! How long agents wait, by how many there are.

use super::{
    lines::{Drawn, Series, heights, kinds, looks, own_ticks, places, series_of},
    plot_title,
};
use crate::{
    ResultFile,
    contender::label,
    draw::{Axis, Dash, Frame, Plan, Scale},
};

/// From this many times on, numbers lie by their size.
const FAR: f64 = 20.0;

pub fn draw(results: &[&ResultFile]) -> Result<String, String> {
    let has = |result: &&&ResultFile| !series_of(result).is_empty();
    let shown: Vec<&ResultFile> = results.iter().filter(has).copied().collect();
    if shown.is_empty() {
        return Err("no agents result has points".to_owned());
    }
    let series: Vec<_> = shown.iter().map(|result| series_of(result)).collect();
    let drawn = styles(&kinds(&series));
    let plan = Plan {
        title: "Latency with many agents",
        legend: drawn.iter().map(Drawn::entry).collect(),
        plots: shown.len(),
        columns: 2,
        size: (460.0, 300.0),
        lead: 0.0,
    };
    let (mut canvas, cells) = plan.lay();
    for ((result, series), cell) in shown.iter().zip(&series).zip(cells) {
        let title = &plot_title(result);
        let (x, y) = axes(series);
        let plot = Frame { title, x, y }.draw(&mut canvas, cell);
        for one in series {
            let of = (one.contender, one.series);
            if let Some(drawn) = drawn.iter().find(|drawn| drawn.of == of) {
                drawn.draw(&plot, &mut canvas, one);
            }
        }
    }
    Ok(canvas.svg("Latency by number of agents, in ms"))
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
