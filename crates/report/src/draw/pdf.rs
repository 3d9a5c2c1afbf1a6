//! PDF of a drawing. Text stays text: the bundled font is embedded, so it can be selected and searched.

use std::collections::BTreeMap;

use miniz_oxide::deflate::compress_to_vec_zlib;
use pdf_writer::{
    Content, Filter, Finish, Name, Pdf, Rect as PdfRect, Ref, Str, TextStr,
    types::{CidFontType, FontFlags, LineJoinStyle, SystemInfo, UnicodeCmap},
};

use super::{
    drawing::{Drawing, DrawnShape, LineStyle, Position, ShapePaint, TextStyle, rgb},
    font::{self, FontWeight, PlacedGlyph},
};

/// PDF points per SVG unit.
const POINTS: f32 = 72.0 / 96.0;
/// Level of compression, from 0 to 10.
const LEVEL: u8 = 8;
/// Control points of the curve that draws a quarter of a circle, as a share of the radius.
const QUARTER: f64 = 0.552_284_75;
/// Character collection of fonts whose character ids are glyph ids.
const COLLECTION: SystemInfo<'static> = SystemInfo {
    registry: Str(b"Adobe"),
    ordering: Str(b"Identity"),
    supplement: 0,
};

/// Letters of the used glyphs, by glyph.
type UsedGlyphs = BTreeMap<u16, char>;

/// Writes a drawing as a PDF of one page.
pub fn pdf(drawing: &Drawing) -> Vec<u8> {
    let mut pdf = Pdf::new();
    let mut last = 0;
    let mut next = || {
        last += 1;
        Ref::new(last)
    };
    let [catalog, pages, page_id, contents, info] = [(); 5].map(|()| next());
    let mut page = PdfContent::new(drawing);
    for shape in &drawing.shapes {
        page.draw(shape);
    }
    let fonts: Vec<(FontWeight, &UsedGlyphs, Ref)> = page
        .fonts
        .iter()
        .map(|(weight, used)| (*weight, used, next()))
        .collect();
    pdf.catalog(catalog).pages(pages);
    pdf.pages(pages).kids([page_id]).count(1);
    let (width, height) = (drawing.width as f32, drawing.height as f32);
    let mut leaf = pdf.page(page_id);
    leaf.media_box(PdfRect::new(0.0, 0.0, width * POINTS, height * POINTS));
    leaf.parent(pages).contents(contents);
    let mut resources = leaf.resources();
    let mut names = resources.fonts();
    for (weight, _, id) in &fonts {
        names.pair(resource_name(*weight), *id);
    }
    names.finish();
    resources.finish();
    leaf.finish();
    pdf.document_info(info).title(TextStr(&drawing.title));
    let content = compress_to_vec_zlib(&page.content.finish(), LEVEL);
    pdf.stream(contents, &content).filter(Filter::FlateDecode);
    for (weight, used, id) in fonts {
        embed(&mut pdf, weight, used, id, &mut next);
    }
    pdf.finish()
}

fn resource_name(weight: FontWeight) -> Name<'static> {
    match weight {
        FontWeight::Regular => Name(b"Regular"),
        FontWeight::Strong => Name(b"Strong"),
    }
}

/// Embeds a font as `id`; character ids are glyph ids.
fn embed(
    pdf: &mut Pdf,
    weight: FontWeight,
    used: &UsedGlyphs,
    id: Ref,
    next: &mut dyn FnMut() -> Ref,
) {
    let [cid_font, descriptor, file, unicode] = [(); 4].map(|()| next());
    let (name, face) = (Name(weight.postscript_name().as_bytes()), weight.face());
    pdf.type0_font(id)
        .base_font(name)
        .encoding_predefined(Name(b"Identity-H"))
        .descendant_font(cid_font)
        .to_unicode(unicode);
    let mut font = pdf.cid_font(cid_font);
    font.subtype(CidFontType::Type2)
        .base_font(name)
        .system_info(COLLECTION)
        .font_descriptor(descriptor)
        .cid_to_gid_map_predefined(Name(b"Identity"));
    let mut widths = font.widths();
    for &glyph in used.keys() {
        let width = font::advance(ttf_parser::GlyphId(glyph), weight) * 1000.0;
        widths.consecutive(glyph, [width as f32]);
    }
    widths.finish();
    font.finish();
    let em = f32::from(face.units_per_em());
    let part = |units: i16| f32::from(units) / em * 1000.0;
    let bounds = face.global_bounding_box();
    pdf.font_descriptor(descriptor)
        .name(name)
        .flags(FontFlags::NON_SYMBOLIC)
        .bbox(PdfRect::new(
            part(bounds.x_min),
            part(bounds.y_min),
            part(bounds.x_max),
            part(bounds.y_max),
        ))
        .italic_angle(0.0)
        .ascent(part(face.ascender()))
        .descent(part(face.descender()))
        .cap_height(part(face.capital_height().unwrap_or(face.ascender())))
        .stem_v(80.0)
        .font_file2(file);
    let bytes = weight.file();
    pdf.stream(file, &compress_to_vec_zlib(bytes, LEVEL))
        .filter(Filter::FlateDecode)
        .pair(Name(b"Length1"), bytes.len() as i32);
    let mut map = UnicodeCmap::new(Name(b"Djinn"), COLLECTION);
    for (&glyph, &letter) in used {
        map.pair(glyph, letter);
    }
    pdf.stream(unicode, &map.finish());
}

