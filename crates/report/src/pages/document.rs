//! A page as data, from which both Markdown and HTML are made.

use crate::result::Outcome;

/// A piece of formatted text.
#[derive(Clone, Debug, PartialEq)]
pub enum TextRun {
    /// Plain text.
    Plain(String),
    /// Code or a file name.
    Code(String),
    /// Emphasized text.
    Strong(String),
    /// Outcome of a check.
    Verdict(Outcome),
}

/// A line of formatted text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RichText(pub Vec<TextRun>);

impl RichText {
    /// Appends plain text.
    pub fn and(mut self, text: impl Into<String>) -> Self {
        self.0.push(TextRun::Plain(text.into()));
        self
    }

    /// Appends code or a file name.
    pub fn code(mut self, text: impl Into<String>) -> Self {
        self.0.push(TextRun::Code(text.into()));
        self
    }

    /// Appends emphasized text.
    pub fn strong(mut self, text: impl Into<String>) -> Self {
        self.0.push(TextRun::Strong(text.into()));
        self
    }

    /// Appends the outcome of a check.
    pub fn verdict(mut self, outcome: Outcome) -> Self {
        self.0.push(TextRun::Verdict(outcome));
        self
    }
}

impl<T: Into<String>> From<T> for RichText {
    fn from(text: T) -> Self {
        RichText::default().and(text)
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocTable {
    /// Column headers.
    pub head: Vec<RichText>,
    /// Rows, each with as many cells as there are columns.
    pub rows: Vec<Vec<RichText>>,
}

impl DocTable {
    /// Makes an empty table with the given column headers.
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        DocTable {
            head: head.into_iter().map(RichText::from).collect(),
            rows: Vec::new(),
        }
    }
}

/// A block of a page.
#[derive(Clone, Debug, PartialEq)]
pub enum DocBlock {
    /// A title, of level 1 to 4.
    Title(u8, RichText),
    /// A paragraph.
    Text(RichText),
    /// A bullet list.
    List(Vec<RichText>),
    /// A table.
    Table(DocTable),
    /// A figure with its caption.
    Figure {
        /// File name without extension.
        name: String,
        /// Caption below the figure.
        caption: String,
    },
}
