//! Selections of positions.

use std::{fmt, ops::Range, str::FromStr};

use djinn_types::text::shown;
use serde::{Deserialize, Serialize};

/// Largest position that is accepted: beyond any context, and far from overflow.
const FARTHEST: i64 = 1 << 40;

/// Largest number of ranges of a selection, after merging.
const RANGES_MAX: usize = 1024;

/// Largest length of the text of a selection, in bytes.
const TEXT_MAX: usize = 4096;

/// A selection of positions. Negative numbers count back from the end of the prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// Every position: `all`.
    #[default]
    All,
    /// Positions of the prompt: `prompt`.
    Prompt,
    /// Positions after the prompt: `generated`.
    Generated,
    /// Ranges without their ends: `0,3,-1` or `2..5`.
    Ranges(PositionRanges),
}

/// Ranges of positions, each without its end. Ranges whose ends have the same sign are sorted
/// and merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(i64, i64)>", into = "Vec<(i64, i64)>")]
pub struct PositionRanges {
    ranges: Vec<(i64, i64)>,
    /// Whether no range depends on the length of the prompt, so that all are in order.
    is_resolved: bool,
}

impl From<Vec<(i64, i64)>> for PositionRanges {
    fn from(ranges: Vec<(i64, i64)>) -> Self {
        let is_absolute = |&(start, end): &(i64, i64)| start >= 0 && end >= 0;
        let (absolute, relative): (Vec<_>, Vec<_>) = ranges.into_iter().partition(is_absolute);
        let is_behind = |&(start, end): &(i64, i64)| start < 0 && end <= 0;
        let (behind, mut mixed): (Vec<_>, Vec<_>) = relative.into_iter().partition(is_behind);
        mixed.sort_unstable();
        mixed.dedup();
        // Empty ranges are gone by now, so that a saved selection reads back as the same value.
        let behind = merged(behind);
        let is_resolved = behind.is_empty() && mixed.is_empty();
        let mut ranges = merged(absolute);
        ranges.extend(behind);
        ranges.extend(mixed);
        PositionRanges {
            ranges,
            is_resolved,
        }
    }
}

impl From<PositionRanges> for Vec<(i64, i64)> {
    fn from(ranges: PositionRanges) -> Self {
        ranges.ranges
    }
}

/// Sorts ranges, drops empty ones, and joins ranges that touch.
fn merged<T: Copy + Ord>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.retain(|(start, end)| start < end);
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = next.0 <= last.1;
        if joins {
            last.1 = last.1.max(next.1);
        }
        joins
    });
    ranges
}

/// Joins ranges of positions; the result is sorted.
pub(crate) fn union(ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let pairs = ranges.into_iter().map(|range| (range.start, range.end));
    let joined = merged(pairs.collect()).into_iter();
    joined.map(|(start, end)| start..end).collect()
}

impl PositionRanges {
    /// Returns the ranges with the numbers that they were given with.
    pub fn as_slice(&self) -> &[(i64, i64)] {
        &self.ranges
    }

    /// Returns the ranges that may contain one of these positions, each as positions.
    fn near(&self, within: &Range<usize>, prompt: usize) -> impl Iterator<Item = Range<usize>> {
        let near = match self.is_resolved {
            true => {
                let starts_late = |n: i64| usize::try_from(n).unwrap_or(0);
                let from = |&(_, end): &(i64, i64)| starts_late(end) <= within.start;
                let to = |&(start, _): &(i64, i64)| starts_late(start) < within.end;
                let first = self.ranges.partition_point(from);
                let last = self.ranges.partition_point(to);
                &self.ranges[first..last.max(first)]
            }
            false => &self.ranges[..],
        };
        let within = within.clone();
        let clipped = near.iter().map(move |&range| {
            let range = resolve(range, prompt);
            range.start.max(within.start)..range.end.min(within.end)
        });
        clipped.filter(|range| range.start < range.end)
    }
}

impl Positions {
    /// Creates a selection of ranges.
    pub fn ranges(ranges: Vec<(i64, i64)>) -> Self {
        Positions::Ranges(ranges.into())
    }

    /// Returns the selected positions within a range, as sorted ranges that do not touch.
    pub(crate) fn intervals(&self, within: Range<usize>, prompt: usize) -> Vec<Range<usize>> {
        let Range { start, end } = within;
        let one = |range: Range<usize>| union(std::iter::once(range));
        match self {
            Positions::All => one(start..end),
            Positions::Prompt => one(start..end.min(prompt)),
            Positions::Generated => one(start.max(prompt)..end),
            Positions::Ranges(ranges) => union(ranges.near(&(start..end), prompt)),
        }
    }

