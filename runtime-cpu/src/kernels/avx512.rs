//! 512-bit kernels: avx512 f, bw, vl, dq and vnni. Same functions in the same order as `scalar.rs`; what gains nothing
//! from wider vectors is the code of `avx2.rs`.

use std::arch::x86_64::*;
use std::cell::RefCell;

use half::f16;

use super::formats_x86::{self as fx, Bf16Elem, Elem, F16Elem, F32Elem, Format, Panel, with_format};
use super::{GROUP, PANEL_ROWS, Q8Mut, Q8Row, Q8Rows, WeightRows, avx2, generic};
use crate::quant::{GgmlType, dequantize_row};

/// Tokens that share the loads of a panel.
const TOKENS: usize = 12;

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

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn gemm_q8(w: WeightRows<'_>, x: &Q8Rows, tokens: std::ops::Range<usize>, out: &mut [f32]) {
    // SAFETY: the features of this function; shapes are checked by `Dispatch`.
    unsafe {
        with_format!(w.ty, F => if x.low.is_empty() { gemm::<F, false>(w, x, tokens, out) } else { gemm::<F, true>(w, x, tokens, out) })
    }
}

// Buffers are taken out, used and put back: the body of a closure given to `with_borrow_mut` would be compiled without
// the CPU features of the function around it, and every intrinsic in it would become a call.
thread_local! {
    static PANEL: RefCell<Panel> = RefCell::default();
    static FLOATS: RefCell<(Vec<f32>, Vec<f32>)> = RefCell::default();
}

#[inline(always)]
unsafe fn gemm<F: Format, const TWO: bool>(
    w: WeightRows<'_>,
    x: &Q8Rows,
    tokens: std::ops::Range<usize>,
    out: &mut [f32],
) {
    let n_rows = w.n_rows();
    let mut panel = PANEL.take();
    panel.resize::<F>(w.n_cols);
    for from in (0..n_rows).step_by(PANEL_ROWS) {
        let to = (from + PANEL_ROWS).min(n_rows);
        // SAFETY: the caller has the features; tokens and rows are in bounds (checked by `Dispatch`).
        unsafe {
            fx::pack::<F, true>(w.slice(from, to), &mut panel);
            let mut t = tokens.start;
            while t < tokens.end {
                let n = (tokens.end - t).min(TOKENS);
                let out = &mut out[(t - tokens.start) * n_rows + from..];
                if n == TOKENS {
                    tile::<F, TOKENS, TWO>(&panel, x, t, out, n_rows, to - from);
                    t += TOKENS;
                } else if n >= 4 {
                    tile::<F, 4, TWO>(&panel, x, t, out, n_rows, to - from);
                    t += 4;
                } else {
                    tile::<F, 1, TWO>(&panel, x, t, out, n_rows, to - from);
                    t += 1;
                }
            }
        }
    }
    PANEL.set(panel);
}

/// `out[t][r]` for 16 rows r and `N` tokens from `first`.
#[inline(always)]
unsafe fn tile<F: Format, const N: usize, const TWO: bool>(
    panel: &Panel,
    x: &Q8Rows,
    first: usize,
    out: &mut [f32],
    out_stride: usize,
    n_rows: usize,
) {
    let n_groups = x.n_cols / GROUP;
    let halves = 1 + usize::from(F::HALVES);
    // SAFETY: panel and activations cover all groups; features by the caller.
    unsafe {
        let xq: [*const i8; N] = std::array::from_fn(|t| x.q.as_ptr().add((first + t) * x.n_cols));
        let low = if TWO { &x.low } else { &x.q };
        let xl: [*const i8; N] = std::array::from_fn(|t| low.as_ptr().add((first + t) * x.n_cols));
        let xd: [*const f32; N] = std::array::from_fn(|t| x.d.as_ptr().add((first + t) * n_groups));
        let xs: [*const f32; N] = std::array::from_fn(|t| x.s.as_ptr().add((first + t) * n_groups * 2));
        let mut acc = [_mm512_setzero_ps(); N];
        for group in 0..n_groups {
            for h in 0..halves {
                let steps = 8 / halves;
                let q = panel.q.as_ptr().add(group * GROUP * PANEL_ROWS + 64 * steps * h);
                let at = group * GROUP + 4 * steps * h;
                let mut part = dots([_mm512_setzero_si512(); N], q, xq.map(|p| p.add(at)), steps);
                if TWO {
                    // A loop and not a closure: closures do not have the caller's instruction set.
                    for part in &mut part {
                        *part = _mm512_slli_epi32::<7>(*part);
                    }
                    part = dots(part, q, xl.map(|p| p.add(at)), steps);
                }
                let at = (group * halves + h) * PANEL_ROWS;
                let scale = _mm512_loadu_ps(panel.scale.as_ptr().add(at));
                let min = _mm512_loadu_ps(panel.min.as_ptr().add(at));
                for t in 0..N {
                    let d = _mm512_mul_ps(scale, _mm512_set1_ps(*xd[t].add(group)));
                    let s = if F::HALVES {
                        *xs[t].add(2 * group + h)
                    } else {
                        *xs[t].add(2 * group) + *xs[t].add(2 * group + 1)
                    };
                    acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[t]), d, acc[t]);
                    acc[t] = _mm512_fmadd_ps(min, _mm512_set1_ps(s), acc[t]);
                }
            }
        }
        for (t, v) in acc.into_iter().enumerate() {
            let out = &mut out[t * out_stride..t * out_stride + n_rows];
            _mm512_mask_storeu_ps(out.as_mut_ptr(), lanes(n_rows), v);
        }
    }
}

