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
    /// The lanes of each argument folded in halves.
    fn fold4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Lane `j` of argument `i` to lane `i` of result `j`.
    fn transpose(self, v: [Self::V; LANES]) -> [Self::V; LANES];
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
            let dots = l.fold4(accumulate(l, Product, q, [row; BLOCK]));
            for (o, dot) in out.iter_mut().skip(i).step_by(stride.max(1)).zip(dots) {
                *o = dot;
            }
        }
    }
    // Fewer queries than a block: take the rows in blocks instead.
    for (q, out) in queries.remainder().chunks_exact(d).zip(outs.flat_map(|o| o.chunks_mut(stride.max(1)))) {
        for_blocks(l, Product, rows, d, Some(q), out);
    }
}

/// Turns each tile of rows around, so that the 16 dot products of a query with them add up side by side and need no
/// folding.
#[inline(always)]
pub fn dots_many<L: Lanes>(
    l: L,
    q: &[f32],
    head_dim: usize,
    rows: &[f32],
    columns: &mut [f32],
    out: &mut [f32],
    stride: usize,
) {
    let (d, stride) = (head_dim.max(1), stride.max(1));
    let Some(columns) = columns.as_chunks_mut::<LANES>().0.get_mut(..d) else { return };
    let mut at = 0usize;
    for rows in rows.chunks(d.saturating_mul(LANES)) {
        let n = turn(l, rows, d, columns);
        let mut queries = q.chunks_exact(d.saturating_mul(BLOCK));
        let mut outs = out.chunks_mut(stride);
        for q in queries.by_ref() {
            let Some(q) = split4(q, d) else { return };
            let products = column_dots(l, q, columns);
            for (products, out) in products.into_iter().zip(outs.by_ref()) {
                put(l, products, n, out.get_mut(at..).unwrap_or_default());
            }
        }
        for q in queries.remainder().chunks_exact(d) {
            let Some(out) = outs.next() else { return };
            let out = out.get_mut(at..at.saturating_add(n)).unwrap_or_default();
            for_blocks(l, Product, rows, d, Some(q), out);
        }
        at = at.saturating_add(LANES);
    }
}

#[inline(always)]
pub fn sq_norms<L: Lanes>(l: L, rows: &[f32], head_dim: usize, out: &mut [f32]) {
    for_blocks(l, Product, rows, head_dim.max(1), None, out);
}

#[inline(always)]
pub fn sq_dists<L: Lanes>(l: L, c: &[f32], rows: &[f32], out: &mut [f32]) {
    for_blocks(l, SquaredDifference, rows, c.len().max(1), Some(c), out);
}

#[inline(always)]
pub fn gather<L: Lanes>(l: L, rows: &[f32], norms: &mut [f32], mean: &mut [f32], direction: &mut [f32]) {
    let mut lengths = [0.0; LANES];
    let n = norms.len().min(LANES);
    sq_norms(l, rows, mean.len(), lengths.get_mut(..n).unwrap_or_default());
    let lengths = l.sqrt(l.load(&lengths));
    let mut inverse = [0.0; LANES];
    l.store(ratio(l, l.splat(1.0), lengths), &mut inverse);
    put(l, lengths, n, norms);
    let inverse = inverse.get(..n).unwrap_or_default();
    // Two vectors of each sum in flight.
    let d = mean.len().max(1);
    let (means, _) = mean.as_chunks_mut::<{ 2 * LANES }>();
    let (directions, _) = direction.as_chunks_mut::<{ 2 * LANES }>();
    let mut from = 0usize;
    for (mean, direction) in means.iter_mut().zip(directions) {
        let zero = l.splat(0.0);
        let [mut m0, mut m1, mut d0, mut d1] = [zero; 4];
        for (&w, row) in inverse.iter().zip(rows.chunks_exact(d)) {
            let x = row.get(from..).and_then(|x| x.first_chunk::<{ 2 * LANES }>()).unwrap_or(&[0.0; 2 * LANES]);
            let (w, (x0, x1)) = (l.splat(w), two(l, x));
            (m0, m1) = (l.add(m0, x0), l.add(m1, x1));
            (d0, d1) = (l.add(d0, l.mul(w, x0)), l.add(d1, l.mul(w, x1)));
        }
        for (y, (s0, s1)) in [(mean, (m0, m1)), (direction, (d0, d1))] {
            let (y0, y1) = two(l, y);
            if let [to0, to1] = y.as_chunks_mut().0 {
                l.store(l.add(y0, s0), to0);
                l.store(l.add(y1, s1), to1);
            }
        }
        from = from.saturating_add(2 * LANES);
    }
    let ones = [1.0; LANES];
    add_columns(l, ones.get(..n).unwrap_or_default(), rows, from, mean);
    add_columns(l, inverse, rows, from, direction);
}

