//! Dot products, squared distances and cosines of one vector with the rows of a head, as this crate, SimSIMD and
//! NumKong compute them.
//!
//! Names: `rows/<measure>/<precision>/<library>/<head_dim>x<rows>`, and `memory/<precision>/<head_dim>x<rows>` for one
//! pass over the same rows that only adds them up.

#[path = "../common/mod.rs"]
#[allow(dead_code)] // each bench uses a part
mod common;
// The kernels are private to their crate; this compiles the same source.
#[path = "../../core/src/kernels/mod.rs"]
#[allow(dead_code, unused_imports)] // its tests are compiled along
mod kernels;

use std::hint::black_box;

use common::{Data, HEAD_DIMS, ROWS, criterion};
use criterion::Criterion;
use half::{bf16, f16};
use kernels::{Dispatch, TILE_ROWS, Tile};

fn main() {
    let mut c = criterion();
    for d in HEAD_DIMS {
        for n in ROWS {
            let data = Data::new(d, n);
            data.memory(&mut c);
            ours(&mut c, &data);
            peers(&mut c, &data);
        }
    }
    c.final_summary();
}

/// Tile by tile, as the scorers run, which for cosines includes the norms of the rows.
fn ours(c: &mut Criterion, x: &Data) {
    let level = Dispatch::detect();
    let native = level.native().expect("an instruction set that reads 16-bit rows");
    let query = &x.queries[..x.d];
    let tile = TILE_ROWS * x.d;
    let mut out = vec![0.0; x.n];
    for measure in ["dot", "sqeuclid", "cosine"] {
        let mut group = x.group(c, &format!("rows/{measure}"));
        let mut bench = |name: &str, tiles: &dyn Fn() -> Vec<Tile<'_>>| {
            let tiles = tiles();
            group.bench_function(x.id(name), |b| {
                b.iter(|| {
                    for (out, rows) in out.chunks_mut(TILE_ROWS).zip(&tiles) {
                        compare(measure, black_box(query), *rows, out);
                    }
                });
            });
        };
        bench("f32/ecokv", &|| x.rows.chunks(tile).map(|x| Tile::F32(level, x)).collect());
        bench("f16/ecokv", &|| x.halves.chunks(tile).map(|x| Tile::F16(native, x)).collect());
        bench("bf16/ecokv", &|| x.brains.chunks(tile).map(|x| Tile::BF16(native, x)).collect());
    }
}

fn compare(measure: &str, query: &[f32], rows: Tile<'_>, out: &mut [f32]) {
    let d = query.len();
    match measure {
        "dot" => rows.dots(query, d, out, TILE_ROWS),
        "sqeuclid" => rows.sq_dists(query, out),
        _ => {
            let mut norms = [0.0; TILE_ROWS];
            let norms = &mut norms[..out.len()];
            rows.sq_norms(d, norms);
            rows.dots(query, d, out, TILE_ROWS);
            out.iter_mut().zip(norms).for_each(|(x, n)| *x = 1.0 - *x / n.sqrt());
        }
    }
}

/// A call per pair of vectors of one format, as their interfaces have it. SimSIMD sums f32 in f32 and, where the CPU can,
/// f16 in f16; NumKong sums f32 in f64 and f16 in f32.
fn peers(c: &mut Criterion, x: &Data) {
    macro_rules! peer {
        ($library:ident, $t:ty, $precision:expr, $store:expr, $($measure:literal => $f:path),*) => {{
            let store = |x: &[f32]| -> Vec<$t> { x.iter().map(|&x| $store(x)).collect() };
            let (query, rows) = (store(&x.queries[..x.d]), store(&x.rows));
            $({
                let mut group = x.group(c, concat!("rows/", $measure));
                let mut out = vec![Default::default(); x.n];
                group.bench_function(x.id(format!("{}/{}", $precision, stringify!($library))), |b| {
                    b.iter(|| {
                        let query = black_box(&query[..]);
                        for (out, row) in out.iter_mut().zip(rows.chunks_exact(x.d)) {
                            *out = $f(query, row).unwrap_or_default();
                        }
                    });
                });
            })*
        }};
    }
    macro_rules! both {
        ($t:ident, $simsimd:ty, $numkong:ty, $store_simsimd:expr, $store_numkong:expr) => {
            peer!(simsimd, $simsimd, stringify!($t), $store_simsimd,
                "dot" => simsimd::SpatialSimilarity::dot,
                "sqeuclid" => simsimd::SpatialSimilarity::sqeuclidean,
                "cosine" => simsimd::SpatialSimilarity::cosine);
            peer!(numkong, $numkong, stringify!($t), $store_numkong,
                "dot" => numkong::Dot::dot,
                "sqeuclid" => numkong::Euclidean::sqeuclidean,
                "cosine" => numkong::Angular::angular);
        };
    }
    both!(f32, f32, f32, |x| x, |x| x);
    let half = |x| f16::from_f32(x).to_bits();
    both!(f16, simsimd::f16, numkong::f16, |x| simsimd::f16(half(x)), |x| numkong::f16(half(x)));
    let brain = |x| bf16::from_f32(x).to_bits();
    both!(bf16, simsimd::bf16, numkong::bf16, |x| simsimd::bf16(brain(x)), |x| numkong::bf16(brain(x)));
}
