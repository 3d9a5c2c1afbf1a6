//! Figure: effective bandwidth, with a bar for each contender and a line for the rate of the link.

use super::figure::MissingData;
use crate::{
    contender::{Contender, SeriesStyles, contenders, label},
    draw::{
        Anchor, Axis, Canvas, Dash, Drawing, FontWeight, LIMIT, LineStyle, PLAIN, Rect, SMALL,
        Scale, SheetLayout, TEXT, TextStyle, fit, title, x_axis,
    },
    format::digits,
    result::{MetricTarget, ResultFile, Stats},
};

const METRIC: &str = "effective_bandwidth_gbps";
/// Height of a row: a bar and the gap below it.
const ROW: f64 = 26.0;
/// Height of a bar.
const BAR: f64 = 16.0;
/// Height above the bars, for the title and the names of two lines.
const HEAD: f64 = 54.0;
/// Height below the bars, for the axis.
const FOOT: f64 = 44.0;
/// Width of a plot.
const PLOT: f64 = 290.0;
const COLUMNS: usize = 2;
/// Largest width of the column with contender names.
const NAMES: f64 = 190.0;
/// Ratio of the largest to the smallest value from which the axis is logarithmic.
const FAR: f64 = 40.0;
const TARGET: LineStyle = LineStyle {
    color: TEXT,
    width: 1.8,
    dash: Dash::Dotted,
};

pub fn draw(results: &[&ResultFile]) -> Result<Drawing, MissingData> {
    let has = |result: &&&ResultFile| {
        contenders(result)
            .iter()
            .any(|who| who.stats(METRIC).is_some())
    };
    let shown: Vec<&ResultFile> = results.iter().filter(has).copied().collect();
    if shown.is_empty() {
        return Err(MissingData::Metric(METRIC));
    }
    let rows = names(&shown);
    let styles = SeriesStyles::new(rows.iter().copied());
    let widest = rows
        .iter()
        .map(|name| TextStyle::new(PLAIN).width(label(name)))
        .fold(0.0, f64::max);
    let side = widest.min(NAMES) + 12.0;
    let layout = SheetLayout {
        title: "Effective bandwidth",
        legend: Vec::new(),
        plots: shown.len(),
        columns: COLUMNS,
        size: (PLOT, HEAD + ROW * rows.len() as f64 + FOOT),
        lead: side,
    };
    let (mut canvas, cells) = layout.draw();
    for (i, (result, cell)) in shown.iter().zip(cells).enumerate() {
        if i % COLUMNS == 0 {
            row_names(&mut canvas, &rows, cell, side);
        }
        let (rows, styles) = (&rows, &styles);
        BandwidthPanel {
            result,
            rows,
            styles,
        }
        .draw(&mut canvas, cell);
    }
    Ok(canvas.finish("Effective bandwidth of each contender, in GB/s"))
}

/// Returns the names of all contenders, in the order of their first appearance.
fn names<'a>(results: &[&'a ResultFile]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for who in results.iter().flat_map(|result| contenders(result)) {
        if !names.contains(&who.name) {
            names.push(who.name);
        }
    }
    names
}

/// Returns the target in GB/s; a target relative to a baseline is multiplied by its median.
fn target(result: &ResultFile) -> Option<f64> {
    let about = |target: &&MetricTarget| target.metric == METRIC;
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

/// Draws the contender names left of a row of plots.
fn row_names(canvas: &mut Canvas, rows: &[&str], cell: Rect, side: f64) {
    for (name, y) in rows.iter().zip(middles(cell)) {
        let text = fit(label(name), PLAIN, FontWeight::Regular, side - 12.0);
        let letters = TextStyle::new(PLAIN).anchor(Anchor::End);
        canvas.text((cell.x - 8.0, y + PLAIN * 0.36), &text, letters);
    }
}

/// Returns the vertical centres of the bars.
fn middles(cell: Rect) -> impl Iterator<Item = f64> {
    (0u32..).map(move |i| cell.y + HEAD + ROW * (f64::from(i) + 0.5))
}

/// The plot of one result.
struct BandwidthPanel<'a> {
    result: &'a ResultFile,
    rows: &'a [&'a str],
    styles: &'a SeriesStyles<'a>,
}

