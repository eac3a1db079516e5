//! Every kernel on every instruction set of this machine, against float64 arithmetic on dequantised weights.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ecokv::kernels::{
    Dispatch, Floats, KvRows, KvTiles, Packed, Partial, Q8Block, Q8Rows, Tile, TileRows, TileWeights, WeightRows,
};
use ecokv::quant::{GgmlType, dequantize_row};
use ecokv::threads::Pool;
use half::f16;
use safetensors::SafeTensors;

const QUANTISED: [GgmlType; 12] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
];

/// Real blocks of each format (from ggml's quantiser): `[rows][n_cols]`, three different rows repeated.
fn weights(ty: GgmlType, n_rows: usize) -> (Vec<u8>, usize, usize) {
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/quants.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let raw = file.tensor(&format!("{}.raw", ty.name())).unwrap();
    let row_bytes = raw.data().len() / 3;
    let n_cols = row_bytes / ty.block_bytes() * ty.block_len();
    let rows: Vec<u8> = (0..n_rows).flat_map(|r| raw.data()[(r % 3) * row_bytes..][..row_bytes].to_vec()).collect();
    (rows, row_bytes, n_cols)
}

/// A fixed pseudo-random sequence in [-1, 1].
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn dot64(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn norm(a: &[f32]) -> f64 {
    dot64(a, a).sqrt()
}

/// The quantised activation as floats, straight from its definition.
fn quantised(x: &[f32], two_planes: bool) -> Vec<f32> {
    let limit = if two_planes { 16319.0 } else { 127.0 };
    let group = |c: &[f32]| {
        let max = c.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let inverse = if max > 0.0 { limit / max } else { 0.0 };
        c.iter().map(|v| max / limit * (v * inverse).round_ties_even()).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(group).collect()
}

#[test]
fn quantised_products_match_float64() {
    // 9 tokens and 37 rows reach every tail of the tiles.
    let pool = Pool::new(2).unwrap();
    println!("levels: {}", Dispatch::available().iter().map(|d| d.name()).collect::<Vec<_>>().join(" "));
    for ty in QUANTISED {
        let n_rows = 37;
        let (data, row_bytes, n_cols) = weights(ty, n_rows);
        let w = WeightRows { ty, data: &data, row_bytes, n_cols };
        let mut rows = vec![vec![0.0; n_cols]; n_rows];
        for (r, out) in rows.iter_mut().enumerate() {
            dequantize_row(ty, &data[r * row_bytes..(r + 1) * row_bytes], out);
        }
        for (dispatch, two_planes) in Dispatch::available().into_iter().flat_map(|d| [(d, false), (d, true)]) {
            let n = 9;
            let x = noise(n * n_cols, 3);
            let mut q8 = Q8Rows::default();
            q8.resize(n, n_cols, two_planes);
            q8.chunks_mut(n).into_iter().for_each(|to| dispatch.quantize_q8(&x, to));
            q8.tile(&pool);
            let mut gemv = vec![0.0; n * n_rows];
            for (t, out) in gemv.chunks_mut(n_rows).enumerate() {
                dispatch.gemv_q8(w, q8.row(t), out);
            }
            let mut gemm = vec![0.0; n * n_rows];
            dispatch.gemm_q8(w, &q8, 0..n, &mut gemm);
            if dispatch.packs() {
                // The same panels, kept: all rows, some rows, one token.
                let packed = Packed::new(w, &pool);
                let mut all = vec![0.0; n * n_rows];
                dispatch.gemm_packed(packed.rows(0, n_rows), &q8, 0..n, &mut all);
                assert_eq!(all, gemm, "{} {}", dispatch.name(), ty.name());
                let mut some = vec![0.0; 21];
                dispatch.gemm_packed(packed.rows(16, n_rows), &q8, 8..9, &mut some);
                assert_eq!(some, gemm[8 * n_rows + 16..9 * n_rows], "{} {}", dispatch.name(), ty.name());
            }
            for t in 0..n {
                let xt = quantised(&x[t * n_cols..(t + 1) * n_cols], two_planes);
                for r in 0..n_rows {
                    let want = dot64(&rows[r], &xt);
                    let scale = norm(&rows[r]) * norm(&xt);
                    for (kind, got) in [("gemv", gemv[t * n_rows + r]), ("gemm", gemm[t * n_rows + r])] {
                        let error = (f64::from(got) - want).abs() / scale;
                        let name = ty.name();
                        assert!(error < 2e-6, "{} {kind} {name} token {t} row {r}: {got} for {want}", dispatch.name());
                    }
                }
            }
            // A part of the tokens gives the same bits as the whole, and so do rows without tiles.
            let mut part = vec![0.0; 4 * n_rows];
            dispatch.gemm_q8(w, &q8, 3..7, &mut part);
            assert_eq!(part, gemm[3 * n_rows..7 * n_rows], "{} {}", dispatch.name(), ty.name());
            q8.resize(n, n_cols, two_planes);
            let tiled = std::mem::replace(&mut gemm, vec![0.0; n * n_rows]);
            dispatch.gemm_q8(w, &q8, 0..n, &mut gemm);
            assert_eq!(tiled, gemm, "{} {}", dispatch.name(), ty.name());
        }
    }
}

#[test]
fn tile_products_match_float64() {
    let pool = Pool::new(2).unwrap();
    // Whole pairs of tiles, a tile and a part of one, two and a part; rows that fill panels and that do not.
    for (dispatch, n) in Dispatch::available().into_iter().flat_map(|d| [64, 25, 41].map(|n| (d, n))) {
        if !dispatch.has_tiles(n) {
            continue;
        }
        for (ty, n_rows) in QUANTISED.into_iter().flat_map(|ty| [(ty, 37), (ty, 64)]) {
            let (mut data, mut row_bytes, mut n_cols) = weights(ty, n_rows);
            if ty.block_len() == 32 {
                // Columns that end inside a tile.
                let shorter = row_bytes - ty.block_bytes();
                data = data.chunks(row_bytes).flat_map(|row| row[..shorter].to_vec()).collect();
                (row_bytes, n_cols) = (shorter, n_cols - 32);
            }
            let w = WeightRows { ty, data: &data, row_bytes, n_cols };
            assert_tile_products(dispatch, &pool, w, n);
        }
    }
}

#[test]
fn tile_products_of_parts_match_float64() {
    let pool = Pool::new(2).unwrap();
    // Columns in several chunks, of which the last ends inside a tile; tokens in two parts; more panels than a task has.
    for (ty, repeats, n, n_rows) in
        [(GgmlType::Q5_1, 21, 41, 150), (GgmlType::Q6_K, 20, 41, 37), (GgmlType::Q4_0, 3, 1100, 21)]
    {
        for dispatch in Dispatch::available().into_iter().filter(|d| d.has_tiles(n)) {
            let (data, short_bytes, short_cols) = weights(ty, n_rows);
            let mut row_bytes = repeats * short_bytes;
            let mut n_cols = repeats * short_cols;
            if ty.block_len() == 32 {
                (row_bytes, n_cols) = (row_bytes - ty.block_bytes(), n_cols - 32);
            }
            let long = |row: &[u8]| row.repeat(repeats)[..row_bytes].to_vec();
            let data: Vec<u8> = data.chunks(short_bytes).flat_map(long).collect();
            assert_tile_products(dispatch, &pool, WeightRows { ty, data: &data, row_bytes, n_cols }, n);
        }
    }
}

fn assert_tile_products(dispatch: Dispatch, pool: &Pool, w: WeightRows<'_>, n: usize) {
    let WeightRows { ty, data, row_bytes, n_cols } = w;
    let n_rows = data.len() / row_bytes;
    // Tokens with a value that stands out a thousandfold, and with more of them than are kept apart.
    let mut x = noise(n * n_cols, 3);
    for (t, x) in x.chunks_mut(n_cols).enumerate() {
        x.iter_mut().skip(t % 3 + t / 3 * 97).step_by(3).take([0, 1, 9][t % 3]).for_each(|v| *v *= 3e3);
    }
    let mut tiles = TileRows::default();
    dispatch.split_tiles(&x, n_cols, pool, &mut tiles);
    let mut out = vec![f32::NAN; n * n_rows];
    dispatch.gemm_tiles(TileWeights::Packed(&Packed::new(w, pool)), &tiles, pool, &mut out);
    let mut row = vec![0.0; n_cols];
    for r in 0..n_rows {
        dequantize_row(ty, &data[r * row_bytes..(r + 1) * row_bytes], &mut row);
        let largest = row.iter().fold(0.0_f32, |m, w| m.max(w.abs()));
        // Every token of some dozens, some of many.
        for t in (0..n).step_by(1 + n / 100) {
            let x = &x[t * n_cols..(t + 1) * n_cols];
            let mut sizes: Vec<f32> = x.iter().map(|v| v.abs()).collect();
            sizes.sort_by(|a, b| b.total_cmp(a));
            // What is kept apart meets the rounding of one weight each, the others that of the largest of them.
            let apart = sizes[..7].iter().filter(|&&v| v > 30.0).count();
            let apart = sizes.drain(..apart).sum::<f32>();
            let limit = 2e-5 * (norm(&row) * norm(&sizes) + f64::from(largest * apart));
            let (got, want) = (out[t * n_rows + r], dot64(&row, x));
            let error = (f64::from(got) - want).abs();
            assert!(error < limit, "{} token {t} row {r}: {got} for {want}", ty.name());
        }
    }
    let mut unpacked = vec![f32::NAN; n * n_rows];
    dispatch.gemm_tiles(TileWeights::Rows(w), &tiles, pool, &mut unpacked);
    assert_eq!(out, unpacked, "{}", ty.name());
}

#[test]
fn float_products_match_float64() {
    for ty in GgmlType::ALL {
        let n_rows = 21;
        let (data, row_bytes, n_cols) = if ty == GgmlType::F32 {
            let values = noise(n_rows * 72, 9);
            (values.iter().flat_map(|v| v.to_le_bytes()).collect(), 288, 72)
        } else {
            weights(ty, n_rows)
        };
        let w = WeightRows { ty, data: &data, row_bytes, n_cols };
        let x = noise(14 * n_cols, 4);
        let mut row = vec![0.0; n_cols];
        for dispatch in Dispatch::available() {
            for n in [1, 2, 5, 14] {
                let mut out = vec![0.0; n * n_rows];
                dispatch.gemm_f32(w, &x[..n * n_cols], &mut out);
                for r in 0..n_rows {
                    dequantize_row(ty, &data[r * row_bytes..(r + 1) * row_bytes], &mut row);
                    for t in 0..n {
                        let xt = &x[t * n_cols..(t + 1) * n_cols];
                        let error = (f64::from(out[t * n_rows + r]) - dot64(&row, xt)).abs() / (norm(&row) * norm(xt));
                        assert!(error < 1e-6, "{} {} n {n} token {t} row {r}: {error}", dispatch.name(), ty.name());
                    }
                }
            }
        }
    }
}

#[test]
fn repacked_float_products_match_float64() {
    let pool = Pool::new(2).unwrap();
    // Rows and columns that end inside a panel, a pair of panels and a block of columns.
    for (n_rows, n_cols) in [(5, 7), (16, 256), (50, 588), (33, 300)] {
        let (values, x) = (noise(n_rows * n_cols, 6), noise(30 * n_cols, 4));
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16].into_iter().filter(|&ty| Floats::pays(ty)) {
            let data: Vec<u8> = match ty {
                GgmlType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                GgmlType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            };
            let row_bytes = data.len() / n_rows;
            let packed = Floats::new(WeightRows { ty, data: &data, row_bytes, n_cols }, &pool);
            let mut row = vec![0.0; n_cols];
            for dispatch in Dispatch::available().into_iter().filter(|d| d.packs()) {
                for n in [1, 2, 4, 5, 9, 12, 13, 30] {
                    let mut out = vec![0.0; n * n_rows];
                    dispatch.gemm_floats(packed.rows(0, n_rows), &x[..n * n_cols], &mut out);
                    for r in 0..n_rows {
                        dequantize_row(ty, &data[r * row_bytes..(r + 1) * row_bytes], &mut row);
                        for t in 0..n {
                            let xt = &x[t * n_cols..(t + 1) * n_cols];
                            let error =
                                (f64::from(out[t * n_rows + r]) - dot64(&row, xt)).abs() / (norm(&row) * norm(xt));
                            let at = format!("{} {} {n_rows}x{n_cols}", dispatch.name(), ty.name());
                            assert!(error < 1e-6, "{at}, {n} tokens, token {t} row {r}: {error}");
                        }
                    }
                }
            }
        }
    }
}

/// Softmax of `scores` in float64: maximum, sum of exponentials, weights.
fn softmax(scores: &[f64]) -> (f64, f64, Vec<f64>) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    (max, sum, exp.iter().map(|e| e / sum).collect())
}

