//! Distances of a farthest-first traversal: how far each key lies from those a cover of the keys would take before it.

use crate::evict::Job;
use crate::kernels::{self, TILE_ROWS};
use crate::math::{copy, sqrt};
use crate::shape::Head;

/// Replaces the distances to the mean by those of the traversal, `[len]`; 0 for protected entries. Of equals the oldest
/// is taken first. `key` is a row of scratch, `nearest` at least `[len]`.
pub(crate) fn traverse(
    job: &Job<'_>,
    head: Head,
    tile: &mut [f32],
    key: &mut [f32],
    nearest: &mut [f32],
    distances: &mut [f32],
) {
    let nearest = nearest.get_mut(..head.len).unwrap_or_default();
    // Distance to the nearest entry taken so far, negative for those taken; never NaN.
    let start = (0..head.len).filter(|&i| job.protected(head, i));
    let alone = start.clone().next().is_none();
    for (near, &mean) in nearest.iter_mut().zip(&*distances) {
        *near = if alone && !mean.is_nan() { mean } else { f32::INFINITY };
    }
    for i in start.clone() {
        approach(job, head, i, tile, key, nearest);
        set(distances, i, 0.0);
    }
    start.clone().for_each(|i| set(nearest, i, TAKEN));
    for _ in start.count()..head.len {
        let mut furthest = (0, TAKEN);
        for (i, &near) in nearest.iter().enumerate() {
            if near > furthest.1 {
                furthest = (i, near);
            }
        }
        set(distances, furthest.0, furthest.1);
        approach(job, head, furthest.0, tile, key, nearest);
        set(nearest, furthest.0, TAKEN);
    }
}

const TAKEN: f32 = -1.0;

/// Lowers the distances of the entries not taken to those from entry `i`.
fn approach(job: &Job<'_>, head: Head, i: usize, tile: &mut [f32], key: &mut [f32], nearest: &mut [f32]) {
    let d = job.view.shape.head_dim;
    job.view.keys.for_tiles(job.d, d, head.row(i), 1, tile, |_, row| copy(row, key));
    job.view.keys.for_tiles(job.d, d, head, head.len, tile, |at, rows| {
        let mut squares = [0.0; TILE_ROWS];
        let n = rows.len().checked_div(d).unwrap_or(0);
        kernels::sq_dists(job.d, key, rows, squares.get_mut(..n).unwrap_or_default());
        for (near, &square) in nearest.get_mut(at..).unwrap_or_default().iter_mut().zip(squares.iter().take(n)) {
            let x = sqrt(square);
            *near = if x < *near { x } else { *near };
        }
    });
}

fn set(x: &mut [f32], i: usize, value: f32) {
    if let Some(x) = x.get_mut(i) {
        *x = value;
    }
}
