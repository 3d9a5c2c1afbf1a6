//! What is read at hooks, and how that is written: `HOOK[PART][@POSITIONS][|REDUCTION]`.

use std::{fmt, ops::Range, str::FromStr};

use djinn_device::Reduction;

use djinn_model::{
    Site, SiteLayout, hook,
    program::{Dims, Program},
};
use serde::{Deserialize, Serialize};

use super::{part::Part, positions::Positions};
use crate::error::{EngineError, ParseError, ParsedText};

/// Hooks behind the last block.
pub(crate) const HEAD: [Site; 2] = [Site::Normalized, Site::Logits];

/// A capture as written, not yet bound to a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// A hook, or several by `*`.
    pub hook: String,
    /// Which of its heads or elements.
    pub part: Part,
    /// Where; when not said, where the others are read.
    pub positions: Option<Positions>,
    /// What is made of it before anybody has it.
    pub reduce: Reduce,
}

/// What is made of rows on the device, so that no more leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduce {
    /// They are as they are.
    #[default]
    None,
    /// Their mean over positions: one row.
    Mean,
    /// The length of each: one number.
    Norm,
    /// The largest elements of each: `[2, k]`, their places and then their values.
    Top(usize),
    /// Of logits the same with probabilities in place of values.
    Likeliest(usize),
    /// The same of the logits that the model would have if a row were the last residual.
    Lens(usize),
}

impl Reduce {
    /// Elements of a row that can be asked for at most.
    pub const MOST: usize = 128;

    /// How a device makes it of a row.
    pub(crate) fn on_device(self) -> Option<Reduction> {
        match self {
            Reduce::None => None,
            Reduce::Mean => Some(Reduction::Sum),
            Reduce::Norm => Some(Reduction::Norm),
            Reduce::Top(_) => Some(Reduction::Largest),
            Reduce::Likeliest(_) | Reduce::Lens(_) => Some(Reduction::Likeliest),
        }
    }

    /// The elements of a row that are asked for.
    fn count(self) -> Option<usize> {
        match self {
            Reduce::Top(count) | Reduce::Likeliest(count) | Reduce::Lens(count) => Some(count),
            Reduce::None | Reduce::Mean | Reduce::Norm => None,
        }
    }

    /// Numbers it makes of a row by itself.
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
            format!("'{text}' is not made of rows (mean, norm, top5, lens5; of logits likeliest5)")
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
                "{count} elements of a row: from 1 to {}",
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
    /// The hooks it names, each with what is read there.
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

/// What is read at one hook of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capture {
    part: Part,
    /// Of a pattern, the heads.
    pub columns: Vec<Range<usize>>,
    pub positions: Positions,
    pub reduce: Reduce,
}

impl Capture {
    /// As it was asked for at one hook.
    pub fn spec(&self, site: Site) -> CaptureSpec {
        CaptureSpec {
            hook: site.to_string(),
            part: self.part.clone(),
            positions: Some(self.positions.clone()),
            reduce: self.reduce,
        }
    }

    /// An error where nothing of the kind can be made of what is there.
    fn check(&self, site: Site, dims: &Dims) -> Result<(), String> {
        let (width, whole) = (self.width(), Part::whole(site, dims));
        let can = match self.reduce {
            Reduce::None => Ok(()),
            _ if matches!(site, Site::Pattern(_)) => Err("a pattern is read as it is"),
            Reduce::Likeliest(_) if site != Site::Logits => Err("likeliest is of logits"),
            Reduce::Lens(_) if whole.len() != dims.d_model || HEAD.contains(&site) => {
                Err("the lens is for what is as wide as the residual, before the last norm")
            }
            Reduce::Lens(_) if width != whole.len() => Err("the lens is of whole rows"),
            _ => Ok(()),
        };
        can.map_err(str::to_owned)?;
        let of = match self.reduce {
            Reduce::Lens(_) => dims.vocab,
            _ => width,
        };
        match self.reduce.count() {
            Some(count) if !(1..=Reduce::MOST).contains(&count) => Err(format!(
                "{count} elements of a row: from 1 to {}",
                Reduce::MOST
            )),
            Some(count) if count > of => Err(format!("{count} of {of} elements")),
            _ => Ok(()),
        }
    }

    /// Elements of a row that are read.
    pub fn width(&self) -> usize {
        self.columns.iter().map(ExactSizeIterator::len).sum()
    }

    /// Whether they have to be taken out of their rows.
    pub fn is_part(&self) -> bool {
        self.part != Part::default()
    }

    /// The shape of what is made of a row.
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
    fn captures_are_read() {
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
