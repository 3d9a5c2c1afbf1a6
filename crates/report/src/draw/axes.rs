//! A plot with two axes, and data on it.

use super::{
    canvas::{Anchor, Area, Canvas, GRID, Ink, Letters, QUIET},
    font::{self, Weight},
    scale::{Scale, Tick},
    style::Look,
};

/// Size of numbers on axes.
pub const SMALL: f64 = 11.0;
/// Size of other text.
pub const PLAIN: f64 = 12.0;
/// Size of a mark at a point.
pub const MARK: f64 = 3.6;
/// Between an axis and its numbers.
const GAP: f64 = 6.0;

/// An axis: what is on it, and how.
pub struct Axis<'a> {
    pub label: &'a str,
    pub scale: Scale,
    /// Marks other than those of the scale: at what was measured.
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

/// What a plot is made from.
pub struct Frame<'a> {
    pub title: &'a str,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
}

/// A plot that data is drawn on.
pub struct Plot {
    pub area: Area,
    x: Scale,
    y: Scale,
}

impl Frame<'_> {
    /// Draws all but the data.
    pub fn draw(&self, canvas: &mut Canvas, outer: Area) -> Plot {
        let ticks = self.y.ticks();
        let small = Letters::new(SMALL);
        let wide = ticks
            .iter()
            .map(|tick| small.width(&tick.label))
            .fold(0.0, f64::max);
        let left = PLAIN + 8.0 + wide + GAP;
        let top = if self.title.is_empty() { 8.0 } else { 24.0 };
        let bottom = SMALL + GAP + PLAIN + 10.0;
        let area = Area {
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

    fn y_axis(&self, canvas: &mut Canvas, area: Area, label_x: f64) {
        for tick in self.y.ticks() {
            let y = area.bottom() - self.y.scale.place(tick.at) * area.h;
            canvas.line((area.x, y), (area.right(), y), Ink::solid(GRID, 0.8));
            let letters = Letters::new(SMALL).anchor(Anchor::End);
            canvas.text((area.x - GAP, y + SMALL * 0.36), &tick.label, letters);
        }
        let middle = (label_x, area.y + area.h / 2.0);
        let label = font::fit(self.y.label, PLAIN, Weight::Regular, area.h + 40.0);
        canvas.upward(middle, &label, Letters::new(PLAIN).anchor(Anchor::Middle));
    }
}

/// The title of a plot, as much as there is room for.
pub fn title(canvas: &mut Canvas, text: &str, at: (f64, f64), room: f64) {
    let text = font::fit(text, PLAIN, Weight::Strong, room);
    canvas.text(at, &text, Letters::new(PLAIN).strong());
}

/// The axis below a plot, with its numbers and its label.
pub fn x_axis(canvas: &mut Canvas, axis: &Axis<'_>, area: Area) {
    let (bottom, letters) = (area.bottom(), Letters::new(SMALL).anchor(Anchor::Middle));
    canvas.line(
        (area.x, bottom),
        (area.right(), bottom),
        Ink::solid(QUIET, 1.0),
    );
    let mut free = f64::NEG_INFINITY;
    for tick in axis.ticks() {
        let x = area.x + axis.scale.place(tick.at) * area.w;
        canvas.line((x, bottom), (x, bottom + 4.0), Ink::solid(QUIET, 1.0));
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
        Letters::new(PLAIN).anchor(Anchor::Middle),
    );
}

impl Plot {
    /// Where a point lies on the canvas.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let area = self.area;
        (
            area.x + self.x.place(x) * area.w,
            area.bottom() - self.y.place(y) * area.h,
        )
    }

    /// A line through points, each of which no finer than a pixel.
    pub fn line(&self, canvas: &mut Canvas, points: &[(f64, f64)], ink: Ink) {
        let places: Vec<(f64, f64)> = points.iter().map(|(x, y)| self.at(*x, *y)).collect();
        canvas.polyline(&thinned(&places), ink);
    }

    /// A level from side to side.
    pub fn level(&self, canvas: &mut Canvas, y: f64, ink: Ink) {
        let (_, y) = self.at(0.0, y);
        canvas.line((self.area.x, y), (self.area.right(), y), ink);
    }

    /// From the smallest to the largest of a point.
    pub fn whisker(&self, canvas: &mut Canvas, x: f64, range: (f64, f64), color: &'static str) {
        let (x, low) = self.at(x, range.0);
        let (_, high) = self.at(0.0, range.1);
        if low - high < 1.0 {
            return;
        }
        let ink = Ink::solid(color, 1.0);
        canvas.line((x, low), (x, high), ink);
        for y in [low, high] {
            canvas.line((x - 2.5, y), (x + 2.5, y), ink);
        }
    }

    /// Points with their marks.
    pub fn marks(&self, canvas: &mut Canvas, points: &[(f64, f64)], look: Look) {
        for (x, y) in points {
            canvas.marker(look.marker, self.at(*x, *y), MARK, look.color);
        }
    }
}

/// What is left of a line when of all points in a column of a pixel only the first, the lowest, the
/// highest and the last stay: it looks the same, and the file stays small.
fn thinned(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
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
    use super::thinned;

    #[test]
    fn a_long_line_keeps_its_peaks() {
        let peak = |i: u32| if i == 5_500 { 90.0 } else { f64::from(i % 3) };
        let places: Vec<(f64, f64)> = (0..10_000)
            .map(|i| (f64::from(i) / 50.0, peak(i)))
            .collect();
        let kept = thinned(&places);
        assert!(kept.len() <= 4 * 200, "{}", kept.len());
        assert!(kept.contains(&(110.0, 90.0)));
        assert_eq!((kept[0], kept[kept.len() - 1]), (places[0], places[9_999]));
        assert_eq!(thinned(&places[..9]), places[..9]);
    }
}
