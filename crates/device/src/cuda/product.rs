//! Matrix products, and the choice of their kernel.
//!
//! The weight's type and shape and the rows' phase decide the order of summation, never the number
//! of rows or outputs. A matrix that is cut into pieces therefore gives the same bits as the whole
//! matrix. The number of rows chooses between kernels only where they give the same bits: the library
//! and [`chain`](super::chain).

use djinn_types::{Activation, DType, Order};

use super::CudaDevice;
use super::args::{GateArg, PartArg, ProductsArg, activation_arg};
use super::blas::{ALIGNED, Operands, Product};
use super::chain::CHAIN_ROWS;
use super::kernels::LaunchSize;
use super::launch::{THREADS, elements, launch};
use super::memory::DeviceMemory;
use super::shadow::LaunchState;
use crate::check::OpCheck;
use crate::{Phase, ProductOps, Projection, Result, View, Weight};

/// Outputs of a block in which each warp computes four outputs.
const BY_FOUR: usize = THREADS / 32 * 4;
/// Outputs of a block in which each warp computes one output.
const BY_ONE: usize = THREADS / 32;
/// Rows that share one read of f32 weights.
const ROWS: usize = 8;

/// Kernel of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProductKernel {
    /// Kernel for few rows, at the speed of memory.
    Gemv,
    /// Kernel for few rows of a prompt, at the speed of memory, with the bits of the library.
    Chain,
    /// cuBLASLt, for many rows.
    Library,
    /// Kernel for any shape.
    Simple,
}

/// Products of the same inputs that share one launch.
pub(super) struct ProductGroup {
    arg: ProductsArg,
    dtype: DType,
    kernel: ProductKernel,
}

impl ProductOps for CudaDevice {
    fn linear(
        &self,
        x: View,
        weight: Weight,
        bias: Option<View>,
        out: View,
        phase: Phase,
    ) -> Result<()> {
        let part = Projection { weight, bias, out };
        self.products(&mut self.state(), x, &[part], phase)
    }

    /// Chooses the algorithm for prompts, and makes the library load it.
    fn warm_up(&self, weight: Weight) -> Result<()> {
        let (Some(blas), DType::F16 | DType::Bf16) = (&self.card.blas, weight.view.dtype) else {
            return Ok(());
        };
        let (inputs, outputs) = match weight.order {
            Order::OutIn => (weight.view.cols, weight.view.rows),
            Order::InOut => (weight.view.rows, weight.view.cols),
        };
        let x = View::new(0, DType::F32, 1, inputs);
        let out = View::new(0, DType::F32, 1, outputs);
        let by_library = kernel_for(weight, x, out, Phase::Prompt, true) == ProductKernel::Library;
        if !by_library {
            return Ok(());
        }
        let lines = 8;
        let product = Product {
            dtype: weight.view.dtype,
            order: weight.order,
            rows: lines,
            inputs,
            outputs: lines,
            matrix_outputs: outputs,
            x_stride: inputs,
            weight_stride: match weight.order {
                Order::OutIn => inputs,
                Order::InOut => lines,
            },
            out_stride: lines,
        };
        if blas.checked_chain(product).is_some() {
            return Ok(());
        }
        // Multiplies memory with itself, whose contents do not matter. Without memory, the library loads the
        // algorithm later.
        let line = (lines * inputs) as u64;
        let Ok(memory) = DeviceMemory::new(&self.card, 3 * 4 * line) else {
            return Ok(());
        };
        let at = Operands {
            x: memory.address(),
            weights: memory.address() + 2 * line,
            out: memory.address() + 4 * line,
        };
        self.state().forget();
        self.card.enter()?;
        // SAFETY: addresses in memory that lives until the stream has been waited for.
        unsafe { blas.run(product, at, self.compute.stream.cast()) }?;
        self.compute.wait()?;
        self.check_chain(blas, product);
        Ok(())
    }
}

impl CudaDevice {
    /// Launches products of the same inputs. One kernel computes several where it can.
    pub(super) fn products(
        &self,
        state: &mut LaunchState,
        x: View,
        parts: &[Projection],
        phase: Phase,
    ) -> Result<()> {
        let last = self.open_products(state, x, parts, phase)?;
        self.launch_group(state, last)
    }

