//! Which positions of a session something applies to.

use std::{fmt, ops::Range, str::FromStr};

use serde::{Deserialize, Serialize};

/// Far beyond any context, and far from overflow.
const FARTHEST: i64 = 1 << 40;

/// A selection of positions. Negative numbers count back from the prompt's end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// Every position: `all`.
    #[default]
    All,
    /// Those of the prompt: `prompt`.
    Prompt,
    /// Those after it: `generated`.
    Generated,
    /// Ranges, ends excluded: `0,3,-1` or `2..5`.
    Ranges(Vec<(i64, i64)>),
}

impl Positions {
    /// Whether this position is selected.
    pub fn contains(&self, position: usize, prompt: usize) -> bool {
        match self {
            Positions::All => true,
            Positions::Prompt => position < prompt,
            Positions::Generated => position >= prompt,
            Positions::Ranges(ranges) => ranges
                .iter()
                .any(|&range| resolve(range, prompt).contains(&position)),
        }
    }

    /// Which of the selected positions this one is, counted from the first.
    pub fn ordinal(&self, position: usize, prompt: usize) -> usize {
        match self {
            Positions::All | Positions::Prompt => position,
            Positions::Generated => position - prompt,
            Positions::Ranges(_) => self.count(position, prompt),
        }
    }

    /// Those of them that lie in a range.
    pub fn within(&self, range: Range<usize>, prompt: usize) -> Positions {
        let mut ranges: Vec<(i64, i64)> = Vec::new();
        for position in range.filter(|&position| self.contains(position, prompt)) {
            let position = position as i64;
            match ranges.last_mut() {
                Some((_, end)) if *end == position => *end += 1,
                _ => ranges.push((position, position + 1)),
            }
        }
        Positions::Ranges(ranges)
    }

    /// Whether no position is selected, whatever the prompt.
    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(self, Positions::Ranges(ranges) if ranges.is_empty())
    }

    /// Whether its numbers are of the kind that is read: what comes from a file may be any.
    pub(crate) fn is_sane(&self) -> bool {
        let is_far = |n: i64| n.unsigned_abs() > FARTHEST.unsigned_abs();
        match self {
            Positions::Ranges(ranges) => !ranges.iter().any(|&(a, b)| is_far(a) || is_far(b)),
            _ => true,
        }
    }

    /// How many of the first `positions` positions are selected.
    pub fn count(&self, positions: usize, prompt: usize) -> usize {
        (0..positions).filter(|&p| self.contains(p, prompt)).count()
    }
}

/// A range with negative ends counted from the prompt's end.
fn resolve((start, end): (i64, i64), prompt: usize) -> Range<usize> {
    let at = |n: i64| {
        let n = if n < 0 { n + prompt as i64 } else { n };
        usize::try_from(n).unwrap_or(0)
    };
    // `-1` alone reads `-1..0`: up to the prompt's end.
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
                let text = ranges.iter().map(|&(start, end)| match end - start {
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
        let error =
            || format!("'{text}' is not positions (try all, prompt, generated, 0,3,-1 or 2..5)");
        let number = |n: &str| {
            let n: i64 = n.parse().map_err(|_| error())?;
            if n.unsigned_abs() > FARTHEST.unsigned_abs() {
                return Err(error());
            }
            Ok(n)
        };
        let ranges = text
            .split(',')
            .map(|part| match part.split_once("..") {
                Some((start, end)) => {
                    let (start, end) = (number(start)?, number(end)?);
                    if (start < 0) == (end < 0) && start >= end {
                        return Err(format!("'{part}' selects nothing: its end is excluded"));
                    }
                    Ok((start, end))
                }
                None => number(part).map(|n| (n, n + 1)),
            })
            .collect::<Result<Vec<_>, String>>()?;
        Ok(Positions::Ranges(ranges))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Positions;

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

    proptest! {
        #[test]
        fn reading_never_panics(text in ".{0,20}") {
            let _ = text.parse::<Positions>();
        }
    }
}
