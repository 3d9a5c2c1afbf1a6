//! The pages of a report, from results and figures.

mod analysis;
mod beside;
mod document;
mod html;
mod markdown;

pub use document::{Block, Line, Table};
pub use markdown::{page as as_markdown, table as markdown_table};

use crate::{Comparison, Experiment, Set};

/// A figure that was drawn, or why it was not.
pub struct Shown {
    /// Its file's name, without an ending.
    pub name: &'static str,
    /// What it shows.
    pub caption: &'static str,
    /// What it is drawn from.
    pub experiments: &'static [Experiment],
    /// The drawing, or the reason.
    pub svg: Result<String, String>,
}

/// `analysis.md`.
pub fn markdown(set: &Set, figures: &[Shown]) -> String {
    markdown::page(&analysis::blocks(set, figures))
}

/// `report.html`: the same, and a comparison where there is one.
pub fn html(set: &Set, figures: &[Shown], comparison: Option<&Comparison>) -> String {
    let mut blocks = analysis::blocks(set, figures);
    blocks.extend(comparison.map(Comparison::blocks).unwrap_or_default());
    html::page("Results of djinn eval", &blocks, figures)
}
