//! PNG of a drawing. Text is drawn as the outlines of its glyphs.

use tiny_skia::{
    FillRule, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect as SkiaRect, Stroke, StrokeDash,
    Transform,
};
use ttf_parser::OutlineBuilder;

use super::{
    drawing::{Drawing, DrawnShape, LineStyle, Position, ShapePaint, TextStyle, rgb},
    font::{self, PlacedGlyph},
    rect::Rect,
};

/// Resolution of the PNG files, in pixels per inch.
const DPI: f32 = 200.0;
/// SVG units per inch.
const UNITS: f32 = 96.0;

/// Reasons why a drawing cannot be rendered as PNG.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The drawing has no size, or one too large for memory.
    #[error("the figure has size zero or is too large to render")]
    Size,
    /// The PNG could not be encoded.
    #[error("PNG encoding failed: {0}")]
    Encoding(String),
}

/// Renders a drawing as PNG on a white background.
pub fn png(drawing: &Drawing) -> Result<Vec<u8>, RenderError> {
    let scale = DPI / UNITS;
    let pixels = |units: f64| (units as f32 * scale).round() as u32;
    let pixmap = Pixmap::new(pixels(drawing.width), pixels(drawing.height));
    let mut image = Image {
        pixels: pixmap.ok_or(RenderError::Size)?,
        scale: Transform::from_scale(scale, scale),
    };
    image.pixels.fill(tiny_skia::Color::WHITE);
    for shape in &drawing.shapes {
        image.draw(shape);
    }
    let encoded = image.pixels.encode_png();
    encoded.map_err(|error| RenderError::Encoding(error.to_string()))
}

/// Pixels, and the scale from SVG units to pixels.
struct Image {
    pixels: Pixmap,
    scale: Transform,
}

impl Image {
    fn draw(&mut self, shape: &DrawnShape) {
        match shape {
            DrawnShape::Line { points, ink } => self.line(points, *ink),
            DrawnShape::Rect { area, fill } => {
                let Rect { x, y, w, h } = *area;
                let area = SkiaRect::from_xywh(x as f32, y as f32, w as f32, h as f32);
                self.fill(area.map(PathBuilder::from_rect), fill);
            }
            DrawnShape::Polygon { points, paint } => self.closed(outline(points, true), *paint),
            DrawnShape::Circle {
                centre: (x, y),
                radius,
                paint,
            } => {
                let circle = PathBuilder::from_circle(*x as f32, *y as f32, *radius as f32);
                self.closed(circle, *paint);
            }
            DrawnShape::Text {
                at,
                text,
                letters,
                vertical,
            } => self.text(*at, text, *letters, *vertical),
        }
    }

    fn line(&mut self, points: &[Position], ink: LineStyle) {
        let stroke = Stroke {
            width: ink.width as f32,
            line_join: LineJoin::Round,
            dash: StrokeDash::new(ink.dash.pattern().to_vec(), 0.0),
            ..Stroke::default()
        };
        self.stroke(outline(points, false), ink.color, &stroke);
    }

    fn closed(&mut self, path: Option<Path>, paint: ShapePaint) {
        self.fill(path.clone(), paint.fill);
        let stroke = Stroke {
            width: paint.edge_width as f32,
            ..Stroke::default()
        };
        self.stroke(path, paint.edge, &stroke);
    }

    fn text(&mut self, at: Position, text: &str, letters: TextStyle, vertical: bool) {
        let face = letters.weight.face();
        let scale = (letters.size / f64::from(face.units_per_em())) as f32;
        for PlacedGlyph { glyph, x, .. } in font::glyphs(text, letters.size, letters.weight) {
            let along = x - letters.anchor_offset(text);
            // Glyphs have their y axis upwards.
            let place = match vertical {
                false => {
                    Transform::from_row(scale, 0.0, 0.0, -scale, (at.0 + along) as f32, at.1 as f32)
                }
                true => Transform::from_row(
                    0.0,
                    -scale,
                    -scale,
                    0.0,
                    at.0 as f32,
                    (at.1 - along) as f32,
                ),
            };
            let mut outline = GlyphPath(PathBuilder::new());
            face.outline_glyph(glyph, &mut outline);
            let path = outline.0.finish().and_then(|path| path.transform(place));
            self.fill(path, letters.color);
        }
    }

    fn fill(&mut self, path: Option<Path>, color: &str) {
        let Some(path) = path else { return };
        let (paint, scale) = (paint(color), self.scale);
        self.pixels
            .fill_path(&path, &paint, FillRule::Winding, scale, None);
    }

    fn stroke(&mut self, path: Option<Path>, color: &str, stroke: &Stroke) {
        let Some(path) = path else { return };
        let (paint, scale) = (paint(color), self.scale);
        self.pixels.stroke_path(&path, &paint, stroke, scale, None);
    }
}

fn paint(color: &str) -> Paint<'static> {
    let [r, g, b] = rgb(color);
    let mut paint = Paint::default();
    paint.set_color_rgba8(r, g, b, 255);
    paint
}

fn outline(points: &[Position], close: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        let (x, y) = (x as f32, y as f32);
        match i {
            0 => path.move_to(x, y),
            _ => path.line_to(x, y),
        }
    }
    if close {
        path.close();
    }
    path.finish()
}

/// Path of a glyph under construction, in units of the font.
struct GlyphPath(PathBuilder);

impl OutlineBuilder for GlyphPath {
    fn move_to(&mut self, x: f32, y: f32) {
        self.0.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.0.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.0.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.0.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.0.close();
    }
}
