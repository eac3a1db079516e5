//! The normative kernels. A reduction runs in 16 virtual lanes: element `i` goes to lane `i % 16`, products are rounded
//! before they are added (no fused multiply-add), and the lanes are folded in halves (lane `j` + lane `j + 8`, then 4,
//! 2, 1). Any vector unit of up to 16 lanes can follow that order exactly.

use half::f16;

const LANES: usize = 16;

pub fn dot_rows(q: &[f32], rows: &[f32], out: &mut [f32]) {
    for (o, row) in out.iter_mut().zip(rows.chunks_exact(q.len().max(1))) {
        *o = lanes(q, row, |x, y| x * y);
    }
}

pub fn sq_norms(rows: &[f32], head_dim: usize, out: &mut [f32]) {
    for (o, row) in out.iter_mut().zip(rows.chunks_exact(head_dim.max(1))) {
        *o = lanes(row, row, |x, y| x * y);
    }
}

pub fn sq_dists(c: &[f32], rows: &[f32], out: &mut [f32]) {
    for (o, row) in out.iter_mut().zip(rows.chunks_exact(c.len().max(1))) {
        *o = lanes(row, c, |x, y| (x - y) * (x - y));
    }
}

pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

pub fn scale(a: f32, x: &mut [f32]) {
    for x in x {
        *x *= a;
    }
}

pub fn sum(x: &[f32]) -> f32 {
    lanes(x, x, |x, _| x)
}

pub fn sum_squares(x: &[f32]) -> f32 {
    lanes(x, x, |x, y| x * y)
}

pub fn min_max(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &x| {
        (if x < lo { x } else { lo }, if x > hi { x } else { hi })
    })
}

pub fn exp_sum(max: f32, x: &mut [f32]) -> f32 {
    for x in x.iter_mut() {
        *x = exp(*x - max);
    }
    sum(x)
}

pub fn widen_f16(src: &[f16], dst: &mut [f32]) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = s.to_f32();
    }
}

/// `exp(x)` for `x <= 0`: 0 below -87, within 2 units in the last place elsewhere. NaN stays NaN.
fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2; adding the magic number leaves n in the low bits of the sum.
    const MAGIC: f32 = 12_582_912.0;
    if x < -87.0 {
        return 0.0;
    }
    let shifted = x * core::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = x - n * 0.693_359_4;
    let r = r - n * -2.121_944_4e-4;
    let p = 1.987_569_2e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    y * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

fn lanes(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [0.0; LANES];
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for ((s, &x), &y) in acc.iter_mut().zip(a).zip(b) {
            *s += f(x, y);
        }
    }
    for ((s, &x), &y) in acc.iter_mut().zip(a_tail).zip(b_tail) {
        *s += f(x, y);
    }
    fold(acc)
}

fn fold(a: [f32; LANES]) -> f32 {
    let [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7] = a;
    let [c0, c1, c2, c3] = [(a0 + b0) + (a4 + b4), (a1 + b1) + (a5 + b5), (a2 + b2) + (a6 + b6), (a3 + b3) + (a7 + b7)];
    (c0 + c2) + (c1 + c3)
}
