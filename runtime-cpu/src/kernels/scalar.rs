//! The reference kernels: plain Rust, no SIMD. Same functions in the same order as the other files.

use half::f16;

use super::{GROUP, Q8Mut, Q8Row, Q8Rows, WeightRows, generic};
use crate::quant::{GgmlType, dequantize_row};

pub(super) fn quantize_q8(x: &[f32], to: Q8Mut<'_>) {
    let limit = if to.low.is_empty() { 127.0 } else { TWO_PLANES };
    let mut low = to.low.chunks_exact_mut(GROUP);
    let groups = x.chunks_exact(GROUP).zip(to.q.chunks_exact_mut(GROUP)).zip(to.d).zip(to.s.chunks_exact_mut(2));
    for (((x, q), d), s) in groups {
        let max = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        *d = max / limit;
        let inverse = if max > 0.0 { limit / max } else { 0.0 };
        let n: [i32; GROUP] = std::array::from_fn(|i| (x[i] * inverse).round_ties_even() as i32);
        match low.next() {
            None => q.iter_mut().zip(n).for_each(|(q, n)| *q = n as i8),
            Some(low) => {
                for ((q, low), n) in q.iter_mut().zip(low).zip(n) {
                    *q = ((n + 64) >> 7) as i8;
                    *low = (n - 128 * i32::from(*q)) as i8;
                }
            }
        }
        for (s, half) in s.iter_mut().zip(n.chunks_exact(GROUP / 2)) {
            *s = *d * half.iter().sum::<i32>() as f32;
        }
    }
}

/// Largest integer of two planes: 128 * 127 + 63.
pub(super) const TWO_PLANES: f32 = 16319.0;

pub(super) fn gemv_q8(w: WeightRows<'_>, x: Q8Row<'_>, out: &mut [f32]) {
    for (row, o) in w.data.chunks_exact(w.row_bytes).zip(out) {
        *o = dot_q8(groups(w.ty, row), x);
    }
}

pub(super) fn gemm_q8(w: WeightRows<'_>, x: &Q8Rows, tokens: std::ops::Range<usize>, out: &mut [f32]) {
    let n_rows = w.n_rows();
    let mut unpacked = Vec::with_capacity(w.n_cols / GROUP);
    for (r, row) in w.data.chunks_exact(w.row_bytes).enumerate() {
        unpacked.clear();
        unpacked.extend(groups(w.ty, row));
        for (t, out) in tokens.clone().zip(out.chunks_exact_mut(n_rows)) {
            out[r] = dot_q8(unpacked.iter(), x.row(t));
        }
    }
}

pub(super) fn gemm_f32(w: WeightRows<'_>, x: &[f32], out: &mut [f32]) {
    let n_rows = w.n_rows();
    let mut values = vec![0.0; w.n_cols];
    for (r, row) in w.data.chunks_exact(w.row_bytes).enumerate() {
        dequantize_row(w.ty, row, &mut values);
        for (x, out) in x.chunks_exact(w.n_cols).zip(out.chunks_exact_mut(n_rows)) {
            out[r] = dot(&values, x);
        }
    }
}

pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    generic::rms_norm::<false>(x, weight, eps, out);
}

pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    generic::layer_norm(x, weight, bias, eps, out);
}

pub(super) fn silu_mul(gate: &mut [f32], up: &[f32]) {
    generic::silu_mul::<false>(gate, up);
}

pub(super) fn sigmoid_gate(x: &mut [f32], a: f32) {
    generic::sigmoid_gate::<false>(x, a);
}

pub(super) fn gelu_tanh(x: &mut [f32]) {
    generic::gelu_tanh::<false>(x);
}

pub(super) fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    generic::gelu_mul::<false>(gate, up);
}

pub(super) fn add(y: &mut [f32], x: &[f32]) {
    generic::add(y, x);
}

