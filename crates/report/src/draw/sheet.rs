//! Layout of a figure: title, legend, and a cell for each plot.

use super::{
    axes::{MARK, PLAIN},
    canvas::Canvas,
    drawing::{LineStyle, TEXT, TextStyle},
    font::{self, FontWeight},
    rect::Rect,
    style::{Dash, Marker},
};

/// Margin around the figure.
const MARGIN: f64 = 10.0;
/// Distance between plots.
const APART: f64 = 16.0;
/// Font size of the figure title.
const TITLE: f64 = 14.0;
/// Height of a row of the legend.
const ROW: f64 = 18.0;
/// Width of the line sample of a legend entry.
const SAMPLE: f64 = 26.0;
/// Distance between the sample of a legend entry and its label.
const GAP: f64 = 6.0;
/// Distance between two legend entries.
const BETWEEN: f64 = 18.0;
/// Dashed line style for limits, such as a memory budget.
pub const LIMIT: LineStyle = LineStyle {
    color: TEXT,
    width: 1.4,
    dash: Dash::Dashed,
};

/// Sample that a legend entry shows beside its label.
#[derive(Clone, Copy, Debug)]
pub enum LegendSample {
    /// A line, with a marker where the data points have one.
    Line(LineStyle, Option<Marker>),
    /// A marker without a line.
    Mark(Marker, &'static str),
}

/// A legend entry: sample and label.
#[derive(Clone, Debug)]
pub struct LegendEntry {
    pub sample: LegendSample,
    pub label: String,
}

impl LegendEntry {
    pub fn new(sample: LegendSample, label: impl Into<String>) -> Self {
        let label = label.into();
        LegendEntry { sample, label }
    }
}

/// Description of a figure from which its layout is computed.
pub struct SheetLayout<'a> {
    pub title: &'a str,
    pub legend: Vec<LegendEntry>,
    /// Number of plots.
    pub plots: usize,
    /// Largest number of plots side by side.
    pub columns: usize,
    /// Width and height of one plot.
    pub size: (f64, f64),
    /// Width of the column left of the plots, for labels that a row of plots shares.
    pub lead: f64,
}

impl SheetLayout<'_> {
    /// Draws title and legend on a new canvas, and returns a cell for each plot.
    pub fn draw(self) -> (Canvas, Vec<Rect>) {
        let columns = self.plots.clamp(1, self.columns.max(1));
        let rows = self.plots.div_ceil(columns).max(1);
        let (w, h) = self.size;
        let width = self.lead + w * columns as f64 + APART * (columns - 1) as f64;
        let room = width;
        let lines = wrapped(&self.legend, room);
        let top = MARGIN
            + TITLE
            + 10.0
            + ROW * lines.len() as f64
            + if lines.is_empty() { 0.0 } else { 8.0 };
        let mut canvas = Canvas::new(
            width + 2.0 * MARGIN,
            top + h * rows as f64 + APART * (rows - 1) as f64 + MARGIN,
        );
        let title = font::fit(self.title, TITLE, FontWeight::Strong, width);
        canvas.text(
            (MARGIN, MARGIN + TITLE - 1.0),
            &title,
            TextStyle::new(TITLE).strong(),
        );
        for (i, line) in lines.iter().enumerate() {
            let y = MARGIN + TITLE + 10.0 + ROW * i as f64 + ROW / 2.0;
            entries(&mut canvas, line, (MARGIN, y), room);
        }
        let place = |i: usize| Rect {
            x: MARGIN + self.lead + (w + APART) * (i % columns) as f64,
            y: top + (h + APART) * (i / columns) as f64,
            w,
            h,
        };
        (canvas, (0..self.plots).map(place).collect())
    }
}

fn entry_width(entry: &LegendEntry) -> f64 {
    SAMPLE + GAP + TextStyle::new(PLAIN).width(&entry.label) + BETWEEN
}

/// Distributes the legend entries over as many rows as they need.
fn wrapped(legend: &[LegendEntry], room: f64) -> Vec<Vec<&LegendEntry>> {
    let mut rows: Vec<Vec<&LegendEntry>> = Vec::new();
    let mut free = 0.0;
    for entry in legend {
        let wide = entry_width(entry);
        match rows.last_mut() {
            Some(row) if wide - BETWEEN <= free => row.push(entry),
            _ => {
                rows.push(vec![entry]);
                free = room;
            }
        }
        free -= wide;
    }
    rows
}

fn entries(canvas: &mut Canvas, row: &[&LegendEntry], at: (f64, f64), room: f64) {
    let (mut x, y) = at;
    for entry in row {
        sample(canvas, entry.sample, (x, y));
        let letters = TextStyle::new(PLAIN);
        let label = font::fit(
            &entry.label,
            PLAIN,
            FontWeight::Regular,
            room - SAMPLE - GAP,
        );
        canvas.text((x + SAMPLE + GAP, y + PLAIN * 0.36), &label, letters);
        x += entry_width(entry);
    }
}

fn sample(canvas: &mut Canvas, sample: LegendSample, (x, y): (f64, f64)) {
    let middle = (x + SAMPLE / 2.0, y);
    match sample {
        LegendSample::Line(ink, marker) => {
            canvas.line((x, y), (x + SAMPLE, y), ink);
            if let Some(marker) = marker {
                canvas.marker(marker, middle, MARK, ink.color);
            }
        }
        LegendSample::Mark(marker, color) => canvas.marker(marker, middle, MARK + 0.6, color),
    }
}
