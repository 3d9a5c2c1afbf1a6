//! An SVG canvas: lines, rectangles, markers and text, appended in drawing order.

use std::fmt::Write;

use super::{
    font::{self, FontWeight},
    rect::Rect,
    style::{Dash, Hatch, Marker},
};

/// Colour of text.
pub const TEXT: &str = "#222222";
/// Colour of secondary text: axis lines and notes.
pub const QUIET: &str = "#666666";
/// Colour of grid lines.
pub const GRID: &str = "#e2e2e2";

/// Colour, width and dash pattern of a line.
#[derive(Clone, Copy, Debug)]
pub struct LineStyle {
    pub color: &'static str,
    pub width: f64,
    pub dash: Dash,
}

impl LineStyle {
    pub fn solid(color: &'static str, width: f64) -> Self {
        let dash = Dash::Solid;
        LineStyle { color, width, dash }
    }
}

/// Horizontal alignment of text relative to its position.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Size, weight, colour and alignment of text.
#[derive(Clone, Copy, Debug)]
pub struct TextStyle {
    pub size: f64,
    pub weight: FontWeight,
    pub color: &'static str,
    pub anchor: Anchor,
}

impl TextStyle {
    pub fn new(size: f64) -> Self {
        TextStyle {
            size,
            weight: FontWeight::Regular,
            color: TEXT,
            anchor: Anchor::Start,
        }
    }

    pub fn strong(mut self) -> Self {
        self.weight = FontWeight::Strong;
        self
    }

    pub fn quiet(mut self) -> Self {
        self.color = QUIET;
        self
    }

    pub fn anchor(mut self, anchor: Anchor) -> Self {
        self.anchor = anchor;
        self
    }

    pub fn width(&self, text: &str) -> f64 {
        font::width(text, self.size, self.weight)
    }
}

/// An SVG document under construction.
pub struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

/// A coordinate as SVG text: rounded to two decimals, and 0 where the value is not finite.
struct Coordinate(f64);

impl std::fmt::Display for Coordinate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = if self.0.is_finite() { self.0 } else { 0.0 };
        let rounded = (value * 100.0).round() / 100.0;
        write!(f, "{}", rounded + 0.0)
    }
}

/// Escapes text for XML and replaces control characters by spaces.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                safe.push(' ');
            }
            letter => safe.push(letter),
        }
    }
    safe
}

impl Canvas {
    pub fn new(width: f64, height: f64) -> Self {
        Canvas {
            width: width.ceil(),
            height: height.ceil(),
            body: String::new(),
        }
    }

