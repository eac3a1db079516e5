//! 16 lanes as one 512-bit vector.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use half::{bf16, f16};

use super::Ahead;
use super::lanes::{Lanes, entries};
use super::scalar::LANES;

/// Proves AVX-512F.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

impl Avx512 {
    pub fn detect() -> Option<Self> {
        #[cfg(feature = "std")]
        let seen = std::is_x86_feature_detected!("avx512f");
        #[cfg(not(feature = "std"))]
        let seen = cfg!(target_feature = "avx512f");
        seen.then_some(Self(()))
    }
}

super::for_each_kernel!(entries, Avx512, "avx512f");

impl Lanes for Avx512 {
    type V = __m512;
    const ROOMY: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        // SAFETY: 16 elements are readable at `x`, and the token exists only if detection saw avx512f.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; LANES]) {
        // SAFETY: 16 elements are writable at `out`, and the token exists only if detection saw avx512f.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn sqrt(self, v: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_sqrt_ps(v) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn columns(self, x: &[f32], stride: usize) -> [Self::V; LANES] {
        if x.len() < stride.saturating_mul(LANES - 1).saturating_add(LANES) {
            return [self.splat(0.0); LANES];
        }
        let x = x.as_ptr();
        // SAFETY: 16 floats are readable in each of 16 rows, whose starts are `stride` apart, as the length has shown;
        // the token exists only if detection saw avx512f.
        unsafe {
            let [x0, x1, x2, x3] = four_columns(x, stride);
            let [x4, x5, x6, x7] = four_columns(x.add(4), stride);
            let [x8, x9, x10, x11] = four_columns(x.add(8), stride);
            let [x12, x13, x14, x15] = four_columns(x.add(12), stride);
            [x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15]
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint that touches nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn exp2_bits(self, v: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(v));
            _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f80_0000)))
        }
    }

    #[inline(always)]
    fn fold4(self, v: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the token exists only if detection saw avx512f; the array holds the four floats stored.
        unsafe {
            let s = fold_to_quarters(v);
            let s = _mm512_add_ps(s, _mm512_permute_ps::<0x4e>(s));
            let s = _mm512_add_ps(s, _mm512_permute_ps::<0xb1>(s));
            let firsts = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(firsts, _mm_setzero_ps()));
            out
        }
    }

    #[inline(always)]
    fn fold16(self, v: [Self::V; LANES]) -> Self::V {
        let [v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15] = v;
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe {
            // A quarter belongs to one argument of each four, so that every fourth is with the same.
            let (a, b) = (fold_to_quarters([v0, v4, v8, v12]), fold_to_quarters([v1, v5, v9, v13]));
            let (c, d) = (fold_to_quarters([v2, v6, v10, v14]), fold_to_quarters([v3, v7, v11, v15]));
            let ab = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(c, d), _mm512_shuffle_ps::<0xee>(c, d));
            let s = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(ab, cd), _mm512_shuffle_ps::<0xdd>(ab, cd));
            _mm512_add_ps(s, _mm512_setzero_ps())
        }
    }

    #[inline(always)]
    fn halves(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        // SAFETY: the token exists only if detection saw avx512f.
        unsafe { (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b)) }
    }

    #[inline(always)]
    fn widen_f16(self, x: &[f16; LANES]) -> Self::V {
        // SAFETY: 16 halves are readable at `x`, and the token exists only if detection saw avx512f.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn widen_bf16(self, x: &[bf16; LANES]) -> Self::V {
        // SAFETY: 16 halves are readable at `x`, and the token exists only if detection saw avx512f.
        unsafe {
            let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
        }
    }

    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> Self::V {
        // SAFETY: 16 bytes are readable at `x`, and the token exists only if detection saw avx512f.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }
}

/// One argument in each 128-bit quarter, lane `j` plus lane `j + 8`, and the sums likewise with those 4 further on.
#[inline(always)]
unsafe fn fold_to_quarters([a, b, c, d]: [__m512; 4]) -> __m512 {
    // SAFETY: called where avx512f was detected.
    unsafe {
        // The 256-bit halves of two arguments side by side.
        let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd))
    }
}

/// Lane `j` of the four arguments side by side, in 128-bit part `j / 4` of result `j % 4`.
#[inline(always)]
unsafe fn interleave(a: __m512, b: __m512, c: __m512, d: __m512) -> [__m512; 4] {
    // SAFETY: called where avx512f was detected.
    unsafe {
        let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (ef, gh) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        [
            _mm512_shuffle_ps::<0x44>(ab, cd),
            _mm512_shuffle_ps::<0xee>(ab, cd),
            _mm512_shuffle_ps::<0x44>(ef, gh),
            _mm512_shuffle_ps::<0xee>(ef, gh),
        ]
    }
}

/// The first four columns of 16 rows.
#[inline(always)]
unsafe fn four_columns(x: *const f32, row: usize) -> [__m512; 4] {
    // SAFETY: called where avx512f was detected; four floats are readable at the start of each row.
    unsafe {
        let (a, b, c, d) = (x, x.add(row), x.add(row).add(row), x.add(row).add(row).add(row));
        let step = row.wrapping_mul(4);
        interleave(quarters(a, step), quarters(b, step), quarters(c, step), quarters(d, step))
    }
}

/// Four elements of four places side by side. Loads put them there, which leaves the shuffling unit free.
#[inline(always)]
unsafe fn quarters(x: *const f32, step: usize) -> __m512 {
    // SAFETY: called where avx512f was detected; four floats are readable at each place.
    unsafe {
        let v = _mm512_castps128_ps512(_mm_loadu_ps(x));
        let v = _mm512_insertf32x4::<1>(v, _mm_loadu_ps(x.add(step)));
        let v = _mm512_insertf32x4::<2>(v, _mm_loadu_ps(x.add(step).add(step)));
        _mm512_insertf32x4::<3>(v, _mm_loadu_ps(x.add(step).add(step).add(step)))
    }
}
