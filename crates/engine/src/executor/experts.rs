//! Mixture of experts: rows are sorted by expert, run through it, and summed.

use std::ops::Range;

use djinn_device::{Device, DeviceError, Edit, Projection, View, Weight};
use djinn_model::program::{Buf, Expert, Op, TensorId};
use djinn_types::{DType, Order};
use djinn_weights::{Streamer, TensorPlacements};

use crate::{
    EngineError,
    arena::{Arena, ExpertScratch},
    executor::{active_rows::ActiveRows, batch::phases},
    upload::upload_ids,
};

/// Runs an [`Op::Experts`] over the active rows.
///
/// The experts of a row are summed in order of their index, whichever rows share them.
pub(crate) fn run(
    device: &dyn Device,
    arena: &Arena,
    placed: &TensorPlacements,
    streamer: &mut dyn Streamer,
    op: &Op,
    stage: &ActiveRows,
) -> Result<(), EngineError> {
    let Op::Experts {
        block,
        from,
        router,
        to,
        chosen,
        renormalise,
        f,
        ref experts,
    } = *op
    else {
        unreachable!("called only for Op::Experts")
    };
    let rows = stage.rows;
    let out = arena.buf(to, rows);
    device.edit(out, Edit::Zero)?;
    let logits = arena.buf(router, rows);
    let choice = route(device, &arena.experts, logits, chosen, renormalise)?;
    let routed = RoutedRows::sort(&choice, chosen, experts.len(), |row| stage.holds(row));
    upload_ids(device, arena.experts.sorted, &routed.words())?;
    let run = |number: usize, shift: u64| -> Result<(), DeviceError> {
        let range = routed.ranges[number].clone();
        let n = range.len();
        // Rows keep their order, so generated tokens come first here too.
        let generated =
            routed.rows[range.clone()].partition_point(|&row| (row as usize) < stage.prompts);
        let scratch = &arena.experts;
        let ids = scratch.sorted.rows(range.start, n);
        let weights = View {
            dtype: DType::F32,
            ..scratch.sorted.rows(routed.rows.len() + range.start, n)
        };
        let (input, output) = (scratch.input.rows(0, n), scratch.output.rows(0, n));
        device.gather(arena.buf(from, rows), ids, input, false)?;
        let [pre, up, post] = [Buf::Pre, Buf::Up, Buf::Post].map(|buf| arena.buf(buf, n));
        let Expert {
            gate: w_gate,
            up: w_up,
            down: w_down,
        } = experts[number];
        let projection = |id, out: View| Projection {
            weight: matrix(placed, id, shift),
            bias: None,
            out,
        };
        let phases: Vec<_> = phases(generated, n).collect();
        if let [(phase, _)] = phases[..] {
            let (gate, up) = (projection(w_gate, pre), projection(w_up, up));
            device.linear_gated(input, gate, up, f, post, phase)?;
        } else {
            for (phase, rows) in &phases {
                let at = |view: View| view.rows(rows.start, rows.len());
                let parts = [projection(w_gate, at(pre)), projection(w_up, at(up))];
                device.linear_group(at(input), &parts, *phase)?;
            }
            device.gate(f, pre, up, post)?;
        }
        for (phase, rows) in phases {
            let at = |view: View| view.rows(rows.start, rows.len());
            let weight = matrix(placed, w_down, shift);
            device.linear(at(post), weight, None, at(output), phase)?;
        }
        device.scatter_add(output, ids, weights, out)
    };
    let is_used = |number: &usize| !routed.ranges[*number].is_empty();
    let numbers: Vec<usize> = (0..experts.len()).filter(is_used).collect();
    if placed.pooled {
        let first = block * experts.len();
        let pool: Vec<usize> = numbers.iter().map(|number| first + number).collect();
        streamer.experts(&pool, &mut |turn, shift| run(numbers[turn], shift))?;
    } else {
        numbers.into_iter().try_for_each(|number| run(number, 0))?;
    }
    Ok(())
}

/// Returns a matrix of an expert whose slot is `shift` bytes after the first.
fn matrix(placed: &TensorPlacements, id: TensorId, shift: u64) -> Weight {
    let view = placed.one(id);
    Weight {
        view: View {
            offset: view.offset + shift,
            ..view
        },
        order: Order::OutIn,
    }
}

/// Rows of a pass sorted by expert. Rows of one expert keep their order.
struct RoutedRows {
    rows: Vec<i32>,
    /// Weight of the expert in each row of `rows`.
    weights: Vec<f32>,
    /// Range of each expert in `rows`.
    ranges: Vec<Range<usize>>,
}

impl RoutedRows {
    /// Sorts the router's choice: for each row `chosen` experts, and then the bits of their
    /// weights. Rows for which `holds` is false are padding and are left out.
    fn sort(choice: &[i32], chosen: usize, experts: usize, holds: impl Fn(usize) -> bool) -> Self {
        let mut sorted = RoutedRows {
            rows: Vec::new(),
            weights: Vec::new(),
            ranges: Vec::with_capacity(experts),
        };
        for expert in 0..experts as i32 {
            let start = sorted.rows.len();
            for (row, line) in choice.chunks_exact(2 * chosen).enumerate() {
                let (ids, weights) = line.split_at(chosen);
                let slot = ids.iter().position(|&id| id == expert);
                if let Some(slot) = slot.filter(|_| holds(row)) {
                    let bits = weights[slot].cast_unsigned();
                    sorted.rows.push(row as i32);
                    sorted.weights.push(f32::from_bits(bits));
                }
            }
            sorted.ranges.push(start..sorted.rows.len());
        }
        sorted
    }

    /// Returns the contents of [`ExpertScratch::sorted`].
    fn words(&self) -> Vec<i32> {
        let weights = self.weights.iter().map(|x| x.to_bits().cast_signed());
        self.rows.iter().copied().chain(weights).collect()
    }
}

/// Lets the device choose experts, and reads the choice back: for each row the experts, and then
/// the bits of their weights.
fn route(
    device: &dyn Device,
    scratch: &ExpertScratch,
    logits: View,
    chosen: usize,
    renormalise: bool,
) -> Result<Vec<i32>, EngineError> {
    let routed = View::new(
        scratch.routed.offset,
        scratch.routed.dtype,
        logits.rows,
        2 * chosen,
    );
    let weights = View {
        dtype: DType::F32,
        ..routed.cols(chosen, chosen)
    };
    device.route(logits, renormalise, routed.cols(0, chosen), weights)?;
    let mut choice = vec![0; routed.rows * routed.cols];
    device.download_ids(routed, &mut choice)?;
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::RoutedRows;

    #[test]
    fn rows_are_sorted_by_expert_and_padding_is_left_out() {
        let bits = |x: f32| x.to_bits().cast_signed();
        // Rows 0 to 2 choose two of three experts; row 1 is padding.
        let choice = [
            [0, 2, bits(0.75), bits(0.25)],
            [1, 2, bits(0.5), bits(0.5)],
            [1, 2, bits(0.375), bits(0.625)],
        ];
        let sorted = RoutedRows::sort(&choice.concat(), 2, 3, |row| row != 1);
        assert_eq!(sorted.rows, [0, 2, 0, 2]);
        assert_eq!(sorted.weights, [0.75, 0.375, 0.25, 0.625]);
        assert_eq!(sorted.ranges, [0..1, 1..2, 2..4]);
        assert_eq!(sorted.words()[4..], [0.75, 0.375, 0.25, 0.625].map(bits));
    }
}
