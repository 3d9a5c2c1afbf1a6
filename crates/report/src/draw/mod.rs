//! Drawings of lines, shapes and text with axes and a figure layout, and their form as SVG, PNG and PDF.
//! Independent of result files.

mod axes;
mod canvas;
mod drawing;
mod font;
mod pdf;
mod png;
mod rect;
mod scale;
mod sheet;
mod style;
mod svg;

pub use axes::{Axis, PLAIN, Plot, PlotFrame, SMALL, title, x_axis};
pub use canvas::Canvas;
pub use drawing::{Anchor, Drawing, GRID, LineStyle, TEXT, TextStyle};
pub use font::{FontWeight, fit};
pub use pdf::pdf;
pub use png::png;
pub use rect::Rect;
pub use scale::{Scale, Tick, grouped};
pub use sheet::{LIMIT, LegendEntry, LegendSample, SheetLayout};
pub use style::{Dash, Hatch, Marker, STYLES, SeriesStyle};
pub use svg::{escape, svg};
