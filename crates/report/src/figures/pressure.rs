//! More sessions than memory holds: what they ask for, and what the device gives.

use super::{lines::sparse, plot_title};
use crate::{
    MemorySample, ResultFile, Status,
    contender::{Contender, Looks, contenders},
    draw::{
        Anchor, Area, Axis, Canvas, Dash, Entry, Frame, Ink, LIMIT, LOOKS, Letters, Look, Marker,
        Plan, Plot, SMALL, Sample, Scale, TEXT, Weight, fit,
    },
};

const DEMAND: Ink = Ink {
    color: "#009E73",
    width: 2.0,
    dash: Dash::Long,
};
const HOST: Ink = Ink {
    color: "#CC79A7",
    width: 2.0,
    dash: Dash::Short,
};
/// The looks whose colours these two have.
const RESERVED: [usize; 2] = [2, 4];
const LINE: f64 = 2.0;

type Line = Vec<(f64, f64)>;

/// What is drawn of one result, in GB by sessions.
struct Data<'a> {
    result: &'a ResultFile,
    demand: Line,
    used: Line,
    host: Line,
    others: Vec<(Contender<'a>, Line)>,
}

pub fn draw(results: &[&ResultFile]) -> Result<String, String> {
    let shown: Vec<Data<'_>> = results
        .iter()
        .filter_map(|result| Data::of(result))
        .collect();
    if shown.is_empty() {
        return Err("no memory-pressure result has memory by number of sessions".to_owned());
    }
    let names = shown
        .iter()
        .flat_map(|data| data.others.iter().map(|(who, _)| who.name));
    let looks = Looks::beside(&RESERVED, std::iter::once("djinn").chain(names));
    let plan = Plan {
        title: "Memory virtualization",
        legend: legend(&shown, &looks),
        plots: shown.len(),
        columns: 2,
        size: (460.0, 310.0),
        lead: 0.0,
    };
    let (mut canvas, cells) = plan.lay();
    for (data, cell) in shown.iter().zip(cells) {
        data.draw(&mut canvas, cell, &looks);
    }
    Ok(canvas.svg("Memory by number of open sessions: asked for, used, and the budget"))
}

