//! Which part of a hook's width: heads where it has heads, elements where it has none.

use std::{fmt, ops::Range, str::FromStr};

use djinn_model::{Site, SiteLayout, program::Dims};
use serde::{Deserialize, Serialize};

/// Some heads or elements, written `[0,3]` or `[2..5]` behind a hook's name; all of them where
/// nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part(Option<Vec<(usize, usize)>>);

impl Part {
    /// A hook's name, and the part that is written behind it.
    pub(crate) fn split(text: &str) -> Result<(&str, Self), String> {
        match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
            Some((hook, part)) => Ok((hook, part.parse()?)),
            None if text.contains(['[', ']']) => Err(format!(
                "'{text}' has a bracket that is not closed at its end"
            )),
            None => Ok((text, Part::default())),
        }
    }

    /// All columns of a hook.
    pub(crate) fn whole(site: Site, dims: &Dims) -> Range<usize> {
        let (count, each, _) = units(site, dims);
        0..count * each
    }

    /// The columns of a hook that it names, in runs; of a pattern, its heads.
    pub(crate) fn columns(&self, site: Site, dims: &Dims) -> Result<Vec<Range<usize>>, String> {
        let (count, each, what) = units(site, dims);
        let Some(ranges) = &self.0 else {
            return Ok(std::iter::once(Part::whole(site, dims)).collect());
        };
        check_order(ranges)?;
        if let Some(&(from, to)) = ranges.iter().find(|(_, to)| *to > count) {
            return Err(format!("[{from}..{to}] is beyond its {count} {what}"));
        }
        let columns = ranges.iter().map(|&(from, to)| from * each..to * each);
        Ok(columns.collect())
    }
}

/// Refuses ranges that are empty or out of order: what comes from a file may be.
fn check_order(ranges: &[(usize, usize)]) -> Result<(), String> {
    let mut end = 0;
    for &(from, to) in ranges {
        if from < end || to <= from {
            return Err(format!(
                "{from}..{to} is not in order: each begins after the one before it ends"
            ));
        }
        end = to;
    }
    match ranges {
        [] => Err("it is empty".to_owned()),
        _ => Ok(()),
    }
}

/// How many heads or elements a hook has, the columns of each, and which they are.
fn units(site: Site, dims: &Dims) -> (usize, usize, &'static str) {
    match site.layout(dims) {
        SiteLayout::Rows(width) => (width, 1, "elements"),
        SiteLayout::Heads(heads, d_head) => (heads, d_head, "heads"),
        SiteLayout::Pattern(heads) => (heads, 1, "heads"),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ranges) = &self.0 else {
            return Ok(());
        };
        let text = ranges.iter().map(|&(from, to)| match to - from {
            1 => from.to_string(),
            _ => format!("{from}..{to}"),
        });
        write!(f, "[{}]", text.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || format!("'[{text}]' is not a part of a hook (try [0,3] or [2..5])");
        let number = |n: &str| n.trim().parse::<usize>().map_err(|_| error());
        let range = |part: &str| match part.split_once("..") {
            Some((from, to)) => Ok((number(from)?, number(to)?)),
            None => number(part).map(|n| (n, n.saturating_add(1))),
        };
        let ranges: Vec<_> = text.split(',').map(range).collect::<Result<_, String>>()?;
        check_order(&ranges).map_err(|error| format!("'[{text}]': {error}"))?;
        Ok(Part(Some(ranges)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Part;

    #[test]
    fn names_and_parts() {
        let split = |text| Part::split(text).map(|(hook, part)| (hook, part.to_string()));
        assert_eq!(split("h"), Ok(("h", String::new())));
        assert_eq!(split("h[0,3..5, 7]"), Ok(("h", "[0,3..5,7]".to_owned())));
        for text in [
            "h[",
            "h]",
            "h[]",
            "h[x]",
            "h[3..3]",
            "h[4,2]",
            "h[0..2,1]",
            "h[1]x",
        ] {
            assert!(split(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in ".{0,20}") {
            let _ = Part::split(&text);
        }
    }
}
