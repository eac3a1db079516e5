//! Every level against `scalar`, bit for bit, at all lengths and offsets; `scalar` against double precision.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]

use std::vec::Vec;
use std::{format, vec};

use super::*;

const MAX: usize = 300;
const STRANGE: [f32; 7] = [0.0, -0.0, 1e-42, -1e-42, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

/// Levels to compare with scalar.
fn levels() -> Vec<Dispatch> {
    Dispatch::available().skip(1).collect()
}

/// Numbers of very different sizes, some strange ones among them if asked for.
fn numbers(n: usize, seed: u64, strange: bool) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..n)
        .map(|_| {
            let x = (next() >> 40) as f32 / 8_388_608.0 - 1.0;
            let size = next() % 16;
            let pick = STRANGE[(next() % 7) as usize];
            if strange && next() % 9 == 0 { pick } else { x * (1u32 << size) as f32 }
        })
        .collect()
}

/// Equal bits; all NaNs are equal, since no selection tells them apart.
fn same(a: &[f32], b: &[f32], what: &str) {
    let bits = |x: &f32| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
    assert!(a.iter().map(bits).eq(b.iter().map(bits)), "{what}:\n{a:?}\n{b:?}");
}

/// Runs `f` for every level, length and offset, with and without strange numbers, and compares what it returns.
fn sweep(f: impl Fn(Dispatch, &[f32], &[f32]) -> Vec<f32>) {
    for strange in [false, true] {
        let (a, b) = (numbers(MAX + 16, 1, strange), numbers(MAX + 16, 2, strange));
        for level in levels() {
            for n in 0..=MAX {
                let offset = if n < 70 { 0..16 } else { n % 16..n % 16 + 1 };
                for o in offset {
                    let (a, b) = (&a[o..][..n], &b[15 - o..][..n]);
                    let what = format!("{} n {n} offset {o}", level.name());
                    same(&f(level, a, b), &f(Dispatch::scalar(), a, b), &what);
                }
            }
        }
    }
}

#[test]
fn levels_are_named_and_ordered() {
    assert_eq!(Dispatch::available().next(), Some(Dispatch::scalar()));
    assert!(Dispatch::available().any(|d| d == Dispatch::detect()));
    let names: Vec<_> = Dispatch::available().map(Dispatch::name).collect();
    assert!((1..names.len()).all(|i| !names[..i].contains(&names[i])), "{names:?}");
}

#[test]
fn sums_and_extremes() {
    sweep(|d, a, _| vec![sum(d, a), min_max(d, a).0, min_max(d, a).1]);
}

#[test]
fn elementwise() {
    sweep(|d, a, b| {
        let (mut y, mut z) = (b.to_vec(), a.to_vec());
        axpy(d, 0.3, a, &mut y);
        scale(d, 1.7, &mut z);
        y.append(&mut z);
        y
    });
}

/// Up to nine parts of longer rows.
#[test]
fn sums_of_scaled_parts() {
    sweep(|d, a, b| {
        let parts = a.len() % 10;
        let stride = a.len().checked_div(parts).unwrap_or(0);
        let mut y = b[..stride.saturating_sub(2)].to_vec();
        add_scaled(d, &b[..parts], a, stride, &mut y);
        y
    });
}

#[test]
fn exponentials() {
    sweep(|d, a, _| {
        let max = min_max(d, a).1;
        let mut x = a.to_vec();
        let total = exp_sum(d, max, &mut x);
        x.push(total);
        x
    });
}

/// Every row length; where the tests run on an emulator, the short ones and some of the others.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=MAX).filter(|&d| !cfg!(target_arch = "aarch64") || d <= 70 || d.is_multiple_of(13))
}

