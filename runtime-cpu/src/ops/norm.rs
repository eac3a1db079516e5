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
            let mean = sum(x, |v| v) / n as f64;
            let variance = sum(x, |v| (v - mean) * (v - mean)) / n as f64;
            let scale = 1.0 / (variance + f64::from(eps)).sqrt();
            for (o, ((&x, &w), &b)) in out.iter_mut().zip(x.iter().zip(weight).zip(bias)) {
                *o = ((f64::from(x) - mean) * scale) as f32 * w + b;
            }
        }
    });
}

/// Sum of `f`, in eight lanes that do not wait for each other.
fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let (eights, rest) = x.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for eight in eights {
        lanes.iter_mut().zip(eight).for_each(|(lane, &v)| *lane += f(f64::from(v)));
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&v| f(f64::from(v))).sum::<f64>()
}
