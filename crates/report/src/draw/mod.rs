//! Drawing: shapes, axes and sheets as SVG, and SVG as PNG and PDF. Knows nothing of results.

mod axes;
mod canvas;
mod font;
mod render;
mod scale;
mod sheet;
mod style;

pub use axes::{Axis, Frame, PLAIN, Plot, SMALL, title, x_axis};
pub use canvas::{Anchor, Area, Canvas, GRID, Ink, Letters, TEXT, escape};
pub use font::{Weight, fit};
pub use render::render;
pub use scale::{Scale, Tick, grouped};
pub use sheet::{Entry, LIMIT, Plan, Sample};
pub use style::{Dash, Hatch, LOOKS, Look, Marker};
