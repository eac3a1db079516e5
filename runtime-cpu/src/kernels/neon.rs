//! 128-bit kernels: NEON, which every AArch64 CPU has. Same functions in the same order as `scalar.rs`. Conversions from
//! and to halves go through `asm!`: the intrinsics are not stable.

use std::arch::aarch64::*;
use std::arch::asm;
use std::cell::RefCell;

use half::f16;

use super::generic::{self, elementwise};
use super::scalar::{self, TWO_PLANES};
use super::{GROUP, PANEL_ROWS, Q8Mut, Q8Row, WeightRows};
use crate::quant::{GgmlType, dequantize_row};

#[target_feature(enable = "neon")]
pub(super) unsafe fn quantize_q8(x: &[f32], to: Q8Mut<'_>) {
    let limit = if to.low.is_empty() { 127.0 } else { TWO_PLANES };
    for (i, x) in x.chunks_exact(GROUP).enumerate() {
        // SAFETY: `x` has 32 values, the planes as many at 32 i, `d` one and `s` two (checked by `Dispatch`).
        unsafe {
            let v: [float32x4_t; 8] = std::array::from_fn(|j| vld1q_f32(x.as_ptr().add(4 * j)));
            let mut max = vabsq_f32(v[0]);
            for v in &v[1..] {
                max = vmaxnmq_f32(max, vabsq_f32(*v));
            }
            let max = vmaxnmvq_f32(max);
            to.d[i] = max / limit;
            let inverse = if max > 0.0 { limit / max } else { 0.0 };
            let words: [int16x8_t; 4] = std::array::from_fn(|j| {
                let n = [v[2 * j], v[2 * j + 1]].map(|v| vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v, inverse))));
                vcombine_s16(n[0], n[1])
            });
            for (j, &w) in words.iter().enumerate() {
                let at = GROUP * i + 8 * j;
                if to.low.is_empty() {
                    vst1_s8(to.q[at..at + 8].as_mut_ptr(), vqmovn_s16(w));
                } else {
                    let high = vrshrq_n_s16::<7>(w);
                    vst1_s8(to.q[at..at + 8].as_mut_ptr(), vqmovn_s16(high));
                    vst1_s8(to.low[at..at + 8].as_mut_ptr(), vqmovn_s16(vsubq_s16(w, vshlq_n_s16::<7>(high))));
                }
            }
            for j in 0..2 {
                let sum = vaddlvq_s16(words[2 * j]) + vaddlvq_s16(words[2 * j + 1]);
                to.s[2 * i + j] = to.d[i] * sum as f32;
            }
        }
    }
}

/// Rows that were not repacked, one at a time, are left to the compiler.
#[target_feature(enable = "neon")]
pub(super) unsafe fn gemv_q8(w: WeightRows<'_>, x: Q8Row<'_>, out: &mut [f32]) {
    scalar::gemv_q8(w, x, out);
}

// Taken out, used and put back, as in `avx2.rs`.
thread_local! {
    static FLOATS: RefCell<(Vec<f32>, Vec<f32>)> = RefCell::default();
}

#[target_feature(enable = "neon")]
pub(super) unsafe fn gemm_f32(w: WeightRows<'_>, x: &[f32], out: &mut [f32]) {
    let (k, n_rows) = (w.n_cols, w.n_rows());
    let (mut panel, mut values) = FLOATS.take();
    values.resize(k, 0.0);
    panel.resize(k * PANEL_ROWS, 0.0);
    // A panel pays for the work of transposing it from the third token on.
    let few = x.len() < 3 * k;
    for (r, row) in w.data.chunks_exact(w.row_bytes).enumerate() {
        // SAFETY: a row has k values, so have `values` and every token of `x`; outputs are in bounds.
        unsafe {
            floats(w.ty, row, &mut values);
            if few {
                for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(n_rows)) {
                    out[r] = dot(&values, x);
                }
                continue;
            }
            let lane = r % PANEL_ROWS;
            panel.iter_mut().skip(lane).step_by(PANEL_ROWS).zip(&values).for_each(|(p, v)| *p = *v);
            if lane + 1 == PANEL_ROWS || r + 1 == n_rows {
                panel_rows(&panel, k, x, out, n_rows, r - lane, lane + 1);
            }
        }
    }
    FLOATS.set((panel, values));
}

/// A row as floats.
#[inline(always)]
unsafe fn floats(ty: GgmlType, row: &[u8], values: &mut [f32]) {
    let n = values.len();
    if ty != GgmlType::F16 || !n.is_multiple_of(4) {
        return dequantize_row(ty, row, values);
    }
    for c in (0..n).step_by(4) {
        // SAFETY: four halves and floats are in bounds (caller).
        unsafe { vst1q_f32(values.as_mut_ptr().add(c), widen(vld1_u16(row.as_ptr().cast::<u16>().add(c)))) };
    }
}

/// Four halves as floats.
///
/// # Safety
/// None beyond the CPU's.
#[inline(always)]
pub(super) unsafe fn widen(half: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: every AArch64 CPU has the instruction.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) half, options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

#[inline(always)]
unsafe fn dot(a: &[f32], b: &[f32]) -> f32 {
    let whole = a.len() / 16 * 16;
    // SAFETY: both have `whole` values.
    let mut sum = unsafe {
        let mut acc = [vdupq_n_f32(0.0); 4];
        for c in (0..whole).step_by(16) {
            for (j, acc) in acc.iter_mut().enumerate() {
                let at = c + 4 * j;
                *acc = vfmaq_f32(*acc, vld1q_f32(a.as_ptr().add(at)), vld1q_f32(b.as_ptr().add(at)));
            }
        }
        vaddvq_f32(vaddq_f32(vaddq_f32(acc[0], acc[1]), vaddq_f32(acc[2], acc[3])))
    };
    for (a, b) in a[whole..].iter().zip(&b[whole..]) {
        sum += a * b;
    }
    sum
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

/// `N` tokens; returns how many. 6 x 4 sums, 4 registers of weights and a number fill 29 of 32 registers.
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
        let mut acc = [[vdupq_n_f32(0.0); 4]; N];
        for i in 0..k {
            let w: [float32x4_t; 4] = std::array::from_fn(|j| vld1q_f32(panel.add(i * PANEL_ROWS + 4 * j)));
            for (t, acc) in acc.iter_mut().enumerate() {
                let v = *x.add(t * k + i);
                for j in 0..4 {
                    acc[j] = vfmaq_n_f32(acc[j], w[j], v);
                }
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            for (j, v) in acc.into_iter().enumerate() {
                vst1q_f32(out.add(t * out_stride + 4 * j), v);
            }
        }
    }
    N
}

elementwise!("neon");

#[target_feature(enable = "neon")]
pub(super) unsafe fn to_f16(x: &[f32], out: &mut [f16]) {
    let n = x.len().min(out.len());
    let whole = n / 4 * 4;
    for c in (0..whole).step_by(4) {
        // SAFETY: four values are in bounds on both sides; f16 is two bytes. Rounds to nearest, ties to even, unless a
        // program changed the mode, which Rust forbids.
        unsafe {
            let half: uint16x4_t;
            let wide = vld1q_f32(x.as_ptr().add(c));
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) half, in(vreg) wide, options(pure, nomem, nostack, preserves_flags));
            vst1_u16(out.as_mut_ptr().add(c).cast(), half);
        }
    }
    for c in whole..n {
        out[c] = f16::from_f32(x[c]);
    }
}
