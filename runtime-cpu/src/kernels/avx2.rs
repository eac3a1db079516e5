//! 256-bit kernels: avx2, fma, f16c. Same functions in the same order as `scalar.rs`.

use std::arch::x86_64::*;
use std::cell::RefCell;

use half::f16;

use super::formats_x86::{self as fx, Bf16Elem, Elem, F16Elem, F32Elem, with_format};
use super::generic::{self, elementwise};
use super::scalar::TWO_PLANES;
use super::{GROUP, PANEL_ROWS, Q8Mut, Q8Row, WeightRows};
use crate::quant::{GgmlType, dequantize_row};

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quantize_q8(x: &[f32], to: Q8Mut<'_>) {
    let limit = if to.low.is_empty() { 127.0 } else { TWO_PLANES };
    for (i, x) in x.chunks_exact(GROUP).enumerate() {
        // SAFETY: `x` has 32 values, the planes as many at 32 i, `d` one and `s` two (checked by `Dispatch`).
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            let v: [__m256; 4] = std::array::from_fn(|j| _mm256_loadu_ps(x.as_ptr().add(8 * j)));
            let a = v.map(|v| _mm256_andnot_ps(sign, v));
            let m = _mm256_max_ps(_mm256_max_ps(a[0], a[1]), _mm256_max_ps(a[2], a[3]));
            let m = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            let max = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
            to.d[i] = max / limit;
            let inverse = _mm256_set1_ps(if max > 0.0 { limit / max } else { 0.0 });
            let n = v.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)));
            let words = [_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3])];
            if to.low.is_empty() {
                store_bytes(words, to.q[GROUP * i..].as_mut_ptr());
            } else {
                let half = _mm256_set1_epi16(64);
                let high = words.map(|w| _mm256_srai_epi16::<7>(_mm256_add_epi16(w, half)));
                let low = [0, 1].map(|j| _mm256_sub_epi16(words[j], _mm256_slli_epi16::<7>(high[j])));
                store_bytes(high, to.q[GROUP * i..].as_mut_ptr());
                store_bytes(low, to.low[GROUP * i..].as_mut_ptr());
            }
            let ones = _mm256_set1_epi16(1);
            for (j, w) in words.into_iter().enumerate() {
                let sums = _mm256_madd_epi16(w, ones);
                let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
                let sums = _mm_hadd_epi32(sums, sums);
                let sums = _mm_hadd_epi32(sums, sums);
                to.s[2 * i + j] = to.d[i] * _mm_cvtsi128_si32(sums) as f32;
            }
        }
    }
}

