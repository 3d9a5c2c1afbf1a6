//! Products of many rows with cuBLASLt. Each shape of matrix has one algorithm. The algorithm
//! serves any number of rows and any piece of the matrix, so a row's result depends on neither.
//! For each algorithm the library notes whether it sums in the order of the [`chain`](super::chain)
//! kernels, which then compute few rows.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::{result, sys};
use cudarc::driver;

use super::driver::DriverContext;
use crate::{DeviceError, Result};
use djinn_types::{DType, Order};

/// A product: `out[rows, outputs] = x[rows, inputs] · W`.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) dtype: DType,
    pub(super) order: Order,
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Number of outputs of the whole matrix.
    pub(super) matrix_outputs: usize,
    pub(super) x_stride: usize,
    pub(super) weight_stride: usize,
    pub(super) out_stride: usize,
}

/// Addresses of a product's operands on the card.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) x: u64,
    pub(super) weights: u64,
    pub(super) out: u64,
}

/// Handle of the cuBLASLt library, and the algorithms chosen so far.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    chosen: Mutex<HashMap<AlgorithmKey, sys::cublasLtMatmulAlgo_t>>,
    /// Whether the chosen algorithm gives the bits of the chain kernels, where that was checked.
    chains: Mutex<HashMap<AlgorithmKey, bool>>,
}

/// Key of an algorithm: type, order, inputs, and outputs of the whole matrix.
type AlgorithmKey = (DType, Order, usize, usize);

impl Product {
    fn key(self) -> AlgorithmKey {
        (self.dtype, self.order, self.inputs, self.matrix_outputs)
    }
}

// SAFETY: the handle belongs to the library, which allows its use from any thread.
unsafe impl Send for Blas {}
// SAFETY: the argument for `Send` also holds for `Sync`.
unsafe impl Sync for Blas {}

/// Alignment of all operands in bytes.
pub(super) const ALIGNED: u64 = 16;
/// Number of rows that algorithms are chosen for.
const TYPICAL_ROWS: usize = 2048;
/// Number of algorithms considered.
const CANDIDATES: usize = 16;

impl Blas {
    /// Loads the library; `None` if it is missing or fails to start.
    pub(super) fn open() -> Option<Self> {
        // SAFETY: only looks for the library; without it every other call would panic.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        Some(Blas {
            handle: result::create_handle().ok()?,
            chosen: Mutex::default(),
            chains: Mutex::default(),
        })
    }

    /// Version of the library.
    pub(super) fn version(&self) -> usize {
        // SAFETY: the library is loaded, and the function reads a constant.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Whether the chain kernels give the bits of the algorithm of a product. `false` until
    /// [`Blas::set_chain`] has told it.
    pub(super) fn is_chain(&self, product: Product) -> bool {
        self.checked_chain(product).unwrap_or(false)
    }

    /// Result of the check of a product's algorithm; `None` before the check.
    pub(super) fn checked_chain(&self, product: Product) -> Option<bool> {
        let chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        chains.get(&product.key()).copied()
    }

    /// Records whether the chain kernels give the bits of the algorithm of a product.
    pub(super) fn set_chain(&self, product: Product, is_chain: bool) {
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        chains.insert(product.key(), is_chain);
    }

    /// Enqueues a product on a stream.
    ///
    /// # Safety
    /// The operands must be valid for the product until the stream has passed it.
    pub(super) unsafe fn run(
        &self,
        product: Product,
        at: Operands,
        stream: *mut c_void,
    ) -> Result<()> {
        let layouts = ProductLayouts::new(product)?;
        let algorithm = self.algorithm(product)?;
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: layouts of this product and numbers that live through the call; the caller
        // guarantees the operands.
        unsafe {
            result::matmul(
                self.handle,
                layouts.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                at.weights as *const c_void,
                layouts.weights,
                at.x as *const c_void,
                layouts.x,
                at.out as *const c_void,
                layouts.out,
                at.out as *mut c_void,
                layouts.out,
                &raw const algorithm,
                std::ptr::null_mut(),
                0,
                stream.cast(),
            )
        }
        .map_err(|error| run_failed(stream, error))
    }

    fn algorithm(&self, product: Product) -> Result<sys::cublasLtMatmulAlgo_t> {
        let kind = product.key();
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(algorithm) = chosen.get(&kind) {
            return Ok(*algorithm);
        }
        let algorithm = self.choose(kind)?;
        chosen.insert(kind, algorithm);
        Ok(algorithm)
    }

    /// Chooses the library's first algorithm that sums each output without splitting.
    fn choose(
        &self,
        (dtype, order, inputs, outputs): AlgorithmKey,
    ) -> Result<sys::cublasLtMatmulAlgo_t> {
        // Rounds up to whole vectors: a piece of a matrix may be narrower, a matrix is not.
        let outputs = outputs.next_multiple_of(8);
        let typical = Product {
            dtype,
            order,
            rows: TYPICAL_ROWS,
            inputs,
            outputs,
            matrix_outputs: outputs,
            x_stride: inputs,
            weight_stride: match order {
                Order::OutIn => inputs,
                Order::InOut => outputs,
            },
            out_stride: outputs,
        };
        let layouts = ProductLayouts::new(typical)?;
        let preference = Preference::new()?;
        // SAFETY: plain numbers and handles, for which zero is valid.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] =
            unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: all arguments live through the call, and `found` has `CANDIDATES` elements.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                layouts.product,
                layouts.weights,
                layouts.x,
                layouts.out,
                layouts.out,
                preference.0,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &raw mut count,
            )
        }
        .result()
        .map_err(|error| failed("choosing an algorithm", error))?;
        let found = found.iter().take(count as usize);
        let whole = found.map(|result| result.algo).find(is_whole);
        whole.ok_or_else(|| {
            DeviceError::Setup(format!(
                "cuBLASLt has no algorithm for {inputs} inputs; use --device cpu"
            ))
        })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created once, and none of its work still runs.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Returns whether the algorithm sums each output in one block, in a fixed order.
