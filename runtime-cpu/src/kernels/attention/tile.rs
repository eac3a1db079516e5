//! Many queries against the rows of a head in f32: a lane holds a query, so keys and values are read as they lie, one
//! number at a time, and nothing is ever summed across lanes.

use super::lanes::{Lanes, MAX_LANES};
use super::{TILE_BLOCK, TILE_ROWS, Tile};

/// Attention of all queries of the tile; see `Dispatch::attend_tile`. Products are blocked `R` rows by `V` registers.
#[inline(always)]
pub(super) unsafe fn attend<L: Lanes, const R: usize, const V: usize>(t: &mut Tile, keys: &[f32], values: &[f32]) {
    let mut at = 0;
    while at < t.n {
        // SAFETY: the caller has the features and has checked the rows; V registers stay inside TILE_ROWS.
        unsafe {
            at += match (t.n - at).div_ceil(L::N) {
                1 => walk::<L, R, 1, true>(t, keys, values, at),
                2 if V > 2 => walk::<L, R, 2, true>(t, keys, values, at),
                _ => walk::<L, R, V, true>(t, keys, values, at),
            };
        }
    }
}

/// Adds the attention that each row receives from all queries of the tile; see `Dispatch::tile_column_sums`.
#[inline(always)]
pub(super) unsafe fn column_sums<L: Lanes, const R: usize, const V: usize>(
    t: &mut Tile,
    keys: &[f32],
    sums: &mut [f32],
) {
    let mut at = 0;
    while at < t.n {
        // SAFETY: as in `attend`.
        unsafe {
            let step = walk::<L, R, V, false>(t, keys, &[], at);
            columns::<L, R, V>(t, keys, sums, at);
            at += step;
        }
    }
}

/// Streaming softmax of the queries `at..at + V * N`: leaves maxima and sums, and with `VALUES` the sums of values.
/// Returns the number of queries.
#[inline(always)]
unsafe fn walk<L: Lanes, const R: usize, const V: usize, const VALUES: bool>(
    t: &mut Tile,
    keys: &[f32],
    values: &[f32],
    at: usize,
) -> usize {
    let width = V * L::N;
    let d = t.q.len();
    let whole = seen(t, at, width);
    // SAFETY: lanes at..at + width of every row of the tile; rows below `end` exist (checked by `Dispatch`).
    unsafe {
        let out = t.out.as_mut_ptr().cast::<f32>().add(at);
        let scores = t.scores.as_mut_ptr().cast::<f32>().add(at);
        let mut max = load::<L, V>(t.max.0.as_ptr().add(at));
        let mut sum = load::<L, V>(t.sum.0.as_ptr().add(at));
        let mut from = whole.start;
        while from < whole.end {
            let n = TILE_BLOCK.min(whole.end - from);
            let top = score::<L, R, V>(t, keys, at, from, n, max);
            let mut grown = false;
            for v in 0..V {
                grown |= top[v].any_above(max[v]);
            }
            if grown {
                let mut shrink = [L::zero(); V];
                for v in 0..V {
                    shrink[v] = max[v].sub(top[v]).exp();
                    sum[v] = sum[v].mul(shrink[v]);
                    max[v] = top[v];
                }
                if VALUES {
                    for c in 0..d {
                        let row = out.add(c * TILE_ROWS);
                        for v in 0..V {
                            L::load(row.add(v * L::N)).mul(shrink[v]).store(row.add(v * L::N));
                        }
                    }
                }
            }
            for i in 0..n {
                let row = scores.add(i * TILE_ROWS);
                for v in 0..V {
                    let p = L::load(row.add(v * L::N)).sub(max[v]).exp();
                    sum[v] = sum[v].add(p);
                    p.store(row.add(v * L::N));
                }
            }
            if VALUES {
                let values = values.as_ptr().add(from * d);
                let mut c = 0;
                while c + R <= d {
                    accumulate::<L, R, V>(values.add(c), d, scores, n, out.add(c * TILE_ROWS));
                    c += R;
                }
                while c + 4 <= d {
                    accumulate::<L, 4, V>(values.add(c), d, scores, n, out.add(c * TILE_ROWS));
                    c += 4;
                }
                while c < d {
                    accumulate::<L, 1, V>(values.add(c), d, scores, n, out.add(c * TILE_ROWS));
                    c += 1;
                }
            }
            from += n;
        }
        for v in 0..V {
            max[v].store(t.max.0.as_mut_ptr().add(at + v * L::N));
            sum[v].store(t.sum.0.as_mut_ptr().add(at + v * L::N));
        }
    }
    width
}

