//! The same SVG as pixels and as a page.

use resvg::{tiny_skia, usvg};
use svg2pdf::{ConversionOptions, PageOptions};

use super::font;

/// Pixels an inch; SVG has 96 units to it.
const DPI: f32 = 200.0;
const UNITS: f32 = 96.0;

/// A figure in the forms it is written in.
pub struct Forms {
    pub png: Vec<u8>,
    pub pdf: Vec<u8>,
}

/// Draws an SVG as PNG and PDF.
pub fn render(svg: &str) -> Result<Forms, String> {
    let options = usvg::Options {
        fontdb: font::database(),
        font_family: "Inter".to_owned(),
        ..usvg::Options::default()
    };
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let png = png(&tree)?;
    let page = PageOptions { dpi: UNITS };
    let pdf = svg2pdf::to_pdf(&tree, ConversionOptions::default(), page)
        .map_err(|error| error.to_string())?;
    Ok(Forms { png, pdf })
}

fn png(tree: &usvg::Tree) -> Result<Vec<u8>, String> {
    let scale = DPI / UNITS;
    let size = tree.size().to_int_size().scale_by(scale);
    let size = size.ok_or("a figure has no size")?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height())
        .ok_or("a figure is too large for memory")?;
    pixels.fill(tiny_skia::Color::WHITE);
    let transform = tiny_skia::Transform::from_scale(scale, scale);
    resvg::render(tree, transform, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| error.to_string())
}
