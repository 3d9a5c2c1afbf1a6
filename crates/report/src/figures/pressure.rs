//! Figure: memory that sessions need, and device memory in use, by number of sessions.

use super::{figure::MissingData, lines::thinned};
use crate::{
    contender::{Contender, SeriesStyles, contenders},
    draw::{
        Anchor, Axis, Canvas, Dash, Drawing, FontWeight, LIMIT, LegendEntry, LegendSample,
        LineStyle, Marker, Plot, PlotFrame, Rect, SMALL, STYLES, Scale, SeriesStyle, SheetLayout,
        TEXT, TextStyle, fit,
    },
    result::{BaselineStatus, MemorySample, ResultFile},
};

const DEMAND: LineStyle = LineStyle {
    color: "#009E73",
    width: 2.0,
    dash: Dash::Long,
};
const HOST: LineStyle = LineStyle {
    color: "#CC79A7",
    width: 2.0,
    dash: Dash::Short,
};
/// Indices of the styles that have the colours of [`DEMAND`] and [`HOST`].
const RESERVED: [usize; 2] = [2, 4];
const LINE: f64 = 2.0;

/// Points of a line: number of sessions, and memory in GB.
type Curve = Vec<(f64, f64)>;

/// The lines of one result.
struct PressureData<'a> {
    result: &'a ResultFile,
    demand: Curve,
    used: Curve,
    host: Curve,
    others: Vec<(Contender<'a>, Curve)>,
}

pub fn draw(results: &[&ResultFile]) -> Result<Drawing, MissingData> {
    let shown: Vec<PressureData<'_>> = results
        .iter()
        .filter_map(|result| PressureData::of(result))
        .collect();
    if shown.is_empty() {
        return Err(MissingData::SessionSamples);
    }
    let names = shown
        .iter()
        .flat_map(|data| data.others.iter().map(|(who, _)| who.name));
    let styles = SeriesStyles::with_reserved(&RESERVED, std::iter::once("djinn").chain(names));
    let layout = SheetLayout {
        title: "Memory virtualization",
        legend: legend(&shown, &styles),
        plots: shown.len(),
        columns: 2,
        size: (460.0, 310.0),
        lead: 0.0,
    };
    let (mut canvas, cells) = layout.draw();
    for (data, cell) in shown.iter().zip(cells) {
        data.draw(&mut canvas, cell, &styles);
    }
    Ok(canvas.finish("Memory by number of open sessions: needed, used, and the budget"))
}

