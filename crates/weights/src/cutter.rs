//! Cuts the matrices of a segment into pieces of limited size.

use std::ops::Range;

use djinn_model::program::{Program, TensorId};
use djinn_types::Order;

use crate::packing::Packing;

/// Range of rows of a tensor.
pub(crate) type RowRange = (TensorId, Range<usize>);

/// Cuts the matrices of one segment, in order of use.
///
/// A matrix can be cut between rows because each output is a product of its own. A matrix
/// that is stored transposed ([`Order::InOut`]) cannot be cut.
pub(crate) struct Cutter<'p> {
    program: &'p Program,
    packing: Packing,
    /// Largest size of a piece.
    cap: u64,
    pieces: Vec<Vec<RowRange>>,
    /// Bytes of the last piece, if another matrix may join it.
    open: Option<u64>,
}

impl<'p> Cutter<'p> {
    pub fn new(program: &'p Program, packing: Packing, cap: u64) -> Self {
        Cutter {
            program,
            packing,
            cap,
            pieces: Vec::new(),
            open: None,
        }
    }

    /// Adds a matrix: to the last piece if it fits there, otherwise as pieces of its own.
    pub fn add(&mut self, id: TensorId, order: Order) {
        let tensor = self.program.tensor(id);
        let (rows, _) = tensor.matrix();
        let bytes = tensor.bytes();
        match self.open.map(|open| open + bytes) {
            Some(together) if together <= self.cap => {
                let last = self.pieces.last_mut().expect("a piece is open");
                last.push((id, 0..rows));
                self.open = Some(together);
            }
            _ => {
                let ends = match order {
                    Order::OutIn => self.cuts(rows, bytes),
                    Order::InOut => vec![rows],
                };
                self.open = (ends.len() == 1).then_some(bytes);
                let starts = std::iter::once(0).chain(ends.clone());
                let cut = starts.zip(ends).map(|(start, end)| vec![(id, start..end)]);
                self.pieces.extend(cut);
            }
        }
    }

    /// Returns the row at which each piece of a matrix ends. Pieces are about equally large. A
    /// piece has at most `cap` bytes, unless rows that stay together have more.
    fn cuts(&self, rows: usize, bytes: u64) -> Vec<usize> {
        let together = self.packing.rows_together();
        let units = rows.div_ceil(together).max(1);
        let unit_bytes = (bytes / rows.max(1) as u64).saturating_mul(together as u64);
        let units_each = (self.cap / unit_bytes.max(1)).max(1);
        let count = (units as u64).div_ceil(units_each) as usize;
        let end = |piece: usize| (units * piece / count * together).min(rows);
        (1..=count).map(end).collect()
    }

    /// Returns the rows of each piece.
    pub fn finish(self) -> Vec<Vec<RowRange>> {
        self.pieces
    }
}