fn legend(shown: &[Data<'_>], looks: &Looks<'_>) -> Vec<Entry> {
    let line = |look: Look| Sample::Line(solid(look), Some(look.marker));
    let mut entries = Vec::new();
    if shown.iter().any(|data| !data.demand.is_empty()) {
        entries.push(Entry::new(
            Sample::Line(DEMAND, None),
            "asked for: weights and KV",
        ));
    }
    entries.push(Entry::new(line(LOOKS[0]), "device memory used"));
    if shown.iter().any(|data| !data.host.is_empty()) {
        entries.push(Entry::new(Sample::Line(HOST, None), "KV in host memory"));
    }
    let mut told: Vec<&str> = Vec::new();
    for (who, _) in shown.iter().flat_map(|data| &data.others) {
        if !told.contains(&who.name) {
            told.push(who.name);
            entries.push(Entry::new(line(looks.of(who.name)), who.label()));
        }
    }
    if shown.iter().any(|data| data.result.budget_mb.is_some()) {
        entries.push(Entry::new(Sample::Line(LIMIT, None), "budget"));
    }
    let ended = |who: &Contender<'_>| who.status == Status::OutOfMemory;
    if shown
        .iter()
        .flat_map(|data| &data.others)
        .any(|(who, _)| ended(who))
    {
        entries.push(Entry::new(
            Sample::Mark(Marker::Cross, TEXT),
            "out of memory",
        ));
    }
    entries
}

fn solid(look: Look) -> Ink {
    Ink {
        color: look.color,
        width: LINE,
        dash: look.dash,
    }
}

/// The most of something, for every number of sessions.
fn by_sessions(samples: &[MemorySample], get: fn(&MemorySample) -> Option<f64>) -> Line {
    let mut most: std::collections::BTreeMap<u64, f64> = std::collections::BTreeMap::new();
    for sample in samples {
        if let (Some(sessions), Some(mb)) = (sample.sessions, get(sample)) {
            let place = most.entry(sessions).or_insert(mb);
            *place = place.max(mb);
        }
    }
    most.into_iter()
        .map(|(sessions, mb)| (sessions as f64, mb / 1000.0))
        .collect()
}

/// Weights, and what every session adds to them.
fn demand(result: &ResultFile) -> Line {
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

impl<'a> Data<'a> {
    fn of(result: &'a ResultFile) -> Option<Self> {
        let used = by_sessions(&result.memory, |sample| Some(sample.used_mb));
        let host = by_sessions(&result.memory, |sample| sample.host_kv_mb);
        let of = |who: Contender<'a>| (who, by_sessions(who.memory, |sample| Some(sample.used_mb)));
        let others = contenders(result)
            .into_iter()
            .filter(|who| !who.ours)
            .map(of);
        let data = Data {
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

    fn draw(&self, canvas: &mut Canvas, cell: Area, looks: &Looks<'_>) {
        let others = self.others.iter().map(|(_, line)| line);
        let all: Line = [&self.demand, &self.used, &self.host]
            .into_iter()
            .chain(others)
            .flatten()
            .copied()
            .collect();
        let budget = self.result.budget_mb.map(|mb| mb / 1000.0);
        let tops = all.iter().map(|(_, gb)| *gb).chain(budget);
        let xs = all.iter().map(|(x, _)| *x).chain([0.0]);
        let frame = Frame {
            title: &plot_title(self.result),
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
            drawn(&plot, canvas, line, looks.of(who.name));
        }
        drawn(&plot, canvas, &self.used, LOOKS[0]);
        self.ends(&plot, canvas, looks);
    }

    /// A cross and the reason, where someone ran out of memory.
    fn ends(&self, plot: &Plot, canvas: &mut Canvas, looks: &Looks<'_>) {
        let lines = [&self.demand, &self.used, &self.host].into_iter();
        let lines = lines.chain(self.others.iter().map(|(_, line)| line));
        let mut inked: Vec<(f64, f64)> = lines.flat_map(|line| trace(plot, line)).collect();
        if let (Some(budget), Some(last)) = (self.result.budget_mb, self.demand.last()) {
            inked.extend(trace(
                plot,
                &[(0.0, budget / 1000.0), (last.0, budget / 1000.0)],
            ));
        }
        let mut written: Vec<Area> = Vec::new();
        let ended = self
            .others
            .iter()
            .filter(|(who, _)| who.status == Status::OutOfMemory);
        for (who, line) in ended {
            let Some((x, y)) = line.last() else { continue };
            let at = plot.at(*x, *y);
            canvas.marker(Marker::Cross, at, 5.5, looks.of(who.name).color);
            // Where it ran out; what exactly its allocator said is in the tables.
            let reason = who.reason.unwrap_or("out of memory");
            let reason = reason.split(": ").next().unwrap_or(reason);
            let text = format!("{}: {reason}", who.label());
            let text = fit(&text, SMALL, Weight::Regular, plot.area.w * 0.62);
            let Some(place) = free(&text, at, plot.area, (&written, &inked)) else {
                continue;
            };
            canvas.rect(place, "#ffffff");
            let letters = Letters::new(SMALL).anchor(Anchor::Start);
            canvas.text((place.x + 2.0, place.bottom() - 3.5), &text, letters);
            written.push(place);
        }
    }
}

/// Places that a line goes through, a few pixels apart.
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

/// A place for words near a point: inside the plot, over no other words, and if it can be over no line.
fn free(text: &str, at: (f64, f64), inside: Area, taken: (&[Area], &[(f64, f64)])) -> Option<Area> {
    let (written, inked) = taken;
    let (w, h) = (Letters::new(SMALL).width(text) + 4.0, SMALL + 4.0);
    let left = (inside.x + 2.0, inside.right() - w - 2.0);
    let places = (1..40).flat_map(|step| {
        let far = 8.0 + 6.0 * f64::from(step - 1);
        [at.1 - far - h, at.1 + far].into_iter().flat_map(move |y| {
            [at.0 + 8.0, at.0 - w / 2.0, at.0 - w - 8.0].map(|x| Area {
                x: x.clamp(left.0, left.1.max(left.0)),
                y,
                w,
                h,
            })
        })
    });
    let fits = |place: &Area| {
        let inside = place.y >= inside.y && place.bottom() <= inside.bottom() - 2.0;
        inside && !written.iter().any(|other| other.meets(place))
    };
    let clear = |place: &Area| !inked.iter().any(|(x, y)| place.holds(*x, *y));
    let fitting: Vec<Area> = places.filter(fits).collect();
    fitting
        .iter()
        .find(|place| clear(place))
        .or(fitting.first())
        .copied()
}

fn drawn(plot: &Plot, canvas: &mut Canvas, line: &[(f64, f64)], look: Look) {
    plot.line(canvas, line, solid(look));
    plot.marks(canvas, &sparse(line), look);
}
