//! Styles that distinguish contenders: colour, and also marker, dash and hatch for readers without colour.

use super::rect::Rect;

/// Dash pattern of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dash {
    Solid,
    Dashed,
    Dotted,
    Mixed,
    Long,
    Short,
    LongDot,
    Sparse,
}

impl Dash {
    /// Returns the lengths of dashes and gaps; a solid line has none.
    pub fn pattern(self) -> &'static [f32] {
        match self {
            Dash::Solid => &[],
            Dash::Dashed => &[6.0, 3.0],
            Dash::Dotted => &[1.5, 2.5],
            Dash::Mixed => &[7.0, 3.0, 1.5, 3.0],
            Dash::Long => &[11.0, 3.0],
            Dash::Short => &[3.0, 2.0],
            Dash::LongDot => &[11.0, 3.0, 1.5, 3.0, 1.5, 3.0],
            Dash::Sparse => &[4.0, 5.0],
        }
    }
}

/// Marker of a data point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Down,
    HollowCircle,
    HollowSquare,
    HollowDiamond,
    HollowTriangle,
    /// Marks the point where a contender ran out of memory.
    Cross,
}

impl Marker {
    /// Whether the marker is drawn as an outline.
    pub fn hollow(self) -> bool {
        use Marker::{HollowCircle, HollowDiamond, HollowSquare, HollowTriangle};
        matches!(
            self,
            HollowCircle | HollowSquare | HollowDiamond | HollowTriangle
        )
    }

    /// Returns the corners of the marker at size 1; empty for circles and crosses.
    pub fn corners(self) -> &'static [(f64, f64)] {
        match self {
            Marker::Circle | Marker::HollowCircle | Marker::Cross => &[],
            Marker::Square | Marker::HollowSquare => {
                &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]
            }
            Marker::Triangle | Marker::HollowTriangle => &[(0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)],
            Marker::Down => &[(0.0, 1.15), (1.1, -0.85), (-1.1, -0.85)],
            Marker::Diamond | Marker::HollowDiamond => {
                &[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]
            }
        }
    }
}

/// Hatch pattern of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hatch {
    /// Filled with the full colour.
    Full,
    Rising,
    Falling,
    Empty,
    Crossed,
    Level,
    Upright,
    Grid,
}

/// Distance between two hatch lines.
const GAP: f64 = 5.0;

/// Start and end point of a hatch line.
type HatchLine = ((f64, f64), (f64, f64));

impl Hatch {
    /// Returns the hatch lines, clipped to a rectangle.
    pub fn lines(self, area: Rect) -> Vec<HatchLine> {
        match self {
            Hatch::Full | Hatch::Empty => Vec::new(),
            Hatch::Rising => slanted(area, true),
            Hatch::Falling => slanted(area, false),
            Hatch::Crossed => [slanted(area, true), slanted(area, false)].concat(),
            Hatch::Level => level(area),
            Hatch::Upright => upright(area),
            Hatch::Grid => [level(area), upright(area)].concat(),
        }
    }
}

fn steps(room: f64) -> impl Iterator<Item = f64> {
    let count = (room / GAP).clamp(0.0, 1000.0) as u32;
    (1..=count)
        .map(|i| f64::from(i) * GAP)
        .filter(move |at| *at < room)
}

fn level(area: Rect) -> Vec<HatchLine> {
    let of = |at| ((area.x, area.y + at), (area.right(), area.y + at));
    steps(area.h).map(of).collect()
}

fn upright(area: Rect) -> Vec<HatchLine> {
    let of = |at| ((area.x + at, area.y), (area.x + at, area.bottom()));
    steps(area.w).map(of).collect()
}

/// Returns the lines x + y = c (or x - y = c), clipped to the rectangle.
fn slanted(area: Rect, rising: bool) -> Vec<HatchLine> {
    let Rect { x, y, w, h } = area;
    let of = |c: f64| {
        let (from, to) = ((c - h).max(0.0), c.min(w));
        let place = |along: f64| match rising {
            true => (x + along, y + (c - along)),
            false => (x + along, y + h - (c - along)),
        };
        (place(from), place(to))
    };
    steps(w + h).map(of).collect()
}

/// Style of one series: colour, marker, dash and hatch.
#[derive(Clone, Copy, Debug)]
pub struct SeriesStyle {
    pub color: &'static str,
    pub marker: Marker,
    pub dash: Dash,
    pub hatch: Hatch,
}

impl SeriesStyle {
    /// Returns the style of a second line of the same contender: same colour, hollow marker, dashed line.
    pub fn second(self) -> Self {
        let marker = match self.marker {
            Marker::Circle => Marker::HollowCircle,
            Marker::Square => Marker::HollowSquare,
            Marker::Diamond => Marker::HollowDiamond,
            Marker::Triangle => Marker::HollowTriangle,
            other => other,
        };
        let dash = Dash::Short;
        SeriesStyle {
            marker,
            dash,
            ..self
        }
    }
}

const fn style(color: &'static str, marker: Marker, dash: Dash, hatch: Hatch) -> SeriesStyle {
    SeriesStyle {
        color,
        marker,
        dash,
        hatch,
    }
}

/// The palette of Okabe and Ito, which colour-blind readers can distinguish; a grey replaces the yellow,
/// which is too pale for a line.
pub const STYLES: [SeriesStyle; 8] = [
    style("#0072B2", Marker::Circle, Dash::Solid, Hatch::Full),
    style("#D55E00", Marker::Square, Dash::Dashed, Hatch::Rising),
    style("#009E73", Marker::Triangle, Dash::Mixed, Hatch::Falling),
    style("#E69F00", Marker::Diamond, Dash::Short, Hatch::Crossed),
    style("#CC79A7", Marker::Down, Dash::Long, Hatch::Level),
    style(
        "#56B4E9",
        Marker::HollowTriangle,
        Dash::Dotted,
        Hatch::Upright,
    ),
    style("#000000", Marker::HollowSquare, Dash::LongDot, Hatch::Empty),
    style("#767676", Marker::HollowDiamond, Dash::Sparse, Hatch::Grid),
];

#[cfg(test)]
mod tests {
    use super::{Hatch, Rect, STYLES};

    #[test]
    fn hatch_lines_stay_inside_the_rectangle() {
        for (w, h) in [(40.0, 12.0), (3.0, 12.0), (0.0, 0.0), (12.0, 90.0)] {
            let area = Rect {
                x: 7.0,
                y: 9.0,
                w,
                h,
            };
            for look in STYLES {
                for (x, y) in look
                    .hatch
                    .lines(area)
                    .into_iter()
                    .flat_map(|(from, to)| [from, to])
                {
                    let inside = x >= 7.0 && x <= 7.0 + w && y >= 9.0 && y <= 9.0 + h;
                    assert!(inside, "{:?} in {area:?}: {x} {y}", look.hatch);
                }
            }
        }
        let area = Rect {
            x: 0.0,
            y: 0.0,
            w: 40.0,
            h: 20.0,
        };
        assert_eq!(Hatch::Rising.lines(area).len(), 11);
    }

    #[test]
    fn styles_differ_without_colour() {
        for (i, one) in STYLES.iter().enumerate() {
            for other in &STYLES[i + 1..] {
                assert!(
                    one.marker != other.marker
                        && one.dash != other.dash
                        && one.hatch != other.hatch
                );
            }
        }
    }
}
