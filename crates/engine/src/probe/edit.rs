//! Edits of activations, and their text form:
//! `HOOK[PART]:CHANGE[=OPERAND][@POSITIONS]`.

use std::{ops::Range, path::PathBuf, str::FromStr, sync::Arc};

use djinn_model::{Site, SiteLayout, hook, program::Program};
use djinn_types::text::shown;
use serde::{Deserialize, Serialize};

use super::{part::Part, positions::Positions};
use crate::{
    error::{EngineError, ParseError, ParsedText},
    tensors::{Tensor, read_tensor},
};

/// Change that an edit makes to an activation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change<T> {
    /// Multiplies by a factor.
    Scale(f32),
    /// Sets to zero.
    Zero,
    /// Adds a multiple of the operand.
    Add {
        /// Operand that is added.
        operand: T,
        /// Factor of the operand.
        factor: f32,
    },
    /// Replaces the activation by the operand.
    Replace(T),
    /// Removes the component along the operand.
    ProjectOut(T),
    /// Adds a multiple of the operand, scaled to the norm of the activation.
    AddMatched {
        /// Operand that is added.
        operand: T,
        /// Factor of the operand.
        factor: f32,
    },
    /// Limits every element to a range.
    Clamp {
        /// Lower bound.
        low: f32,
        /// Upper bound.
        high: f32,
    },
}

impl<T> Change<T> {
    /// Converts the operand.
    pub(crate) fn map<U>(&self, operand: impl FnOnce(&T) -> U) -> Change<U> {
        match self {
            Change::Scale(factor) => Change::Scale(*factor),
            Change::Zero => Change::Zero,
            Change::Add {
                operand: from,
                factor,
            } => Change::Add {
                operand: operand(from),
                factor: *factor,
            },
            Change::Replace(from) => Change::Replace(operand(from)),
            Change::ProjectOut(from) => Change::ProjectOut(operand(from)),
            Change::AddMatched {
                operand: from,
                factor,
            } => Change::AddMatched {
                operand: operand(from),
                factor: *factor,
            },
            Change::Clamp { low, high } => Change::Clamp {
                low: *low,
                high: *high,
            },
        }
    }

    /// Returns the factors and bounds of the change.
    pub(crate) fn numbers(&self) -> Vec<f32> {
        match *self {
            Change::Scale(factor)
            | Change::Add { factor, .. }
            | Change::AddMatched { factor, .. } => vec![factor],
            Change::Clamp { low, high } => vec![low, high],
            Change::Zero | Change::Replace(_) | Change::ProjectOut(_) => vec![],
        }
    }

    /// Returns the operand, if the change has one.
    pub fn operand(&self) -> Option<&T> {
        match self {
            Change::Scale(_) | Change::Zero | Change::Clamp { .. } => None,
            Change::Add { operand, .. }
            | Change::AddMatched { operand, .. }
            | Change::Replace(operand)
            | Change::ProjectOut(operand) => Some(operand),
        }
    }
}

/// An edit that is not bound to a model yet.
#[derive(Clone, Debug, PartialEq)]
pub struct EditSpec {
    /// Name of a hook, or a pattern with `*` that matches several hooks.
    pub hook: String,
    /// Heads or elements to edit.
    pub part: Part,
    /// Change to make.
    pub change: Change<Operand>,
    /// Positions to edit.
    pub positions: Positions,
}

/// Operand of an edit.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A tensor in a file: `FILE.safetensors` or `FILE.safetensors#NAME`.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor; `None` means the only one, or the one named as the hook.
        name: Option<String>,
    },
    /// Numbers of one row: `[0.1,-2]`.
    Inline(Vec<f32>),
    /// A tensor in memory.
    Tensor(Arc<Tensor>),
}

impl FromStr for EditSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason: String| ParseError::new(ParsedText::Edit, text, reason);
        let (hook, rest) = text.split_once(':').ok_or_else(|| {
            error("expected HOOK:CHANGE, as in 'blocks.3.hook_resid_post:scale=0.9'".to_owned())
        })?;
        if hook.is_empty() {
            return Err(error("the hook is missing before ':'".to_owned()));
        }
        // The path of a file may contain `@` too; positions contain no slash.
        let (change, positions) = match rest.rsplit_once('@') {
            Some((change, positions)) if !positions.contains(['/', '\\']) => {
                (change, positions.parse().map_err(&error)?)
            }
            _ => (rest, Positions::All),
        };
        let (hook, part) = Part::split(hook).map_err(&error)?;
        Ok(EditSpec {
            hook: hook.to_owned(),
            part,
            change: parse_change(change).map_err(error)?,
            positions,
        })
    }
}

