//! Mixture of experts: rows sorted by expert, run through it, and summed.

use djinn_device::{Device, Edit, Order, View, Weight};
use djinn_model::program::{Buf, Expert, Op, TensorId};

use crate::{
    EngineError,
    arena::Arena,
    pass::{upload_ids, upload_numbers},
};

type Result<T> = std::result::Result<T, EngineError>;

/// Runs an [`Op::Experts`] over the first `rows` rows.
///
/// A row's experts are summed in order of their number, whichever rows share them.
pub(crate) fn run(device: &dyn Device, arena: &Arena, op: &Op, rows: usize) -> Result<()> {
    let Op::Experts {
        from,
        router,
        to,
        chosen,
        renormalise,
        f,
        ref experts,
    } = *op
    else {
        unreachable!("called for this operation only")
    };
    let out = arena.buf(to, rows);
    device.edit(out, Edit::Zero)?;
    let choices = route(device, arena, arena.buf(router, rows), chosen, renormalise)?;
    for (number, expert) in experts.iter().enumerate() {
        let (ids, weights) = choices.of(number);
        if ids.is_empty() {
            continue;
        }
        let n = ids.len();
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
        } = *expert;
        device.linear(input, matrix(arena, w_gate), None, pre)?;
        device.linear(input, matrix(arena, w_up), None, up)?;
        device.gate(f, pre, up, post)?;
        device.linear(post, matrix(arena, w_down), None, output)?;
        device.scatter_add(output, ids, weights, out)?;
    }
    Ok(())
}

fn matrix(arena: &Arena, id: TensorId) -> Weight {
    Weight {
        view: arena.weight(id),
        order: Order::OutIn,
    }
}

/// What the router chose for every row.
struct Choices {
    ids: Vec<i32>,
    weights: Vec<f32>,
    chosen: usize,
}

impl Choices {
    /// The rows that go through an expert, and what they weigh there.
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
) -> Result<Choices> {
    let rows = logits.rows;
    let ids = arena.experts.chosen.rows(0, rows);
    let weights = arena.experts.chosen_weights.rows(0, rows);
    device.route(logits, renormalise, ids, weights)?;
    let mut choices = Choices {
        ids: vec![0; rows * chosen],
        weights: vec![0.0; rows * chosen],
        chosen,
    };
    device.download_ids(ids, &mut choices.ids)?;
    device.download(weights, &mut choices.weights)?;
    Ok(choices)
}
