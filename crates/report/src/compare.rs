//! Comparison of results with earlier results of the same experiment.

use std::{collections::BTreeMap, fmt::Write};

use crate::{
    contender::{Contender, contenders},
    format::show,
    result::{Better, METRICS, ResultFile, Stats},
    result_set::ResultSet,
};

/// Number of combined standard deviations by which medians have to differ to count as a change.
pub const DEVIATIONS: f64 = 2.0;

/// How a metric changed between two sets of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricChange {
    /// Better, beyond the noise of the runs.
    Better,
    /// Worse, beyond the noise of the runs.
    Worse,
    /// The difference lies within the noise of the runs.
    WithinNoise,
    /// One side has fewer than three runs, so the noise is not known.
    Unknown,
}

impl MetricChange {
    /// Returns the word for the change in reports.
    pub fn word(self) -> &'static str {
        match self {
            MetricChange::Better => "better",
            MetricChange::Worse => "worse",
            MetricChange::WithinNoise => "within noise",
            MetricChange::Unknown => "unknown: fewer than three runs",
        }
    }
}

/// A metric of a contender in old and new results.
#[derive(Clone, Debug)]
pub struct ComparedMetric {
    /// Experiment, name and model of the result.
    pub result: String,
    /// Label of the contender.
    pub contender: String,
    /// Title of the metric.
    pub metric: String,
    /// Unit of the metric.
    pub unit: &'static str,
    /// Statistics of the old runs.
    pub old: Stats,
    /// Statistics of the new runs.
    pub new: Stats,
    /// How the metric changed.
    pub change: MetricChange,
}

impl ComparedMetric {
    /// Returns the change of the median as a share of the old median; `None` if that was zero.
    pub fn share(&self) -> Option<f64> {
        let (old, new) = (self.old.median, self.new.median);
        (old != 0.0).then(|| (new - old) / old.abs())
    }

    /// Returns the change of the median in percent, for reports.
    pub(crate) fn percent(&self) -> String {
        match self.share() {
            Some(share) => format!("{:+.1} %", share * 100.0),
            None => "–".to_owned(),
        }
    }
}

/// Comparison of two sets of results.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Metrics that both sets contain.
    pub rows: Vec<ComparedMetric>,
    /// Descriptions of results and contenders that only one set contains.
    pub unmatched: Vec<String>,
}

/// Compares new results with old ones of the same experiment, name and model, contender by contender. The
/// latest of several equal results counts.
pub fn compare(old: &ResultSet, new: &ResultSet) -> Comparison {
    let (before, after) = (latest(old), latest(new));
    let mut comparison = Comparison::default();
    for (key, now) in &after {
        match before.get(key) {
            Some(then) => comparison.add(key, then, now),
            None => comparison
                .unmatched
                .push(format!("{key}: only in the new results")),
        }
    }
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    comparison
        .unmatched
        .extend(gone.map(|key| format!("{key}: only in the old results")));
    comparison
}

/// Returns the latest result of each experiment, name and model.
fn latest(set: &ResultSet) -> BTreeMap<String, &ResultFile> {
    let key = |result: &ResultFile| {
        let (experiment, name, model) = (result.experiment.name(), &result.name, &result.model);
        format!("{experiment} {name} ({model})")
    };
    // A set sorts results that are equal otherwise by time, so the latest is collected last.
    set.results().map(|result| (key(result), result)).collect()
}

/// Smallest number of runs from which noise can be estimated.
const LEAST: u64 = 3;

/// Decides whether statistics differ beyond noise: both sides have enough runs, the ranges do not overlap,
/// and the medians differ by more than [`DEVIATIONS`] combined standard deviations.
fn change_of(old: &Stats, new: &Stats, better: Better) -> MetricChange {
    if old.count < LEAST || new.count < LEAST {
        return MetricChange::Unknown;
    }
    let apart = old.max < new.min || new.max < old.min;
    let deviation = (old.std.powi(2) + new.std.powi(2)).sqrt();
    let far = (new.median - old.median).abs() > DEVIATIONS * deviation;
    if !(apart && far) {
        return MetricChange::WithinNoise;
    }
    match (new.median > old.median, better) {
        (true, Better::Higher) | (false, Better::Lower) => MetricChange::Better,
        _ => MetricChange::Worse,
    }
}

