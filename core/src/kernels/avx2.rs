//! 16 lanes as two 256-bit vectors.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use half::{bf16, f16};

use super::Ahead;
use super::lanes::{Lanes, entries};
use super::scalar::LANES;

/// Proves AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    pub fn detect() -> Option<Self> {
        #[cfg(feature = "std")]
        let seen = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c");
        #[cfg(not(feature = "std"))]
        let seen = cfg!(all(target_feature = "avx2", target_feature = "fma", target_feature = "f16c"));
        seen.then_some(Self(()))
    }
}

super::for_each_kernel!(entries, Avx2, "avx2,fma,f16c");

/// Both halves through one intrinsic.
macro_rules! both {
    ($f:ident, $a:expr, $b:expr) => {{
        let ((a0, a1), (b0, b1)) = ($a, $b);
        // SAFETY: the token exists only if detection saw avx2.
        unsafe { ($f(a0, b0), $f(a1, b1)) }
    }};
}

impl Lanes for Avx2 {
    type V = (__m256, __m256);

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token exists only if detection saw avx2.
        let v = unsafe { _mm256_set1_ps(x) };
        (v, v)
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        // SAFETY: 16 elements are readable at `x`, and the token exists only if detection saw avx2.
        unsafe { (_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) }
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; LANES]) {
        let to = out.as_mut_ptr();
        // SAFETY: 16 elements are writable at `out`, and the token exists only if detection saw avx2.
        unsafe {
            _mm256_storeu_ps(to, v.0);
            _mm256_storeu_ps(to.add(8), v.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw fma.
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx2.
        unsafe {
            let m = (_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0), _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1));
            (_mm256_blendv_ps(no.0, yes.0, m.0), _mm256_blendv_ps(no.1, yes.1, m.1))
        }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn sqrt(self, v: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx2.
        unsafe { (_mm256_sqrt_ps(v.0), _mm256_sqrt_ps(v.1)) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn columns(self, x: &[f32], stride: usize) -> [Self::V; LANES] {
        let mut v = [self.splat(0.0); LANES];
        let mut rest = Some(x);
        for v in &mut v {
            if let Some(row) = rest.and_then(|x| x.first_chunk()) {
                *v = self.load(row);
            }
            rest = rest.and_then(|x| x.get(stride..));
        }
        let [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7] = v;
        let (a, b) = ([a0, a1, a2, a3, a4, a5, a6, a7], [b0, b1, b2, b3, b4, b5, b6, b7]);
        // SAFETY: the token exists only if detection saw avx2.
        let (
            [x0, x1, x2, x3, x4, x5, x6, x7],
            [y0, y1, y2, y3, y4, y5, y6, y7],
            [z0, z1, z2, z3, z4, z5, z6, z7],
            [w0, w1, w2, w3, w4, w5, w6, w7],
        ) = unsafe { (square(a.map(|v| v.0)), square(b.map(|v| v.0)), square(a.map(|v| v.1)), square(b.map(|v| v.1))) };
        [
            (x0, y0),
            (x1, y1),
            (x2, y2),
            (x3, y3),
            (x4, y4),
            (x5, y5),
            (x6, y6),
            (x7, y7),
            (z0, w0),
            (z1, w1),
            (z2, w2),
            (z3, w3),
            (z4, w4),
            (z5, w5),
            (z6, w6),
            (z7, w7),
        ]
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint that touches nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn exp2_bits(self, v: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw avx2.
        let power = |v| unsafe {
            let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(v));
            _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f80_0000)))
        };
        (power(v.0), power(v.1))
    }

    #[inline(always)]
    fn fold4(self, v: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the token exists only if detection saw avx2; the array holds the four floats stored.
        unsafe {
            let [a, b, c, d] = v.map(|(lo, hi)| _mm256_add_ps(lo, hi));
            // Two arguments per vector, one in each half: lane j + lane j + 4.
            let ac = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, c), _mm256_permute2f128_ps::<0x31>(a, c));
            let bd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(b, d), _mm256_permute2f128_ps::<0x31>(b, d));
            // Halves [a b] and [c d], two lanes each: lane j + lane j + 2.
            let s = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ac, bd), _mm256_shuffle_ps::<0xee>(ac, bd));
            let s = _mm256_add_ps(_mm256_shuffle_ps::<0x88>(s, s), _mm256_shuffle_ps::<0xdd>(s, s));
            let s = _mm_movelh_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(s, _mm_setzero_ps()));
            out
        }
    }

    #[inline(always)]
    fn halves(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        ((a.0, b.0), (a.1, b.1))
    }

    #[inline(always)]
    fn widen_f16(self, x: &[f16; LANES]) -> Self::V {
        let from = x.as_ptr().cast::<__m128i>();
        // SAFETY: 16 halves are readable at `x`, and the token exists only if detection saw f16c.
        unsafe { (_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))) }
    }

    #[inline(always)]
    fn widen_bf16(self, x: &[bf16; LANES]) -> Self::V {
        let from = x.as_ptr().cast::<__m128i>();
        // SAFETY: 16 halves are readable at `x`, and the token exists only if detection saw avx2.
        unsafe {
            let wide = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(v)));
            (wide(_mm_loadu_si128(from)), wide(_mm_loadu_si128(from.add(1))))
        }
    }

    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> Self::V {
        // SAFETY: 16 bytes are readable at `x`, and the token exists only if detection saw avx2.
        unsafe {
            let v = _mm_loadu_si128(x.as_ptr().cast());
            let wide = |v| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
            (wide(v), wide(_mm_srli_si128::<8>(v)))
        }
    }
}

/// The transpose of a square of numbers.
#[inline(always)]
unsafe fn square([a, b, c, d, e, f, g, h]: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: called where avx2 was detected.
    unsafe {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (interleave(a, b, c, d), interleave(e, f, g, h));
        [
            _mm256_permute2f128_ps::<0x20>(a0, b0),
            _mm256_permute2f128_ps::<0x20>(a1, b1),
            _mm256_permute2f128_ps::<0x20>(a2, b2),
            _mm256_permute2f128_ps::<0x20>(a3, b3),
            _mm256_permute2f128_ps::<0x31>(a0, b0),
            _mm256_permute2f128_ps::<0x31>(a1, b1),
            _mm256_permute2f128_ps::<0x31>(a2, b2),
            _mm256_permute2f128_ps::<0x31>(a3, b3),
        ]
    }
}

/// Lane `j` of the four arguments side by side, in 128-bit part `j / 4` of result `j % 4`.
#[inline(always)]
unsafe fn interleave(a: __m256, b: __m256, c: __m256, d: __m256) -> [__m256; 4] {
    // SAFETY: called where avx2 was detected.
    unsafe {
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ef, gh) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(ab, cd),
            _mm256_shuffle_ps::<0xee>(ab, cd),
            _mm256_shuffle_ps::<0x44>(ef, gh),
            _mm256_shuffle_ps::<0xee>(ef, gh),
        ]
    }
}
