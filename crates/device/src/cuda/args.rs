//! Arguments of kernels, with the layout of the CUDA sources.

use crate::check::Mat;
use crate::{Attention, DeviceError, KvLayer, Result};
use djinn_types::{Activation, DType};

/// A matrix of any type.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MatArg {
    pub(super) at: u64,
    pub(super) rows: i32,
    pub(super) cols: i32,
    pub(super) stride: i64,
}

impl MatArg {
    /// Absent matrix, for optional arguments.
    pub(super) const NONE: MatArg = MatArg {
        at: 0,
        rows: 0,
        cols: 0,
        stride: 0,
    };

    /// Returns one row of 32-bit words that fill at most 8 GiB of checked memory.
    pub(super) fn words(at: u64, bytes: u64) -> Self {
        let cols = i32::try_from(bytes / 4).expect("a row has 31-bit indexes");
        MatArg {
            at,
            rows: 1,
            cols,
            stride: i64::from(cols),
        }
    }

    /// Returns a range of rows of an f32 matrix. An absent matrix stays absent.
    pub(super) fn rows(self, first: usize, count: usize) -> Self {
        let at = self.at + 4 * first as u64 * self.stride as u64;
        MatArg {
            at: if self.at == 0 { 0 } else { at },
            rows: count as i32,
            ..self
        }
    }

    /// Converts a checked matrix. Its elements must be aligned to their size.
    pub(super) fn new<T>(op: &'static str, mat: Mat<T>, dtype: DType) -> Result<Self> {
        let fail = |detail: String| DeviceError::Shape { op, detail };
        if !mat.address().is_multiple_of(dtype.bytes() as u64) {
            let detail = format!("{dtype} elements are not aligned to their size");
            return Err(fail(detail));
        }
        let size = |n: usize| {
            i32::try_from(n).map_err(|_| fail(format!("{n} rows or columns exceed 32 bits")))
        };
        Ok(MatArg {
            at: mat.address(),
            rows: size(mat.rows)?,
            cols: size(mat.cols)?,
            stride: mat.stride as i64,
        })
    }
}

/// KV pages of a layer.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KvArg {
    at: u64,
    page_bytes: i64,
    pages: i32,
    page_tokens: i32,
    kv_heads: i32,
    d_head: i32,
    dtype: i32,
    page_shift: i32,
}

impl KvArg {
    pub(super) fn new(base: u64, kv: &KvLayer) -> Self {
        KvArg {
            at: base + kv.offset,
            page_bytes: kv.page_bytes as i64,
            pages: kv.pages as i32,
            page_tokens: kv.page_tokens as i32,
            kv_heads: kv.kv_heads as i32,
            d_head: kv.d_head as i32,
            dtype: dtype_arg(kv.dtype),
            page_shift: kv.page_tokens.trailing_zeros() as i32,
        }
    }
}

/// Parameters of attention.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AttendArg {
    heads: i32,
    /// Number of keys in the window; 0 for no window.
    window: i32,
    scale: f32,
}

impl AttendArg {
    pub(super) fn new(how: Attention) -> Self {
        let window = |w| i32::try_from(w).unwrap_or(i32::MAX);
        AttendArg {
            heads: how.heads as i32,
            window: how.window.map_or(0, window),
            scale: how.scale,
        }
    }
}

/// Copy of an output in the type of the weights of the next product.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ShadowArg {
    pub(super) at: u64,
    pub(super) stride: i64,
    pub(super) dtype: i32,
}

impl ShadowArg {
    /// Absent copy.
    pub(super) const NONE: ShadowArg = ShadowArg {
        at: 0,
        stride: 0,
        dtype: 0,
    };

    /// Returns the copy from row `first` on.
    pub(super) fn from(self, first: usize) -> Self {
        let at = self.at + 2 * first as u64 * self.stride as u64;
        ShadowArg {
            at: if self.at == 0 { 0 } else { at },
            ..self
        }
    }
}

/// Scratch memory for partial results of attention. The last block combines them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UnitsArg {
    pub(super) parts: u64,
    pub(super) finished: u64,
    pub(super) count: i32,
}

/// Keys and values to append, and the rotation of keys and queries.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RotateArg {
    pub(super) keys: MatArg,
    pub(super) values: MatArg,
    pub(super) table: MatArg,
    pub(super) interleaved: i32,
}

impl RotateArg {
    /// Absent argument: keys are rotated and appended already.
    pub(super) const NONE: RotateArg = RotateArg {
        keys: MatArg::NONE,
        values: MatArg::NONE,
        table: MatArg::NONE,
        interleaved: 0,
    };
}

/// One of several matrices that are multiplied with the same inputs.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PartArg {
    pub(super) weights: u64,
    pub(super) bias: u64,
    pub(super) out: u64,
    pub(super) weight_stride: i64,
    pub(super) out_stride: i64,
    pub(super) outputs: i32,
    pub(super) bias_dtype: i32,
}

/// Products of the same inputs with several matrices, in one launch.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProductsArg {
    pub(super) x: u64,
    pub(super) x_stride: i64,
    pub(super) rows: i32,
    pub(super) inputs: i32,
    pub(super) parts: i32,
    pub(super) part: [PartArg; ProductsArg::PARTS],
}

impl ProductsArg {
    /// Largest number of matrices of one launch.
    pub(super) const PARTS: usize = 3;
}

/// Gate of two products.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct GateArg {
    pub(super) out: u64,
    pub(super) stride: i64,
    pub(super) f: i32,
    pub(super) shadow: ShadowArg,
}

/// Number of a dtype in the CUDA sources.
pub(super) fn dtype_arg(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
        DType::I32 => 3,
    }
}

/// Number of an activation function in the CUDA sources.
pub(super) fn activation_arg(f: Activation) -> i32 {
    match f {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
    }
}
