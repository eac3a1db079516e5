//! What differs: how far each key lies from the middle of its head, and how much the head repeats itself.

use crate::attention::Middle;
use crate::axes::{Combine, Geometry, Redundancy, Reference};
use crate::evict::Job;
use crate::kernels::TILE_ROWS;
use crate::math::{copy, float, ratio, sqrt};
use crate::score::scale_as;
use crate::shape::Head;
use crate::workspace::Parts;
use crate::{Diversity, Mix, Scaling, farthest, kernels, tag};

/// Writes the diversity of the head's candidates to the front of `parts.temp` and returns the head's redundancy.
///
/// The middle is taken over all entries of the head, protected ones included; scaling is over the candidates. `widest`
/// is what [`widest`] returned.
pub(crate) fn fill(job: &Job<'_>, head: Head, g: Geometry, widest: f32, parts: &mut Parts<'_>) -> f32 {
    let n = head.len;
    let m = job.candidates(head);
    let (cosines, rest) = parts.temp.split_at_mut_checked(n).unwrap_or_default();
    let (distances, scratch) = rest.split_at_mut_checked(n).unwrap_or_default();
    let direction = &mut *parts.direction;
    let mean = &mut *parts.mean;
    if parts.norms.is_empty() {
        gather(job, head, parts.tile, distances, mean, direction);
    } else {
        copy(head.of(parts.norms), distances);
    }
    let energy = middle(job, distances, mean, direction);
    let (common, length) = (square(job, mean), square(job, direction));
    // A metric of weight 0 is left out, but not both.
    let wanted = Wanted { cosines: g.alpha == 0.0 || g.beta != 0.0, distances: g.alpha != 0.0 };
    metrics(job, head, wanted, parts.tile, mean, direction, sqrt(length), cosines, distances);
    let spread = average(job, distances);
    match g.reference {
        Reference::Mean => {}
        Reference::Modality => by_modality(job, head, parts.tile, mean, scratch, distances),
        Reference::Window(size) => by_window(job, head, size as usize, parts.tile, mean, distances),
        Reference::FarthestFirst => farthest::traverse(job, head, parts.tile, mean, scratch, distances),
    }
    let redundancy = match job.policy.mix {
        Mix::HeadRedundancy | Mix::HardRedundancy { .. } | Mix::SoftRedundancy { .. } => {
            let rho_c = ((float(n) * length - 1.0) / float(n.saturating_sub(1).max(1))).clamp(0.0, 1.0);
            let rho_e = match g.redundancy {
                _ if !wanted.distances => 0.0, // its weight is 0
                Redundancy::Energy => ratio(common, energy),
                Redundancy::MeanOfRange => 1.0 - ratio(average(job, distances), kernels::min_max(job.d, distances).1),
                Redundancy::Layer => 1.0 - ratio(spread, widest),
                Redundancy::Pairs => {
                    let pairs = 2.0 * square(job, distances) / float(n.saturating_sub(1).max(1));
                    let bound = 2.0 * kernels::min_max(job.d, distances).1;
                    1.0 - ratio(pairs, bound * bound)
                }
            };
            (g.alpha * rho_e + g.beta * rho_c).clamp(0.0, 1.0)
        }
        _ => 0.0,
    };
    let scaling = if g.combine == Combine::RankSum { Scaling::Rank } else { g.scaling };
    let cosines = cosines.get_mut(..m).unwrap_or_default();
    let distances = distances.get_mut(..m).unwrap_or_default();
    let as_measured = matches!(job.policy.mix, Mix::Diversity | Mix::Raw(_));
    match (g.alpha == 0.0, g.beta == 0.0) {
        (true, _) if as_measured => {}
        (true, _) => scale_as(job, scaling, cosines, scratch),
        (false, true) => {
            copy(distances, cosines);
            if !as_measured {
                scale_as(job, scaling, cosines, scratch);
            }
        }
        (false, false) => {
            scale_as(job, scaling, cosines, scratch);
            scale_as(job, scaling, distances, scratch);
            combine(job, g, distances, cosines);
        }
    }
    redundancy
}

/// The largest mean distance of the layer's heads, where the policy compares with it; 0 elsewhere.
pub(crate) fn widest(job: &Job<'_>, parts: &mut Parts<'_>) -> f32 {
    match job.policy.diversity {
        Diversity::Geometry(Geometry { redundancy: Redundancy::Layer, .. }) => {}
        _ => return 0.0,
    }
    let mean_distance = |head: Head, parts: &mut Parts<'_>| {
        let (cosines, rest) = parts.temp.split_at_mut_checked(head.len).unwrap_or_default();
        let distances = rest.get_mut(..head.len).unwrap_or_default();
        gather(job, head, parts.tile, distances, parts.mean, parts.direction);
        middle(job, distances, parts.mean, parts.direction);
        let wanted = Wanted { cosines: false, distances: true };
        metrics(job, head, wanted, parts.tile, parts.mean, parts.direction, 1.0, cosines, distances);
        average(job, distances)
    };
    job.view.heads().map(|head| mean_distance(head, parts)).fold(0.0, |widest, x| if x > widest { x } else { widest })
}

/// `cosines` becomes the composite of the two scaled metrics.
fn combine(job: &Job<'_>, g: Geometry, distances: &[f32], cosines: &mut [f32]) {
    match g.combine {
        Combine::Sum | Combine::RankSum => {
            kernels::scale(job.d, g.beta, cosines);
            kernels::axpy(job.d, g.alpha, distances, cosines);
        }
        Combine::Product => {
            for (c, &e) in cosines.iter_mut().zip(distances) {
                *c = libm::powf(e, g.alpha) * libm::powf(*c, g.beta);
            }
        }
    }
}