    /// Returns the whole SVG document; `title` is the text that screen readers speak.
    pub fn svg(&self, title: &str) -> String {
        let (w, h, title) = (
            Coordinate(self.width),
            Coordinate(self.height),
            escape(title),
        );
        let family = font::FAMILY;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
             viewBox=\"0 0 {w} {h}\" font-family=\"{family}\" role=\"img\">\n\
             <title>{title}</title>\n\
             <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        self.body
            .write_fmt(line)
            .expect("writing to a String cannot fail");
        self.body.push('\n');
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), ink: LineStyle) {
        self.polyline(&[from, to], ink);
    }

    pub fn polyline(&mut self, points: &[(f64, f64)], ink: LineStyle) {
        if points.len() < 2 {
            return;
        }
        let mut path = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let step = if i == 0 { 'M' } else { 'L' };
            write!(path, "{step}{} {}", Coordinate(*x), Coordinate(*y))
                .expect("writing to a String cannot fail");
        }
        let dash = match ink.dash.pattern() {
            "" => String::new(),
            pattern => format!(" stroke-dasharray=\"{pattern}\""),
        };
        let (color, width) = (ink.color, Coordinate(ink.width));
        self.put(format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"{dash}/>"
        ));
    }

    pub fn rect(&mut self, area: Rect, fill: &str) {
        let Rect { x, y, w, h } = area;
        let (x, y, w, h) = (
            Coordinate(x),
            Coordinate(y),
            Coordinate(w.max(0.0)),
            Coordinate(h.max(0.0)),
        );
        self.put(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"{fill}\"/>"
        ));
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

    pub fn marker(&mut self, marker: Marker, at: (f64, f64), size: f64, color: &'static str) {
        let (x, y) = at;
        if marker == Marker::Cross {
            let ink = LineStyle::solid(color, 2.2);
            self.line((x - size, y - size), (x + size, y + size), ink);
            return self.line((x - size, y + size), (x + size, y - size), ink);
        }
        let fill = if marker.hollow() { "#ffffff" } else { color };
        let edge = if marker.hollow() { color } else { "#ffffff" };
        let width = if marker.hollow() { 1.5 } else { 0.8 };
        let corners = marker.corners();
        if corners.is_empty() {
            let (x, y, r) = (Coordinate(x), Coordinate(y), Coordinate(size));
            return self.put(format_args!(
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" fill=\"{fill}\" stroke=\"{edge}\" \
                 stroke-width=\"{width}\"/>"
            ));
        }
        let place = |(i, (dx, dy)): (usize, &(f64, f64))| {
            let step = if i == 0 { 'M' } else { 'L' };
            format!(
                "{step}{} {}",
                Coordinate(x + dx * size),
                Coordinate(y + dy * size)
            )
        };
        let path: String = corners.iter().enumerate().map(place).collect();
        self.put(format_args!(
            "<path d=\"{path}Z\" fill=\"{fill}\" stroke=\"{edge}\" stroke-width=\"{width}\"/>"
        ));
    }

    pub fn text(&mut self, at: (f64, f64), text: &str, letters: TextStyle) {
        self.write(at, text, letters, "");
    }

    /// Draws text rotated by 90 degrees, read from bottom to top.
    pub fn vertical_text(&mut self, at: (f64, f64), text: &str, letters: TextStyle) {
        let rotation = format!(
            " transform=\"rotate(-90 {} {})\"",
            Coordinate(at.0),
            Coordinate(at.1)
        );
        self.write(at, text, letters, &rotation);
    }

    fn write(&mut self, at: (f64, f64), text: &str, letters: TextStyle, more: &str) {
        let (x, y, text) = (Coordinate(at.0), Coordinate(at.1), escape(text));
        let anchor = match letters.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let weight = match letters.weight {
            FontWeight::Regular => String::new(),
            strong => format!(" font-weight=\"{}\"", strong.number()),
        };
        let (size, color) = (letters.size, letters.color);
        self.put(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{color}\"{weight}{anchor}{more}>\
             {text}</text>"
        ));
    }
}

/// Returns the colour mixed with 70 % white.
fn pale(color: &str) -> String {
    let part = |i: usize| {
        let value = color
            .get(i..i + 2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let value = f64::from(value.unwrap_or(0));
        (255.0 - (255.0 - value) * 0.3).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", part(1), part(3), part(5))
}

#[cfg(test)]
mod tests {
    use super::{Canvas, LineStyle, Rect, TextStyle, escape, pale};

    #[test]
    fn any_input_gives_well_formed_svg() {
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.text((1.0, f64::NAN), "<a & \"b\">\u{0}", TextStyle::new(9.0));
        canvas.line(
            (0.0, f64::INFINITY),
            (1.0 / 3.0, -0.001),
            LineStyle::solid("#000000", 1.0),
        );
        canvas.rect(
            Rect {
                x: 0.0,
                y: 0.0,
                w: -4.0,
                h: 1.0,
            },
            "#000000",
        );
        let svg = canvas.svg("a <title>");
        assert!(
            svg.contains("&lt;a &amp; &quot;b&quot;&gt; </text>"),
            "{svg}"
        );
        assert!(svg.contains("M0 0L0.33 0\""), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(escape("a\nb"), "a b");
        assert_eq!(pale("#000000"), "#b3b3b3");
    }
}
