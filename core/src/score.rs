//! Fills the scores of a layer, head by head: importance, diversity, and their mix.

use crate::evict::Job;
use crate::math::{EPS, copy, float};
use crate::shape::Head;
use crate::workspace::Parts;
use crate::{Diversity, Mix, diversity, importance, kernels};

/// Writes the score of every candidate into `parts.scores` and, where the policy observes attention, the attention it
/// received into `parts.signal`. Entries past the candidates get 0.
pub(crate) fn fill(job: &Job<'_>, parts: &mut Parts<'_>) {
    for head in job.view.heads() {
        let m = job.candidates(head);
        importance::fill(job, head, parts);
        if let (Diversity::Geometry(g), false) = (job.policy.diversity, matches!(job.policy.mix, Mix::Importance)) {
            let redundancy = diversity::geometry(job, head, g, parts);
            blend(job, head, redundancy, parts);
        }
        head.of_mut(parts.scores).get_mut(m..).unwrap_or_default().fill(0.0);
    }
}

/// Combines the importance in `parts.scores` with the diversity in `parts.temp`.
fn blend(job: &Job<'_>, head: Head, redundancy: f32, parts: &mut Parts<'_>) {
    let m = job.candidates(head);
    let d = parts.temp.get_mut(..m).unwrap_or_default();
    let scores = head.of_mut(parts.scores).get_mut(..m).unwrap_or_default();
    let weight = match job.policy.mix {
        Mix::Importance => return,
        Mix::Diversity => return copy(d, scores),
        Mix::Weight(depth) => depth.at(job.view.layer, job.view.n_layers),
        Mix::HeadRedundancy => redundancy,
        Mix::Thirds => 0.5,
    };
    if parts.signal.is_empty() {
        min_max(job, scores); // scores of any sign and size
    }
    let signal = head.of(parts.signal).get(..m).unwrap_or(scores);
    let level = kernels::sum(job.d, signal) / float(m);
    to_mean(job, level, d);
    // Thirds: (I + D) / 3, in which the importance holds two of the three terms.
    let (wi, wd) = if matches!(job.policy.mix, Mix::Thirds) { (1.0 / 3.0, 1.0 / 3.0) } else { (1.0 - weight, weight) };
    for (s, &d) in scores.iter_mut().zip(&*d) {
        *s = wd * d + wi * *s;
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
