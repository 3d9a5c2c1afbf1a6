//! What kernels are given, as the sources have it.

use crate::check::Mat;
use crate::{Attention, DeviceError, KvLayer, Result};
use djinn_types::{Activation, DType};

/// A matrix.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MatArg {
    pub(super) at: u64,
    pub(super) rows: i32,
    pub(super) cols: i32,
    pub(super) stride: i64,
}

impl MatArg {
    /// No matrix, where one may be left out.
    pub(super) const NONE: MatArg = MatArg {
        at: 0,
        rows: 0,
        cols: 0,
        stride: 0,
    };

    /// Some rows of an f32 matrix, or nothing of none.
    pub(super) fn rows(self, first: usize, count: usize) -> Self {
        let at = self.at + 4 * first as u64 * self.stride as u64;
        MatArg {
            at: if self.at == 0 { 0 } else { at },
            rows: count as i32,
            ..self
        }
    }

    /// A checked matrix; its elements must lie where the card can read them.
    pub(super) fn new<T>(op: &'static str, mat: Mat<T>, dtype: DType) -> Result<Self> {
        let fail = |detail: String| DeviceError::Shape { op, detail };
        if !mat.address().is_multiple_of(dtype.bytes() as u64) {
            let detail = format!("numbers of type {dtype} that are not aligned to their size");
            return Err(fail(detail));
        }
        let size = |n: usize| i32::try_from(n).map_err(|_| fail(format!("{n} rows or columns")));
        Ok(MatArg {
            at: mat.address(),
            rows: size(mat.rows)?,
            cols: size(mat.cols)?,
            stride: mat.stride as i64,
        })
    }
}

/// A layer's pages.
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

/// How a row attends.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AttendArg {
    heads: i32,
    /// 0 where there is none.
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

/// A copy of an output in the type of the weights it meets next.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ShadowArg {
    pub(super) at: u64,
    pub(super) stride: i64,
    pub(super) dtype: i32,
}

impl ShadowArg {
    /// No copy.
    pub(super) const NONE: ShadowArg = ShadowArg {
        at: 0,
        stride: 0,
        dtype: 0,
    };

    /// The copy from a row on.
    pub(super) fn from(self, first: usize) -> Self {
        let at = self.at + 2 * first as u64 * self.stride as u64;
        ShadowArg {
            at: if self.at == 0 { 0 } else { at },
            ..self
        }
    }
}

/// What the units of one attention leave for the last of its blocks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UnitsArg {
    pub(super) parts: u64,
    pub(super) finished: u64,
    pub(super) count: i32,
}

/// Keys and values that are not in their pages yet, and how they and the queries are
/// rotated.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RotateArg {
    pub(super) keys: MatArg,
    pub(super) values: MatArg,
    pub(super) table: MatArg,
    pub(super) interleaved: i32,
}

impl RotateArg {
    /// All that is done.
    pub(super) const NONE: RotateArg = RotateArg {
        keys: MatArg::NONE,
        values: MatArg::NONE,
        table: MatArg::NONE,
        interleaved: 0,
    };
}

/// One of several matrices that meet the same inputs.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct GemvPartArg {
    pub(super) weights: u64,
    pub(super) bias: u64,
    pub(super) out: u64,
    pub(super) weight_stride: i64,
    pub(super) out_stride: i64,
    pub(super) outputs: i32,
    pub(super) bias_dtype: i32,
}

/// A product of few rows.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct GemvArg {
    pub(super) x: u64,
    pub(super) x_stride: i64,
    pub(super) rows: i32,
    pub(super) inputs: i32,
    pub(super) parts: i32,
    pub(super) part: [GemvPartArg; GemvArg::PARTS],
}

impl GemvArg {
    /// Matrices of one launch at most.
    pub(super) const PARTS: usize = 3;
}

/// What becomes of two products.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct GateArg {
    pub(super) out: u64,
    pub(super) stride: i64,
    pub(super) f: i32,
    pub(super) shadow: ShadowArg,
}

/// A dtype's number.
pub(super) fn dtype_arg(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
        DType::I32 => 3,
    }
}

/// A function's number.
pub(super) fn activation_arg(f: Activation) -> i32 {
    match f {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
    }
}