fn parse_change(text: &str) -> Result<Change<Operand>, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let file = || {
        let value = value.filter(|v| !v.is_empty());
        let numbers = format!("{name}=FILE.safetensors[#TENSOR] or {name}=[0.1,-2]");
        value.ok_or_else(|| format!("{name} needs a file or numbers: {numbers}"))
    };
    let times = || match file()?.rsplit_once('*') {
        Some((operand, factor)) => Ok((parse_operand(operand)?, parse_factor(factor)?)),
        None => Ok::<_, String>((parse_operand(file()?)?, 1.0)),
    };
    match (name, value) {
        ("scale", Some(value)) => parse_factor(value).map(Change::Scale),
        ("scale", None) => Err("scale needs a factor: scale=0.9".to_owned()),
        ("zero", None) => Ok(Change::Zero),
        ("zero", Some(_)) => Err("zero takes no value".to_owned()),
        ("add", _) => times().map(|(operand, factor)| Change::Add { operand, factor }),
        ("add-matched", _) => {
            times().map(|(operand, factor)| Change::AddMatched { operand, factor })
        }
        ("replace", _) => Ok(Change::Replace(parse_operand(file()?)?)),
        ("project-out", _) => Ok(Change::ProjectOut(parse_operand(file()?)?)),
        ("clamp", Some(value)) => parse_clamp(value),
        ("clamp", None) => Err("clamp needs bounds: clamp=-1..1".to_owned()),
        _ => Err(format!(
            "'{}' is not a change (scale, zero, clamp, add, add-matched, replace, project-out)",
            shown(name)
        )),
    }
}

fn parse_clamp(text: &str) -> Result<Change<Operand>, String> {
    let bounds = text.split_once("..");
    let (low, high) = bounds.ok_or_else(|| {
        let text = shown(text);
        format!("'{text}' is not a range (expected -1..1)")
    })?;
    let (low, high) = (parse_factor(low)?, parse_factor(high)?);
    match low <= high {
        true => Ok(Change::Clamp { low, high }),
        false => Err(format!(
            "the lower bound {low} exceeds the upper bound {high}"
        )),
    }
}

fn parse_factor(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(factor) if factor.is_finite() => Ok(factor),
        _ => Err(format!("'{}' is not a finite number", shown(text))),
    }
}

fn parse_operand(text: &str) -> Result<Operand, String> {
    if let Some(numbers) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let numbers = numbers.split(',').map(|n| parse_factor(n.trim()));
        return Ok(Operand::Inline(numbers.collect::<Result<_, _>>()?));
    }
    Ok(match text.rsplit_once('#') {
        Some((path, name)) => Operand::File {
            path: path.into(),
            name: Some(name.to_owned()),
        },
        None => Operand::File {
            path: text.into(),
            name: None,
        },
    })
}

/// An edit that is bound to one hook of one model, with its operand loaded.
#[derive(Clone, Debug)]
pub(crate) struct BoundEdit {
    pub change: Change<Arc<Tensor>>,
    /// Columns to edit, in runs; for an attention pattern, heads.
    pub columns: Vec<Range<usize>>,
    pub positions: Positions,
    /// Whether the edit ends with the current turn.
    pub for_turn: bool,
}

impl BoundEdit {
    /// Whether the edit has no effect.
    pub fn changes_nothing(&self) -> bool {
        let is_zero = |operand: &Tensor| operand.data.iter().all(|x| *x == 0.0);
        match &self.change {
            Change::Scale(factor) => *factor == 1.0,
            // Adding zero would change the sign of a negative zero, so such an edit is skipped.
            Change::Add { operand, factor } | Change::AddMatched { operand, factor } => {
                *factor == 0.0 || is_zero(operand)
            }
            _ => false,
        }
    }

    /// Returns the operand, if the change has one.
    pub fn operand(&self) -> Option<&Arc<Tensor>> {
        self.change.operand()
    }

    /// Number of edited columns, which is the length of an operand row.
    pub fn width(&self) -> usize {
        self.columns.iter().map(ExactSizeIterator::len).sum()
    }