    /// Returns the selection for one prompt: no range depends on the prompt any more.
    pub(crate) fn resolved(&self, prompt: usize) -> Positions {
        match self {
            Positions::Ranges(ranges) if !ranges.is_resolved => {
                self.within(0..FARTHEST as usize, prompt)
            }
            _ => self.clone(),
        }
    }

    /// Whether a position is selected.
    pub fn contains(&self, position: usize, prompt: usize) -> bool {
        self.selects_any(position..position.saturating_add(1), prompt)
    }

    /// Whether a position of a range is selected.
    pub(crate) fn selects_any(&self, within: Range<usize>, prompt: usize) -> bool {
        match self {
            Positions::All => within.start < within.end,
            Positions::Prompt => within.start < within.end.min(prompt),
            Positions::Generated => within.start.max(prompt) < within.end,
            Positions::Ranges(ranges) => ranges.near(&within, prompt).next().is_some(),
        }
    }

    /// Returns the index of a selected position among the selected ones.
    pub fn ordinal(&self, position: usize, prompt: usize) -> usize {
        self.count(position, prompt)
    }

    /// Returns the selected positions within a range.
    pub fn within(&self, range: Range<usize>, prompt: usize) -> Positions {
        let intervals = self.intervals(range, prompt).into_iter();
        let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let ranges = intervals.map(|range| (signed(range.start), signed(range.end)));
        Positions::ranges(ranges.collect())
    }

    /// Whether no position is selected for any prompt.
    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(self, Positions::Ranges(ranges) if ranges.ranges.is_empty())
    }

    /// Whether the ranges are as many and their numbers as large as parsing accepts: a file may contain
    /// anything. A session may cut a range of its first turn in two.
    pub(crate) fn is_sane(&self) -> bool {
        let is_far = |n: i64| n.unsigned_abs() > FARTHEST.unsigned_abs();
        let is_far = |&(start, end): &(i64, i64)| is_far(start) || is_far(end);
        match self {
            Positions::Ranges(ranges) => {
                ranges.ranges.len() <= 2 * RANGES_MAX && !ranges.ranges.iter().any(is_far)
            }
            _ => true,
        }
    }

    /// Returns the number of selected positions among the first `positions`.
    pub fn count(&self, positions: usize, prompt: usize) -> usize {
        self.count_in(0..positions, prompt)
    }

    /// Returns the number of selected positions within a range.
    pub(crate) fn count_in(&self, within: Range<usize>, prompt: usize) -> usize {
        let intervals = self.intervals(within, prompt);
        intervals.iter().map(ExactSizeIterator::len).sum()
    }
}

/// Resolves negative ends of a range from the end of the prompt.
fn resolve((start, end): (i64, i64), prompt: usize) -> Range<usize> {
    let at = |n: i64| {
        let n = if n < 0 {
            n.saturating_add_unsigned(prompt as u64)
        } else {
            n
        };
        usize::try_from(n).unwrap_or(0)
    };
    // `-1` alone means `-1..0`: up to the end of the prompt.
    let end = if start < 0 && end == 0 {
        prompt
    } else {
        at(end)
    };
    at(start)..end
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Positions::All => f.write_str("all"),
            Positions::Prompt => f.write_str("prompt"),
            Positions::Generated => f.write_str("generated"),
            Positions::Ranges(ranges) => {
                let text = ranges.ranges.iter().map(|&(start, end)| match end - start {
                    1 => start.to_string(),
                    _ => format!("{start}..{end}"),
                });
                f.write_str(&text.collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for Positions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => return Ok(Positions::All),
            "prompt" => return Ok(Positions::Prompt),
            "generated" => return Ok(Positions::Generated),
            _ => {}
        }
        if text.len() > TEXT_MAX {
            return Err(format!(
                "a selection of positions of {} bytes is too long; the limit is {TEXT_MAX}, so \
                 select ranges such as 2..500",
                text.len()
            ));
        }
        let ranges: Vec<_> = text
            .split(',')
            .map(|part| parse_range(text, part))
            .collect::<Result<_, _>>()?;
        let ranges = PositionRanges::from(ranges);
        match ranges.ranges.len() > RANGES_MAX {
            true => Err(format!(
                "{} ranges of positions are too many; the limit is {RANGES_MAX}",
                ranges.ranges.len()
            )),
            false => Ok(Positions::Ranges(ranges)),
        }
    }
}

