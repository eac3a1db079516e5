//! The kernels in vectors of 16 lanes, for any instruction set that supplies [`Lanes`]. Each follows `scalar` addition
//! by addition: padding a last vector with zeros adds +0 to lanes that are never -0, which changes nothing.

use half::{bf16, f16};

use super::scalar::{self, LANES, exp_of};
use super::{Q8_0, Q8_0_BYTES};

/// The vector operations of an instruction set. A value proves that this CPU has it.
pub trait Lanes: Copy {
    /// 16 f32 lanes.
    type V: Copy;
    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? yes : no`, lane by lane.
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `2^n` for the integer `n` in the low bits of each lane.
    fn exp2_bits(self, v: Self::V) -> Self::V;
    /// The lanes of each argument folded in halves.
    fn fold4(self, v: [Self::V; 4]) -> [f32; 4];
    fn widen_f16(self, x: &[f16; LANES]) -> Self::V;
    fn widen_bf16(self, x: &[bf16; LANES]) -> Self::V;
    fn widen_i8(self, x: &[i8; LANES]) -> Self::V;
}

/// Rows or queries whose accumulators are in flight together.
const BLOCK: usize = 4;

#[inline(always)]
pub fn dots<L: Lanes>(l: L, q: &[f32], head_dim: usize, rows: &[f32], out: &mut [f32], stride: usize) {
    let d = head_dim.max(1);
    let mut queries = q.chunks_exact(d.saturating_mul(BLOCK));
    let mut outs = out.chunks_mut(stride.max(1).saturating_mul(BLOCK));
    for (q, out) in queries.by_ref().zip(outs.by_ref()) {
        let Some(q) = split4(q, d) else { return };
        for (i, row) in rows.chunks_exact(d).enumerate() {
            let dots = l.fold4(accumulate(l, q, |x, y| l.mul(x, y), [row; BLOCK]));
            for (o, dot) in out.iter_mut().skip(i).step_by(stride.max(1)).zip(dots) {
                *o = dot;
            }
        }
    }
    // Fewer queries than a block: take the rows in blocks instead.
    for (q, out) in queries.remainder().chunks_exact(d).zip(outs.flat_map(|o| o.chunks_mut(stride.max(1)))) {
        for_blocks(rows, d, out, |rows| l.fold4(accumulate(l, [q; BLOCK], |x, y| l.mul(x, y), rows)));
    }
}

#[inline(always)]
pub fn sq_norms<L: Lanes>(l: L, rows: &[f32], head_dim: usize, out: &mut [f32]) {
    for_blocks(rows, head_dim.max(1), out, |rows| l.fold4(accumulate(l, rows, |x, y| l.mul(x, y), rows)));
}

#[inline(always)]
pub fn sq_dists<L: Lanes>(l: L, c: &[f32], rows: &[f32], out: &mut [f32]) {
    for_blocks(rows, c.len().max(1), out, |rows| {
        let square = |x, y| {
            let z = l.sub(x, y);
            l.mul(z, z)
        };
        l.fold4(accumulate(l, rows, square, [c; BLOCK]))
    });
}

#[inline(always)]
pub fn add_rows<L: Lanes>(l: L, w: &[f32], rows: &[f32], y: &mut [f32]) {
    let d = y.len().max(1);
    let (whole, tail) = y.as_chunks_mut::<LANES>();
    let mut from = 0usize;
    for y in whole {
        let mut s = l.splat(0.0);
        for (&w, row) in w.iter().zip(rows.chunks_exact(d)) {
            if let Some(x) = row.get(from..).and_then(|r| r.first_chunk()) {
                s = l.add(s, l.mul(l.splat(w), l.load(x)));
            }
        }
        l.store(l.add(l.load(y), s), y);
        from = from.saturating_add(LANES);
    }
    for (j, y) in tail.iter_mut().enumerate() {
        let column = rows.get(from.saturating_add(j)..).unwrap_or_default().iter().step_by(d);
        *y += w.iter().zip(column).fold(0.0, |s, (&w, &x)| s + w * x);
    }
}

#[inline(always)]
pub fn axpy<L: Lanes>(l: L, a: f32, x: &[f32], y: &mut [f32]) {
    let n = x.len().min(y.len());
    let (y, y_tail) = y.get_mut(..n).unwrap_or_default().as_chunks_mut::<LANES>();
    let (x, x_tail) = x.get(..n).unwrap_or_default().as_chunks::<LANES>();
    let v = l.splat(a);
    for (y, x) in y.iter_mut().zip(x) {
        l.store(l.add(l.load(y), l.mul(v, l.load(x))), y);
    }
    scalar::axpy(a, x_tail, y_tail);
}

#[inline(always)]
pub fn scale<L: Lanes>(l: L, a: f32, x: &mut [f32]) {
    let (x, tail) = x.as_chunks_mut::<LANES>();
    let v = l.splat(a);
    for x in x {
        l.store(l.mul(l.load(x), v), x);
    }
    scalar::scale(a, tail);
}

#[inline(always)]
pub fn sum<L: Lanes>(l: L, x: &[f32]) -> f32 {
    let (x, tail) = x.as_chunks::<LANES>();
    let s = x.iter().fold(l.splat(0.0), |s, x| l.add(s, l.load(x)));
    fold(l, l.add(s, l.load(&padded(tail))))
}

#[inline(always)]
pub fn min_max<L: Lanes>(l: L, x: &[f32]) -> (f32, f32) {
    let (mut lo, mut hi) = (l.splat(f32::INFINITY), l.splat(f32::NEG_INFINITY));
    let (x, tail) = x.as_chunks::<LANES>();
    for x in x {
        let x = l.load(x);
        lo = l.less(x, lo, x, lo);
        hi = l.less(hi, x, x, hi);
    }
    let (mut lows, mut highs) = ([0.0; LANES], [0.0; LANES]);
    l.store(lo, &mut lows);
    l.store(hi, &mut highs);
    for ((lo, hi), &x) in lows.iter_mut().zip(&mut highs).zip(tail) {
        *lo = if x < *lo { x } else { *lo };
        *hi = if *hi < x { x } else { *hi };
    }
    scalar::fold_min_max(lows, highs)
}

#[inline(always)]
pub fn exp_sum<L: Lanes>(l: L, max: f32, x: &mut [f32]) -> f32 {
    let (x, tail) = x.as_chunks_mut::<LANES>();
    let mut s = l.splat(0.0);
    let m = l.splat(max);
    for x in x {
        let e = exp(l, l.sub(l.load(x), m));
        s = l.add(s, e);
        l.store(e, x);
    }
    for x in tail.iter_mut() {
        *x = scalar::exp(*x - max);
    }
    fold(l, l.add(s, l.load(&padded(tail))))
}

#[inline(always)]
pub fn widen_f16<L: Lanes>(l: L, src: &[f16], dst: &mut [f32]) {
    let (src, src_tail) = src.as_chunks::<LANES>();
    let (dst, dst_tail) = dst.as_chunks_mut::<LANES>();
    for (d, s) in dst.iter_mut().zip(src) {
        l.store(l.widen_f16(s), d);
    }
    scalar::widen_f16(src_tail, dst_tail);
}

#[inline(always)]
pub fn widen_bf16<L: Lanes>(l: L, src: &[bf16], dst: &mut [f32]) {
    let (src, src_tail) = src.as_chunks::<LANES>();
    let (dst, dst_tail) = dst.as_chunks_mut::<LANES>();
    for (d, s) in dst.iter_mut().zip(src) {
        l.store(l.widen_bf16(s), d);
    }
    scalar::widen_bf16(src_tail, dst_tail);
}

#[inline(always)]
pub fn widen_q8_0<L: Lanes>(l: L, src: &[u8], dst: &mut [f32]) {
    for (dst, block) in dst.as_chunks_mut::<Q8_0>().0.iter_mut().zip(src.as_chunks::<Q8_0_BYTES>().0) {
        let [d0, d1, quants @ ..] = block;
        let d = l.splat(f16::from_le_bytes([*d0, *d1]).to_f32());
        for (x, q) in dst.as_chunks_mut::<LANES>().0.iter_mut().zip(quants.as_chunks::<LANES>().0) {
            l.store(l.mul(d, l.widen_i8(&q.map(u8::cast_signed))), x);
        }
    }
}

/// `f(x, y)` summed over vectors for four pairs of slices at once.
#[inline(always)]
fn accumulate<L: Lanes>(l: L, a: [&[f32]; BLOCK], f: impl Fn(L::V, L::V) -> L::V, b: [&[f32]; BLOCK]) -> [L::V; BLOCK] {
    let zero = l.splat(0.0);
    let [mut s0, mut s1, mut s2, mut s3] = [zero; BLOCK];
    let [a0, a1, a2, a3] = a.map(|a| a.as_chunks::<LANES>());
    let [b0, b1, b2, b3] = b.map(|b| b.as_chunks::<LANES>());
    let left = a0.0.iter().zip(a1.0).zip(a2.0.iter().zip(a3.0));
    let right = b0.0.iter().zip(b1.0).zip(b2.0.iter().zip(b3.0));
    for (((a0, a1), (a2, a3)), ((b0, b1), (b2, b3))) in left.zip(right) {
        s0 = l.add(s0, f(l.load(a0), l.load(b0)));
        s1 = l.add(s1, f(l.load(a1), l.load(b1)));
        s2 = l.add(s2, f(l.load(a2), l.load(b2)));
        s3 = l.add(s3, f(l.load(a3), l.load(b3)));
    }
    if !a0.1.is_empty() {
        let tail = |a, b| f(l.load(&padded(a)), l.load(&padded(b)));
        s0 = l.add(s0, tail(a0.1, b0.1));
        s1 = l.add(s1, tail(a1.1, b1.1));
        s2 = l.add(s2, tail(a2.1, b2.1));
        s3 = l.add(s3, tail(a3.1, b3.1));
    }
    [s0, s1, s2, s3]
}

/// Fills `out` from the rows, four at a time; a last incomplete block repeats its first row.
#[inline(always)]
fn for_blocks(rows: &[f32], d: usize, out: &mut [f32], f: impl Fn([&[f32]; BLOCK]) -> [f32; BLOCK]) {
    for (out, rows) in out.chunks_mut(BLOCK).zip(rows.chunks(d.saturating_mul(BLOCK))) {
        let mut block = rows.chunks_exact(d);
        let n = block.len();
        let first = block.next().unwrap_or_default();
        let block =
            [first, block.next().unwrap_or(first), block.next().unwrap_or(first), block.next().unwrap_or(first)];
        for (o, x) in out.iter_mut().zip(f(block)).take(n) {
            *o = x;
        }
    }
}

#[inline(always)]
fn split4(x: &[f32], d: usize) -> Option<[&[f32]; BLOCK]> {
    let mut parts = x.chunks_exact(d);
    Some([parts.next()?, parts.next()?, parts.next()?, parts.next()?])
}

#[inline(always)]
fn padded(x: &[f32]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (o, &x) in out.iter_mut().zip(x) {
        *o = x;
    }
    out
}

#[inline(always)]
fn fold<L: Lanes>(l: L, v: L::V) -> f32 {
    let [x, ..] = l.fold4([v; 4]);
    x
}

#[inline(always)]
fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    let magic = l.splat(exp_of::MAGIC);
    let shifted = l.add(l.mul(x, l.splat(core::f32::consts::LOG2_E)), magic);
    let n = l.sub(shifted, magic);
    let r = l.sub(x, l.mul(n, l.splat(exp_of::LN_2.0)));
    let r = l.sub(r, l.mul(n, l.splat(exp_of::LN_2.1)));
    let [c, rest @ ..] = exp_of::POLYNOMIAL;
    let p = rest.into_iter().fold(l.splat(c), |p, c| l.add(l.mul(p, r), l.splat(c)));
    let y = l.add(l.add(l.mul(p, l.mul(r, r)), r), l.splat(1.0));
    l.less(x, l.splat(exp_of::LEAST), l.splat(0.0), l.mul(y, l.exp2_bits(shifted)))
}

/// Entry points of an instruction set: each kernel compiled with its features enabled.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! entries {
    ([$token:ident, $features:literal]
     $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        impl $token {$(
            $(#[$doc])*
            pub fn $name(self, $($arg: $ty),*) $(-> $ret)? {
                #[target_feature(enable = $features)]
                fn run(token: $token, $($arg: $ty),*) $(-> $ret)? {
                    super::lanes::$name(token, $($arg),*)
                }
                // SAFETY: the token exists only if detection saw these features.
                unsafe { run(self, $($arg),*) }
            }
        )*}
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use entries;
