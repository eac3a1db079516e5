//! Float panels in 256-bit registers: one panel by six tokens, twelve sums.

use std::arch::x86_64::*;

use super::FloatRows;
use super::product::{Isa, Step, product};
use crate::kernels::PANEL_ROWS;
use crate::kernels::formats_x86::{Bf16Elem, Elem, F16Elem, F32Elem};
use crate::quant::GgmlType;

struct Avx2;

/// # Safety
/// The CPU has the features; `x` is `[n][n_cols]`, `out` `[n][n_rows]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) unsafe fn gemm_floats(w: FloatRows<'_>, x: &[f32], out: &mut [f32]) {
    // SAFETY: the caller's contract.
    unsafe {
        match w.ty {
            GgmlType::F32 => product::<Avx2, F32Elem>(w, x, out),
            GgmlType::F16 => product::<Avx2, F16Elem>(w, x, out),
            _ => product::<Avx2, Bf16Elem>(w, x, out),
        }
    }
}

impl Isa for Avx2 {
    const PANELS: usize = 1;

    #[inline(always)]
    unsafe fn tile<E: Elem, const WIDTH: usize>(s: &Step) {
        // SAFETY: the caller's contract.
        unsafe {
            match WIDTH {
                1 => sums::<E, 1, WIDTH>(s, 0),
                4 => sums::<E, 4, WIDTH>(s, 0),
                8 => {
                    sums::<E, 4, WIDTH>(s, 0);
                    sums::<E, 4, WIDTH>(s, 4);
                }
                _ => {
                    sums::<E, 6, WIDTH>(s, 0);
                    sums::<E, 6, WIDTH>(s, 6);
                }
            }
        }
    }
}

/// `N` tokens of a tile.
#[inline(always)]
unsafe fn sums<E: Elem, const N: usize, const WIDTH: usize>(s: &Step, first: usize) {
    // SAFETY: the caller's contract; rows beyond the last are cut off in a buffer.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); 2]; N];
        for i in 0..s.n_cols {
            let column = s.w.add(i * PANEL_ROWS * E::BYTES);
            let w = [E::load8(column), E::load8(column.add(8 * E::BYTES))];
            for (t, acc) in acc.iter_mut().enumerate() {
                let x = _mm256_set1_ps(*s.x.add(i * WIDTH + first + t));
                acc[0] = _mm256_fmadd_ps(x, w[0], acc[0]);
                acc[1] = _mm256_fmadd_ps(x, w[1], acc[1]);
            }
        }
        for (t, acc) in acc.into_iter().enumerate().take(s.n_tokens.saturating_sub(first)) {
            let out = std::slice::from_raw_parts_mut(s.out.add((first + t) * s.out_stride), s.n_rows);
            let mut sums = [0.0_f32; PANEL_ROWS];
            _mm256_storeu_ps(sums.as_mut_ptr(), acc[0]);
            _mm256_storeu_ps(sums.as_mut_ptr().add(8), acc[1]);
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if s.add { *out + sum } else { sum };
            }
        }
    }
}
