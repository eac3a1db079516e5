//! Attention on tiles. A lane holds a query, as in `attention/tile.rs`: the products of keys with queries have a key to a
//! line, those of values with weights a column.

use std::arch::x86_64::*;

use super::super::attention::KEYS;
use super::{LARGEST, Magnitudes, PLANE, Sums, TILE_TOKENS, Tiles, multiply, pack, split_tile, tile_lines};
use crate::kernels::attention::avx512::Zmm;
use crate::kernels::attention::lanes::Lanes;
use crate::kernels::attention::{TILE_ROWS, Tile};
use crate::kernels::packed::Line;

/// Queries of a panel.
const LANES: usize = 16;

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
        unsafe { split_tile(keys, head_dim, to) };
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
        t.panels.resize(n_panels * per_tile, Line([0; 64]));
        for p in 0..n_panels {
            split_queries(t.q.as_ptr().cast::<f32>().add(p * LANES), d, &mut t.panels[p * per_tile..][..per_tile]);
        }
        for (b, block) in blocks.chunks_exact(n_lines).enumerate() {
            for p in 0..n_panels {
                attend_block(&tiles, t, p, b * KEYS, block.as_ptr(), d);
            }
        }
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

/// Adds a block of keys, the first of which is row `from`, to the softmax and the sums of panel `p`.
#[inline(always)]
unsafe fn attend_block(tiles: &Tiles, t: &mut Tile, p: usize, from: usize, block: *const Line, d: usize) {
    let lanes = p * LANES..(p + 1) * LANES;
    let bounds = |at: &[i32; TILE_ROWS]| {
        let at = &at[lanes.clone()];
        (at.iter().fold(i32::MAX, |a, &b| a.min(b)) as usize, at.iter().fold(0, |a, &b| a.max(b)) as usize)
    };
    let ((earliest, latest), (soonest, end)) = (bounds(&t.first), bounds(&t.end));
    if from + KEYS <= earliest || from >= end {
        return;
    }
    // Where every query sees every row nothing is masked.
    let masked = from < latest || from + KEYS > soonest;
    let (per_tile, value_lines) = (tile_lines(d), tile_lines(KEYS));
    // SAFETY: the caller's contract.
    unsafe {
        let panel = t.panels.as_ptr().add(p * per_tile);
        let query_scales = _mm512_load_ps(panel.add(per_tile - 1).cast());
        let (first, ends) = (t.first.as_ptr().add(lanes.start), t.end.as_ptr().add(lanes.start));
        let (max, sum) = (t.max.0.as_mut_ptr().add(lanes.start), t.sum.0.as_mut_ptr().add(lanes.start));
        let out = t.out.as_mut_ptr().cast::<f32>().add(lanes.start);
        let mut sums = Sums::default();
        let mut scores = [[0.0_f32; LANES]; KEYS];

        let old = Zmm::load(max);
        let mut top = old;
        for i in (0..KEYS).step_by(2 * TILE_TOKENS) {
            let keys = block.add(i / TILE_TOKENS * per_tile);
            multiply(tiles, [keys, keys.add(per_tile)], panel, d.div_ceil(KEYS), &mut sums);
            for r in 0..2 * TILE_TOKENS {
                let scale = *keys.add((r / TILE_TOKENS + 1) * per_tile - 1).cast::<f32>().add(r % TILE_TOKENS);
                let scale = _mm512_mul_ps(query_scales, _mm512_set1_ps(scale));
                let mut score = Zmm(_mm512_mul_ps(sums.line(r), scale));
                if masked {
                    score = score.only_within(first, ends, (from + i + r) as i32);
                }
                top = score.max(top);
                score.store(scores[i + r].as_mut_ptr());
            }
        }

        let mut total = Zmm::load(sum);
        if top.any_above(old) {
            let shrink = old.sub(top).exp();
            total = total.mul(shrink);
            top.store(max);
            for c in 0..d {
                let out = out.add(c * TILE_ROWS);
                Zmm::load(out).mul(shrink).store(out);
            }
        }
        let mut weights = [Line([0; 64]); 2 * PLANE];
        for j in 0..KEYS / 4 {
            let mut x = [_mm512_setzero_si512(); 4];
            for r in 0..4 {
                let weight = Zmm::load(scores[4 * j + r].as_ptr()).sub(top).exp();
                total = total.add(weight);
                x[r] = _mm512_cvtps_epi32(_mm512_mul_ps(weight.0, _mm512_set1_ps(LARGEST)));
            }
            for (p, bytes) in pack(x).into_iter().enumerate() {
                _mm512_store_si512((&raw mut weights[p * PLANE + j]).cast(), bytes);
            }
        }
        total.store(sum);

        let values = block.add(KEYS / TILE_TOKENS * per_tile);
        for c in (0..d).step_by(2 * TILE_TOKENS) {
            let values = values.add(c / TILE_TOKENS * value_lines);
            multiply(tiles, [values, values.add(value_lines)], weights.as_ptr(), 1, &mut sums);
            for r in 0..2 * TILE_TOKENS {
                let scale = *values.add((r / TILE_TOKENS + 1) * value_lines - 1).cast::<f32>().add(r % TILE_TOKENS);
                let out = out.add((c + r) * TILE_ROWS);
                Zmm(sums.line(r)).fma(Zmm::splat(scale), Zmm::load(out)).store(out);
            }
        }
    }
}
