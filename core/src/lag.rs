//! LagKV: how unusual an entry looks to the chunk of entries that follows its own.

use crate::evict::Job;
use crate::kernels;
use crate::math::{float, ratio, sqrt};
use crate::shape::{Head, Rows};
use crate::workspace::Parts;

/// Writes the scores of one head. The chunks begin after the protected sinks.
pub(crate) fn fill(job: &Job<'_>, head: Head, lag: usize, parts: &mut Parts<'_>) {
    let n = head.len;
    let sinks = (job.policy.protect.sinks as usize).min(n);
    let scores = head.of_mut(parts.scores);
    let chunks = n.saturating_sub(sinks).checked_div(lag).unwrap_or(0);
    if chunks < 2 {
        for (i, s) in scores.iter_mut().enumerate() {
            *s = if i < sinks { 1.0 } else { float(i) / float(n) };
        }
        return;
    }
    scores.fill(1.0);
    let (own, other) = parts.temp.split_at_mut_checked(lag).unwrap_or_default();
    let mut bounds = Bounds { lo: parts.mean, hi: parts.direction };
    for chunk in 1..chunks {
        let next = Head {
            start: head.start.saturating_add(sinks).saturating_add(chunk.saturating_mul(lag)),
            len: lag,
            ..head
        };
        let this = Head { start: next.start.saturating_sub(lag), ..next };
        let values = job.view.values.unwrap_or(job.view.keys);
        surprise(job, job.view.keys, this, next, &mut bounds, parts.tile, own);
        let other = other.get_mut(..lag).unwrap_or_default();
        surprise(job, values, this, next, &mut bounds, parts.tile, other);
        for (a, b) in own.iter_mut().zip(&*other) {
            *a = (*a + *b) / 2.0;
        }
        let at = sinks.saturating_add(chunk.saturating_sub(1).saturating_mul(lag));
        for (i, s) in scores.get_mut(at..).unwrap_or_default().iter_mut().take(lag).enumerate() {
            *s = float(place(own, i)) / float(lag);
        }
    }
}

struct Bounds<'a> {
    lo: &'a mut [f32],
    hi: &'a mut [f32],
}

/// Softmax over the chunk of the standard deviation over channels, each channel scaled by its range in `next`.
fn surprise(
    job: &Job<'_>,
    rows: Rows<'_>,
    this: Head,
    next: Head,
    bounds: &mut Bounds<'_>,
    tile: &mut [f32],
    out: &mut [f32],
) {
    let d = job.view.shape.head_dim;
    bounds.lo.fill(f32::INFINITY);
    bounds.hi.fill(f32::NEG_INFINITY);
    rows.for_tiles(job.d, d, next, next.len, tile, |_, rows| {
        for row in rows.chunks_exact(d.max(1)) {
            for ((lo, hi), &x) in bounds.lo.iter_mut().zip(bounds.hi.iter_mut()).zip(row) {
                *lo = if x < *lo { x } else { *lo };
                *hi = if x > *hi { x } else { *hi };
            }
        }
    });
    rows.for_tiles(job.d, d, this, this.len, tile, |i, rows| {
        let out = out.get_mut(i..).unwrap_or_default();
        for (out, row) in out.iter_mut().zip(rows.chunks_exact(d.max(1))) {
            let scaled = || row.iter().zip(&*bounds.lo).zip(&*bounds.hi).map(|((&x, &lo), &hi)| ratio(x - lo, hi - lo));
            let mean = scaled().fold(0.0, |s, x| s + x) / float(d);
            let squares = scaled().fold(0.0, |s, x| s + (x - mean) * (x - mean));
            *out = sqrt(ratio(squares, float(d.saturating_sub(1))));
        }
    });
    let (_, max) = kernels::min_max(job.d, out);
    let sum = kernels::exp_sum(job.d, max, out);
    kernels::scale(job.d, 1.0 / sum, out);
}

/// How many of the scores rank below the `i`-th, the older ranking below an equal newer one.
fn place(scores: &[f32], i: usize) -> usize {
    let own = scores.get(i).copied().unwrap_or(0.0);
    scores.iter().enumerate().filter(|&(j, &s)| s < own || (s == own && j < i)).count()
}