/// Every row length, with every number of rows and queries up to two blocks; rows of every element.
#[test]
fn rows() {
    for strange in [false, true] {
        let (a, b) = (numbers(35 * MAX, 3, strange), numbers(36 * MAX, 4, strange));
        let halves: Vec<f16> = a.iter().map(|&x| f16::from_f32(x)).collect();
        let brains: Vec<bf16> = a.iter().map(|&x| bf16::from_f32(x)).collect();
        let wide_halves: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
        let wide_brains: Vec<f32> = brains.iter().map(|x| x.to_f32()).collect();
        for d in lengths() {
            for (n, queries) in (0..=9).chain([16, 17, 32, 35]).zip([1, 5, 3, 4, 2, 8, 9, 7, 6, 1, 4, 5, 8, 3]) {
                let size = n * d;
                let run = |tile, wide| on_rows(tile, wide, d, n, queries, &b);
                let wide = [&a, &wide_halves, &wide_brains].map(|rows| &rows[..size]);
                let expected = wide.map(|rows| run(Tile::F32(Dispatch::scalar(), rows), rows));
                for level in levels() {
                    let what = |rows| format!("{} {rows} d {d} rows {n} queries {queries}", level.name());
                    same(&run(Tile::F32(level, wide[0]), wide[0]), &expected[0], &what("f32"));
                    if let Some(native) = level.native() {
                        same(&run(Tile::F16(native, &halves[..size]), wide[1]), &expected[1], &what("f16"));
                        same(&run(Tile::BF16(native, &brains[..size]), wide[2]), &expected[2], &what("bf16"));
                    }
                }
            }
        }
    }
}

/// What all kernels make of `n` rows, one after the other; `wide` has them as f32.
fn on_rows(rows: Tile<'_>, wide: &[f32], d: usize, n: usize, queries: usize, b: &[f32]) -> Vec<f32> {
    let (q, level) = (&b[..queries * d], rows.level());
    let stride = n + 3;
    // A tile in the middle of a longer row.
    let mut out = vec![7.0; queries * stride];
    rows.dots(q, d, &mut out[2..], stride);
    let (mut many, mut columns) = (vec![7.0; queries * stride], vec![7.0; COLUMN_ROWS * d.next_multiple_of(16)]);
    if n <= COLUMN_ROWS {
        turn(level, wide, d, &mut columns);
        dots_turned(level, q, d, 0.3, &columns, &mut many[2..], stride, n, Ahead::of(wide));
    }
    let (mut norms, mut dists, mut y) = (vec![7.0; n], vec![7.0; n], b[..d].to_vec());
    rows.sq_norms(d, &mut norms);
    rows.sq_dists(&b[..d], &mut dists);
    add_rows(level, &b[d..][..n], wide, &mut y);
    let (mut lengths, mut cosines) = (vec![7.0; n], vec![7.0; n]);
    let (mut mean, mut direction) = (b[..d].to_vec(), b[d..][..d].to_vec());
    if (1..=TILE_ROWS).contains(&n) {
        rows.gather(&mut lengths, &mut mean, &mut direction, Ahead::of(wide));
    }
    let mut far = lengths.clone();
    rows.compare(&b[..d], 0.7, &b[d..][..d], &mut cosines, &mut far, Ahead::of(wide));
    [out, many, norms, dists, y, lengths, mean, direction, cosines, far].concat()
}

/// Against the standard library, whose `mul_add` is exact on every platform; exponents such that sums cancel, leave the
/// range of f32, and end among the denormals.
#[test]
fn fused() {
    let x = numbers(3000, 5, true);
    let scales: Vec<f32> = (-60i32..=60).map(|e| 2f32.powi(e)).collect();
    for (i, abc) in x.windows(3).enumerate() {
        for (j, scale) in scales.iter().enumerate() {
            let (a, b) = (abc[0] * scale, abc[1] * scales[(i * 7 + j * 3) % scales.len()]);
            let near = f32::from_bits((-(a * b)).to_bits() ^ (j as u32 & 3));
            for c in [abc[2], abc[2] * scales[(i + j) % scales.len()], near] {
                let what = format!("{a:e} {b:e} {c:e}");
                same(&[fused::wide(a, b, c)], &[a.mul_add(b, c)], &what);
            }
        }
    }
}

