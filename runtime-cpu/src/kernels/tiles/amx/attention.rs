//! Attention on tiles. A lane holds a query, as in `attention/tile.rs`: the products of keys with queries have a key to a
//! line, those of values with weights a column.

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;

use super::super::attention::KEYS;
use super::{
    LARGEST, Magnitudes, PLANE, Sums, TILE_TOKENS, Tiles, multiply, multiply_one, pack, split_tile, tile_lines,
};
use crate::kernels::attention::avx512::Zmm;
use crate::kernels::attention::lanes::Lanes;
use crate::kernels::attention::{TILE_ROWS, Tile};
use crate::kernels::packed::Line;

/// Queries of a panel.
const LANES: usize = 16;

/// Products of four tiles with one.
type Products = [Sums; KEYS / TILE_TOKENS];

/// Panels of a [`Tile`].
const MOST_PANELS: usize = TILE_ROWS / LANES;

/// Up to 64 rows of keys and values `[rows][head_dim]` as a block.
///
/// # Safety
/// The CPU has the features; `to` is a block; `head_dim` is a multiple of 32.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in super::super) unsafe fn split_block(keys: &[f32], values: &[f32], head_dim: usize, to: &mut [Line]) {
    let per_tile = tile_lines(head_dim);
    let (key_tiles, value_tiles) = to.split_at_mut(KEYS / TILE_TOKENS * per_tile);
    for (keys, to) in keys.chunks(TILE_TOKENS * head_dim).zip(key_tiles.chunks_exact_mut(per_tile)) {
        // SAFETY: the caller's contract.
        unsafe { split_tile(keys, head_dim, to, None) };
    }
    for (i, to) in value_tiles.chunks_exact_mut(tile_lines(KEYS)).enumerate() {
        // SAFETY: the columns exist.
        unsafe { split_columns(&values[i * TILE_TOKENS..], head_dim, to) };
    }
}

/// The first 16 columns of up to 64 rows that lie `head_dim` apart as a tile.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_columns(rows: &[f32], head_dim: usize, to: &mut [Line]) {
    let n = rows.len().div_ceil(head_dim);
    // SAFETY: 16 numbers of a row are read; the tile has two planes and a line of scales.
    unsafe {
        let row = |i: usize| _mm512_loadu_ps(rows.as_ptr().add(i * head_dim));
        let mut range = Magnitudes::new();
        for i in 0..n {
            range.add(row(i));
        }
        let inverse = range.inverse();
        // Weights have a scale of their own, the same for all.
        let scales = range.scales(256.0 / LARGEST);
        _mm512_store_ps(to.as_mut_ptr().add(2 * PLANE).cast(), scales);
        let mut across = [[Line([0; 64]); PLANE]; 2];
        for j in 0..n.div_ceil(4) {
            let mut x = [_mm512_setzero_si512(); 4];
            for r in 0..4.min(n - 4 * j) {
                x[r] = _mm512_cvtps_epi32(_mm512_mul_ps(row(4 * j + r), inverse));
            }
            for (across, bytes) in across.iter_mut().zip(pack(x)) {
                _mm512_store_si512((&raw mut across[j]).cast(), bytes);
            }
        }
        for (p, across) in across.iter().enumerate() {
            for c in 0..TILE_TOKENS {
                let (to, _) = to[p * PLANE + c].0.as_chunks_mut::<4>();
                to.iter_mut().zip(across).for_each(|(to, line)| to.copy_from_slice(&line.0[4 * c..4 * c + 4]));
            }
        }
    }
}

/// Attention of all queries of the tile over the rows of a head, in blocks of `n_lines`.
///
/// # Safety
/// The CPU has AMX and AVX-512; the blocks hold the rows that the queries see, of as many values.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(in super::super) unsafe fn attend(t: &mut Tile, blocks: &[Line], n_lines: usize) {
    let d = t.q.len();
    let per_tile = tile_lines(d);
    let n_panels = t.n.div_ceil(LANES);
    // SAFETY: the caller's contract; a block has its tiles of keys and then those of values.
    unsafe {
        let tiles = Tiles::configure();
        let mut seen = [Seen::default(); MOST_PANELS];
        t.panels.resize(n_panels * per_tile, Line([0; 64]));
        for p in 0..n_panels {
            split_queries(t.q.as_ptr().cast::<f32>().add(p * LANES), d, &mut t.panels[p * per_tile..][..per_tile]);
            seen[p] = Seen::by(t, p);
        }
        let seen = &seen[..n_panels];
        let keys = |b: usize| blocks.as_ptr().add(b * n_lines);
        let mut weights = [[Line([0; 64]); 2 * PLANE]; MOST_PANELS];
        let mut products = [Products::default(); 2];
        let mut sums = [Products::default(); 2];
        // Products take long to come out: those of a panel are asked for before those of the panel before it are used.
        let mut before = None;
        let mut turn = 0;
        for b in 0..blocks.len() / n_lines {
            for p in (0..n_panels).filter(|&p| seen[p].some_of(b)) {
                score(&tiles, keys(b), t.panels.as_ptr().add(p * per_tile), d, &mut products[turn]);
                turn ^= 1;
                if let Some((b, p)) = before {
                    weigh(t, p, b, &seen[p], keys(b), &products[turn], &mut weights[p]);
                }
                if let Some((last, _)) = before.replace((b, p)).filter(|(last, _)| *last != b) {
                    add_values(&tiles, t, seen, last, keys(last), &weights, &mut sums);
                }
            }
        }
        if let Some((b, p)) = before {
            weigh(t, p, b, &seen[p], keys(b), &products[turn ^ 1], &mut weights[p]);
            add_values(&tiles, t, seen, b, keys(b), &weights, &mut sums);
        }
    }
}