#[test]
fn attention_over_cached_rows_matches_float64() {
    let blocks = |x: &[f32]| x.as_chunks().0.iter().map(Q8Block::quantize).collect::<Vec<_>>();
    // Lengths and sizes of head that reach every tail of the blocks and registers.
    for (d, len) in [1, 8, 24, 64, 72, 100, 128].into_iter().zip([13, 64, 65, 150, 31, 70, 16]) {
        for group in 1..=9 {
            // Scores spread over some 15 powers of e, so that the maximum moves between blocks.
            let q: Vec<f32> = noise(group * d, 1).iter().map(|v| 4.0 * v).collect();
            let (k, v) = (noise(len * d, 2), noise(len * d, 5));
            let [k16, v16] = [&k, &v].map(|x| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>());
            let [k8, v8] = [&k, &v].map(|x| blocks(x));
            let wide = |x: &[f16]| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
            let expand = |x: &[Q8Block]| x.iter().flat_map(Q8Block::dequantize).collect::<Vec<_>>();
            let mut kinds = vec![
                (KvRows::F32(&k), KvRows::F32(&v), k.clone(), v.clone()),
                (KvRows::F16(&k16), KvRows::F16(&v16), wide(&k16), wide(&v16)),
            ];
            if d % 32 == 0 {
                kinds.push((KvRows::Q8_0(&k8), KvRows::Q8_0(&v8), expand(&k8), expand(&v8)));
            }
            let bias = [0.5, -2.0, f32::NEG_INFINITY];
            for (dispatch, (keys, values, k, v)) in
                Dispatch::available().iter().flat_map(|d| kinds.iter().map(move |k| (d, k)))
            {
                let mut scores = vec![0.0; group * len];
                dispatch.dot_rows(&q, *keys, d, len, 0.5, &mut scores);
                let (mut max, mut sum, mut out) = (vec![0.0; group], vec![0.0; group], vec![0.0; group * d]);
                let part = Partial { max: &mut max, sum: &mut sum, values: &mut out };
                dispatch.attend_rows(&q, *keys, *values, d, len, 0.5, &bias, part);
                for g in 0..group {
                    let name = dispatch.name();
                    let mut want: Vec<f64> = k.chunks(d).map(|k| 0.5 * dot64(&q[g * d..(g + 1) * d], k)).collect();
                    for (got, want) in scores[g * len..].iter().zip(&want) {
                        assert!((f64::from(*got) - want).abs() < 2e-5, "{name} d {d} group {group}: {got}, {want}");
                    }
                    want.iter_mut().zip(bias).for_each(|(s, b)| *s += f64::from(b));
                    let (want_max, want_sum, p) = softmax(&want);
                    assert!(
                        (f64::from(max[g]) - want_max).abs() < 2e-5,
                        "{name} d {d} group {group}: maximum {}",
                        max[g]
                    );
                    assert!(
                        (f64::from(sum[g]) / want_sum - 1.0).abs() < 2e-5,
                        "{name} d {d}: sum {}, {want_sum}",
                        sum[g]
                    );
                    for c in 0..d {
                        let want: f64 = p.iter().zip(v.chunks(d)).map(|(p, v)| p * f64::from(v[c])).sum();
                        let got = f64::from(out[g * d + c] / sum[g]);
                        assert!((got - want).abs() < 1e-5, "{name} d {d} group {group}: {got}, {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn attention_of_a_tile_matches_float64() {
    // Sizes that reach every tail; queries that see everything, causal ones, and windows of 37 rows.
    for d in [1, 8, 24, 64, 72, 80, 100, 128] {
        for (n, len, window) in [(1, 1, 500), (5, 20, 500), (16, 200, 500), (17, 33, 37), (47, 130, 37), (48, 200, 500)]
        {
            let q: Vec<f32> = noise(n * d, 1).iter().map(|v| 4.0 * v).collect();
            let (k, v) = (noise(len * d, 2), noise(len * d, 3));
            for causal in [false, true] {
                let seen = |r: usize| match causal {
                    true => (len - n.min(len) + r.min(len - 1) + 1).min(len),
                    false => len,
                };
                let seen = |r: usize| seen(r).saturating_sub(window)..seen(r);
                let queries = || (0..n).map(|r| (&q[r * d..(r + 1) * d], seen(r)));
                for dispatch in Dispatch::available() {
                    let mut tile = Tile::default();
                    let mut out = vec![0.0; d];
                    let mut sums = vec![0.5; len];
                    // What the tile held before leaves no trace.
                    tile.load(d, 1.0, (0..48).map(|_| (&k[..d], 0..len)));
                    dispatch.attend_tile(&mut tile, &k, &v);
                    tile.load(d, 0.5, queries());
                    dispatch.tile_column_sums(&mut tile, &k, &mut sums);
                    tile.load(d, 0.5, queries());
                    dispatch.attend_tile(&mut tile, &k, &v);
                    let mut want_sums = vec![0.5; len];
                    for (r, (q, seen)) in queries().enumerate() {
                        let scores: Vec<f64> = seen.clone().map(|i| 0.5 * dot64(q, &k[i * d..(i + 1) * d])).collect();
                        let (_, _, p) = softmax(&scores);
                        want_sums[seen.clone()].iter_mut().zip(&p).for_each(|(s, p)| *s += p);
                        tile.store(r, &mut out);
                        for (c, got) in out.iter().enumerate() {
                            let want: f64 = seen.clone().zip(&p).map(|(i, p)| p * f64::from(v[i * d + c])).sum();
                            let name = dispatch.name();
                            assert!(
                                (f64::from(*got) - want).abs() < 1e-5,
                                "{name} d {d} n {n} query {r}: {got}, {want}"
                            );
                        }
                    }
                    for (got, want) in sums.iter().zip(want_sums) {
                        assert!(
                            (f64::from(*got) - want).abs() < 1e-4,
                            "{} d {d} n {n}: {got}, {want}",
                            dispatch.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn attention_on_tiles_matches_float64() {
    // Widths that fill steps of 64 and that do not; blocks of 64 rows that all, some and no query of a panel sees.
    let pool = Pool::new(2).unwrap();
    for (dispatch, d) in Dispatch::available().into_iter().flat_map(|x| [32, 64, 96, 128].map(|d| (x, d))) {
        if !dispatch.has_kv_tiles(24, d) {
            continue;
        }
        for (n, len, window) in [(1, 1, 500), (5, 20, 500), (17, 33, 37), (47, 130, 37), (48, 300, 500), (48, 300, 70)]
        {
            let q: Vec<f32> = noise(n * d, 1).iter().map(|v| 4.0 * v).collect();
            let (k, mut v) = (noise(len * d, 2), noise(len * d, 3));
            v.iter_mut().skip(7).step_by(d).for_each(|v| *v *= 100.0); // a column of another size
            let other = (noise(70 * d, 4), noise(70 * d, 5));
            let mut kv = KvTiles::default();
            dispatch.split_kv(&[(&other.0, &other.1), (&k, &v)], d, &pool, &mut kv);
            let seen = |r: usize| (len - n + r + 1).saturating_sub(window)..len - n + r + 1;
            let mut tile = Tile::default();
            tile.load(d, 1.0, (0..48).map(|_| (&k[..d], 0..len))); // leaves no trace
            dispatch.attend_kv_tiles(&mut tile, &kv, 1);
            tile.load(d, 0.5, (0..n).map(|r| (&q[r * d..(r + 1) * d], seen(r))));
            dispatch.attend_kv_tiles(&mut tile, &kv, 1);
            let mut out = vec![0.0; d];
            for r in 0..n {
                let q = &q[r * d..(r + 1) * d];
                let scores: Vec<f64> = seen(r).map(|i| 0.5 * dot64(q, &k[i * d..(i + 1) * d])).collect();
                let (_, _, p) = softmax(&scores);
                tile.store(r, &mut out);
                for (c, got) in out.iter().enumerate() {
                    let want: f64 = seen(r).zip(&p).map(|(i, p)| p * f64::from(v[i * d + c])).sum();
                    let size = if c == 7 { 100.0 } else { 1.0 };
                    assert!((f64::from(*got) - want).abs() < 5e-4 * size, "d {d} n {n} query {r}: {got}, {want}");
                }
            }
        }
        // What is not finite is not hidden.
        let (mut k, v) = (noise(70 * d, 2), noise(70 * d, 3));
        k[66 * d + 3] = f32::NAN;
        let mut kv = KvTiles::default();
        dispatch.split_kv(&[(&k, &v)], d, &pool, &mut kv);
        let mut tile = Tile::default();
        tile.load(d, 1.0, [(&v[..d], 0..66), (&v[..d], 0..70)].into_iter());
        dispatch.attend_kv_tiles(&mut tile, &kv, 0);
        let mut out = vec![0.0; d];
        tile.store(0, &mut out);
        assert!(out.iter().all(|v| v.is_finite()));
        tile.store(1, &mut out);
        assert!(out.iter().all(|v| v.is_nan()));
        // Rows that are not there, and half a row, are refused before anything is read.
        tile.load(d, 1.0, [(&v[..d], 0..71)].into_iter());
        assert!(catch_unwind(AssertUnwindSafe(|| dispatch.attend_kv_tiles(&mut tile, &kv, 0))).is_err());
        let half = d / 2..70 * d;
        let heads = [(&k[half.clone()], &v[half])];
        assert!(catch_unwind(AssertUnwindSafe(|| dispatch.split_kv(&heads, d, &pool, &mut kv))).is_err());
    }
}

#[test]
fn attention_stands_extreme_scores() {
    // Differences beyond the range of the exponential, and rows that no query may see.
    let (d, len) = (8, 70);
    for dispatch in Dispatch::available() {
        let mut k = vec![0.0; len * d];
        k[40 * d] = 1e6;
        let v: Vec<f32> = (0..len * d).map(|i| (i / d) as f32).collect();
        let q = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let (mut max, mut sum, mut out) = ([0.0], [0.0], [0.0; 8]);
        let mut attend = |bias: &[f32]| {
            let part = Partial { max: &mut max, sum: &mut sum, values: &mut out };
            dispatch.attend_rows(&q, KvRows::F32(&k), KvRows::F32(&v), d, len, 1.0, bias, part);
            (max[0], sum[0], out)
        };
        assert_eq!(attend(&[]), (1e6, 1.0, [40.0; 8]));
        assert_eq!(attend(&vec![f32::NEG_INFINITY; len]), (f32::NEG_INFINITY, 0.0, [0.0; 8]));
        let mut tile = Tile::default();
        tile.load(d, -1.0, [(&q[..], 0..len), (&q[..], 38..43), (&q[..], 40..41)].into_iter());
        dispatch.attend_tile(&mut tile, &k, &v);
        for (r, want) in [(0, 34.5 - 5.5 / 69.0), (1, 40.0), (2, 40.0)] {
            tile.store(r, &mut out);
            // Without row 40: the mean of the others.
            assert!((out[0] - want).abs() < 1e-4, "{} query {r}: {}", dispatch.name(), out[0]);
        }
    }
}

#[test]
fn q8_blocks_are_those_of_ggml() {
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/quants.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        file.tensor(name).unwrap().data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let raw = file.tensor("Q8_0.raw").unwrap();
    let (x, values) = (floats("x"), floats("Q8_0.deq"));
    let blocks = x.as_chunks::<32>().0.iter().zip(raw.data().as_chunks::<34>().0).zip(values.as_chunks::<32>().0);
    for ((x, raw), values) in blocks {
        let block = Q8Block::quantize(x);
        assert_eq!(block.d.to_le_bytes(), raw[..2]);
        assert_eq!(block.q.map(|q| q as u8), raw[2..]);
        assert_eq!(block.dequantize(), *values);
    }
}

#[test]
fn elementwise_kernels_match_float64() {
    for dispatch in Dispatch::available() {
        for n in [1, 7, 16, 33, 576] {
            let (x, w) = (noise(n, 1), noise(n, 2));
            let mut out = vec![0.0; n];
            dispatch.rms_norm(&x, &w, 1e-5, &mut out);
            let scale = 1.0 / (dot64(&x, &x) / n as f64 + 1e-5).sqrt();
            for i in 0..n {
                assert!((f64::from(out[i]) - f64::from(x[i]) * scale * f64::from(w[i])).abs() < 1e-6);
            }
            dispatch.layer_norm(&x, &w, &x, 1e-5, &mut out);
            let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
            let centred: Vec<f64> = x.iter().map(|&v| f64::from(v) - mean).collect();
            let scale = 1.0 / (centred.iter().map(|v| v * v).sum::<f64>() / n as f64 + 1e-5).sqrt();
            for i in 0..n {
                let want = centred[i] * scale * f64::from(w[i]) + f64::from(x[i]);
                assert!((f64::from(out[i]) - want).abs() < 1e-6);
            }
            let big: Vec<f32> = x.iter().map(|v| 30.0 * v).collect();
            let (mut gate, mut quick) = (big.clone(), big.clone());
            let (mut gelu, mut gelu_gate) = (big.clone(), big.clone());
            dispatch.gelu_tanh(&mut gelu);
            dispatch.gelu_mul(&mut gelu_gate, &w);
            dispatch.silu_mul(&mut gate, &w);
            dispatch.sigmoid_gate(&mut quick, 1.702);
            for i in 0..n {
                let b = f64::from(big[i]);
                assert!((f64::from(gate[i]) - b / (1.0 + (-b).exp()) * f64::from(w[i])).abs() < 1e-5);
                assert!((f64::from(quick[i]) - b / (1.0 + (-1.702 * b).exp())).abs() < 1e-5);
                let tanh = 0.5 * b * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (b + 0.044_715 * b.powi(3))).tanh());
                assert!((f64::from(gelu[i]) - tanh).abs() < 1e-5);
                assert!((f64::from(gelu_gate[i]) - tanh * f64::from(w[i])).abs() < 1e-5);
            }
        }
    }
}
