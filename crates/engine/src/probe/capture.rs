//! Captures, and their text form: `HOOK[PART][@POSITIONS][|REDUCTION]`.

use std::{fmt, ops::Range, str::FromStr};

use djinn_device::Reduction;

use djinn_model::{
    Site, SiteLayout, hook,
    program::{Dims, Program},
};
use djinn_types::text::shown;
use serde::{Deserialize, Serialize};

use super::{part::Part, positions::Positions};
use crate::error::{EngineError, ParseError, ParsedText};

/// Hooks after the last block.
pub(crate) const HEAD: [Site; 2] = [Site::Normalized, Site::Logits];

/// A capture that is not bound to a model yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// Name of a hook, or a pattern with `*` that matches several hooks.
    pub hook: String,
    /// Heads or elements to capture.
    pub part: Part,
    /// Positions to capture; `None` means the default of the probe.
    pub positions: Option<Positions>,
    /// Reduction on the device.
    pub reduce: Reduce,
}

/// Reduction of captured rows on the device, so that less data leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduce {
    /// No reduction.
    #[default]
    None,
    /// Mean over positions: one row.
    Mean,
    /// Euclidean norm of each row: one number.
    Norm,
    /// Largest elements of each row: `[2, k]`, first their indexes, then their values.
    Top(usize),
    /// Most likely tokens of each row of logits: `[2, k]`, first the tokens, then their
    /// probabilities.
    Likeliest(usize),
    /// Logit lens: most likely tokens if a row were the last residual, `[2, k]`.
    Lens(usize),
}

impl Reduce {
    /// Maximum number of elements of a row that a reduction returns.
    pub const MOST: usize = 128;

    /// Returns the operation of the device that reduces a row.
    pub(crate) fn on_device(self) -> Option<Reduction> {
        match self {
            Reduce::None => None,
            Reduce::Mean => Some(Reduction::Sum),
            Reduce::Norm => Some(Reduction::Norm),
            Reduce::Top(_) => Some(Reduction::Largest),
            Reduce::Likeliest(_) | Reduce::Lens(_) => Some(Reduction::Likeliest),
        }
    }

    /// Number of elements of a row that the reduction returns.
    fn count(self) -> Option<usize> {
        match self {
            Reduce::Top(count) | Reduce::Likeliest(count) | Reduce::Lens(count) => Some(count),
            Reduce::None | Reduce::Mean | Reduce::Norm => None,
        }
    }

    /// Number of values that the reduction makes of one row.
    pub(crate) fn width(self) -> usize {
        match self {
            Reduce::Norm => 1,
            other => 2 * other.count().unwrap_or(0),
        }
    }
}

impl FromStr for Reduce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || {
            let text = shown(text);
            format!("'{text}' is not a reduction (mean, norm, top5, lens5; for logits likeliest5)")
        };
        let name = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let count = match &text[name.len()..] {
            "" => None,
            digits => Some(digits.parse().map_err(|_| error())?),
        };
        if let Some(count) = count
            && !(1..=Self::MOST).contains(&count)
        {
            return Err(format!(
                "a reduction returns 1 to {} elements of a row, not {count}",
                Self::MOST
            ));
        }
        match (name, count) {
            ("mean", None) => Ok(Reduce::Mean),
            ("norm", None) => Ok(Reduce::Norm),
            ("top", Some(count)) => Ok(Reduce::Top(count)),
            ("likeliest", Some(count)) => Ok(Reduce::Likeliest(count)),
            ("lens", Some(count)) => Ok(Reduce::Lens(count)),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reduce::None => Ok(()),
            Reduce::Mean => f.write_str("|mean"),
            Reduce::Norm => f.write_str("|norm"),
            Reduce::Top(count) => write!(f, "|top{count}"),
            Reduce::Likeliest(count) => write!(f, "|likeliest{count}"),
            Reduce::Lens(count) => write!(f, "|lens{count}"),
        }
    }
}

impl FromStr for CaptureSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason: String| ParseError::new(ParsedText::Capture, text, reason);
        let (rest, reduce) = match text.split_once('|') {
            None => (text, Reduce::None),
            Some((rest, reduce)) => (rest, reduce.parse().map_err(error)?),
        };
        let (hook, positions) = match rest.split_once('@') {
            Some((hook, positions)) => (hook, Some(positions.parse().map_err(error)?)),
            None => (rest, None),
        };
        let (hook, part) = Part::split(hook).map_err(error)?;
        Ok(CaptureSpec {
            hook: hook.to_owned(),
            part,
            positions,
            reduce,
        })
    }
}

