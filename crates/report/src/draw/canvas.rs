//! A canvas: lines, rectangles, bars, markers and text become the shapes of a drawing.

use super::{
    drawing::{Drawing, DrawnShape, LineStyle, Position, ShapePaint, TextStyle, rgb},
    rect::Rect,
    style::{Hatch, Marker},
};

/// A drawing under construction.
pub struct Canvas {
    width: f64,
    height: f64,
    shapes: Vec<DrawnShape>,
}

/// Rounds a coordinate to two decimals. A coordinate that is not finite becomes 0.
fn rounded(value: f64) -> f64 {
    let rounded = (value * 100.0).round() / 100.0;
    if rounded.is_finite() {
        // Adding 0 turns -0 into 0.
        rounded + 0.0
    } else {
        0.0
    }
}

fn rounded_point((x, y): Position) -> Position {
    (rounded(x), rounded(y))
}

impl Canvas {
    pub fn new(width: f64, height: f64) -> Self {
        Canvas {
            width: width.ceil(),
            height: height.ceil(),
            shapes: Vec::new(),
        }
    }

    /// Returns the drawing; `title` is the text that screen readers speak.
    pub fn finish(self, title: &str) -> Drawing {
        Drawing {
            title: title.to_owned(),
            width: rounded(self.width),
            height: rounded(self.height),
            shapes: self.shapes,
        }
    }

    pub fn line(&mut self, from: Position, to: Position, ink: LineStyle) {
        self.polyline(&[from, to], ink);
    }

    pub fn polyline(&mut self, points: &[Position], ink: LineStyle) {
        if points.len() < 2 {
            return;
        }
        let points = points.iter().copied().map(rounded_point).collect();
        self.shapes.push(DrawnShape::Line { points, ink });
    }

    pub fn rect(&mut self, area: Rect, fill: &str) {
        let area = Rect {
            x: rounded(area.x),
            y: rounded(area.y),
            w: rounded(area.w.max(0.0)),
            h: rounded(area.h.max(0.0)),
        };
        let fill = fill.to_owned();
        self.shapes.push(DrawnShape::Rect { area, fill });
    }

    /// Draws a bar: a pale fill with an outline and a hatch, so that bars differ without colour as well.
    pub fn bar(&mut self, area: Rect, color: &'static str, hatch: Hatch) {
        if hatch == Hatch::Full {
            return self.rect(area, color);
        }
        self.rect(area, &pale(color));
        for (from, to) in hatch.lines(area) {
            self.line(from, to, LineStyle::solid(color, 1.0));
        }
        let (r, b) = (area.right(), area.bottom());
        let outline = [
            (area.x, area.y),
            (r, area.y),
            (r, b),
            (area.x, b),
            (area.x, area.y),
        ];
        self.polyline(&outline, LineStyle::solid(color, 1.0));
    }

    pub fn marker(&mut self, marker: Marker, at: Position, size: f64, color: &'static str) {
        let (x, y) = at;
        if marker == Marker::Cross {
            let ink = LineStyle::solid(color, 2.2);
            self.line((x - size, y - size), (x + size, y + size), ink);
            return self.line((x - size, y + size), (x + size, y - size), ink);
        }
        let (fill, edge, edge_width) = match marker.hollow() {
            true => ("#ffffff", color, 1.5),
            false => (color, "#ffffff", 0.8),
        };
        let paint = ShapePaint {
            fill,
            edge,
            edge_width,
        };
        let corners = marker.corners();
        self.shapes.push(match corners.is_empty() {
            true => DrawnShape::Circle {
                centre: rounded_point(at),
                radius: rounded(size),
                paint,
            },
            false => DrawnShape::Polygon {
                points: corners
                    .iter()
                    .map(|(dx, dy)| rounded_point((x + dx * size, y + dy * size)))
                    .collect(),
                paint,
            },
        });
    }

    pub fn text(&mut self, at: Position, text: &str, letters: TextStyle) {
        self.write(at, text, letters, false);
    }

    /// Draws text rotated by 90 degrees, read from bottom to top.
    pub fn vertical_text(&mut self, at: Position, text: &str, letters: TextStyle) {
        self.write(at, text, letters, true);
    }

    fn write(&mut self, at: Position, text: &str, letters: TextStyle, vertical: bool) {
        self.shapes.push(DrawnShape::Text {
            at: rounded_point(at),
            text: text.to_owned(),
            letters,
            vertical,
        });
    }
}

/// Returns the colour mixed with 70 % white.
fn pale(color: &str) -> String {
    let [r, g, b] = rgb(color).map(|part| (255.0 - (255.0 - f64::from(part)) * 0.3).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::{Canvas, DrawnShape, LineStyle, pale, rounded};

    #[test]
    fn coordinates_are_rounded_and_finite() {
        assert_eq!(rounded(1.0 / 3.0), 0.33);
        for value in [f64::NAN, f64::INFINITY, f64::MAX] {
            assert_eq!(rounded(value), 0.0);
        }
        assert!(rounded(-0.001).is_sign_positive());
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.polyline(&[(1.0, 1.0)], LineStyle::solid("#000000", 1.0));
        assert!(canvas.finish("").shapes.is_empty());
    }

    #[test]
    fn hatched_bars_have_a_pale_fill() {
        assert_eq!(pale("#000000"), "#b3b3b3");
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.rect(
            super::Rect {
                x: 0.0,
                y: 0.0,
                w: -4.0,
                h: 1.0,
            },
            "#000000",
        );
        let shapes = canvas.finish("").shapes;
        assert!(matches!(&shapes[..], [DrawnShape::Rect { area, .. }] if area.w == 0.0));
    }
}
