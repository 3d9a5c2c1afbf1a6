//! Probes: captures, edits and breakpoints of a session.

pub(crate) mod breakpoint;
pub(crate) mod capture;
pub(crate) mod captured;
pub(crate) mod checkpoint;
mod debug;
pub(crate) mod edit;
pub(crate) mod part;
pub(crate) mod positions;
pub(crate) mod probe_limits;
pub(crate) mod saved_probe;
pub(crate) mod staging;

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use djinn_model::{Site, program::Program};

use crate::error::EngineError;
use breakpoint::{BreakCondition, BreakSpec};
use capture::{Capture, CaptureSpec, HEAD, Reduce};
use edit::{BoundEdit, EditSpec};
use positions::{Positions, union};

/// Captures, edits and breakpoints, bound to one model.
///
/// At a hook, edits apply in the order given, then breakpoints pause the session, and captures
/// read the edited activation when the session continues.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    captures: BTreeMap<Site, Arc<Capture>>,
    edits: BTreeMap<Site, Vec<BoundEdit>>,
    breaks: BTreeMap<Site, Vec<BreakCondition>>,
}

impl Probe {
    /// Binds captures and edits to a model. A capture without positions reads `positions`. If two
    /// captures name the same hook, the last one counts.
    pub fn new(
        program: &Program,
        captures: &[impl AsRef<str>],
        positions: Positions,
        edits: &[EditSpec],
    ) -> Result<Self, EngineError> {
        let mut probe = Probe::default();
        for text in captures {
            let spec: CaptureSpec = text.as_ref().parse()?;
            probe.read(spec.bind(program, &positions)?);
        }
        for spec in edits {
            for (site, edit) in spec.bind(program)? {
                probe.edits.entry(site).or_default().push(edit);
            }
        }
        Ok(probe)
    }

    /// Adds edits that apply to the current turn only.
    pub fn with_turn_edits(
        mut self,
        program: &Program,
        edits: &[EditSpec],
    ) -> Result<Self, EngineError> {
        for spec in edits {
            for (site, edit) in spec.bind(program)? {
                let for_turn = true;
                self.push_edit(site, BoundEdit { for_turn, ..edit });
            }
        }
        Ok(self)
    }

    /// Returns the probe after a turn that ended at position `end`: its edits keep the positions
    /// that they were applied at.
    pub(crate) fn after_turn(&self, end: usize, prompt: usize) -> Self {
        let within = |edit: &BoundEdit| edit.positions.within(0..end, prompt);
        let mut probe = self.map_turn_edits(within, false);
        // Edits of positions that the turn did not reach are dropped.
        for edits in probe.edits.values_mut() {
            edits.retain(|edit| !edit.positions.is_nowhere());
        }
        probe.edits.retain(|_, edits| !edits.is_empty());
        probe
    }

    /// Returns the probe with the turn's edits limited to positions from `start` on.
    pub(crate) fn starting_at(&self, start: usize, context: usize, prompt: usize) -> Self {
        self.map_turn_edits(|edit| edit.positions.within(start..context, prompt), true)
    }

    fn map_turn_edits(&self, positions: impl Fn(&BoundEdit) -> Positions, for_turn: bool) -> Self {
        let mut probe = self.clone();
        let edits = probe.edits.values_mut().flatten();
        for edit in edits.filter(|edit| edit.for_turn) {
            edit.positions = positions(edit);
            edit.for_turn = for_turn;
        }
        probe
    }

    /// Returns the probe for one prompt: no selection of positions depends on the prompt any
    /// more, so that lookups are fast.
    pub(crate) fn resolved(mut self, prompt: usize) -> Self {
        for capture in self.captures.values_mut() {
            let positions = capture.positions.resolved(prompt);
            if positions != capture.positions {
                Arc::make_mut(capture).positions = positions;
            }
        }
        for edit in self.edits.values_mut().flatten() {
            edit.positions = edit.positions.resolved(prompt);
        }
        for when in self.breaks.values_mut().flatten() {
            when.positions = when.positions.resolved(prompt);
        }
        self
    }

    /// Limits edits that have one operand row per position to the first `positions` positions,
    /// because their operands were checked against these and the session may grow.
    pub(crate) fn pinned(mut self, prompt: usize, positions: usize) -> Self {
        let edits = self.edits.values_mut().flatten();
        for edit in edits.filter(|edit| edit.operand_rows() > 1) {
            edit.positions = edit.positions.within(0..positions, prompt);
        }
        self
    }