pub(super) fn to_f16(x: &[f32], out: &mut [f16]) {
    for (o, &v) in out.iter_mut().zip(x) {
        *o = f16::from_f32(v);
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Dot product of one quantised row with a quantised vector: exact integers per sub-block of 16, then float.
fn dot_q8(row: impl Iterator<Item = impl std::borrow::Borrow<Group>>, x: Q8Row<'_>) -> f32 {
    let mut sum = 0.0;
    for (i, w) in row.enumerate() {
        let w = w.borrow();
        let high = sums(&w.q, &x.q[i * GROUP..]);
        let mut part = high;
        if !x.low.is_empty() {
            let low = sums(&w.q, &x.low[i * GROUP..]);
            part = std::array::from_fn(|h| 128 * high[h] + low[h]);
        }
        let d = x.d[i];
        sum += d * (w.scale[0] * part[0] as f32 + w.scale[1] * part[1] as f32);
        sum += w.min[0] * x.s[2 * i] + w.min[1] * x.s[2 * i + 1];
    }
    sum
}

/// Sums of the products of both halves of a group.
fn sums(w: &[i16; GROUP], x: &[i8]) -> [i32; 2] {
    let half = |h: usize| {
        let products = w[16 * h..16 * h + 16].iter().zip(&x[16 * h..16 * h + 16]);
        products.map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
    };
    [half(0), half(1)]
}

/// The groups of a row.
fn groups(ty: GgmlType, row: &[u8]) -> impl Iterator<Item = Group> {
    let per_block = ty.block_len() / GROUP;
    row.chunks_exact(ty.block_bytes()).flat_map(move |block| (0..per_block).map(move |g| group(ty, block, g)))
}

/// 32 weights in the common form `scale * q + min`, one scale and min per 16.
#[derive(Debug, PartialEq)]
pub(super) struct Group {
    pub q: [i16; GROUP],
    pub scale: [f32; 2],
    pub min: [f32; 2],
}

/// Group `g` of a block. Float formats have no groups.
pub(super) fn group(ty: GgmlType, b: &[u8], g: usize) -> Group {
    use GgmlType::*;
    let f = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    let nibbles = |qs: &[u8]| -> [i16; GROUP] {
        std::array::from_fn(|j| if j < 16 { i16::from(qs[j] & 15) } else { i16::from(qs[j - 16] >> 4) })
    };
    let fifth = |qh: &[u8], j: usize| i16::from((qh[j / 8] >> (j % 8)) & 1) << 4;
    let two_bits = |qs: &[u8], j: usize| i16::from((qs[32 * (g / 4) + j] >> (2 * (g % 4))) & 3);
    let one = |scale: f32, min: f32, q: [i16; GROUP]| Group { q, scale: [scale; 2], min: [min; 2] };
    match ty {
        Q4_0 => one(f(0), -8.0 * f(0), nibbles(&b[2..])),
        Q4_1 => one(f(0), f(2), nibbles(&b[4..])),
        Q5_0 => {
            let n = nibbles(&b[6..]);
            one(f(0), -16.0 * f(0), std::array::from_fn(|j| n[j] | fifth(&b[2..6], j)))
        }
        Q5_1 => {
            let n = nibbles(&b[8..]);
            one(f(0), f(2), std::array::from_fn(|j| n[j] | fifth(&b[4..8], j)))
        }
        Q8_0 => one(f(0), 0.0, std::array::from_fn(|j| i16::from(b[2 + j] as i8))),
        IQ4_NL => {
            let n = nibbles(&b[2..]);
            one(f(0), 0.0, n.map(|q| i16::from(IQ4_VALUES[q as usize])))
        }
        IQ4_XS => {
            let low = (b[4 + g / 2] >> (4 * (g % 2))) & 15;
            let high = (u16::from_le_bytes([b[2], b[3]]) >> (2 * g)) & 3;
            let scale = f(0) * f32::from(i16::from(low) + ((high as i16) << 4) - 32);
            let n = nibbles(&b[8 + 16 * g..]);
            one(scale, 0.0, n.map(|q| i16::from(IQ4_VALUES[q as usize])))
        }
        Q2_K => {
            let (d, m) = (f(80), f(82));
            let s = &b[2 * g..2 * g + 2];
            Group {
                q: std::array::from_fn(|j| two_bits(&b[16..80], j)),
                scale: [d * f32::from(s[0] & 15), d * f32::from(s[1] & 15)],
                min: [-m * f32::from(s[0] >> 4), -m * f32::from(s[1] >> 4)],
            }
        }
        Q3_K => {
            let d = f(108);
            let scale: [f32; 2] = std::array::from_fn(|h| d * f32::from(q3_scale(&b[96..108], 2 * g + h)));
            Group {
                q: std::array::from_fn(|j| two_bits(&b[32..96], j) | i16::from((b[j] >> g) & 1) << 2),
                scale,
                min: scale.map(|s| -4.0 * s),
            }
        }
        Q4_K => {
            let (scale, min) = k4_scale_min(&b[4..16], g);
            let q = &b[16 + 32 * (g / 2)..][..GROUP];
            one(f(0) * scale, -f(2) * min, std::array::from_fn(|j| i16::from((q[j] >> (4 * (g % 2))) & 15)))
        }
        Q5_K => {
            let (scale, min) = k4_scale_min(&b[4..16], g);
            let q = &b[48 + 32 * (g / 2)..][..GROUP];
            let high = |j: usize| i16::from((b[16 + j] >> g) & 1) << 4;
            one(f(0) * scale, -f(2) * min, std::array::from_fn(|j| i16::from((q[j] >> (4 * (g % 2))) & 15) | high(j)))
        }
        Q6_K => {
            let (h, s) = (g / 4, g % 4);
            let (low, high) = (&b[64 * h + 32 * (s % 2)..][..GROUP], &b[128 + 32 * h..][..GROUP]);
            let q = |j: usize| i16::from((low[j] >> (4 * (s / 2))) & 15) | i16::from((high[j] >> (2 * s)) & 3) << 4;
            let scale: [f32; 2] = std::array::from_fn(|i| f(208) * f32::from(b[192 + 2 * g + i] as i8));
            Group { q: std::array::from_fn(q), scale, min: scale.map(|s| -32.0 * s) }
        }
        F32 | F16 | BF16 => Group { q: [0; GROUP], scale: [0.0; 2], min: [0.0; 2] },
    }
}

/// Code book of IQ4_NL and IQ4_XS.
pub(super) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Six-bit scale `i` of 16 of Q3_K, less its bias of 32; `s` are the 12 packed bytes.
pub(super) fn q3_scale(s: &[u8], i: usize) -> i8 {
    let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
    let high = (s[8 + (i & 3)] >> (2 * (i >> 2))) & 3;
    (low | (high << 4)) as i8 - 32
}

/// Six-bit scale and min `i` of 8 of Q4_K and Q5_K; `s` are the 12 packed bytes.
pub(super) fn k4_codes(s: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (s[i] & 63, s[i + 4] & 63)
    } else {
        ((s[i + 4] & 15) | ((s[i - 4] >> 6) << 4), (s[i + 4] >> 4) | ((s[i] >> 6) << 4))
    }
}

/// As [`k4_codes`], as floats.
pub(super) fn k4_scale_min(s: &[u8], i: usize) -> (f32, f32) {
    let (scale, min) = k4_codes(s, i);
    (f32::from(scale), f32::from(min))
}
