//! Edits as typed data, and how they are written:
//! `HOOK:CHANGE[=OPERAND][@POSITIONS]`.

use std::{path::PathBuf, str::FromStr, sync::Arc};

use djinn_model::{
    hook::{self, Layout, Site},
    program::Program,
};
use serde::{Deserialize, Serialize};

use crate::{EngineError, Positions, Tensor, tensors::read_tensor};

/// What an edit does to an activation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change<T> {
    /// Multiplies.
    Scale(f32),
    /// Sets to zero.
    Zero,
    /// Adds a multiple of the operand.
    Add {
        /// What is added.
        operand: T,
        /// How much of it.
        factor: f32,
    },
    /// Puts the operand in its place.
    Replace(T),
    /// Takes away the part that points along the operand.
    ProjectOut(T),
}

impl<T> Change<T> {
    /// The same with another kind of operand.
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
        }
    }
}

/// An edit as written, not yet bound to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct EditSpec {
    /// A hook, or several by `*`.
    pub hook: String,
    /// What happens there.
    pub change: Change<OperandFile>,
    /// Where.
    pub positions: Positions,
}

/// A tensor in a file: `FILE.safetensors` or `FILE.safetensors#NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandFile {
    /// The file.
    pub path: PathBuf,
    /// The tensor; when not said, the one named as the hook, or the only one.
    pub name: Option<String>,
}

/// An edit that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("edit '{text}': {reason}")]
pub struct ParseEditError {
    text: String,
    reason: String,
}

impl FromStr for EditSpec {
    type Err = ParseEditError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason: String| ParseEditError {
            text: text.to_owned(),
            reason,
        };
        let (hook, rest) = text.split_once(':').ok_or_else(|| {
            error("expected HOOK:CHANGE, as in 'blocks.3.hook_resid_post:scale=0.9'".to_owned())
        })?;
        if hook.is_empty() {
            return Err(error("the hook is missing before ':'".to_owned()));
        }
        // The folder of a file may hold an `@` too; positions hold no slash.
        let (change, positions) = match rest.rsplit_once('@') {
            Some((change, positions)) if !positions.contains(['/', '\\']) => {
                (change, positions.parse().map_err(&error)?)
            }
            _ => (rest, Positions::All),
        };
        Ok(EditSpec {
            hook: hook.to_owned(),
            change: parse_change(change).map_err(error)?,
            positions,
        })
    }
}

fn parse_change(text: &str) -> Result<Change<OperandFile>, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let file = || {
        let value = value.filter(|v| !v.is_empty());
        value.ok_or_else(|| format!("{name} wants a file: {name}=FILE.safetensors[#TENSOR]"))
    };
    match (name, value) {
        ("scale", Some(value)) => parse_factor(value).map(Change::Scale),
        ("scale", None) => Err("scale wants a factor: scale=0.9".to_owned()),
        ("zero", None) => Ok(Change::Zero),
        ("zero", Some(_)) => Err("zero takes no value".to_owned()),
        ("add", _) => {
            let (operand, factor) = match file()?.rsplit_once('*') {
                Some((operand, factor)) => (operand, parse_factor(factor)?),
                None => (file()?, 1.0),
            };
            Ok(Change::Add {
                operand: parse_operand(operand),
                factor,
            })
        }
        ("replace", _) => Ok(Change::Replace(parse_operand(file()?))),
        ("project-out", _) => Ok(Change::ProjectOut(parse_operand(file()?))),
        _ => Err(format!(
            "'{name}' is not a change (scale, zero, add, replace, project-out)"
        )),
    }
}

fn parse_factor(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(factor) if factor.is_finite() => Ok(factor),
        _ => Err(format!("'{text}' is not a finite number")),
    }
}

fn parse_operand(text: &str) -> OperandFile {
    match text.rsplit_once('#') {
        Some((path, name)) => OperandFile {
            path: path.into(),
            name: Some(name.to_owned()),
        },
        None => OperandFile {
            path: text.into(),
            name: None,
        },
    }
}

/// An edit bound to one hook of one model, its operand at hand.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub change: Change<Arc<Tensor>>,
    pub positions: Positions,
}

impl Edit {
    /// Whether it leaves everything as it is.
    pub fn changes_nothing(&self) -> bool {
        matches!(self.change, Change::Scale(factor) if factor == 1.0)
    }

