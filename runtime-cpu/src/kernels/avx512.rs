//! 512-bit kernels: avx512 f, bw, vl, dq and vnni. Same functions in the same order as `scalar.rs`; what gains nothing
//! from wider vectors is the code of `avx2.rs`.

use std::arch::x86_64::*;
use std::cell::RefCell;

use half::f16;

use super::formats_x86::{self as fx, Bf16Elem, Elem, F16Elem, F32Elem, with_format};
use super::generic::{self, elementwise};
use super::{PANEL_ROWS, Q8Mut, Q8Row, WeightRows, avx2};
use crate::quant::{GgmlType, dequantize_row};

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn quantize_q8(x: &[f32], to: Q8Mut<'_>) {
    // SAFETY: avx2 is part of this level.
    unsafe { avx2::quantize_q8(x, to) }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn gemv_q8(w: WeightRows<'_>, x: Q8Row<'_>, out: &mut [f32]) {
    // SAFETY: the features of this function; shapes are checked by `Dispatch`.
    unsafe { with_format!(w.ty, F => fx::gemv::<F, true>(w, x, out)) }
}

// Buffers are taken out, used and put back: the body of a closure given to `with_borrow_mut` would be compiled without
// the CPU features of the function around it, and every intrinsic in it would become a call.
thread_local! {
    static FLOATS: RefCell<(Vec<f32>, Vec<f32>)> = RefCell::default();
}

/// Mask of the first `n` lanes of 16.
#[inline(always)]
fn lanes(n: usize) -> __mmask16 {
    ((1_u32 << n.min(16)) - 1) as __mmask16
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
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
                    let rows = w.slice(from, from + n).data.chunks_exact(w.row_bytes);
                    for (row, v) in rows.zip(values.chunks_exact_mut(w.n_cols)) {
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
    let (panel, mask, out) = (panel.as_ptr(), lanes(n), &mut out[from..]);
    let n_tokens = x.len() / k;
    let mut t = 0;
    while t < n_tokens {
        // SAFETY: the panel holds k rows of 16; rows t..t+N of x and out are in bounds; lanes beyond n are not written.
        unsafe {
            let (x, out) = (x.as_ptr().add(t * k), out.as_mut_ptr().add(t * out_stride));
            t += match n_tokens - t {
                12.. => panel_tile::<12>(panel, k, x, out, out_stride, mask),
                4.. => panel_tile::<4>(panel, k, x, out, out_stride, mask),
                _ => panel_tile::<1>(panel, k, x, out, out_stride, mask),
            };
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
    mask: __mmask16,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); N];
        for i in 0..k {
            let w = _mm512_loadu_ps(panel.add(i * PANEL_ROWS));
            for (t, acc) in acc.iter_mut().enumerate() {
                *acc = _mm512_fmadd_ps(_mm512_set1_ps(*x.add(t * k + i)), w, *acc);
            }
        }
        for (t, v) in acc.into_iter().enumerate() {
            _mm512_mask_storeu_ps(out.add(t * out_stride), mask, v);
        }
    }
    N
}

/// `out[i] = x . w[i]` for rows of `E`.
#[inline(always)]
unsafe fn dot_rows<E: Elem>(x: &[f32], w: *const u8, out: &mut [f32]) {
    let d = x.len();
    let whole = d / 16 * 16;
    for (i, out) in out.iter_mut().enumerate() {
        // SAFETY: row i has as many elements as x (caller).
        unsafe {
            let row = w.add(i * d * E::BYTES);
            let mut acc = _mm512_setzero_ps();
            for c in (0..whole).step_by(16) {
                acc = _mm512_fmadd_ps(E::load16(row.add(c * E::BYTES)), _mm512_loadu_ps(x.as_ptr().add(c)), acc);
            }
            *out = _mm512_reduce_add_ps(acc);
            for c in whole..d {
                *out += x[c] * E::load1(row.add(c * E::BYTES));
            }
        }
    }
}

elementwise!("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn to_f16(x: &[f32], out: &mut [f16]) {
    // SAFETY: avx2 is part of this level.
    unsafe { avx2::to_f16(x, out) }
}
