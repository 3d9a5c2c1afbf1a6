//! Description of a figure, and the drawn form of it.

use crate::{
    draw::Drawing,
    result::{Experiment, ResultFile},
};

/// Reason why a figure is left out of a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingData {
    /// The report has no result of the experiments that the figure shows.
    #[error("there is no {} result", names(.0, " or "))]
    Experiment(&'static [Experiment]),
    /// No run measured the metric that the figure shows.
    #[error("no run measured {0}")]
    Metric(&'static str),
    /// No result contains a timeline of copies and computation.
    #[error("no virtual-memory result has a timeline")]
    Timeline,
    /// No result contains memory samples.
    #[error("no result has samples of memory over time")]
    MemorySamples,
    /// No result contains memory samples with the number of open sessions.
    #[error("no memory-pressure result has memory samples by number of sessions")]
    SessionSamples,
    /// No result of the experiment contains points.
    #[error("no {} result has points", .0.name())]
    Points(Experiment),
}

fn names(experiments: &[Experiment], separator: &str) -> String {
    let names: Vec<&str> = experiments.iter().map(|one| one.name()).collect();
    names.join(separator)
}

/// A figure that a report may contain.
pub struct Figure {
    /// File name without extension.
    pub name: &'static str,
    /// Caption, in a few sentences.
    pub caption: &'static str,
    /// Experiments whose results the figure shows.
    pub experiments: &'static [Experiment],
    /// Draws the figure from results of its experiments.
    pub plot: fn(&[&ResultFile]) -> Result<Drawing, MissingData>,
}

/// A figure with its drawing, or the reason why it is left out.
pub struct DrawnFigure {
    /// File name without extension.
    pub name: &'static str,
    /// Caption, in a few sentences.
    pub caption: &'static str,
    /// Experiments whose results the figure shows.
    pub experiments: &'static [Experiment],
    /// The drawing, or the reason why there is none.
    pub drawing: Result<Drawing, MissingData>,
}

impl Figure {
    /// Draws the figure from the results of its experiments.
    pub fn draw(&self, results: &[&ResultFile]) -> DrawnFigure {
        let shows = |result: &&&ResultFile| self.experiments.contains(&result.experiment);
        let used: Vec<&ResultFile> = results.iter().filter(shows).copied().collect();
        let drawing = match used.is_empty() {
            true => Err(MissingData::Experiment(self.experiments)),
            false => (self.plot)(&used),
        };
        DrawnFigure {
            name: self.name,
            caption: self.caption,
            experiments: self.experiments,
            drawing,
        }
    }
}
