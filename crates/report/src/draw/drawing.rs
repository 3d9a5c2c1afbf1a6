//! A drawing: shapes in drawing order, before they become SVG, PNG or PDF.

use super::{
    font::{self, FontWeight},
    rect::Rect,
    style::Dash,
};

/// Colour of text.
pub const TEXT: &str = "#222222";
/// Colour of secondary text: axis lines and notes.
pub const QUIET: &str = "#666666";
/// Colour of grid lines.
pub const GRID: &str = "#e2e2e2";

/// A point, in SVG units from the upper left corner.
pub type Position = (f64, f64);

/// A drawing with its size and its shapes, first to last.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Text that screen readers speak.
    pub title: String,
    pub width: f64,
    pub height: f64,
    pub shapes: Vec<DrawnShape>,
}

/// A shape of a drawing. All coordinates are finite.
#[derive(Clone, Debug)]
pub enum DrawnShape {
    /// An open line of at least two points.
    Line {
        points: Vec<Position>,
        ink: LineStyle,
    },
    /// A filled rectangle without an outline.
    Rect { area: Rect, fill: String },
    /// A filled polygon with an outline.
    Polygon {
        points: Vec<Position>,
        paint: ShapePaint,
    },
    /// A filled circle with an outline.
    Circle {
        centre: Position,
        radius: f64,
        paint: ShapePaint,
    },
    /// A line of text. Vertical text is read from bottom to top.
    Text {
        at: Position,
        text: String,
        letters: TextStyle,
        vertical: bool,
    },
}

/// Fill and outline of a closed shape.
#[derive(Clone, Copy, Debug)]
pub struct ShapePaint {
    pub fill: &'static str,
    pub edge: &'static str,
    pub edge_width: f64,
}

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

    /// Returns the distance from the start of a text to its anchor.
    pub fn anchor_offset(&self, text: &str) -> f64 {
        match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => self.width(text) / 2.0,
            Anchor::End => self.width(text),
        }
    }
}

/// Returns the red, green and blue of a colour in the form `#rrggbb`, each from 0 to 255.
pub fn rgb(color: &str) -> [u8; 3] {
    [1, 3, 5].map(|i| {
        let hex = color.get(i..i + 2);
        hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())
            .unwrap_or(0)
    })
}
