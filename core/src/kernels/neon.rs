//! 16 lanes as four 128-bit vectors. AArch64 only: the vector unit of 32-bit ARM flushes denormals, which changes bits.
#![allow(unsafe_code)]

use core::arch::aarch64::*;

use half::{bf16, f16};

use super::Ahead;
use super::lanes::{Lanes, entries};
use super::scalar::LANES;

/// Proves NEON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon(());

impl Neon {
    pub fn detect() -> Option<Self> {
        #[cfg(feature = "std")]
        let seen = std::arch::is_aarch64_feature_detected!("neon");
        #[cfg(not(feature = "std"))]
        let seen = cfg!(target_feature = "neon");
        seen.then_some(Self(()))
    }
}

super::for_each_kernel!(entries, Neon, "neon");

/// All four quarters through one intrinsic.
macro_rules! each {
    ($f:ident, $a:expr, $b:expr) => {{
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = ($a, $b);
        // SAFETY: the token exists only if detection saw neon.
        unsafe { [$f(a0, b0), $f(a1, b1), $f(a2, b2), $f(a3, b3)] }
    }};
}

impl Lanes for Neon {
    type V = [float32x4_t; 4];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token exists only if detection saw neon.
        [unsafe { vdupq_n_f32(x) }; 4]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        let p = x.as_ptr();
        // SAFETY: 16 elements are readable at `x`, and the token exists only if detection saw neon.
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))] }
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; LANES]) {
        for (out, v) in out.as_chunks_mut::<4>().0.iter_mut().zip(v) {
            // SAFETY: four elements are writable at `out`, and the token exists only if detection saw neon.
            unsafe { vst1q_f32(out.as_mut_ptr(), v) }
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each!(vaddq_f32, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each!(vsubq_f32, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each!(vmulq_f32, a, b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]) = (a, b, c);
        // SAFETY: the token exists only if detection saw neon.
        unsafe { [vfmaq_f32(c0, a0, b0), vfmaq_f32(c1, a1, b1), vfmaq_f32(c2, a2, b2), vfmaq_f32(c3, a3, b3)] }
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        let ([y0, y1, y2, y3], [n0, n1, n2, n3]) = (yes, no);
        let [m0, m1, m2, m3] = each!(vcltq_f32, a, b);
        // SAFETY: the token exists only if detection saw neon.
        unsafe { [vbslq_f32(m0, y0, n0), vbslq_f32(m1, y1, n1), vbslq_f32(m2, y2, n2), vbslq_f32(m3, y3, n3)] }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each!(vdivq_f32, a, b)
    }

    #[inline(always)]
    fn sqrt(self, v: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw neon.
        v.map(|v| unsafe { vsqrtq_f32(v) })
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
        // SAFETY: the token exists only if detection saw neon.
        let square = |[a, b, c, d]: [float32x4_t; 4]| unsafe {
            let (p, q, r, s) = (vzip1q_f32(a, c), vzip2q_f32(a, c), vzip1q_f32(b, d), vzip2q_f32(b, d));
            [vzip1q_f32(p, r), vzip2q_f32(p, r), vzip1q_f32(q, s), vzip2q_f32(q, s)]
        };
        let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = v;
        let rows = [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]];
        // Quarter `k` of every four arguments is a square of 16 numbers.
        let columns = |k: fn(Self::V) -> float32x4_t| {
            let squares = rows.map(|r| square(r.map(k)));
            let [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]] = squares;
            [[a0, b0, c0, d0], [a1, b1, c1, d1], [a2, b2, c2, d2], [a3, b3, c3, d3]]
        };
        let [[x0, x1, x2, x3], [x4, x5, x6, x7], [x8, x9, x10, x11], [x12, x13, x14, x15]] =
            [columns(|[a, ..]| a), columns(|[_, a, ..]| a), columns(|[.., a, _]| a), columns(|[.., a]| a)];
        [x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15]
    }

    #[inline(always)]
    fn exp2_bits(self, v: Self::V) -> Self::V {
        // SAFETY: the token exists only if detection saw neon.
        v.map(|v| unsafe {
            let n = vshlq_n_u32::<23>(vreinterpretq_u32_f32(v));
            vreinterpretq_f32_u32(vaddq_u32(n, vdupq_n_u32(0x3f80_0000)))
        })
    }

    #[inline(always)]
    fn fold4(self, v: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the token exists only if detection saw neon; the array holds the four floats stored.
        unsafe {
            let [a, b, c, d] = v.map(|[p, q, r, s]| vaddq_f32(vaddq_f32(p, r), vaddq_f32(q, s)));
            // Lane j + lane j + 2 of two arguments side by side.
            let zip = |x, y| (vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y));
            let pair = |x, y| {
                let (x, y) = zip(x, y);
                let (lo, hi) = (vreinterpretq_f32_f64(vzip1q_f64(x, y)), vreinterpretq_f32_f64(vzip2q_f64(x, y)));
                vaddq_f32(lo, hi)
            };
            let mut out = [0.0; 4];
            let s = vpaddq_f32(pair(a, b), pair(c, d));
            vst1q_f32(out.as_mut_ptr(), vaddq_f32(s, vdupq_n_f32(0.0)));
            out
        }
    }

    #[inline(always)]
    fn halves(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        ([a0, a1, b0, b1], [a2, a3, b2, b3])
    }

    #[inline(always)]
    fn widen_f16(self, x: &[f16; LANES]) -> Self::V {
        let p = x.as_ptr().cast::<u16>();
        // SAFETY: 16 halves are readable at `x`, and the token exists only if detection saw neon.
        unsafe {
            let wide = |p| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
            [wide(p), wide(p.add(4)), wide(p.add(8)), wide(p.add(12))]
        }
    }

    #[inline(always)]
    fn widen_bf16(self, x: &[bf16; LANES]) -> Self::V {
        let p = x.as_ptr().cast::<u16>();
        // SAFETY: 16 halves are readable at `x`, and the token exists only if detection saw neon.
        unsafe {
            let wide = |p| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
            [wide(p), wide(p.add(4)), wide(p.add(8)), wide(p.add(12))]
        }
    }

    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> Self::V {
        // SAFETY: 16 bytes are readable at `x`, and the token exists only if detection saw neon.
        unsafe {
            let v = vld1q_s8(x.as_ptr());
            let halves = [vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)];
            let wide = |v| (vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v)));
            let [(a, b), (c, d)] = halves.map(wide);
            [a, b, c, d]
        }
    }
}