    /// Refuses edits that have more selected positions than operand rows.
    pub(crate) fn check_rows(&self, prompt: usize, positions: usize) -> Result<(), EngineError> {
        for (site, edits) in &self.edits {
            for edit in edits {
                let (rows, count) = (edit.operand_rows(), edit.positions.count(positions, prompt));
                if rows > 1 && count > rows {
                    return Err(EngineError::Edit {
                        hook: site.to_string(),
                        reason: format!(
                            "the operand has {rows} rows, but {count} positions are selected"
                        ),
                    });
                }
            }
        }
        Ok(())
    }

    /// Appends the edits of another probe.
    pub(crate) fn and_edits(mut self, other: &Probe) -> Self {
        for (&site, edits) in &other.edits {
            for edit in edits {
                self.push_edit(site, edit.clone());
            }
        }
        self
    }

    /// Adds breakpoints. A session pauses at a breakpoint after the edits of its hook.
    pub fn with_breaks(
        mut self,
        program: &Program,
        breaks: &[BreakSpec],
    ) -> Result<Self, EngineError> {
        for spec in breaks {
            for site in spec.bind(program)? {
                self.breaks.entry(site).or_default().push(spec.when.clone());
            }
        }
        Ok(self)
    }

    fn read(&mut self, captures: Vec<(Site, Capture)>) {
        let captures = captures.into_iter();
        self.captures
            .extend(captures.map(|(site, capture)| (site, Arc::new(capture))));
    }

    /// Whether the probe has no captures, edits or breakpoints.
    pub(crate) fn is_empty(&self) -> bool {
        self.captures.is_empty() && self.edits.is_empty() && self.breaks.is_empty()
    }

    /// Returns the conditions of the breakpoints at a hook.
    pub(crate) fn breaks(&self, site: Site) -> &[BreakCondition] {
        self.breaks.get(&site).map_or(&[], Vec::as_slice)
    }

    /// Returns the hooks that have breakpoints.
    pub(crate) fn break_sites(&self) -> impl Iterator<Item = Site> {
        self.breaks.keys().copied()
    }

    /// Replaces the breakpoints.
    pub(crate) fn breaking_at(
        &self,
        program: &Program,
        breaks: &[BreakSpec],
    ) -> Result<Self, EngineError> {
        let without = Probe {
            breaks: BTreeMap::new(),
            ..self.clone()
        };
        without.with_breaks(program, breaks)
    }

    /// Appends an edit to a hook.
    pub(crate) fn push_edit(&mut self, site: Site, edit: BoundEdit) {
        self.edits.entry(site).or_default().push(edit);
    }

    /// Whether the probe captures or edits one of these positions.
    pub(crate) fn looks_at(&self, rows: Range<usize>, prompt: usize) -> bool {
        let mut looked_at = self.looked_at();
        looked_at.any(|positions| positions.selects_any(rows.clone(), prompt))
    }

    /// Returns the positions of all captures and edits.
    fn looked_at(&self) -> impl Iterator<Item = &Positions> {
        let captures = self.captures.values().map(|capture| &capture.positions);
        let edits = self.edits.values().flatten().map(|edit| &edit.positions);
        captures.chain(edits)
    }

    /// Returns the first position that the probe captures or edits.
    pub(crate) fn first(&self, positions: usize, prompt: usize) -> Option<usize> {
        let first =
            |looked: &Positions| Some(looked.intervals(0..positions, prompt).first()?.start);
        self.looked_at().filter_map(first).min()
    }

    /// Whether the probe captures or edits a hook.
    pub(crate) fn touches(&self, site: Site) -> bool {
        self.captures.contains_key(&site) || self.edits.contains_key(&site)
    }

    /// Returns the capture at a hook.
    pub(crate) fn capture(&self, site: Site) -> Option<&Arc<Capture>> {
        self.captures.get(&site)
    }

    /// Returns the captures that use the logit lens.
    pub(crate) fn lenses(&self) -> impl Iterator<Item = &Capture> {
        let captures = self.captures.values().map(AsRef::as_ref);
        captures.filter(|capture| matches!(capture.reduce, Reduce::Lens(_)))
    }

    /// Returns the number of logit-lens rows that some positions need.
    pub(crate) fn lens_rows(&self, positions: Range<usize>, prompt: usize) -> usize {
        let rows = |capture: &Capture| capture.positions.count_in(positions.clone(), prompt);
        self.lenses().map(rows).sum()
    }

    /// Returns the names of the captured hooks.
    pub fn captured_hooks(&self) -> Vec<String> {
        self.captures.keys().map(Site::to_string).collect()
    }

