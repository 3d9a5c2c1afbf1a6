//! Results beside earlier ones of the same: what changed by more than chance.

use std::{collections::BTreeMap, fmt::Write};

use crate::{
    Better, METRICS, ResultFile, Set, Stats,
    contender::{Contender, contenders},
    number::show,
    pages::{Block, Line, Table, as_markdown},
};

/// By how many standard deviations of both together medians have to differ.
const DEVIATIONS: f64 = 2.0;

/// What became of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Better by more than chance.
    Better,
    /// Worse by more than chance.
    Worse,
    /// Chance may have done it.
    WithinNoise,
    /// One of both has fewer than three runs: nobody knows how far chance goes.
    Unknown,
}

impl Change {
    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Change::Better => "better",
            Change::Worse => "worse",
            Change::WithinNoise => "within noise",
            Change::Unknown => "unknown: fewer than three runs",
        }
    }
}

/// A number then and now.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Of which result: its experiment, its name and its model.
    pub result: String,
    /// Whose.
    pub contender: String,
    /// What.
    pub metric: String,
    /// In what it is counted.
    pub unit: &'static str,
    /// Then.
    pub old: Stats,
    /// Now.
    pub new: Stats,
    /// What became of it.
    pub change: Change,
}

impl Compared {
    /// The change of the median, of what it was; nothing where that was zero.
    pub fn share(&self) -> Option<f64> {
        let (old, new) = (self.old.median, self.new.median);
        (old != 0.0).then(|| (new - old) / old.abs())
    }

    fn percent(&self) -> String {
        match self.share() {
            Some(share) => format!("{:+.1} %", share * 100.0),
            None => "–".to_owned(),
        }
    }
}

/// Two sets of results beside one another.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Every number that is in both.
    pub rows: Vec<Compared>,
    /// What is in one of both only.
    pub alone: Vec<String>,
}

/// Holds new results against old ones: by experiment, name and model, contender by contender. Of several
/// results of the same the latest counts.
pub fn compare(old: &Set, new: &Set) -> Comparison {
    let (before, after) = (latest(old), latest(new));
    let mut comparison = Comparison::default();
    for (key, now) in &after {
        match before.get(key) {
            Some(then) => comparison.take(key, then, now),
            None => comparison
                .alone
                .push(format!("{key}: only in the new results")),
        }
    }
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    comparison
        .alone
        .extend(gone.map(|key| format!("{key}: only in the old results")));
    comparison
}

/// The latest of each experiment, name and model.
fn latest(set: &Set) -> BTreeMap<String, &ResultFile> {
    let key = |result: &ResultFile| {
        let (experiment, name, model) = (result.experiment.name(), &result.name, &result.model);
        format!("{experiment} {name} ({model})")
    };
    // A set is in order of time where all else is the same.
    set.results().map(|result| (key(result), result)).collect()
}

/// With fewer runs nobody knows what chance does.
const LEAST: u64 = 3;

/// Whether numbers differ by more than chance: there are enough runs of each, those of one all lie beyond
/// those of the other, and the medians are further apart than two standard deviations of both together.
fn judged(old: &Stats, new: &Stats, better: Better) -> Change {
    if old.count < LEAST || new.count < LEAST {
        return Change::Unknown;
    }
    let apart = old.max < new.min || new.max < old.min;
    let deviation = (old.std.powi(2) + new.std.powi(2)).sqrt();
    let far = (new.median - old.median).abs() > DEVIATIONS * deviation;
    if !(apart && far) {
        return Change::WithinNoise;
    }
    match (new.median > old.median, better) {
        (true, Better::Higher) | (false, Better::Lower) => Change::Better,
        _ => Change::Worse,
    }
}

impl Comparison {
    fn take(&mut self, key: &str, then: &ResultFile, now: &ResultFile) {
        let old = contenders(then);
        for new in contenders(now) {
            match old.iter().find(|old| old.name == new.name) {
                Some(old) => self.rows.extend(numbers(key, old, &new)),
                None => self
                    .alone
                    .push(format!("{key}, {}: only in the new results", new.name)),
            }
        }
        for old in old {
            if !contenders(now).iter().any(|new| new.name == old.name) {
                self.alone
                    .push(format!("{key}, {}: only in the old results", old.name));
            }
        }
    }

