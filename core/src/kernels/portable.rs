//! 16 lanes as four vectors of the `wide` crate, whose instruction set is the one the crate is compiled for: SSE2 on any
//! x86-64, NEON on any AArch64, simd128 where wasm has it. Elsewhere there is no such level.

#![allow(clippy::arithmetic_side_effects)] // vectors of floats cannot overflow, and the integer sums wrap

use half::{bf16, f16};
use wide::{f32x4, i32x4};

use super::fused::wide;
use super::lanes::Lanes;
use super::scalar::LANES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable(Proof);

/// Without vector registers no value exists, and with it goes the code: it would be several times the size of `scalar`
/// and no faster.
#[cfg(any(target_feature = "sse2", target_feature = "neon", target_feature = "simd128"))]
type Proof = ();
#[cfg(not(any(target_feature = "sse2", target_feature = "neon", target_feature = "simd128")))]
type Proof = core::convert::Infallible;

impl Portable {
    #[cfg(any(target_feature = "sse2", target_feature = "neon", target_feature = "simd128"))]
    pub fn detect() -> Option<Self> {
        Some(Self(()))
    }

    #[cfg(not(any(target_feature = "sse2", target_feature = "neon", target_feature = "simd128")))]
    pub fn detect() -> Option<Self> {
        None
    }
}

impl Lanes for Portable {
    type V = [f32x4; 4];
    const REPEATED: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [f32x4::splat(x); 4]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = *x;
        [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]].map(f32x4::new)
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; LANES]) {
        for (out, v) in out.as_chunks_mut::<4>().0.iter_mut().zip(v) {
            *out = v.to_array();
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        [a0 + b0, a1 + b1, a2 + b2, a3 + b3]
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        [a0 - b0, a1 - b1, a2 - b2, a3 - b3]
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        [a0 * b0, a1 * b1, a2 * b2, a3 * b3]
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]) = (a, b, c);
        [fused(a0, b0, c0), fused(a1, b1, c1), fused(a2, b2, c2), fused(a3, b3, c3)]
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        let ([y0, y1, y2, y3], [n0, n1, n2, n3]) = (yes, no);
        let pick = |a: f32x4, b: f32x4, y, n| a.simd_lt(b).bitselect(y, n);
        [pick(a0, b0, y0, n0), pick(a1, b1, y1, n1), pick(a2, b2, y2, n2), pick(a3, b3, y3, n3)]
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        [a0 / b0, a1 / b1, a2 / b2, a3 / b3]
    }

    #[inline(always)]
    fn sqrt(self, v: Self::V) -> Self::V {
        // Not the crate's, which without vector registers rounds differently.
        v.map(|v| f32x4::new(v.to_array().map(libm::sqrtf)))
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
        let square = f32x4::transpose;
        let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = v;
        let rows = [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]];
        // Quarter `k` of every four arguments is a square of 16 numbers.
        let columns = |k: fn(Self::V) -> f32x4| {
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
        v.map(|v| bits((int_bits(v) << 23i32) + i32x4::splat(0x3f80_0000)))
    }

    #[inline(always)]
    fn fold4(self, v: [Self::V; 4]) -> [f32; 4] {
        let halves = v.map(|[a, b, c, d]| (a + c) + (b + d));
        let [a, b, c, d] = f32x4::transpose(halves);
        ((a + c) + (b + d) + f32x4::splat(0.0)).to_array()
    }

    #[inline(always)]
    fn halves(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
        ([a0, a1, b0, b1], [a2, a3, b2, b3])
    }

    #[inline(always)]
    fn widen_f16(self, x: &[f16; LANES]) -> Self::V {
        self.load(&x.map(f16::to_f32))
    }

    #[inline(always)]
    fn widen_bf16(self, x: &[bf16; LANES]) -> Self::V {
        self.load(&x.map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)))
    }

    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> Self::V {
        self.load(&x.map(f32::from))
    }
}

#[inline(always)]
fn fused(a: f32x4, b: f32x4, c: f32x4) -> f32x4 {
    // The crate's rounds twice where the processor has no such instruction.
    if cfg!(any(all(target_arch = "x86_64", target_feature = "fma"), target_arch = "aarch64")) {
        return a.mul_add(b, c);
    }
    let ([a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]) = (a.to_array(), b.to_array(), c.to_array());
    f32x4::new([wide(a0, b0, c0), wide(a1, b1, c1), wide(a2, b2, c2), wide(a3, b3, c3)])
}

fn int_bits(v: f32x4) -> i32x4 {
    i32x4::new(v.to_array().map(|x| x.to_bits().cast_signed()))
}

fn bits(v: i32x4) -> f32x4 {
    f32x4::new(v.to_array().map(|x| f32::from_bits(x.cast_unsigned())))
}
