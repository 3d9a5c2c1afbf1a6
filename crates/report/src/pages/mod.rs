//! The pages of a report: `analysis.md`, `report.html` and `comparison.md`.

mod analysis;
mod comparison;
mod contender_tables;
mod document;
mod html;
mod markdown;

pub use document::{DocTable, RichText};
pub use markdown::table as markdown_table;

use crate::{compare::Comparison, figures::DrawnFigure, result_set::ResultSet};

/// Returns the text of `analysis.md`.
pub fn markdown(set: &ResultSet, figures: &[DrawnFigure]) -> String {
    markdown::page(&analysis::blocks(set, figures))
}

/// Returns the text of `report.html`: the analysis, and a comparison if there is one.
pub fn html(set: &ResultSet, figures: &[DrawnFigure], comparison: Option<&Comparison>) -> String {
    let mut blocks = analysis::blocks(set, figures);
    blocks.extend(comparison.map(comparison::blocks).unwrap_or_default());
    html::page("Results of djinn eval", &blocks, figures)
}
