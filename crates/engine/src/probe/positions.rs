//! Selections of positions.

use std::{fmt, ops::Range, str::FromStr};

use serde::{Deserialize, Serialize};

/// Largest position that is accepted: beyond any context, and far from overflow.
const FARTHEST: i64 = 1 << 40;

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
    Ranges(Vec<(i64, i64)>),
}

impl Positions {
    /// Whether a position is selected.
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

    /// Returns the index of a selected position among the selected ones.
    pub fn ordinal(&self, position: usize, prompt: usize) -> usize {
        match self {
            Positions::All | Positions::Prompt => position,
            Positions::Generated => position - prompt,
            Positions::Ranges(_) => self.count(position, prompt),
        }
    }

    /// Returns the selected positions within a range.
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

    /// Whether no position is selected for any prompt.
    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(self, Positions::Ranges(ranges) if ranges.is_empty())
    }

    /// Whether all numbers are in the range that parsing accepts: a file may contain anything.
    pub(crate) fn is_sane(&self) -> bool {
        let is_far = |n: i64| n.unsigned_abs() > FARTHEST.unsigned_abs();
        match self {
            Positions::Ranges(ranges) => !ranges.iter().any(|&(a, b)| is_far(a) || is_far(b)),
            _ => true,
        }
    }

    /// Returns the number of selected positions among the first `positions`.
    pub fn count(&self, positions: usize, prompt: usize) -> usize {
        (0..positions).filter(|&p| self.contains(p, prompt)).count()
    }
}

/// Resolves negative ends of a range from the end of the prompt.
fn resolve((start, end): (i64, i64), prompt: usize) -> Range<usize> {
    let at = |n: i64| {
        let n = if n < 0 { n + prompt as i64 } else { n };
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
        let error = || {
            format!(
                "'{text}' is not a selection of positions (expected all, prompt, generated, 0,3,-1 or 2..5)"
            )
        };
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
                        return Err(format!(
                            "'{part}' selects nothing: the end of a range is excluded"
                        ));
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
        fn parsing_never_panics(text in ".{0,20}") {
            let _ = text.parse::<Positions>();
        }
    }
}
