//! The query heads of a group against cached rows of their KV head. A row is converted to floats once for up to `G` heads;
//! larger groups go through blocks of rows that stay in the first-level cache.

use super::Partial;
use super::lanes::{Elem, Lanes, MAX_LANES};

/// Rows whose scores are held at a time.
const BLOCK: usize = 64;

/// Scores of one block, `[heads][BLOCK]`.
type Scores = [[f32; BLOCK]; 4];

/// Calls `$kernel::<L, E, heads>` for as many of `$left` heads as go together, at most `$most`.
macro_rules! with_heads {
    ($left:expr, $most:expr, $kernel:ident ( $($arg:expr),* $(,)? )) => {
        match $left.min($most) {
            4.. => $kernel::<L, E, 4>($($arg),*),
            3 => $kernel::<L, E, 3>($($arg),*),
            2 => $kernel::<L, E, 2>($($arg),*),
            _ => $kernel::<L, E, 1>($($arg),*),
        }
    };
}

/// Scores of all heads; see `Dispatch::dot_rows`.
#[inline(always)]
pub(super) unsafe fn dot<L: Lanes, E: Elem, const G: usize>(
    q: &[f32],
    k: *const u8,
    d: usize,
    scale: f32,
    len: usize,
    scores: &mut [f32],
) {
    let group = q.len() / d;
    for from in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - from);
        for g in (0..group).step_by(G) {
            let mut block: Scores = [[0.0; BLOCK]; 4];
            let heads = G.min(group - g);
            // SAFETY: rows and heads are in bounds (checked by `Dispatch`).
            unsafe {
                let (q, k) = (q.as_ptr().add(g * d), k.add(from * E::row_bytes(d)));
                let next = k.wrapping_add(BLOCK * E::row_bytes(d));
                with_heads!(group - g, G, score(q, k, d, n, scale, &mut block, next));
            }
            for (g, block) in (g..g + heads).zip(block) {
                scores[g * len + from..][..n].copy_from_slice(&block[..n]);
            }
        }
    }
}

/// Streaming softmax and sums of values of all heads; see `Dispatch::attend_rows`.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // keys, values, and what they meet
pub(super) unsafe fn attend<L: Lanes, E: Elem, const G: usize>(
    q: &[f32],
    k: *const u8,
    v: *const u8,
    d: usize,
    len: usize,
    scale: f32,
    bias: &[f32],
    part: &mut Partial<'_>,
) {
    let group = q.len() / d;
    part.max.fill(f32::NEG_INFINITY);
    part.sum.fill(0.0);
    part.values.fill(0.0);
    for from in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - from);
        let offset = from * E::row_bytes(d);
        for g in (0..group).step_by(G) {
            let mut block: Scores = [[f32::NEG_INFINITY; BLOCK]; 4];
            let heads = G.min(group - g);
            // SAFETY: rows and heads are in bounds (checked by `Dispatch`).
            unsafe {
                let (q, k, v) = (q.as_ptr().add(g * d), k.add(offset), v.add(offset));
                with_heads!(group - g, G, score(q, k, d, n, scale, &mut block, v));
                for (g, block) in (g..g + heads).zip(&mut block) {
                    block.iter_mut().zip(bias.get(from..).unwrap_or_default()).for_each(|(s, b)| *s += b);
                    let values = &mut part.values[g * d..(g + 1) * d];
                    weigh::<L>(block, &mut part.max[g], &mut part.sum[g], values);
                }
                let values = part.values.as_mut_ptr().add(g * d);
                let next = k.wrapping_add(BLOCK * E::row_bytes(d));
                with_heads!(group - g, G, accumulate(&block, v, d, n, values, next));
            }
        }
    }
}

/// Scores of `G` heads against `n` rows; those of other rows stay as they are. Asks for the rows at `next`, which are read
/// after these: keys and values alternate, too often for the CPU to see where they go on.
#[inline(always)]
unsafe fn score<L: Lanes, E: Elem, const G: usize>(
    q: *const f32,
    k: *const u8,
    d: usize,
    n: usize,
    scale: f32,
    scores: &mut Scores,
    next: *const u8,
) {
    let whole = d / L::N * L::N;
    // SAFETY: q has G rows of d floats, k has n rows of d elements; rows beyond the last are replaced by it.
    unsafe {
        for i in (0..n).step_by(L::N) {
            let mut quads = [[L::zero(); MAX_LANES / 4]; G];
            for j in 0..L::N / 4 {
                let mut rows = [k; 4];
                for r in 0..4 {
                    rows[r] = k.add((i + 4 * j + r).min(n - 1) * E::row_bytes(d));
                }
                let next = next.wrapping_add((i + 4 * j) * E::row_bytes(d));
                let mut acc = [[L::zero(); 4]; G];
                let mut c = 0;
                while c + 4 * L::N <= whole {
                    dots::<L, E, G, 4>(q, rows, d, c, &mut acc, next);
                    c += 4 * L::N;
                }
                while c < whole {
                    dots::<L, E, G, 1>(q, rows, d, c, &mut acc, next);
                    c += L::N;
                }
                for g in 0..G {
                    quads[g][j] = L::quad(acc[g]);
                }
            }
            let valid = L::N.min(n - i);
            for g in 0..G {
                let sums = L::fold(quads[g].as_ptr());
                let scores = &mut scores[g][i..i + L::N];
                if valid == L::N && whole == d {
                    sums.mul(L::splat(scale)).store(scores.as_mut_ptr());
                    continue;
                }
                let mut lanes = [0.0; MAX_LANES];
                sums.store(lanes.as_mut_ptr());
                for r in 0..valid {
                    for c in whole..d {
                        lanes[r] += *q.add(g * d + c) * E::one::<L>(k.add((i + r) * E::row_bytes(d)), c);
                    }
                    scores[r] = scale * lanes[r];
                }
            }
        }
    }
}

