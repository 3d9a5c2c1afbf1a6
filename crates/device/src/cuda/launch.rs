//! Launches of kernels on the compute stream, and the arguments that they share.

use std::ffi::c_void;
use std::sync::{MutexGuard, PoisonError};

use djinn_types::DType;

use super::CudaDevice;
use super::args::{MatArg, ShadowArg, dtype_arg};
use super::kernels::LaunchSize;
use super::shadow::{LaunchState, ShadowCopy, fits};
use crate::check::OpCheck;
use crate::{Result, View};

/// Threads of a block, as in the CUDA sources.
pub(super) const THREADS: usize = 256;

/// Launches a kernel on the compute stream.
macro_rules! launch {
    ($device:expr, $state:expr, $name:expr, $size:expr; $($argument:expr),* $(,)?) => {{
        // SAFETY: each argument has its parameter's type (see the CUDA sources), was checked
        // to lie in the slab, and the slab outlives the streams' work. The driver copies the
        // arguments before the call returns, and they live until then.
        unsafe {
            $device.put($state, $name, $size, &mut [
                $(std::ptr::from_mut(&mut { $argument }).cast()),*
            ])
        }
    }};
}
pub(super) use launch;

impl CudaDevice {
    pub(super) fn state(&self) -> MutexGuard<'_, LaunchState> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches a kernel on the compute stream.
    ///
    /// # Safety
    /// The conditions of [`super::kernels::Kernels::launch`].
    pub(super) unsafe fn put(
        &self,
        state: &mut LaunchState,
        name: &str,
        size: LaunchSize,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.card.enter()?;
        let (kernels, stream) = (self.card.kernels(), self.compute.stream);
        let overlaps = std::mem::take(&mut state.overlaps);
        state.wrote_keys = false;
        // SAFETY: guaranteed by the caller.
        let launched = unsafe { kernels.launch(name, size, stream, overlaps, arguments) }?;
        state.overlaps = launched || overlaps;
        Ok(())
    }

    /// Returns a float input and the number of its dtype.
    pub(super) fn floats(&self, op: OpCheck, what: &str, view: View) -> Result<(MatArg, i32)> {
        let mat = MatArg::new(op.name, op.floats(what, view)?, view.dtype)?;
        Ok((mat, dtype_arg(view.dtype)))
    }

    pub(super) fn f32(&self, op: OpCheck, what: &str, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.f32(what, view)?, DType::F32)
    }

    pub(super) fn i32(&self, op: OpCheck, what: &str, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.i32(what, view)?, DType::I32)
    }

    pub(super) fn out(
        &self,
        state: &mut LaunchState,
        op: OpCheck,
        what: &str,
        view: View,
    ) -> Result<MatArg> {
        let mat = MatArg::new(op.name, op.out(what, view)?, DType::F32)?;
        state.wrote(view);
        Ok(mat)
    }

    pub(super) fn out_ids(&self, op: OpCheck, view: View) -> Result<MatArg> {
        MatArg::new(op.name, op.out_ids("ids", view)?, DType::I32)
    }

    /// Returns an optional bias: the matrix, the number of its dtype, and whether it exists.
    pub(super) fn bias(&self, op: OpCheck, bias: Option<View>) -> Result<(MatArg, i32, i32)> {
        let Some(bias) = bias else {
            return Ok((MatArg::NONE, 0, 0));
        };
        let (mat, dtype) = self.floats(op, "bias", bias)?;
        Ok((mat, dtype, 1))
    }

    /// Chooses a place for the copy of a kernel's output that the next product reads.
    pub(super) fn shadow_for(&self, state: &mut LaunchState, out: View) -> ShadowArg {
        self.shadow_in(state, out, 0, self.scratch.shadow_bytes())
    }

    /// Chooses a second place for the copy, because the same kernel reads the first copy.
    pub(super) fn second_shadow_for(&self, state: &mut LaunchState, out: View) -> ShadowArg {
        let (at, bytes) = (self.scratch.second_at(), self.scratch.second_bytes());
        self.shadow_in(state, out, at, bytes)
    }

    fn shadow_in(&self, state: &mut LaunchState, out: View, at: u64, bytes: u64) -> ShadowArg {
        let Some(dtype) = state.dtype.filter(|_| fits(out, bytes)) else {
            return ShadowArg::NONE;
        };
        let (view, at) = (out, self.scratch_at(at));
        state.shadow = Some(ShadowCopy { view, dtype, at });
        ShadowArg {
            at,
            stride: out.cols as i64,
            dtype: dtype_arg(dtype),
        }
    }

    /// Returns the address of a product's inputs in the type of its weights. Copies the inputs
    /// now unless the kernel that wrote them also wrote a copy.
    pub(super) fn narrowed(&self, state: &mut LaunchState, x: View, dtype: DType) -> Result<u64> {
        if let Some(at) = state.copy_of(x, dtype) {
            return Ok(at);
        }
        state.dtype = Some(dtype);
        let op = self.op("linear");
        op.ensure(fits(x, self.scratch.shadow_bytes()), || {
            format!(
                "inputs of [{}, {}] exceed the pass limits that the device was opened with",
                x.rows, x.cols
            )
        })?;
        let shadow = self.shadow_for(state, x);
        let from = MatArg::new(op.name, op.f32("x", x)?, DType::F32)?;
        launch!(self, state, "narrow", elements(x); from, shadow)?;
        Ok(shadow.at)
    }
}

/// Launch size with one thread for every element.
pub(super) fn elements(view: View) -> LaunchSize {
    columns(view.cols, view.rows)
}

/// Launch size with one thread for each of `cols` columns of every row.
pub(super) fn columns(cols: usize, rows: usize) -> LaunchSize {
    LaunchSize {
        blocks: [cols.div_ceil(THREADS), rows, 1],
        threads: THREADS,
        shared: 0,
    }
}

/// Launch size with one block for every row.
pub(super) fn by_row(view: View, threads: usize) -> LaunchSize {
    LaunchSize {
        blocks: [1, view.rows, 1],
        threads,
        shared: 0,
    }
}
