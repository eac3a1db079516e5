//! 512-bit registers and the kernels over them.

use std::arch::x86_64::*;

use super::kernels;
use super::lanes::{self, Lanes};

#[derive(Clone, Copy)]
pub(in crate::kernels) struct Zmm(pub(in crate::kernels) __m512);

// Of a tile, 8 x 3 sums, 3 operands and a number fill
// 28 of 32 registers.
kernels!("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq", Zmm, tile 8 x 3, heads 4);

// SAFETY of every block below: the contract of `Lanes`, which the caller keeps.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Zmm {
    const N: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Zmm(_mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        unsafe { Zmm(_mm512_set1_ps(v)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Zmm(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        unsafe { Zmm(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        unsafe { Zmm(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn half(p: *const u8) -> f32 {
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.cast::<u16>().read_unaligned())))) }
    }
    #[inline(always)]
    unsafe fn splat_half(p: *const u8) -> Self {
        unsafe { Zmm(_mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned()))) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Zmm(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Zmm(_mm512_max_ps(self.0, other.0)) } // the second operand where one is NaN
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe {
            let low = _mm512_set1_ps(lanes::EXP_LOW);
            let x = _mm512_max_ps(low, self.0);
            let n = _mm512_roundscale_ps::<8>(_mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)));
            let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(lanes::LN2_HIGH), x);
            let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(lanes::LN2_LOW), r);
            let mut p = _mm512_set1_ps(lanes::EXP[0]);
            for c in &lanes::EXP[1..] {
                p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
            }
            let y = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r);
            let y = _mm512_add_ps(y, _mm512_set1_ps(1.0));
            Zmm(_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, low), y, n))
        }
    }
    #[inline(always)]
    unsafe fn any_above(self, other: Self) -> bool {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0) != 0 }
    }
    #[inline(always)]
    unsafe fn only_within(self, first: *const i32, end: *const i32, i: i32) -> Self {
        unsafe {
            let i = _mm512_set1_epi32(i);
            let from = _mm512_cmple_epi32_mask(_mm512_loadu_si512(first.cast()), i);
            let within = _mm512_mask_cmpgt_epi32_mask(from, _mm512_loadu_si512(end.cast()), i);
            Zmm(_mm512_mask_blend_ps(within, _mm512_set1_ps(f32::NEG_INFINITY), self.0))
        }
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn highest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn quad(rows: [Self; 4]) -> Self {
        unsafe {
            let [a, b, c, d] = [rows[0].0, rows[1].0, rows[2].0, rows[3].0];
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            Zmm(_mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd)))
        }
    }
    #[inline(always)]
    unsafe fn fold(quads: *const Self) -> Self {
        unsafe {
            let [a, b, c, d] = [(*quads).0, (*quads.add(1)).0, (*quads.add(2)).0, (*quads.add(3)).0];
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            Zmm(_mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd)))
        }
    }
}