#[inline(always)]
pub fn compare<L: Lanes>(
    l: L,
    direction: &[f32],
    length: f32,
    mean: &[f32],
    rows: &[f32],
    cosines: &mut [f32],
    distances: &mut [f32],
) {
    let d = mean.len().max(1);
    let tiles = rows.chunks(d.saturating_mul(LANES));
    for ((rows, cosines), distances) in tiles.zip(cosines.chunks_mut(LANES)).zip(distances.chunks_mut(LANES)) {
        let (mut dots, mut squares) = ([0.0; LANES], [0.0; LANES]);
        let n = cosines.len().min(distances.len());
        for_blocks(l, Product, rows, d, Some(direction), dots.get_mut(..n).unwrap_or_default());
        sq_dists(l, mean, rows, squares.get_mut(..n).unwrap_or_default());
        let norms = load_some(l, distances);
        let cosine = ratio(l, l.load(&dots), l.mul(norms, l.splat(length)));
        put(l, l.mul(cosine, l.splat(-1.0)), n, cosines);
        put(l, l.sqrt(l.load(&squares)), n, distances);
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
        l.store(l.add(l.load(y), l.mul(v, l.load(x))), y);
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
            let s = l.add(l.load(y), l.mul(va, l.load(a)));
            let s = l.add(s, l.mul(vb, l.load(b)));
            let s = l.add(s, l.mul(vc, l.load(c)));
            l.store(l.add(s, l.mul(vd, l.load(d))), y);
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
pub fn scale_max<L: Lanes>(l: L, a: f32, x: &mut [f32]) -> f32 {
    let v = l.splat(a);
    let mut hi = [l.splat(f32::NEG_INFINITY); BLOCK];
    let (blocks, rest) = x.as_chunks_mut::<{ BLOCK * LANES }>();
    let (vectors, tail) = rest.as_chunks_mut::<LANES>();
    for block in blocks {
        for (hi, x) in hi.iter_mut().zip(block.as_chunks_mut().0) {
            let y = l.mul(l.load(x), v);
            l.store(y, x);
            *hi = l.max(y, *hi);
        }
    }
    for (hi, x) in hi.iter_mut().zip(vectors) {
        let y = l.mul(l.load(x), v);
        l.store(y, x);
        *hi = l.max(y, *hi);
    }
    let [a0, a1, a2, a3] = hi;
    let mut highs = [0.0; LANES];
    l.store(l.max(l.max(a0, a1), l.max(a2, a3)), &mut highs);
    scalar::min_max(&highs).1.max(scalar::scale_max(a, tail))
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
pub fn prefetch<L: Lanes>(l: L, x: &[f32]) {
    for line in x.chunks(LANES) {
        l.prefetch(line.as_ptr().cast());
    }
}

#[inline(always)]
pub fn widen_f16<L: Lanes>(l: L, src: &[f16], dst: &mut [f32]) {
    let ahead = size_of_val(src); // what follows is usually next
    let (src, src_tail) = src.as_chunks::<LANES>();
    let (dst, dst_tail) = dst.as_chunks_mut::<LANES>();
    for (d, s) in dst.iter_mut().zip(src) {
        l.prefetch(s.as_ptr().cast::<u8>().wrapping_add(ahead));
        l.store(l.widen_f16(s), d);
    }
    scalar::widen_f16(src_tail, dst_tail);
}

#[inline(always)]
pub fn widen_bf16<L: Lanes>(l: L, src: &[bf16], dst: &mut [f32]) {
    let ahead = size_of_val(src); // what follows is usually next
    let (src, src_tail) = src.as_chunks::<LANES>();
    let (dst, dst_tail) = dst.as_chunks_mut::<LANES>();
    for (d, s) in dst.iter_mut().zip(src) {
        l.prefetch(s.as_ptr().cast::<u8>().wrapping_add(ahead));
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

/// What is summed over two rows. Not a closure: one that is not inlined would run without the instruction set.
trait Term: Copy {
    fn of<L: Lanes>(self, l: L, x: L::V, y: L::V) -> L::V;
}

#[derive(Clone, Copy)]
struct Product;

impl Term for Product {
    #[inline(always)]
    fn of<L: Lanes>(self, l: L, x: L::V, y: L::V) -> L::V {
        l.mul(x, y)
    }
}

#[derive(Clone, Copy)]
struct SquaredDifference;

impl Term for SquaredDifference {
    #[inline(always)]
    fn of<L: Lanes>(self, l: L, x: L::V, y: L::V) -> L::V {
        let z = l.sub(x, y);
        l.mul(z, z)
    }
}

/// A term summed over vectors for four pairs of slices at once.
#[inline(always)]
fn accumulate<L: Lanes>(l: L, term: impl Term, a: [&[f32]; BLOCK], b: [&[f32]; BLOCK]) -> [L::V; BLOCK] {
    let zero = l.splat(0.0);
    let [mut s0, mut s1, mut s2, mut s3] = [zero; BLOCK];
    let [a0, a1, a2, a3] = a.map(|a| a.as_chunks::<LANES>());
    let [b0, b1, b2, b3] = b.map(|b| b.as_chunks::<LANES>());
    let left = a0.0.iter().zip(a1.0).zip(a2.0.iter().zip(a3.0));
    let right = b0.0.iter().zip(b1.0).zip(b2.0.iter().zip(b3.0));
    for (((a0, a1), (a2, a3)), ((b0, b1), (b2, b3))) in left.zip(right) {
        s0 = l.add(s0, term.of(l, l.load(a0), l.load(b0)));
        s1 = l.add(s1, term.of(l, l.load(a1), l.load(b1)));
        s2 = l.add(s2, term.of(l, l.load(a2), l.load(b2)));
        s3 = l.add(s3, term.of(l, l.load(a3), l.load(b3)));
    }
    if !a0.1.is_empty() {
        s0 = l.add(s0, term.of(l, l.load(&padded(a0.1)), l.load(&padded(b0.1))));
        s1 = l.add(s1, term.of(l, l.load(&padded(a1.1)), l.load(&padded(b1.1))));
        s2 = l.add(s2, term.of(l, l.load(&padded(a2.1)), l.load(&padded(b2.1))));
        s3 = l.add(s3, term.of(l, l.load(&padded(a3.1)), l.load(&padded(b3.1))));
    }
    [s0, s1, s2, s3]
}

/// Fills `out` with the sums of a term over each row and `c`, or each row and itself, four rows at a time.
#[inline(always)]
fn for_blocks<L: Lanes>(l: L, term: impl Term, rows: &[f32], d: usize, c: Option<&[f32]>, out: &mut [f32]) {
    let n = out.len().min(rows.len().checked_div(d).unwrap_or(0));
    let (outs, rest) = out.get_mut(..n).unwrap_or_default().as_chunks_mut::<BLOCK>();
    let mut blocks = rows.get(..n.saturating_mul(d)).unwrap_or_default().chunks_exact(d.saturating_mul(BLOCK));
    for (out, rows) in outs.iter_mut().zip(blocks.by_ref()) {
        let Some(rows) = split4(rows, d) else { return };
        *out = l.fold4(accumulate(l, term, rows, c.map_or(rows, |c| [c; BLOCK])));
    }
    for (out, row) in rest.iter_mut().zip(blocks.remainder().chunks_exact(d)) {
        [*out, ..] = l.fold4(accumulate(l, term, [row; BLOCK], [c.unwrap_or(row); BLOCK]));
    }
}

/// `add_rows` for the columns from `from` on.
#[inline(always)]
fn add_columns<L: Lanes>(l: L, w: &[f32], rows: &[f32], mut from: usize, y: &mut [f32]) {
    let d = y.len().max(1);
    let (whole, tail) = y.get_mut(from..).unwrap_or_default().as_chunks_mut::<LANES>();
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
fn two<L: Lanes>(l: L, x: &[f32; 2 * LANES]) -> (L::V, L::V) {
    match x.as_chunks().0 {
        [a, b] => (l.load(a), l.load(b)),
        _ => (l.splat(0.0), l.splat(0.0)),
    }
}

/// `a / b`, 0 where `b` is 0; `b` is not negative.
#[inline(always)]
fn ratio<L: Lanes>(l: L, a: L::V, b: L::V) -> L::V {
    l.less(b, l.splat(f32::from_bits(1)), l.splat(0.0), l.div(a, b))
}

/// Writes the transpose of up to 16 rows, zeros for those missing, and returns how many there are.
#[inline(always)]
fn turn<L: Lanes>(l: L, rows: &[f32], d: usize, columns: &mut [[f32; LANES]]) -> usize {
    let mut each: [&[f32]; LANES] = [&[]; LANES];
    let mut n = 0usize;
    for (to, row) in each.iter_mut().zip(rows.chunks_exact(d)) {
        *to = row;
        n = n.saturating_add(1);
    }
    let mut from = 0usize;
    for columns in columns.chunks_mut(LANES) {
        let mut block = [l.splat(0.0); LANES];
        for (to, row) in block.iter_mut().zip(each) {
            *to = load_some(l, row.get(from..).unwrap_or_default());
        }
        let block = l.transpose(block);
        for (to, column) in columns.iter_mut().zip(block) {
            l.store(column, to);
        }
        from = from.saturating_add(LANES);
    }
    n
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

/// Dot products of four queries with 16 rows given by their columns. Each lane of the definition is a vector here, and
/// the fold is an addition of vectors.
#[inline(always)]
fn column_dots<L: Lanes>(l: L, q: [&[f32]; BLOCK], columns: &[[f32; LANES]]) -> [L::V; BLOCK] {
    let (q, columns) = (q.map(|q| q.as_chunks()), columns.as_chunks());
    macro_rules! lanes {
        ($a:literal) => {
            lane_dots::<L, $a>(l, q, columns)
        };
        ($a:literal $b:literal $c:literal $d:literal) => {
            add(l, add(l, lanes!($a), lanes!($b)), add(l, lanes!($c), lanes!($d)))
        };
    }
    let even = add(l, lanes!(0 8 4 12), lanes!(2 10 6 14));
    let odd = add(l, lanes!(1 9 5 13), lanes!(3 11 7 15));
    // The definition's lanes begin at +0, so its sum is never -0.
    add(l, add(l, even, odd), [l.splat(0.0); BLOCK])
}

/// Vectors of 16, and what is left.
type Chunks<'a, T> = (&'a [[T; LANES]], &'a [T]);

/// Lane `J` of the definition for each query.
#[inline(always)]
fn lane_dots<L: Lanes, const J: usize>(
    l: L,
    q: [Chunks<'_, f32>; BLOCK],
    columns: Chunks<'_, [f32; LANES]>,
) -> [L::V; BLOCK] {
    let [a, b, c, d] = q;
    let mut blocks = columns.0.iter().zip(a.0).zip(b.0).zip(c.0).zip(d.0);
    // The first product begins the sum: +0 need not be added.
    let mut sums = match blocks.next() {
        Some(((((x, a), b), c), d)) => products::<L, J>(l, x, [a, b, c, d]),
        None => [l.splat(0.0); BLOCK],
    };
    for ((((x, a), b), c), d) in blocks {
        sums = add(l, sums, products::<L, J>(l, x, [a, b, c, d]));
    }
    if J < columns.1.len() {
        sums = add(l, sums, products::<L, J>(l, columns.1, [a.1, b.1, c.1, d.1]));
    }
    sums
}

#[inline(always)]
fn products<L: Lanes, const J: usize>(l: L, x: &[[f32; LANES]], q: [&[f32]; BLOCK]) -> [L::V; BLOCK] {
    let x = l.load(x.get(J).unwrap_or(&[0.0; LANES]));
    let [a, b, c, d] = q.map(|q| q.get(J).copied().unwrap_or(0.0));
    [l.mul(l.splat(a), x), l.mul(l.splat(b), x), l.mul(l.splat(c), x), l.mul(l.splat(d), x)]
}

#[inline(always)]
fn add<L: Lanes>(l: L, mut a: [L::V; BLOCK], b: [L::V; BLOCK]) -> [L::V; BLOCK] {
    for (a, b) in a.iter_mut().zip(b) {
        *a = l.add(*a, b);
    }
    a
}

#[inline(always)]
fn split4(x: &[f32], d: usize) -> Option<[&[f32]; BLOCK]> {
    let mut parts = x.chunks_exact(d);
    Some([parts.next()?, parts.next()?, parts.next()?, parts.next()?])
}

/// The first 16 elements, zeros for those missing.
#[inline(always)]
fn load_some<L: Lanes>(l: L, x: &[f32]) -> L::V {
    match x.first_chunk() {
        Some(x) => l.load(x),
        None => l.load(&padded(x)),
    }
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
