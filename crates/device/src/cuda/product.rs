//! Products: which kernel takes which.
//!
//! What decides is the weights' type and shape and the rows' phase, never how many rows
//! or outputs there are: a matrix that is cut into pieces gives the bits it gives whole.

use super::CudaDevice;
use super::args::{FewArg, GateArg, MatArg, PartArg, activation_arg};
use super::blas::{ALIGNED, Operands, Product};
use super::kernels::Size;
use super::work::{Pending, THREADS, Work, elements, launch};
use crate::check::Op;
use crate::{Phase, Result, View, Weight};
use djinn_types::{Activation, DType, Order};

/// Outputs of a block where a warp takes four, or one.
const BY_FOUR: usize = THREADS / 32 * 4;
const BY_ONE: usize = THREADS / 32;
/// Rows that share a read of f32 weights.
const ROWS: usize = 8;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Few rows, at the speed of memory.
    Few,
    /// Many rows, by the library.
    Many,
    /// Whatever the shape.
    Simple,
}

impl CudaDevice {
    pub(super) fn do_linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        phase: Phase,
    ) -> Result<()> {
        let op = self.op("linear");
        op.linear(x, weight, bias, out)?;
        if x.rows == 0 || out.cols == 0 {
            return Ok(());
        }
        match way(weight, x, out, phase, self.card.blas.is_some()) {
            Way::Few => self.few(op, x, weight.view, bias, out),
            Way::Many => self.many(op, x, weight, bias, out),
            Way::Simple => self.simple(op, x, weight, bias, out),
        }
    }

    /// Chooses an algorithm for prompts now, and has the library load it.
    pub(super) fn do_expect(&self, weight: Weight) -> Result<()> {
        let (Some(blas), DType::F16 | DType::Bf16) = (&self.card.blas, weight.view.dtype) else {
            return Ok(());
        };
        let (inputs, outputs) = match weight.order {
            Order::OutIn => (weight.view.cols, weight.view.rows),
            Order::InOut => (weight.view.rows, weight.view.cols),
        };
        let x = View::new(0, DType::F32, 1, inputs);
        let out = View::new(0, DType::F32, 1, outputs);
        // A product of what lies behind the slab's end with itself, where there is room.
        let (lines, least) = (8, 8 * inputs as u64);
        let is_many = way(weight, x, out, Phase::Prompt, true) == Way::Many;
        if !is_many || self.scratch.bytes() < 3 * 4 * least {
            return Ok(());
        }
        let product = Product {
            dtype: weight.view.dtype,
            order: weight.order,
            rows: lines,
            inputs,
            outputs: lines,
            of: outputs,
            x_stride: inputs,
            weight_stride: match weight.order {
                Order::OutIn => inputs,
                Order::InOut => lines,
            },
            out_stride: lines,
        };
        let at = Operands {
            x: self.scratch_at(0),
            weights: self.scratch_at(2 * least),
            out: self.scratch_at(4 * least),
        };
        self.forget()?;
        self.card.enter()?;
        // SAFETY: places behind the slab's end, which outlive the stream.
        unsafe { blas.run(product, at, self.compute.stream.cast()) }
    }

    /// Joins others of the same inputs, or waits for them.
    fn few(&self, op: Op, x: View, weight: View, bias: Option<View>, out: View) -> Result<()> {
        // Distances within the inputs are numbers of four bytes.
        op.ensure(2 * x.rows * x.cols <= i32::MAX as usize, || {
            format!("[{}, {}] inputs at once", x.rows, x.cols)
        })?;
        let (w, _) = self.floats(op, "weight", weight)?;
        let (b, bias_dtype, _) = self.bias(op, bias)?;
        let work = &mut *self.lock();
        let inputs = self.f32(op, "x", x)?;
        let part = |to: u64| PartArg {
            weights: w.at,
            bias: b.at,
            out: to,
            weight_stride: w.stride,
            out_stride: out.stride as i64,
            outputs: w.rows,
            bias_dtype,
        };
        if !self.joins(work, x, weight.dtype) {
            self.put_pending(work)?;
        }
        let at = match work.pending {
            Pending::Products(few, _) => few.x,
            _ => self.shadow_of(work, x, weight.dtype)?,
        };
        let to = self.out(work, op, "out", out)?;
        match &mut work.pending {
            Pending::Products(few, _) => {
                few.part[few.parts as usize] = part(to.at);
                few.parts += 1;
            }
            pending => {
                let mut few = FewArg {
                    x: at,
                    x_stride: x.cols as i64,
                    rows: inputs.rows,
                    inputs: inputs.cols,
                    parts: 1,
                    part: [PartArg::default(); FewArg::PARTS],
                };
                few.part[0] = part(to.at);
                *pending = Pending::Products(few, weight.dtype);
            }
        }
        Ok(())
    }

    /// Whether products that wait are of the same inputs, and there is room for another.
    fn joins(&self, work: &Work, x: View, dtype: DType) -> bool {
        let Pending::Products(few, theirs) = work.pending else {
            return false;
        };
        let same = (few.rows as usize, few.inputs as usize, theirs) == (x.rows, x.cols, dtype);
        let room = (few.parts as usize) < FewArg::PARTS;
        same && room && Self::is_shadow(work, x, dtype, few.x)
    }

    pub(super) fn put_few(&self, work: &mut Work, few: FewArg, dtype: DType) -> Result<()> {
        let shape = FewShape::of(few.rows as usize);
        let parts = &few.part[..few.parts as usize];
        let tiles = parts
            .iter()
            .map(|p| (p.outputs as usize).div_ceil(shape.outputs));
        let size = shape.size(&few, tiles.sum());
        launch!(self, work, &shape.name("few", dtype), size; few)
    }

    /// Puts two products that wait on the stream together with the gate of them, if that is
    /// what they are for.
    pub(super) fn gated(
        &self,
        work: &mut Work,
        f: Activation,
        gate: MatArg,
        up: MatArg,
        out: View,
    ) -> Result<bool> {
        let Pending::Products(few, dtype) = work.pending else {
            return Ok(false);
        };
        let [first, second, _] = few.part;
        let is = |part: PartArg, mat: MatArg| {
            (part.out, part.out_stride, part.outputs, few.rows)
                == (mat.at, mat.stride, mat.cols, mat.rows)
        };
        // The copy of what comes out must not lie where the inputs are read.
        let read = few.x >= self.scratch_at(self.scratch.second_at());
        if few.parts != 2 || !is(first, gate) || !is(second, up) || read {
            return Ok(false);
        }
        work.pending = Pending::Nothing;
        let to = self.out(work, self.op("gate"), "out", out)?;
        let gate = GateArg {
            out: to.at,
            stride: to.stride,
            f: activation_arg(f),
            shadow: self.second_shadow_for(work, out),
        };
        let shape = FewShape::of(few.rows as usize);
        let size = shape.size(&few, (first.outputs as usize).div_ceil(shape.outputs / 2));
        launch!(self, work, &shape.name("few_gated", dtype), size; few, gate)?;
        Ok(true)
    }

    fn many(&self, op: Op, x: View, weight: Weight, bias: Option<View>, out: View) -> Result<()> {
        let blas = self.card.blas.as_ref().expect("chosen where it is there");
        let w = weight.view;
        let (weights, _) = self.floats(op, "weight", w)?;
        let (b, bias_dtype, has_bias) = self.bias(op, bias)?;
        let work = &mut *self.ready()?;
        let product = Product {
            dtype: w.dtype,
            order: weight.order,
            rows: x.rows,
            inputs: x.cols,
            outputs: out.cols,
            // Parts of a matrix have their outputs side by side in rows of the whole.
            of: out.stride,
            x_stride: x.cols,
            weight_stride: w.stride,
            out_stride: out.stride,
        };
        let inputs = self.shadow_of(work, x, w.dtype)?;
        let to = self.out(work, op, "out", out)?;
        let at = Operands {
            x: inputs,
            weights: weights.at,
            out: to.at,
        };
        self.card.enter()?;
        // SAFETY: checked places in the slab and behind its end, which outlive the stream.
        unsafe { blas.run(product, at, self.compute.stream.cast()) }?;
        work.interrupted();
        if has_bias == 1 {
            launch!(self, work, "add_bias", elements(out); b, bias_dtype, to)?;
        }
        Ok(())
    }

    fn simple(&self, op: Op, x: View, weight: Weight, bias: Option<View>, out: View) -> Result<()> {
        let work = &mut *self.ready()?;
        let (name, per_block, tile) = match (weight.order, weight.view.dtype, x.rows) {
            (Order::OutIn, DType::F16, _) => ("linear_any_f16", BY_ONE, 1),
            (Order::OutIn, DType::Bf16, _) => ("linear_any_bf16", BY_ONE, 1),
            (Order::OutIn, _, ..=1) => ("linear_out_in_f32", BY_FOUR, 1),
            (Order::OutIn, _, _) => ("linear_out_in_rows_f32", BY_FOUR, ROWS),
            (Order::InOut, DType::F16, _) => ("linear_in_out_f16", THREADS, 1),
            (Order::InOut, DType::Bf16, _) => ("linear_in_out_bf16", THREADS, 1),
            (Order::InOut, _, _) => ("linear_in_out_f32", THREADS, 1),
        };
        let size = Size {
            blocks: [out.cols.div_ceil(per_block), x.rows.div_ceil(tile), 1],
            threads: THREADS,
            shared: 0,
        };
        let (bias, bias_dtype, has_bias) = self.bias(op, bias)?;
        let (w, _) = self.floats(op, "weight", weight.view)?;
        let (x, to) = (self.f32(op, "x", x)?, self.out(work, op, "out", out)?);
        launch!(self, work, name, size; x, w, bias, bias_dtype, has_bias, to)
    }
}

