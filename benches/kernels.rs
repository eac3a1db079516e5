//! Every kernel at every dispatch level.
//!
//! Names: `kernel/<kernel>/<level>/<head_dim>x<rows>`, and `memory/<precision>/<head_dim>x<rows>` for one pass over the
//! same rows that only adds them up.

#[allow(dead_code)] // each bench uses a part
mod common;
// The kernels are private to the crate; this compiles the same source.
#[path = "../core/src/kernels/mod.rs"]
#[allow(dead_code, unused_imports)] // its tests are compiled along
mod kernels;

use std::hint::black_box;

use common::{Data, HEAD_DIMS, QUERIES, ROWS, criterion, numbers};
use criterion::Criterion;
use kernels::{Ahead, COLUMN_ROWS, Dispatch, Q8_0_BYTES, TILE_ROWS};

fn main() {
    let mut c = criterion();
    for d in HEAD_DIMS {
        for n in ROWS {
            let data = Data::new(d, n);
            data.memory(&mut c);
            all_levels(&mut c, &data);
        }
    }
    c.final_summary();
}

fn all_levels(c: &mut Criterion, x: &Data) {
    let Data { d, n, .. } = *x;
    let (query, mut out, mut y) = (&x.queries[..d], vec![0.0; QUERIES * n], vec![0.0; d]);
    // The scale of every block is the smallest half; only the time counts.
    let q8_0: Vec<u8> = (0..n * d / 32).flat_map(|_| [1, 0].into_iter().chain(0..32)).collect();
    let (weights, mut wide) = (numbers(n, 3, 1.0), vec![0.0; TILE_ROWS * d]);
    for level in Dispatch::available() {
        let mut kernel = |name: &str, run: &mut dyn FnMut()| {
            let mut group = x.group(c, &format!("kernel/{name}"));
            group.bench_function(x.id(level.name()), |b| b.iter(&mut *run));
        };
        kernel("dots", &mut || kernels::dots(level, black_box(query), d, &x.rows, &mut out, n));
        kernel("dots_8", &mut || kernels::dots(level, black_box(&x.queries), d, &x.rows, &mut out, n));
        kernel("dots_turned_8", &mut || {
            let mut columns = [0.0; COLUMN_ROWS * 128];
            let columns = &mut columns[..COLUMN_ROWS * d];
            for (i, rows) in x.rows.chunks(COLUMN_ROWS * d).enumerate() {
                let out = &mut out[i * COLUMN_ROWS..];
                kernels::turn(level, black_box(rows), d, columns);
                kernels::dots_turned(level, &x.queries, d, 0.125, columns, out, n, rows.len() / d, Ahead::of(rows));
            }
        });
        kernel("sq_norms", &mut || kernels::sq_norms(level, black_box(&x.rows), d, &mut out[..n]));
        kernel("sq_dists", &mut || kernels::sq_dists(level, black_box(query), &x.rows, &mut out[..n]));
        if let Some(native) = level.native() {
            kernel("dots_f16", &mut || native.dots(black_box(query), d, &x.halves, &mut out, n));
            kernel("dots_bf16", &mut || native.dots(black_box(query), d, &x.brains, &mut out, n));
            kernel("sq_dists_f16", &mut || native.sq_dists(black_box(query), &x.halves, &mut out[..n]));
            kernel("sq_dists_bf16", &mut || native.sq_dists(black_box(query), &x.brains, &mut out[..n]));
        }
        let (mut norms, mut mean, mut direction) = (vec![1.0; n], vec![0.0; d], vec![0.0; d]);
        kernel("gather", &mut || {
            for (norms, rows) in norms.chunks_mut(TILE_ROWS).zip(x.rows.chunks(TILE_ROWS * d)) {
                kernels::gather(level, black_box(rows), norms, &mut mean, &mut direction, Ahead::of(rows));
            }
        });
        kernel("compare", &mut || {
            kernels::compare(
                level,
                black_box(query),
                1.0,
                &x.queries[d..2 * d],
                &x.rows,
                &mut out[..n],
                &mut norms,
                Ahead::of::<f32>(&[]),
            );
        });
        kernel("add_rows", &mut || {
            for (w, rows) in weights.chunks(TILE_ROWS).zip(x.rows.chunks(TILE_ROWS * d)) {
                kernels::add_rows(level, black_box(w), rows, &mut y);
            }
        });
        kernel("widen_f16", &mut || {
            x.halves.chunks(wide.len()).for_each(|x| kernels::widen_f16(level, black_box(x), &mut wide));
        });
        kernel("widen_bf16", &mut || {
            x.brains.chunks(wide.len()).for_each(|x| kernels::widen_bf16(level, black_box(x), &mut wide));
        });
        // A head_dim of 80 has no Q8_0 rows.
        if d.is_multiple_of(32) {
            kernel("widen_q8_0", &mut || {
                q8_0.chunks(wide.len() / 32 * Q8_0_BYTES)
                    .for_each(|x| kernels::widen_q8_0(level, black_box(x), &mut wide));
            });
        }
        // Per row of the cache: head_dim plays no part.
        if d == HEAD_DIMS[0] {
            let (a, b) = out.split_at_mut(n);
            kernel("axpy", &mut || kernels::axpy(level, black_box(1e-9), &weights, a));
            kernel("scale", &mut || kernels::scale(level, black_box(1.0), a));
            kernel("sum", &mut || _ = black_box(kernels::sum(level, black_box(&weights))));
            kernel("min_max", &mut || _ = black_box(kernels::min_max(level, black_box(&weights))));
            kernel("exp_sum", &mut || {
                let b = &mut b[..n];
                b.copy_from_slice(&weights);
                _ = black_box(kernels::exp_sum(level, 2.0, b));
            });
        }
    }
}
