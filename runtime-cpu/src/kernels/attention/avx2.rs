//! 256-bit registers and the kernels over them.

use std::arch::x86_64::*;

use super::kernels;
use super::lanes::{self, Lanes};

#[derive(Clone, Copy)]
struct Ymm(__m256);

// Of a tile, 6 x 2 sums, 2 operands and a number fill
// 15 of 16 registers.
kernels!("avx2,fma,f16c", Ymm, tile 6 x 2, heads 3);

// SAFETY of every block below: the contract of `Lanes`, which the caller keeps.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Ymm {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Ymm(_mm256_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        unsafe { Ymm(_mm256_set1_ps(v)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Ymm(_mm256_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        unsafe { Ymm(_mm256_cvtph_ps(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        unsafe { Ymm(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn half(p: *const u8) -> f32 {
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.cast::<u16>().read_unaligned())))) }
    }
    #[inline(always)]
    unsafe fn splat_half(p: *const u8) -> Self {
        unsafe { Ymm(_mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned()))) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Ymm(_mm256_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Ymm(_mm256_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Ymm(_mm256_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Ymm(_mm256_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Ymm(_mm256_max_ps(self.0, other.0)) } // the second operand where one is NaN
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe {
            let low = _mm256_set1_ps(lanes::EXP_LOW);
            let x = _mm256_max_ps(low, self.0);
            // Adding 1.5 * 2^23 rounds to an integer, which the low bits then hold.
            let magic = _mm256_set1_ps(12_582_912.0);
            let shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(std::f32::consts::LOG2_E), magic);
            let n = _mm256_sub_ps(shifted, magic);
            let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(lanes::LN2_HIGH), x);
            let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(lanes::LN2_LOW), r);
            let mut p = _mm256_set1_ps(lanes::EXP[0]);
            for c in &lanes::EXP[1..] {
                p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
            }
            let y = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r);
            let y = _mm256_add_ps(y, _mm256_set1_ps(1.0));
            let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            let pow2 = _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(127 << 23)));
            let visible = _mm256_cmp_ps::<_CMP_NLT_UQ>(self.0, low);
            Ymm(_mm256_and_ps(_mm256_mul_ps(y, pow2), visible))
        }
    }
    #[inline(always)]
    unsafe fn any_above(self, other: Self) -> bool {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0)) != 0 }
    }
    #[inline(always)]
    unsafe fn only_within(self, first: *const i32, end: *const i32, i: i32) -> Self {
        unsafe {
            let i = _mm256_set1_epi32(i);
            let before = _mm256_cmpgt_epi32(_mm256_loadu_si256(first.cast()), i);
            let within = _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_loadu_si256(end.cast()), i));
            Ymm(_mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), self.0, _mm256_castsi256_ps(within)))
        }
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe {
            let q = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    unsafe fn highest(self) -> f32 {
        unsafe {
            let q = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let d = _mm_max_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    unsafe fn quad(rows: [Self; 4]) -> Self {
        unsafe {
            let [a, b, c, d] = [rows[0].0, rows[1].0, rows[2].0, rows[3].0];
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            Ymm(_mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd)))
        }
    }
    #[inline(always)]
    unsafe fn fold(quads: *const Self) -> Self {
        unsafe {
            let [a, b] = [(*quads).0, (*quads.add(1)).0];
            let (low, high) = (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            Ymm(_mm256_add_ps(low, high))
        }
    }
}
