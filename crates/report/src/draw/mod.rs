//! Drawing primitives: an SVG canvas, axes and figure layout, and rendering to PNG and PDF. Independent of
//! result files.

mod axes;
mod canvas;
mod font;
mod rect;
mod render;
mod scale;
mod sheet;
mod style;

pub use axes::{Axis, PLAIN, Plot, PlotFrame, SMALL, title, x_axis};
pub use canvas::{Anchor, Canvas, GRID, LineStyle, TEXT, TextStyle, escape};
pub use font::{FontWeight, fit};
pub use rect::Rect;
pub use render::render;
pub use scale::{Scale, Tick, grouped};
pub use sheet::{LIMIT, LegendEntry, LegendSample, SheetLayout};
pub use style::{Dash, Hatch, Marker, STYLES, SeriesStyle};