/// Packs two vectors of words, themselves packed from doublewords, to 32 bytes in order.
#[inline(always)]
unsafe fn store_bytes(words: [__m256i; 2], to: *mut i8) {
    // SAFETY: the caller has 32 bytes at `to` and the features.
    unsafe {
        // Packing works within 128-bit halves: [0a 1a 2a 3a | 0b 1b 2b 3b] in units of four bytes.
        let packed = _mm256_packs_epi16(words[0], words[1]);
        let bytes = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(to.cast(), bytes);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemv_q8(w: WeightRows<'_>, x: Q8Row<'_>, out: &mut [f32]) {
    // SAFETY: the features of this function; shapes are checked by `Dispatch`.
    unsafe { with_format!(w.ty, F => fx::gemv::<F, false>(w, x, out)) }
}

// Buffers are taken out, used and put back: the body of a closure given to `with_borrow_mut` would be compiled without
// the CPU features of the function around it, and every intrinsic in it would become a call.
thread_local! {
    static FLOATS: RefCell<(Vec<f32>, Vec<f32>)> = RefCell::default();
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gemm_f32(w: WeightRows<'_>, x: &[f32], out: &mut [f32]) {
    // SAFETY: the features of this function; shapes are checked by `Dispatch`.
    unsafe {
        match w.ty {
            GgmlType::F32 => gemm_elem::<F32Elem>(w, x, out),
            GgmlType::F16 => gemm_elem::<F16Elem>(w, x, out),
            GgmlType::BF16 => gemm_elem::<Bf16Elem>(w, x, out),
            _ => {
                let (mut panel, mut values) = FLOATS.take();
                let n_rows = w.n_rows();
                values.resize(w.n_cols * PANEL_ROWS, 0.0);
                panel.resize(w.n_cols * PANEL_ROWS, 0.0);
                for from in (0..n_rows).step_by(PANEL_ROWS) {
                    let n = (n_rows - from).min(PANEL_ROWS);
                    for (row, v) in w.data[from * w.row_bytes..]
                        .chunks_exact(w.row_bytes)
                        .zip(values.chunks_exact_mut(w.n_cols))
                        .take(n)
                    {
                        dequantize_row(w.ty, row, v);
                    }
                    fx::pack_f32::<F32Elem>(values.as_ptr().cast(), 4 * w.n_cols, n, w.n_cols, &mut panel);
                    panel_rows(&panel, w.n_cols, x, out, n_rows, from, n);
                }
                FLOATS.set((panel, values));
            }
        }
    }
}

#[inline(always)]
unsafe fn gemm_elem<E: Elem>(w: WeightRows<'_>, x: &[f32], out: &mut [f32]) {
    let n_rows = w.n_rows();
    if x.len() < 3 * w.n_cols {
        for (x, out) in x.chunks_exact(w.n_cols).zip(out.chunks_exact_mut(n_rows)) {
            // SAFETY: the weights have n_rows rows of n_cols elements.
            unsafe { dot_rows::<E>(x, w.data.as_ptr(), out) };
        }
        return;
    }
    let (mut panel, values) = FLOATS.take();
    panel.resize(w.n_cols * PANEL_ROWS, 0.0);
    for from in (0..n_rows).step_by(PANEL_ROWS) {
        let n = (n_rows - from).min(PANEL_ROWS);
        // SAFETY: rows from..from+n are in bounds.
        unsafe {
            fx::pack_f32::<E>(w.data.as_ptr().add(from * w.row_bytes), w.row_bytes, n, w.n_cols, &mut panel);
            panel_rows(&panel, w.n_cols, x, out, n_rows, from, n);
        }
    }
    FLOATS.set((panel, values));
}

/// One panel against all rows of `x`; `n` of its 16 rows are real.
#[inline(always)]
unsafe fn panel_rows(panel: &[f32], k: usize, x: &[f32], out: &mut [f32], out_stride: usize, from: usize, n: usize) {
    let panel = panel.as_ptr();
    let n_tokens = x.len() / k;
    let mut t = 0;
    while t < n_tokens {
        // SAFETY: the panel holds k rows of 16; rows t..t+N of x and out are in bounds, narrow panels through a buffer.
        unsafe {
            let (x, out) = (x.as_ptr().add(t * k), &mut out[t * out_stride + from..]);
            if n < PANEL_ROWS {
                let mut lanes = [0.0; PANEL_ROWS];
                t += panel_tile::<1>(panel, k, x, lanes.as_mut_ptr(), PANEL_ROWS);
                out[..n].copy_from_slice(&lanes[..n]);
            } else if n_tokens - t >= 6 {
                t += panel_tile::<6>(panel, k, x, out.as_mut_ptr(), out_stride);
            } else {
                t += panel_tile::<1>(panel, k, x, out.as_mut_ptr(), out_stride);
            }
        }
    }
}

/// `N` tokens; returns how many.
#[inline(always)]
unsafe fn panel_tile<const N: usize>(
    panel: *const f32,
    k: usize,
    x: *const f32,
    out: *mut f32,
    out_stride: usize,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); 2]; N];
        for i in 0..k {
            let w = [_mm256_loadu_ps(panel.add(i * PANEL_ROWS)), _mm256_loadu_ps(panel.add(i * PANEL_ROWS + 8))];
            for (t, acc) in acc.iter_mut().enumerate() {
                let v = _mm256_set1_ps(*x.add(t * k + i));
                acc[0] = _mm256_fmadd_ps(v, w[0], acc[0]);
                acc[1] = _mm256_fmadd_ps(v, w[1], acc[1]);
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            for (side, v) in acc.into_iter().enumerate() {
                _mm256_storeu_ps(out.add(t * out_stride + 8 * side), v);
            }
        }
    }
    N
}

/// `out[i] = x . w[i]` for rows of `E`.
#[inline(always)]
unsafe fn dot_rows<E: Elem>(x: &[f32], w: *const u8, out: &mut [f32]) {
    let d = x.len();
    let whole = d / 8 * 8;
    for (i, out) in out.iter_mut().enumerate() {
        // SAFETY: row i has as many elements as x (caller).
        unsafe {
            let row = w.add(i * d * E::BYTES);
            let mut acc = _mm256_setzero_ps();
            for c in (0..whole).step_by(8) {
                acc = _mm256_fmadd_ps(E::load8(row.add(c * E::BYTES)), _mm256_loadu_ps(x.as_ptr().add(c)), acc);
            }
            *out = fx::horizontal_sum(acc);
            for c in whole..d {
                *out += x[c] * E::load1(row.add(c * E::BYTES));
            }
        }
    }
}

elementwise!("avx2,fma,f16c");

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn to_f16(x: &[f32], out: &mut [f16]) {
    let n = x.len().min(out.len());
    let whole = n / 8 * 8;
    for c in (0..whole).step_by(8) {
        // SAFETY: eight values are in bounds on both sides; f16 is two bytes.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr().add(c)));
            _mm_storeu_si128(out.as_mut_ptr().add(c).cast(), half);
        }
    }
    for c in whole..n {
        out[c] = f16::from_f32(x[c]);
    }
}
