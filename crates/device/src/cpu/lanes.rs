//! Vectors of sixteen f32 lanes, in which every kernel is written.
//!
//! A [`Simd`] is a token that proves that the machine has an instruction set. Every method
//! gives the same bits on all instruction sets: plain operations follow IEEE 754, `fma`
//! rounds once, and sums of lanes follow one tree.

/// Number of lanes of a vector.
pub(super) const LANES: usize = 16;

/// A kernel, written once for all instruction sets.
///
/// `run`, and everything it calls with the token, must be `#[inline(always)]`: only code that
/// is inlined into an entry function ([`Simd::call`]) is compiled for its instruction set.
pub(super) trait Kernel {
    /// Runs the kernel.
    fn run<S: Simd>(self, simd: S);
}

/// Operations on sixteen lanes, for one instruction set.
pub(super) trait Simd: Copy {
    /// Vector of sixteen f32.
    type V: Copy;

    /// Rows of the largest tile of accumulators that fits in the registers.
    const TILE_ROWS: usize;
    /// Columns of the largest tile of accumulators that fits in the registers.
    const TILE_COLS: usize;

    /// Runs a kernel as a function of its own. All other methods are inlined.
    fn call<K: Kernel>(self, kernel: K);

    /// Vector with `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// Sum, `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Difference, `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Product, `a · b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// Quotient, `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// Fused product and sum: `a · b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Maximum: `a > b ? a : b`, so `b` when either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Minimum: `a < b ? a : b`, so `b` when either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// Power of two: `2^a` for integral `a` in -126..=127; unspecified for other `a`.
    fn pow2(self, a: Self::V) -> Self::V;
    /// Absolute value, `|a|`.
    fn abs(self, a: Self::V) -> Self::V;
    /// Absolute value with a sign: `|a|` with the sign of `b`.
    fn copysign(self, a: Self::V, b: Self::V) -> Self::V;
    /// Selection lane by lane: `a > b ? yes : no`.
    fn if_greater(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Sums all lanes by the tree: upper half onto lower half, 16 → 8 → 4 → 2 → 1.
    fn sum(self, a: Self::V) -> f32;
    /// Sums each of four vectors by the tree of [`Simd::sum`].
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4];

    /// Loads sixteen f32 at any alignment.
    ///
    /// # Safety
    /// Sixteen elements must be readable.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// Loads the first `n` (at most 16) f32; the other lanes are zero.
    ///
    /// # Safety
    /// `n` elements must be readable.
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V;
    /// Loads sixteen bfloat16 at any alignment.
    ///
    /// # Safety
    /// Sixteen elements must be readable.
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;
    /// Loads the first `n` (at most 16) bfloat16; the other lanes are zero.
    ///
    /// # Safety
    /// `n` elements must be readable.
    unsafe fn load_bf16_part(self, p: *const u16, n: usize) -> Self::V;
    /// Loads sixteen IEEE halves at any alignment.
    ///
    /// # Safety
    /// Sixteen elements must be readable.
    unsafe fn load_f16(self, p: *const u16) -> Self::V;
    /// Loads the first `n` (at most 16) IEEE halves; the other lanes are zero.
    ///
    /// # Safety
    /// `n` elements must be readable.
    unsafe fn load_f16_part(self, p: *const u16, n: usize) -> Self::V;
    /// Stores all lanes at any alignment.
    ///
    /// # Safety
    /// Sixteen f32 must be writable.
    unsafe fn store(self, a: Self::V, p: *mut f32);
    /// Stores the first `n` (at most 16) lanes.
    ///
    /// # Safety
    /// `n` f32 must be writable.
    unsafe fn store_part(self, a: Self::V, p: *mut f32, n: usize);
    /// Stores the first `n` (at most 16) lanes as bfloat16, rounded to nearest, ties to even. A
    /// NaN stays a NaN and becomes quiet.
    ///
    /// # Safety
    /// `n` elements must be writable.
    unsafe fn store_bf16_part(self, a: Self::V, p: *mut u16, n: usize);
    /// Stores the first `n` (at most 16) lanes as IEEE halves, rounded to nearest, ties to even. A
    /// NaN stays a NaN and becomes quiet.
    ///
    /// # Safety
    /// `n` elements must be writable.
    unsafe fn store_f16_part(self, a: Self::V, p: *mut u16, n: usize);
    /// Prefetches the cache line at `p`, which may be any address.
    fn prefetch(self, p: *const u8);

