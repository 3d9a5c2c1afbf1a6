//! Plots with two axes, and the data drawn on them.

use super::{
    canvas::Canvas,
    drawing::{Anchor, GRID, LineStyle, QUIET, TextStyle},
    font::{self, FontWeight},
    rect::Rect,
    scale::{Scale, Tick},
    style::SeriesStyle,
};

/// Font size of axis numbers.
pub const SMALL: f64 = 11.0;
/// Font size of labels and legends.
pub const PLAIN: f64 = 12.0;
/// Radius of the marker of a data point.
pub const MARK: f64 = 3.6;
/// Distance between an axis and its numbers.
const GAP: f64 = 6.0;

/// An axis: its label, scale and ticks.
pub struct Axis<'a> {
    pub label: &'a str,
    pub scale: Scale,
    /// Ticks that replace those of the scale, for example at the measured values.
    pub ticks: Option<Vec<Tick>>,
}

impl<'a> Axis<'a> {
    pub fn new(label: &'a str, scale: Scale) -> Self {
        let ticks = None;
        Axis {
            label,
            scale,
            ticks,
        }
    }

    fn ticks(&self) -> Vec<Tick> {
        self.ticks.clone().unwrap_or_else(|| self.scale.ticks())
    }
}

/// Title and axes of a plot, before its data is drawn.
pub struct PlotFrame<'a> {
    pub title: &'a str,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
}

/// The data area of a plot, with the scales that map values to positions.
pub struct Plot {
    pub area: Rect,
    x: Scale,
    y: Scale,
}

impl PlotFrame<'_> {
    /// Draws the title and the axes, and returns the plot for the data.
    pub fn draw(&self, canvas: &mut Canvas, outer: Rect) -> Plot {
        let ticks = self.y.ticks();
        let small = TextStyle::new(SMALL);
        let wide = ticks
            .iter()
            .map(|tick| small.width(&tick.label))
            .fold(0.0, f64::max);
        let left = PLAIN + 8.0 + wide + GAP;
        let top = if self.title.is_empty() { 8.0 } else { 24.0 };
        let bottom = SMALL + GAP + PLAIN + 10.0;
        let area = Rect {
            x: outer.x + left,
            y: outer.y + top,
            w: (outer.w - left - 12.0).max(40.0),
            h: (outer.h - top - bottom).max(40.0),
        };
        title(
            canvas,
            self.title,
            (area.x, outer.y + PLAIN + 1.0),
            outer.right() - area.x,
        );
        self.y_axis(canvas, area, outer.x + PLAIN);
        x_axis(canvas, &self.x, area);
        Plot {
            area,
            x: self.x.scale,
            y: self.y.scale,
        }
    }

    fn y_axis(&self, canvas: &mut Canvas, area: Rect, label_x: f64) {
        for tick in self.y.ticks() {
            let y = area.bottom() - self.y.scale.place(tick.at) * area.h;
            canvas.line((area.x, y), (area.right(), y), LineStyle::solid(GRID, 0.8));
            let letters = TextStyle::new(SMALL).anchor(Anchor::End);
            canvas.text((area.x - GAP, y + SMALL * 0.36), &tick.label, letters);
        }
        let middle = (label_x, area.y + area.h / 2.0);
        let label = font::fit(self.y.label, PLAIN, FontWeight::Regular, area.h + 40.0);
        canvas.vertical_text(middle, &label, TextStyle::new(PLAIN).anchor(Anchor::Middle));
    }
}

/// Draws the title of a plot, shortened to the available width.
pub fn title(canvas: &mut Canvas, text: &str, at: (f64, f64), room: f64) {
    let text = font::fit(text, PLAIN, FontWeight::Strong, room);
    canvas.text(at, &text, TextStyle::new(PLAIN).strong());
}

