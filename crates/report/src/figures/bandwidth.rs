//! Effective bandwidth: a bar for everyone who ran, a line for what the link gives.

use super::plot_title;
use crate::{
    ResultFile, Stats, Target,
    contender::{Contender, Looks, contenders, label},
    draw::{
        Anchor, Area, Axis, Canvas, Dash, Ink, LIMIT, Letters, PLAIN, Plan, SMALL, Scale, TEXT,
        Weight, fit, title, x_axis,
    },
    number::digits,
};

const METRIC: &str = "effective_bandwidth_gbps";
/// Of one bar, with what is between it and the next.
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
/// Above the bars: title, and the names of two lines.
const HEAD: f64 = 54.0;
const FOOT: f64 = 44.0;
const PLOT: f64 = 290.0;
const COLUMNS: usize = 2;
/// Room for names at most.
const NAMES: f64 = 190.0;
/// A bar this many times longer than another is drawn on an axis by size.
const FAR: f64 = 40.0;
const TARGET: Ink = Ink {
    color: TEXT,
    width: 1.8,
    dash: Dash::Dotted,
};

pub fn draw(results: &[&ResultFile]) -> Result<String, String> {
    let has = |result: &&&ResultFile| {
        contenders(result)
            .iter()
            .any(|who| who.stats(METRIC).is_some())
    };
    let shown: Vec<&ResultFile> = results.iter().filter(has).copied().collect();
    if shown.is_empty() {
        return Err(format!("no run has {METRIC}"));
    }
    let rows = names(&shown);
    let looks = Looks::new(rows.iter().copied());
    let widest = rows
        .iter()
        .map(|name| Letters::new(PLAIN).width(label(name)))
        .fold(0.0, f64::max);
    let side = widest.min(NAMES) + 12.0;
    let plan = Plan {
        title: "Effective bandwidth",
        legend: Vec::new(),
        plots: shown.len(),
        columns: COLUMNS,
        size: (PLOT, HEAD + ROW * rows.len() as f64 + FOOT),
        lead: side,
    };
    let (mut canvas, cells) = plan.lay();
    for (i, (result, cell)) in shown.iter().zip(cells).enumerate() {
        if i % COLUMNS == 0 {
            row_names(&mut canvas, &rows, cell, side);
        }
        let (rows, looks) = (&rows, &looks);
        Panel {
            result,
            rows,
            looks,
        }
        .draw(&mut canvas, cell);
    }
    Ok(canvas.svg("Effective bandwidth of each contender, in GB/s"))
}

/// Everyone who is in some result, in the order they come.
fn names<'a>(results: &[&'a ResultFile]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for who in results.iter().flat_map(|result| contenders(result)) {
        if !names.contains(&who.name) {
            names.push(who.name);
        }
    }
    names
}

/// What was to be reached, in GB/s; a target relative to a baseline is worth so much of that.
fn target(result: &ResultFile) -> Option<f64> {
    let about = |target: &&Target| target.metric == METRIC;
    let target = result.targets.iter().find(about)?;
    let limit = target.at_least.or(target.at_most)?;
    match &target.of {
        None => Some(limit),
        Some(of) => {
            let who = contenders(result).into_iter().find(|who| who.name == of)?;
            Some(limit * who.stats(METRIC)?.median)
        }
    }
}

/// The names of the bars, left of the first of a row of plots.
fn row_names(canvas: &mut Canvas, rows: &[&str], cell: Area, side: f64) {
    for (name, y) in rows.iter().zip(middles(cell)) {
        let text = fit(label(name), PLAIN, Weight::Regular, side - 12.0);
        let letters = Letters::new(PLAIN).anchor(Anchor::End);
        canvas.text((cell.x - 8.0, y + PLAIN * 0.36), &text, letters);
    }
}

/// The middle of one bar after another.
fn middles(cell: Area) -> impl Iterator<Item = f64> {
    (0u32..).map(move |i| cell.y + HEAD + ROW * (f64::from(i) + 0.5))
}

struct Panel<'a> {
    result: &'a ResultFile,
    rows: &'a [&'a str],
    looks: &'a Looks<'a>,
}