impl BandwidthPanel<'_> {
    fn draw(&self, canvas: &mut Canvas, cell: Rect) {
        let everyone = contenders(self.result);
        let numbers = || everyone.iter().filter_map(|who| who.stats(METRIC));
        let longest = numbers().map(|stats| TextStyle::new(SMALL).width(&digits(stats.median)));
        let room = longest.fold(0.0, f64::max) + 10.0;
        let area = Rect {
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
        let name = self.result.plot_title();
        title(canvas, &name, (area.x, cell.y + PLAIN + 1.0), cell.w - 8.0);
        x_axis(canvas, &Axis::new(unit, scale), area);
        for (who, y) in self.bars(&everyone, cell) {
            if let Some((who, stats)) = who.and_then(|who| Some((who, who.stats(METRIC)?))) {
                let (style, y) = (self.styles.of(who.name), y - BAR / 2.0);
                let w = (scale.place(stats.median) * area.w).max(1.0);
                let bar = Rect {
                    x: area.x,
                    y,
                    w,
                    h: BAR,
                };
                canvas.bar(bar, style.color, style.hatch);
            }
        }
        let foot = (area.x, area.bottom());
        canvas.line((area.x, area.y), foot, LineStyle::solid(TEXT, 1.0));
        let link = self.result.environment.link_gbps;
        lines(canvas, (area, scale), link, target(self.result));
        for (who, y) in self.bars(&everyone, cell) {
            value_label(canvas, who, (area, y), scale, area.w + room);
        }
    }

    /// Returns the contender and the vertical centre of each row.
    fn bars<'c>(
        &self,
        everyone: &'c [Contender<'c>],
        cell: Rect,
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

/// Draws the text beside a bar, over all lines: value and range, or the reason why there is no value.
fn value_label(
    canvas: &mut Canvas,
    who: Option<&Contender<'_>>,
    at: (Rect, f64),
    scale: Scale,
    room: f64,
) {
    let (area, y) = at;
    let Some(stats) = who.and_then(|who| who.stats(METRIC)) else {
        let text = who.map_or("not measured".to_owned(), Contender::absence);
        let text = fit(&text, SMALL, FontWeight::Regular, room - 6.0);
        return on_white(
            canvas,
            (area.x + 6.0, y),
            &text,
            TextStyle::new(SMALL).quiet(),
        );
    };
    let x = |value| area.x + scale.place(value) * area.w;
    let (low, high) = (x(stats.min), x(stats.max));
    let text = digits(stats.median);
    on_white(
        canvas,
        (high.max(x(stats.median)) + 6.0, y),
        &text,
        TextStyle::new(SMALL),
    );
    if high - low >= 1.0 {
        let ink = LineStyle::solid(TEXT, 1.3);
        canvas.line((low, y), (high, y), ink);
        for x in [low, high] {
            canvas.line((x, y - 3.5), (x, y + 3.5), ink);
        }
    }
}

/// Draws text on a white background, so that no line crosses it.
fn on_white(canvas: &mut Canvas, at: (f64, f64), text: &str, letters: TextStyle) {
    let (w, h) = (letters.width(text), letters.size);
    let behind = Rect {
        x: at.0 - 1.5,
        y: at.1 - h * 0.62,
        w: w + 3.0,
        h: h * 1.24,
    };
    canvas.rect(behind, "#ffffff");
    canvas.text((at.0, at.1 + h * 0.36), text, letters);
}

/// Chooses a linear scale from zero, or a logarithmic one if a bar would be too short to see.
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

/// Draws vertical lines for the rate of the link and the target. Their names are stacked above both lines,
/// so that no line crosses a name.
fn lines(canvas: &mut Canvas, on: (Rect, Scale), link: Option<f64>, target: Option<f64>) {
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
        let (text, letters) = (format!("{name} {}", digits(value)), TextStyle::new(SMALL));
        let at = (x + 5.0).min(area.right() + 40.0 - letters.width(&text));
        on_white(canvas, (at, area.y - above - 8.0), &text, letters);
    }
}
