//! Fills the scores of a layer, head by head: importance, diversity, and their mix.

use crate::evict::Job;
use crate::math::{EPS, copy, float, ratio, sqrt};
use crate::shape::Head;
use crate::workspace::Parts;
use crate::{
    Depth, Diversity, Evicted, Importance, Mix, Retain, Scaling, attention, geometry, importance, kernels, mmr,
    repetition,
};

/// Writes the score of every candidate into `parts.scores` and, where the policy observes attention, the attention it
/// received into `parts.signal`. Entries past the candidates get 0.
pub(crate) fn fill(job: &Job<'_>, parts: &mut Parts<'_>) {
    // Where heads can do without each other, all that reads a head's keys is done while the caches have them.
    let (shared, own) = match job.policy.importance {
        Importance::Attention(a) if a.share_heads => (Some(a), None),
        Importance::Attention(a) => (None, Some(a)),
        _ => (None, None),
    };
    if let Some(a) = shared {
        for head in job.view.heads() {
            attention::fill(job, head, a, parts);
        }
        attention::share(job, parts.signal);
    }
    let widest = geometry::widest(job, parts);
    for head in job.view.heads() {
        let m = job.candidates(head);
        if let Some(a) = own {
            attention::fill(job, head, a, parts);
        }
        importance::fill(job, head, parts);
        if let Evicted::Retain(Retain { gain, .. }) = job.policy.evicted {
            let from = head.start.saturating_mul(job.policy.tile_queries());
            attention::entropies(job, head, parts.window.get(from..).unwrap_or_default(), parts.temp);
            for (s, h) in head.of_mut(parts.scores).iter_mut().zip(&*parts.temp) {
                *s *= 1.0 + gain * h;
            }
        }
        if let (Diversity::Mmr(m), Importance::Attention(a)) = (job.policy.diversity, job.policy.importance) {
            mmr::base(job, head, m, a, parts);
        }
        if !matches!(job.policy.mix, Mix::Importance) {
            match job.policy.diversity {
                Diversity::None | Diversity::Mmr(_) => {}
                Diversity::Geometry(g) => {
                    let redundancy = geometry::fill(job, head, g, widest, parts);
                    blend(job, head, redundancy, g.scaling, parts);
                }
                Diversity::Repetition { threshold } => {
                    repetition::fill(job, head, threshold, parts);
                    blend(job, head, 0.0, Scaling::MinMax, parts);
                }
            }
        }
        head.of_mut(parts.scores).get_mut(m..).unwrap_or_default().fill(0.0);
    }
}

/// Combines the importance in `parts.scores` with the diversity in `parts.temp`.
fn blend(job: &Job<'_>, head: Head, redundancy: f32, scaling: Scaling, parts: &mut Parts<'_>) {
    let m = job.candidates(head);
    let (d, rest) = parts.temp.split_at_mut_checked(m).unwrap_or_default();
    let scores = head.of_mut(parts.scores).get_mut(..m).unwrap_or_default();
    let at_depth = |depth: Depth| depth.at(job.view.layer, job.view.n_layers);
    let (weight_of_i, weight_of_d) = match job.policy.mix {
        Mix::Importance => return,
        Mix::Diversity => return copy(d, scores),
        Mix::Weight(depth) | Mix::Raw(depth) => complement(at_depth(depth)),
        Mix::HeadRedundancy => complement(redundancy),
        Mix::HardRedundancy { threshold } => complement(if redundancy >= threshold { 1.0 } else { 0.0 }),
        Mix::SoftRedundancy { diversity, importance } => {
            let odds = redundancy / diversity - (1.0 - redundancy) / importance;
            complement(1.0 / (1.0 + libm::expf(-odds)))
        }
        Mix::HeadTable => complement(job.view.observation.head_weights.get(head.index).copied().unwrap_or(0.0)),
        // The importance holds two of the three terms.
        Mix::Thirds => (1.0 / 3.0, 1.0 / 3.0),
    };
    match (job.policy.mix, scaling) {
        (Mix::Raw(_), _) => {}
        (_, Scaling::MinMax) => {
            if parts.signal.is_empty() {
                min_max(job, scores); // scores of any sign and size
            }
            let signal = head.of(parts.signal).get(..m).unwrap_or(scores);
            let level = kernels::sum(job.d, signal) / float(m);
            to_mean(job, level, d);
        }
        (_, other) => {
            scale_as(job, other, scores, rest);
            scale_as(job, other, d, rest);
        }
    }
    for (s, &d) in scores.iter_mut().zip(&*d) {
        *s = weight_of_d * d + weight_of_i * *s;
    }
}

fn complement(w: f32) -> (f32, f32) {
    (1.0 - w, w)
}

/// Scales `x` over itself; `scratch` is at least as long.
pub(crate) fn scale_as(job: &Job<'_>, scaling: Scaling, x: &mut [f32], scratch: &mut [f32]) {
    match scaling {
        Scaling::MinMax => min_max(job, x),
        Scaling::ZScore => {
            let n = float(x.len());
            let mean = kernels::sum(job.d, x) / n;
            x.iter_mut().for_each(|x| *x -= mean);
            let mut squares = [0.0];
            kernels::sq_norms(job.d, x, x.len(), &mut squares);
            let [squares] = squares;
            kernels::scale(job.d, ratio(1.0, sqrt(squares / n)), x);
        }
        Scaling::Rank => {
            let all = scratch.get_mut(..x.len()).unwrap_or_default();
            copy(x, all);
            for x in x.iter_mut() {
                *x = float(all.iter().filter(|other| *other < x).count()) / float(all.len());
            }
        }
    }
}

/// Scales `x` so that its mean is `level`.
pub(crate) fn to_mean(job: &Job<'_>, level: f32, x: &mut [f32]) {
    let mean = kernels::sum(job.d, x) / float(x.len());
    kernels::scale(job.d, level / (mean + EPS), x);
}

/// Scales `x` to `[0, 1]`; all equal gives zeros.
pub(crate) fn min_max(job: &Job<'_>, x: &mut [f32]) {
    let (lo, hi) = kernels::min_max(job.d, x);
    let range = hi - lo + EPS;
    for x in x {
        *x = (*x - lo) / range;
    }
}
