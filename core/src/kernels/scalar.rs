//! The normative kernels. A reduction runs in 16 virtual lanes: element `i` goes to lane `i % 16`, a product is added to
//! its lane by a fused multiply-add, and the lanes are folded in halves (lane `j` with lane `j + 8`, then 4, 2, 1). Any
//! vector unit of up to 16 lanes can follow that order exactly. `dots_turned` alone adds from first to last.

use core::f32::consts::LOG2_E;

use half::{bf16, f16};

use super::fused::mul_add;
use super::{Ahead, Q8_0, Q8_0_BYTES};

pub const LANES: usize = 16;

pub fn dots(q: &[f32], head_dim: usize, rows: &[f32], out: &mut [f32], stride: usize) {
    let d = head_dim.max(1);
    for (q, out) in q.chunks_exact(d).zip(out.chunks_mut(stride.max(1))) {
        for (o, row) in out.iter_mut().zip(rows.chunks_exact(d)) {
            *o = lanes(q, row, mul_add);
        }
    }
}

/// Rows are as good as columns here.
pub fn turn(rows: &[f32], _: usize, columns: &mut [f32]) {
    for (to, x) in columns.iter_mut().zip(rows) {
        *to = *x;
    }
}

/// One sum from the first channel to the last: where a lane is a row there is nothing to fold.
#[allow(clippy::too_many_arguments)]
pub fn dots_turned(
    q: &[f32],
    head_dim: usize,
    a: f32,
    columns: &[f32],
    out: &mut [f32],
    stride: usize,
    n: usize,
    _: Ahead,
) {
    let d = head_dim.max(1);
    for (q, out) in q.chunks_exact(d).zip(out.chunks_mut(stride.max(1))) {
        for (o, row) in out.iter_mut().zip(columns.chunks_exact(d)).take(n) {
            *o = a * q.iter().zip(row).fold(0.0, |s, (&q, &x)| mul_add(q, x, s));
        }
    }
}

pub fn sq_norms(rows: &[f32], head_dim: usize, out: &mut [f32]) {
    for (o, row) in out.iter_mut().zip(rows.chunks_exact(head_dim.max(1))) {
        *o = lanes(row, row, mul_add);
    }
}

pub fn sq_dists(c: &[f32], rows: &[f32], out: &mut [f32]) {
    for (o, row) in out.iter_mut().zip(rows.chunks_exact(c.len().max(1))) {
        *o = lanes(row, c, |x, y, s| mul_add(x - y, x - y, s));
    }
}

pub fn gather(rows: &[f32], norms: &mut [f32], mean: &mut [f32], direction: &mut [f32], _: Ahead) {
    sq_norms(rows, mean.len(), norms);
    let (ones, mut inverse) = ([1.0; LANES], [0.0; LANES]);
    for (norm, inverse) in norms.iter_mut().zip(&mut inverse) {
        *norm = sqrt(*norm);
        *inverse = ratio(1.0, *norm);
    }
    add_rows(ones.get(..norms.len()).unwrap_or(&ones), rows, mean);
    add_rows(inverse.get(..norms.len()).unwrap_or(&inverse), rows, direction);
}

pub fn compare(
    direction: &[f32],
    length: f32,
    mean: &[f32],
    rows: &[f32],
    cosines: &mut [f32],
    distances: &mut [f32],
    _: Ahead,
) {
    dots(direction, mean.len(), rows, cosines, usize::MAX);
    for (c, &norm) in cosines.iter_mut().zip(&*distances) {
        *c = -ratio(*c, norm * length);
    }
    sq_dists(mean, rows, distances);
    distances.iter_mut().for_each(|x| *x = sqrt(*x));
}

pub fn add_rows(w: &[f32], rows: &[f32], y: &mut [f32]) {
    let d = y.len().max(1);
    for (j, y) in y.iter_mut().enumerate() {
        let column = rows.get(j..).unwrap_or_default().iter().step_by(d);
        *y += w.iter().zip(column).fold(0.0, |s, (&w, &x)| mul_add(w, x, s));
    }
}

pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = mul_add(a, *x, *y);
    }
}

