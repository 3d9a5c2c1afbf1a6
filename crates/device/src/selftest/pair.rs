//! Two devices with the same bytes in their slabs, and comparisons between them.

use djinn_types::DType;
use half::{bf16, f16};

use crate::{ALIGN, Device, Result, Span, Stream, View};

/// Bytes of slab that a self-test needs of each device.
pub const SLAB_BYTES: u64 = 64 << 20;

/// Result of one case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the operation.
    pub op: &'static str,
    /// Dtype, shape and other parameters.
    pub what: String,
    /// `‖found − expected‖ / ‖expected‖`, with a divisor of at least 0.001; infinite if an
    /// element is NaN.
    pub error: f64,
    /// Largest error that passes.
    pub limit: f64,
}

impl Case {
    /// Result of a case that requires equality.
    pub(super) fn exact(op: &'static str, what: String, same: bool) -> Self {
        Case {
            op,
            what,
            error: if same { 0.0 } else { f64::INFINITY },
            limit: 0.0,
        }
    }

    /// Returns whether the case passed.
    pub fn passed(&self) -> bool {
        self.error <= self.limit
    }
}

/// Largest error of f32 sums in another order and exponentials of another library.
pub(super) const LIMIT: f64 = 2e-6;
/// Least divisor of a relative error, so that results near zero may be zero.
const SMALL: f64 = 1e-3;
pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

pub(super) type ReportFn<'a> = &'a mut dyn FnMut(Case);
pub(super) type CaseFn = fn(&mut DevicePair<'_>, ReportFn<'_>) -> Result<()>;

/// Two devices with the same bytes in their slabs.
pub(super) struct DevicePair<'a> {
    pub(super) both: [&'a dyn Device; 2],
    pub(super) random: u64,
    /// Bytes of the slab that the current case uses.
    pub(super) end: u64,
    /// Whether matrices are aligned for full speed.
    pub(super) aligned: bool,
    /// Largest error of the current case.
    pub(super) limit: f64,
}

