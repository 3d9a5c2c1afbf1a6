//! What is read at hooks, and how that is written: `HOOK[PART][@POSITIONS][|mean|norm]`.

use std::{collections::BTreeMap, ops::Range, str::FromStr};

use djinn_model::{
    hook::{self, Layout, Site},
    program::{Dims, Program},
};
use serde::{Deserialize, Serialize};

use crate::{EngineError, ParseError, Part, Positions, Tensor};

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

/// What is made of rows that were read.
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
}

impl FromStr for CaptureSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason: String| ParseError::new("capture", text, reason);
        let (rest, reduce) = match text.split_once('|') {
            None => (text, Reduce::None),
            Some((rest, "mean")) => (rest, Reduce::Mean),
            Some((rest, "norm")) => (rest, Reduce::Norm),
            Some((_, other)) => {
                return Err(error(format!("'{other}' is not made of rows (mean, norm)")));
            }
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
            if matches!(site, Site::Pattern(_)) && self.reduce != Reduce::None {
                return Err(refuse("a pattern is read as it is".to_owned()));
            }
            let capture = Capture {
                columns: self.part.columns(site, &program.dims).map_err(refuse)?,
                part: self.part.clone(),
                positions: positions.clone(),
                reduce: self.reduce,
            };
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

    /// The shape of a row.
    fn shape(&self, site: Site, dims: &Dims) -> Vec<usize> {
        let width: usize = self.columns.iter().map(ExactSizeIterator::len).sum();
        match (self.reduce, site.layout(dims)) {
            (Reduce::Norm, _) => vec![],
            (_, Layout::Heads(_, d_head)) => vec![width / d_head, d_head],
            _ => vec![width],
        }
    }
}

/// What was read at hooks.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    rows: BTreeMap<Site, Rows>,
    patterns: BTreeMap<Site, Vec<PatternRow>>,
}

/// Rows of one hook, or what was made of them.
#[derive(Clone, Debug)]
struct Rows {
    /// The shape of each.
    shape: Vec<usize>,
    count: usize,
    data: Vec<f32>,
    /// Where a mean is wanted, the sum so far: in order of positions, whatever the passes.
    sum: Vec<f64>,
}

/// The attention of one position, some heads: `[head, keys]`.
#[derive(Clone, Debug)]
struct PatternRow {
    keys: usize,
    data: Vec<f32>,
}

impl Captured {
    /// Takes in rows of a hook's whole width.
    pub(crate) fn push_rows(&mut self, site: Site, capture: &Capture, dims: &Dims, data: &[f32]) {
        let rows = self.rows.entry(site).or_insert_with(|| Rows {
            shape: capture.shape(site, dims),
            count: 0,
            data: Vec::new(),
            sum: Vec::new(),
        });
        for row in data.chunks_exact(Part::whole(site, dims).len()) {
            let part = capture
                .columns
                .iter()
                .flat_map(|columns| &row[columns.clone()]);
            rows.count += 1;
            match capture.reduce {
                Reduce::None => rows.data.extend(part),
                Reduce::Norm => {
                    let squares: f64 = part.map(|x| f64::from(*x).powi(2)).sum();
                    rows.data.push(squares.sqrt() as f32);
                }
                Reduce::Mean => {
                    rows.sum.resize(rows.shape.iter().product(), 0.0);
                    rows.sum
                        .iter_mut()
                        .zip(part)
                        .for_each(|(sum, x)| *sum += f64::from(*x));
                }
            }
        }
    }

    pub(crate) fn push_pattern(&mut self, site: Site, keys: usize, data: Vec<f32>) {
        let row = PatternRow { keys, data };
        self.patterns.entry(site).or_default().push(row);
    }

    /// Everything by hook name, in the layout of its hook.
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        let rows = self
            .rows
            .iter()
            .map(|(site, rows)| (site.to_string(), rows.tensor()));
        let patterns = self.patterns.iter();
        let patterns = patterns.map(|(site, rows)| (site.to_string(), assemble(rows)));
        rows.chain(patterns).collect()
    }
}

impl Rows {
    fn tensor(&self) -> Tensor {
        if !self.sum.is_empty() {
            let mean = |sum: &f64| (sum / self.count as f64) as f32;
            return Tensor {
                shape: self.shape.clone(),
                data: self.sum.iter().map(mean).collect(),
            };
        }
        let count = std::iter::once(self.count);
        Tensor {
            shape: count.chain(self.shape.iter().copied()).collect(),
            data: self.data.clone(),
        }
    }
}

/// Rows of growing length as one `[head, query, key]`, zero where there is no key yet.
fn assemble(rows: &[PatternRow]) -> Tensor {
    let keys = rows.iter().map(|row| row.keys).max().unwrap_or(0);
    let heads = rows.first().map_or(0, |row| row.data.len() / row.keys);
    let mut data = vec![0.0; heads * rows.len() * keys];
    for (q, row) in rows.iter().enumerate() {
        for (h, from) in row.data.chunks_exact(row.keys).enumerate() {
            let at = (h * rows.len() + q) * keys;
            data[at..at + row.keys].copy_from_slice(from);
        }
    }
    Tensor {
        shape: vec![heads, rows.len(), keys],
        data,
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
        for bad in ["h|sum", "h@never", "h[2"] {
            assert!(bad.parse::<CaptureSpec>().is_err(), "{bad}");
        }
    }
}