/// Adds what `C` registers of columns from `c` bring to the dot products of `G` heads with four rows. Asks for these
/// columns of the four rows at `next`.
#[inline(always)]
unsafe fn dots<L: Lanes, E: Elem, const G: usize, const C: usize>(
    q: *const f32,
    rows: [*const u8; 4],
    d: usize,
    c: usize,
    acc: &mut [[L; 4]; G],
    next: *const u8,
) {
    // SAFETY: the contract of `score`.
    unsafe {
        for r in 0..4 {
            ask::<L, E, C>(next.wrapping_add(r * E::row_bytes(d)), c);
        }
        for j in 0..C {
            let c = c + j * L::N;
            let mut keys = [L::zero(); 4];
            for r in 0..4 {
                keys[r] = E::load::<L>(rows[r], c);
            }
            for g in 0..G {
                let q = L::load(q.add(g * d + c));
                for r in 0..4 {
                    acc[g][r] = keys[r].fma(q, acc[g][r]);
                }
            }
        }
    }
}

/// Asks for `C` registers of columns from `c` of a row.
#[inline(always)]
unsafe fn ask<L: Lanes, E: Elem, const C: usize>(row: *const u8, c: usize) {
    let from = E::row_bytes(c);
    for line in (0..E::row_bytes(c + C * L::N) - from).step_by(64) {
        // SAFETY: the caller has the features; nothing is read.
        unsafe { L::prefetch(row.wrapping_add(from + line)) };
    }
}

/// Turns the scores of a block into weights; `max`, `sum` and `values` so far are brought to the new maximum.
#[inline(always)]
unsafe fn weigh<L: Lanes>(scores: &mut [f32; BLOCK], max: &mut f32, sum: &mut f32, values: &mut [f32]) {
    // SAFETY: BLOCK is a multiple of N.
    unsafe {
        let p = scores.as_mut_ptr();
        let mut top = L::splat(*max);
        for i in (0..BLOCK).step_by(L::N) {
            top = L::load(p.add(i)).max(top);
        }
        let top = top.highest();
        if top == f32::NEG_INFINITY {
            scores.fill(0.0); // nothing is visible: no weights, rather than NaN
            return;
        }
        if top > *max {
            let mut shrink = [0.0; MAX_LANES];
            L::splat(*max - top).exp().store(shrink.as_mut_ptr());
            *sum *= shrink[0];
            values.iter_mut().for_each(|v| *v *= shrink[0]);
            *max = top;
        }
        let mut total = L::zero();
        for i in (0..BLOCK).step_by(L::N) {
            let weight = L::load(p.add(i)).sub(L::splat(top)).exp();
            total = total.add(weight);
            weight.store(p.add(i));
        }
        *sum += total.total();
    }
}

/// `out[g] += sum_i p[g][i] * v[i]` for `G` heads and `n` rows. Asks for the rows at `next`.
#[inline(always)]
unsafe fn accumulate<L: Lanes, E: Elem, const G: usize>(
    p: &Scores,
    v: *const u8,
    d: usize,
    n: usize,
    out: *mut f32,
    next: *const u8,
) {
    let mut c = 0;
    // SAFETY: v has n rows of d elements, out has G rows of d floats.
    unsafe {
        while c + 4 * L::N <= d {
            columns::<L, E, G, 4>(p, v, d, n, out, c, next);
            c += 4 * L::N;
        }
        while c + L::N <= d {
            columns::<L, E, G, 1>(p, v, d, n, out, c, next);
            c += L::N;
        }
        for c in c..d {
            for g in 0..G {
                for i in 0..n {
                    *out.add(g * d + c) += p[g][i] * E::one::<L>(v.add(i * E::row_bytes(d)), c);
                }
            }
        }
    }
}

/// As [`accumulate`] for `C` registers of columns from `c`.
#[inline(always)]
unsafe fn columns<L: Lanes, E: Elem, const G: usize, const C: usize>(
    p: &Scores,
    v: *const u8,
    d: usize,
    n: usize,
    out: *mut f32,
    c: usize,
    next: *const u8,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[L::zero(); C]; G];
        for g in 0..G {
            for j in 0..C {
                acc[g][j] = L::load(out.add(g * d + c + j * L::N));
            }
        }
        for i in 0..n {
            let row = v.add(i * E::row_bytes(d));
            ask::<L, E, C>(next.wrapping_add(i * E::row_bytes(d)), c);
            let mut weights = [L::zero(); G];
            for g in 0..G {
                weights[g] = L::splat(p[g][i]);
            }
            for j in 0..C {
                let value = E::load::<L>(row, c + j * L::N);
                for g in 0..G {
                    acc[g][j] = value.fma(weights[g], acc[g][j]);
                }
            }
        }
        for g in 0..G {
            for j in 0..C {
                acc[g][j].store(out.add(g * d + c + j * L::N));
            }
        }
    }
}
