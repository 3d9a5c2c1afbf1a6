//! Layout of the host memory that weights stream from.

use std::collections::BTreeMap;

use djinn_model::program::TensorId;

use crate::{Placement, Region, pieces::Pieces, plan::Plan};

/// Location in host memory of all weights that may cross the link during passes. Other weights
/// have no copy in host memory. A piece has the same layout as in the slab, so one copy moves the
/// whole piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostLayout {
    /// Location of each piece that may stream, by number.
    pub pieces: BTreeMap<usize, Placement>,
    /// Location of each expert; empty if all experts stay on the device.
    pub experts: Vec<Placement>,
    /// Location of each table that a pass reads row by row.
    pub tables: BTreeMap<TensorId, Placement>,
    /// Size of the host memory.
    pub bytes: u64,
}

impl HostLayout {
    /// Lays out the pieces with the numbers `streamed`, in this order, and the experts that a plan
    /// does not keep.
    pub fn new(pieces: &Pieces, plan: &Plan, streamed: impl Iterator<Item = usize>) -> Self {
        let mut host = HostLayout::default();
        for number in streamed {
            let placement = host.add(pieces.stream[number].bytes);
            host.pieces.insert(number, placement);
        }
        if plan.pool_slots < plan.pool.count {
            for expert in &pieces.experts {
                let placement = host.add(expert.bytes);
                host.experts.push(placement);
            }
        }
        for (&table, extent) in pieces.tables.iter().zip(&pieces.table_extents) {
            let placement = host.add(extent.bytes);
            host.tables.insert(table, placement);
        }
        host
    }

    /// Appends `bytes` bytes.
    fn add(&mut self, bytes: u64) -> Placement {
        let offset = self.bytes;
        self.bytes += bytes;
        Placement {
            region: Region::Host,
            offset,
            bytes,
        }
    }
}
