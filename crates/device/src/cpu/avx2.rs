//! Sixteen lanes in two AVX2 registers.

use std::arch::x86_64::*;

use super::lanes::{Kernel, LANES, Simd, first, write_first};

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(super) struct Lanes2x8(__m256, __m256);

/// Entry function: runs a kernel compiled for AVX2, FMA and F16C.
///
/// # Safety
/// The machine must have these instructions.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) {
    kernel.run(Avx2(()));
}

/// Runs intrinsics that touch no memory.
macro_rules! isa {
    ($($body:tt)*) => {{
        // SAFETY: the token that every method takes proves the instructions.
        unsafe { $($body)* }
    }};
}

/// Mask of eight lanes from `first` on, with all ones in the lanes below `n`.
#[inline(always)]
fn mask(n: usize, first: i32) -> __m256i {
    isa! {
        let lane = _mm256_add_epi32(
            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_set1_epi32(first),
        );
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane)
    }
}

/// Rounds to bfloat16; each result is the lower half of its lane.
#[inline(always)]
fn to_bf16(a: __m256) -> __m256i {
    isa! {
        let bits = _mm256_castps_si256(a);
        let upper = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, up));
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
        _mm256_blendv_epi8(rounded, quiet, nan)
    }
}

/// Lower halves of the lanes of two registers, in order.
#[inline(always)]
fn packed(low: __m256i, high: __m256i) -> __m256i {
    // The packing interleaves the quarters of both registers.
    isa!(_mm256_permute4x64_epi64::<0b11_01_10_00>(
        _mm256_packus_epi32(low, high)
    ))
}

/// Stores the first `n` of sixteen elements.
///
/// # Safety
/// `n` elements must be writable.
#[inline(always)]
unsafe fn store_halves(halves: __m256i, p: *mut u16, n: usize) {
    // SAFETY: guaranteed by the caller; an array of sixteen elements.
    unsafe {
        if n == LANES {
            return _mm256_storeu_si256(p.cast(), halves);
        }
        let mut all = [0; LANES];
        _mm256_storeu_si256(all.as_mut_ptr().cast(), halves);
        write_first(&all, p, n);
    }
}

impl Simd for Avx2 {
    type V = Lanes2x8;

    const TILE_ROWS: usize = 3;
    const TILE_COLS: usize = 2;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        // SAFETY: the token proves the instructions.
        unsafe { enter(kernel) };
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        isa!(Lanes2x8(_mm256_set1_ps(x), _mm256_set1_ps(x)))
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(Lanes2x8(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(Lanes2x8(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(Lanes2x8(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(Lanes2x8(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        isa!(Lanes2x8(
            _mm256_fmadd_ps(a.0, b.0, c.0),
            _mm256_fmadd_ps(a.1, b.1, c.1)
        ))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(Lanes2x8(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(Lanes2x8(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        isa!(Lanes2x8(
            _mm256_round_ps::<NEAREST>(a.0),
            _mm256_round_ps::<NEAREST>(a.1)
        ))
    }
    #[inline(always)]
    fn pow2(self, a: Self::V) -> Self::V {
        #[inline(always)]
        fn half(a: __m256) -> __m256 {
            isa! {
                let biased = _mm256_add_epi32(_mm256_cvttps_epi32(a), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            }
        }
        Lanes2x8(half(a.0), half(a.1))
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        isa! {
            let sign = _mm256_set1_ps(-0.0);
            Lanes2x8(_mm256_andnot_ps(sign, a.0), _mm256_andnot_ps(sign, a.1))
        }
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, b: Self::V) -> Self::V {
        let a = self.abs(a);
        isa! {
            let sign = _mm256_set1_ps(-0.0);
            Lanes2x8(
                _mm256_or_ps(a.0, _mm256_and_ps(sign, b.0)),
                _mm256_or_ps(a.1, _mm256_and_ps(sign, b.1)),
            )
        }
    }
    #[inline(always)]
    fn if_greater(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        isa!(Lanes2x8(
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_GT_OQ>(a.0, b.0)),
            _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_GT_OQ>(a.1, b.1)),
        ))
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        isa! {
            let a = _mm256_add_ps(a.0, a.1);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4] {
        isa! {
            // 16 → 8: each vector's upper register onto its lower.
            let [a, b, c, d] = a.map(|v| _mm256_add_ps(v.0, v.1));
            // 8 → 4: upper halves onto lower, two vectors to a register.
            let ab = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
            );
            let cd = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(c, d),
                _mm256_permute2f128_ps::<0x31>(c, d),
            );
            // 4 → 2: elements 2, 3 onto 0, 1; the lower half becomes a, c and the upper b, d.
            let pairs = _mm256_add_ps(
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
            );
            // 2 → 1.
            let ones = _mm256_add_ps(pairs, _mm256_movehdup_ps(pairs));
            let ac = _mm256_castps256_ps128(ones);
            let bd = _mm256_extractf128_ps::<1>(ones);
            let mut out = [0.0; 4];
            _mm_storeu_ps(
                out.as_mut_ptr(),
                _mm_unpacklo_ps(
                    _mm_shuffle_ps::<0b10_10_10_00>(ac, ac),
                    _mm_shuffle_ps::<0b10_10_10_00>(bd, bd),
                ),
            );
            out
        }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { Lanes2x8(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller; masked lanes are not read.
        unsafe {
            Lanes2x8(
                _mm256_maskload_ps(p, mask(n, 0)),
                _mm256_maskload_ps(p.wrapping_add(8), mask(n, 8)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        let (low, high) = unsafe { (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(8).cast())) };
        isa!(Lanes2x8(
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(low))),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(high))),
        ))
    }
    #[inline(always)]
    unsafe fn load_bf16_part(self, p: *const u16, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller, then an array of sixteen elements.
        unsafe { self.load_bf16(first(p, n).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            Lanes2x8(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_f16_part(self, p: *const u16, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller, then an array of sixteen elements.
        unsafe { self.load_f16(first(p, n).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store(self, a: Self::V, p: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            _mm256_storeu_ps(p, a.0);
            _mm256_storeu_ps(p.add(8), a.1);
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, a: Self::V, p: *mut f32, n: usize) {
        // SAFETY: guaranteed by the caller; masked lanes are not written.
        unsafe {
            _mm256_maskstore_ps(p, mask(n, 0), a.0);
            _mm256_maskstore_ps(p.wrapping_add(8), mask(n, 8), a.1);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(self, a: Self::V, p: *mut u16, n: usize) {
        let halves = packed(to_bf16(a.0), to_bf16(a.1));
        // SAFETY: guaranteed by the caller.
        unsafe { store_halves(halves, p, n) }
    }
    #[inline(always)]
    unsafe fn store_f16_part(self, a: Self::V, p: *mut u16, n: usize) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        let halves = isa!(_mm256_set_m128i(
            _mm256_cvtps_ph::<NEAREST>(a.1),
            _mm256_cvtps_ph::<NEAREST>(a.0)
        ));
        // SAFETY: guaranteed by the caller.
        unsafe { store_halves(halves, p, n) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch is a hint and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