impl DevicePair<'_> {
    /// Starts a case with unaligned matrices and the default limit.
    pub(super) fn start(&mut self) {
        (self.end, self.aligned, self.limit) = (0, false, LIMIT);
    }

    /// Starts a case with matrices that are aligned for full speed.
    pub(super) fn start_aligned(&mut self, limit: f64) {
        (self.end, self.aligned, self.limit) = (0, true, limit);
    }

    pub(super) fn number(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Random number between −1 and 1.
    pub(super) fn float(&mut self) -> f32 {
        (self.number() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn below(&mut self, limit: usize) -> i32 {
        (self.number() % limit as u64) as i32
    }

    /// Allocates a matrix with `gap` unused elements between rows. Unless the case is
    /// aligned, the matrix has only the alignment of its elements.
    pub(super) fn place(&mut self, dtype: DType, rows: usize, cols: usize, gap: usize) -> View {
        let size = dtype.bytes() as u64;
        let off = if self.aligned { 0 } else { size };
        let offset = self.end.next_multiple_of(ALIGN) + off;
        let view = View {
            offset,
            dtype,
            rows,
            cols,
            stride: cols + gap,
        };
        self.end = offset + (rows * (cols + gap)) as u64 * size;
        assert!(self.end <= SLAB_BYTES, "a case fits the slab");
        view
    }

    pub(super) fn upload(&self, view: View, bytes: &[u8]) -> Result<()> {
        let span = Span {
            offset: view.offset,
            bytes: bytes.len() as u64,
        };
        self.both
            .iter()
            .try_for_each(|device| device.upload(Stream::Compute, span, bytes))
    }

    /// Allocates a matrix of random numbers, also in the gaps.
    pub(super) fn floats(
        &mut self,
        dtype: DType,
        rows: usize,
        cols: usize,
        gap: usize,
    ) -> Result<View> {
        let view = self.place(dtype, rows, cols, gap);
        let mut bytes = Vec::new();
        for _ in 0..rows * view.stride {
            let x = self.float();
            match dtype {
                DType::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                DType::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                _ => bytes.extend(x.to_le_bytes()),
            }
        }
        self.upload(view, &bytes)?;
        Ok(view)
    }

    pub(super) fn ids(&mut self, rows: usize, cols: usize, ids: &[i32]) -> Result<View> {
        let view = self.place(DType::I32, rows, cols, 0);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.upload(view, &bytes)?;
        Ok(view)
    }

    /// Allocates an output full of NaN.
    pub(super) fn poisoned(&mut self, rows: usize, cols: usize, gap: usize) -> Result<View> {
        let view = self.place(DType::F32, rows, cols, gap);
        let poison = f32::NAN.to_le_bytes().repeat(rows * view.stride);
        self.upload(view, &poison)?;
        Ok(view)
    }

    /// Runs an operation on both devices and reads a view of each.
    pub(super) fn run_both<T: Clone + Default>(
        &self,
        out: View,
        run: impl Fn(&dyn Device) -> Result<()>,
        read: impl Fn(&dyn Device, &mut [T]) -> Result<()>,
    ) -> Result<[Vec<T>; 2]> {
        let mut left = [const { Vec::new() }; 2];
        for (device, left) in self.both.iter().zip(&mut left) {
            run(*device)?;
            *left = vec![T::default(); out.rows * out.cols];
            read(*device, left)?;
        }
        Ok(left)
    }

    /// Runs an operation on both devices and compares a view within the limit.
    pub(super) fn check(
        &self,
        op: &'static str,
        what: String,
        out: View,
        report: ReportFn<'_>,
        run: impl Fn(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let [expect, found] = self.run_both(out, run, |device, to| device.download(out, to))?;
        let error = difference(&expect, &found);
        let limit = self.limit;
        report(Case {
            op,
            what,
            error,
            limit,
        });
        Ok(())
    }

    /// Runs an operation on both devices and compares a view of ids for equality.
    pub(super) fn check_ids(
        &self,
        op: &'static str,
        what: String,
        out: View,
        report: ReportFn<'_>,
        run: impl Fn(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let [expect, found] = self.run_both(out, run, |device, to| device.download_ids(out, to))?;
        report(Case::exact(op, what, expect == found));
        Ok(())
    }

    /// Runs an operation on both devices and compares a view to the bit, except that every NaN
    /// equals every other.
    pub(super) fn check_numbers(
        &self,
        op: &'static str,
        what: String,
        out: View,
        report: ReportFn<'_>,
        run: impl Fn(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let both = self.run_both(out, run, |device, to| device.download(out, to))?;
        let bits = |x: f32| {
            if x.is_nan() {
                f32::NAN.to_bits()
            } else {
                x.to_bits()
            }
        };
        let [expect, found] = both.map(|all| all.into_iter().map(bits).collect::<Vec<_>>());
        report(Case::exact(op, what, expect == found));
        Ok(())
    }

    /// Runs an operation on both devices and compares a view to the bit.
    pub(super) fn check_bits(
        &self,
        op: &'static str,
        what: String,
        out: View,
        report: ReportFn<'_>,
        run: impl Fn(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let both = self.run_both(out, run, |device, to| device.download(out, to))?;
        let [expect, found] = both.map(|all| all.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        report(Case::exact(op, what, expect == found));
        Ok(())
    }
}

pub(super) fn difference(expect: &[f32], found: &[f32]) -> f64 {
    let wide = |x: &f32| f64::from(*x);
    let pairs = || expect.iter().map(wide).zip(found.iter().map(wide));
    if !pairs().all(|(a, b)| a.is_finite() && b.is_finite()) {
        return f64::INFINITY;
    }
    let off: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let all: f64 = pairs().map(|(a, _)| a.powi(2)).sum();
    off.sqrt() / all.sqrt().max(SMALL)
}
