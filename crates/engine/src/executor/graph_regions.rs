//! Graph regions: the program cut where weights arrive. A CUDA graph can replay a region between
//! two arrivals.

use std::{collections::BTreeSet, ops::Range};

use djinn_model::{
    WeightResidency,
    program::{Op, Program, TensorId},
};

use djinn_weights::{Region, TensorPlacements};

/// Range of consecutive operations, by their index in the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GraphRegion {
    pub steps: Range<usize>,
    /// Whether a graph replays the range: the range is long enough, no weight arrives in it, and
    /// nothing is read back.
    pub still: bool,
}

/// Minimum number of operations in a graph; shorter ranges are launched one by one.
const LEAST: usize = 8;

impl GraphRegion {
    /// Splits the region around operations that a probe reads or edits; the parts in between can
    /// still be replayed.
    pub fn around(&self, looked: &BTreeSet<usize>) -> Vec<GraphRegion> {
        let mut parts = Vec::new();
        let mut start = self.steps.start;
        let mut part = |steps: Range<usize>, still: bool| {
            if !steps.is_empty() {
                let still = still && self.still && steps.len() >= LEAST;
                parts.push(GraphRegion { steps, still });
            }
        };
        for &at in looked.range(self.steps.clone()) {
            part(start..at, true);
            part(at..at + 1, false);
            start = at + 1;
        }
        part(start..self.steps.end, true);
        parts
    }
}

/// Splits the operations of a program into regions.
pub(crate) fn graph_regions(program: &Program, weights: &TensorPlacements) -> Vec<GraphRegion> {
    let ops: Vec<&Op> = program.ops().collect();
    let mut all: Vec<GraphRegion> = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        let still = is_still(op, weights);
        match all.last_mut() {
            Some(last) if last.still == still => last.steps.end = at + 1,
            _ => all.push(GraphRegion {
                steps: at..at + 1,
                still,
            }),
        }
    }
    let counts = |op: &&&Op| !matches!(op, Op::Hook { .. });
    for stretch in &mut all {
        let count = ops[stretch.steps.clone()].iter().filter(counts).count();
        stretch.still &= count >= LEAST;
    }
    all
}

/// Returns where a weight matrix is during a pass.
pub(crate) fn residency(weights: &TensorPlacements, id: TensorId) -> WeightResidency {
    let parts = weights.parts(id);
    match parts
        .iter()
        .all(|part| part.placement.region == Region::Resident)
    {
        true if parts.len() == 1 => WeightResidency::Whole,
        true if parts.len() > 1 => WeightResidency::Split,
        _ => WeightResidency::Streamed,
    }
}

fn is_still(op: &Op, weights: &TensorPlacements) -> bool {
    let stays = |id| {
        let parts = weights.parts(id);
        parts
            .iter()
            .all(|part| part.placement.region == Region::Resident)
    };
    match *op {
        Op::Linear { weight, .. } => stays(weight),
        Op::Embed { table, .. } | Op::EmbedPositions { table, .. } => {
            !weights.is_read_by_row(table)
        }
        // The router's choice is read back in the middle of a pass.
        Op::Experts { .. } => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use djinn_device::cpu::CpuBackend;
    use djinn_model::{
        Model,
        program::{Op, TensorId},
    };

    use djinn_weights::{Keep, MemorySettings, Overrides};

    use super::GraphRegion;
    use crate::{Blueprint, ProbeLimits, Settings};

    fn draw(model: &Model, keep: Keep) -> Blueprint {
        let settings = Settings {
            rows: 16,
            sessions: 1,
            open: 1,
            context: 32,
            pages: 2,
            window_pages: 0,
            host_pages: 0,
            disk_pages: 0,
            page_tokens: 16,
            logit_rows: 1,
            probe_limits: ProbeLimits::default(),
        };
        let memory = MemorySettings {
            overrides: Overrides {
                keep,
                ..Overrides::default()
            },
            ..MemorySettings::default()
        };
        Blueprint::draw(model, &CpuBackend::default(), settings, memory).unwrap()
    }

    /// Returns the tensors that stream through the ring.
    fn streamed(model: &Model, blueprint: &Blueprint) -> Vec<TensorId> {
        let tensors = 0..model.program.tensors.len();
        let ring = |id: &TensorId| {
            let (parts, plan) = (blueprint.tensors().parts(*id), blueprint.plan());
            let ring = plan.ring_offset..plan.ring_offset + plan.ring.bytes;
            parts
                .iter()
                .any(|part| ring.contains(&part.placement.offset))
        };
        tensors.map(TensorId).filter(ring).collect()
    }

    #[test]
    fn regions_split_around_probed_operations() {
        let whole = GraphRegion {
            steps: 10..50,
            still: true,
        };
        let parts = |looked: &[usize]| {
            let parts = whole.around(&looked.iter().copied().collect());
            let told = |part: GraphRegion| (part.steps, part.still);
            parts.into_iter().map(told).collect::<Vec<_>>()
        };
        assert_eq!(parts(&[3, 60]), [(10..50, true)]);
        let expect = [
            (10..20, true),
            (20..21, false),
            (21..25, false),
            (25..26, false),
            (26..50, true),
        ];
        assert_eq!(parts(&[20, 25]), expect);
        assert_eq!(
            parts(&[10, 49]),
            [(10..11, false), (11..49, true), (49..50, false)]
        );
    }

    #[test]
    fn regions_cover_the_program_and_end_where_weights_arrive() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/");
        for name in ["mistral", "mixtral"] {
            let model = Model::open(&format!("{root}{name}")).expect("a golden model");
            let ops: Vec<&Op> = model.program.ops().collect();
            let most = model.program.weight_bytes();
            for keep in [Keep::All, Keep::AtMost(most / 2), Keep::Nothing] {
                let blueprint = draw(&model, keep);
                let all = &blueprint.graph_regions;
                let streamed = streamed(&model, &blueprint);
                let mut end = 0;
                for stretch in all {
                    assert_eq!(stretch.steps.start, end);
                    end = stretch.steps.end;
                    let arrives = |op: &&&Op| match op {
                        Op::Embed { .. } => keep != Keep::All,
                        Op::Experts { .. } => true,
                        Op::Linear { weight, .. } => streamed.contains(weight),
                        _ => false,
                    };
                    let arriving = ops[stretch.steps.clone()].iter().filter(arrives).count();
                    assert!(
                        !stretch.still || arriving == 0,
                        "{name} {keep:?} {stretch:?}"
                    );
                }
                assert_eq!(end, ops.len());
                let replayed = all.iter().filter(|stretch| stretch.still).count();
                let kept = matches!(keep, Keep::All);
                assert_eq!(all.len() == 1, kept && name == "mistral", "{name} {keep:?}");
                assert_eq!(
                    replayed > 0,
                    !matches!(keep, Keep::Nothing),
                    "{name} {keep:?}"
                );
            }
        }
    }
}
