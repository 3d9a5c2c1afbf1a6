//! A page as data, so that Markdown and HTML say the same.

use crate::Outcome;

/// A piece of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// As it stands.
    Plain(String),
    /// Something to type or to look up.
    Code(String),
    /// What matters in the line.
    Strong(String),
    /// What came of a check.
    Verdict(Outcome),
}

/// A line of text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line(pub Vec<Part>);

impl Line {
    /// More of it.
    pub fn and(mut self, text: impl Into<String>) -> Self {
        self.0.push(Part::Plain(text.into()));
        self
    }

    /// Something to type or to look up.
    pub fn code(mut self, text: impl Into<String>) -> Self {
        self.0.push(Part::Code(text.into()));
        self
    }

    /// What matters.
    pub fn strong(mut self, text: impl Into<String>) -> Self {
        self.0.push(Part::Strong(text.into()));
        self
    }

    /// What came of a check.
    pub fn verdict(mut self, outcome: Outcome) -> Self {
        self.0.push(Part::Verdict(outcome));
        self
    }
}

impl<T: Into<String>> From<T> for Line {
    fn from(text: T) -> Self {
        Line::default().and(text)
    }
}

/// A table: what its columns are, and rows of as many cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Above the columns.
    pub head: Vec<Line>,
    /// The rest.
    pub rows: Vec<Vec<Line>>,
}

impl Table {
    /// With these columns.
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Table {
            head: head.into_iter().map(Line::from).collect(),
            rows: Vec::new(),
        }
    }
}

/// What stands below one another.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A title, of level 1 to 4.
    Title(u8, Line),
    /// Some sentences.
    Text(Line),
    /// Points.
    List(Vec<Line>),
    /// A table.
    Table(Table),
    /// A figure by its file's name, with what it shows.
    Figure {
        /// Without an ending.
        name: String,
        /// What it shows.
        caption: String,
    },
}
