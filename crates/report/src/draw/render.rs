//! Rendering of SVG to PNG and PDF.

use resvg::{tiny_skia, usvg};
use svg2pdf::{ConversionOptions, PageOptions};

use super::font;

/// Resolution of the PNG files, in pixels per inch.
const DPI: f32 = 200.0;
/// SVG units per inch.
const UNITS: f32 = 96.0;

/// A figure as PNG and PDF bytes.
pub struct RenderedFigure {
    pub png: Vec<u8>,
    pub pdf: Vec<u8>,
}

/// Reasons why an SVG document cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The document is not valid SVG.
    #[error("invalid SVG: {0}")]
    Svg(#[from] usvg::Error),
    /// The document has no size, or one too large for memory.
    #[error("the figure has size zero or is too large to render")]
    Size,
    /// The PNG could not be encoded.
    #[error("PNG encoding failed: {0}")]
    Png(String),
    /// The PDF could not be written.
    #[error("PDF conversion failed: {0}")]
    Pdf(String),
}

/// Renders an SVG document as PNG and PDF.
pub fn render(svg: &str) -> Result<RenderedFigure, RenderError> {
    let options = usvg::Options {
        fontdb: font::database(),
        font_family: "Inter".to_owned(),
        ..usvg::Options::default()
    };
    let tree = usvg::Tree::from_str(svg, &options)?;
    let png = png(&tree)?;
    let page = PageOptions { dpi: UNITS };
    let pdf = svg2pdf::to_pdf(&tree, ConversionOptions::default(), page)
        .map_err(|error| RenderError::Pdf(error.to_string()))?;
    Ok(RenderedFigure { png, pdf })
}

fn png(tree: &usvg::Tree) -> Result<Vec<u8>, RenderError> {
    let scale = DPI / UNITS;
    let size = tree.size().to_int_size().scale_by(scale);
    let size = size.ok_or(RenderError::Size)?;
    let mut pixels =
        tiny_skia::Pixmap::new(size.width(), size.height()).ok_or(RenderError::Size)?;
    pixels.fill(tiny_skia::Color::WHITE);
    let transform = tiny_skia::Transform::from_scale(scale, scale);
    resvg::render(tree, transform, &mut pixels.as_mut());
    pixels
        .encode_png()
        .map_err(|error| RenderError::Png(error.to_string()))
}
