//! Figure: memory over time.

use super::figure::MissingData;
use crate::{
    draw::{
        Axis, Dash, Drawing, LIMIT, LegendEntry, LegendSample, LineStyle, PlotFrame, Scale,
        SheetLayout,
    },
    result::{MemorySample, ResultFile},
};

/// Accessor of one number of a memory sample.
type SampleField = fn(&MemorySample) -> Option<f64>;

const SERIES: [(&str, LineStyle, SampleField); 4] = [
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

const fn ink(color: &'static str, dash: Dash) -> LineStyle {
    LineStyle {
        color,
        width: 1.8,
        dash,
    }
}

pub fn draw(results: &[&ResultFile]) -> Result<Drawing, MissingData> {
    let has = |result: &&&ResultFile| !result.memory.is_empty();
    let shown: Vec<&ResultFile> = results.iter().filter(has).copied().collect();
    if shown.is_empty() {
        return Err(MissingData::MemorySamples);
    }
    let used = |(_, _, get): &(&str, LineStyle, SampleField)| {
        shown.iter().any(|result| is_used(&result.memory, *get))
    };
    let series = SERIES.iter().filter(|series| used(series));
    let mut legend: Vec<LegendEntry> = series
        .map(|(label, ink, _)| LegendEntry::new(LegendSample::Line(*ink, None), *label))
        .collect();
    if shown.iter().any(|result| result.budget_mb.is_some()) {
        legend.push(LegendEntry::new(LegendSample::Line(LIMIT, None), "budget"));
    }
    let layout = SheetLayout {
        title: "Memory over time",
        legend,
        plots: shown.len(),
        columns: 2,
        size: (430.0, 270.0),
        lead: 0.0,
    };
    let (mut canvas, cells) = layout.draw();
    for (result, cell) in shown.iter().zip(cells) {
        let tops = SERIES
            .iter()
            .flat_map(|(_, _, get)| result.memory.iter().filter_map(get));
        let tops = tops.chain(result.budget_mb).map(|mb| mb / 1000.0);
        let times = result.memory.iter().map(|sample| sample.t_s);
        let frame = PlotFrame {
            title: &result.plot_title(),
            x: Axis::new("time, s", Scale::tight(times.chain([0.0]), 8)),
            y: Axis::new("memory, GB", Scale::from_zero(tops, 7)),
        };
        let plot = frame.draw(&mut canvas, cell);
        for (_, ink, get) in SERIES
            .iter()
            .filter(|(_, _, get)| is_used(&result.memory, *get))
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
    Ok(canvas.finish("Device memory and location of the KV cache over time"))
}

/// Whether a series contains a value above zero.
fn is_used(samples: &[MemorySample], get: SampleField) -> bool {
    samples.iter().filter_map(get).any(|mb| mb > 0.0)
}
