//! Sixteen lanes in one AVX-512 register.

use std::arch::x86_64::*;

use super::lanes::{Kernel, Simd};

/// Proof that the machine has AVX-512 F, BW, VL and DQ.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Entry function: runs a kernel compiled for AVX-512 F, BW, VL and DQ.
///
/// # Safety
/// The machine must have these instructions.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) {
    kernel.run(Avx512(()));
}

/// Runs intrinsics that touch no memory.
macro_rules! isa {
    ($($body:tt)*) => {{
        // SAFETY: the token that every method takes proves the instructions.
        unsafe { $($body)* }
    }};
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    (((1u32 << n) - 1) & 0xffff) as __mmask16
}

impl Simd for Avx512 {
    type V = __m512;

    const TILE_ROWS: usize = 6;
    const TILE_COLS: usize = 4;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        // SAFETY: the token proves the instructions.
        unsafe { enter(kernel) };
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        isa!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        isa!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        isa!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        isa!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(a))
    }
    #[inline(always)]
    fn pow2(self, a: Self::V) -> Self::V {
        isa! {
            let biased = _mm512_add_epi32(_mm512_cvttps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        isa!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn copysign(self, a: Self::V, b: Self::V) -> Self::V {
        isa! {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b))
        }
    }
    #[inline(always)]
    fn if_greater(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        isa!(_mm512_mask_blend_ps(
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b),
            no,
            yes
        ))
    }
    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        isa! {
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4] {
        isa! {
            let [a, b, c, d] = a;
            // Quarters are numbered from the lowest. 16 → 8: quarters 2, 3 onto 0, 1.
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d),
            );
            // 8 → 4: quarter 1 of each onto its quarter 0; one quarter is now one vector.
            let abcd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            // 4 → 2 → 1 inside each quarter.
            let abcd = _mm512_add_ps(abcd, _mm512_permute_ps::<0b11_10_11_10>(abcd));
            let abcd = _mm512_add_ps(abcd, _mm512_permute_ps::<0b01_01_01_01>(abcd));
            let firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
            let four = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, abcd));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), four);
            out
        }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        let bits = unsafe { _mm256_loadu_si256(p.cast()) };
        isa!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(bits)
        )))
    }
    #[inline(always)]
    unsafe fn load_bf16_part(self, p: *const u16, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller; masked lanes are not read.
        let bits = unsafe { _mm256_maskz_loadu_epi16(mask(n), p.cast()) };
        isa!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(bits)
        )))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16_part(self, p: *const u16, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller; masked lanes are not read.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, a: Self::V, p: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn store_part(self, a: Self::V, p: *mut f32, n: usize) {
        // SAFETY: guaranteed by the caller; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(p, mask(n), a) }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(self, a: Self::V, p: *mut u16, n: usize) {
        let halves = isa! {
            let bits = _mm512_castps_si512(a);
            let upper = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, up));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
            let quiet = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
            _mm512_cvtepi32_epi16(quiet)
        };
        // SAFETY: guaranteed by the caller; masked lanes are not written.
        unsafe { _mm256_mask_storeu_epi16(p.cast(), mask(n), halves) }
    }
    #[inline(always)]
    unsafe fn store_f16_part(self, a: Self::V, p: *mut u16, n: usize) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        let halves = isa!(_mm512_cvtps_ph::<NEAREST>(a));
        // SAFETY: guaranteed by the caller; masked lanes are not written.
        unsafe { _mm256_mask_storeu_epi16(p.cast(), mask(n), halves) }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch is a hint and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
