//! Hooks: the named points of a model, in TransformerLens's words.

use std::fmt;

use crate::program::{Dims, Program};

/// One hook of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// `hook_embed`: the token embedding, before positions.
    Embed,
    /// `blocks.{i}.hook_resid_pre`
    ResidPre(usize),
    /// `blocks.{i}.attn.hook_q`: queries before any rotation.
    Q(usize),
    /// `blocks.{i}.attn.hook_k`
    K(usize),
    /// `blocks.{i}.attn.hook_v`
    V(usize),
    /// `blocks.{i}.attn.hook_pattern`: attention after softmax.
    Pattern(usize),
    /// `blocks.{i}.attn.hook_z`: mixed values, by head.
    Z(usize),
    /// `blocks.{i}.hook_attn_out`
    AttnOut(usize),
    /// `blocks.{i}.hook_resid_mid`: between attention and MLP.
    ResidMid(usize),
    /// `blocks.{i}.mlp.hook_pre`
    MlpPre(usize),
    /// `blocks.{i}.mlp.hook_post`
    MlpPost(usize),
    /// `blocks.{i}.hook_mlp_out`
    MlpOut(usize),
    /// `blocks.{i}.hook_resid_post`
    ResidPost(usize),
    /// `ln_final.hook_normalized`: what the output matrix reads.
    Normalized,
    /// `logits`
    Logits,
}

/// How a hook's numbers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[pos, width]`
    Rows(usize),
    /// `[pos, head, d_head]`
    Heads(usize, usize),
    /// `[head, query, key]`
    Pattern(usize),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (block, rest) = match *self {
            Site::Embed => return f.write_str("hook_embed"),
            Site::Normalized => return f.write_str("ln_final.hook_normalized"),
            Site::Logits => return f.write_str("logits"),
            Site::ResidPre(i) => (i, "hook_resid_pre"),
            Site::Q(i) => (i, "attn.hook_q"),
            Site::K(i) => (i, "attn.hook_k"),
            Site::V(i) => (i, "attn.hook_v"),
            Site::Pattern(i) => (i, "attn.hook_pattern"),
            Site::Z(i) => (i, "attn.hook_z"),
            Site::AttnOut(i) => (i, "hook_attn_out"),
            Site::ResidMid(i) => (i, "hook_resid_mid"),
            Site::MlpPre(i) => (i, "mlp.hook_pre"),
            Site::MlpPost(i) => (i, "mlp.hook_post"),
            Site::MlpOut(i) => (i, "hook_mlp_out"),
            Site::ResidPost(i) => (i, "hook_resid_post"),
        };
        write!(f, "blocks.{block}.{rest}")
    }
}

impl Site {
    /// The block it is in, if it is in one.
    pub fn block(self) -> Option<usize> {
        match self {
            Site::Embed | Site::Normalized | Site::Logits => None,
            Site::ResidPre(block)
            | Site::Q(block)
            | Site::K(block)
            | Site::V(block)
            | Site::Pattern(block)
            | Site::Z(block)
            | Site::AttnOut(block)
            | Site::ResidMid(block)
            | Site::MlpPre(block)
            | Site::MlpPost(block)
            | Site::MlpOut(block)
            | Site::ResidPost(block) => Some(block),
        }
    }

    /// How this hook's numbers lie in a model of these sizes.
    pub fn layout(self, dims: &Dims) -> Layout {
        match self {
            Site::Q(_) | Site::Z(_) => Layout::Heads(dims.heads, dims.d_head),
            Site::K(_) | Site::V(_) => Layout::Heads(dims.kv_heads, dims.d_head),
            Site::Pattern(_) => Layout::Pattern(dims.heads),
            Site::MlpPre(_) | Site::MlpPost(_) => Layout::Rows(dims.d_mlp),
            Site::Logits => Layout::Rows(dims.vocab),
            _ => Layout::Rows(dims.d_model),
        }
    }
}

/// Why a hook could not be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// No model has it.
    #[error("unknown hook '{name}' (try: {hint})")]
    Unknown {
        /// As asked.
        name: String,
        /// A name that exists.
        hint: String,
    },
    /// Other models have it; this one cannot.
    #[error("hook '{name}' does not exist in a {family} model: {reason}")]
    Lacking {
        /// As asked.
        name: String,
        /// This model's family.
        family: &'static str,
        /// Why not.
        reason: String,
    },
}

/// Finds the hooks of `program` that `pattern` names; `*` stands for any text.
///
/// A pattern that names none is an error that says why.
pub fn find(program: &Program, pattern: &str) -> Result<Vec<Site>, HookError> {
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

/// Whether `text` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    // Greedy with one point of return: linear in practice, never exponential.
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

/// Says why no hook matched.
fn explain(program: &Program, pattern: &str) -> HookError {
    let lacking = |reason: String| HookError::Lacking {
        name: pattern.to_owned(),
        family: program.family,
        reason,
    };
    let blocks = program.dims.blocks;
    // Sites of a block that some family has; asked of this one, they are lacking.
    let anywhere = [Site::ResidMid(0), Site::MlpPre(0), Site::MlpPost(0)];
    for i in 0..blocks {
        for site in anywhere {
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
                    _ => "its MLP is a mixture of experts, each row with its own".to_owned(),
                });
            }
        }
    }
    if let Some(block) = block_of(pattern)
        && block >= blocks
    {
        return lacking(format!(
            "it has {blocks} blocks, 0 to {}",
            blocks.saturating_sub(1)
        ));
    }
    HookError::Unknown {
        name: pattern.to_owned(),
        hint: nearest(program, pattern),
    }
}

/// The number in `blocks.N.…`.
fn block_of(pattern: &str) -> Option<usize> {
    pattern
        .strip_prefix("blocks.")?
        .split('.')
        .next()?
        .parse()
        .ok()
}

/// The hook whose name is most like `pattern`.
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

/// Levenshtein distance.
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
    use super::{distance, matches};

    #[test]
    fn stars_match_any_text() {
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
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