impl CaptureSpec {
    /// Binds the capture to the hooks that it names.
    pub(crate) fn bind(
        &self,
        program: &Program,
        positions: &Positions,
    ) -> Result<Vec<(Site, Capture)>, EngineError> {
        let positions = self.positions.as_ref().unwrap_or(positions);
        let bind = |site: Site| {
            let refuse = |reason: String| EngineError::Capture {
                hook: site.to_string(),
                reason,
            };
            let capture = Capture {
                columns: self.part.columns(site, &program.dims).map_err(refuse)?,
                part: self.part.clone(),
                positions: positions.clone(),
                reduce: self.reduce,
            };
            capture.check(site, &program.dims).map_err(refuse)?;
            Ok((site, capture))
        };
        hook::find(program, &self.hook)?
            .into_iter()
            .map(bind)
            .collect()
    }
}

/// A capture that is bound to one hook of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capture {
    part: Part,
    /// Columns to capture, in runs; for an attention pattern, heads.
    pub columns: Vec<Range<usize>>,
    pub positions: Positions,
    pub reduce: Reduce,
}

impl Capture {
    /// Returns the specification of the capture at its hook.
    pub fn spec(&self, site: Site) -> CaptureSpec {
        CaptureSpec {
            hook: site.to_string(),
            part: self.part.clone(),
            positions: Some(self.positions.clone()),
            reduce: self.reduce,
        }
    }

    /// Refuses a reduction that the hook does not support.
    fn check(&self, site: Site, dims: &Dims) -> Result<(), String> {
        let (width, whole) = (self.width(), Part::whole(site, dims));
        let can = match self.reduce {
            Reduce::None => Ok(()),
            _ if matches!(site, Site::Pattern(_)) => {
                Err("an attention pattern cannot be reduced; drop the reduction")
            }
            Reduce::Likeliest(_) if site != Site::Logits => {
                Err("likeliest works only on logits; use top or lens")
            }
            Reduce::Lens(_) if whole.len() != dims.d_model || HEAD.contains(&site) => {
                Err("the lens works only on hooks as wide as the residual, before the last norm")
            }
            Reduce::Lens(_) if width != whole.len() => {
                Err("the lens needs whole rows; drop the part")
            }
            _ => Ok(()),
        };
        can.map_err(str::to_owned)?;
        let of = match self.reduce {
            Reduce::Lens(_) => dims.vocab,
            _ => width,
        };
        match self.reduce.count() {
            Some(count) if !(1..=Reduce::MOST).contains(&count) => Err(format!(
                "a reduction returns 1 to {} elements of a row, not {count}",
                Reduce::MOST
            )),
            Some(count) if count > of => Err(format!(
                "the reduction returns {count} elements, but a row has only {of}"
            )),
            _ => Ok(()),
        }
    }

    /// Number of captured elements of a row.
    pub fn width(&self) -> usize {
        self.columns.iter().map(ExactSizeIterator::len).sum()
    }

    /// Whether the capture covers only a part of each row.
    pub fn is_part(&self) -> bool {
        self.part != Part::default()
    }

    /// Returns the shape of one captured row.
    pub fn shape(&self, site: Site, dims: &Dims) -> Vec<usize> {
        let width = self.width();
        match (self.reduce, self.reduce.count(), site.layout(dims)) {
            (Reduce::Norm, ..) => vec![],
            (_, Some(count), _) => vec![2, count],
            (_, None, SiteLayout::Heads(_, d_head)) => vec![width / d_head, d_head],
            _ => vec![width],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CaptureSpec, Reduce};

    #[test]
    fn captures_are_parsed() {
        let spec: CaptureSpec = "blocks.*.attn.hook_z[0,2]@-1|norm".parse().unwrap();
        assert_eq!(spec.hook, "blocks.*.attn.hook_z");
        assert_eq!(spec.part.to_string(), "[0,2]");
        assert_eq!(spec.positions.unwrap().to_string(), "-1");
        assert_eq!(spec.reduce, Reduce::Norm);
        let plain: CaptureSpec = "logits".parse().unwrap();
        assert_eq!((plain.positions, plain.reduce), (None, Reduce::None));
        for reduce in ["mean", "norm", "top5", "likeliest1", "lens128"] {
            let spec: CaptureSpec = format!("h|{reduce}").parse().unwrap();
            assert_eq!(spec.reduce.to_string(), format!("|{reduce}"));
        }
        for bad in [
            "h|sum",
            "h|top",
            "h|top0",
            "h|lens129",
            "h|mean3",
            "h@never",
            "h[2",
        ] {
            assert!(bad.parse::<CaptureSpec>().is_err(), "{bad}");
        }
    }
}
