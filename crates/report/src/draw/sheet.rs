//! A figure's sheet: its title, its legend, and places for plots.

use super::{
    axes::{MARK, PLAIN},
    canvas::{Area, Canvas, Ink, Letters, TEXT},
    font::{self, Weight},
    style::{Dash, Marker},
};

/// Around everything.
const MARGIN: f64 = 10.0;
/// Between plots.
const APART: f64 = 16.0;
/// Size of a figure's title.
const TITLE: f64 = 14.0;
/// From one row of the legend to the next.
const ROW: f64 = 18.0;
/// Length of a legend's sample.
const SAMPLE: f64 = 26.0;
/// Between a sample and its words, and between entries.
const GAP: f64 = 6.0;
const BETWEEN: f64 = 18.0;
/// A dashed line for what must not be passed.
pub const LIMIT: Ink = Ink {
    color: TEXT,
    width: 1.4,
    dash: Dash::Dashed,
};

/// What an entry of a legend shows.
#[derive(Clone, Copy, Debug)]
pub enum Sample {
    /// A line, with a mark where points have one.
    Line(Ink, Option<Marker>),
    /// A mark alone.
    Mark(Marker, &'static str),
}

/// An entry of a legend.
#[derive(Clone, Debug)]
pub struct Entry {
    pub sample: Sample,
    pub label: String,
}

impl Entry {
    pub fn new(sample: Sample, label: impl Into<String>) -> Self {
        let label = label.into();
        Entry { sample, label }
    }
}

/// What a sheet is to hold.
pub struct Plan<'a> {
    pub title: &'a str,
    pub legend: Vec<Entry>,
    /// How many plots.
    pub plots: usize,
    /// Side by side at most.
    pub columns: usize,
    /// Of one plot.
    pub size: (f64, f64),
    /// Left of all plots, for what rows of them share.
    pub lead: f64,
}

impl Plan<'_> {
    /// The sheet with its title and legend, and a place for each plot.
    pub fn lay(self) -> (Canvas, Vec<Area>) {
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
        let title = font::fit(self.title, TITLE, Weight::Strong, width);
        canvas.text(
            (MARGIN, MARGIN + TITLE - 1.0),
            &title,
            Letters::new(TITLE).strong(),
        );
        for (i, line) in lines.iter().enumerate() {
            let y = MARGIN + TITLE + 10.0 + ROW * i as f64 + ROW / 2.0;
            entries(&mut canvas, line, (MARGIN, y), room);
        }
        let place = |i: usize| Area {
            x: MARGIN + self.lead + (w + APART) * (i % columns) as f64,
            y: top + (h + APART) * (i / columns) as f64,
            w,
            h,
        };
        (canvas, (0..self.plots).map(place).collect())
    }
}

fn entry_width(entry: &Entry) -> f64 {
    SAMPLE + GAP + Letters::new(PLAIN).width(&entry.label) + BETWEEN
}

/// Entries in as many rows as they need.
fn wrapped(legend: &[Entry], room: f64) -> Vec<Vec<&Entry>> {
    let mut rows: Vec<Vec<&Entry>> = Vec::new();
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

fn entries(canvas: &mut Canvas, row: &[&Entry], at: (f64, f64), room: f64) {
    let (mut x, y) = at;
    for entry in row {
        sample(canvas, entry.sample, (x, y));
        let letters = Letters::new(PLAIN);
        let label = font::fit(&entry.label, PLAIN, Weight::Regular, room - SAMPLE - GAP);
        canvas.text((x + SAMPLE + GAP, y + PLAIN * 0.36), &label, letters);
        x += entry_width(entry);
    }
}

fn sample(canvas: &mut Canvas, sample: Sample, (x, y): (f64, f64)) {
    let middle = (x + SAMPLE / 2.0, y);
    match sample {
        Sample::Line(ink, marker) => {
            canvas.line((x, y), (x + SAMPLE, y), ink);
            if let Some(marker) = marker {
                canvas.marker(marker, middle, MARK, ink.color);
            }
        }
        Sample::Mark(marker, color) => canvas.marker(marker, middle, MARK + 0.6, color),
    }
}
