//! Probes as they are saved with their sessions.

use std::sync::Arc;

use djinn_model::{hook, program::Program};
use serde::{Deserialize, Serialize};

use super::{
    Probe,
    breakpoint::BreakSpec,
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
    fn check(&self) -> Result<(), EngineError> {
        let captures = self.captures.iter().filter_map(|c| c.positions.as_ref());
        let edits = self.edits.iter().map(|edit| &edit.positions);
        let breaks = self.breaks.iter().map(|spec| &spec.when.positions);
        let is_sane = |positions: &Positions| positions.is_sane();
        if self.edits.iter().any(|edit| edit.hook.contains('*')) {
            let reason = "a saved edit names several hooks; expected exactly one";
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
    change: Change<SavedTensor>,
    /// Ranges of columns; empty means all columns.
    #[serde(default)]
    columns: Vec<(usize, usize)>,
    positions: Positions,
    #[serde(default)]
    for_turn: bool,
}

/// A tensor as it is saved: its shape and the bits of its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedTensor {
    shape: Vec<usize>,
    bits: Vec<u32>,
}

impl SavedProbe {
    /// Converts a probe for saving; `None` if the probe is empty.
    pub(crate) fn of(probe: &Probe) -> Option<SavedProbe> {
        if probe.is_empty() {
            return None;
        }
        let save = |tensor: &Arc<Tensor>| SavedTensor {
            shape: tensor.shape.clone(),
            bits: tensor.data.iter().map(|x| x.to_bits()).collect(),
        };
        let edits = probe.edits.iter().flat_map(|(site, edits)| {
            edits.iter().map(|edit| SavedEdit {
                hook: site.to_string(),
                change: edit.change.map(save),
                columns: edit.columns.iter().map(|c| (c.start, c.end)).collect(),
                positions: edit.positions.clone(),
                for_turn: edit.for_turn,
            })
        });
        Some(SavedProbe {
            captures: probe
                .captures
                .iter()
                .map(|(site, c)| c.spec(*site))
                .collect(),
            edits: edits.collect(),
            breaks: probe.break_specs(),
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
    let load = |tensor: &SavedTensor| {
        Arc::new(Tensor {
            shape: tensor.shape.clone(),
            data: tensor
                .bits
                .iter()
                .map(|&bits| f32::from_bits(bits))
                .collect(),
        })
    };
    for edit in &saved.edits {
        for site in hook::find(program, &edit.hook)? {
            let edit = BoundEdit {
                change: edit.change.map(load),
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