/// Parses a position or a range, which is a part of `text`.
fn parse_range(text: &str, part: &str) -> Result<(i64, i64), String> {
    let number = |n: &str| {
        let parsed = n.parse().ok();
        let near = parsed.filter(|n: &i64| n.unsigned_abs() <= FARTHEST.unsigned_abs());
        near.ok_or_else(|| {
            format!(
                "'{}' is not a selection of positions (expected all, prompt, generated, 0,3,-1 \
                 or 2..5)",
                shown(text)
            )
        })
    };
    let Some((start, end)) = part.split_once("..") else {
        return number(part).map(|n| (n, n + 1));
    };
    let (start, end) = (number(start)?, number(end)?);
    match (start < 0) == (end < 0) && start >= end {
        true => Err(format!(
            "'{}' selects nothing: the end of a range is excluded",
            shown(part)
        )),
        false => Ok((start, end)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Positions, resolve};

    #[test]
    fn selects() {
        let check = |text: &str, prompt: usize, expect: &[usize]| {
            let positions: Positions = text.parse().unwrap();
            let selected: Vec<usize> = (0..12).filter(|&p| positions.contains(p, prompt)).collect();
            assert_eq!(selected, expect, "{text} of a prompt of {prompt}");
            assert_eq!(positions.count(12, prompt), expect.len(), "{text}: count");
            for (i, &p) in selected.iter().enumerate() {
                assert_eq!(positions.ordinal(p, prompt), i, "{text}: ordinal of {p}");
            }
        };
        check("all", 5, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        check("prompt", 3, &[0, 1, 2]);
        check("generated", 9, &[9, 10, 11]);
        check("0,3,-1", 5, &[0, 3, 4]);
        check("2..5", 12, &[2, 3, 4]);
        check("-3..-1", 8, &[5, 6]);
        check("-2..0", 8, &[6, 7]);
        check("-1", 8, &[7]);
        check("1,1,0..2", 8, &[0, 1]);
        let positions: Positions = "1,3..9".parse().unwrap();
        let within = |range| positions.within(range, 8).to_string();
        assert_eq!(
            (within(0..5), within(4..8)),
            ("1,3..5".into(), "4..8".into())
        );
        assert_eq!(within(9..20), "");
    }

    #[test]
    fn refuses() {
        for text in [
            "",
            "x",
            "1..",
            "5..2",
            "3..3",
            "2..0",
            "-1..-3",
            "1,,2",
            "99999999999999999999",
            "1;2",
        ] {
            assert!(text.parse::<Positions>().is_err(), "{text}");
        }
    }

    #[test]
    fn long_selections_are_merged_or_refused() {
        let list = |step: usize, count: usize| -> String {
            let numbers: Vec<String> = (0..count).map(|n| (n * step % 997).to_string()).collect();
            numbers.join(",")
        };
        let text = list(1, 900);
        assert_eq!(text.parse::<Positions>().unwrap().to_string(), "0..900");
        for long in [list(2, 200_000), "x".repeat(1 << 23)] {
            let error = long.parse::<Positions>().unwrap_err();
            assert!(error.len() < 200, "{error}");
        }
    }

    /// Whether a position is selected, by definition.
    fn naive(ranges: &[(i64, i64)], position: usize, prompt: usize) -> bool {
        let mut ranges = ranges.iter();
        ranges.any(|&range| resolve(range, prompt).contains(&position))
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,20}") {
            let _ = text.parse::<Positions>();
        }

        /// Counting, clipping and looking up ranges agree with the definition, position by
        /// position, before and after the ranges are resolved.
        #[test]
        fn intervals_agree_with_the_definition(
            ranges in prop::collection::vec((-25i64..25, -25i64..25), 0..12),
            prompt in 0usize..30, start in 0usize..40, length in 0usize..40,
        ) {
            let positions = Positions::ranges(ranges.clone());
            let resolved = positions.resolved(prompt);
            let within = start..start + length;
            let selected = |p: &usize| naive(&ranges, *p, prompt);
            let count = within.clone().filter(selected).count();
            for positions in [&positions, &resolved] {
                prop_assert_eq!(positions.count_in(within.clone(), prompt), count);
                prop_assert_eq!(positions.selects_any(within.clone(), prompt), count > 0);
                let clipped = positions.within(within.clone(), prompt);
                for p in 0..80 {
                    let is_selected = naive(&ranges, p, prompt);
                    prop_assert_eq!(positions.contains(p, prompt), is_selected);
                    prop_assert_eq!(positions.count(p, prompt), (0..p).filter(selected).count());
                    let is_inside = is_selected && within.contains(&p);
                    prop_assert_eq!(clipped.contains(p, prompt), is_inside);
                }
            }
        }

        /// A selection is printed and read back with the same meaning.
        #[test]
        fn printed_and_read_again(ranges in prop::collection::vec((0i64..50, 1i64..9), 1..9)) {
            let ranges = ranges.into_iter().map(|(start, length)| (start, start + length));
            let positions = Positions::ranges(ranges.collect());
            prop_assert_eq!(positions.to_string().parse(), Ok(positions));
        }
    }
}
