//! Line figures: one line with whiskers for each series of each contender.

use super::figure::MissingData;
use crate::{
    contender::{SeriesStyles, contenders},
    draw::{
        Axis, Canvas, Drawing, LegendEntry, LegendSample, LineStyle, Plot, PlotFrame, SeriesStyle,
        SheetLayout, Tick,
    },
    result::{Experiment, ResultFile},
};

/// Largest number of markers on a line; more would hide it.
const MARKS: usize = 16;

/// A series of a contender: position, median and range of each point.
pub struct Series<'a> {
    pub contender: &'a str,
    pub series: &'a str,
    pub points: Vec<(f64, f64, (f64, f64))>,
}

/// Returns every series of every contender of a result, sorted by position.
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

/// A series with its style and legend label.
pub struct StyledSeries<'a> {
    pub of: (&'a str, &'a str),
    pub label: String,
    pub style: SeriesStyle,
}

impl StyledSeries<'_> {
    fn line_style(&self) -> LineStyle {
        LineStyle {
            color: self.style.color,
            width: 2.0,
            dash: self.style.dash,
        }
    }

    fn entry(&self) -> LegendEntry {
        LegendEntry::new(
            LegendSample::Line(self.line_style(), Some(self.style.marker)),
            self.label.clone(),
        )
    }

    /// Draws a series: whiskers first, then the line, then its markers.
    fn draw(&self, plot: &Plot, canvas: &mut Canvas, series: &Series<'_>) {
        for (x, _, range) in &series.points {
            plot.whisker(canvas, *x, *range, self.style.color);
        }
        let line: Vec<(f64, f64)> = series.points.iter().map(|(x, ms, _)| (*x, *ms)).collect();
        plot.line(canvas, &line, self.line_style());
        plot.marks(canvas, &thinned(&line), self.style);
    }
}

/// A figure with a plot for each result that has points.
pub struct LineFigure<'a> {
    shown: Vec<&'a ResultFile>,
    series: Vec<Vec<Series<'a>>>,
}

impl<'a> LineFigure<'a> {
    pub fn of(results: &[&'a ResultFile], experiment: Experiment) -> Result<Self, MissingData> {
        let all = results.iter().map(|result| (*result, series_of(result)));
        let (shown, series): (Vec<_>, Vec<_>) =
            all.filter(|(_, series)| !series.is_empty()).unzip();
        match shown.is_empty() {
            true => Err(MissingData::Points(experiment)),
            false => Ok(LineFigure { shown, series }),
        }
    }

    /// Removes the series whose names match.
    pub fn without(mut self, is_removed: impl Fn(&str) -> bool) -> Self {
        for series in &mut self.series {
            series.retain(|one| !is_removed(one.series));
        }
        self
    }

    pub fn results(&self) -> &[&'a ResultFile] {
        &self.shown
    }

    /// Returns the contender and name of every series, without duplicates.
    pub fn kinds(&self) -> Vec<(&'a str, &'a str)> {
        kinds(&self.series)
    }

    /// Draws every series in its style; `axes` chooses the axes of each plot.
    pub fn draw<'t>(
        &self,
        (title, description): (&str, &str),
        drawn: &[StyledSeries<'_>],
        axes: impl Fn(&[Series<'_>]) -> (Axis<'t>, Axis<'t>),
    ) -> Drawing {
        let layout = SheetLayout {
            title,
            legend: drawn.iter().map(StyledSeries::entry).collect(),
            plots: self.shown.len(),
            columns: 2,
            size: (460.0, 300.0),
            lead: 0.0,
        };
        let (mut canvas, cells) = layout.draw();
        for ((result, series), cell) in self.shown.iter().zip(&self.series).zip(cells) {
            let title = &result.plot_title();
            let (x, y) = axes(series);
            let plot = PlotFrame { title, x, y }.draw(&mut canvas, cell);
            for one in series {
                let of = (one.contender, one.series);
                if let Some(drawn) = drawn.iter().find(|drawn| drawn.of == of) {
                    drawn.draw(&plot, &mut canvas, one);
                }
            }
        }
        canvas.finish(description)
    }
}

/// Returns the contender and name of every series of some results, without duplicates.
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

/// Assigns styles to the contenders, Djinn first.
pub fn series_styles<'a>(kinds: &[(&'a str, &'a str)]) -> SeriesStyles<'a> {
    SeriesStyles::new(kinds.iter().map(|(contender, _)| *contender))
}

/// Returns all values on the axis of durations: medians and ranges.
pub fn durations<'s>(series: &'s [Series<'_>]) -> impl Iterator<Item = f64> + 's {
    let points = series.iter().flat_map(|one| &one.points);
    points.flat_map(|(_, ms, (low, high))| [*ms, *low, *high])
}

/// Returns the positions of all points, sorted and without duplicates.
pub fn positions(series: &[Series<'_>]) -> Vec<f64> {
    let mut positions: Vec<f64> = series
        .iter()
        .flat_map(|one| one.points.iter().map(|point| point.0))
        .collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    positions
}

/// Returns ticks at the positions themselves, if these are few whole numbers.
pub fn ticks_at(positions: &[f64]) -> Option<Vec<Tick>> {
    let whole = positions
        .iter()
        .all(|at| at.fract() == 0.0 && at.abs() < 1e6);
    let tick = |at: &f64| Tick {
        at: *at,
        label: at.to_string(),
    };
    (whole && positions.len() <= 9).then(|| positions.iter().map(tick).collect())
}

/// Selects a limited number of points, always including the last.
pub fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(MARKS).max(1);
    let mut some: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    if let Some(last) = points.last().filter(|last| some.last() != Some(last)) {
        some.pop();
        some.push(*last);
    }
    some
}