/// Draws the horizontal axis below a plot, with its numbers and label.
pub fn x_axis(canvas: &mut Canvas, axis: &Axis<'_>, area: Rect) {
    let (bottom, letters) = (area.bottom(), TextStyle::new(SMALL).anchor(Anchor::Middle));
    canvas.line(
        (area.x, bottom),
        (area.right(), bottom),
        LineStyle::solid(QUIET, 1.0),
    );
    let mut free = f64::NEG_INFINITY;
    for tick in axis.ticks() {
        let x = area.x + axis.scale.place(tick.at) * area.w;
        canvas.line((x, bottom), (x, bottom + 4.0), LineStyle::solid(QUIET, 1.0));
        let half = letters.width(&tick.label) / 2.0;
        if x - half >= free {
            canvas.text((x, bottom + GAP + SMALL), &tick.label, letters);
            free = x + half + 5.0;
        }
    }
    let middle = (area.x + area.w / 2.0, bottom + GAP + SMALL + PLAIN + 6.0);
    canvas.text(
        middle,
        axis.label,
        TextStyle::new(PLAIN).anchor(Anchor::Middle),
    );
}

impl Plot {
    /// Returns the canvas position of a data point.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let area = self.area;
        (
            area.x + self.x.place(x) * area.w,
            area.bottom() - self.y.place(y) * area.h,
        )
    }

    /// Draws a line through data points; long lines are reduced to what a pixel can show.
    pub fn line(&self, canvas: &mut Canvas, points: &[(f64, f64)], ink: LineStyle) {
        let places: Vec<(f64, f64)> = points.iter().map(|(x, y)| self.at(*x, *y)).collect();
        canvas.polyline(&decimated(&places), ink);
    }

    /// Draws a horizontal line across the whole plot.
    pub fn level(&self, canvas: &mut Canvas, y: f64, ink: LineStyle) {
        let (_, y) = self.at(0.0, y);
        canvas.line((self.area.x, y), (self.area.right(), y), ink);
    }

    /// Draws a whisker from the smallest to the largest value at `x`.
    pub fn whisker(&self, canvas: &mut Canvas, x: f64, range: (f64, f64), color: &'static str) {
        let (x, low) = self.at(x, range.0);
        let (_, high) = self.at(0.0, range.1);
        if low - high < 1.0 {
            return;
        }
        let ink = LineStyle::solid(color, 1.0);
        canvas.line((x, low), (x, high), ink);
        for y in [low, high] {
            canvas.line((x - 2.5, y), (x + 2.5, y), ink);
        }
    }

    /// Draws a marker at each data point.
    pub fn marks(&self, canvas: &mut Canvas, points: &[(f64, f64)], look: SeriesStyle) {
        for (x, y) in points {
            canvas.marker(look.marker, self.at(*x, *y), MARK, look.color);
        }
    }
}

/// Reduces a long line: of the points in one pixel column, only the first, lowest, highest and last stay.
/// The line looks the same and the file stays small.
fn decimated(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if places.len() < 500 {
        return places.to_vec();
    }
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for column in places.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        let by_height = |i: &usize, j: &usize| column[*i].1.total_cmp(&column[*j].1);
        let low = (0..column.len()).min_by(by_height).unwrap_or(0);
        let high = (0..column.len()).max_by(by_height).unwrap_or(0);
        let mut stay = vec![0, low, high, column.len() - 1];
        stay.sort_unstable();
        stay.dedup();
        kept.extend(stay.into_iter().map(|i| column[i]));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::decimated;

    #[test]
    fn decimating_a_line_keeps_its_peaks() {
        let peak = |i: u32| if i == 5_500 { 90.0 } else { f64::from(i % 3) };
        let places: Vec<(f64, f64)> = (0..10_000)
            .map(|i| (f64::from(i) / 50.0, peak(i)))
            .collect();
        let kept = decimated(&places);
        assert!(kept.len() <= 4 * 200, "{}", kept.len());
        assert!(kept.contains(&(110.0, 90.0)));
        assert_eq!((kept[0], kept[kept.len() - 1]), (places[0], places[9_999]));
        assert_eq!(decimated(&places[..9]), places[..9]);
    }
}
