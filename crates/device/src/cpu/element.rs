//! Stored float types, converted to f32.

use half::{bf16, f16};

use super::lanes::{Kernel, LANES, Simd};

/// A stored float type with values that are all exact in f32.
pub(super) trait Element: Copy + Send + Sync {
    /// Loads sixteen elements at any alignment.
    ///
    /// # Safety
    /// Sixteen elements must be readable.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;

    /// Loads the first `n` (at most 16) elements; the other lanes are zero.
    ///
    /// # Safety
    /// `n` elements must be readable.
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::V;

    /// Rounds to the nearest value of this type.
    fn from_f32(x: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load_part(p, n) }
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: guaranteed by the caller; a bf16 is a transparent u16.
        unsafe { s.load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::V {
        // SAFETY: guaranteed by the caller; a bf16 is a transparent u16.
        unsafe { s.load_bf16_part(p.cast(), n) }
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: guaranteed by the caller; an f16 is a transparent u16.
        unsafe { s.load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::V {
        // SAFETY: guaranteed by the caller; an f16 is a transparent u16.
        unsafe { s.load_f16_part(p.cast(), n) }
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }
}

/// Converts a row to f32, followed by zeros up to a multiple of sixteen.
pub(super) struct Convert<E> {
    /// Source, readable over `n`.
    pub(super) from: *const E,
    pub(super) n: usize,
    /// Destination, writable over `n` rounded up to a multiple of sixteen.
    pub(super) to: *mut f32,
    /// Distance in elements to the next row to convert, for prefetching; zero if unknown.
    pub(super) ahead: usize,
}

impl<E: Element> Kernel for Convert<E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Convert { from, n, to, ahead } = self;
        let full = n / LANES * LANES;
        // SAFETY: the conditions of the fields.
        unsafe {
            for i in (0..full).step_by(LANES) {
                if ahead != 0 {
                    s.prefetch(from.wrapping_add(i + ahead).cast());
                }
                s.store(E::load(s, from.wrapping_add(i)), to.add(i));
            }
            if full < n {
                let rest = E::load_part(s, from.wrapping_add(full), n - full);
                s.store(rest, to.add(full));
            }
        }
    }
}

/// Runs an expression with a type alias bound to the element type of a dtype. The operation's
/// checks have refused integers.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            djinn_types::DType::Bf16 => {
                type $element = half::bf16;
                $body
            }
            djinn_types::DType::F16 => {
                type $element = half::f16;
                $body
            }
            djinn_types::DType::F32 | djinn_types::DType::I32 => {
                type $element = f32;
                $body
            }
        }
    };
}
pub(super) use with_element;
