//! Figure: activity of the link and the device over time.

use super::figure::MissingData;
use crate::{
    draw::{
        Anchor, Axis, Canvas, Drawing, GRID, Hatch, LineStyle, PLAIN, Rect, SMALL, Scale,
        SheetLayout, TextStyle, title, x_axis,
    },
    result::{ActivityLane, ResultFile, TimelineSpan},
};

/// Number of passes that the figure shows.
const PASSES: usize = 2;
const LANE: f64 = 34.0;
const BAR: f64 = 22.0;
const HEAD: f64 = 26.0;
const FOOT: f64 = 46.0;
const NAMES: f64 = 122.0;
const BUSY: f64 = 62.0;
const WIDTH: f64 = 720.0;
const LANES: [(ActivityLane, &str, &str, Hatch); 3] = [
    (
        ActivityLane::Copy,
        "copy over the link",
        "#0072B2",
        Hatch::Full,
    ),
    (ActivityLane::Compute, "compute", "#E69F00", Hatch::Rising),
    (
        ActivityLane::Wait,
        "wait for weights",
        "#D55E00",
        Hatch::Crossed,
    ),
];

pub fn draw(results: &[&ResultFile]) -> Result<Drawing, MissingData> {
    let shown: Vec<(&ResultFile, Vec<&TimelineSpan>)> = results
        .iter()
        .filter_map(|result| Some((*result, first_passes(&result.timeline.as_ref()?.spans))))
        .filter(|(_, spans)| !spans.is_empty())
        .collect();
    if shown.is_empty() {
        return Err(MissingData::Timeline);
    }
    let layout = SheetLayout {
        title: "Copies and compute over time",
        legend: Vec::new(),
        plots: shown.len(),
        columns: 1,
        size: (WIDTH, HEAD + LANE * 3.0 + FOOT),
        lead: 0.0,
    };
    let (mut canvas, cells) = layout.draw();
    for ((result, spans), cell) in shown.iter().zip(cells) {
        panel(&mut canvas, cell, &result.plot_title(), spans);
    }
    Ok(canvas.finish("Copy, compute and wait over time"))
}

/// Returns the spans of about two passes: until the block that was computed first starts for the third
/// time.
fn first_passes(spans: &[TimelineSpan]) -> Vec<&TimelineSpan> {
    let sane =
        |span: &&TimelineSpan| span.start_ms.is_finite() && span.ms.is_finite() && span.ms >= 0.0;
    let mut sorted: Vec<&TimelineSpan> = spans.iter().filter(sane).collect();
    sorted.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
    let compute = sorted
        .iter()
        .filter(|span| span.lane == ActivityLane::Compute);
    let compute: Vec<(&str, f64)> = compute
        .map(|span| (span.name.as_str(), span.start_ms))
        .collect();
    let begins = |i: &usize| {
        let (first, name) = (compute[0].0, compute[*i].0);
        name == first && (*i == 0 || compute[*i - 1].0 != first)
    };
    if let Some(end) = (0..compute.len()).filter(begins).nth(PASSES) {
        sorted.retain(|span| span.start_ms < compute[end].1);
    }
    sorted
}

fn panel(canvas: &mut Canvas, cell: Rect, name: &str, spans: &[&TimelineSpan]) {
    let area = Rect {
        x: cell.x + NAMES,
        y: cell.y + HEAD,
        w: cell.w - NAMES - BUSY,
        h: LANE * 3.0,
    };
    let start = spans
        .iter()
        .map(|span| span.start_ms)
        .fold(f64::INFINITY, f64::min);
    let end = spans
        .iter()
        .map(|span| span.start_ms + span.ms)
        .fold(start, f64::max);
    let scale = Scale::tight([0.0, end - start], 9);
    title(canvas, name, (area.x, cell.y + PLAIN + 1.0), cell.w - NAMES);
    x_axis(canvas, &Axis::new("time, ms", scale), area);
    canvas.text(
        (area.right() + 8.0, area.y),
        "busy",
        TextStyle::new(SMALL).quiet(),
    );
    for (i, (lane, label, color, hatch)) in LANES.into_iter().enumerate() {
        let y = area.y + LANE * (i as f64 + 0.5);
        let letters = TextStyle::new(PLAIN).anchor(Anchor::End);
        canvas.text((area.x - 8.0, y + PLAIN * 0.36), label, letters);
        canvas.line((area.x, y), (area.right(), y), LineStyle::solid(GRID, 0.8));
        let of_lane = spans.iter().filter(|span| span.lane == lane);
        let times = of_lane.map(|span| (span.start_ms - start, span.start_ms - start + span.ms));
        let busy = merged(times.collect(), 0.0);
        let pixel = (end - start) / area.w;
        bars(
            canvas,
            (area, y),
            scale,
            &merged(busy.clone(), pixel),
            (color, hatch),
        );
        let share = busy.iter().map(|(from, to)| to - from).sum::<f64>() / (end - start);
        let share = if share.is_finite() { share } else { 0.0 };
        let (at, text) = (
            (area.right() + 8.0, y + SMALL * 0.36),
            format!("{:.0} %", share * 100.0),
        );
        canvas.text(at, &text, TextStyle::new(SMALL).quiet());
    }
}

/// Draws the bars of a lane; bars too narrow for a hatch are filled.
fn bars(
    canvas: &mut Canvas,
    (area, y): (Rect, f64),
    scale: Scale,
    times: &[(f64, f64)],
    (color, hatch): (&'static str, Hatch),
) {
    for (from, to) in times {
        let x = area.x + scale.place(*from) * area.w;
        let w = (area.x + scale.place(*to) * area.w - x).max(0.7);
        let (y, h) = (y - BAR / 2.0, BAR);
        let hatch = if w < 4.0 { Hatch::Full } else { hatch };
        canvas.bar(Rect { x, y, w, h }, color, hatch);
    }
}

/// Merges periods that are separated by at most `gap`.
fn merged(mut times: Vec<(f64, f64)>, gap: f64) -> Vec<(f64, f64)> {
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut together: Vec<(f64, f64)> = Vec::new();
    for (from, to) in times {
        match together.last_mut() {
            Some(last) if from - last.1 <= gap => last.1 = last.1.max(to),
            _ => together.push((from, to)),
        }
    }
    together
}

#[cfg(test)]
mod tests {
    use super::{first_passes, merged};
    use crate::result::{ActivityLane, TimelineSpan};

    #[test]
    fn close_periods_are_merged() {
        let times = vec![(5.0, 6.0), (0.0, 1.0), (1.5, 2.0), (1.0, 1.2)];
        assert_eq!(
            merged(times.clone(), 0.0),
            [(0.0, 1.2), (1.5, 2.0), (5.0, 6.0)]
        );
        assert_eq!(merged(times, 0.5), [(0.0, 2.0), (5.0, 6.0)]);
    }

    #[test]
    fn two_passes_are_shown() {
        let span = |i: u32| TimelineSpan {
            lane: ActivityLane::Compute,
            name: format!("blocks.{}", i / 2 % 4),
            start_ms: f64::from(i),
            ms: 0.5,
            bytes: 0,
        };
        let spans: Vec<TimelineSpan> = (0..64).map(span).collect();
        assert_eq!(
            first_passes(&spans).len(),
            16,
            "two spans each of four blocks, twice"
        );
        assert_eq!(first_passes(&spans[..12]).len(), 12);
        assert!(first_passes(&[]).is_empty());
    }
}
