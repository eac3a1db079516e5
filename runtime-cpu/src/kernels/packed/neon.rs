//! Four rows to a 128-bit register. Plain NEON widens byte products; `dotprod` sums four of them in one instruction;
//! `i8mm` multiplies two rows of eight columns with two tokens at once. The latter two through `asm!`: their intrinsics
//! are not stable.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Isa, Packing, gemm};
use crate::kernels::neon::widen;
use crate::kernels::scalar::IQ4_VALUES;

/// How bytes are multiplied.
pub(in crate::kernels) struct Neon<const WITH: u8>;

const PLAIN: u8 = 0;
const DOT: u8 = 1;
const MATRIX: u8 = 2;

gemm!(gemm_neon, "neon", Neon<PLAIN>, 4);
gemm!(gemm_dotprod, "neon,dotprod", Neon<DOT>, 4);
gemm!(gemm_i8mm, "neon,dotprod,i8mm", Neon<MATRIX>, 4);

impl<const WITH: u8> Isa for Neon<WITH> {
    const LANES: usize = 4;
    const SIGNED: bool = true;
    type Int = int32x4_t;
    type Float = float32x4_t;

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: the contract of `Isa`.
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn dots<P: Packing, const N: usize, const TWO: bool, const H: usize, const STEP: usize>(
        q: *const u8,
        x: *const i8,
        low: *const i8,
    ) -> [int32x4_t; N] {
        // SAFETY: the contract of `Isa`.
        unsafe {
            if WITH == MATRIX && N % 2 == 0 {
                return matrix_dots::<P, N, TWO, H, STEP>(q, x, low);
            }
            let mut a = [vdupq_n_s32(0); N];
            let mut b = [vdupq_n_s32(0); N];
            for v in 0..4 {
                for (i, w) in quads::<P>(q, v).into_iter().enumerate() {
                    if P::LAYOUT.halves && i != H {
                        continue;
                    }
                    let at = STEP * (v + 4 * i);
                    for t in 0..N {
                        a[t] = dot::<WITH>(a[t], w, four(x.add(at + 4 * t)));
                        if TWO {
                            b[t] = dot::<WITH>(b[t], w, four(low.add(at + 4 * t)));
                        }
                    }
                }
            }
            if TWO {
                for t in 0..N {
                    a[t] = vaddq_s32(vshlq_n_s32::<7>(a[t]), b[t]);
                }
            }
            a
        }
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> float32x4_t {
        // SAFETY: the contract of `Isa`.
        unsafe { widen(vld1_u16(p.cast())) }
    }

    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> float32x4_t {
        // SAFETY: the contract of `Isa`.
        unsafe {
            let four = vreinterpret_s8_s32(vdup_n_s32(p.cast::<i32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the contract of `Isa`.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn splat(v: f32) -> float32x4_t {
        // SAFETY: the contract of `Isa`.
        unsafe { vdupq_n_f32(v) }
    }

    #[inline(always)]
    unsafe fn add_ints(acc: float32x4_t, part: int32x4_t, a: float32x4_t) -> float32x4_t {
        // SAFETY: the contract of `Isa`.
        unsafe { vfmaq_f32(acc, vcvtq_f32_s32(part), a) }
    }

    #[inline(always)]
    unsafe fn add_product(acc: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the contract of `Isa`.
        unsafe { vfmaq_f32(acc, a, b) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn store(v: float32x4_t, out: *mut f32, n: usize) {
        // SAFETY: the contract of `Isa`.
        unsafe {
            if n == 4 {
                return vst1q_f32(out, v);
            }
            let mut lanes = [0.0_f32; 4];
            vst1q_f32(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out, n);
        }
    }
}

/// Two tokens and eight columns at a time: sums `[row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1]` for two
/// pairs of rows, which at the end become four rows for each token.
#[inline(always)]
unsafe fn matrix_dots<P: Packing, const N: usize, const TWO: bool, const H: usize, const STEP: usize>(
    q: *const u8,
    x: *const i8,
    low: *const i8,
) -> [int32x4_t; N] {
    // SAFETY: the contract of `Isa`.
    unsafe {
        let mut a = [vdupq_n_s32(0); N];
        let mut b = [vdupq_n_s32(0); N];
        for v in [0, 2] {
            let (first, second) = (quads::<P>(q, v), quads::<P>(q, v + 1));
            for i in 0..2 {
                if P::LAYOUT.halves && i != H {
                    continue;
                }
                let rows = zip(first[i], second[i]);
                let at = STEP * (v + 4 * i);
                for t in (0..N).step_by(2) {
                    let tokens = pair::<STEP>(x.add(at + 4 * t));
                    a[t] = smmla(a[t], rows[0], tokens);
                    a[t + 1] = smmla(a[t + 1], rows[1], tokens);
                    if TWO {
                        let tokens = pair::<STEP>(low.add(at + 4 * t));
                        b[t] = smmla(b[t], rows[0], tokens);
                        b[t + 1] = smmla(b[t + 1], rows[1], tokens);
                    }
                }
            }
        }
        for t in (0..N).step_by(2) {
            for u in [t, t + 1] {
                if TWO {
                    a[u] = vaddq_s32(vshlq_n_s32::<7>(a[u]), b[u]);
                }
            }
            (a[t], a[t + 1]) = (vuzp1q_s32(a[t], a[t + 1]), vuzp2q_s32(a[t], a[t + 1]));
        }
        a
    }
}

/// Columns of two quads side by side: rows 0 and 1, rows 2 and 3.
#[inline(always)]
unsafe fn zip(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: the contract of `Isa`.
    unsafe {
        let (a, b) = (vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b));
        [vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))]
    }
}

/// Eight columns of a token, then of the next one.
#[inline(always)]
unsafe fn pair<const STEP: usize>(x: *const i8) -> int8x16_t {
    // SAFETY: the contract of `Isa`: two tokens lie side by side here and `STEP` bytes on.
    unsafe {
        let (a, b) = (vld1_s32(x.cast()), vld1_s32(x.add(STEP).cast()));
        vreinterpretq_s8_s32(vcombine_s32(vzip1_s32(a, b), vzip2_s32(a, b)))
    }
}

/// Four columns of a token in every lane.
#[inline(always)]
unsafe fn four(x: *const i8) -> int8x16_t {
    // SAFETY: the contract of `Isa`.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned())) }
}

/// Adds the sums of four products to each lane.
#[inline(always)]
unsafe fn dot<const WITH: u8>(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the contract of `Isa`.
    unsafe {
        if WITH == PLAIN {
            let first = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
            let second = vpaddlq_s16(vmull_high_s8(w, x));
            return vaddq_s32(acc, vpaddq_s32(first, second));
        }
        let mut sum = acc;
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) w, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
        sum
    }
}

/// Adds products of two rows and two tokens of eight columns.
#[inline(always)]
unsafe fn smmla(acc: int32x4_t, rows: int8x16_t, tokens: int8x16_t) -> int32x4_t {
    let mut sum = acc;
    // SAFETY: the contract of `Isa`.
    unsafe {
        asm!(
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sum, in(vreg) rows, in(vreg) tokens,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Columns `4 v..4 v + 4` of a group and those 16 columns on, for four rows. Whole bytes are signed, others positive.
#[inline(always)]
unsafe fn quads<P: Packing>(q: *const u8, v: usize) -> [int8x16_t; 2] {
    let l = P::LAYOUT;
    // SAFETY: the contract of `Isa`.
    unsafe {
        let load = |line: usize| q.add(64 * line);
        let signed = |v: uint8x16_t| vreinterpretq_s8_u8(v);
        if l.bits == 8 {
            let bias = vdupq_n_u8(0x80);
            return [signed(veorq_u8(vld1q_u8(load(v)), bias)), signed(veorq_u8(vld1q_u8(load(v + 4)), bias))];
        }
        let both = vld1q_u8(load(v));
        let (low, high) = (vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both));
        if l.table {
            let table = vld1q_s8(IQ4_VALUES.as_ptr());
            return [vqtbl1q_s8(table, low), vqtbl1q_s8(table, high)];
        }
        // The other bits are shifted to place; what comes along from neighbours is masked off.
        if l.bits == 5 {
            let bits = vld1q_u8(load(4));
            let mask = vdupq_n_u8(0x10);
            let fifth = vandq_u8(vshlq_u8(bits, vdupq_n_s8(4 - v as i8)), mask);
            let fifths = vandq_u8(vshlq_u8(bits, vdupq_n_s8(-(v as i8))), mask);
            return [signed(vorrq_u8(low, fifth)), signed(vorrq_u8(high, fifths))];
        }
        if l.bits == 6 {
            let mask = vdupq_n_u8(0x30);
            let shift = vdupq_n_s8(4 - 2 * v as i8);
            let bits = vandq_u8(vshlq_u8(vld1q_u8(load(4)), shift), mask);
            let more = vandq_u8(vshlq_u8(vld1q_u8(load(5)), shift), mask);
            return [signed(vorrq_u8(low, bits)), signed(vorrq_u8(high, more))];
        }
        [signed(low), signed(high)]
    }
}
