//! The kernels in vectors of 16 lanes, for any instruction set that supplies [`Lanes`]. Each follows `scalar` addition
//! by addition. Padding a last vector with zeros can turn a lane of -0 into +0, which no sum shows: all end in adding +0.

use core::f32::consts::LOG2_E;
use core::sync::atomic::{Ordering, compiler_fence};

use half::{bf16, f16};

use super::fused::mul_add;
use super::scalar::{self, LANES, exp_of};
use super::{Ahead, COLUMN_ROWS, Element, Q8_0, Q8_0_BYTES};

/// The vector operations of an instruction set. A value proves that this CPU has it.
pub trait Lanes: Copy {
    /// 16 f32 lanes.
    type V: Copy;
    /// Whether the registers hold the sums of eight queries with [`COLUMN_ROWS`] rows, not only of four with half of them.
    const ROOMY: bool = false;
    /// Whether the kernels of rows are worth repeating for the common widths.
    const REPEATED: bool = true;
    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a b + c`, rounded once.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a < b ? yes : no`, lane by lane.
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn sqrt(self, v: Self::V) -> Self::V;
    /// `a < b ? a : b`, lane by lane.
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        self.less(a, b, a, b)
    }
    /// `b < a ? a : b`, lane by lane.
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        self.less(b, a, a, b)
    }
    /// Asks for the cache line at an address, of any validity, that is read soon.
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    /// `2^n` for the integer `n` in the low bits of each lane.
    fn exp2_bits(self, v: Self::V) -> Self::V;
    /// The lanes of each argument folded in halves, plus 0.
    fn fold4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Likewise of 16.
    #[inline(always)]
    fn fold16(self, v: [Self::V; LANES]) -> Self::V {
        let mut out = [0.0; LANES];
        for (out, &v) in out.as_chunks_mut().0.iter_mut().zip(v.as_chunks().0) {
            *out = self.fold4(v);
        }
        self.load(&out)
    }
    /// The first halves of both side by side, and the second halves.
    fn halves(self, a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// Element `j` of row `i` to lane `i` of result `j`; row `i` begins at `x[i * stride]`. Zeros if `x` ends too early.
    fn columns(self, x: &[f32], stride: usize) -> [Self::V; LANES];
    fn widen_f16(self, x: &[f16; LANES]) -> Self::V;
    fn widen_bf16(self, x: &[bf16; LANES]) -> Self::V;
    fn widen_i8(self, x: &[i8; LANES]) -> Self::V;
}

/// Calls a function with a `head_dim`, and whether the rows are whole blocks of 16. Where they are, and the `head_dim` is
/// what models mostly have, the compiler knows where in a block every vector is.
macro_rules! for_head_dim {
    ($d:expr, $rows:expr, $f:ident($($arg:expr),*)) => {
        match ($d, $rows.len()) {
            (d, _) if !L::REPEATED => $f(d, false, $($arg),*),
            (64, n) if n.is_multiple_of(64 * LANES) => $f(64, true, $($arg),*),
            (80, n) if n.is_multiple_of(80 * LANES) => $f(80, true, $($arg),*),
            (128, n) if n.is_multiple_of(128 * LANES) => $f(128, true, $($arg),*),
            (d, _) => $f(d, false, $($arg),*),
        }
    };
}

/// Rows or queries whose accumulators are in flight together.
const BLOCK: usize = 4;

#[inline(always)]
pub fn dots<L: Lanes, E: Element>(l: L, q: &[f32], head_dim: usize, rows: &[E], out: &mut [f32], stride: usize) {
    let d = head_dim.max(1);
    let mut queries = q.chunks_exact(d.saturating_mul(BLOCK));
    let mut outs = out.chunks_mut(stride.max(1).saturating_mul(BLOCK));
    for (q, out) in queries.by_ref().zip(outs.by_ref()) {
        let Some(q) = split4(q, d) else { return };
        for (i, row) in rows.chunks_exact(d).enumerate() {
            let dots = l.fold4(accumulate(l, Product, q, row));
            for (o, dot) in out.iter_mut().skip(i).step_by(stride.max(1)).zip(dots) {
                *o = dot;
            }
        }
    }
    // Fewer queries than a block: take the rows in blocks instead.
    for (q, out) in queries.remainder().chunks_exact(d).zip(outs.flat_map(|o| o.chunks_mut(stride.max(1)))) {
        for_blocks(l, Product, rows, q, out);
    }
}

