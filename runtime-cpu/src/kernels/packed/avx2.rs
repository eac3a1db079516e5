//! Eight rows to a 256-bit register. AVX2 multiplies bytes into sums of two 16-bit products; AVX-VNNI into 32 bits.

use std::arch::x86_64::*;

use super::{Isa, Packing, gemm};
use crate::kernels::scalar::IQ4_VALUES;

/// Byte dot products by `vpmaddubsw`, or by `vpdpbusd` if `VNNI`.
pub(in crate::kernels) struct Avx2<const VNNI: bool>;

gemm!(gemm_avx2, "avx2,fma,f16c", Avx2<false>, 4);
gemm!(gemm_vnni, "avx2,fma,f16c,avxvnni", Avx2<true>, 4);

impl<const VNNI: bool> Isa for Avx2<VNNI> {
    const LANES: usize = 8;
    const SIGNED: bool = !VNNI;
    type Int = __m256i;
    type Float = __m256;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn dots<P: Packing, const N: usize, const TWO: bool, const H: usize, const STEP: usize>(
        q: *const u8,
        x: *const i8,
        low: *const i8,
    ) -> [__m256i; N] {
        // SAFETY: the contract of `Isa`.
        unsafe {
            let mut a = [_mm256_setzero_si256(); N];
            let mut b = [_mm256_setzero_si256(); N];
            // 16-bit sums, as many as fit, in front of the 32-bit ones.
            let mut sums = [_mm256_setzero_si256(); N];
            let ones = _mm256_set1_epi16(1);
            for v in 0..4 {
                for (i, w) in quads::<P, VNNI>(q, v).into_iter().enumerate() {
                    if P::LAYOUT.halves && i != H {
                        continue;
                    }
                    let at = STEP * (v + 4 * i);
                    for t in 0..N {
                        let high = _mm256_set1_epi32(x.add(at + 4 * t).cast::<i32>().read_unaligned());
                        let low = _mm256_set1_epi32(low.add(at + 4 * t).cast::<i32>().read_unaligned());
                        if VNNI {
                            a[t] = _mm256_dpbusd_avx_epi32(a[t], w, high);
                            if TWO {
                                b[t] = _mm256_dpbusd_avx_epi32(b[t], w, low);
                            }
                        } else {
                            a[t] = _mm256_add_epi16(a[t], products::<P>(w, high));
                            if TWO {
                                b[t] = _mm256_add_epi16(b[t], products::<P>(w, low));
                            }
                        }
                    }
                    // Products so far since the last widening: two per line, or one of a half.
                    let so_far = if P::LAYOUT.halves { v + 1 } else { 2 * v + i + 1 };
                    let last = if P::LAYOUT.halves { 4 } else { 8 };
                    if VNNI || !(so_far.is_multiple_of(chain::<P>()) || so_far == last) {
                        continue;
                    }
                    for t in 0..N {
                        let mut sum = _mm256_madd_epi16(a[t], ones);
                        a[t] = _mm256_setzero_si256();
                        if TWO {
                            sum = _mm256_slli_epi32::<7>(sum);
                            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(b[t], ones));
                            b[t] = _mm256_setzero_si256();
                        }
                        sums[t] = _mm256_add_epi32(sums[t], sum);
                    }
                }
            }
            if VNNI {
                for t in 0..N {
                    sums[t] = if TWO { _mm256_add_epi32(_mm256_slli_epi32::<7>(a[t]), b[t]) } else { a[t] };
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> __m256 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> __m256 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn splat(v: f32) -> __m256 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm256_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn add_ints(acc: __m256, part: __m256i, a: __m256) -> __m256 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(part), a, acc) }
    }

    #[inline(always)]
    unsafe fn add_product(acc: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the contract of `Isa`.
        unsafe { _mm256_fmadd_ps(a, b, acc) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(v: __m256, out: *mut f32, n: usize) {
        // SAFETY: the contract of `Isa`.
        unsafe {
            if n == 8 {
                return _mm256_storeu_ps(out, v);
            }
            let mut lanes = [0.0_f32; 8];
            _mm256_storeu_ps(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out, n);
        }
    }
}

/// Products of bytes that fit in 16 bits before they must be widened: each is at most `2 * max * 127`.
const fn chain<P: Packing>() -> usize {
    match P::LAYOUT {
        l if l.is_bytes() => 1,
        super::Layout { bits: 4, .. } => 8,
        super::Layout { bits: 5, .. } => 4,
        super::Layout { bits: 6, .. } => 2,
        _ => 1,
    }
}

/// Sums of two products, 16 bits. Bytes of weight are signed, and their sign moves to the token.
#[inline(always)]
unsafe fn products<P: Packing>(w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the contract of `Isa`.
    unsafe {
        if P::LAYOUT.is_bytes() {
            return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
        }
        _mm256_maddubs_epi16(w, x)
    }
}

/// Columns `4 v..4 v + 4` of a group and those 16 columns on, for eight rows. Whole bytes are unsigned if `UNSIGNED`,
/// others always.
#[inline(always)]
unsafe fn quads<P: Packing, const UNSIGNED: bool>(q: *const u8, v: usize) -> [__m256i; 2] {
    let l = P::LAYOUT;
    // SAFETY: the contract of `Isa`.
    unsafe {
        let load = |line: usize| q.add(64 * line).cast::<__m256i>();
        if l.bits == 8 {
            let bias = _mm256_set1_epi8(if UNSIGNED { 0 } else { -128 });
            let (low, high) = (_mm256_loadu_si256(load(v)), _mm256_loadu_si256(load(v + 4)));
            return [_mm256_xor_si256(low, bias), _mm256_xor_si256(high, bias)];
        }
        let both = _mm256_loadu_si256(load(v));
        let mask = _mm256_set1_epi8(15);
        let low = _mm256_and_si256(both, mask);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
        if l.table {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(IQ4_VALUES.as_ptr().cast()));
            let bias = _mm256_set1_epi8(if UNSIGNED { -128 } else { 0 });
            return [
                _mm256_xor_si256(_mm256_shuffle_epi8(table, low), bias),
                _mm256_xor_si256(_mm256_shuffle_epi8(table, high), bias),
            ];
        }
        // The other bits are shifted to place; what comes along from neighbours is masked off.
        if l.bits == 5 {
            let bits = _mm256_loadu_si256(load(4));
            let mask = _mm256_set1_epi8(0x10);
            let fifth = _mm256_sll_epi16(bits, _mm_cvtsi32_si128(4 - v as i32));
            let fifths = _mm256_srl_epi16(bits, _mm_cvtsi32_si128(v as i32));
            return [
                _mm256_or_si256(low, _mm256_and_si256(fifth, mask)),
                _mm256_or_si256(high, _mm256_and_si256(fifths, mask)),
            ];
        }
        if l.bits == 6 {
            let mask = _mm256_set1_epi8(0x30);
            let shift = _mm_cvtsi32_si128(2 * v as i32);
            let bits = _mm256_slli_epi16::<4>(_mm256_srl_epi16(_mm256_loadu_si256(load(4)), shift));
            let more = _mm256_slli_epi16::<4>(_mm256_srl_epi16(_mm256_loadu_si256(load(5)), shift));
            return [
                _mm256_or_si256(low, _mm256_and_si256(bits, mask)),
                _mm256_or_si256(high, _mm256_and_si256(more, mask)),
            ];
        }
        [low, high]
    }
}