    /// Number of rows of the operand; 0 without an operand.
    pub fn operand_rows(&self) -> usize {
        let operand = self.operand();
        operand.map_or(0, |operand| operand.data.len() / self.width().max(1))
    }
}

impl EditSpec {
    /// Creates an edit of a whole hook at all positions.
    pub fn at(site: Site, change: Change<Operand>) -> Self {
        EditSpec {
            hook: site.to_string(),
            part: Part::default(),
            change,
            positions: Positions::All,
        }
    }

    /// Binds the edit to the hooks that it names. All of them share one operand, unless each
    /// reads its own tensor of a file.
    pub(crate) fn bind(&self, program: &Program) -> Result<Vec<(Site, BoundEdit)>, EngineError> {
        let sites = hook::find(program, &self.hook)?;
        let mut shared = None;
        sites
            .into_iter()
            .map(|site| {
                let change = self.change.load(site, &mut shared)?;
                let columns = self.part.columns(site, &program.dims);
                let edit = BoundEdit {
                    change,
                    columns: columns.map_err(|reason| EngineError::Edit {
                        hook: site.to_string(),
                        reason,
                    })?,
                    positions: self.positions.clone(),
                    for_turn: false,
                };
                edit.check_fit(program, site)?;
                Ok((site, edit))
            })
            .collect()
    }
}

impl Change<Operand> {
    /// Loads the operand for a hook, or takes the one that other hooks share.
    fn load(
        &self,
        site: Site,
        shared: &mut Option<Arc<Tensor>>,
    ) -> Result<Change<Arc<Tensor>>, EngineError> {
        let Some(operand) = self.operand() else {
            return Ok(self.map(|_| Arc::new(Tensor::default())));
        };
        let loaded = match shared {
            Some(shared) => Arc::clone(shared),
            None => {
                let (loaded, is_for_all) = operand.load(site)?;
                *shared = is_for_all.then(|| Arc::clone(&loaded));
                loaded
            }
        };
        Ok(self.map(|_| loaded))
    }
}

impl Operand {
    /// Loads the operand for a hook. Returns whether all hooks have the same operand.
    fn load(&self, site: Site) -> Result<(Arc<Tensor>, bool), EngineError> {
        let not_finite = |name: &str| format!("{name} contains values that are not finite");
        match self {
            Operand::File { path, name } => {
                let wanted = site.to_string();
                let (found, tensor) = read_tensor(path, name.as_deref(), &wanted)?;
                if !is_finite(&tensor.data) {
                    return Err(EngineError::File {
                        path: path.clone(),
                        reason: not_finite(&format!("tensor '{found}'")),
                    });
                }
                // Only a file of several tensors has one for each hook.
                let is_for_all = name.is_some() || found != wanted;
                Ok((Arc::new(tensor), is_for_all))
            }
            Operand::Inline(numbers) => {
                let tensor = Tensor {
                    shape: vec![numbers.len()],
                    data: numbers.clone(),
                };
                Ok((Arc::new(tensor), true))
            }
            Operand::Tensor(tensor) if is_finite(&tensor.data) => Ok((Arc::clone(tensor), true)),
            Operand::Tensor(_) => Err(EngineError::Edit {
                hook: site.to_string(),
                reason: not_finite("the operand"),
            }),
        }
    }
}

fn is_finite(numbers: &[f32]) -> bool {
    numbers.iter().all(|x| x.is_finite())
}

