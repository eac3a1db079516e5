//! Float panels in 512-bit registers: two panels by twelve tokens, 24 sums.

use std::arch::x86_64::*;

use super::FloatRows;
use super::product::{Isa, Step, product};
use crate::kernels::formats_x86::{Bf16Elem, Elem, F16Elem, F32Elem};
use crate::kernels::{FLOAT_TOKENS, PANEL_ROWS};
use crate::quant::GgmlType;

struct Avx512;

/// # Safety
/// The CPU has the features; `x` is `[n][n_cols]`, `out` `[n][n_rows]`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::kernels) unsafe fn gemm_floats(w: FloatRows<'_>, x: &[f32], out: &mut [f32]) {
    // SAFETY: the caller's contract.
    unsafe {
        match w.ty {
            GgmlType::F32 => product::<Avx512, F32Elem>(w, x, out),
            GgmlType::F16 => product::<Avx512, F16Elem>(w, x, out),
            _ => product::<Avx512, Bf16Elem>(w, x, out),
        }
    }
}

impl Isa for Avx512 {
    const PANELS: usize = 2;

    #[inline(always)]
    unsafe fn tile<E: Elem, const WIDTH: usize>(s: &Step) {
        // SAFETY: the caller's contract.
        unsafe {
            if s.n_rows > PANEL_ROWS {
                sums::<E, 2, WIDTH>(s);
            } else {
                sums::<E, 1, WIDTH>(s);
            }
        }
    }
}

#[inline(always)]
unsafe fn sums<E: Elem, const P: usize, const WIDTH: usize>(s: &Step) {
    const { assert!(WIDTH <= FLOAT_TOKENS) }
    // SAFETY: the caller's contract; lanes beyond the last row are not touched.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); P]; WIDTH];
        for i in 0..s.n_cols {
            let mut w = [_mm512_setzero_ps(); P];
            for (p, w) in w.iter_mut().enumerate() {
                *w = E::load16(s.w.add(p * s.panel_bytes + i * PANEL_ROWS * E::BYTES));
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*s.x.add(i * WIDTH + t));
                for p in 0..P {
                    acc[p] = _mm512_fmadd_ps(x, w[p], acc[p]);
                }
            }
        }
        for (t, acc) in acc.into_iter().enumerate().take(s.n_tokens) {
            for (p, v) in acc.into_iter().enumerate() {
                let out = s.out.add(t * s.out_stride + p * PANEL_ROWS);
                let lanes = ((1_u32 << (s.n_rows - p * PANEL_ROWS).min(16)) - 1) as __mmask16;
                let before = if s.add { _mm512_maskz_loadu_ps(lanes, out) } else { _mm512_setzero_ps() };
                _mm512_mask_storeu_ps(out, lanes, _mm512_add_ps(before, v));
            }
        }
    }
}
