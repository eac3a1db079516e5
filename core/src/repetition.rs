//! How much each key of a head repeats others (R-KV).

use crate::evict::Job;
use crate::kernels;
use crate::math::{float, ratio, sqrt};
use crate::shape::Head;
use crate::workspace::Parts;

/// Writes minus the repetition of the head's entries to the front of `parts.temp`.
pub(crate) fn fill(job: &Job<'_>, head: Head, threshold: f32, parts: &mut Parts<'_>) {
    let (n, d) = (head.len, job.view.shape.head_dim);
    let (sums, rest) = parts.temp.split_at_mut_checked(n).unwrap_or_default();
    let (norms, rest) = rest.split_at_mut_checked(n).unwrap_or_default();
    let cosines = rest.get_mut(..n).unwrap_or_default();
    job.view.keys.for_tiles(job.d, d, head, n, parts.tile, |i, rows| {
        let norms = norms.get_mut(i..i.saturating_add(rows.len().checked_div(d).unwrap_or(0))).unwrap_or_default();
        kernels::sq_norms(job.d, rows, d, norms);
        norms.iter_mut().for_each(|x| *x = sqrt(*x));
    });
    sums.fill(0.0);
    for i in 0..n {
        let key = &mut *parts.mean;
        job.view.keys.for_tiles(job.d, d, head.row(i), 1, parts.tile, |_, row| crate::math::copy(row, key));
        job.view.keys.for_tiles(job.d, d, head, n, parts.tile, |j, rows| {
            let out = cosines.get_mut(j..).unwrap_or_default();
            let stride = out.len();
            kernels::dots(job.d, key, d, rows, out, stride);
        });
        let own = norms.get(i).copied().unwrap_or(0.0);
        for (j, (c, &norm)) in cosines.iter_mut().zip(&*norms).enumerate() {
            *c = if j == i { 0.0 } else { ratio(*c, own * norm) };
        }
        // The newest copy is spared; the published code spares entry 0 where there is none.
        let spared = cosines.iter().rposition(|&c| c > threshold).unwrap_or(0);
        if let Some(c) = cosines.get_mut(spared) {
            *c = 0.0;
        }
        kernels::axpy(job.d, 1.0, cosines, sums);
    }
    kernels::scale(job.d, 1.0 / float(n), sums);
    let (_, max) = kernels::min_max(job.d, sums);
    let sum = kernels::exp_sum(job.d, max, sums);
    kernels::scale(job.d, -1.0 / sum, sums);
}