impl Panel<'_> {
    fn draw(&self, canvas: &mut Canvas, cell: Area) {
        let everyone = contenders(self.result);
        let numbers = || everyone.iter().filter_map(|who| who.stats(METRIC));
        let longest = numbers().map(|stats| Letters::new(SMALL).width(&digits(stats.median)));
        let room = longest.fold(0.0, f64::max) + 10.0;
        let area = Area {
            x: cell.x,
            y: cell.y + HEAD,
            w: cell.w - room - 8.0,
            h: ROW * self.rows.len() as f64,
        };
        let scale = scale(numbers(), self.lines());
        let unit = match scale {
            Scale::Log { .. } => "GB/s, log axis",
            Scale::Linear { .. } => "GB/s",
        };
        let name = plot_title(self.result);
        title(canvas, &name, (area.x, cell.y + PLAIN + 1.0), cell.w - 8.0);
        x_axis(canvas, &Axis::new(unit, scale), area);
        for (who, y) in self.bars(&everyone, cell) {
            if let Some((who, stats)) = who.and_then(|who| Some((who, who.stats(METRIC)?))) {
                let (look, y) = (self.looks.of(who.name), y - BAR / 2.0);
                let w = (scale.place(stats.median) * area.w).max(1.0);
                let bar = Area {
                    x: area.x,
                    y,
                    w,
                    h: BAR,
                };
                canvas.bar(bar, look.color, look.hatch);
            }
        }
        let foot = (area.x, area.bottom());
        canvas.line((area.x, area.y), foot, Ink::solid(TEXT, 1.0));
        let link = self.result.environment.link_gbps;
        lines(canvas, (area, scale), link, target(self.result));
        for (who, y) in self.bars(&everyone, cell) {
            words(canvas, who, (area, y), scale, area.w + room);
        }
    }

    /// Who is in each row, and where it is.
    fn bars<'c>(
        &self,
        everyone: &'c [Contender<'c>],
        cell: Area,
    ) -> impl Iterator<Item = (Option<&'c Contender<'c>>, f64)> {
        let of = |name: &&str| everyone.iter().find(|who| who.name == *name);
        self.rows.iter().map(of).zip(middles(cell))
    }

    fn lines(&self) -> impl Iterator<Item = f64> {
        self.result
            .environment
            .link_gbps
            .into_iter()
            .chain(target(self.result))
    }
}

/// What is said of a contender beside its bar, over all lines: its number and its range, or its fate.
fn words(
    canvas: &mut Canvas,
    who: Option<&Contender<'_>>,
    at: (Area, f64),
    scale: Scale,
    room: f64,
) {
    let (area, y) = at;
    let Some(stats) = who.and_then(|who| who.stats(METRIC)) else {
        let text = who.map_or("not tried".to_owned(), Contender::fate);
        let text = fit(&text, SMALL, Weight::Regular, room - 6.0);
        return on_white(
            canvas,
            (area.x + 6.0, y),
            &text,
            Letters::new(SMALL).quiet(),
        );
    };
    let x = |value| area.x + scale.place(value) * area.w;
    let (low, high) = (x(stats.min), x(stats.max));
    let text = digits(stats.median);
    on_white(
        canvas,
        (high.max(x(stats.median)) + 6.0, y),
        &text,
        Letters::new(SMALL),
    );
    if high - low >= 1.0 {
        let ink = Ink::solid(TEXT, 1.3);
        canvas.line((low, y), (high, y), ink);
        for x in [low, high] {
            canvas.line((x, y - 3.5), (x, y + 3.5), ink);
        }
    }
}

/// Words that a line behind them does not strike out.
fn on_white(canvas: &mut Canvas, at: (f64, f64), text: &str, letters: Letters) {
    let (w, h) = (letters.width(text), letters.size);
    let behind = Area {
        x: at.0 - 1.5,
        y: at.1 - h * 0.62,
        w: w + 3.0,
        h: h * 1.24,
    };
    canvas.rect(behind, "#ffffff");
    canvas.text((at.0, at.1 + h * 0.36), text, letters);
}

/// Evenly from nothing, unless some bar would be too short to see.
fn scale<'a>(numbers: impl Iterator<Item = &'a Stats>, lines: impl Iterator<Item = f64>) -> Scale {
    let mut values: Vec<f64> = numbers.flat_map(|stats| [stats.min, stats.max]).collect();
    values.extend(lines);
    let positive = values.iter().copied().filter(|value| *value > 0.0);
    let (low, high) = positive.fold((f64::INFINITY, 0.0), |(low, high), value: f64| {
        (value.min(low), value.max(high))
    });
    if high / low > FAR {
        return Scale::log(values.into_iter().chain([low / 2.0]));
    }
    Scale::from_zero(values, 6)
}

/// Lines through all bars: what the link gives and what was to be reached. Their names stand one above
/// the other, over both lines, so that no line goes through a name.
fn lines(canvas: &mut Canvas, on: (Area, Scale), link: Option<f64>, target: Option<f64>) {
    let (area, scale) = on;
    let both = [("link", link, LIMIT, 1.0), ("target", target, TARGET, 0.0)];
    let both = both.map(|(name, value, ink, row)| {
        let place = |value| area.x + scale.place(value) * area.w;
        value.map(|value| (name, value, place(value), ink, 14.0 * row))
    });
    for (_, _, x, ink, above) in both.into_iter().flatten() {
        canvas.line((x, area.y - above - 12.0), (x, area.bottom()), ink);
    }
    for (name, value, x, _, above) in both.into_iter().flatten() {
        let (text, letters) = (format!("{name} {}", digits(value)), Letters::new(SMALL));
        let at = (x + 5.0).min(area.right() + 40.0 - letters.width(&text));
        on_white(canvas, (at, area.y - above - 8.0), &text, letters);
    }
}
