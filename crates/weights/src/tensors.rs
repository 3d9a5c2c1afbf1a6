//! Location of every tensor while passes run.

use std::ops::Range;

use djinn_device::View;
use djinn_model::program::{Program, TensorId};
use djinn_types::DType;

use crate::{
    Placement, Region, Ring,
    elastic::ElasticLayout,
    pieces::{Piece, Pieces},
    plan::Plan,
};

/// Rows of a tensor that are contiguous in the slab.
#[derive(Clone, Debug)]
pub struct PlacedRows {
    /// Rows of the tensor.
    pub rows: Range<usize>,
    /// Location of the rows.
    pub placement: Placement,
    dtype: DType,
    cols: usize,
}

impl PlacedRows {
    /// View of the rows in the slab. For an expert, the view is in the first slot of the
    /// expert pool.
    pub fn view(&self) -> View {
        View::new(
            self.placement.offset,
            self.dtype,
            self.rows.len(),
            self.cols,
        )
    }
}

/// Location of every tensor of a model.
pub struct TensorPlacements {
    /// Parts of each tensor, in order of rows.
    parts: Vec<Vec<PlacedRows>>,
    /// Tables that a pass reads row by row from the link.
    tables: Vec<TensorId>,
    /// Whether experts are copied into a pool when a router chooses them.
    pub pooled: bool,
}

impl TensorPlacements {
    /// Locates the tensors of all pieces. `kept` are the placements of the pieces that
    /// always stay.
    pub(crate) fn new(program: &Program, pieces: &Pieces, plan: &Plan, kept: &[Placement]) -> Self {
        let mut placed = Self::kept(program, pieces, kept);
        for (piece, placement) in pieces.stream.iter().zip(&plan.placements) {
            placed.add(program, piece, placement);
        }
        for piece in &pieces.experts {
            let placement = Placement {
                region: Region::Pool,
                offset: plan.pool_offset,
                bytes: piece.bytes,
            };
            placed.add(program, piece, &placement);
        }
        placed.sort();
        placed
    }

    /// Locates the tensors of an elastic layout at its level: whole units that are resident, and
    /// the pieces of the others in `ring`.
    pub(crate) fn elastic(
        program: &Program,
        pieces: &Pieces,
        elastic: &ElasticLayout,
        ring: &Ring,
        kept: &[Placement],
    ) -> Self {
        let mut placed = Self::kept(program, pieces, kept);
        for table in elastic.resident_tables() {
            placed.tables.retain(|other| *other != table);
        }
        for unit in elastic.resident() {
            let whole = &elastic.units[unit].whole;
            placed.add(program, whole, &elastic.placement(unit));
        }
        for slot in &ring.slots {
            placed.add(program, &pieces.stream[slot.piece], &slot.placement);
        }
        placed.sort();
        placed.join();
        placed
    }

    /// Locates the tensors of the pieces that always stay.
    fn kept(program: &Program, pieces: &Pieces, kept: &[Placement]) -> Self {
        let mut placed = TensorPlacements {
            parts: vec![Vec::new(); program.tensors.len()],
            tables: pieces.tables.clone(),
            pooled: !pieces.experts.is_empty(),
        };
        for (piece, placement) in pieces.kept.iter().zip(kept) {
            placed.add(program, piece, placement);
        }
        placed
    }

    fn sort(&mut self) {
        for parts in &mut self.parts {
            parts.sort_by_key(|part| part.rows.start);
        }
    }

    /// Joins resident parts of a tensor that are adjacent in the slab.
    fn join(&mut self) {
        for parts in &mut self.parts {
            parts.dedup_by(|next, part| {
                let resident = |part: &PlacedRows| part.placement.region == Region::Resident;
                let adjacent = part.placement.end() == next.placement.offset
                    && part.rows.end == next.rows.start;
                let joins = adjacent && resident(part) && resident(next);
                if joins {
                    part.rows.end = next.rows.end;
                    part.placement.bytes += next.placement.bytes;
                }
                joins
            });
        }
    }

    fn add(&mut self, program: &Program, piece: &Piece, placement: &Placement) {
        for part in &piece.tensors {
            let tensor = program.tensor(part.tensor);
            let (rows, cols) = tensor.matrix();
            let bytes = tensor.bytes() / rows.max(1) as u64 * part.rows.len() as u64;
            self.parts[part.tensor.0].push(PlacedRows {
                rows: part.rows.clone(),
                placement: placement.part(part.offset, bytes),
                dtype: tensor.dtype,
                cols,
            });
        }
    }

    /// Returns the parts of a matrix, in order of rows.
    pub fn parts(&self, id: TensorId) -> &[PlacedRows] {
        &self.parts[id.0]
    }

    /// Returns the view of a tensor that is not cut: a vector, a table in memory, or a matrix of
    /// an expert.
    pub fn one(&self, id: TensorId) -> View {
        let [part] = self.parts(id) else {
            unreachable!("only matrices that stream are cut")
        };
        part.view()
    }

    /// Whether a pass reads some table row by row from the link.
    pub(crate) fn reads_rows(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Whether a pass reads this table row by row from the link.
    pub fn is_read_by_row(&self, id: TensorId) -> bool {
        self.tables.contains(&id)
    }
}