impl Comparison {
    /// Adds the metrics of two results of the same experiment.
    fn add(&mut self, key: &str, then: &ResultFile, now: &ResultFile) {
        let old = contenders(then);
        for new in contenders(now) {
            match old.iter().find(|old| old.name == new.name) {
                Some(old) => self.rows.extend(numbers(key, old, &new)),
                None => self
                    .unmatched
                    .push(format!("{key}, {}: only in the new results", new.name)),
            }
        }
        for old in old {
            if !contenders(now).iter().any(|new| new.name == old.name) {
                self.unmatched
                    .push(format!("{key}, {}: only in the old results", old.name));
            }
        }
    }

    /// Whether a metric of any contender is worse beyond noise.
    pub fn worse(&self) -> bool {
        self.rows
            .iter()
            .any(|row| row.change == MetricChange::Worse)
    }

    fn count(&self, change: MetricChange) -> usize {
        self.rows.iter().filter(|row| row.change == change).count()
    }

    /// Returns the number of metrics by kind of change, in words.
    pub(crate) fn counts(&self) -> String {
        format!(
            "{} better, {} worse, {} within noise, {} unknown",
            self.count(MetricChange::Better),
            self.count(MetricChange::Worse),
            self.count(MetricChange::WithinNoise),
            self.count(MetricChange::Unknown)
        )
    }

    /// Returns the comparison for a terminal: every change, then the counts.
    pub fn terminal(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            if matches!(row.change, MetricChange::Better | MetricChange::Worse) {
                let (old, new) = (
                    show(row.old.median, row.unit),
                    show(row.new.median, row.unit),
                );
                let change = row.change.word();
                writeln!(
                    text,
                    "{change:<6}  {}, {}: {}  {old} → {new}  ({})",
                    row.result,
                    row.contender,
                    row.metric,
                    row.percent()
                )
                .expect("writing to a String cannot fail");
            }
        }
        for line in &self.unmatched {
            writeln!(text, "unmatched  {line}").expect("writing to a String cannot fail");
        }
        text + &self.counts() + "\n"
    }
}

/// Compares the metrics and points of a contender that both results contain.
fn numbers(key: &str, old: &Contender<'_>, new: &Contender<'_>) -> Vec<ComparedMetric> {
    let row = |metric: String, unit, better, old: &Stats, stats: &Stats| ComparedMetric {
        result: key.to_owned(),
        contender: new.label().to_owned(),
        metric,
        unit,
        old: *old,
        new: *stats,
        change: change_of(old, stats, better),
    };
    let mut rows = Vec::new();
    for metric in METRICS
        .iter()
        .filter(|metric| metric.better != Better::Neither)
    {
        if let Some((then, now)) = old.stats(metric.key).zip(new.stats(metric.key)) {
            rows.push(row(
                metric.title.to_owned(),
                metric.unit,
                metric.better,
                then,
                now,
            ));
        }
    }
    for now in &new.summary.points {
        let same = old
            .summary
            .points
            .iter()
            .find(|then| then.series == now.series && then.x == now.x);
        if let Some(then) = same {
            let name = format!("{} at {}", now.series, now.x);
            rows.push(row(name, "ms", Better::Lower, &then.ms, &now.ms));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::{MetricChange, change_of};
    use crate::result::{Better, Stats};

    #[test]
    fn noise_is_not_a_change() {
        let cases: [(&[f64], &[f64], MetricChange); 8] = [
            (&[10.0, 10.1, 10.2], &[8.0, 8.1, 8.2], MetricChange::Better),
            (&[8.0, 8.1, 8.2], &[10.0, 10.1, 10.2], MetricChange::Worse),
            (
                &[10.0, 11.0, 12.0],
                &[11.9, 12.5, 13.0],
                MetricChange::WithinNoise,
            ),
            (
                &[10.0, 10.0, 13.0],
                &[13.1, 13.2, 16.0],
                MetricChange::WithinNoise,
            ),
            (&[10.0], &[5.0, 5.1, 5.2], MetricChange::Unknown),
            (&[10.0, 10.1, 10.2], &[5.0, 5.1], MetricChange::Unknown),
            (&[0.0; 3], &[0.0; 3], MetricChange::WithinNoise),
            (&[10.0; 3], &[10.1; 3], MetricChange::Worse),
        ];
        for (old, new, expect) in cases {
            let (a, b) = (Stats::of(old).unwrap(), Stats::of(new).unwrap());
            assert_eq!(change_of(&a, &b, Better::Lower), expect, "{old:?} {new:?}");
        }
        let (a, b) = (
            Stats::of(&[1.0, 1.1, 1.1]).unwrap(),
            Stats::of(&[2.0, 2.1, 2.1]).unwrap(),
        );
        assert_eq!(change_of(&a, &b, Better::Higher), MetricChange::Better);
    }
}
