//! Attention to expect of queries not seen yet (ExpectedAttention): the recorded ones, unrotated, are summarised as a
//! normal distribution, which the mean rotation of the positions to come carries to where attention will use it.
//!
//! A host takes mean and covariance (divided by the count) of its queries before RoPE, then calls [`mean_rotation`] and
//! [`rotate`].

use crate::evict::Job;
use crate::kernels::{self, TILE_ROWS};
use crate::math::float;
use crate::shape::{Head, part};

/// Which elements a rotary embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `i` and `i + pairs`.
    Halves,
    /// `2 i` and `2 i + 1`.
    Neighbours,
}

/// Means of `cos(p f)` and `sin(p f)` over the positions `first .. first + n`, for each frequency `f` in radians per
/// position. All slices `[pairs]`; the shortest decides.
pub fn mean_rotation(frequencies: &[f32], first: u32, n: u32, cos: &mut [f32], sin: &mut [f32]) {
    for ((&f, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let (mut c, mut s) = (0.0, 0.0);
        for p in 0..n {
            let angle = f64::from(first.saturating_add(p)) * f64::from(f);
            c += libm::cos(angle);
            s += libm::sin(angle);
        }
        let n = f64::from(n.max(1));
        (*cos, *sin) = (narrow(c / n), narrow(s / n));
    }
}

/// Applies a mean rotation to one query head's statistics: `mean` `[d]`, `covariance` `[d][d]` or empty. Elements past
/// the pairs are not turned.
pub fn rotate(pairing: Pairing, cos: &[f32], sin: &[f32], mean: &mut [f32], covariance: &mut [f32]) {
    let d = mean.len().max(1);
    turn(pairing, cos, sin, mean, 1);
    for row in covariance.chunks_exact_mut(d) {
        turn(pairing, cos, sin, row, 1);
    }
    for column in 0..d {
        turn(pairing, cos, sin, covariance.get_mut(column..).unwrap_or_default(), d);
    }
}

/// Turns the elements at multiples of `step`.
fn turn(pairing: Pairing, cos: &[f32], sin: &[f32], x: &mut [f32], step: usize) {
    let pairs = cos.len();
    for (i, (c, s)) in cos.iter().zip(sin).enumerate() {
        let (a, b) = match pairing {
            Pairing::Halves => (i, i.saturating_add(pairs)),
            Pairing::Neighbours => (i.saturating_mul(2), i.saturating_mul(2).saturating_add(1)),
        };
        let (a, b) = (a.saturating_mul(step), b.saturating_mul(step));
        if let (Some(&xa), Some(&xb)) = (x.get(a), x.get(b)) {
            for (at, value) in [(a, c * xa - s * xb), (b, s * xa + c * xb)] {
                if let Some(x) = x.get_mut(at) {
                    *x = value;
                }
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation)]
fn narrow(x: f64) -> f32 {
    x as f32
}

/// Mean over the group of softmax of the expected exponentials, `mu . k + k Sigma k / 2` in scaled units, over the
/// entries after the protected sinks.
pub(crate) fn received(
    job: &Job<'_>,
    head: Head,
    covariance: bool,
    temp: &mut [f32],
    tile: &mut [f32],
    matrix: &mut [f32],
    out: &mut [f32],
) {
    let (view, d) = (job.view, job.view.shape.head_dim);
    let sinks = (job.policy.protect.sinks as usize).min(head.len);
    let after = Head { start: head.start.saturating_add(sinks), len: head.len.saturating_sub(sinks), ..head };
    let logits = temp.get_mut(..after.len).unwrap_or_default();
    out.fill(0.0);
    for g in 0..view.shape.group {
        let q = head.index.saturating_mul(view.shape.group).saturating_add(g);
        let mean = part(view.observation.query_mean, q, 1, d);
        let sigma = part(view.observation.query_covariance, q, 1, d.saturating_mul(d));
        view.keys.for_tiles(job.d, d, after, after.len, tile, |i, rows| {
            let n = rows.len().checked_div(d).unwrap_or(0);
            let logits = logits.get_mut(i..i.saturating_add(n)).unwrap_or_default();
            kernels::dots(job.d, mean, d, rows, logits, n);
            kernels::scale(job.d, view.scale, logits);
            if covariance {
                kernels::dots(job.d, sigma, d, rows, matrix, TILE_ROWS);
                let half = view.scale * view.scale / 2.0;
                for (i, (logit, row)) in logits.iter_mut().zip(rows.chunks_exact(d.max(1))).enumerate() {
                    let spread = matrix.iter().skip(i).step_by(TILE_ROWS).zip(row).fold(0.0, |s, (a, b)| s + a * b);
                    *logit += half * spread;
                }
            }
        });
        let (_, max) = kernels::min_max(job.d, logits);
        let sum = kernels::exp_sum(job.d, max, logits);
        kernels::axpy(job.d, 1.0 / sum, logits, out.get_mut(sinks..).unwrap_or_default());
    }
    kernels::scale(job.d, 1.0 / float(view.shape.group), out);
}
