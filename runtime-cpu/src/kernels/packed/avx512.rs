//! 16 rows to a 512-bit register; AVX512-VNNI multiplies four columns of all of them at once.

use std::arch::x86_64::*;

use super::{Isa, Packing, gemm};
use crate::kernels::scalar::IQ4_VALUES;

pub(in crate::kernels) struct Avx512;

gemm!(gemm_avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni", Avx512, 8);

impl Isa for Avx512 {
    const LANES: usize = 16;
    const SIGNED: bool = false;
    type Int = __m512i;
    type Float = __m512;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn dots<P: Packing, const N: usize, const TWO: bool, const H: usize, const STEP: usize>(
        q: *const u8,
        x: *const i8,
        low: *const i8,
    ) -> [__m512i; N] {
        // SAFETY: the contract of `Isa`.
        unsafe {
            let mut a = [_mm512_setzero_si512(); N];
            let mut b = [_mm512_setzero_si512(); N];
            for v in 0..4 {
                for (i, w) in quads::<P>(q, v).into_iter().enumerate() {
                    if P::LAYOUT.halves && i != H {
                        continue;
                    }
                    let at = STEP * (v + 4 * i);
                    for t in 0..N {
                        let high = _mm512_set1_epi32(x.add(at + 4 * t).cast::<i32>().read_unaligned());
                        a[t] = _mm512_dpbusd_epi32(a[t], w, high);
                        if TWO {
                            let low = _mm512_set1_epi32(low.add(at + 4 * t).cast::<i32>().read_unaligned());
                            b[t] = _mm512_dpbusd_epi32(b[t], w, low);
                        }
                    }
                }
            }
            if TWO {
                for t in 0..N {
                    a[t] = _mm512_add_epi32(_mm512_slli_epi32::<7>(a[t]), b[t]);
                }
            }
            a
        }
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> __m512 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> __m512 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m512 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn add_ints(acc: __m512, part: __m512i, a: __m512) -> __m512 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(part), a, acc) }
    }

    #[inline(always)]
    unsafe fn add_product(acc: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_fmadd_ps(a, b, acc) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(v: __m512, out: *mut f32, n: usize) {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm512_mask_storeu_ps(out, ((1_u32 << n) - 1) as __mmask16, v) }
    }
}

/// Columns `4 v..4 v + 4` of a group and those 16 columns on, for 16 rows, unsigned.
#[inline(always)]
pub(super) unsafe fn quads<P: Packing>(q: *const u8, v: usize) -> [__m512i; 2] {
    let l = P::LAYOUT;
    // SAFETY: the contract of `Isa`.
    unsafe {
        let load = |line: usize| q.add(64 * line).cast::<__m512i>();
        if l.bits == 8 {
            return [_mm512_loadu_si512(load(v)), _mm512_loadu_si512(load(v + 4))];
        }
        let both = _mm512_loadu_si512(load(v));
        let mask = _mm512_set1_epi8(15);
        let low = _mm512_and_si512(both, mask);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
        if l.table {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(IQ4_VALUES.as_ptr().cast()));
            let bias = _mm512_set1_epi8(-128);
            return [
                _mm512_xor_si512(_mm512_shuffle_epi8(table, low), bias),
                _mm512_xor_si512(_mm512_shuffle_epi8(table, high), bias),
            ];
        }
        // The other bits are shifted to place; what comes along from neighbours is masked off.
        if l.bits == 5 {
            let bits = _mm512_loadu_si512(load(4));
            let mask = _mm512_set1_epi8(0x10);
            let fifth = _mm512_sll_epi16(bits, _mm_cvtsi32_si128(4 - v as i32));
            let fifths = _mm512_srl_epi16(bits, _mm_cvtsi32_si128(v as i32));
            return [
                _mm512_ternarylogic_epi32::<0xf8>(low, fifth, mask),
                _mm512_ternarylogic_epi32::<0xf8>(high, fifths, mask),
            ];
        }
        if l.bits == 6 {
            let mask = _mm512_set1_epi8(0x30);
            let shift = _mm_cvtsi32_si128(2 * v as i32);
            let bits = _mm512_slli_epi16::<4>(_mm512_srl_epi16(_mm512_loadu_si512(load(4)), shift));
            let more = _mm512_slli_epi16::<4>(_mm512_srl_epi16(_mm512_loadu_si512(load(5)), shift));
            return [
                _mm512_ternarylogic_epi32::<0xf8>(low, bits, mask),
                _mm512_ternarylogic_epi32::<0xf8>(high, more, mask),
            ];
        }
        [low, high]
    }
}
