//! 128-bit registers of NEON and the kernels over them. Halves are widened through `asm!`: the intrinsics are not stable.

use std::arch::aarch64::*;
use std::arch::asm;

use super::kernels;
use super::lanes::{self, Lanes};
use crate::kernels::neon::widen;

#[derive(Clone, Copy)]
struct Quad(float32x4_t);

// Of a tile, 6 x 4 sums, 4 operands and a number fill
// 29 of 32 registers.
kernels!("neon", Quad, tile 6 x 4, heads 4);

// SAFETY of every block below: the contract of `Lanes`, which the caller keeps.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Quad {
    const N: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Quad(vdupq_n_f32(0.0)) }
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        unsafe { Quad(vdupq_n_f32(v)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Quad(vld1q_f32(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { vst1q_f32(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        unsafe { Quad(widen(vld1_u16(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        unsafe {
            let four = vreinterpret_s8_s32(vdup_n_s32(p.cast::<i32>().read_unaligned()));
            Quad(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four)))))
        }
    }
    #[inline(always)]
    unsafe fn half(p: *const u8) -> f32 {
        unsafe { vgetq_lane_f32::<0>(Self::splat_half(p).0) }
    }
    #[inline(always)]
    unsafe fn splat_half(p: *const u8) -> Self {
        unsafe { Quad(widen(vdup_n_u16(p.cast::<u16>().read_unaligned()))) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Quad(vaddq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Quad(vsubq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Quad(vmulq_f32(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Quad(vfmaq_f32(c.0, self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Quad(vmaxnmq_f32(self.0, other.0)) } // the number where one is NaN
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe {
            let low = vdupq_n_f32(lanes::EXP_LOW);
            let x = vmaxq_f32(low, self.0);
            // Adding 1.5 * 2^23 rounds to an integer, which the low bits then hold.
            let magic = vdupq_n_f32(12_582_912.0);
            let shifted = vfmaq_n_f32(magic, x, std::f32::consts::LOG2_E);
            let n = vsubq_f32(shifted, magic);
            let r = vfmsq_n_f32(x, n, lanes::LN2_HIGH);
            let r = vfmsq_n_f32(r, n, lanes::LN2_LOW);
            let mut p = vdupq_n_f32(lanes::EXP[0]);
            for c in &lanes::EXP[1..] {
                p = vfmaq_f32(vdupq_n_f32(*c), p, r);
            }
            let y = vfmaq_f32(r, vmulq_f32(p, r), r);
            let y = vaddq_f32(y, vdupq_n_f32(1.0));
            let n = vshlq_n_s32::<23>(vreinterpretq_s32_f32(shifted));
            let pow2 = vreinterpretq_f32_s32(vaddq_s32(n, vdupq_n_s32(127 << 23)));
            let gone = vcltq_f32(self.0, low);
            Quad(vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(vmulq_f32(y, pow2)), gone)))
        }
    }
    #[inline(always)]
    unsafe fn any_above(self, other: Self) -> bool {
        unsafe { vmaxvq_u32(vcgtq_f32(self.0, other.0)) != 0 }
    }
    #[inline(always)]
    unsafe fn only_within(self, first: *const i32, end: *const i32, i: i32) -> Self {
        unsafe {
            let i = vdupq_n_s32(i);
            let within = vandq_u32(vcleq_s32(vld1q_s32(first), i), vcgtq_s32(vld1q_s32(end), i));
            Quad(vbslq_f32(within, self.0, vdupq_n_f32(f32::NEG_INFINITY)))
        }
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe { vaddvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn highest(self) -> f32 {
        unsafe { vmaxnmvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn quad(rows: [Self; 4]) -> Self {
        unsafe { Quad(vpaddq_f32(vpaddq_f32(rows[0].0, rows[1].0), vpaddq_f32(rows[2].0, rows[3].0))) }
    }
    #[inline(always)]
    unsafe fn fold(quads: *const Self) -> Self {
        unsafe { *quads }
    }
}