/// What a block of the kernels for few rows takes; all sum alike.
struct FewShape {
    outputs: usize,
    rows: usize,
}

impl FewShape {
    /// The more rows, the more outputs, as the sources say.
    fn of(rows: usize) -> Self {
        let (outputs, rows) = match rows {
            0..=4 => (16, 8),
            5..=8 => (32, 8),
            9..=16 => (32, 16),
            17.. => (32, 32),
        };
        FewShape { outputs, rows }
    }

    fn name(&self, kernel: &str, dtype: DType) -> String {
        format!("{kernel}_{dtype}_{}_{}", self.outputs, self.rows)
    }

    fn size(&self, few: &FewArg, tiles: usize) -> Size {
        Size {
            blocks: [tiles, (few.rows as usize).div_ceil(self.rows), 1],
            threads: THREADS,
            shared: 0,
        }
    }
}

/// By type, shape and phase. Pieces of a matrix have its inputs, and their outputs lie in
/// rows of the same length.
fn way(weight: Weight, x: View, out: View, phase: Phase, library: bool) -> Way {
    let w = weight.view;
    let bytes = w.dtype.bytes() as u64;
    let whole = |n: usize| n.is_multiple_of(8);
    let aligned =
        w.offset.is_multiple_of(ALIGNED) && (w.stride as u64 * bytes).is_multiple_of(ALIGNED);
    if bytes != 2 || !aligned || !whole(x.cols) {
        return Way::Simple;
    }
    let many = out.stride.is_multiple_of(4) && out.offset.is_multiple_of(ALIGNED);
    match (weight.order, phase) {
        (Order::OutIn, Phase::Prompt) if library && many => Way::Many,
        (Order::OutIn, _) => Way::Few,
        (Order::InOut, Phase::Prompt) if library && many && whole(w.cols) => Way::Many,
        (Order::InOut, _) => Way::Simple,
    }
}

