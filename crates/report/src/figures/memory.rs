//! Memory over time.

use super::plot_title;
use crate::{
    MemorySample, ResultFile,
    draw::{Axis, Dash, Entry, Frame, Ink, LIMIT, Plan, Sample, Scale},
};

type Get = fn(&MemorySample) -> Option<f64>;

const SERIES: [(&str, Ink, Get); 4] = [
    (
        "device memory used",
        ink("#0072B2", Dash::Solid),
        |sample| Some(sample.used_mb),
    ),
    ("KV on the device", ink("#009E73", Dash::Mixed), |sample| {
        sample.kv_mb
    }),
    ("KV in host memory", ink("#D55E00", Dash::Short), |sample| {
        sample.host_kv_mb
    }),
    ("KV on disk", ink("#CC79A7", Dash::Long), |sample| {
        sample.disk_kv_mb
    }),
];

const fn ink(color: &'static str, dash: Dash) -> Ink {
    Ink {
        color,
        width: 1.8,
        dash,
    }
}

pub fn draw(results: &[&ResultFile]) -> Result<String, String> {
    let has = |result: &&&ResultFile| !result.memory.is_empty();
    let shown: Vec<&ResultFile> = results.iter().filter(has).copied().collect();
    if shown.is_empty() {
        return Err("no result has memory over time".to_owned());
    }
    let used =
        |(_, _, get): &(&str, Ink, Get)| shown.iter().any(|result| worth(&result.memory, *get));
    let series = SERIES.iter().filter(|series| used(series));
    let mut legend: Vec<Entry> = series
        .map(|(label, ink, _)| Entry::new(Sample::Line(*ink, None), *label))
        .collect();
    if shown.iter().any(|result| result.budget_mb.is_some()) {
        legend.push(Entry::new(Sample::Line(LIMIT, None), "budget"));
    }
    let plan = Plan {
        title: "Memory over time",
        legend,
        plots: shown.len(),
        columns: 2,
        size: (430.0, 270.0),
        lead: 0.0,
    };
    let (mut canvas, cells) = plan.lay();
    for (result, cell) in shown.iter().zip(cells) {
        let tops = SERIES
            .iter()
            .flat_map(|(_, _, get)| result.memory.iter().filter_map(get));
        let tops = tops.chain(result.budget_mb).map(|mb| mb / 1000.0);
        let times = result.memory.iter().map(|sample| sample.t_s);
        let frame = Frame {
            title: &plot_title(result),
            x: Axis::new("time, s", Scale::tight(times.chain([0.0]), 8)),
            y: Axis::new("memory, GB", Scale::from_zero(tops, 7)),
        };
        let plot = frame.draw(&mut canvas, cell);
        for (_, ink, get) in SERIES
            .iter()
            .filter(|(_, _, get)| worth(&result.memory, *get))
        {
            let mut points: Vec<(f64, f64)> = result
                .memory
                .iter()
                .filter_map(|sample| Some((sample.t_s, get(sample)? / 1000.0)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let [(_, only)] = points[..] {
                plot.level(&mut canvas, only, *ink);
            }
            plot.line(&mut canvas, &points, *ink);
        }
        if let Some(budget) = result.budget_mb {
            plot.level(&mut canvas, budget / 1000.0, LIMIT);
        }
    }
    Ok(canvas.svg("Memory of the device, and where KV lies, over time"))
}

/// Whether a series says anything: what is zero all the time does not.
fn worth(samples: &[MemorySample], get: Get) -> bool {
    samples.iter().filter_map(get).any(|mb| mb > 0.0)
}