fn is_whole(algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
    use sys::cublasLtMatmulAlgoConfigAttributes_t::{
        CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
    };
    let number = |what| {
        let mut value = 0i32;
        // SAFETY: attributes of four bytes.
        let queried = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                algorithm,
                what,
                (&raw mut value).cast(),
                4,
                std::ptr::null_mut(),
            )
        };
        queried.result().is_ok().then_some(value)
    };
    number(CUBLASLT_ALGO_CONFIG_SPLITK_NUM).is_some_and(|n| n <= 1)
        && number(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) == Some(0)
}

/// Description of a product for the library. The library is column-major, so a row-major
/// matrix is described as its transpose.
struct ProductLayouts {
    product: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl ProductLayouts {
    fn new(p: Product) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let describe_error = |error| failed("describing a product", error);
        let numbers = match p.dtype {
            DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
            _ => sys::cudaDataType_t::CUDA_R_16BF,
        };
        let float = sys::cudaDataType_t::CUDA_R_32F;
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let (rows, cols, transpose) = match p.order {
            Order::OutIn => (p.inputs, p.outputs, 1i32),
            Order::InOut => (p.outputs, p.inputs, 0i32),
        };
        let layout = |dtype, rows: usize, cols: usize, stride: usize| {
            result::create_matrix_layout(dtype, rows as u64, cols as u64, stride as i64)
                .map_err(describe_error)
        };
        let layouts = ProductLayouts {
            product: result::create_matmul_desc(sums, float).map_err(describe_error)?,
            weights: layout(numbers, rows, cols, p.weight_stride)?,
            x: layout(numbers, p.inputs, p.rows, p.x_stride)?,
            out: layout(float, p.outputs, p.rows, p.out_stride)?,
        };
        // SAFETY: an attribute of four bytes.
        unsafe {
            result::set_matmul_desc_attribute(
                layouts.product,
                CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transpose).cast(),
                4,
            )
        }
        .map_err(describe_error)?;
        Ok(layouts)
    }
}

impl Drop for ProductLayouts {
    fn drop(&mut self) {
        // SAFETY: each was created once; enqueued products have copied them.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            let _ = result::destroy_matrix_layout(self.weights);
            let _ = result::destroy_matrix_layout(self.x);
            let _ = result::destroy_matrix_layout(self.out);
        }
    }
}

/// Constraints on algorithms: no workspace, and aligned operands.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let describe_error = |error| failed("constraining algorithms", error);
        let preference = Preference(result::create_matmul_pref().map_err(describe_error)?);
        let workspace = 0usize;
        // SAFETY: an attribute of eight bytes.
        unsafe {
            result::set_matmul_pref_attribute(
                preference.0,
                Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace).cast(),
                8,
            )
        }
        .map_err(describe_error)?;
        let aligned = ALIGNED as u32;
        for what in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            // SAFETY: attributes of four bytes.
            unsafe {
                result::set_matmul_pref_attribute(
                    preference.0,
                    what,
                    (&raw const aligned).cast(),
                    4,
                )
            }
            .map_err(describe_error)?;
        }
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Error of a product that could not be enqueued. The library does not pass on the driver's error,
/// so this asks the stream whether an earlier kernel has failed.
fn run_failed(stream: *mut c_void, error: result::CublasError) -> DeviceError {
    // SAFETY: the stream that the caller enqueues on, which is alive.
    let state = unsafe { driver::sys::cuStreamQuery(stream.cast()) };
    match state.result().context("running a product") {
        Err(driver) if driver.is_sticky() => driver.within("cuBLASLt"),
        _ => failed("running a product", error),
    }
}

fn failed(what: &str, error: result::CublasError) -> DeviceError {
    DeviceError::Setup(format!("cuBLASLt failed while {what}: {:?}", error.0))
}
