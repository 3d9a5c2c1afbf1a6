//! Result files of `djinn eval`, their evaluation, and the reports made from them.
//!
//! Start at [`ResultFile`], which `djinn eval` writes and `djinn report` reads. [`judge`] checks a result
//! from its runs alone. A [`ResultSet`] is a group of results with one report: figures, `analysis.md` and
//! `report.html`. [`compare`] compares a set with an earlier one, and [`measurements_table`] and
//! [`summary_table`] make tables for Markdown files.
//!
//! The crate does not depend on engines, servers or clients, so results from other tools can be reported
//! as well.

#![forbid(unsafe_code)]

mod compare;
mod contender;
mod draw;
mod error;
mod figures;
mod format;
mod memory_map;
mod pages;
mod readme;
mod result;
mod result_set;
mod write;

pub use compare::{ComparedMetric, Comparison, MetricChange, compare};
pub use error::ReportError;
pub use figures::MissingData;
pub use memory_map::{MemoryMap, MemoryPart, PartKind, TierBar, memory_map};
pub use readme::{measurements_table, replace_between, summary_table};
pub use result::{
    ActivityLane, Baseline, BaselineStatus, Better, Check, CheckKind, Experiment, Judgement,
    METRICS, MemorySample, Metric, MetricTarget, NORM_LIMIT, Outcome, PassTimeline, Point,
    PointStats, ResultFile, RunEnvironment, RunRecord, Stats, Summary, TimelineSpan, VERSION,
    judge, metric, percentile, schema, summarize,
};
pub use result_set::ResultSet;
pub use write::WrittenReport;
