//! Every kernel on every instruction set of this machine, against float64 arithmetic on dequantised weights.

use std::path::Path;

use ecokv::kernels::{Dispatch, KvRows, Packed, Q8Rows, WeightRows};
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
                assert_eq!(some, gemm[8 * n_rows + 16..], "{} {}", dispatch.name(), ty.name());
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
fn attention_rows_match_float64() {
    let half = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
    let wide = |x: &[f16]| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
    for d in [1, 8, 16, 24, 64, 72, 80, 100, 128] {
        for group in 1..=7 {
            let len = 13;
            let (q, k, v) = (noise(group * d, 1), noise(len * d, 2), noise(len * d, 5));
            let (k16, v16) = (half(&k), half(&v));
            for dispatch in Dispatch::available() {
                for (keys, values, k, v) in [
                    (KvRows::F32(&k), KvRows::F32(&v), k.clone(), v.clone()),
                    (KvRows::F16(&k16), KvRows::F16(&v16), wide(&k16), wide(&v16)),
                ] {
                    let mut scores = vec![0.0; group * len];
                    dispatch.dot_rows(&q, keys, d, len, 0.5, &mut scores);
                    let mut out = vec![0.0; group * d];
                    dispatch.weighted_rows(&scores, values, d, len, &mut out);
                    for g in 0..group {
                        for i in 0..len {
                            let want = 0.5 * dot64(&q[g * d..(g + 1) * d], &k[i * d..(i + 1) * d]);
                            assert!((f64::from(scores[g * len + i]) - want).abs() < 1e-5, "{} d {d}", dispatch.name());
                        }
                        for c in 0..d {
                            let column: Vec<f32> = (0..len).map(|i| v[i * d + c]).collect();
                            let want = dot64(&scores[g * len..(g + 1) * len], &column);
                            assert!((f64::from(out[g * d + c]) - want).abs() < 2e-5, "{} d {d}", dispatch.name());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn exponentials_match_float64() {
    for dispatch in Dispatch::available() {
        for n in [1, 15, 16, 17, 64, 100] {
            let x: Vec<f32> = noise(n, 8).iter().map(|v| 40.0 * v).collect();
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut e = x.clone();
            let (m, sum) = dispatch.exp_max_sum(&mut e, f32::NEG_INFINITY);
            assert_eq!(m, max);
            let want: Vec<f64> = x.iter().map(|&v| (f64::from(v) - f64::from(max)).exp()).collect();
            for (got, want) in e.iter().zip(&want) {
                // The argument itself is rounded to f32 first: 80 * 2^-24.
                assert!((f64::from(*got) - want).abs() <= 6e-6 * want + 1e-37, "{} {got} {want}", dispatch.name());
            }
            assert!((f64::from(sum) / want.iter().sum::<f64>() - 1.0).abs() < 1e-5);
        }
        let mut masked = [f32::NEG_INFINITY; 20];
        assert_eq!(dispatch.exp_max_sum(&mut masked, f32::NEG_INFINITY), (f32::NEG_INFINITY, 0.0));
        assert_eq!(masked, [0.0; 20]);
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
            let big: Vec<f32> = x.iter().map(|v| 30.0 * v).collect();
            let (mut gate, mut quick) = (big.clone(), big.clone());
            dispatch.silu_mul(&mut gate, &w);
            dispatch.sigmoid_gate(&mut quick, 1.702);
            for i in 0..n {
                let b = f64::from(big[i]);
                assert!((f64::from(gate[i]) - b / (1.0 + (-b).exp()) * f64::from(w[i])).abs() < 1e-5);
                assert!((f64::from(quick[i]) - b / (1.0 + (-1.702 * b).exp())).abs() < 1e-5);
            }
        }
    }
}
