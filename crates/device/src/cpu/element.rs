//! Stored float types, converted to f32.

use half::{bf16, f16};

use super::lanes::{Kernel, LANES, Simd};
use super::row::part;

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

    /// Stores the first `n` (at most 16) lanes, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `n` elements must be writable.
    unsafe fn store_part<S: Simd>(s: S, a: S::V, p: *mut Self, n: usize);
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
    unsafe fn store_part<S: Simd>(s: S, a: S::V, p: *mut Self, n: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { s.store_part(a, p, n) }
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
    unsafe fn store_part<S: Simd>(s: S, a: S::V, p: *mut Self, n: usize) {
        // SAFETY: guaranteed by the caller; a bf16 is a transparent u16.
        unsafe { s.store_bf16_part(a, p.cast(), n) }
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
    unsafe fn store_part<S: Simd>(s: S, a: S::V, p: *mut Self, n: usize) {
        // SAFETY: guaranteed by the caller; an f16 is a transparent u16.
        unsafe { s.store_f16_part(a, p.cast(), n) }
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

/// Rounds a row of f32 to a stored type.
pub(super) struct Store<E> {
    /// Source, readable over `n`.
    pub(super) from: *const f32,
    pub(super) n: usize,
    /// Destination, writable over `n`.
    pub(super) to: *mut E,
}

impl<E: Element> Kernel for Store<E> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Store { from, n, to } = self;
        for i in (0..n).step_by(LANES) {
            let left = (n - i).min(LANES);
            // SAFETY: the conditions of the fields.
            unsafe {
                let a = part(s, from.wrapping_add(i), left);
                E::store_part(s, a, to.wrapping_add(i), left);
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

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Element, LANES, Store};
    use crate::cpu::isa::{Isa, SimdEngine};

    /// Every upper half of an f32 with lower halves next to ties: all exponents, subnormals,
    /// infinities and NaN, and ties of both 16-bit types.
    fn difficult() -> Vec<f32> {
        let lower = [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
        (0..=u16::MAX)
            .flat_map(|upper| lower.map(|lower| f32::from_bits(u32::from(upper) << 16 | lower)))
            .collect()
    }

    fn stored<E: Element + Default>(isa: Isa, from: &[f32]) -> Vec<E> {
        let mut to = vec![E::default(); from.len()];
        SimdEngine::new(isa).unwrap().run(Store {
            from: from.as_ptr(),
            n: from.len(),
            to: to.as_mut_ptr(),
        });
        to
    }

    fn check<E: Element + Default>(to_bits: fn(&E) -> u16, expect: fn(f32) -> u16) {
        let numbers = difficult();
        assert!(numbers.len().is_multiple_of(LANES));
        let expect: Vec<u16> = numbers.iter().map(|&x| expect(x)).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            // Both a length that ends in a full vector and one that does not.
            for n in [numbers.len(), numbers.len() - 5] {
                let found = stored::<E>(isa, &numbers[..n]);
                let found: Vec<u16> = found.iter().map(to_bits).collect();
                assert!(found == expect[..n], "{isa}");
            }
        }
    }

    #[test]
    fn stores_round_to_nearest_on_every_instruction_set() {
        check::<bf16>(|x| x.to_bits(), |x| bf16::from_f32_const(x).to_bits());
        check::<f16>(|x| x.to_bits(), |x| f16::from_f32_const(x).to_bits());
    }

    #[test]
    fn ties_go_to_even_and_large_numbers_to_infinity() {
        let halves = [
            (1.0 + 1.0 / 2048.0, 1.0),
            (1.0 + 3.0 / 2048.0, 1.0 + 4.0 / 2048.0),
            (65_519.0, 65_504.0),
            (-65_520.0, f32::NEG_INFINITY),
            (2.0_f32.powi(-25), 0.0),
            (1.5 * 2.0_f32.powi(-24), 2.0_f32.powi(-23)),
        ];
        let brains = [
            (1.0 + 1.0 / 256.0, 1.0),
            (1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
            (f32::MAX, f32::INFINITY),
            (1e30, f32::from_bits(0x714a_0000)),
        ];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for (x, expect) in halves {
                assert_eq!(stored::<f16>(isa, &[x])[0].to_f32(), expect, "{isa} {x}");
            }
            for (x, expect) in brains {
                assert_eq!(stored::<bf16>(isa, &[x])[0].to_f32(), expect, "{isa} {x}");
            }
            assert!(stored::<f16>(isa, &[f32::NAN])[0].is_nan(), "{isa}");
            assert!(stored::<bf16>(isa, &[f32::NAN])[0].is_nan(), "{isa}");
        }
    }
}
