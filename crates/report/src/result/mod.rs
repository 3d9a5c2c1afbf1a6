//! Result files: their format, their statistics, and the checks that decide whether a result is valid.

mod environment;
mod file;
mod judge;
mod judgement;
mod metrics;
mod run;
mod schema;
mod stats;
mod summary;
mod targets;

pub use environment::RunEnvironment;
pub use file::{Baseline, BaselineStatus, Experiment, MetricTarget, ResultFile, VERSION};
pub use judge::{NORM_LIMIT, judge, summarize};
pub use judgement::{CheckKind, Judgement};
pub use metrics::{Better, METRICS, Metric, metric};
pub use run::{ActivityLane, MemorySample, PassTimeline, Point, RunRecord, TimelineSpan};
pub use schema::schema;
pub use stats::{Stats, percentile};
pub use summary::{Check, Outcome, PointStats, Summary};
