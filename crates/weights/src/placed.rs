//! Where every tensor is while a pass runs.

use std::ops::Range;

use djinn_device::View;
use djinn_model::program::{Program, TensorId};

use crate::{
    pieces::{Piece, Pieces},
    plan::{Place, Plan},
};

/// Rows of a tensor in the slab.
#[derive(Clone, Debug)]
pub struct PlacedPart {
    /// View of the rows in the slab.
    pub view: View,
    /// Which rows of the tensor.
    pub rows: Range<usize>,
    /// How the rows come to be there.
    pub home: Home,
}

/// How a part comes to be where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// It stays there.
    Resident,
    /// It passes through the ring, at this visit of each pass.
    Ring(usize),
    /// It is in some slot of the pool; its view is of the first.
    Pool,
}

/// Every tensor's parts.
pub struct PlacedWeights {
    /// By tensor, in order of rows.
    parts: Vec<Vec<PlacedPart>>,
    /// Tensors of which a pass reads rows from the slow tier.
    tables: Vec<TensorId>,
    /// Whether experts are chosen from a pool.
    pub pooled: bool,
}

impl PlacedWeights {
    /// Places an pieces as planned; what is always there starts at `kept_at`.
    pub fn new(program: &Program, pieces: &Pieces, plan: &Plan, mut kept_at: u64) -> Self {
        let mut placed = PlacedWeights {
            parts: vec![Vec::new(); program.tensors.len()],
            tables: pieces.tables.clone(),
            pooled: !pieces.experts.is_empty(),
        };
        for piece in &pieces.kept {
            placed.add(program, piece, kept_at, Home::Resident);
            kept_at += piece.bytes;
        }
        for (piece, place) in pieces.stream.iter().zip(&plan.places) {
            let (at, home) = match *place {
                Place::Resident(offset) => (offset, Home::Resident),
                Place::Streamed(slot) => {
                    let offset = plan.ring.slots[slot].offset;
                    (plan.ring_offset + offset, Home::Ring(slot))
                }
            };
            placed.add(program, piece, at, home);
        }
        for piece in &pieces.experts {
            placed.add(program, piece, plan.pool_offset, Home::Pool);
        }
        placed
            .parts
            .iter_mut()
            .for_each(|parts| parts.sort_by_key(|part| part.rows.start));
        placed
    }

    fn add(&mut self, program: &Program, piece: &Piece, at: u64, home: Home) {
        for part in &piece.parts {
            let tensor = program.tensor(part.tensor);
            let (_, cols) = tensor.matrix();
            let view = View::new(at + part.offset, tensor.dtype, part.rows.len(), cols);
            self.parts[part.tensor.0].push(PlacedPart {
                view,
                rows: part.rows.clone(),
                home,
            });
        }
    }

    /// A matrix's parts, in order of rows.
    pub fn parts(&self, id: TensorId) -> &[PlacedPart] {
        &self.parts[id.0]
    }

    /// A tensor that lies in one piece: a vector, a table in memory, an expert's.
    pub fn one(&self, id: TensorId) -> View {
        let [part] = self.parts(id) else {
            unreachable!("only matrices that stream are cut")
        };
        part.view
    }

    /// Whether rows of this table are read from the slow tier.
    pub fn is_read_by_row(&self, id: TensorId) -> bool {
        self.tables.contains(&id)
    }
}