    /// The operand, where there is one.
    pub fn operand(&self) -> Option<&Arc<Tensor>> {
        match &self.change {
            Change::Scale(_) | Change::Zero => None,
            Change::Add { operand, .. }
            | Change::Replace(operand)
            | Change::ProjectOut(operand) => Some(operand),
        }
    }
}

impl EditSpec {
    /// Binds to the hooks of a model, reading the operand once for each.
    pub(crate) fn bind(&self, program: &Program) -> Result<Vec<(Site, Edit)>, EngineError> {
        hook::find(program, &self.hook)?
            .into_iter()
            .map(|site| {
                let change = self.change.load(site)?;
                let edit = Edit {
                    change,
                    positions: self.positions.clone(),
                };
                check_fit(program, site, &edit)?;
                Ok((site, edit))
            })
            .collect()
    }
}

impl Change<OperandFile> {
    fn load(&self, site: Site) -> Result<Change<Arc<Tensor>>, EngineError> {
        Ok(match self {
            Change::Scale(factor) => Change::Scale(*factor),
            Change::Zero => Change::Zero,
            Change::Add { operand, factor } => Change::Add {
                operand: operand.load(site)?,
                factor: *factor,
            },
            Change::Replace(operand) => Change::Replace(operand.load(site)?),
            Change::ProjectOut(operand) => Change::ProjectOut(operand.load(site)?),
        })
    }
}

impl OperandFile {
    fn load(&self, site: Site) -> Result<Arc<Tensor>, EngineError> {
        let (name, tensor) = read_tensor(&self.path, self.name.as_deref(), &site.to_string())?;
        if tensor.data.iter().any(|x| !x.is_finite()) {
            return Err(EngineError::File {
                path: self.path.clone(),
                reason: format!("tensor '{name}' holds values that are not finite"),
            });
        }
        Ok(Arc::new(tensor))
    }
}

/// Refuses an operand that cannot apply at this hook.
fn check_fit(program: &Program, site: Site, edit: &Edit) -> Result<(), EngineError> {
    let Some(operand) = edit.operand() else {
        return Ok(());
    };
    let error = |reason: String| EngineError::Edit {
        hook: site.to_string(),
        reason,
    };
    let width = match site.layout(&program.dims) {
        Layout::Rows(width) => width,
        Layout::Heads(heads, d_head) => heads * d_head,
        Layout::Pattern(_) => {
            return Err(error("a pattern takes scale and zero only".to_owned()));
        }
    };
    // The innermost dimensions must make up one position, whole: `[…, d_model]`, or
    // `[…, head, d_head]`.
    let shape = &operand.shape;
    let fits = (0..shape.len()).any(|i| shape[i..].iter().product::<usize>() == width);
    if !fits || operand.data.is_empty() {
        return Err(error(format!(
            "the operand has shape {:?}; the hook has {width} numbers a position",
            operand.shape
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Change, EditSpec, OperandFile};
    use crate::Positions;

    fn file(path: &str, name: Option<&str>) -> OperandFile {
        OperandFile {
            path: path.into(),
            name: name.map(str::to_owned),
        }
    }

    #[test]
    fn reads_edits() {
        let check = |text: &str, hook: &str, change: Change<OperandFile>, positions: Positions| {
            let expect = EditSpec {
                hook: hook.to_owned(),
                change,
                positions,
            };
            assert_eq!(text.parse(), Ok(expect), "{text}");
        };
        let all = Positions::All;
        check("h:scale=0.9", "h", Change::Scale(0.9), all.clone());
        check("blocks.*.x:zero", "blocks.*.x", Change::Zero, all.clone());
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
            Positions::Ranges(vec![(0, 1), (-1, 0)]),
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
        check("h:scale", "wants a factor");
        check("h:scale=much", "not a finite number");
        check("h:scale=NaN", "not a finite number");
        check("h:scale=inf", "not a finite number");
        check("h:zero=1", "takes no value");
        check("h:add", "wants a file");
        check("h:add=", "wants a file");
        check("h:add=f*x", "not a finite number");
        check("h:scale=1@never", "is not positions");
        check("h:rotate=3", "is not a change");
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in ".{0,60}") {
            let _ = text.parse::<EditSpec>();
        }

        #[test]
        fn near_misses_never_panic(
            text in "(h|blocks\\.[*0-9]\\.x)?:?(scale|add|zero|replace|project-out)?[=@#*.,0-9a-z-]{0,20}",
        ) {
            let _ = text.parse::<EditSpec>();
        }
    }
}