fn legend(shown: &[PressureData<'_>], styles: &SeriesStyles<'_>) -> Vec<LegendEntry> {
    let line = |style: SeriesStyle| LegendSample::Line(line_style(style), Some(style.marker));
    let mut entries = Vec::new();
    if shown.iter().any(|data| !data.demand.is_empty()) {
        entries.push(LegendEntry::new(
            LegendSample::Line(DEMAND, None),
            "needed: weights and KV",
        ));
    }
    entries.push(LegendEntry::new(line(STYLES[0]), "device memory used"));
    if shown.iter().any(|data| !data.host.is_empty()) {
        entries.push(LegendEntry::new(
            LegendSample::Line(HOST, None),
            "KV in host memory",
        ));
    }
    let mut listed: Vec<&str> = Vec::new();
    for (who, _) in shown.iter().flat_map(|data| &data.others) {
        if !listed.contains(&who.name) {
            listed.push(who.name);
            entries.push(LegendEntry::new(line(styles.of(who.name)), who.label()));
        }
    }
    if shown.iter().any(|data| data.result.budget_mb.is_some()) {
        entries.push(LegendEntry::new(LegendSample::Line(LIMIT, None), "budget"));
    }
    let ended = |who: &Contender<'_>| who.status == BaselineStatus::OutOfMemory;
    if shown
        .iter()
        .flat_map(|data| &data.others)
        .any(|(who, _)| ended(who))
    {
        entries.push(LegendEntry::new(
            LegendSample::Mark(Marker::Cross, TEXT),
            "out of memory",
        ));
    }
    entries
}

fn line_style(style: SeriesStyle) -> LineStyle {
    LineStyle {
        color: style.color,
        width: LINE,
        dash: style.dash,
    }
}

/// Returns the largest value for every number of sessions.
fn by_sessions(samples: &[MemorySample], get: fn(&MemorySample) -> Option<f64>) -> Curve {
    let mut most: std::collections::BTreeMap<u64, f64> = std::collections::BTreeMap::new();
    for sample in samples {
        if let (Some(sessions), Some(mb)) = (sample.sessions, get(sample)) {
            let largest = most.entry(sessions).or_insert(mb);
            *largest = largest.max(mb);
        }
    }
    most.into_iter()
        .map(|(sessions, mb)| (sessions as f64, mb / 1000.0))
        .collect()
}

/// Returns the memory that weights and KV cache need, from no session to all sessions.
fn demand(result: &ResultFile) -> Curve {
    let median = |metric: &str| result.summary.metrics.get(metric).map(|stats| stats.median);
    let (Some(weights), Some(kv), Some(sessions)) = (
        median("model_size_gb"),
        median("kv_demand_gb"),
        median("sessions"),
    ) else {
        return Vec::new();
    };
    vec![(0.0, weights), (sessions, weights + kv)]
}

impl<'a> PressureData<'a> {
    fn of(result: &'a ResultFile) -> Option<Self> {
        let used = by_sessions(&result.memory, |sample| Some(sample.used_mb));
        let host = by_sessions(&result.memory, |sample| sample.host_kv_mb);
        let of = |who: Contender<'a>| (who, by_sessions(who.memory, |sample| Some(sample.used_mb)));
        let others = contenders(result)
            .into_iter()
            .filter(|who| !who.ours)
            .map(of);
        let data = PressureData {
            result,
            demand: demand(result),
            host: if host.iter().any(|(_, gb)| *gb > 0.0) {
                host
            } else {
                Vec::new()
            },
            others: others.filter(|(_, line)| !line.is_empty()).collect(),
            used,
        };
        (!data.used.is_empty()).then_some(data)
    }

    fn draw(&self, canvas: &mut Canvas, cell: Rect, styles: &SeriesStyles<'_>) {
        let others = self.others.iter().map(|(_, line)| line);
        let all: Curve = [&self.demand, &self.used, &self.host]
            .into_iter()
            .chain(others)
            .flatten()
            .copied()
            .collect();
        let budget = self.result.budget_mb.map(|mb| mb / 1000.0);
        let tops = all.iter().map(|(_, gb)| *gb).chain(budget);
        let xs = all.iter().map(|(x, _)| *x).chain([0.0]);
        let frame = PlotFrame {
            title: &self.result.plot_title(),
            x: Axis::new("sessions open", Scale::whole(xs, 8)),
            y: Axis::new("memory, GB", Scale::from_zero(tops, 7)),
        };
        let plot = frame.draw(canvas, cell);
        if let Some(budget) = budget {
            plot.level(canvas, budget, LIMIT);
        }
        plot.line(canvas, &self.demand, DEMAND);
        plot.line(canvas, &self.host, HOST);
        for (who, line) in &self.others {
            draw_line(&plot, canvas, line, styles.of(who.name));
        }
        draw_line(&plot, canvas, &self.used, STYLES[0]);
        self.out_of_memory(&plot, canvas, styles);
    }

    /// Draws a cross and the reason where a baseline ran out of memory.
    fn out_of_memory(&self, plot: &Plot, canvas: &mut Canvas, styles: &SeriesStyles<'_>) {
        let lines = [&self.demand, &self.used, &self.host].into_iter();
        let lines = lines.chain(self.others.iter().map(|(_, line)| line));
        let mut inked: Vec<(f64, f64)> = lines.flat_map(|line| trace(plot, line)).collect();
        if let (Some(budget), Some(last)) = (self.result.budget_mb, self.demand.last()) {
            inked.extend(trace(
                plot,
                &[(0.0, budget / 1000.0), (last.0, budget / 1000.0)],
            ));
        }
        let mut written: Vec<Rect> = Vec::new();
        let ended = self
            .others
            .iter()
            .filter(|(who, _)| who.status == BaselineStatus::OutOfMemory);
        for (who, line) in ended {
            let Some((x, y)) = line.last() else { continue };
            let at = plot.at(*x, *y);
            canvas.marker(Marker::Cross, at, 5.5, styles.of(who.name).color);
            // The figure shows where the baseline stopped; the tables show the allocator message.
            let reason = who.reason.unwrap_or("out of memory");
            let reason = reason.split(": ").next().unwrap_or(reason);
            let text = format!("{}: {reason}", who.label());
            let text = fit(&text, SMALL, FontWeight::Regular, plot.area.w * 0.62);
            let Some(place) = label_place(&text, at, plot.area, (&written, &inked)) else {
                continue;
            };
            canvas.rect(place, "#ffffff");
            let letters = TextStyle::new(SMALL).anchor(Anchor::Start);
            canvas.text((place.x + 2.0, place.bottom() - 3.5), &text, letters);
            written.push(place);
        }
    }
}

/// Returns positions along a line, a few pixels apart.
fn trace(plot: &Plot, line: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let places: Vec<(f64, f64)> = line.iter().map(|(x, y)| plot.at(*x, *y)).collect();
    let between = |two: &[(f64, f64)]| {
        let ((x, y), (to_x, to_y)) = (two[0], two[1]);
        let steps = ((to_x - x).hypot(to_y - y) / 3.0).clamp(1.0, 1000.0) as u32;
        let at = move |i| f64::from(i) / f64::from(steps);
        (0..=steps).map(move |i| (x + (to_x - x) * at(i), y + (to_y - y) * at(i)))
    };
    places.windows(2).flat_map(between).collect()
}

/// Finds a place for a label near a point: inside the plot, over no other label, and if possible over no
/// line.
fn label_place(
    text: &str,
    at: (f64, f64),
    inside: Rect,
    taken: (&[Rect], &[(f64, f64)]),
) -> Option<Rect> {
    let (written, inked) = taken;
    let (w, h) = (TextStyle::new(SMALL).width(text) + 4.0, SMALL + 4.0);
    let left = (inside.x + 2.0, inside.right() - w - 2.0);
    let places = (1..40).flat_map(|step| {
        let far = 8.0 + 6.0 * f64::from(step - 1);
        [at.1 - far - h, at.1 + far].into_iter().flat_map(move |y| {
            [at.0 + 8.0, at.0 - w / 2.0, at.0 - w - 8.0].map(|x| Rect {
                x: x.clamp(left.0, left.1.max(left.0)),
                y,
                w,
                h,
            })
        })
    });
    let fits = |place: &Rect| {
        let inside = place.y >= inside.y && place.bottom() <= inside.bottom() - 2.0;
        inside && !written.iter().any(|other| other.overlaps(place))
    };
    let clear = |place: &Rect| !inked.iter().any(|(x, y)| place.contains(*x, *y));
    let fitting: Vec<Rect> = places.filter(fits).collect();
    fitting
        .iter()
        .find(|place| clear(place))
        .or(fitting.first())
        .copied()
}

fn draw_line(plot: &Plot, canvas: &mut Canvas, line: &[(f64, f64)], style: SeriesStyle) {
    plot.line(canvas, line, line_style(style));
    plot.marks(canvas, &thinned(line), style);
}