#[test]
fn all_halves() {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    for level in Dispatch::available() {
        let mut wide = vec![0.0; halves.len()];
        widen_f16(level, &halves, &mut wide);
        same(&wide, &halves.iter().map(|x| x.to_f32()).collect::<Vec<_>>(), level.name());
        widen_bf16(level, &brains, &mut wide);
        same(&wide, &brains.iter().map(|x| x.to_f32()).collect::<Vec<_>>(), level.name());
        for (n, offset) in (0..70).flat_map(|n| (0..16).map(move |o| (n, o))) {
            let mut some = vec![7.0; n];
            widen_f16(level, &halves[1000 + offset..][..n], &mut some);
            assert!(some.iter().zip(&halves[1000 + offset..]).all(|(x, h)| *x == h.to_f32()));
        }
    }
}

/// By the definition of the format: element = scale * byte.
#[test]
fn q8_0_blocks() {
    for level in Dispatch::available() {
        for blocks in 0..5usize {
            let mut bytes = Vec::new();
            for b in 0..blocks {
                bytes.extend(f16::from_f32(0.37 * b as f32 - 0.5).to_le_bytes());
                bytes.extend((0..32).map(|i| (i * 8 + b * 3) as u8));
            }
            let mut out = vec![7.0; blocks * 32];
            widen_q8_0(level, &bytes, &mut out);
            for (i, x) in out.iter().enumerate() {
                let d = f64::from(f16::from_f32(0.37 * (i / 32) as f32 - 0.5));
                let q = f64::from(((i % 32 * 8 + i / 32 * 3) as u8).cast_signed());
                assert_eq!(f64::from(*x), d * q, "{}", level.name());
            }
        }
    }
}

#[test]
fn scalar_against_double_precision() {
    for n in 1..=MAX {
        let (a, b) = (numbers(n, n as u64, false), numbers(n, 99, false));
        let d = Dispatch::scalar();
        let wide = |f: &dyn Fn(f64, f64) -> f64| -> (f64, f64) {
            let terms = || a.iter().zip(&b).map(|(&a, &b)| f(a.into(), b.into()));
            (terms().sum(), terms().map(f64::abs).sum::<f64>() * 1e-6 + 1e-30)
        };
        let near = |x: f32, (expected, limit): (f64, f64)| {
            assert!((f64::from(x) - expected).abs() <= limit, "n {n}: {x} {expected} {limit}");
        };
        let mut out = [0.0];
        dots(d, &a, n, &b, &mut out, 1);
        near(out[0], wide(&|a, b| a * b));
        sq_norms(d, &a, n, &mut out);
        near(out[0], wide(&|a, _| a * a));
        sq_dists(d, &a, &b, &mut out);
        near(out[0], wide(&|a, b| (a - b) * (a - b)));
        near(sum(d, &a), wide(&|a, _| a));
    }
}

#[test]
fn exp_is_accurate() {
    let mut x: Vec<f32> = (0..200_000).map(|i| -87.0 * i as f32 / 200_000.0).collect();
    let expected: Vec<f64> = x.iter().map(|&x| f64::from(x).exp()).collect();
    exp_sum(Dispatch::scalar(), 0.0, &mut x);
    for (i, (x, e)) in x.iter().zip(expected).enumerate() {
        // The logarithm of 2 is rounded, which shows in proportion to the argument.
        let limit = 1.8e-7 + 1.4e-8 * 87.0 * i as f64 / 200_000.0;
        assert!((f64::from(*x) / e - 1.0).abs() < limit, "{i}: {x} {e}");
    }
    let mut ends = [0.0, -87.01, f32::NEG_INFINITY, f32::NAN];
    exp_sum(Dispatch::scalar(), 0.0, &mut ends);
    assert_eq!(ends[..3], [1.0, 0.0, 0.0]);
    assert!(ends[3].is_nan());
}
