//! What a policy wants to know about a layer's attention, and nothing else.

use ecokv_core::expected::{Pairing, mean_rotation, rotate};
use ecokv_core::{Needs, Observation, Policy};

use crate::model::{ModelConfig, Staged};
use crate::ops::rope::{Rope, RopeKind};
use crate::ops::{Compute, attention};

/// Positions ahead over which expected attention averages the rotation (ExpectedAttention's default).
const N_FUTURE: u32 = 512;

/// Recorded observations of one layer; the memory is used again for the next.
#[derive(Default)]
pub(crate) struct Observer {
    needs: Needs,
    n_queries: usize,
    /// `[n_heads][n_queries][head_dim]`
    queries: Vec<f32>,
    /// `[n_kv_heads][capacity]`
    column_sums: Vec<f32>,
    /// `[n_heads][head_dim]`
    query_mean: Vec<f32>,
    /// `[n_heads][head_dim][head_dim]`
    query_covariance: Vec<f32>,
    /// `[n_kv_heads][capacity]`
    output_norms: Vec<f32>,
    /// First queries left out of the statistics, as the attention of the first tokens is not typical.
    sinks: usize,
}

impl Observer {
    /// Records what `policy` needs of one layer, and forgets the layer before.
    pub fn record(&mut self, cx: &Compute, policy: &Policy, c: &ModelConfig, rope: &Rope, s: &Staged<'_>) {
        self.needs = policy.needs();
        self.sinks = policy.protect.sinks as usize;
        for old in [&mut self.column_sums, &mut self.query_mean, &mut self.query_covariance, &mut self.output_norms] {
            old.clear();
        }
        self.window(c, s);
        if self.needs.column_sums {
            self.column_sums =
                attention::column_sums(cx, s.q, s.positions.len(), s.rows, c.mask(s.layer), c.attention_scale);
        }
        if self.needs.query_mean {
            self.statistics(c, rope, s);
        }
        if self.needs.output_norms {
            self.output_norms(cx, c, s);
        }
    }

    /// What was recorded.
    pub fn observation(&self) -> Observation<'_> {
        Observation {
            n_queries: self.n_queries,
            queries: &self.queries,
            column_sums: &self.column_sums,
            query_mean: &self.query_mean,
            query_covariance: &self.query_covariance,
            output_norms: &self.output_norms,
            ..Observation::default()
        }
    }

    fn window(&mut self, c: &ModelConfig, s: &Staged<'_>) {
        let (n, d) = (s.positions.len(), c.head_dim);
        // A window of one more than the queries reaches them all.
        let visible = c.windows[s.layer].map_or(n, |window| window - 1);
        self.n_queries = self.needs.window_queries.min(n).min(visible);
        self.queries.resize(c.n_heads * self.n_queries * d, 0.0);
        let first = n - self.n_queries;
        for (j, queries) in self.queries.chunks_exact_mut((self.n_queries * d).max(1)).enumerate() {
            for (t, row) in queries.chunks_exact_mut(d).enumerate() {
                row.copy_from_slice(&s.q[((first + t) * c.n_heads + j) * d..][..d]);
            }
        }
    }

    /// Mean and covariance of the queries before their rotation, turned to the positions to come.
    fn statistics(&mut self, c: &ModelConfig, rope: &Rope, s: &Staged<'_>) {
        let (n, d, width) = (s.positions.len(), c.head_dim, c.n_heads * c.head_dim);
        let first = self.sinks.min(n - 1);
        let mut plain = s.q[first * width..].to_vec();
        let (mut cos, mut sin) = (vec![0.0; d / 2], vec![0.0; d / 2]);
        // Rotated pairs are longer than plain ones by the magnitude: backwards that is a division.
        let magnitude = rope.magnitude();
        for (q, position) in plain.chunks_exact_mut(width).zip(&s.positions[first..]) {
            rope.angles(position.axes, &mut cos, &mut sin);
            cos.iter_mut().for_each(|v| *v /= magnitude * magnitude);
            sin.iter_mut().for_each(|v| *v /= -magnitude * magnitude);
            rope.rotate(q, &cos, &sin);
        }
        let next = s.positions.iter().flat_map(|p| p.axes).max().map_or(0, |p| p + 1);
        let frequencies: Vec<f32> = rope.frequencies().iter().map(|&f| f as f32).collect();
        mean_rotation(&frequencies, next, N_FUTURE, &mut cos, &mut sin);
        cos.iter_mut().chain(&mut sin).for_each(|v| *v *= magnitude);
        let pairing = match rope.kind() {
            RopeKind::Interleaved => Pairing::Neighbours,
            RopeKind::Half => Pairing::Halves,
        };
        let count = (n - first) as f64;
        self.query_mean.resize(width, 0.0);
        self.query_covariance.resize(if self.needs.query_covariance { width * d } else { 0 }, 0.0);
        let mut covariances = self.query_covariance.chunks_exact_mut(d * d);
        for (j, mean) in self.query_mean.chunks_exact_mut(d).enumerate() {
            let rows = || plain.chunks_exact(width).map(|q| &q[j * d..(j + 1) * d]);
            let mut sum = vec![0.0_f64; d];
            rows().for_each(|q| sum.iter_mut().zip(q).for_each(|(s, &v)| *s += f64::from(v)));
            sum.iter_mut().for_each(|s| *s /= count);
            mean.iter_mut().zip(&sum).for_each(|(m, &s)| *m = s as f32);
            let covariance = covariances.next().unwrap_or_default();
            if !covariance.is_empty() {
                let mut total = vec![0.0_f64; d * d];
                for q in rows() {
                    for (a, row) in total.chunks_exact_mut(d).enumerate() {
                        let da = f64::from(q[a]) - sum[a];
                        row.iter_mut().zip(q).zip(&sum).for_each(|((t, &v), m)| *t += da * (f64::from(v) - m));
                    }
                }
                covariance.iter_mut().zip(&total).for_each(|(c, t)| *c = (t / count) as f32);
            }
            rotate(pairing, &cos, &sin, mean, covariance);
        }
    }

    /// How much each value adds to the layer's output: the 1-norm of its image under the output projection, mean over
    /// the query heads of its group.
    fn output_norms(&mut self, cx: &Compute, c: &ModelConfig, s: &Staged<'_>) {
        let (d, group, capacity) = (c.head_dim, c.group(), s.rows.capacity());
        let n_out = s.output.n_out();
        self.output_norms.clear();
        self.output_norms.resize(c.n_kv_heads * capacity, 0.0);
        let mut row = vec![0.0; s.output.n_in()];
        // [n_heads][n_out][head_dim]: the columns of the projection that read each query head.
        let mut weights = vec![0.0; c.n_heads * n_out * d];
        for o in 0..n_out {
            s.output.row(o, &mut row);
            for (j, columns) in row.chunks_exact(d).enumerate() {
                weights[(j * n_out + o) * d..][..d].copy_from_slice(columns);
            }
        }
        let weights = &weights;
        cx.pool.chunks(&mut self.output_norms, capacity, |h, norms| {
            let mut image = vec![0.0; n_out];
            for (i, norm) in norms.iter_mut().enumerate().take(s.rows.len(h)) {
                let value = s.rows.values(h, i, i + 1);
                for j in h * group..(h + 1) * group {
                    let columns = crate::kernels::KvRows::F32(&weights[j * n_out * d..(j + 1) * n_out * d]);
                    cx.dispatch.dot_rows(value, columns, d, n_out, 1.0, &mut image);
                    *norm += image.iter().map(|v| v.abs()).sum::<f32>() / group as f32;
                }
            }
        });
    }
}
