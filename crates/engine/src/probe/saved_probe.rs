//! Probes as they are saved with their sessions.

use std::{collections::BTreeMap, sync::Arc};

use base64::prelude::{BASE64_STANDARD, Engine};
use djinn_model::{hook, program::Program};
use serde::{Deserialize, Serialize};

use super::{
    Probe,
    breakpoint::{BreakSpec, NormCondition},
    capture::CaptureSpec,
    edit::{BoundEdit, Change},
    part::Part,
    positions::Positions,
};
use crate::{error::EngineError, tensors::Tensor};

/// A probe as it is saved with its session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedProbe {
    captures: Vec<CaptureSpec>,
    edits: Vec<SavedEdit>,
    #[serde(default)]
    breaks: Vec<BreakSpec>,
    /// Operands of the edits, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<SavedTensor>,
}

/// Numbers of captures, edits and breakpoints of a saved probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Number of captures.
    pub captures: usize,
    /// Number of edits.
    pub edits: usize,
    /// Number of breakpoints.
    pub breakpoints: usize,
}

impl SavedProbe {
    /// Returns the numbers of captures, edits and breakpoints.
    pub fn counts(&self) -> ProbeCounts {
        ProbeCounts {
            captures: self.captures.len(),
            edits: self.edits.len(),
            breakpoints: self.breaks.len(),
        }
    }

    /// Refuses hooks and positions that no probe has: a file may contain anything.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let captures = self.captures.iter().filter_map(|c| c.positions.as_ref());
        let edits = self.edits.iter().map(|edit| &edit.positions);
        let breaks = self.breaks.iter().map(|spec| &spec.when.positions);
        let is_sane = |positions: &Positions| positions.is_sane();
        if self.edits.iter().any(|edit| edit.hook.contains('*')) {
            let reason = "a saved edit names several hooks; expected exactly one";
            return Err(EngineError::Unreadable(reason.to_owned()));
        }
        let numbers = self.edits.iter().flat_map(|edit| edit.change.numbers());
        let limits = self.breaks.iter().filter_map(|spec| spec.when.norm);
        let limits = limits.map(|norm| match norm {
            NormCondition::Above(limit) | NormCondition::Below(limit) => limit,
        });
        if !numbers.chain(limits).all(f32::is_finite) {
            let reason = "a number of a saved edit or breakpoint is not finite";
            return Err(EngineError::Unreadable(reason.to_owned()));
        }
        match captures.chain(edits).chain(breaks).all(is_sane) {
            true => Ok(()),
            false => Err(EngineError::Unreadable(
                "the positions of a saved capture, edit or breakpoint are out of range".to_owned(),
            )),
        }
    }
}

/// An edit as it is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedEdit {
    hook: String,
    change: Change<SavedOperand>,
    /// Ranges of columns; empty means all columns.
    #[serde(default)]
    columns: Vec<(usize, usize)>,
    positions: Positions,
    #[serde(default)]
    for_turn: bool,
}

/// Operand of a saved edit: a tensor of the probe's table, or, in data of releases before 0.2,
/// the tensor itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum SavedOperand {
    Shared(usize),
    Own(SavedTensor),
}

/// A tensor as it is saved: its shape and the bits of its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedTensor {
    shape: Vec<usize>,
    /// Numbers as little-endian bytes in Base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    data: String,
    /// Bits of the numbers, in data of releases before 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bits: Vec<u32>,
}

impl SavedTensor {
    fn of(tensor: &Tensor) -> Self {
        let bytes: Vec<u8> = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
        SavedTensor {
            shape: tensor.shape.clone(),
            data: BASE64_STANDARD.encode(bytes),
            bits: Vec::new(),
        }
    }

    fn load(&self) -> Result<Arc<Tensor>, EngineError> {
        let unreadable = || EngineError::Unreadable("a saved operand is damaged".to_owned());
        let bytes = BASE64_STANDARD.decode(&self.data);
        let bytes = bytes.map_err(|_| unreadable())?;
        let (numbers, []) = bytes.as_chunks::<4>() else {
            return Err(unreadable());
        };
        let new = numbers.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let old = self.bits.iter().map(|&bits| f32::from_bits(bits));
        Ok(Arc::new(Tensor {
            shape: self.shape.clone(),
            data: new.chain(old).collect(),
        }))
    }
}

/// Table of distinct tensors of a probe.
#[derive(Default)]
struct TensorTable {
    tensors: Vec<SavedTensor>,
    /// Index of each tensor by its address.
    known: BTreeMap<*const Tensor, usize>,
}

impl TensorTable {
    /// Adds a tensor, unless the table has it, and returns its index.
    fn add(&mut self, tensor: &Arc<Tensor>) -> usize {
        let next = self.tensors.len();
        let index = *self.known.entry(Arc::as_ptr(tensor)).or_insert(next);
        if index == next {
            self.tensors.push(SavedTensor::of(tensor));
        }
        index
    }
}