/// Rows that the queries of a panel see: some of `first..end`, all of them `all_from..all_end`.
#[derive(Clone, Copy, Default)]
struct Seen {
    first: usize,
    all_from: usize,
    all_end: usize,
    end: usize,
}

impl Seen {
    fn by(t: &Tile, p: usize) -> Seen {
        let lanes = p * LANES..(p + 1) * LANES;
        let bounds = |at: &[i32]| {
            let (low, high) = at.iter().fold((i32::MAX, 0), |(low, high), &i| (low.min(i), high.max(i)));
            (low as usize, high as usize)
        };
        let ((first, all_from), (all_end, end)) = (bounds(&t.first[lanes.clone()]), bounds(&t.end[lanes]));
        Seen { first, all_from, all_end, end }
    }

    /// Whether a query sees a row of block `b`.
    fn some_of(self, b: usize) -> bool {
        self.first < (b + 1) * KEYS && b * KEYS < self.end
    }

    /// Whether every query sees all of it.
    fn all_of(self, b: usize) -> bool {
        self.all_from <= b * KEYS && (b + 1) * KEYS <= self.all_end
    }
}

/// The queries of 16 lanes `[d][TILE_ROWS]` as a panel.
#[inline(always)]
unsafe fn split_queries(q: *const f32, d: usize, to: &mut [Line]) {
    let to = to.as_mut_ptr();
    // SAFETY: the caller's contract; d is a multiple of 32.
    unsafe {
        let row = |c: usize| _mm512_loadu_ps(q.add(c * TILE_ROWS));
        let mut range = Magnitudes::new();
        for c in 0..d {
            range.add(row(c));
        }
        let inverse = range.inverse();
        for j in 0..d / 4 {
            let mut x = [_mm512_setzero_si512(); 4];
            for r in 0..4 {
                x[r] = _mm512_cvtps_epi32(_mm512_mul_ps(row(4 * j + r), inverse));
            }
            let to = to.add(j / PLANE * 2 * PLANE + j % PLANE);
            for (p, bytes) in pack(x).into_iter().enumerate() {
                _mm512_store_si512(to.add(p * PLANE).cast(), bytes);
            }
        }
        _mm512_store_ps(to.add(tile_lines(d) - 1).cast(), range.scales(1.0));
    }
}

/// Products of a block of keys with a panel of queries.
#[inline(always)]
unsafe fn score(tiles: &Tiles, keys: *const Line, panel: *const Line, d: usize, sums: &mut Products) {
    let per_tile = tile_lines(d);
    let steps = per_tile / (2 * PLANE);
    // SAFETY: the caller's contract; a block has four tiles of keys.
    unsafe {
        if steps == 1 {
            return multiply_one(tiles, keys, per_tile, panel, sums);
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            multiply(tiles, keys.add(i * per_tile), panel, steps, sums);
        }
    }
}

