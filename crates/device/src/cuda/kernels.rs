//! Kernels by name, and what they are given.

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};

use super::card::{Card, Said};
use crate::check::Mat;
use crate::{DType, DeviceError, KvLayer, Result};

/// A matrix as kernels know it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MatArg {
    at: u64,
    rows: i32,
    cols: i32,
    stride: i64,
}

impl MatArg {
    /// No matrix, where one may be left out.
    pub(super) const NONE: MatArg = MatArg {
        at: 0,
        rows: 0,
        cols: 0,
        stride: 0,
    };

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

/// A layer's pages as kernels know them.
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
        }
    }
}

/// How a row attends, as kernels know it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AttendArg {
    pub(super) heads: i32,
    /// 0 where there is none.
    pub(super) window: i32,
    pub(super) scale: f32,
}

/// A dtype's number in the sources.
pub(super) fn dtype_arg(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
        DType::I32 => 3,
    }
}

/// All kernels, compiled for a card.
pub(super) struct Kernels {
    module: sys::CUmodule,
    functions: HashMap<&'static str, sys::CUfunction>,
    /// Shared memory a block may take.
    pub(super) shared_max: usize,
}

// SAFETY: handles of the driver.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

const NAMES: [&str; 29] = [
    "gather",
    "scatter_add",
    "normalise",
    "linear_out_in_f32",
    "linear_out_in_f16",
    "linear_out_in_bf16",
    "linear_out_in_rows_f32",
    "linear_out_in_rows_f16",
    "linear_out_in_rows_bf16",
    "linear_in_out_f32",
    "linear_in_out_f16",
    "linear_in_out_bf16",
    "rope_table",
    "rope",
    "append",
    "attend",
    "pattern",
    "mix",
    "activate",
    "gate",
    "add",
    "split",
    "route",
    "largest",
    "edit_scale",
    "edit_zero",
    "edit_add",
    "edit_replace",
    "edit_project_out",
];

const SHARED_MAX: sys::CUdevice_attribute =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;

/// Those that take as much shared memory as a row sees keys.
const WIDE: [&str; 2] = ["attend", "pattern"];
/// What they take beside: partial sums.
const SHARED_OTHER: usize = 1024;

impl Kernels {
    /// Has the driver compile them.
    pub(super) fn load(card: &Card) -> Result<Self> {
        card.enter()?;
        let text = CString::new(djinn_kernels::PTX).expect("PTX is text");
        // SAFETY: text that ends with a zero, as the driver wants it.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }
            .said("compiling the kernels for this card")?;
        let mut kernels = Kernels {
            module,
            functions: HashMap::new(),
            shared_max: card.attribute(SHARED_MAX)? as usize - SHARED_OTHER,
        };
        for name in NAMES {
            let text = CString::new(name).expect("names are text");
            // SAFETY: a module just loaded.
            let function =
                unsafe { result::module::get_function(module, text) }.said("finding a kernel")?;
            kernels.functions.insert(name, function);
        }
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        for name in WIDE {
            let function = kernels.functions[name];
            let bytes = kernels.shared_max as i32;
            // SAFETY: a function of the module above.
            unsafe { result::function::set_function_attribute(function, attribute, bytes) }
                .said("asking for shared memory")?;
        }
        Ok(kernels)
    }

    /// Puts a kernel on a stream. Arguments are pointers to what its parameters take.
    ///
    /// # Safety
    /// They must be of the types the sources say, and places they name must stay until
    /// the stream has passed the kernel.
    pub(super) unsafe fn launch(
        &self,
        name: &'static str,
        (grid, block, shared): ((usize, usize), usize, usize),
        stream: sys::CUstream,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let (x, y) = grid;
        if x == 0 || y == 0 {
            return Ok(());
        }
        if y > 65_535 {
            let detail = format!("{y} rows at once; a card takes 65535");
            return Err(DeviceError::Shape { op: name, detail });
        }
        let grid = (x as u32, y as u32, 1);
        // SAFETY: the caller's.
        unsafe {
            result::launch_kernel(
                self.functions[name],
                grid,
                (block as u32, 1, 1),
                shared as u32,
                stream,
                arguments,
            )
        }
        .said(name)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded once, and nothing of it runs any more.
        let _ = unsafe { result::module::unload(self.module) };
    }
}
