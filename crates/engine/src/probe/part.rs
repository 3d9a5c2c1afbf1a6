//! Parts of a hook: heads where the hook has heads, elements otherwise.

use std::{fmt, ops::Range, str::FromStr};

use djinn_model::{Site, SiteLayout, program::Dims};
use djinn_types::text::shown;
use serde::{Deserialize, Serialize};

/// Largest length of the text of a part, in bytes.
const TEXT_MAX: usize = 16 << 10;

/// Selection of heads or elements of a hook, written `[0,3]` or `[2..5]` after its name. The
/// default selects all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part(Option<Vec<(usize, usize)>>);

impl Part {
    /// Splits the text of a hook into its name and its part.
    pub(crate) fn split(text: &str) -> Result<(&str, Self), String> {
        match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
            Some((hook, part)) => Ok((hook, part.parse()?)),
            None if text.contains(['[', ']']) => Err(format!(
                "'{}' has an unbalanced bracket; write HOOK[PART]",
                shown(text)
            )),
            None => Ok((text, Part::default())),
        }
    }

    /// Returns all columns of a hook.
    pub(crate) fn whole(site: Site, dims: &Dims) -> Range<usize> {
        let (count, each, _) = units(site, dims);
        0..count * each
    }

    /// Returns the selected columns of a hook, in runs; for an attention pattern, heads.
    pub(crate) fn columns(&self, site: Site, dims: &Dims) -> Result<Vec<Range<usize>>, String> {
        let (count, each, what) = units(site, dims);
        let Some(ranges) = &self.0 else {
            return Ok(std::iter::once(Part::whole(site, dims)).collect());
        };
        check_order(ranges)?;
        if let Some(&(from, to)) = ranges.iter().find(|(_, to)| *to > count) {
            return Err(format!(
                "[{from}..{to}] is out of range: the hook has {count} {what}"
            ));
        }
        let columns = ranges.iter().map(|&(from, to)| from * each..to * each);
        Ok(columns.collect())
    }
}

/// Refuses ranges that are empty or out of order: a file may contain anything.
fn check_order(ranges: &[(usize, usize)]) -> Result<(), String> {
    let mut end = 0;
    for &(from, to) in ranges {
        if from < end || to <= from {
            return Err(format!(
                "{from}..{to} is out of order: each range must begin after the previous one ends"
            ));
        }
        end = to;
    }
    match ranges {
        [] => Err("the part is empty".to_owned()),
        _ => Ok(()),
    }
}

/// Returns the number of heads or elements of a hook, the columns of each, and their name.
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
        if text.len() > TEXT_MAX {
            return Err(format!(
                "a part of a hook of {} bytes is too long; the limit is {TEXT_MAX}, so select \
                 ranges such as [2..500]",
                text.len()
            ));
        }
        let error = || {
            let text = shown(text);
            format!("'[{text}]' is not a part of a hook (expected [0,3] or [2..5])")
        };
        let number = |n: &str| n.trim().parse::<usize>().map_err(|_| error());
        let range = |part: &str| match part.split_once("..") {
            Some((from, to)) => Ok((number(from)?, number(to)?)),
            None => number(part).map(|n| (n, n.saturating_add(1))),
        };
        let ranges: Vec<_> = text.split(',').map(range).collect::<Result<_, String>>()?;
        check_order(&ranges).map_err(|error| format!("'[{}]': {error}", shown(text)))?;
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
        fn parsing_never_panics(text in ".{0,20}") {
            let _ = Part::split(&text);
        }
    }
}
