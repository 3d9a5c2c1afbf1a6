//! Layout of the host memory that weights stream from.

use std::collections::BTreeMap;

use djinn_model::program::TensorId;

use crate::{Placement, Region, pieces::Pieces, plan::Plan};

/// Location in host memory of all weights that may cross the link: during passes, or when the
/// model returns to the device. Other weights have no copy in host memory. A piece has the same
/// layout as in the slab, so one copy moves the whole piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostLayout {
    /// Location of each piece that always stays; empty without a copy of all weights.
    pub kept: Vec<Placement>,
    /// Location of each piece that may stream, by number.
    pub pieces: BTreeMap<usize, Placement>,
    /// Location of each expert; empty if all experts stay on the device.
    pub experts: Vec<Placement>,
    /// Location of each table that a pass reads row by row.
    pub tables: BTreeMap<TensorId, Placement>,
    /// Size of the host memory.
    pub bytes: u64,
    /// Whether host memory has a copy of all weights.
    pub has_all: bool,
}

impl HostLayout {
    /// Lays out the pieces with the numbers `streamed`, in this order, and the experts that a plan
    /// does not keep.
    pub fn new(pieces: &Pieces, plan: &Plan, streamed: impl Iterator<Item = usize>) -> Self {
        let mut host = HostLayout::default();
        streamed.for_each(|number| host.add_piece(pieces, number));
        if plan.pool_slots < plan.pool.count {
            host.add_experts(pieces);
        }
        host.add_tables(pieces);
        host
    }

    /// Lays out all weights.
    pub fn of_all(pieces: &Pieces) -> Self {
        let mut host = HostLayout {
            has_all: true,
            ..HostLayout::default()
        };
        for piece in &pieces.kept {
            let placement = host.add(piece.bytes);
            host.kept.push(placement);
        }
        (0..pieces.stream.len()).for_each(|number| host.add_piece(pieces, number));
        host.add_experts(pieces);
        host.add_tables(pieces);
        host
    }

    fn add_piece(&mut self, pieces: &Pieces, number: usize) {
        let placement = self.add(pieces.stream[number].bytes);
        self.pieces.insert(number, placement);
    }

    fn add_experts(&mut self, pieces: &Pieces) {
        for expert in &pieces.experts {
            let placement = self.add(expert.bytes);
            self.experts.push(placement);
        }
    }

    fn add_tables(&mut self, pieces: &Pieces) {
        for (&table, extent) in pieces.tables.iter().zip(&pieces.table_extents) {
            let placement = self.add(extent.bytes);
            self.tables.insert(table, placement);
        }
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