/// `columns[j][i] = rows[i][j]`, zeros past the last `j`. What belongs to rows that are missing is left alone, and so are
/// sums made of it.
#[inline(always)]
pub fn turn<L: Lanes>(l: L, rows: &[f32], head_dim: usize, columns: &mut [f32]) {
    for_head_dim!(head_dim.max(1), rows, turn_of(l, rows, columns));
}

#[inline(always)]
fn turn_of<L: Lanes>(d: usize, whole: bool, l: L, rows: &[f32], columns: &mut [f32]) {
    let columns = columns.as_chunks_mut::<COLUMN_ROWS>().0.as_chunks_mut::<LANES>().0;
    for (half, rows) in rows.chunks(d.saturating_mul(LANES)).take(COLUMN_ROWS / LANES).enumerate() {
        let whole = whole || rows.len() == d.saturating_mul(LANES);
        let mut from = 0usize;
        for columns in columns.iter_mut() {
            let turned = if whole && from.saturating_add(LANES) <= d {
                l.columns(rows.get(from..).unwrap_or_default(), d)
            } else {
                let mut square = [0.0; LANES * LANES];
                for (to, row) in square.as_chunks_mut::<LANES>().0.iter_mut().zip(rows.chunks_exact(d)) {
                    *to = padded(row.get(from..).unwrap_or_default());
                }
                l.columns(&square, LANES)
            };
            for (to, column) in columns.iter_mut().zip(turned) {
                if let Some(to) = to.as_chunks_mut().0.get_mut(half) {
                    l.store(column, to);
                }
            }
            from = from.saturating_add(LANES);
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub fn dots_turned<L: Lanes>(
    l: L,
    q: &[f32],
    head_dim: usize,
    a: f32,
    columns: &[f32],
    out: &mut [f32],
    stride: usize,
    n: usize,
    mut ahead: Ahead,
) {
    let columns = columns.as_chunks::<COLUMN_ROWS>().0;
    let (d, a) = (head_dim.max(1), l.splat(a));
    let mut outs = out.chunks_mut(stride.max(1));
    let size = d.saturating_mul(if L::ROOMY { 2 * BLOCK } else { BLOCK });
    // Asked for all at once, the lines would queue up while nothing is computed.
    let share = ahead.share(q.len().div_ceil(size));
    for q in q.chunks(size) {
        let ahead = ahead.take(share);
        // A block that is not full repeats its first query.
        let first = q.get(..d).unwrap_or_default();
        let mut parts = q.chunks_exact(d);
        let mut part = || parts.next().unwrap_or(first);
        let few = [part(), part(), part(), part()];
        let [q0, q1, q2, q3] = few;
        let block = [q0, q1, q2, q3, part(), part(), part(), part()];
        let queries = q.len().checked_div(d).unwrap_or(0);
        let outs = outs.by_ref().take(queries);
        if queries > BLOCK {
            put_scaled(l, a, eight_dots(l, block, columns, ahead), n, outs);
        } else if L::ROOMY {
            put_scaled(l, a, four_dots(l, few, columns, 0, ahead), n, outs);
        } else {
            let (left, right) = (
                four_dots::<L, 1>(l, few, columns, 0, ahead),
                four_dots::<L, 1>(l, few, columns, 1, Ahead::of::<f32>(&[])),
            );
            let [[l0], [l1], [l2], [l3]] = left;
            let [[r0], [r1], [r2], [r3]] = right;
            put_scaled(l, a, [[l0, r0], [l1, r1], [l2, r2], [l3, r3]], n, outs);
        }
    }
}

#[inline(always)]
pub fn sq_norms<L: Lanes, E: Element>(l: L, rows: &[E], head_dim: usize, out: &mut [f32]) {
    for_blocks(l, Square, rows, rows.get(..head_dim.max(1)).unwrap_or_default(), out);
}

#[inline(always)]
pub fn sq_dists<L: Lanes, E: Element>(l: L, c: &[f32], rows: &[E], out: &mut [f32]) {
    for_blocks(l, SquaredDifference, rows, c, out);
}

#[inline(always)]
pub fn gather<L: Lanes, E: Element>(
    l: L,
    rows: &[E],
    norms: &mut [f32],
    mean: &mut [f32],
    direction: &mut [f32],
    ahead: Ahead,
) {
    for_head_dim!(mean.len().max(1), rows, gather_of(l, rows, norms, mean, direction, ahead));
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn gather_of<L: Lanes, E: Element>(
    d: usize,
    whole: bool,
    l: L,
    rows: &[E],
    norms: &mut [f32],
    mean: &mut [f32],
    direction: &mut [f32],
    mut ahead: Ahead,
) {
    let (Some(mean), Some(direction), Some(blocks)) =
        (mean.get_mut(..d), direction.get_mut(..d), eights(rows, d, whole))
    else {
        return;
    };
    let n = norms.len().min(LANES);
    prefetch(l, ahead.take(ahead.share(2)));
    let lengths = l.sqrt(squares(l, blocks));
    let mut inverse = [0.0; LANES];
    l.store(ratio(l, l.splat(1.0), lengths), &mut inverse);
    put(l, lengths, n, norms);
    prefetch(l, ahead);
    let inverse = inverse.get(..n).unwrap_or_default();
    let mut from = 0usize;
    // Eight sums in flight, or four.
    while from.saturating_add(4 * LANES) <= d {
        add_sums::<L, E, 4>(l, inverse, rows, from, mean, direction);
        from = from.saturating_add(4 * LANES);
    }
    while from.saturating_add(2 * LANES) <= d {
        add_sums::<L, E, 2>(l, inverse, rows, from, mean, direction);
        from = from.saturating_add(2 * LANES);
    }
    let ones = [1.0; LANES];
    add_columns(l, ones.get(..n).unwrap_or_default(), rows, from, mean);
    add_columns(l, inverse, rows, from, direction);
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub fn compare<L: Lanes, E: Element>(
    l: L,
    direction: &[f32],
    length: f32,
    mean: &[f32],
    rows: &[E],
    cosines: &mut [f32],
    distances: &mut [f32],
    ahead: Ahead,
) {
    for_head_dim!(mean.len().max(1), rows, compare_of(l, direction, length, mean, rows, cosines, distances, ahead));
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn compare_of<L: Lanes, E: Element>(
    d: usize,
    whole: bool,
    l: L,
    direction: &[f32],
    length: f32,
    mean: &[f32],
    rows: &[E],
    cosines: &mut [f32],
    distances: &mut [f32],
    mut ahead: Ahead,
) {
    let (Some(mean), Some(direction)) = (mean.get(..d), direction.get(..d)) else { return };
    let mut rest = rows;
    for (cosines, distances) in cosines.chunks_mut(LANES).zip(distances.chunks_mut(LANES)) {
        let (rows, after) = rest.split_at_checked(d.saturating_mul(LANES)).unwrap_or((rest, &[]));
        rest = after;
        let norms = load_some(l, distances);
        let Some([low, high]) = eights(rows, d, whole) else { return };
        prefetch(l, ahead.take(ahead.share(2)));
        let low = products_and_differences(l, low, direction, mean);
        prefetch(l, ahead.take(usize::MAX));
        let (dots, squares) = l.halves(low, products_and_differences(l, high, direction, mean));
        let n = cosines.len().min(distances.len());
        let cosine = ratio(l, dots, l.mul(norms, l.splat(length)));
        put(l, l.mul(cosine, l.splat(-1.0)), n, cosines);
        put(l, l.sqrt(squares), n, distances);
    }
}

#[inline(always)]
pub fn add_rows<L: Lanes>(l: L, w: &[f32], rows: &[f32], y: &mut [f32]) {
    add_columns(l, w, rows, 0, y);
}

#[inline(always)]
pub fn axpy<L: Lanes>(l: L, a: f32, x: &[f32], y: &mut [f32]) {
    let n = x.len().min(y.len());
    let (y, y_tail) = y.get_mut(..n).unwrap_or_default().as_chunks_mut::<LANES>();
    let (x, x_tail) = x.get(..n).unwrap_or_default().as_chunks::<LANES>();
    let v = l.splat(a);
    for (y, x) in y.iter_mut().zip(x) {
        l.store(l.mul_add(v, l.load(x), l.load(y)), y);
    }
    scalar::axpy(a, x_tail, y_tail);
}

#[inline(always)]
pub fn add_scaled<L: Lanes>(l: L, w: &[f32], x: &[f32], stride: usize, y: &mut [f32]) {
    let stride = stride.max(1);
    let mut weights = w.chunks_exact(BLOCK);
    let mut blocks = x.chunks(stride.saturating_mul(BLOCK));
    for (w, x) in weights.by_ref().zip(blocks.by_ref()) {
        let mut parts = x.chunks(stride).map(|x| x.get(..y.len()).unwrap_or_default());
        let mut part = || parts.next().unwrap_or_default().as_chunks::<LANES>();
        let (a, b, c, d) = (part(), part(), part(), part());
        let &[wa, wb, wc, wd] = w.as_array().unwrap_or(&[0.0; BLOCK]);
        let (va, vb, vc, vd) = (l.splat(wa), l.splat(wb), l.splat(wc), l.splat(wd));
        let (whole, tail) = y.as_chunks_mut::<LANES>();
        for (y, ((a, b), (c, d))) in whole.iter_mut().zip(a.0.iter().zip(b.0).zip(c.0.iter().zip(d.0))) {
            let s = l.mul_add(va, l.load(a), l.load(y));
            let s = l.mul_add(vb, l.load(b), s);
            let s = l.mul_add(vc, l.load(c), s);
            l.store(l.mul_add(vd, l.load(d), s), y);
        }
        for (w, (_, x)) in [(wa, a), (wb, b), (wc, c), (wd, d)] {
            scalar::axpy(w, x, tail);
        }
    }
    for (&w, x) in weights.remainder().iter().zip(blocks.flat_map(|x| x.chunks(stride))) {
        axpy(l, w, x, y);
    }
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
    let (mut lo, mut hi) = ([l.splat(f32::INFINITY); BLOCK], [l.splat(f32::NEG_INFINITY); BLOCK]);
    let (blocks, rest) = x.as_chunks::<{ BLOCK * LANES }>();
    let (vectors, tail) = rest.as_chunks::<LANES>();
    for block in blocks {
        for ((lo, hi), x) in lo.iter_mut().zip(&mut hi).zip(block.as_chunks().0) {
            let x = l.load(x);
            (*lo, *hi) = (l.min(x, *lo), l.max(x, *hi));
        }
    }
    for ((lo, hi), x) in lo.iter_mut().zip(&mut hi).zip(vectors) {
        let x = l.load(x);
        (*lo, *hi) = (l.min(x, *lo), l.max(x, *hi));
    }
    let ([a, b, c, d], [e, f, g, h]) = (lo, hi);
    let (mut lows, mut highs) = ([0.0; LANES], [0.0; LANES]);
    l.store(l.min(l.min(a, b), l.min(c, d)), &mut lows);
    l.store(l.max(l.max(e, f), l.max(g, h)), &mut highs);
    let (least, greatest) = scalar::min_max(tail);
    (scalar::min_max(&lows).0.min(least), scalar::min_max(&highs).1.max(greatest))
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
    let n = tail.len();
    put(l, exp(l, l.sub(load_some(l, tail), m)), n, tail);
    fold(l, l.add(s, l.load(&padded(tail))))
}

#[inline(always)]
pub fn prefetch<L: Lanes>(l: L, ahead: Ahead) {
    for line in ahead.lines() {
        l.prefetch(line);
    }
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

/// A step of a sum over two rows. Not a closure: one that is not inlined would run without the instruction set.
trait Term: Copy {
    fn add<L: Lanes>(self, l: L, x: L::V, y: L::V, sum: L::V) -> L::V;
}

#[derive(Clone, Copy)]
struct Product;

impl Term for Product {
    #[inline(always)]
    fn add<L: Lanes>(self, l: L, x: L::V, y: L::V, sum: L::V) -> L::V {
        l.mul_add(x, y, sum)
    }
}

/// Of the first row alone.
#[derive(Clone, Copy)]
struct Square;

impl Term for Square {
    #[inline(always)]
    fn add<L: Lanes>(self, l: L, x: L::V, _: L::V, sum: L::V) -> L::V {
        l.mul_add(x, x, sum)
    }
}

#[derive(Clone, Copy)]
struct SquaredDifference;

impl Term for SquaredDifference {
    #[inline(always)]
    fn add<L: Lanes>(self, l: L, x: L::V, y: L::V, sum: L::V) -> L::V {
        let z = l.sub(x, y);
        l.mul_add(z, z, sum)
    }
}

/// A term summed over vectors for four slices and the same other one.
#[inline(always)]
fn accumulate<L: Lanes, A: Element, C: Element>(l: L, term: impl Term, a: [&[A]; BLOCK], c: &[C]) -> [L::V; BLOCK] {
    let zero = l.splat(0.0);
    let [mut s0, mut s1, mut s2, mut s3] = [zero; BLOCK];
    let [a0, a1, a2, a3] = a.map(|a| a.as_chunks::<LANES>());
    let c = c.as_chunks::<LANES>();
    for ((((a0, a1), a2), a3), c) in a0.0.iter().zip(a1.0).zip(a2.0).zip(a3.0).zip(c.0) {
        let c = C::load(l, c);
        s0 = term.add(l, A::load(l, a0), c, s0);
        s1 = term.add(l, A::load(l, a1), c, s1);
        s2 = term.add(l, A::load(l, a2), c, s2);
        s3 = term.add(l, A::load(l, a3), c, s3);
    }
    if !c.1.is_empty() {
        let c = load_some(l, c.1);
        s0 = term.add(l, load_some(l, a0.1), c, s0);
        s1 = term.add(l, load_some(l, a1.1), c, s1);
        s2 = term.add(l, load_some(l, a2.1), c, s2);
        s3 = term.add(l, load_some(l, a3.1), c, s3);
    }
    [s0, s1, s2, s3]
}

/// The squared lengths of 16 rows.
#[inline(always)]
fn squares<L: Lanes, E: Element>(l: L, [low, high]: [[&[E]; 8]; 2]) -> L::V {
    let [a0, a1, a2, a3, a4, a5, a6, a7] = eight_squares(l, low);
    let [b0, b1, b2, b3, b4, b5, b6, b7] = eight_squares(l, high);
    l.fold16([a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7])
}

#[inline(always)]
fn eight_squares<L: Lanes, E: Element>(l: L, rows: [&[E]; 8]) -> [L::V; 8] {
    let zero = l.splat(0.0);
    let [mut s0, mut s1, mut s2, mut s3, mut s4, mut s5, mut s6, mut s7] = [zero; 8];
    let [a0, a1, a2, a3, a4, a5, a6, a7] = rows.map(|a| a.as_chunks::<LANES>());
    macro_rules! step {
        ($load:path, $($a:expr, $s:ident);*) => {$(
            let x = $load(l, $a);
            $s = l.mul_add(x, x, $s);
        )*};
    }
    let whole = a0.0.iter().zip(a1.0).zip(a2.0).zip(a3.0).zip(a4.0).zip(a5.0).zip(a6.0).zip(a7.0);
    for (((((((a0, a1), a2), a3), a4), a5), a6), a7) in whole {
        step!(Element::load, a0, s0; a1, s1; a2, s2; a3, s3; a4, s4; a5, s5; a6, s6; a7, s7);
        compiler_fence(Ordering::SeqCst);
    }
    if !a0.1.is_empty() {
        step!(load_some, a0.1, s0; a1.1, s1; a2.1, s2; a3.1, s3; a4.1, s4; a5.1, s5; a6.1, s6; a7.1, s7);
    }
    [s0, s1, s2, s3, s4, s5, s6, s7]
}

/// Both sums in one go over eight rows: products with `direction` in the first lanes, squared differences from `mean` in
/// the others.
#[inline(always)]
fn products_and_differences<L: Lanes, E: Element>(l: L, rows: [&[E]; 8], direction: &[f32], mean: &[f32]) -> L::V {
    let zero = l.splat(0.0);
    let [mut p0, mut p1, mut p2, mut p3, mut p4, mut p5, mut p6, mut p7] = [zero; 8];
    let [mut s0, mut s1, mut s2, mut s3, mut s4, mut s5, mut s6, mut s7] = [zero; 8];
    let [a0, a1, a2, a3, a4, a5, a6, a7] = rows.map(|a| a.as_chunks::<LANES>());
    let (u, m) = (direction.as_chunks::<LANES>(), mean.as_chunks::<LANES>());
    macro_rules! step {
        ($load:path, $u:expr, $m:expr, $($a:expr, $p:ident, $s:ident);*) => {
            let (u, m) = ($load(l, $u), $load(l, $m));
            $(
                let x = $load(l, $a);
                $p = Product.add(l, x, u, $p);
                $s = SquaredDifference.add(l, x, m, $s);
            )*
        };
    }
    let whole = a0.0.iter().zip(a1.0).zip(a2.0).zip(a3.0).zip(a4.0).zip(a5.0).zip(a6.0).zip(a7.0).zip(u.0).zip(m.0);
    for (((((((((a0, a1), a2), a3), a4), a5), a6), a7), u), m) in whole {
        step!(Element::load, u, m,
            a0, p0, s0; a1, p1, s1; a2, p2, s2; a3, p3, s3; a4, p4, s4; a5, p5, s5; a6, p6, s6; a7, p7, s7);
        compiler_fence(Ordering::SeqCst);
    }
    if !u.1.is_empty() {
        step!(load_some, u.1, m.1, a0.1, p0, s0; a1.1, p1, s1; a2.1, p2, s2; a3.1, p3, s3;
            a4.1, p4, s4; a5.1, p5, s5; a6.1, p6, s6; a7.1, p7, s7);
    }
    l.fold16([p0, p1, p2, p3, p4, p5, p6, p7, s0, s1, s2, s3, s4, s5, s6, s7])
}

/// Up to 16 rows in two blocks; the first row stands for those missing, and nothing for that.
#[inline(always)]
fn eights<E>(rows: &[E], d: usize, whole: bool) -> Option<[[&[E]; 8]; 2]> {
    if whole {
        let rows = rows.get(..d.saturating_mul(LANES))?;
        let row = |i: usize| part(rows, i, d);
        let low = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
        return Some([low, [row(8), row(9), row(10), row(11), row(12), row(13), row(14), row(15)]]);
    }
    let first = rows.get(..d)?;
    let mut rest = rows;
    // Not `chunks_exact`, which divides.
    let mut next = || match rest.split_at_checked(d) {
        Some((row, after)) => {
            rest = after;
            row
        }
        None => first,
    };
    let low = [next(), next(), next(), next(), next(), next(), next(), next()];
    Some([low, [next(), next(), next(), next(), next(), next(), next(), next()]])
}

#[inline(always)]
fn part<E>(rows: &[E], i: usize, d: usize) -> &[E] {
    let from = i.saturating_mul(d);
    rows.get(from..from.saturating_add(d)).unwrap_or_default()
}

/// For `K` vectors of columns from `from` on: `mean += sum_i rows[i]`, `direction += sum_i w[i] rows[i]`, the sums first.
#[inline(always)]
fn add_sums<L: Lanes, E: Element, const K: usize>(
    l: L,
    w: &[f32],
    rows: &[E],
    from: usize,
    mean: &mut [f32],
    direction: &mut [f32],
) {
    let d = mean.len();
    let mut sums = [[l.splat(0.0); K]; 2];
    let mut rest = rows;
    for &w in w {
        let Some((row, after)) = rest.split_at_checked(d) else { break };
        rest = after;
        let x = row.get(from..).unwrap_or_default().as_chunks::<LANES>().0;
        let Some(x) = x.first_chunk::<K>() else { break };
        let w = l.splat(w);
        let [means, directions] = &mut sums;
        for ((m, u), x) in means.iter_mut().zip(directions).zip(x) {
            let x = E::load(l, x);
            (*m, *u) = (l.add(*m, x), l.mul_add(w, x, *u));
        }
    }
    for (y, sums) in [mean, direction].into_iter().zip(sums) {
        let y = y.get_mut(from..).unwrap_or_default().as_chunks_mut::<LANES>().0;
        for (y, s) in y.iter_mut().zip(sums) {
            l.store(l.add(l.load(y), s), y);
        }
    }
}

/// Fills `out` with the sums of a term over each row and `c`, four rows at a time.
#[inline(always)]
fn for_blocks<L: Lanes, E: Element, C: Element>(l: L, term: impl Term, rows: &[E], c: &[C], out: &mut [f32]) {
    let d = c.len().max(1);
    let n = out.len().min(rows.len().checked_div(d).unwrap_or(0));
    let (outs, rest) = out.get_mut(..n).unwrap_or_default().as_chunks_mut::<BLOCK>();
    let mut blocks = rows.get(..n.saturating_mul(d)).unwrap_or_default().chunks_exact(d.saturating_mul(BLOCK));
    for (out, rows) in outs.iter_mut().zip(blocks.by_ref()) {
        let Some(rows) = split4(rows, d) else { return };
        *out = l.fold4(accumulate(l, term, rows, c));
    }
    for (out, row) in rest.iter_mut().zip(blocks.remainder().chunks_exact(d)) {
        [*out, ..] = l.fold4(accumulate(l, term, [row; BLOCK], c));
    }
}

/// `add_rows` for the columns from `from` on.
#[inline(always)]
fn add_columns<L: Lanes, E: Element>(l: L, w: &[f32], rows: &[E], mut from: usize, y: &mut [f32]) {
    let d = y.len().max(1);
    let (whole, tail) = y.get_mut(from..).unwrap_or_default().as_chunks_mut::<LANES>();
    for y in whole {
        let mut s = l.splat(0.0);
        for (&w, row) in w.iter().zip(rows.chunks_exact(d)) {
            if let Some(x) = row.get(from..).and_then(|r| r.first_chunk()) {
                s = l.mul_add(l.splat(w), E::load(l, x), s);
            }
        }
        l.store(l.add(l.load(y), s), y);
        from = from.saturating_add(LANES);
    }
    for (j, y) in tail.iter_mut().enumerate() {
        let column = rows.get(from.saturating_add(j)..).unwrap_or_default().iter().step_by(d);
        *y += w.iter().zip(column).fold(0.0, |s, (&w, x)| mul_add(w, x.wide(), s));
    }
}

/// `a / b`, 0 where `b` is 0; `b` is not negative.
#[inline(always)]
fn ratio<L: Lanes>(l: L, a: L::V, b: L::V) -> L::V {
    l.less(b, l.splat(f32::from_bits(1)), l.splat(0.0), l.div(a, b))
}

/// The first `n` lanes to the front of `out`.
#[inline(always)]
fn put<L: Lanes>(l: L, v: L::V, n: usize, out: &mut [f32]) {
    match out.first_chunk_mut() {
        Some(out) if n == LANES => l.store(v, out),
        _ => {
            let mut lanes = [0.0; LANES];
            l.store(v, &mut lanes);
            out.iter_mut().zip(lanes).take(n).for_each(|(o, x)| *o = x);
        }
    }
}

/// Memory that is asked for in equal steps, between other work: all at once, the lines would queue up.
struct Steps {
    at: *const u8,
    bytes: usize,
}

impl Steps {
    fn new(ahead: Ahead, steps: usize) -> Self {
        Self { at: ahead.at, bytes: ahead.share(steps) }
    }

    /// Two lines, of which steps of at most two lines miss none.
    #[inline(always)]
    fn fetch<L: Lanes>(&mut self, l: L) {
        l.prefetch(self.at);
        l.prefetch(self.at.wrapping_add(Ahead::LINE));
        self.at = self.at.wrapping_add(self.bytes);
    }
}

/// Dot products of four queries with 16 rows from `16 half` on, or with `16 K`. A lane is a row.
#[inline(always)]
fn four_dots<L: Lanes, const K: usize>(
    l: L,
    q: [&[f32]; BLOCK],
    columns: &[[f32; COLUMN_ROWS]],
    half: usize,
    ahead: Ahead,
) -> [[L::V; K]; BLOCK] {
    let mut sums = [[l.splat(0.0); K]; BLOCK];
    let mut ahead = Steps::new(ahead, columns.len());
    let [a, b, c, d] = q;
    for ((((x, &a), &b), &c), &d) in columns.iter().zip(a).zip(b).zip(c).zip(d) {
        ahead.fetch(l);
        sums = products(l, x, [a, b, c, d], half, sums);
    }
    sums
}

/// Likewise of eight with all rows.
#[inline(always)]
fn eight_dots<L: Lanes>(
    l: L,
    q: [&[f32]; 2 * BLOCK],
    columns: &[[f32; COLUMN_ROWS]],
    ahead: Ahead,
) -> [[L::V; 2]; 2 * BLOCK] {
    let mut sums = [[l.splat(0.0); 2]; 2 * BLOCK];
    let mut ahead = Steps::new(ahead, columns.len());
    let [a, b, c, d, e, f, g, h] = q;
    let all = columns.iter().zip(a).zip(b).zip(c).zip(d).zip(e).zip(f).zip(g).zip(h);
    for ((((((((x, &a), &b), &c), &d), &e), &f), &g), &h) in all {
        ahead.fetch(l);
        sums = products(l, x, [a, b, c, d, e, f, g, h], 0, sums);
    }
    sums
}

/// Adds the products of one channel.
#[inline(always)]
fn products<L: Lanes, const Q: usize, const K: usize>(
    l: L,
    x: &[f32; COLUMN_ROWS],
    q: [f32; Q],
    half: usize,
    mut sums: [[L::V; K]; Q],
) -> [[L::V; K]; Q] {
    let mut keys = [l.splat(0.0); K];
    for (key, x) in keys.iter_mut().zip(x.as_chunks().0.iter().skip(half)) {
        *key = l.load(x);
    }
    for (sums, q) in sums.iter_mut().zip(q) {
        let q = l.splat(q);
        for (sum, key) in sums.iter_mut().zip(keys) {
            *sum = l.mul_add(q, key, *sum);
        }
    }
    sums
}

/// The first `n` of each query's products, times `a`, to the front of its output.
#[inline(always)]
fn put_scaled<'a, L: Lanes, const Q: usize>(
    l: L,
    a: L::V,
    dots: [[L::V; 2]; Q],
    n: usize,
    outs: impl Iterator<Item = &'a mut [f32]>,
) {
    for (out, [left, right]) in outs.zip(dots) {
        put(l, l.mul(a, left), n.min(LANES), out);
        put(l, l.mul(a, right), n.saturating_sub(LANES), out.get_mut(LANES..).unwrap_or_default());
    }
}

#[inline(always)]
fn split4<E>(x: &[E], d: usize) -> Option<[&[E]; BLOCK]> {
    let mut parts = x.chunks_exact(d);
    Some([parts.next()?, parts.next()?, parts.next()?, parts.next()?])
}

/// The first 16 elements, zeros for those missing.
#[inline(always)]
fn load_some<L: Lanes, E: Element>(l: L, x: &[E]) -> L::V {
    match x.first_chunk() {
        Some(x) => E::load(l, x),
        None => E::load(l, &padded(x)),
    }
}

#[inline(always)]
fn padded<E: Element>(x: &[E]) -> [E; LANES] {
    let mut out = [E::ZERO; LANES];
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
    let log2_e = l.splat(LOG2_E);
    let shifted = l.mul_add(x, log2_e, magic);
    let r = l.mul_add(x, log2_e, l.sub(magic, shifted));
    let [c, rest @ ..] = exp_of::POLYNOMIAL;
    let mut p = l.splat(c);
    for c in rest {
        p = l.mul_add(p, r, l.splat(c));
    }
    l.less(x, l.splat(exp_of::LEAST), l.splat(0.0), l.mul(p, l.exp2_bits(shifted)))
}

/// Entry points of an instruction set: each kernel compiled with its features enabled.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! entries {
    ([$token:ident, $features:literal]
     $($(#[$doc:meta])* fn $name:ident$([$e:ident])?($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        impl $token {$(
            #[allow(clippy::too_many_arguments)]
            pub fn $name$(<$e: super::Element>)?(self, $($arg: $ty),*) $(-> $ret)? {
                #[target_feature(enable = $features)]
                #[allow(clippy::too_many_arguments)]
                fn run$(<$e: super::Element>)?(token: $token, $($arg: $ty),*) $(-> $ret)? {
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
