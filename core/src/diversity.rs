//! What differs: how far each key lies from the middle of its head, and how much the head repeats itself.

use crate::evict::Job;
use crate::kernels::TILE_ROWS;
use crate::math::{copy, float, ratio, sqrt};
use crate::policy::Geometry;
use crate::score::min_max;
use crate::shape::Head;
use crate::workspace::Parts;
use crate::{Mix, kernels};

/// Writes the diversity of the head's candidates to the front of `parts.temp` and returns the head's redundancy.
///
/// The middle is taken over all entries of the head, protected ones included; scaling is over the candidates.
pub(crate) fn geometry(job: &Job<'_>, head: Head, g: Geometry, parts: &mut Parts<'_>) -> f32 {
    let n = head.len;
    let m = job.candidates(head);
    let (cosines, rest) = parts.temp.split_at_mut_checked(n).unwrap_or_default();
    let distances = rest.get_mut(..n).unwrap_or_default();
    let direction = &mut *parts.direction;
    let mean = &mut *parts.mean;
    middle(job, head, parts.tile, distances, mean, direction);
    let mut length = [0.0];
    kernels::sq_norms(job.d, direction, direction.len(), &mut length);
    let [length] = length;
    metrics(job, head, parts.tile, mean, direction, sqrt(length), cosines, distances);
    let redundancy = match job.policy.mix {
        Mix::HeadRedundancy => {
            let rho_c = ((float(n) * length - 1.0) / float(n.saturating_sub(1).max(1))).clamp(0.0, 1.0);
            let (_, max) = kernels::min_max(job.d, distances);
            let rho_e = 1.0 - ratio(kernels::sum(job.d, distances) / float(n), max);
            (g.alpha * rho_e + g.beta * rho_c).clamp(0.0, 1.0)
        }
        _ => 0.0,
    };
    let cosines = cosines.get_mut(..m).unwrap_or_default();
    let distances = distances.get_mut(..m).unwrap_or_default();
    match (g.alpha == 0.0, g.beta == 0.0, job.policy.mix) {
        (true, _, Mix::Diversity) => {}
        (true, ..) => min_max(job, cosines),
        (false, true, mix) => {
            copy(distances, cosines);
            if !matches!(mix, Mix::Diversity) {
                min_max(job, cosines);
            }
        }
        (false, false, _) => {
            min_max(job, cosines);
            min_max(job, distances);
            kernels::scale(job.d, g.beta, cosines);
            kernels::axpy(job.d, g.alpha, distances, cosines);
        }
    }
    redundancy
}

const ONES: [f32; TILE_ROWS] = [1.0; TILE_ROWS];

/// The mean key and the mean unit key; `norms` receives the length of every key. A zero key has no direction.
fn middle(job: &Job<'_>, head: Head, tile: &mut [f32], norms: &mut [f32], mean: &mut [f32], direction: &mut [f32]) {
    let d = job.view.shape.head_dim;
    mean.fill(0.0);
    direction.fill(0.0);
    job.view.keys.for_tiles(job.d, d, head, head.len, tile, |i, rows| {
        let norms = norms.get_mut(i..).unwrap_or_default();
        let take = rows.len().checked_div(d).unwrap_or(0);
        kernels::sq_norms(job.d, rows, d, norms.get_mut(..take).unwrap_or_default());
        let norms = norms.get_mut(..take).unwrap_or_default();
        let mut inverse = [0.0; TILE_ROWS];
        for (norm, inverse) in norms.iter_mut().zip(&mut inverse) {
            *norm = sqrt(*norm);
            *inverse = ratio(1.0, *norm);
        }
        kernels::add_rows(job.d, ONES.get(..take).unwrap_or_default(), rows, mean);
        kernels::add_rows(job.d, inverse.get(..take).unwrap_or_default(), rows, direction);
    });
    let inv = 1.0 / float(head.len);
    kernels::scale(job.d, inv, mean);
    kernels::scale(job.d, inv, direction);
}

/// Negated cosine with `direction` (of the given length) and distance to `mean`; `distances` holds the key norms before.
#[allow(clippy::too_many_arguments)]
fn metrics(
    job: &Job<'_>,
    head: Head,
    tile: &mut [f32],
    mean: &[f32],
    direction: &[f32],
    length: f32,
    cosines: &mut [f32],
    distances: &mut [f32],
) {
    let d = job.view.shape.head_dim;
    job.view.keys.for_tiles(job.d, d, head, head.len, tile, |i, rows| {
        let here = i..i.saturating_add(rows.len().checked_div(d).unwrap_or(0));
        let cosines = cosines.get_mut(here.clone()).unwrap_or_default();
        let distances = distances.get_mut(here).unwrap_or_default();
        let stride = cosines.len();
        kernels::dots(job.d, direction, d, rows, cosines, stride);
        for (c, &norm) in cosines.iter_mut().zip(&*distances) {
            *c = -ratio(*c, norm * length);
        }
        kernels::sq_dists(job.d, mean, rows, distances);
        distances.iter_mut().for_each(|x| *x = sqrt(*x));
    });
}
