//! Lookup of hooks by name or pattern, with errors that suggest the right name.

use djinn_types::text::shown;

use super::Program;
use super::site::Site;

/// Reason why no hook matches a name or pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// No model has a hook of this name.
    #[error("unknown hook '{name}'; the most similar hook is '{hint}'")]
    Unknown {
        /// Name or pattern, as given.
        name: String,
        /// Name of the most similar hook of this model.
        hint: String,
    },
    /// The name is longer than any hook or useful pattern.
    #[error("a hook name of {bytes} bytes is too long; the limit is {limit} bytes")]
    TooLong {
        /// Length of the name in bytes.
        bytes: usize,
        /// Largest length in bytes.
        limit: usize,
    },
    /// Models of other families or sizes have the hook; this model does not.
    #[error("hook '{name}' does not exist in a {family} model: {reason}")]
    Lacking {
        /// Name or pattern, as given.
        name: String,
        /// Family of this model.
        family: &'static str,
        /// Reason why this model does not have the hook.
        reason: String,
    },
}

/// Largest length of the name or pattern of hooks, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Finds the hooks of `program` that match `pattern`, in which `*` stands for any text.
///
/// A pattern that matches no hook is an error.
pub fn find(program: &Program, pattern: &str) -> Result<Vec<Site>, HookError> {
    if pattern.len() > NAME_BYTES_MAX {
        return Err(HookError::TooLong {
            bytes: pattern.len(),
            limit: NAME_BYTES_MAX,
        });
    }
    // Adjacent stars match as one star does, and would cost time at every hook.
    let mut single = pattern.to_owned();
    while single.contains("**") {
        single = single.replace("**", "*");
    }
    let pattern = single.as_str();
    let sites: Vec<Site> = program
        .hooks()
        .into_iter()
        .filter(|site| matches(pattern, &site.to_string()))
        .collect();
    if sites.is_empty() {
        Err(explain(program, pattern))
    } else {
        Ok(sites)
    }
}

/// Returns whether `text` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    // Backtracks only to the last star, so the running time is never exponential.
    let (p, t) = (pattern.as_bytes(), text.as_bytes());
    let (mut i, mut j) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while j < t.len() {
        if i < p.len() && p[i] == b'*' {
            star = Some((i, j));
            i += 1;
        } else if i < p.len() && p[i] == t[j] {
            i += 1;
            j += 1;
        } else if let Some((star_i, star_j)) = star {
            star = Some((star_i, star_j + 1));
            i = star_i + 1;
            j = star_j + 1;
        } else {
            return false;
        }
    }
    p[i..].iter().all(|&c| c == b'*')
}

/// Returns the reason why no hook matches `pattern`.
fn explain(program: &Program, pattern: &str) -> HookError {
    let lacking = |reason: String| HookError::Lacking {
        name: shown(pattern),
        family: program.family,
        reason,
    };
    let blocks = program.dims.blocks;
    // Lists hooks of a block that only some families have.
    let optional = [Site::ResidMid(0), Site::MlpPre(0), Site::MlpPost(0)];
    for i in 0..blocks {
        for site in optional {
            let site = match site {
                Site::ResidMid(_) => Site::ResidMid(i),
                Site::MlpPre(_) => Site::MlpPre(i),
                _ => Site::MlpPost(i),
            };
            if matches(pattern, &site.to_string()) {
                return lacking(match site {
                    Site::ResidMid(_) => "attention and MLP run in parallel, so there is no \
                                          residual between them"
                        .to_owned(),
                    _ => "the MLP is a mixture of experts, and every row uses its own experts"
                        .to_owned(),
                });
            }
        }
    }
    if let Some(block) = block_of(pattern)
        && block >= blocks
    {
        return lacking(format!(
            "the model has {blocks} blocks, numbered 0 to {}",
            blocks.saturating_sub(1)
        ));
    }
    HookError::Unknown {
        name: shown(pattern),
        hint: nearest(program, pattern),
    }
}

/// Returns the number in `blocks.N.…`.
fn block_of(pattern: &str) -> Option<usize> {
    pattern
        .strip_prefix("blocks.")?
        .split('.')
        .next()?
        .parse()
        .ok()
}

/// Returns the name of the hook that is most similar to `pattern`.
fn nearest(program: &Program, pattern: &str) -> String {
    let block = block_of(pattern).unwrap_or(0);
    program
        .hooks()
        .into_iter()
        .map(|site| site.to_string())
        .filter(|name| block_of(name).is_none_or(|b| b == block))
        .min_by_key(|name| distance(name, pattern))
        .unwrap_or_default()
}

/// Returns the Levenshtein distance of two strings.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{HookError, distance, find, matches};
    use crate::shapes::Shape;

    #[test]
    fn star_matches_any_text() {
        let check = |pattern: &str, text: &str, expect: bool| {
            assert_eq!(matches(pattern, text), expect, "{pattern} on {text}");
        };
        check("*", "logits", true);
        check("*", "", true);
        check("", "", true);
        check("", "a", false);
        check("blocks.*.hook_q", "blocks.3.hook_q", true);
        check("blocks.*.hook_q", "blocks.3.hook_k", false);
        check("blocks.3.*", "blocks.3.attn.hook_q", true);
        check("blocks.3.*", "blocks.31.attn.hook_q", false);
        check("*resid*", "blocks.0.hook_resid_post", true);
        check("a*b*c", "aXbYbZc", true);
        check("a*b*c", "aXbYbZ", false);
    }

    #[test]
    fn long_names_are_refused_and_never_repeated() {
        let (program, _) = Shape::parse("llama-2-7b?layers=2")
            .unwrap()
            .build()
            .unwrap();
        for long in ["*".repeat(1 << 23), "a".repeat(257)] {
            let error = find(&program, &long).unwrap_err();
            assert!(matches!(error, HookError::TooLong { limit: 256, .. }));
            assert!(error.to_string().len() < 200);
        }
        let error = find(&program, &"a".repeat(256)).unwrap_err();
        assert!(error.to_string().len() < 300, "{error}");
        assert!(!find(&program, &"*".repeat(256)).unwrap().is_empty());
    }

    #[test]
    fn levenshtein_distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