/// Content of the page, and the glyphs that it uses.
struct PdfContent {
    content: Content,
    fonts: BTreeMap<FontWeight, UsedGlyphs>,
}

impl PdfContent {
    fn new(drawing: &Drawing) -> Self {
        let mut content = Content::new();
        // The y axis of a drawing points down.
        let height = drawing.height as f32 * POINTS;
        content.transform([POINTS, 0.0, 0.0, -POINTS, 0.0, height]);
        let fonts = BTreeMap::new();
        PdfContent { content, fonts }
    }

    fn draw(&mut self, shape: &DrawnShape) {
        match shape {
            DrawnShape::Line { points, ink } => self.line(points, *ink),
            DrawnShape::Rect { area, fill } => {
                self.fill_color(fill);
                let [x, y, w, h] = [area.x, area.y, area.w, area.h].map(|value| value as f32);
                self.content.rect(x, y, w, h).fill_nonzero();
            }
            DrawnShape::Polygon { points, paint } => {
                self.set_paint(*paint);
                self.path(points);
                self.content.close_path().fill_nonzero_and_stroke();
            }
            DrawnShape::Circle {
                centre,
                radius,
                paint,
            } => {
                self.set_paint(*paint);
                self.circle(*centre, *radius);
                self.content.fill_nonzero_and_stroke();
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
        self.content.save_state();
        self.stroke_color(ink.color);
        self.content
            .set_line_width(ink.width as f32)
            .set_line_join(LineJoinStyle::RoundJoin)
            .set_dash_pattern(ink.dash.pattern().iter().copied(), 0.0);
        self.path(points);
        self.content.stroke().restore_state();
    }

    fn path(&mut self, points: &[Position]) {
        for (i, &(x, y)) in points.iter().enumerate() {
            let (x, y) = (x as f32, y as f32);
            match i {
                0 => self.content.move_to(x, y),
                _ => self.content.line_to(x, y),
            };
        }
    }

    /// Adds a circle of four curves to the path.
    fn circle(&mut self, (x, y): Position, radius: f64) {
        let place = |dx: f64, dy: f64| ((x + dx * radius) as f32, (y + dy * radius) as f32);
        let (start_x, start_y) = place(1.0, 0.0);
        self.content.move_to(start_x, start_y);
        let (mut dx, mut dy) = (1.0, 0.0);
        for _ in 0..4 {
            // The next quarter ends a right angle further.
            let (to_x, to_y) = (-dy, dx);
            let (ax, ay) = place(dx + QUARTER * to_x, dy + QUARTER * to_y);
            let (bx, by) = place(to_x + QUARTER * dx, to_y + QUARTER * dy);
            let (cx, cy) = place(to_x, to_y);
            self.content.cubic_to(ax, ay, bx, by, cx, cy);
            (dx, dy) = (to_x, to_y);
        }
        self.content.close_path();
    }

    /// Sets the colours and the outline of the next path. PDF forbids changes between a path and its
    /// painting.
    fn set_paint(&mut self, paint: ShapePaint) {
        self.fill_color(paint.fill);
        self.stroke_color(paint.edge);
        self.content.set_line_width(paint.edge_width as f32);
    }

    fn text(&mut self, at: Position, text: &str, letters: TextStyle, vertical: bool) {
        let glyphs = font::glyphs(text, letters.size, letters.weight);
        if glyphs.is_empty() {
            return;
        }
        let used = self.fonts.entry(letters.weight).or_default();
        used.extend(glyphs.iter().map(|placed| (placed.glyph.0, placed.letter)));
        self.fill_color(letters.color);
        let back = letters.anchor_offset(text);
        let matrix = match vertical {
            false => [1.0, 0.0, 0.0, -1.0, (at.0 - back) as f32, at.1 as f32],
            true => [0.0, -1.0, -1.0, 0.0, at.0 as f32, (at.1 + back) as f32],
        };
        self.content
            .begin_text()
            .set_font(resource_name(letters.weight), letters.size as f32)
            .set_text_matrix(matrix);
        let mut show = self.content.show_positioned();
        let mut items = show.items();
        let mut end = 0.0;
        for PlacedGlyph { glyph, x, .. } in glyphs {
            // A positive adjustment moves the next glyph back, in thousandths of the font size.
            let adjustment = (end - x) / letters.size * 1000.0;
            if adjustment.abs() > 0.5 {
                items.adjust(adjustment as f32);
            }
            items.show(Str(&glyph.0.to_be_bytes()));
            end = x + font::advance(glyph, letters.weight) * letters.size;
        }
        items.finish();
        show.finish();
        self.content.end_text();
    }

    fn fill_color(&mut self, color: &str) {
        let [r, g, b] = rgb(color).map(|part| f32::from(part) / 255.0);
        self.content.set_fill_rgb(r, g, b);
    }

    fn stroke_color(&mut self, color: &str) {
        let [r, g, b] = rgb(color).map(|part| f32::from(part) / 255.0);
        self.content.set_stroke_rgb(r, g, b);
    }
}