    /// Launches products of the same inputs, except the last group if it has room for more.
    pub(super) fn open_products(
        &self,
        state: &mut LaunchState,
        x: View,
        parts: &[Projection],
        phase: Phase,
    ) -> Result<Option<ProductGroup>> {
        let mut group = None;
        for &part in parts {
            let op = self.op("linear");
            op.linear(x, part.weight, part.bias, part.out)?;
            if x.rows == 0 || part.out.cols == 0 {
                continue;
            }
            let kernel = match kernel_for(part.weight, x, part.out, phase, self.card.blas.is_some())
            {
                ProductKernel::Library if self.is_chain(x, part) => ProductKernel::Chain,
                kernel => kernel,
            };
            match kernel {
                ProductKernel::Gemv | ProductKernel::Chain => {
                    self.join(state, &mut group, op, x, part, kernel)?;
                }
                ProductKernel::Library => {
                    self.launch_group(state, group.take())?;
                    self.library(state, op, x, part)?;
                }
                ProductKernel::Simple => {
                    self.launch_group(state, group.take())?;
                    self.simple(state, op, x, part)?;
                }
            }
        }
        Ok(group)
    }

    /// Adds a product to a group, or launches the group and starts another.
    fn join(
        &self,
        state: &mut LaunchState,
        group: &mut Option<ProductGroup>,
        op: OpCheck,
        x: View,
        part: Projection,
        kernel: ProductKernel,
    ) -> Result<()> {
        // Kernels count the elements of the inputs in 32 bits.
        op.ensure(2 * x.rows * x.cols <= i32::MAX as usize, || {
            format!(
                "inputs of [{}, {}] have more than {} bytes",
                x.rows,
                x.cols,
                i32::MAX
            )
        })?;
        let weight = part.weight.view;
        let (w, _) = self.floats(op, "weight", weight)?;
        let (b, bias_dtype, _) = self.bias(op, part.bias)?;
        let inputs = self.f32(op, "x", x)?;
        if !group
            .as_ref()
            .is_some_and(|group| group.takes(state, x, weight.dtype, kernel))
        {
            self.launch_group(state, group.take())?;
        }
        let at = match group {
            Some(group) => group.arg.x,
            None => self.narrowed(state, x, weight.dtype)?,
        };
        let to = self.out(state, op, "out", part.out)?;
        let group = group.get_or_insert(ProductGroup {
            arg: ProductsArg {
                x: at,
                x_stride: x.cols as i64,
                rows: inputs.rows,
                inputs: inputs.cols,
                parts: 0,
                part: [PartArg::default(); ProductsArg::PARTS],
            },
            dtype: weight.dtype,
            kernel,
        });
        group.arg.part[group.arg.parts as usize] = PartArg {
            weights: w.at,
            bias: b.at,
            out: to.at,
            weight_stride: w.stride,
            out_stride: part.out.stride as i64,
            outputs: w.rows,
            bias_dtype,
        };
        group.arg.parts += 1;
        Ok(())
    }

    /// Launches a group of products, if there is one.
    pub(super) fn launch_group(
        &self,
        state: &mut LaunchState,
        group: Option<ProductGroup>,
    ) -> Result<()> {
        let Some(ProductGroup { arg, dtype, kernel }) = group else {
            return Ok(());
        };
        let parts = &arg.part[..arg.parts as usize];
        if kernel == ProductKernel::Chain {
            let shape = self.chain_shape(&arg);
            return launch!(self, state, &shape.name(dtype), shape.size(); arg, shape.stages as i32);
        }
        let shape = GemvShape::of(arg.rows as usize);
        let tiles = parts
            .iter()
            .map(|p| (p.outputs as usize).div_ceil(shape.outputs));
        let size = shape.size(&arg, tiles.sum());
        launch!(self, state, &shape.name("gemv", dtype), size; arg)
    }

    /// Returns whether one kernel can compute a group and the gate of its two products. The copy
    /// of its output must not lie where the kernel reads its inputs.
    pub(super) fn can_gate(&self, group: &ProductGroup) -> bool {
        let second = self.scratch_at(self.scratch.second_at());
        group.kernel == ProductKernel::Gemv && group.arg.parts == 2 && group.arg.x < second
    }