#[cfg(test)]
mod tests {
    use super::{Way, way};
    use crate::{Phase, View, Weight};
    use djinn_types::{DType, Order};

    #[test]
    fn pieces_go_the_way_of_the_whole() {
        let x = View::new(0, DType::F32, 3, 64);
        let out = View::new(4096, DType::F32, 3, 200);
        for (dtype, order) in [(DType::F16, Order::OutIn), (DType::F32, Order::OutIn)] {
            let view = View::new(8192, dtype, 200, 64);
            for phase in [Phase::Prompt, Phase::Generated] {
                let of = |first: usize, count: usize, rows: usize| {
                    let weight = Weight {
                        view: view.rows(first, count),
                        order,
                    };
                    let (x, out) = (x.rows(0, rows), out.rows(0, rows).cols(first, count));
                    way(weight, x, out, phase, true)
                };
                let whole = of(0, 200, 3);
                assert_eq!([of(0, 64, 3), of(64, 64, 1), of(128, 72, 2)], [whole; 3]);
            }
        }
    }

    #[test]
    fn odd_shapes_are_not_for_vectors() {
        let weight = |offset, dtype, cols| Weight {
            view: View::new(offset, dtype, 16, cols),
            order: Order::OutIn,
        };
        let of = |weight: Weight| {
            let x = View::new(0, DType::F32, 1, weight.view.cols);
            let out = View::new(1 << 20, DType::F32, 1, 16);
            way(weight, x, out, Phase::Generated, false)
        };
        assert_eq!(of(weight(1024, DType::Bf16, 64)), Way::Few);
        assert_eq!(of(weight(1024, DType::Bf16, 60)), Way::Simple);
        assert_eq!(of(weight(1026, DType::F16, 64)), Way::Simple);
        assert_eq!(of(weight(1024, DType::F32, 64)), Way::Simple);
    }
}