fn square(job: &Job<'_>, x: &[f32]) -> f32 {
    let mut out = [0.0];
    kernels::sq_norms(job.d, x, x.len(), &mut out);
    let [out] = out;
    out
}

fn average(job: &Job<'_>, x: &[f32]) -> f32 {
    kernels::sum(job.d, x) / float(x.len())
}

const ONES: [f32; TILE_ROWS] = [1.0; TILE_ROWS];

/// The lengths of the keys, their sum and the sum of their directions. A zero key has no direction.
fn gather(job: &Job<'_>, head: Head, tile: &mut [f32], norms: &mut [f32], mean: &mut [f32], direction: &mut [f32]) {
    let d = job.view.shape.head_dim;
    let mut middle = Middle::new(norms, mean, direction);
    job.view.keys.for_native_tiles(job.d, d, head, head.len, tile, |i, take, rows, ahead| {
        middle.add(i, rows, take, ahead);
    });
}

/// Makes means of the sums over a head, and returns the mean square of the lengths.
fn middle(job: &Job<'_>, norms: &[f32], mean: &mut [f32], direction: &mut [f32]) -> f32 {
    let inv = 1.0 / float(norms.len());
    kernels::scale(job.d, inv, mean);
    kernels::scale(job.d, inv, direction);
    square(job, norms) * inv
}

#[derive(Clone, Copy)]
struct Wanted {
    cosines: bool,
    distances: bool,
}

/// Negated cosine with `direction` (of the given length) and distance to `mean`; `distances` holds the key norms before.
#[allow(clippy::too_many_arguments)]
fn metrics(
    job: &Job<'_>,
    head: Head,
    wanted: Wanted,
    tile: &mut [f32],
    mean: &[f32],
    direction: &[f32],
    length: f32,
    cosines: &mut [f32],
    distances: &mut [f32],
) {
    let d = job.view.shape.head_dim;
    job.view.keys.for_native_tiles(job.d, d, head, head.len, tile, |i, take, rows, _| {
        // The pass after this is over the next head, whose rows follow. Half of them are as much as this one has time for.
        let next = head.start.saturating_add(head.len).saturating_add(i / 2);
        let ahead = job.view.keys.ahead(d, next, take / 2);
        let here = i..i.saturating_add(take);
        let cosines = cosines.get_mut(here.clone()).unwrap_or_default();
        let distances = distances.get_mut(here).unwrap_or_default();
        if wanted.cosines && wanted.distances {
            rows.compare(direction, length, mean, cosines, distances, ahead);
            return;
        }
        if wanted.cosines {
            rows.dots(direction, d, cosines, take);
            for (c, &norm) in cosines.iter_mut().zip(&*distances) {
                *c = -ratio(*c, norm * length);
            }
        }
        if wanted.distances {
            rows.sq_dists(mean, distances);
            distances.iter_mut().for_each(|x| *x = sqrt(*x));
        }
    });
}

/// Distances to the mean key of each stretch of `size` entries.
fn by_window(job: &Job<'_>, head: Head, size: usize, tile: &mut [f32], mean: &mut [f32], distances: &mut [f32]) {
    let mut start = head.start;
    for distances in distances.chunks_mut(size.max(1)) {
        let part = Head { start, len: distances.len(), ..head };
        toward(job, part, tile, mean, &[], distances);
        start = start.saturating_add(size);
    }
}

/// Distances to the mean of the image entries for these, and to the mean of the others for those.
fn by_modality(
    job: &Job<'_>,
    head: Head,
    tile: &mut [f32],
    mean: &mut [f32],
    scratch: &mut [f32],
    distances: &mut [f32],
) {
    let weights = scratch.get_mut(..head.len).unwrap_or_default();
    for image in [false, true] {
        for (i, w) in weights.iter_mut().enumerate() {
            let same = job.view.tagged(head.start.saturating_add(i), tag::IMAGE) == image;
            *w = if same { 1.0 } else { 0.0 };
        }
        toward(job, head, tile, mean, weights, distances);
    }
}

/// Distances of the entries of weight 1 to their mean; no weights means all.
fn toward(job: &Job<'_>, head: Head, tile: &mut [f32], mean: &mut [f32], weights: &[f32], distances: &mut [f32]) {
    let d = job.view.shape.head_dim;
    let of = |i: usize, n: usize| weights.get(i..i.saturating_add(n)).or(ONES.get(..n)).unwrap_or_default();
    mean.fill(0.0);
    job.view.keys.for_tiles(job.d, d, head, head.len, tile, |i, rows| {
        kernels::add_rows(job.d, of(i, rows.len().checked_div(d).unwrap_or(0)), rows, mean);
    });
    let total = if weights.is_empty() { float(head.len) } else { kernels::sum(job.d, weights) };
    kernels::scale(job.d, ratio(1.0, total), mean);
    job.view.keys.for_tiles(job.d, d, head, head.len, tile, |i, rows| {
        let n = rows.len().checked_div(d).unwrap_or(0);
        let mut squares = [0.0; TILE_ROWS];
        kernels::sq_dists(job.d, mean, rows, squares.get_mut(..n).unwrap_or_default());
        let out = distances.get_mut(i..).unwrap_or_default();
        for ((out, &square), &w) in out.iter_mut().zip(&squares).zip(of(i, n)) {
            *out = if w == 0.0 { *out } else { sqrt(square) };
        }
    });
}