/// Adds the weights of every row, summed over the queries `at..at + V * N`, whose maxima and sums are known.
#[inline(always)]
unsafe fn columns<L: Lanes, const R: usize, const V: usize>(t: &mut Tile, keys: &[f32], sums: &mut [f32], at: usize) {
    let whole = seen(t, at, V * L::N);
    let mut inverse = [0.0_f32; TILE_ROWS];
    for (r, inverse) in inverse.iter_mut().enumerate().take(t.n) {
        *inverse = if t.sum.0[r] > 0.0 { 1.0 / t.sum.0[r] } else { 0.0 };
    }
    // SAFETY: as in `walk`; TILE_BLOCK is a multiple of N, so the groups of N rows stay inside `scores`.
    unsafe {
        let max = load::<L, V>(t.max.0.as_ptr().add(at));
        let inverse = load::<L, V>(inverse.as_ptr().add(at));
        let mut from = whole.start;
        while from < whole.end {
            let n = TILE_BLOCK.min(whole.end - from);
            score::<L, R, V>(t, keys, at, from, n, max);
            let scores = t.scores.as_ptr().cast::<f32>().add(at);
            for i in (0..n).step_by(L::N) {
                let mut quads = [L::zero(); MAX_LANES / 4];
                for j in 0..L::N / 4 {
                    let mut rows = [L::zero(); 4];
                    for r in 0..4 {
                        let row = scores.add((i + 4 * j + r) * TILE_ROWS);
                        for v in 0..V {
                            let p = L::load(row.add(v * L::N)).sub(max[v]).exp();
                            rows[r] = p.fma(inverse[v], rows[r]);
                        }
                    }
                    quads[j] = L::quad(rows);
                }
                let mut lanes = [0.0; MAX_LANES];
                L::fold(quads.as_ptr()).store(lanes.as_mut_ptr());
                let sums = &mut sums[from + i..(from + n).min(from + i + L::N)];
                sums.iter_mut().zip(lanes).for_each(|(s, p)| *s += p);
            }
            from += n;
        }
    }
}

/// Rows that some query of `at..at + width` sees.
#[inline(always)]
fn seen(t: &Tile, at: usize, width: usize) -> std::ops::Range<usize> {
    let first = t.first[at..at + width].iter().fold(i32::MAX, |a, &b| a.min(b));
    let end = t.end[at..at + width].iter().fold(0, |a, &b| a.max(b));
    first as usize..end as usize
}

/// Scores of rows `from..from + n`; returns the larger of `max` and the largest score of each query.
#[inline(always)]
unsafe fn score<L: Lanes, const R: usize, const V: usize>(
    t: &mut Tile,
    keys: &[f32],
    at: usize,
    from: usize,
    n: usize,
    mut max: [L; V],
) -> [L; V] {
    let d = t.q.len();
    let lanes = at..at + V * L::N;
    let latest = t.first[lanes.clone()].iter().fold(0, |a, &b| a.max(b));
    let soonest = t.end[lanes].iter().fold(i32::MAX, |a, &b| a.min(b));
    // Where every query sees every row nothing is masked.
    let masked = from < latest as usize || from + n > soonest as usize;
    // SAFETY: the caller's contract.
    unsafe {
        let q = t.q.as_ptr().cast::<f32>().add(at);
        let mut i = 0;
        while i < n {
            let keys = keys.as_ptr().add((from + i) * d);
            let out = t.scores.as_mut_ptr().cast::<f32>().add(i * TILE_ROWS + at);
            let rows = if i + R <= n {
                product::<L, R, V>(keys, d, q, out, &mut max, masked);
                R
            } else if i + 4 <= n {
                product::<L, 4, V>(keys, d, q, out, &mut max, masked);
                4
            } else {
                product::<L, 1, V>(keys, d, q, out, &mut max, masked);
                1
            };
            if masked {
                for r in 0..rows {
                    for v in 0..V {
                        let lane = at + v * L::N;
                        let (first, end) = (t.first.as_ptr().add(lane), t.end.as_ptr().add(lane));
                        let to = out.add(r * TILE_ROWS + v * L::N);
                        let s = L::load(to).only_within(first, end, (from + i + r) as i32);
                        s.store(to);
                        max[v] = s.max(max[v]);
                    }
                }
            }
            i += rows;
        }
    }
    max
}

/// `out[r][lane] = keys[r] . q[..][lane]` for `R` rows of `d` values.
#[inline(always)]
unsafe fn product<L: Lanes, const R: usize, const V: usize>(
    keys: *const f32,
    d: usize,
    q: *const f32,
    out: *mut f32,
    max: &mut [L; V],
    masked: bool,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[L::zero(); V]; R];
        for c in 0..d {
            let q = load::<L, V>(q.add(c * TILE_ROWS));
            for r in 0..R {
                let k = L::splat(*keys.add(r * d + c));
                for v in 0..V {
                    acc[r][v] = k.fma(q[v], acc[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                acc[r][v].store(out.add(r * TILE_ROWS + v * L::N));
                if !masked {
                    max[v] = acc[r][v].max(max[v]);
                }
            }
        }
    }
}

/// `out[r][lane] += sum_i values[i][r] * p[i][lane]` for `R` columns of `n` rows of `d` values.
#[inline(always)]
unsafe fn accumulate<L: Lanes, const R: usize, const V: usize>(
    values: *const f32,
    d: usize,
    p: *const f32,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[L::zero(); V]; R];
        for r in 0..R {
            acc[r] = load::<L, V>(out.add(r * TILE_ROWS));
        }
        for i in 0..n {
            let p = load::<L, V>(p.add(i * TILE_ROWS));
            for r in 0..R {
                let value = L::splat(*values.add(i * d + r));
                for v in 0..V {
                    acc[r][v] = value.fma(p[v], acc[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                acc[r][v].store(out.add(r * TILE_ROWS + v * L::N));
            }
        }
    }
}

#[inline(always)]
unsafe fn load<L: Lanes, const V: usize>(p: *const f32) -> [L; V] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut lanes = [L::zero(); V];
        for v in 0..V {
            lanes[v] = L::load(p.add(v * L::N));
        }
        lanes
    }
}
