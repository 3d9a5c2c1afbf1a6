//! Lines through points with whiskers, one for each series of each contender.

use super::plot_title;
use crate::{
    Experiment, ResultFile,
    contender::{Looks, contenders},
    draw::{Axis, Canvas, Entry, Frame, Ink, Look, Plan, Plot, Sample, Tick},
};

/// Marks on a line at most: more would hide it.
const MARKS: usize = 16;

/// A series of a contender: where, the median, and from where to where.
pub struct Series<'a> {
    pub contender: &'a str,
    pub series: &'a str,
    pub points: Vec<(f64, f64, (f64, f64))>,
}

/// Every series of every contender of a result, by place.
fn series_of(result: &ResultFile) -> Vec<Series<'_>> {
    let mut all: Vec<Series<'_>> = Vec::new();
    for who in contenders(result) {
        for point in &who.summary.points {
            let value = (point.x, point.ms.median, (point.ms.min, point.ms.max));
            let same =
                |one: &&mut Series<'_>| one.contender == who.name && one.series == point.series;
            match all.iter_mut().find(same) {
                Some(one) => one.points.push(value),
                None => all.push(Series {
                    contender: who.name,
                    series: &point.series,
                    points: vec![value],
                }),
            }
        }
    }
    for one in &mut all {
        one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

/// A series as it is drawn and told of in the legend.
pub struct Drawn<'a> {
    pub of: (&'a str, &'a str),
    pub label: String,
    pub look: Look,
}

impl Drawn<'_> {
    fn ink(&self) -> Ink {
        Ink {
            color: self.look.color,
            width: 2.0,
            dash: self.look.dash,
        }
    }

    fn entry(&self) -> Entry {
        Entry::new(
            Sample::Line(self.ink(), Some(self.look.marker)),
            self.label.clone(),
        )
    }

    /// Draws a series: whiskers below, then the line, then its marks.
    fn draw(&self, plot: &Plot, canvas: &mut Canvas, series: &Series<'_>) {
        for (x, _, range) in &series.points {
            plot.whisker(canvas, *x, *range, self.look.color);
        }
        let line: Vec<(f64, f64)> = series.points.iter().map(|(x, ms, _)| (*x, *ms)).collect();
        plot.line(canvas, &line, self.ink());
        plot.marks(canvas, &sparse(&line), self.look);
    }
}

/// A figure of lines: a plot for each result that has points.
pub struct Lines<'a> {
    shown: Vec<&'a ResultFile>,
    series: Vec<Vec<Series<'a>>>,
}

impl<'a> Lines<'a> {
    pub fn of(results: &[&'a ResultFile], experiment: Experiment) -> Result<Self, String> {
        let all = results.iter().map(|result| (*result, series_of(result)));
        let (shown, series): (Vec<_>, Vec<_>) =
            all.filter(|(_, series)| !series.is_empty()).unzip();
        match shown.is_empty() {
            true => Err(format!("no {} result has points", experiment.name())),
            false => Ok(Lines { shown, series }),
        }
    }

    /// Without the series of some names.
    pub fn without(mut self, is_left_out: impl Fn(&str) -> bool) -> Self {
        for series in &mut self.series {
            series.retain(|one| !is_left_out(one.series));
        }
        self
    }

    pub fn results(&self) -> &[&'a ResultFile] {
        &self.shown
    }

    /// All series once, in order.
    pub fn kinds(&self) -> Vec<(&'a str, &'a str)> {
        kinds(&self.series)
    }

    /// Draws every series as it is told, over axes that suit those of its plot.
    pub fn draw<'t>(
        &self,
        (title, told): (&str, &str),
        drawn: &[Drawn<'_>],
        axes: impl Fn(&[Series<'_>]) -> (Axis<'t>, Axis<'t>),
    ) -> String {
        let plan = Plan {
            title,
            legend: drawn.iter().map(Drawn::entry).collect(),
            plots: self.shown.len(),
            columns: 2,
            size: (460.0, 300.0),
            lead: 0.0,
        };
        let (mut canvas, cells) = plan.lay();
        for ((result, series), cell) in self.shown.iter().zip(&self.series).zip(cells) {
            let title = &plot_title(result);
            let (x, y) = axes(series);
            let plot = Frame { title, x, y }.draw(&mut canvas, cell);
            for one in series {
                let of = (one.contender, one.series);
                if let Some(drawn) = drawn.iter().find(|drawn| drawn.of == of) {
                    drawn.draw(&plot, &mut canvas, one);
                }
            }
        }
        canvas.svg(told)
    }
}

/// All series of some results once, in order.
fn kinds<'a>(results: &[Vec<Series<'a>>]) -> Vec<(&'a str, &'a str)> {
    let mut kinds = Vec::new();
    for one in results.iter().flatten() {
        let kind = (one.contender, one.series);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// How contenders look, ours first.
pub fn looks<'a>(kinds: &[(&'a str, &'a str)]) -> Looks<'a> {
    Looks::new(kinds.iter().map(|(contender, _)| *contender))
}

/// All that is on the axis of times: medians and ranges.
pub fn heights<'s>(series: &'s [Series<'_>]) -> impl Iterator<Item = f64> + 's {
    let points = series.iter().flat_map(|one| &one.points);
    points.flat_map(|(_, ms, (low, high))| [*ms, *low, *high])
}

/// All places.
pub fn places(series: &[Series<'_>]) -> Vec<f64> {
    let mut places: Vec<f64> = series
        .iter()
        .flat_map(|one| one.points.iter().map(|point| point.0))
        .collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places
}

/// Marks at the places themselves, where they are few.
pub fn own_ticks(places: &[f64]) -> Option<Vec<Tick>> {
    let whole = places.iter().all(|at| at.fract() == 0.0 && at.abs() < 1e6);
    let tick = |at: &f64| Tick {
        at: *at,
        label: at.to_string(),
    };
    (whole && places.len() <= 9).then(|| places.iter().map(tick).collect())
}

/// Some of many points, the last among them.
pub fn sparse(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(MARKS).max(1);
    let mut some: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    if let Some(last) = points.last().filter(|last| some.last() != Some(last)) {
        some.pop();
        some.push(*last);
    }
    some
}