    /// Launches a group of two products together with their gate.
    pub(super) fn launch_gated(
        &self,
        state: &mut LaunchState,
        group: &ProductGroup,
        f: Activation,
        out: View,
    ) -> Result<()> {
        let ProductGroup { arg, dtype, .. } = *group;
        let to = self.out(state, self.op("gate"), "out", out)?;
        let gate = GateArg {
            out: to.at,
            stride: to.stride,
            f: activation_arg(f),
            shadow: self.second_shadow_for(state, out),
        };
        let shape = GemvShape::of(arg.rows as usize);
        let outputs = arg.part[0].outputs as usize;
        let size = shape.size(&arg, outputs.div_ceil(shape.outputs / 2));
        launch!(self, state, &shape.name("gemv_gated", dtype), size; arg, gate)
    }

    /// Returns whether the kernel for few rows computes a product in place of the library.
    fn is_chain(&self, x: View, part: Projection) -> bool {
        let blas = self.card.blas.as_ref();
        x.rows <= CHAIN_ROWS && blas.is_some_and(|blas| blas.is_chain(library_product(x, part)))
    }

    fn library(
        &self,
        state: &mut LaunchState,
        op: OpCheck,
        x: View,
        part: Projection,
    ) -> Result<()> {
        let Projection { weight, bias, out } = part;
        let blas = self
            .card
            .blas
            .as_ref()
            .expect("chosen only if the library is loaded");
        let w = weight.view;
        let (weights, _) = self.floats(op, "weight", w)?;
        let (b, bias_dtype, has_bias) = self.bias(op, bias)?;
        let product = library_product(x, part);
        let inputs = self.narrowed(state, x, w.dtype)?;
        let to = self.out(state, op, "out", out)?;
        let at = Operands {
            x: inputs,
            weights: weights.at,
            out: to.at,
        };
        self.card.enter()?;
        // SAFETY: checked addresses in the slab and its scratch memory, which outlive the
        // stream.
        unsafe { blas.run(product, at, self.compute.stream.cast()) }?;
        state.interrupt();
        if has_bias == 1 {
            launch!(self, state, "add_bias", elements(out); b, bias_dtype, to)?;
        }
        Ok(())
    }

    fn simple(
        &self,
        state: &mut LaunchState,
        op: OpCheck,
        x: View,
        part: Projection,
    ) -> Result<()> {
        let Projection { weight, bias, out } = part;
        let (name, per_block, tile) = match (weight.order, weight.view.dtype, x.rows) {
            (Order::OutIn, DType::F16, _) => ("linear_any_f16", BY_ONE, 1),
            (Order::OutIn, DType::Bf16, _) => ("linear_any_bf16", BY_ONE, 1),
            (Order::OutIn, _, ..=1) => ("linear_out_in_f32", BY_FOUR, 1),
            (Order::OutIn, _, _) => ("linear_out_in_rows_f32", BY_FOUR, ROWS),
            (Order::InOut, DType::F16, _) => ("linear_in_out_f16", THREADS, 1),
            (Order::InOut, DType::Bf16, _) => ("linear_in_out_bf16", THREADS, 1),
            (Order::InOut, _, _) => ("linear_in_out_f32", THREADS, 1),
        };
        let size = LaunchSize {
            blocks: [out.cols.div_ceil(per_block), x.rows.div_ceil(tile), 1],
            threads: THREADS,
            shared: 0,
        };
        let (bias, bias_dtype, has_bias) = self.bias(op, bias)?;
        let (w, _) = self.floats(op, "weight", weight.view)?;
        let (x, to) = (self.f32(op, "x", x)?, self.out(state, op, "out", out)?);
        launch!(self, state, name, size; x, w, bias, bias_dtype, has_bias, to)
    }
}

/// Describes a product for the library.
fn library_product(x: View, part: Projection) -> Product {
    let Projection { weight, out, .. } = part;
    Product {
        dtype: weight.view.dtype,
        order: weight.order,
        rows: x.rows,
        inputs: x.cols,
        outputs: out.cols,
        // Pieces of a matrix write side by side into rows of the whole output.
        matrix_outputs: out.stride,
        x_stride: x.cols,
        weight_stride: weight.view.stride,
        out_stride: out.stride,
    }
}

