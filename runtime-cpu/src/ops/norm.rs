//! Root-mean-square and layer normalisation.

use super::Compute;

/// `out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight` for rows `[n][weight.len()]`.
pub fn rms_norm(cx: &Compute, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let n = weight.len();
    let rows = (x.len() / n).div_ceil(cx.pool.n_threads()).max(8);
    cx.pool.chunks(out, rows * n, |i, out| {
        let x = &x[i * rows * n..][..out.len()];
        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            cx.dispatch.rms_norm(x, weight, eps, out);
        }
    });
}

/// `out[t] = (x[t] - mean) / sqrt(variance + eps) * weight + bias` for rows `[n][weight.len()]`; biased variance,
/// moments in f64.
pub fn layer_norm(cx: &Compute, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let n = weight.len();
    let rows = (x.len() / n).div_ceil(cx.pool.n_threads()).max(8);
    cx.pool.chunks(out, rows * n, |i, out| {
        let x = &x[i * rows * n..][..out.len()];
        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            cx.dispatch.layer_norm(x, weight, bias, eps, out);
        }
    });
}