impl SavedProbe {
    /// Converts a probe for saving; `None` if the probe is empty.
    pub(crate) fn of(probe: &Probe) -> Option<SavedProbe> {
        if probe.is_empty() {
            return None;
        }
        let mut table = TensorTable::default();
        let mut edits = Vec::new();
        for (site, of_site) in &probe.edits {
            edits.extend(of_site.iter().map(|edit| {
                SavedEdit {
                    hook: site.to_string(),
                    change: edit
                        .change
                        .map(|tensor| SavedOperand::Shared(table.add(tensor))),
                    columns: edit.columns.iter().map(|c| (c.start, c.end)).collect(),
                    positions: edit.positions.clone(),
                    for_turn: edit.for_turn,
                }
            }));
        }
        Some(SavedProbe {
            captures: probe
                .captures
                .iter()
                .map(|(site, c)| c.spec(*site))
                .collect(),
            edits,
            breaks: probe.break_specs(),
            tensors: table.tensors,
        })
    }
}

/// Binds a saved probe to a model again.
pub(crate) fn load_probe(program: &Program, saved: &SavedProbe) -> Result<Probe, EngineError> {
    let mut probe = Probe::default().with_breaks(program, &saved.breaks)?;
    saved.check()?;
    for spec in &saved.captures {
        probe.read(spec.bind(program, &Positions::All)?);
    }
    let shared = saved.tensors.iter().map(SavedTensor::load);
    let shared: Vec<Arc<Tensor>> = shared.collect::<Result<_, _>>()?;
    for edit in &saved.edits {
        let operand = match edit.change.operand() {
            None => Arc::default(),
            Some(SavedOperand::Own(tensor)) => tensor.load()?,
            Some(SavedOperand::Shared(index)) => {
                let tensor = shared.get(*index).cloned();
                tensor.ok_or_else(|| {
                    EngineError::Unreadable("a saved edit has no operand".to_owned())
                })?
            }
        };
        for site in hook::find(program, &edit.hook)? {
            let edit = BoundEdit {
                change: edit.change.map(|_| Arc::clone(&operand)),
                columns: match &edit.columns[..] {
                    [] => vec![Part::whole(site, &program.dims)],
                    some => some.iter().map(|&(from, to)| from..to).collect(),
                },
                positions: edit.positions.clone(),
                for_turn: edit.for_turn,
            };
            edit.check_fit(program, site)?;
            probe.push_edit(site, edit);
        }
    }
    Ok(probe)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{SavedOperand, SavedProbe, SavedTensor};
    use crate::{
        probe::{
            edit::{BoundEdit, Change},
            positions::Positions,
        },
        tensors::Tensor,
    };

    fn edit(operand: &Arc<Tensor>) -> BoundEdit {
        BoundEdit {
            change: Change::Replace(Arc::clone(operand)),
            columns: Vec::new(),
            positions: Positions::All,
            for_turn: false,
        }
    }

    #[test]
    fn a_tensor_of_many_hooks_is_saved_once() {
        let tensor = |x: f32| {
            Arc::new(Tensor {
                shape: vec![2],
                data: vec![x, f32::MIN_POSITIVE],
            })
        };
        let (one, other) = (tensor(1.5), tensor(-0.0));
        let mut probe = super::Probe::default();
        for block in 0..40 {
            probe.push_edit(djinn_model::Site::ResidPost(block), edit(&one));
            probe.push_edit(djinn_model::Site::ResidPost(block), edit(&other));
        }
        let saved = SavedProbe::of(&probe).unwrap();
        assert_eq!((saved.edits.len(), saved.tensors.len()), (80, 2));
        let text = serde_json::to_string(&saved).unwrap();
        let read: SavedProbe = serde_json::from_str(&text).unwrap();
        assert_eq!(read, saved);
        assert_eq!(*read.tensors[0].load().unwrap(), *one);
        let bits = read.tensors[1].load().unwrap().data[0].to_bits();
        assert_eq!(bits, (-0.0f32).to_bits());
    }

    #[test]
    fn operands_of_older_versions_are_read() {
        let old = r#"{"shape":[2],"bits":[1069547520,8388608]}"#;
        let read: SavedOperand = serde_json::from_str(old).unwrap();
        let SavedOperand::Own(tensor) = read else {
            panic!("{read:?}");
        };
        assert_eq!(tensor.load().unwrap().data, [1.5, f32::MIN_POSITIVE]);
        let damaged = SavedTensor {
            shape: vec![1],
            data: "AAA=".to_owned(),
            bits: Vec::new(),
        };
        assert!(damaged.load().is_err());
    }
}