impl ProductGroup {
    /// Returns whether a product of `x` can join the launch.
    fn takes(&self, state: &LaunchState, x: View, dtype: DType, kernel: ProductKernel) -> bool {
        let shape = (self.arg.rows as usize, self.arg.inputs as usize);
        let same = shape == (x.rows, x.cols) && (self.dtype, self.kernel) == (dtype, kernel);
        let room = (self.arg.parts as usize) < ProductsArg::PARTS;
        same && room && state.copy_of(x, dtype) == Some(self.arg.x)
    }
}

/// Outputs and rows of a block of the GEMV kernels; all shapes sum in the same order.
struct GemvShape {
    outputs: usize,
    rows: usize,
}

impl GemvShape {
    /// Shape for a number of rows, as in the CUDA sources.
    fn of(rows: usize) -> Self {
        let (outputs, rows) = match rows {
            0..=4 => (16, 8),
            5..=8 => (32, 8),
            9..=16 => (32, 16),
            17.. => (32, 32),
        };
        GemvShape { outputs, rows }
    }

    fn name(&self, kernel: &str, dtype: DType) -> String {
        format!("{kernel}_{dtype}_{}_{}", self.outputs, self.rows)
    }

    fn size(&self, arg: &ProductsArg, tiles: usize) -> LaunchSize {
        LaunchSize {
            blocks: [tiles, (arg.rows as usize).div_ceil(self.rows), 1],
            threads: THREADS,
            shared: 0,
        }
    }
}

/// Chooses the kernel of a product by type, shape and phase. A piece of a matrix gets the kernel
/// of the whole matrix, because it has the same inputs and its outputs have the same stride.
fn kernel_for(weight: Weight, x: View, out: View, phase: Phase, library: bool) -> ProductKernel {
    let w = weight.view;
    let bytes = w.dtype.bytes() as u64;
    let whole = |n: usize| n.is_multiple_of(8);
    let aligned =
        w.offset.is_multiple_of(ALIGNED) && (w.stride as u64 * bytes).is_multiple_of(ALIGNED);
    if bytes != 2 || !aligned || !whole(x.cols) {
        return ProductKernel::Simple;
    }
    let many = out.stride.is_multiple_of(4) && out.offset.is_multiple_of(ALIGNED);
    match (weight.order, phase) {
        (Order::OutIn, Phase::Prompt) if library && many => ProductKernel::Library,
        (Order::OutIn, _) => ProductKernel::Gemv,
        (Order::InOut, Phase::Prompt) if library && many && whole(w.cols) => ProductKernel::Library,
        (Order::InOut, _) => ProductKernel::Simple,
    }
}

#[cfg(test)]
mod tests {
    use super::{ProductKernel, kernel_for};
    use crate::{Phase, View, Weight};
    use djinn_types::{DType, Order};

    #[test]
    fn pieces_get_the_kernel_of_the_whole() {
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
                    kernel_for(weight, x, out, phase, true)
                };
                let whole = of(0, 200, 3);
                assert_eq!([of(0, 64, 3), of(64, 64, 1), of(128, 72, 2)], [whole; 3]);
            }
        }
    }

    #[test]
    fn odd_shapes_get_the_simple_kernel() {
        let weight = |offset, dtype, cols| Weight {
            view: View::new(offset, dtype, 16, cols),
            order: Order::OutIn,
        };
        let of = |weight: Weight| {
            let x = View::new(0, DType::F32, 1, weight.view.cols);
            let out = View::new(1 << 20, DType::F32, 1, 16);
            kernel_for(weight, x, out, Phase::Generated, false)
        };
        assert_eq!(of(weight(1024, DType::Bf16, 64)), ProductKernel::Gemv);
        assert_eq!(of(weight(1024, DType::Bf16, 60)), ProductKernel::Simple);
        assert_eq!(of(weight(1026, DType::F16, 64)), ProductKernel::Simple);
        assert_eq!(of(weight(1024, DType::F32, 64)), ProductKernel::Simple);
    }
}