pub fn add_scaled(w: &[f32], x: &[f32], stride: usize, y: &mut [f32]) {
    for (&w, x) in w.iter().zip(x.chunks(stride.max(1))) {
        axpy(w, x, y);
    }
}

pub fn scale(a: f32, x: &mut [f32]) {
    for x in x {
        *x *= a;
    }
}

pub fn sum(x: &[f32]) -> f32 {
    lanes(x, x, |x, _, s| s + x)
}

pub fn min_max(x: &[f32]) -> (f32, f32) {
    let least = x.iter().fold(f32::INFINITY, |lo, &x| if x < lo { x } else { lo });
    let greatest = x.iter().fold(f32::NEG_INFINITY, |hi, &x| if hi < x { x } else { hi });
    // Of -0 and +0 either could win; adding +0 makes both +0.
    (least + 0.0, greatest + 0.0)
}

pub fn exp_sum(max: f32, x: &mut [f32]) -> f32 {
    for x in x.iter_mut() {
        *x = exp(*x - max);
    }
    sum(x)
}

pub fn prefetch(_: Ahead) {}

pub fn widen_f16(src: &[f16], dst: &mut [f32]) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = s.to_f32();
    }
}

pub fn widen_bf16(src: &[bf16], dst: &mut [f32]) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = wide_bf16(*s);
    }
}

pub fn wide_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

pub fn widen_q8_0(src: &[u8], dst: &mut [f32]) {
    for (dst, block) in dst.as_chunks_mut::<Q8_0>().0.iter_mut().zip(src.as_chunks::<Q8_0_BYTES>().0) {
        let [d0, d1, quants @ ..] = block;
        let d = f16::from_le_bytes([*d0, *d1]).to_f32();
        for (x, q) in dst.iter_mut().zip(quants) {
            *x = d * f32::from(q.cast_signed());
        }
    }
}

/// The constants of [`exp`].
pub mod exp_of {
    /// Below it `exp` is 0.
    pub const LEAST: f32 = -87.0;
    /// 1.5 * 2^23: added to a small number, it leaves the rounded number in the low bits of the sum.
    pub const MAGIC: f32 = 12_582_912.0;
    /// `2^r` for `|r| <= 1 / 2`, highest power first: the polynomial of least relative error, 9.2e-8, that is 1 at 0.
    #[allow(clippy::approx_constant)] // near the logarithm of 2, not that
    pub const POLYNOMIAL: [f32; 6] = [1.326_473_1e-3, 9.671_516e-3, 5.550_733_6e-2, 2.402_224_2e-1, 6.931_47e-1, 1.0];
}

/// `exp(x)` for `x <= 0`, within 3 units in the last place near 0, where the weights that count are; 0 below -87. NaN
/// stays NaN.
pub fn exp(x: f32) -> f32 {
    if x < exp_of::LEAST {
        return 0.0;
    }
    // x / ln 2 = n + r
    let shifted = mul_add(x, LOG2_E, exp_of::MAGIC);
    let r = mul_add(x, LOG2_E, exp_of::MAGIC - shifted);
    let [c, rest @ ..] = exp_of::POLYNOMIAL;
    let p = rest.into_iter().fold(c, |p, c| mul_add(p, r, c));
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// `step(x, y, s)` is the sum of a lane after elements `x` and `y`.
fn lanes(a: &[f32], b: &[f32], step: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut acc = [0.0; LANES];
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for ((s, &x), &y) in acc.iter_mut().zip(a).zip(b) {
            *s = step(x, y, *s);
        }
    }
    for ((s, &x), &y) in acc.iter_mut().zip(a_tail).zip(b_tail) {
        *s = step(x, y, *s);
    }
    fold(acc)
}

pub fn fold(a: [f32; LANES]) -> f32 {
    let [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7] = a;
    let [c0, c1, c2, c3] = [(a0 + b0) + (a4 + b4), (a1 + b1) + (a5 + b5), (a2 + b2) + (a6 + b6), (a3 + b3) + (a7 + b7)];
    (c0 + c2) + (c1 + c3) + 0.0 // never -0
}

fn sqrt(x: f32) -> f32 {
    libm::sqrtf(x)
}

fn ratio(numerator: f32, denominator: f32) -> f32 {
    if denominator == 0.0 { 0.0 } else { numerator / denominator }
}
