//! What was asked for and is not yet on the stream, and how it gets there.
//!
//! Some operations that follow each other go together in one launch: products of the same
//! inputs, a sum and the norm of it, rotations with what appends the keys and with the
//! attention that follows. So those wait until the next operation is known. Together or
//! alone, the bits are the same.

use std::ffi::c_void;
use std::sync::{MutexGuard, PoisonError};

use super::CudaDevice;
use super::args::{FewArg, MatArg, ShadowArg, dtype_arg};
use super::kernels::Size;
use crate::check::overlap;
use crate::{KvLayer, Result, Rows, View};
use djinn_types::DType;

/// Threads of a block, as the sources have it.
pub(super) const THREADS: usize = 256;

/// Puts a kernel on the compute stream.
macro_rules! launch {
    ($device:expr, $work:expr, $name:expr, $size:expr; $($argument:expr),* $(,)?) => {{
        // SAFETY: each argument is of its parameter's type (see the sources), was checked
        // to lie in the slab, and the slab outlives the streams' work. The driver copies
        // arguments before the call returns, until when these live.
        unsafe {
            $device.put($work, $name, $size, &mut [
                $(std::ptr::from_mut(&mut { $argument }).cast()),*
            ])
        }
    }};
}
pub(super) use launch;

/// What is held back, and what is known of the memory behind the slab's end.
#[derive(Default)]
pub(super) struct Work {
    pub(super) pending: Pending,
    /// The type of the weights that products meet.
    pub(super) dtype: Option<DType>,
    /// Which view has a copy in that type.
    shadow: Option<Shadowed>,
    /// Whether the last thing on the stream was a kernel of ours.
    close: bool,
    /// Whether that was an attention which put keys into their pages.
    pub(super) put_keys: bool,
}

/// An operation that waits for the next.
#[derive(Default)]
pub(super) enum Pending {
    #[default]
    Nothing,
    /// Products of the same inputs.
    Products(FewArg, DType),
    /// `out += x`
    Sum(Sum),
    /// Rotations.
    Turns(Vec<Turn>),
    /// Those of queries and keys, and the keys and values into their pages.
    Fresh(Box<Fresh>),
}

#[derive(Clone, Copy)]
pub(super) struct Sum {
    pub(super) x: (View, MatArg),
    pub(super) out: (View, MatArg),
}

#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) x: (View, MatArg),
    pub(super) table: (View, MatArg),
    pub(super) d_head: usize,
    pub(super) interleaved: i32,
}

#[derive(Clone, Copy)]
pub(super) struct Fresh {
    /// The rotation of the queries; that of the keys is alike.
    pub(super) turn: Turn,
    pub(super) keys: (View, MatArg),
    pub(super) values: (View, MatArg),
    /// Whose they are: positions, sequences, tables.
    pub(super) rows: (Rows, [MatArg; 3]),
    pub(super) kv: KvLayer,
}

#[derive(Clone, Copy)]
struct Shadowed {
    view: View,
    dtype: DType,
    /// Where the copy lies.
    at: u64,
}

impl Shadowed {
    /// Where the copy of some rows lies, if these are some of them.
    fn of(&self, x: View, dtype: DType) -> Option<u64> {
        let row = row_in(self.view, x).filter(|_| self.dtype == dtype)?;
        Some(self.at + 2 * (row * x.cols) as u64)
    }
}

impl Work {
    /// Something else than a kernel of ours is on the stream now.
    pub(super) fn interrupted(&mut self) {
        self.close = false;
    }

    /// A view has other numbers now.
    pub(super) fn wrote(&mut self, view: View) {
        if self.shadow.is_some_and(|shadow| overlap(shadow.view, view)) {
            self.shadow = None;
        }
    }
}

