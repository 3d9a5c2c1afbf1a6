//! Graph capture and replay of the operations of a pass.

use std::collections::BTreeSet;
use std::ops::Range;

use djinn_device::DeviceError;
use djinn_model::{
    Site,
    program::{Op, SegmentKind},
};

use super::pass::Pass;
use crate::{
    EngineError,
    executor::batch::{RowSpan, generated},
    executor::graph_regions::GraphRegion,
};

impl Pass<'_> {
    /// Whether graphs can replay the regions of the pass, except operations that a probe reads or
    /// edits: no session may pause, no page is in transit or streams, and every row is a generated token
    /// that runs the whole pass.
    fn can_be_replayed(&self) -> bool {
        if !self.arrivals.is_empty() || self.stream.is_some() || self.recording {
            return false;
        }
        let rows = self.batch.rows();
        let generated = generated(&self.batch.groups) == rows && self.batch.head.len() == rows;
        let is_plain = |group: &RowSpan| {
            let session = &self.members[group.member];
            let (at, prompt) = (group.positions(), session.prompt());
            let under = session.probe.lens_rows(at.clone(), prompt);
            group.enter == 0 && under == 0 && !session.may_pause(at)
        };
        generated && self.batch.groups.iter().all(is_plain)
    }

    /// Returns the operations that a probe reads or edits in this pass.
    fn looked_at(&self, steps: &[(SegmentKind, &Op)]) -> BTreeSet<usize> {
        let probes = self.batch.groups.iter().filter_map(|group| {
            let session = &self.members[group.member];
            let looks = session.probe.looks_at(group.positions(), session.prompt());
            looks.then_some(&session.probe)
        });
        let probes: Vec<_> = probes.collect();
        if probes.is_empty() {
            return BTreeSet::new();
        }
        let looks = |&(_, (_, op)): &(usize, &(SegmentKind, &Op))| {
            let site = match **op {
                Op::Hook { site, .. } => site,
                Op::Attend { block, .. } => Site::Pattern(block),
                _ => return false,
            };
            probes.iter().any(|probe| probe.touches(site))
        };
        let looked = steps.iter().enumerate().filter(looks);
        looked.map(|(at, _)| at).collect()
    }

    /// Number of the recording of a region. Recordings of another level read weights in other
    /// places.
    fn recording_number(&self, part: &Range<usize>, chooses: bool) -> u64 {
        let level = self.blueprint.weights().level();
        let fields = [part.start, part.end, level, self.batch.rows()];
        let number = fields.iter().fold(0, |number, &field| {
            debug_assert!(field < 1 << 15, "a field has 15 bits");
            (number << 15) + field as u64
        });
        2 * number + u64::from(chooses)
    }

    /// Enqueues the operations of the pass on the compute stream, region by region.
    pub(super) fn compute(&mut self) -> Result<(), EngineError> {
        let (device, program, blueprint) = (self.device, self.program, self.blueprint);
        let steps: Vec<_> = program.steps().collect();
        let mut stages = self.stages();
        let (can, chooses) = (self.can_be_replayed(), self.chooses());
        let looked = self.looked_at(&steps);
        self.note_observed(&looked);
        // Regions that are not replayed need no cuts.
        let looked = match can {
            true => looked,
            false => BTreeSet::new(),
        };
        let parts = |stretch: &GraphRegion| stretch.around(&looked);
        for GraphRegion { steps: part, still } in blueprint.graph_regions.iter().flat_map(parts) {
            // Sampling follows the last operation of the program.
            let chooses = chooses && part.end == steps.len();
            let number = self.recording_number(&part, chooses);
            if !(can && still) {
                self.walk(&steps, part, &mut stages)?;
                continue;
            }
            // A replayed region may be walked once more to record it, or not at all.
            let (before, after) = (self.progress.segment, steps[part.end - 1].0);
            device.replay(number, &mut || {
                self.progress.segment = before;
                let walked = self.walk(&steps, part.clone(), &mut stages);
                walked.map_err(of_device)
            })?;
            self.progress.segment = Some(after);
        }
        // A session that paused at the last hook has only to sample.
        if self.enter(steps.len(), &mut stages)? {
            self.finish(&stages.head)?;
        }
        match self.progress.segment.take() {
            Some(_) => Ok(self.streamer.end_segment()?),
            None => Ok(()),
        }
    }
}

/// Converts an error to one of the device.
fn of_device(error: EngineError) -> DeviceError {
    match error {
        EngineError::Device(error) => error,
        other => std::io::Error::other(other).into(),
    }
}
