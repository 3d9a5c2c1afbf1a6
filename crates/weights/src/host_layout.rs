//! Host memory that weights stream from: where in it each thing lies.

use std::collections::BTreeMap;

use djinn_device::ALIGN;
use djinn_model::{
    Weights,
    program::{Program, TensorId},
};

use crate::{
    pieces::{Pieces, Run},
    plan::Plan,
};

/// Everything that comes over the link during passes. What stays on the device needs no
/// copy here. A piece lies as it will in the slab, so that it is copied as one.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostLayout {
    /// Where each piece of the ring starts, by slot.
    pub ring: Vec<u64>,
    /// Where each expert starts; empty where all of them stay.
    pub experts: Vec<u64>,
    /// Where each table starts, and where it comes from.
    pub tables: BTreeMap<TensorId, (u64, Run)>,
    pub bytes: u64,
}

impl HostLayout {
    /// Lays out what a plan lets stream.
    pub fn lay(program: &Program, weights: &dyn Weights, pieces: &Pieces, plan: &Plan) -> Self {
        let mut host = HostLayout::default();
        for slot in &plan.ring.slots {
            let at = host.take(slot.bytes);
            host.ring.push(at);
        }
        if plan.pool_slots < plan.pool.count {
            for expert in &pieces.experts {
                let at = host.take(expert.bytes);
                host.experts.push(at);
            }
        }
        for &table in &pieces.tables {
            let extent = weights.extent(table);
            let run = Run {
                file: extent.file,
                from: extent.offset,
                to: 0,
                bytes: program.tensor(table).bytes().next_multiple_of(ALIGN),
            };
            let at = host.take(run.bytes);
            host.tables.insert(table, (at, run));
        }
        host
    }

    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.bytes;
        self.bytes += bytes;
        at
    }
}
