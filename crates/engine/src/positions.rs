//! Which positions of a session something applies to.

use std::{fmt, str::FromStr};

/// A selection of positions. Negative numbers count back from the prompt's end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Which of the selected positions this is, counted from the first; `None`
    /// where it is not selected.
    pub fn ordinal(&self, position: usize, prompt: usize) -> Option<usize> {
        match self {
            Positions::All => Some(position),
            Positions::Prompt => (position < prompt).then_some(position),
            Positions::Generated => position.checked_sub(prompt),
            Positions::Ranges(ranges) => {
                let selected = |p: usize| {
                    ranges
                        .iter()
                        .any(|&range| resolve(range, prompt).contains(&p))
                };
                selected(position).then(|| (0..position).filter(|&p| selected(p)).count())
            }
        }
    }

    /// How many positions are selected, where that is known before generating.
    pub fn count(&self, prompt: usize) -> Option<usize> {
        match self {
            Positions::All | Positions::Generated => None,
            Positions::Prompt => Some(prompt),
            Positions::Ranges(ranges) => {
                let mut all: Vec<usize> = ranges
                    .iter()
                    .flat_map(|&range| {
                        let range = resolve(range, prompt);
                        // A position beyond any context selects nothing; do not list it.
                        range.start..range.end.min(range.start + (1 << 24))
                    })
                    .collect();
                all.sort_unstable();
                all.dedup();
                Some(all.len())
            }
        }
    }
}

/// A range with negative ends counted from the prompt's end.
fn resolve((start, end): (i64, i64), prompt: usize) -> std::ops::Range<usize> {
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
            // Far beyond any context, and far from overflow.
            if n.abs() > 1 << 40 {
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

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Positions::All => f.write_str("all"),
            Positions::Prompt => f.write_str("prompt"),
            Positions::Generated => f.write_str("generated"),
            Positions::Ranges(ranges) => {
                for (i, (start, end)) in ranges.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    if start + 1 == *end {
                        write!(f, "{comma}{start}")?;
                    } else {
                        write!(f, "{comma}{start}..{end}")?;
                    }
                }
                Ok(())
            }
        }
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
            let selected: Vec<usize> = (0..12)
                .filter(|&p| positions.ordinal(p, prompt).is_some())
                .collect();
            assert_eq!(selected, expect, "{text} of a prompt of {prompt}");
            for (i, &p) in selected.iter().enumerate() {
                assert_eq!(
                    positions.ordinal(p, prompt),
                    Some(i),
                    "{text}: ordinal of {p}"
                );
            }
            if let Some(count) = positions.count(prompt) {
                assert_eq!(count, expect.len(), "{text}: count");
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

        #[test]
        fn what_is_written_is_read(parts in prop::collection::vec((0i64..50, 1i64..9), 1..5)) {
            let ranges: Vec<(i64, i64)> = parts.iter().map(|&(s, n)| (s, s + n)).collect();
            let positions = Positions::Ranges(ranges);
            prop_assert_eq!(positions.to_string().parse::<Positions>(), Ok(positions));
        }
    }
}
