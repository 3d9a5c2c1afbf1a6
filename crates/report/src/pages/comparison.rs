//! The page that compares results with earlier ones.

use super::{
    document::{DocBlock, DocTable, RichText},
    markdown,
};
use crate::{
    compare::{Comparison, DEVIATIONS, MetricChange},
    format::show,
};

impl Comparison {
    /// Returns the text of `comparison.md`.
    pub fn markdown(&self) -> String {
        markdown::page(&blocks(self))
    }
}

/// Returns the comparison as blocks of a page.
pub fn blocks(comparison: &Comparison) -> Vec<DocBlock> {
    let mut table = DocTable::new([
        "result",
        "contender",
        "metric",
        "old",
        "new",
        "change",
        "verdict",
    ]);
    for row in &comparison.rows {
        let mark = match row.change {
            MetricChange::Better | MetricChange::Worse => {
                RichText::default().strong(row.change.word())
            }
            other => RichText::from(other.word()),
        };
        table.rows.push(vec![
            RichText::from(row.result.as_str()),
            RichText::from(row.contender.as_str()),
            RichText::from(row.metric.as_str()),
            RichText::from(show(row.old.median, row.unit)),
            RichText::from(show(row.new.median, row.unit)),
            RichText::from(row.percent()),
            mark,
        ]);
    }
    let mut blocks = vec![
        DocBlock::Title(2, RichText::from("Comparison with earlier results")),
        DocBlock::Text(RichText::from(format!(
            "{}. A metric counts as better or worse if all new runs lie on the same side of all old runs \
             and the medians differ by more than {DEVIATIONS} combined standard deviations. With fewer \
             than three runs on either side the change is unknown.",
            comparison.counts()
        ))),
    ];
    if !comparison.rows.is_empty() {
        blocks.push(DocBlock::Table(table));
    }
    if !comparison.unmatched.is_empty() {
        let lines = comparison.unmatched.iter();
        let lines = lines.map(|line| RichText::from(line.as_str()));
        blocks.push(DocBlock::List(lines.collect()));
    }
    blocks
}
