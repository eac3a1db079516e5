//! What mattered: fills the importance of one head's candidates.

use crate::axes::{Norm, ValueNorm};
use crate::evict::Job;
use crate::math::{copy, float, ratio, sqrt};
use crate::score::{min_max, to_mean};
use crate::shape::{Head, Rows};
use crate::workspace::Parts;
use crate::{Importance, kernels, lag};

/// Writes importance into `parts.scores`; the attention it starts from is in `parts.signal` already.
pub(crate) fn fill(job: &Job<'_>, head: Head, parts: &mut Parts<'_>) {
    let scores = head.of_mut(parts.scores);
    match job.policy.importance {
        Importance::None => scores.fill(0.0),
        Importance::Recency => scores.iter_mut().enumerate().for_each(|(i, s)| *s = float(i)),
        Importance::Random { seed } => random(seed, job.view.layer, head.index, scores),
        Importance::KeyNorm => {
            norms(job, job.view.keys, head, head.len, parts.tile, scores);
            scores.iter_mut().for_each(|s| *s = -*s);
        }
        Importance::Lag { lag } => lag::fill(job, head, lag as usize, parts),
        Importance::Leverage { window } => {
            let values = parts.temp.get_mut(..head.len).unwrap_or_default();
            for (rows, out) in [(job.view.keys, &mut *scores), (job.view.values.unwrap_or(job.view.keys), &mut *values)]
            {
                squares(job, rows, head, head.len, parts.tile, out);
                for part in out.chunks_mut((window as usize).max(1)) {
                    let sum = kernels::sum(job.d, part);
                    kernels::scale(job.d, ratio(1.0, sum), part);
                }
            }
            scores.iter_mut().zip(&*values).for_each(|(s, v)| *s *= v);
            let sum = kernels::sum(job.d, scores);
            kernels::scale(job.d, ratio(1.0, sum), scores);
        }
        Importance::Given => copy(head.of(job.view.observation.given), scores),
        Importance::Attention(a) => {
            let m = job.candidates(head);
            let scores = scores.get_mut(..m).unwrap_or_default();
            let signal = head.of_mut(parts.signal).get_mut(..m).unwrap_or_default();
            with_values(job, head, a.value_norm, parts.tile, signal, scores);
        }
    }
}

fn with_values(job: &Job<'_>, head: Head, v: ValueNorm, tile: &mut [f32], signal: &mut [f32], scores: &mut [f32]) {
    let m = scores.len();
    match (v, job.view.values) {
        (ValueNorm::Add, Some(values)) => {
            norms(job, values, head, m, tile, scores);
            let level = kernels::sum(job.d, signal) / float(m);
            min_max(job, scores);
            to_mean(job, level, scores);
            kernels::axpy(job.d, 1.0, signal, scores);
        }
        (ValueNorm::Times { norm, epsilon }, Some(values)) => {
            match norm {
                Norm::L1 => absolute_sums(job, values, head, m, tile, scores),
                Norm::L2 => norms(job, values, head, m, tile, scores),
            }
            for (s, a) in scores.iter_mut().zip(signal) {
                *s *= *a + epsilon;
                *a = *s; // heads are compared by the product
            }
        }
        (ValueNorm::Output { epsilon, .. }, _) => {
            let norms = head.of(job.view.observation.output_norms);
            for ((s, a), o) in scores.iter_mut().zip(signal).zip(norms) {
                *s = (*a + epsilon) * o;
            }
        }
        _ => copy(signal, scores),
    }
}

/// `out[i] = ||rows[i]||_1` for the first `n` rows of a head.
fn absolute_sums(job: &Job<'_>, rows: Rows<'_>, head: Head, n: usize, tile: &mut [f32], out: &mut [f32]) {
    let d = job.view.shape.head_dim;
    rows.for_tiles(job.d, d, head, n, tile, |i, rows| {
        let out = out.get_mut(i..).unwrap_or_default();
        for (out, row) in out.iter_mut().zip(rows.chunks_exact(d.max(1))) {
            *out = row.iter().fold(0.0, |s, x| s + x.abs());
        }
    });
}

/// `out[i] = ||rows[i]||_2` for the first `n` rows of a head.
fn norms(job: &Job<'_>, rows: Rows<'_>, head: Head, n: usize, tile: &mut [f32], out: &mut [f32]) {
    squares(job, rows, head, n, tile, out);
    out.iter_mut().take(n).for_each(|x| *x = sqrt(*x));
}

/// `out[i] = ||rows[i]||_2^2` for the first `n` rows of a head.
fn squares(job: &Job<'_>, rows: Rows<'_>, head: Head, n: usize, tile: &mut [f32], out: &mut [f32]) {
    let d = job.view.shape.head_dim;
    rows.for_native_tiles(job.d, d, head, n, tile, |i, take, rows, ahead| {
        kernels::prefetch(job.d, ahead);
        rows.sq_norms(d, out.get_mut(i..i.saturating_add(take)).unwrap_or_default());
    });
}

/// Numbers in `[0, 1)` that depend on nothing but their coordinates.
fn random(seed: u64, layer: u32, head: usize, out: &mut [f32]) {
    let stream = stream(seed, layer, head);
    for (i, out) in (0u64..).zip(out) {
        *out = uniform(stream, i);
    }
}

pub(crate) fn stream(seed: u64, layer: u32, head: usize) -> u64 {
    mix(seed ^ mix(u64::from(layer) << 32 | head as u64 & 0xffff_ffff))
}

/// The `i`-th number of a stream, in `[0, 1)`.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn uniform(stream: u64, i: u64) -> f32 {
    (mix(stream ^ i) >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// The finaliser of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