/// Adds integer dot products of `steps` groups of four columns: `[N]` tokens x 16 rows.
#[inline(always)]
unsafe fn dots<const N: usize>(mut sum: [__m512i; N], q: *const u8, x: [*const i8; N], steps: usize) -> [__m512i; N] {
    // SAFETY: the caller's contract.
    unsafe {
        for c in 0..steps {
            let w = _mm512_loadu_si512(q.add(64 * c).cast());
            for t in 0..N {
                let v = x[t].add(4 * c).cast::<i32>().read_unaligned();
                sum[t] = _mm512_dpbusd_epi32(sum[t], w, _mm512_set1_epi32(v));
            }
        }
        sum
    }
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
    // SAFETY: the panel holds k rows of 16; lanes beyond n are not written.
    unsafe { panel_masked(panel, PANEL_ROWS, x, k, k, x.len() / k, &mut out[from..], out_stride, false, lanes(n)) }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn panel_masked(
    panel: &[f32],
    panel_stride: usize,
    x: &[f32],
    x_stride: usize,
    k: usize,
    n: usize,
    out: &mut [f32],
    out_stride: usize,
    add: bool,
    mask: __mmask16,
) {
    let mut t = 0;
    while t < n {
        // SAFETY: rows t..t+N of x and out are in bounds (the caller).
        unsafe {
            let (x, out) = (x.as_ptr().add(t * x_stride), out.as_mut_ptr().add(t * out_stride));
            if n - t >= 12 {
                panel_tile::<12>(panel.as_ptr(), panel_stride, x, x_stride, k, out, out_stride, add, mask);
                t += 12;
            } else if n - t >= 4 {
                panel_tile::<4>(panel.as_ptr(), panel_stride, x, x_stride, k, out, out_stride, add, mask);
                t += 4;
            } else {
                panel_tile::<1>(panel.as_ptr(), panel_stride, x, x_stride, k, out, out_stride, add, mask);
                t += 1;
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn panel_tile<const N: usize>(
    panel: *const f32,
    panel_stride: usize,
    x: *const f32,
    x_stride: usize,
    k: usize,
    out: *mut f32,
    out_stride: usize,
    add: bool,
    mask: __mmask16,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); N];
        for i in 0..k {
            let w = _mm512_loadu_ps(panel.add(i * panel_stride));
            for (t, acc) in acc.iter_mut().enumerate() {
                *acc = _mm512_fmadd_ps(_mm512_set1_ps(*x.add(t * x_stride + i)), w, *acc);
            }
        }
        for (t, mut v) in acc.into_iter().enumerate() {
            let to = out.add(t * out_stride);
            if add {
                v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, to));
            }
            _mm512_mask_storeu_ps(to, mask, v);
        }
    }
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

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    generic::rms_norm::<true>(x, weight, eps, out);
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn silu_mul(gate: &mut [f32], up: &[f32]) {
    generic::silu_mul::<true>(gate, up);
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn sigmoid_gate(x: &mut [f32], a: f32) {
    generic::sigmoid_gate::<true>(x, a);
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn add(y: &mut [f32], x: &[f32]) {
    generic::add(y, x);
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn to_f16(x: &[f32], out: &mut [f16]) {
    // SAFETY: avx2 is part of this level.
    unsafe { avx2::to_f16(x, out) }
}
