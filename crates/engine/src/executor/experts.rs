//! Mixture of experts: rows are sorted by expert, run through it, and summed.

use djinn_device::{Device, DeviceError, Edit, Projection, View, Weight};
use djinn_model::program::{Buf, Expert, Op, TensorId};
use djinn_types::Order;
use djinn_weights::{Streamer, TensorPlacements};

use crate::{
    EngineError,
    arena::Arena,
    executor::batch::phases,
    executor::{
        active_rows::ActiveRows,
        upload::{upload_ids, upload_numbers},
    },
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
    let mut choices = route(device, arena, arena.buf(router, rows), chosen, renormalise)?;
    choices.keep(|row| stage.holds(row));
    let run = |number: usize, shift: u64| -> Result<(), DeviceError> {
        let (ids, weights) = choices.of(number);
        let n = ids.len();
        // Rows keep their order, so generated tokens come first here too.
        let generated = ids.partition_point(|&row| (row as usize) < stage.prompts);
        let scratch = &arena.experts;
        upload_ids(device, scratch.ids, &ids)?;
        upload_numbers(device, scratch.weights, &weights)?;
        let (ids, weights) = (scratch.ids.rows(0, n), scratch.weights.rows(0, n));
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
    let numbers: Vec<usize> = (0..experts.len()).filter(|&e| choices.any(e)).collect();
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

/// The router's choice for every row.
struct RoutedRows {
    ids: Vec<i32>,
    weights: Vec<f32>,
    chosen: usize,
}

impl RoutedRows {
    /// Drops the choices of padding rows.
    fn keep(&mut self, holds: impl Fn(usize) -> bool) {
        for (row, ids) in self.ids.chunks_exact_mut(self.chosen).enumerate() {
            if !holds(row) {
                ids.fill(-1);
            }
        }
    }

    /// Whether any row uses an expert.
    fn any(&self, expert: usize) -> bool {
        self.ids.contains(&(expert as i32))
    }

    /// Returns the rows that use an expert, with their weights.
    fn of(&self, expert: usize) -> (Vec<i32>, Vec<f32>) {
        self.ids
            .iter()
            .zip(&self.weights)
            .enumerate()
            .filter(|(_, (id, _))| **id == expert as i32)
            .map(|(at, (_, weight))| ((at / self.chosen) as i32, *weight))
            .unzip()
    }
}

fn route(
    device: &dyn Device,
    arena: &Arena,
    logits: View,
    chosen: usize,
    renormalise: bool,
) -> Result<RoutedRows, EngineError> {
    let rows = logits.rows;
    let ids = arena.experts.chosen.rows(0, rows);
    let weights = arena.experts.chosen_weights.rows(0, rows);
    device.route(logits, renormalise, ids, weights)?;
    let mut choices = RoutedRows {
        ids: vec![0; rows * chosen],
        weights: vec![0.0; rows * chosen],
        chosen,
    };
    device.download_ids(ids, &mut choices.ids)?;
    device.download(weights, &mut choices.weights)?;
    Ok(choices)
}