    /// Returns all lanes as an array.
    #[inline(always)]
    fn to_array(self, a: Self::V) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array has sixteen elements.
        unsafe { self.store(a, out.as_mut_ptr()) };
        out
    }

    /// Returns the greatest lane, by the tree of [`Simd::sum`].
    #[inline(always)]
    fn greatest(self, a: Self::V) -> f32 {
        let mut lanes = self.to_array(a);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                if lanes[i + half] > lanes[i] {
                    lanes[i] = lanes[i + half];
                }
            }
        }
        lanes[0]
    }
}

/// Portable code without vector instructions.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

/// Reads the first `n` of sixteen elements at any alignment; the others are zero.
///
/// # Safety
/// `n` (at most 16) elements must be readable.
#[inline(always)]
pub(super) unsafe fn first<T: Copy + Default>(p: *const T, n: usize) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    // SAFETY: guaranteed by the caller; as bytes there is no alignment to keep.
    unsafe {
        let (from, to) = (p.cast::<u8>(), out.as_mut_ptr().cast::<u8>());
        std::ptr::copy_nonoverlapping(from, to, n * size_of::<T>());
    }
    out
}

/// Writes the first `n` of sixteen elements at any alignment.
///
/// # Safety
/// `n` (at most 16) elements must be writable.
#[inline(always)]
pub(super) unsafe fn write_first<T: Copy>(from: &[T; LANES], p: *mut T, n: usize) {
    // SAFETY: guaranteed by the caller; as bytes there is no alignment to keep.
    unsafe {
        let (from, to) = (from.as_ptr().cast::<u8>(), p.cast::<u8>());
        std::ptr::copy_nonoverlapping(from, to, n * size_of::<T>());
    }
}

impl Simd for Scalar {
    type V = [f32; LANES];

    const TILE_ROWS: usize = 1;
    const TILE_COLS: usize = 1;

    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) {
        kernel.run(self);
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        each(|i| a[i].round_ties_even())
    }
    #[inline(always)]
    fn pow2(self, a: Self::V) -> Self::V {
        each(|i| f32::from_bits((((a[i] as i32).wrapping_add(127)) as u32) << 23))
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        each(|i| a[i].abs())
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i].copysign(b[i]))
    }
    #[inline(always)]
    fn if_greater(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn sum(self, mut a: Self::V) -> f32 {
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                a[i] += a[i + half];
            }
        }
        a[0]
    }
    #[inline(always)]
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4] {
        a.map(|v| self.sum(v))
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { first(p, LANES) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { first(p, n) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { self.load_bf16_part(p, LANES) }
    }
    #[inline(always)]
    unsafe fn load_bf16_part(self, p: *const u16, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller.
        let bits: [u16; LANES] = unsafe { first(p, n) };
        each(|i| f32::from_bits(u32::from(bits[i]) << 16))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { self.load_f16_part(p, LANES) }
    }
    #[inline(always)]
    unsafe fn load_f16_part(self, p: *const u16, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller.
        let bits: [u16; LANES] = unsafe { first(p, n) };
        each(|i| half::f16::from_bits(bits[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn store(self, a: Self::V, p: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<Self::V>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn store_part(self, a: Self::V, p: *mut f32, n: usize) {
        for (i, lane) in a.into_iter().enumerate().take(n) {
            // SAFETY: guaranteed by the caller for elements below `n`.
            unsafe { p.add(i).write_unaligned(lane) }
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(self, a: Self::V, p: *mut u16, n: usize) {
        let bits = a.map(|x| half::bf16::from_f32(x).to_bits());
        // SAFETY: guaranteed by the caller.
        unsafe { write_first(&bits, p, n) }
    }
    #[inline(always)]
    unsafe fn store_f16_part(self, a: Self::V, p: *mut u16, n: usize) {
        let bits = a.map(|x| half::f16::from_f32(x).to_bits());
        // SAFETY: guaranteed by the caller.
        unsafe { write_first(&bits, p, n) }
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}