impl BoundEdit {
    /// Refuses an edit that the hook does not support.
    pub fn check_fit(&self, program: &Program, site: Site) -> Result<(), EngineError> {
        let error = |reason: String| EngineError::Edit {
            hook: site.to_string(),
            reason,
        };
        if !self.change.numbers().iter().all(|x| x.is_finite()) {
            return Err(error("the factor or bounds are not finite".to_owned()));
        }
        let end = Part::whole(site, &program.dims).end;
        let is_inside = |c: &Range<usize>| c.start < c.end && c.end <= end;
        if !self.columns.iter().all(is_inside) {
            return Err(error(format!(
                "the edit selects columns beyond the hook's {end}"
            )));
        }
        let Some(operand) = self.operand() else {
            return Ok(());
        };
        if let SiteLayout::Pattern(_) = site.layout(&program.dims) {
            return Err(error(
                "attention patterns support only scale, zero and clamp".to_owned(),
            ));
        }
        let width = self.width();
        // The innermost dimensions must cover exactly one position: `[…, d_model]` or
        // `[…, head, d_head]`.
        let shape = &operand.shape;
        let product = |of: &[usize]| of.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        let fits = (0..shape.len()).any(|i| product(&shape[i..]) == Some(width));
        let is_whole = product(shape) == Some(operand.data.len());
        if !fits || !is_whole || operand.data.is_empty() {
            return Err(error(format!(
                "the operand has shape {shape:?}, but the edit has {width} numbers per position"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Change, EditSpec, Operand};
    use crate::Positions;

    fn file(path: &str, name: Option<&str>) -> Operand {
        Operand::File {
            path: path.into(),
            name: name.map(str::to_owned),
        }
    }

    #[test]
    fn edits_are_parsed() {
        let check = |text: &str, hook: &str, change: Change<Operand>, positions: Positions| {
            let (hook, part) = crate::Part::split(hook).unwrap();
            let expect = EditSpec {
                hook: hook.to_owned(),
                part,
                change,
                positions,
            };
            assert_eq!(text.parse(), Ok(expect), "{text}");
        };
        let all = Positions::All;
        check("h:scale=0.9", "h", Change::Scale(0.9), all.clone());
        check("blocks.*.x:zero", "blocks.*.x", Change::Zero, all.clone());
        check("h[0,2..4]:zero", "h[0,2..4]", Change::Zero, all.clone());
        let bounds = Change::Clamp {
            low: -1.5,
            high: 2.0,
        };
        check("h:clamp=-1.5..2", "h", bounds, all.clone());
        let inline = Change::AddMatched {
            operand: Operand::Inline(vec![1.0, -0.5]),
            factor: 0.25,
        };
        check("h:add-matched=[1, -0.5]*0.25", "h", inline, all.clone());
        check("h:zero@prompt", "h", Change::Zero, Positions::Prompt);
        check(
            "h:add=v.safetensors",
            "h",
            Change::Add {
                operand: file("v.safetensors", None),
                factor: 1.0,
            },
            all.clone(),
        );
        check(
            "h:add=a:b/v.safetensors#x*-2.5@0,-1",
            "h",
            Change::Add {
                operand: file("a:b/v.safetensors", Some("x")),
                factor: -2.5,
            },
            Positions::ranges(vec![(0, 1), (-1, 0)]),
        );
        check(
            "h:replace=a@b/f",
            "h",
            Change::Replace(file("a@b/f", None)),
            all.clone(),
        );
        check(
            "h:replace=a@b/f@prompt",
            "h",
            Change::Replace(file("a@b/f", None)),
            Positions::Prompt,
        );
        check(
            "h:replace=f",
            "h",
            Change::Replace(file("f", None)),
            all.clone(),
        );
        check(
            "h:project-out=f#u",
            "h",
            Change::ProjectOut(file("f", Some("u"))),
            all,
        );
    }

    #[test]
    fn refuses_with_the_reason() {
        let check = |text: &str, reason: &str| {
            let error = text.parse::<EditSpec>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        };
        check("", "expected HOOK:CHANGE");
        check(":zero", "hook is missing");
        check("h:", "is not a change");
        check("h:scale", "needs a factor");
        check("h:scale=much", "not a finite number");
        check("h:scale=NaN", "not a finite number");
        check("h:scale=inf", "not a finite number");
        check("h:zero=1", "takes no value");
        check("h:add", "needs a file or numbers");
        check("h:add=", "needs a file");
        check("h:add=f*x", "not a finite number");
        check("h:add=[1,x]", "not a finite number");
        check("h:clamp", "needs bounds");
        check("h:clamp=3", "is not a range");
        check("h:clamp=3..1", "exceeds");
        check("h[2:zero", "unbalanced");
        check("h:scale=1@never", "is not a selection of positions");
        check("h:rotate=3", "is not a change");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,60}") {
            let _ = text.parse::<EditSpec>();
        }

        #[test]
        fn near_misses_never_panic(
            text in "(h|blocks\\.[*0-9]\\.x)?:?(scale|add|zero|clamp|add-matched|replace|project-out)?[=@#*.,0-9a-z-]{0,20}",
        ) {
            let _ = text.parse::<EditSpec>();
        }
    }
}
