//! How contenders are told apart: by colour, and without it by marker, dash and hatch.

use super::canvas::Area;

/// How a line is broken.
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
    pub fn pattern(self) -> &'static str {
        match self {
            Dash::Solid => "",
            Dash::Dashed => "6 3",
            Dash::Dotted => "1.5 2.5",
            Dash::Mixed => "7 3 1.5 3",
            Dash::Long => "11 3",
            Dash::Short => "3 2",
            Dash::LongDot => "11 3 1.5 3 1.5 3",
            Dash::Sparse => "4 5",
        }
    }
}

/// What stands at a point.
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
    /// Where something came to an end.
    Cross,
}

impl Marker {
    /// Whether there is nothing in it.
    pub fn hollow(self) -> bool {
        use Marker::{HollowCircle, HollowDiamond, HollowSquare, HollowTriangle};
        matches!(
            self,
            HollowCircle | HollowSquare | HollowDiamond | HollowTriangle
        )
    }

    /// Corners, of a size of 1; none for a circle.
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

/// Lines in a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hatch {
    /// All of its colour.
    Full,
    Rising,
    Falling,
    Empty,
    Crossed,
    Level,
    Upright,
    Grid,
}

/// From one line to the next.
const GAP: f64 = 5.0;

type Stroke = ((f64, f64), (f64, f64));

impl Hatch {
    /// The lines, cut to a box.
    pub fn lines(self, area: Area) -> Vec<Stroke> {
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

fn level(area: Area) -> Vec<Stroke> {
    let of = |at| ((area.x, area.y + at), (area.right(), area.y + at));
    steps(area.h).map(of).collect()
}

fn upright(area: Area) -> Vec<Stroke> {
    let of = |at| ((area.x + at, area.y), (area.x + at, area.bottom()));
    steps(area.w).map(of).collect()
}

/// Lines x + y = c (or x - y = c), each from where it enters the box to where it leaves it.
fn slanted(area: Area, rising: bool) -> Vec<Stroke> {
    let Area { x, y, w, h } = area;
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

/// How one contender looks, everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub color: &'static str,
    pub marker: Marker,
    pub dash: Dash,
    pub hatch: Hatch,
}

impl Look {
    /// For a second line of the same contender: its colour, an empty mark, a broken line.
    pub fn second(self) -> Self {
        let marker = match self.marker {
            Marker::Circle => Marker::HollowCircle,
            Marker::Square => Marker::HollowSquare,
            Marker::Diamond => Marker::HollowDiamond,
            Marker::Triangle => Marker::HollowTriangle,
            other => other,
        };
        let dash = Dash::Short;
        Look {
            marker,
            dash,
            ..self
        }
    }
}

const fn look(color: &'static str, marker: Marker, dash: Dash, hatch: Hatch) -> Look {
    Look {
        color,
        marker,
        dash,
        hatch,
    }
}

/// Okabe and Ito's colours, which most who see few colours tell apart, without the yellow that is too
/// pale for a line, and a grey.
pub const LOOKS: [Look; 8] = [
    look("#0072B2", Marker::Circle, Dash::Solid, Hatch::Full),
    look("#D55E00", Marker::Square, Dash::Dashed, Hatch::Rising),
    look("#009E73", Marker::Triangle, Dash::Mixed, Hatch::Falling),
    look("#E69F00", Marker::Diamond, Dash::Short, Hatch::Crossed),
    look("#CC79A7", Marker::Down, Dash::Long, Hatch::Level),
    look(
        "#56B4E9",
        Marker::HollowTriangle,
        Dash::Dotted,
        Hatch::Upright,
    ),
    look("#000000", Marker::HollowSquare, Dash::LongDot, Hatch::Empty),
    look("#767676", Marker::HollowDiamond, Dash::Sparse, Hatch::Grid),
];

#[cfg(test)]
mod tests {
    use super::{Area, Hatch, LOOKS};

    #[test]
    fn hatches_stay_in_their_box() {
        for (w, h) in [(40.0, 12.0), (3.0, 12.0), (0.0, 0.0), (12.0, 90.0)] {
            let area = Area {
                x: 7.0,
                y: 9.0,
                w,
                h,
            };
            for look in LOOKS {
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
        let area = Area {
            x: 0.0,
            y: 0.0,
            w: 40.0,
            h: 20.0,
        };
        assert_eq!(Hatch::Rising.lines(area).len(), 11);
    }

    #[test]
    fn nothing_is_told_by_colour_alone() {
        for (i, one) in LOOKS.iter().enumerate() {
            for other in &LOOKS[i + 1..] {
                assert!(
                    one.marker != other.marker
                        && one.dash != other.dash
                        && one.hatch != other.hatch
                );
            }
        }
    }
}