impl CudaDevice {
    pub(super) fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready for an operation that goes with none before it.
    pub(super) fn ready(&self) -> Result<MutexGuard<'_, Work>> {
        let mut work = self.lock();
        self.put_pending(&mut work)?;
        Ok(work)
    }

    /// Puts on the stream what is held back.
    pub(super) fn flush(&self) -> Result<()> {
        self.ready().map(drop)
    }

    /// The same, and something else than a kernel comes next.
    pub(super) fn interrupt(&self) -> Result<()> {
        self.ready()?.interrupted();
        Ok(())
    }

    /// The same, and nothing is known any more of what lies behind the slab's end.
    pub(super) fn forget(&self) -> Result<()> {
        let mut work = self.ready()?;
        (work.close, work.shadow) = (false, None);
        Ok(())
    }

    /// # Safety
    /// As [`super::kernels::Kernels::launch`] says.
    pub(super) unsafe fn put(
        &self,
        work: &mut Work,
        name: &str,
        size: Size,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.card.enter()?;
        let (kernels, stream) = (self.card.kernels(), self.compute.stream);
        let close = std::mem::take(&mut work.close);
        work.put_keys = false;
        // SAFETY: the caller's.
        let launched = unsafe { kernels.launch(name, size, stream, close, arguments) }?;
        work.close = launched || close;
        Ok(())
    }

    pub(super) fn put_pending(&self, work: &mut Work) -> Result<()> {
        match std::mem::take(&mut work.pending) {
            Pending::Nothing => Ok(()),
            Pending::Products(few, dtype) => self.put_few(work, few, dtype),
            Pending::Sum(Sum { x, out }) => {
                launch!(self, work, "add", elements(x.0); x.1, out.1)
            }
            Pending::Fresh(fresh) => self.put_fresh(work, &fresh),
            Pending::Turns(turns) => turns.into_iter().try_for_each(|turn| {
                let Turn { x, table, .. } = turn;
                let pairs = x.0.cols / turn.d_head * (table.0.cols / 2);
                let size = columns(pairs, x.0.rows);
                launch!(self, work, "rope", size; x.1, table.1, turn.d_head as i32, turn.interleaved)
            }),
        }
    }

    /// Where a kernel puts a copy of its output for the product that comes next.
    pub(super) fn shadow_for(&self, work: &mut Work, out: View) -> ShadowArg {
        self.shadow_in(work, out, 0, self.scratch.shadow_bytes())
    }

    /// The same where the first copy is read by the kernel that writes this one.
    pub(super) fn second_shadow_for(&self, work: &mut Work, out: View) -> ShadowArg {
        let (at, bytes) = (self.scratch.second_at(), self.scratch.second_bytes());
        self.shadow_in(work, out, at, bytes)
    }

    fn shadow_in(&self, work: &mut Work, out: View, at: u64, bytes: u64) -> ShadowArg {
        let Some(dtype) = work.dtype.filter(|_| fits(out, bytes)) else {
            return ShadowArg::NONE;
        };
        let (view, at) = (out, self.scratch_at(at));
        work.shadow = Some(Shadowed { view, dtype, at });
        ShadowArg {
            at,
            stride: out.cols as i64,
            dtype: dtype_arg(dtype),
        }
    }

    /// Whether inputs have a copy at a place already.
    pub(super) fn is_shadow(work: &Work, x: View, dtype: DType, at: u64) -> bool {
        work.shadow.and_then(|shadow| shadow.of(x, dtype)) == Some(at)
    }

    /// Where the inputs of a product lie in the type of its weights: copied now, unless
    /// they were when they were made.
    pub(super) fn shadow_of(&self, work: &mut Work, x: View, dtype: DType) -> Result<u64> {
        if let Some(at) = work.shadow.and_then(|shadow| shadow.of(x, dtype)) {
            return Ok(at);
        }
        work.dtype = Some(dtype);
        let op = self.op("linear");
        op.ensure(fits(x, self.scratch.shadow_bytes()), || {
            format!("[{}, {}] is more than was said to come", x.rows, x.cols)
        })?;
        let shadow = self.shadow_for(work, x);
        let from = MatArg::new(op.name, op.f32("x", x)?, DType::F32)?;
        launch!(self, work, "narrow", elements(x); from, shadow)?;
        Ok(shadow.at)
    }

    /// A place behind the slab's end.
    pub(super) fn scratch_at(&self, offset: u64) -> u64 {
        self.slab.address + self.slab_bytes.next_multiple_of(crate::ALIGN) + offset
    }
}

/// Whether a copy of a view in a type of two bytes fits somewhere.
fn fits(view: View, bytes: u64) -> bool {
    view.cols.is_multiple_of(8) && 2 * (view.rows * view.cols) as u64 <= bytes
}

/// Which row of a view another one, of some of its rows, begins with.
fn row_in(view: View, part: View) -> Option<usize> {
    let same = (view.stride, view.cols, view.dtype) == (part.stride, part.cols, part.dtype);
    let bytes = (view.stride * view.dtype.bytes()) as u64;
    let ahead = part.offset.checked_sub(view.offset)?;
    let row = usize::try_from(ahead / bytes.max(1)).ok()?;
    let inside = row + part.rows <= view.rows;
    (same && inside && ahead.is_multiple_of(bytes.max(1))).then_some(row)
}

/// A thread for every element.
pub(super) fn elements(view: View) -> Size {
    columns(view.cols, view.rows)
}

/// A thread for each of so many columns of every row.
pub(super) fn columns(cols: usize, rows: usize) -> Size {
    Size {
        blocks: [cols.div_ceil(THREADS), rows, 1],
        threads: THREADS,
        shared: 0,
    }
}

/// A block for every row.
pub(super) fn by_row(view: View, threads: usize) -> Size {
    Size {
        blocks: [1, view.rows, 1],
        threads,
        shared: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::row_in;
    use crate::View;
    use djinn_types::DType;

    #[test]
    fn rows_of_a_view_are_found_in_it() {
        let view = View::new(64, DType::F32, 8, 16);
        assert_eq!(row_in(view, view), Some(0));
        assert_eq!(row_in(view, view.rows(3, 5)), Some(3));
        assert_eq!(row_in(view.rows(0, 4), view.rows(3, 5)), None);
        assert_eq!(row_in(view, view.cols(0, 8)), None);
        assert_eq!(row_in(view.rows(1, 2), view), None);
    }
}