    /// Returns the number of bytes that the captures of some positions take.
    pub fn captured_bytes(&self, program: &Program, positions: Range<usize>, prompt: usize) -> u64 {
        let dims = &program.dims;
        let bytes = |(site, capture): (&Site, &Arc<Capture>)| {
            let rows = capture.positions.count_in(positions.clone(), prompt);
            let each: usize = match site {
                Site::Pattern(_) => capture.width().saturating_mul(positions.end),
                _ => capture.shape(*site, dims).iter().product(),
            };
            let rows = match capture.reduce {
                Reduce::Mean => rows.min(1),
                _ => rows,
            };
            (rows as u64).saturating_mul(each as u64).saturating_mul(4)
        };
        self.captures.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Returns the width of the widest capture that is packed on the device: parts of hooks, and
    /// means.
    pub(crate) fn packed_width(&self) -> usize {
        let is_pattern = |site: Site| matches!(site, Site::Pattern(_));
        let rows = self.captures.iter().filter(|(site, _)| !is_pattern(**site));
        let packed = rows.filter(|(_, read)| read.is_part() || read.reduce == Reduce::Mean);
        packed.map(|(_, read)| read.width()).max().unwrap_or(0)
    }

    /// Returns the largest number of values that a capture reduces a row to.
    pub(crate) fn reduced_width(&self) -> usize {
        let captures = self.captures.values();
        captures.map(|read| read.reduce.width()).max().unwrap_or(0)
    }

    /// Whether the probe captures or edits an attention pattern.
    pub(crate) fn touches_pattern(&self) -> bool {
        let is_pattern = |site: &Site| matches!(site, Site::Pattern(_));
        self.captures.keys().any(is_pattern) || self.edits.keys().any(is_pattern)
    }

    /// Whether captures or breakpoints lie after the last block, so that more rows pass through
    /// the head than tokens are sampled.
    pub(crate) fn looks_in_head(&self) -> bool {
        let looks = |site| self.captures.contains_key(site) || self.breaks.contains_key(site);
        HEAD.iter().any(looks)
    }

    /// Returns the positions whose rows may pass through the head for captures and breakpoints.
    pub(crate) fn head_rows(&self, positions: Range<usize>, prompt: usize) -> Vec<Range<usize>> {
        let captures = HEAD.iter().filter_map(|site| self.captures.get(site));
        let read = captures.map(|capture| &capture.positions);
        let breaks = HEAD.iter().flat_map(|site| self.breaks(*site));
        let through = read.chain(breaks.map(|when| &when.positions));
        union(through.flat_map(|selected| selected.intervals(positions.clone(), prompt)))
    }

    /// Whether a hook after the last block is captured at a position.
    pub(crate) fn reads_head(&self, position: usize, prompt: usize) -> bool {
        HEAD.iter().any(|&site| self.reads(site, position, prompt))
    }

    /// Whether a position is captured at a hook.
    pub(crate) fn reads(&self, site: Site, position: usize, prompt: usize) -> bool {
        let capture = self.captures.get(&site);
        capture.is_some_and(|capture| capture.positions.contains(position, prompt))
    }

    /// Returns the edits of a hook that have an effect, in order.
    pub(crate) fn changes(&self, site: Site) -> impl Iterator<Item = &BoundEdit> {
        let edits = self.edits.get(&site).map_or(&[][..], Vec::as_slice);
        edits.iter().filter(|edit| !edit.changes_nothing())
    }

    /// Whether an edit has an effect at a position of a hook.
    pub(crate) fn changes_at(&self, site: Site, position: usize, prompt: usize) -> bool {
        let mut changes = self.changes(site);
        changes.any(|edit| edit.positions.contains(position, prompt))
    }

    /// Returns the width of the widest operand.
    pub(crate) fn operand_width(&self) -> usize {
        let edits = self.edits.values().flatten();
        let with_operand = edits.filter(|edit| edit.operand().is_some());
        with_operand.map(BoundEdit::width).max().unwrap_or(0)
    }

    /// Refuses edits that select none of the session's positions, and operands whose number of
    /// rows differs from the number of selected positions.
    pub(crate) fn check(&self, prompt: usize, positions: usize) -> Result<(), EngineError> {
        for (&site, edits) in &self.edits {
            for edit in edits {
                let error = |reason: String| EngineError::Edit {
                    hook: site.to_string(),
                    reason,
                };
                let selected = edit.positions.count(positions, prompt);
                if selected == 0 {
                    return Err(error(format!(
                        "the edit selects none of the session's {positions} positions"
                    )));
                }
                let rows = edit.operand_rows();
                if rows > 1 && rows != selected {
                    return Err(error(format!(
                        "the operand has {rows} rows, but {selected} positions are selected"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Returns the breakpoints as specifications.
    pub(crate) fn break_specs(&self) -> Vec<BreakSpec> {
        let specs = self.breaks.iter().flat_map(|(site, whens)| {
            whens.iter().map(|when| BreakSpec {
                hook: site.to_string(),
                when: when.clone(),
            })
        });
        specs.collect()
    }
}