/// Adds the scores of block `b` to the softmax of panel `p`. The weights, between 0 and 1, are `[2][KEYS / 4]` lines of four
/// keys for 16 queries.
#[inline(always)]
unsafe fn weigh(
    t: &mut Tile,
    p: usize,
    b: usize,
    seen: &Seen,
    keys: *const Line,
    products: &Products,
    weights: &mut [Line; 2 * PLANE],
) {
    let d = t.q.len();
    let per_tile = tile_lines(d);
    let lane = p * LANES;
    let masked = !seen.all_of(b);
    // SAFETY: the caller's contract.
    unsafe {
        // Scores are logarithms to base 2 from here on.
        let query_scales = _mm512_load_ps(t.panels.as_ptr().add((p + 1) * per_tile - 1).cast());
        let query_scales = _mm512_mul_ps(query_scales, _mm512_set1_ps(LOG2_E));
        let (first, end) = (t.first.as_ptr().add(lane), t.end.as_ptr().add(lane));
        let (max, sum) = (t.max.0.as_mut_ptr().add(lane), t.sum.0.as_mut_ptr().add(lane));
        let mut scores = [[0.0_f32; LANES]; KEYS];
        let old = Zmm::load(max);
        let mut top = old;
        for (i, (products, scores)) in products.iter().zip(scores.as_chunks_mut::<TILE_TOKENS>().0).enumerate() {
            let scales = keys.add((i + 1) * per_tile - 1).cast::<f32>();
            for r in 0..TILE_TOKENS {
                let scale = _mm512_mul_ps(query_scales, _mm512_set1_ps(*scales.add(r)));
                let mut score = Zmm(_mm512_mul_ps(products.line(r), scale));
                if masked {
                    score = score.only_within(first, end, (b * KEYS + i * TILE_TOKENS + r) as i32);
                }
                top = score.max(top);
                score.store(scores[r].as_mut_ptr());
            }
        }
        let mut total = Zmm::load(sum);
        if top.any_above(old) {
            let shrink = Zmm(exp2(_mm512_sub_ps(old.0, top.0)));
            total = total.mul(shrink);
            top.store(max);
            for c in 0..d {
                let out = t.out.as_mut_ptr().cast::<f32>().add(c * TILE_ROWS + lane);
                Zmm::load(out).mul(shrink).store(out);
            }
        }
        // The largest weight comes out as the largest number.
        let base = _mm512_sub_ps(top.0, _mm512_set1_ps(LARGEST.log2()));
        let mut sum_of_numbers = Zmm::zero();
        for (j, scores) in scores.as_chunks::<4>().0.iter().enumerate() {
            let mut x = [_mm512_setzero_si512(); 4];
            for r in 0..4 {
                let number = exp2(_mm512_sub_ps(_mm512_loadu_ps(scores[r].as_ptr()), base));
                sum_of_numbers = sum_of_numbers.add(Zmm(number));
                x[r] = _mm512_cvtps_epi32(number);
            }
            for (plane, bytes) in pack(x).into_iter().enumerate() {
                _mm512_store_si512((&raw mut weights[plane * PLANE + j]).cast(), bytes);
            }
        }
        sum_of_numbers.fma(Zmm::splat(1.0 / LARGEST), total).store(sum);
    }
}

/// The scale of line `i` of tiles that follow each other.
#[inline(always)]
unsafe fn scale_of(tiles: *const Line, per_tile: usize, i: usize) -> f32 {
    // SAFETY: the caller's contract; scales are the last line of a tile.
    unsafe { *tiles.add((i / TILE_TOKENS + 1) * per_tile - 1).cast::<f32>().add(i % TILE_TOKENS) }
}

/// `2^x` to about 3e-6 relative, a tenth of what weights are rounded to, and for x below -125 that of -125, which is nothing
/// beside a weight of 1.
#[inline(always)]
unsafe fn exp2(x: __m512) -> __m512 {
    /// `2^r = 1 + r p(r)` for |r| <= 1/2, highest power first; fitted to the least relative error.
    const POWERS: [f32; 4] = [9.582_853e-3, 0.055_906_426, 0.240_241, 0.693_124_2];
    // SAFETY: the caller has the features.
    unsafe {
        let x = _mm512_max_ps(_mm512_set1_ps(-125.0), x); // NaN stays
        let n = _mm512_roundscale_ps::<8>(x);
        let r = _mm512_sub_ps(x, n);
        let mut p = _mm512_set1_ps(POWERS[0]);
        for c in &POWERS[1..] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
        }
        _mm512_scalef_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0)), n)
    }
}

/// `out[c][lane] += values[key][c] * weights[key][lane]` for the keys of block `b` and all panels that see it.
#[inline(always)]
unsafe fn add_values(
    tiles: &Tiles,
    t: &mut Tile,
    seen: &[Seen],
    b: usize,
    block: *const Line,
    weights: &[[Line; 2 * PLANE]; MOST_PANELS],
    sums: &mut [Products; 2],
) {
    /// Columns whose sums are asked for at a time: a tile of [`Products`] each.
    const MOST: usize = KEYS;
    let d = t.q.len();
    let per_tile = tile_lines(KEYS);
    // SAFETY: the caller's contract; tiles of values follow four of keys.
    unsafe {
        let values = |c: usize| block.add(KEYS / TILE_TOKENS * tile_lines(d) + c / TILE_TOKENS * per_tile);
        let mut before = None;
        let mut turn = 0;
        let panels = (0..seen.len()).filter(|&p| seen[p].some_of(b));
        let parts = panels.flat_map(|p| (0..d).step_by(MOST).map(move |c| (p, c..d.min(c + MOST))));
        for part in parts.map(Some).chain([None]) {
            if let Some((p, columns)) = &part {
                let sums = &mut sums[turn][..columns.len() / TILE_TOKENS];
                multiply_one(tiles, values(columns.start), per_tile, weights[*p].as_ptr(), sums);
            }
            turn ^= 1;
            if let Some((p, columns)) = std::mem::replace(&mut before, part) {
                let scales = values(columns.start);
                for (i, c) in columns.enumerate() {
                    let out = t.out.as_mut_ptr().cast::<f32>().add(c * TILE_ROWS + p * LANES);
                    let scale = Zmm::splat(scale_of(scales, per_tile, i));
                    Zmm(sums[turn][i / TILE_TOKENS].line(i % TILE_TOKENS)).fma(scale, Zmm::load(out)).store(out);
                }
            }
        }
    }
}
