//! Results of experiments: the shape of their files, what they come to, and how they are shown.
//!
//! Start at [`ResultFile`]: what `djinn eval` writes and `djinn report` reads. [`judge`] says what its
//! runs come to, from the runs alone. A [`Set`] is what is reported on together: figures, `analysis.md`
//! and `report.html`. [`compare`] holds one set against an earlier one, [`measurements_table`] makes
//! the table of a README.
//!
//! Knows nothing of engines, servers or clients: a result made elsewhere is as good as ours.

#![forbid(unsafe_code)]

mod compare;
mod contender;
mod draw;
mod error;
mod figures;
mod number;
mod pages;
mod readme;
mod result;
mod set;

pub use compare::{Change, Compared, Comparison, compare};
pub use error::ReportError;
pub use readme::{measurements_table, replace_between};
pub use result::{
    Baseline, Better, Check, Environment, Experiment, Lane, METRICS, MemorySample, Metric,
    NORM_LIMIT, Outcome, Point, PointStats, ResultFile, Run, Span, Stats, Status, Summary, Target,
    Timeline, VERSION, judge, metric, percentile, schema, summarize,
};
pub use set::{Set, Written};