    /// Whether anything of ours or of a baseline is worse by more than chance.
    pub fn worse(&self) -> bool {
        self.rows.iter().any(|row| row.change == Change::Worse)
    }

    fn count(&self, change: Change) -> usize {
        self.rows.iter().filter(|row| row.change == change).count()
    }

    fn counts(&self) -> String {
        format!(
            "{} better, {} worse, {} within noise, {} unknown",
            self.count(Change::Better),
            self.count(Change::Worse),
            self.count(Change::WithinNoise),
            self.count(Change::Unknown)
        )
    }

    /// For a terminal: what changed, and how much did not.
    pub fn terminal(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            if matches!(row.change, Change::Better | Change::Worse) {
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
                .expect("a string takes everything");
            }
        }
        for alone in &self.alone {
            writeln!(text, "alone   {alone}").expect("a string takes everything");
        }
        text + &self.counts() + "\n"
    }

    /// `comparison.md`.
    pub fn markdown(&self) -> String {
        as_markdown(&self.blocks())
    }

    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut table = Table::new(["result", "contender", "metric", "old", "new", "change", ""]);
        for row in &self.rows {
            let mark = match row.change {
                Change::Better | Change::Worse => Line::default().strong(row.change.word()),
                other => Line::from(other.word()),
            };
            table.rows.push(vec![
                Line::from(row.result.as_str()),
                Line::from(row.contender.as_str()),
                Line::from(row.metric.as_str()),
                Line::from(show(row.old.median, row.unit)),
                Line::from(show(row.new.median, row.unit)),
                Line::from(row.percent()),
                mark,
            ]);
        }
        let mut blocks = vec![
            Block::Title(2, Line::from("Beside earlier results")),
            Block::Text(Line::from(format!(
                "{}. A change counts as better or worse when the runs of one all lie beyond those of the \
                 other, and the medians are further apart than {DEVIATIONS} standard deviations of both \
                 together. With fewer than three runs it is unknown.",
                self.counts()
            ))),
        ];
        if !self.rows.is_empty() {
            blocks.push(Block::Table(table));
        }
        if !self.alone.is_empty() {
            blocks.push(Block::List(
                self.alone
                    .iter()
                    .map(|line| Line::from(line.as_str()))
                    .collect(),
            ));
        }
        blocks
    }
}

/// Every number of a contender that has a direction and is in both.
fn numbers(key: &str, old: &Contender<'_>, new: &Contender<'_>) -> Vec<Compared> {
    let row = |metric: String, unit, better, old: &Stats, stats: &Stats| Compared {
        result: key.to_owned(),
        contender: new.label().to_owned(),
        metric,
        unit,
        old: *old,
        new: *stats,
        change: judged(old, stats, better),
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
    use super::{Change, judged};
    use crate::{Better, Stats};

    #[test]
    fn chance_is_not_a_change() {
        let cases: [(&[f64], &[f64], Change); 8] = [
            (&[10.0, 10.1, 10.2], &[8.0, 8.1, 8.2], Change::Better),
            (&[8.0, 8.1, 8.2], &[10.0, 10.1, 10.2], Change::Worse),
            (
                &[10.0, 11.0, 12.0],
                &[11.9, 12.5, 13.0],
                Change::WithinNoise,
            ),
            (
                &[10.0, 10.0, 13.0],
                &[13.1, 13.2, 16.0],
                Change::WithinNoise,
            ),
            (&[10.0], &[5.0, 5.1, 5.2], Change::Unknown),
            (&[10.0, 10.1, 10.2], &[5.0, 5.1], Change::Unknown),
            (&[0.0; 3], &[0.0; 3], Change::WithinNoise),
            (&[10.0; 3], &[10.1; 3], Change::Worse),
        ];
        for (old, new, expect) in cases {
            let (a, b) = (Stats::of(old).unwrap(), Stats::of(new).unwrap());
            assert_eq!(judged(&a, &b, Better::Lower), expect, "{old:?} {new:?}");
        }
        let (a, b) = (
            Stats::of(&[1.0, 1.1, 1.1]).unwrap(),
            Stats::of(&[2.0, 2.1, 2.1]).unwrap(),
        );
        assert_eq!(judged(&a, &b, Better::Higher), Change::Better);
    }
}
