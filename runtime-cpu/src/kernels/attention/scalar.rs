//! The reference: plain Rust, one row and one number after the other. Same functions as the vector files.

use super::{KvRows, Partial, Tile};
use crate::kernels::generic::exp;

pub(super) fn dot_rows(q: &[f32], k: KvRows<'_>, d: usize, scale: f32, len: usize, scores: &mut [f32]) {
    for (q, scores) in q.chunks_exact(d).zip(scores.chunks_exact_mut(len)) {
        scores.iter_mut().enumerate().for_each(|(i, score)| *score = scale * dot(q, k.row(i, d)));
    }
}

#[allow(clippy::too_many_arguments)] // as `Dispatch::attend_rows`
pub(super) fn attend_rows(
    q: &[f32],
    k: KvRows<'_>,
    v: KvRows<'_>,
    d: usize,
    len: usize,
    scale: f32,
    bias: &[f32],
    part: &mut Partial<'_>,
) {
    part.max.fill(f32::NEG_INFINITY);
    part.sum.fill(0.0);
    part.values.fill(0.0);
    for i in 0..len {
        for (g, (q, values)) in q.chunks_exact(d).zip(part.values.chunks_exact_mut(d)).enumerate() {
            let score = scale * dot(q, k.row(i, d)) + bias.get(i).copied().unwrap_or(0.0);
            add(score, v.row(i, d), &mut part.max[g], &mut part.sum[g], values);
        }
    }
}

pub(super) fn attend_tile(t: &mut Tile, keys: &[f32], values: &[f32]) {
    let d = t.q.len();
    let (keys, values) = (KvRows::F32(keys), KvRows::F32(values));
    let (mut q, mut out) = (vec![0.0; d], vec![0.0; d]);
    for r in 0..t.n {
        q.iter_mut().zip(&t.q).for_each(|(q, column)| *q = column.0[r]);
        out.fill(0.0);
        for i in t.first[r] as usize..t.end[r] as usize {
            let score = dot(&q, keys.row(i, d));
            add(score, values.row(i, d), &mut t.max.0[r], &mut t.sum.0[r], &mut out);
        }
        t.out.iter_mut().zip(&out).for_each(|(column, v)| column.0[r] = *v);
    }
}

pub(super) fn tile_column_sums(t: &mut Tile, keys: &[f32], sums: &mut [f32]) {
    let d = t.q.len();
    let keys = KvRows::F32(keys);
    let mut q = vec![0.0; d];
    for r in 0..t.n {
        q.iter_mut().zip(&t.q).for_each(|(q, column)| *q = column.0[r]);
        let seen = t.first[r] as usize..t.end[r] as usize;
        let mut scores: Vec<f32> = seen.clone().map(|i| dot(&q, keys.row(i, d))).collect();
        let max = scores.iter().fold(f32::MIN, |m, &s| if s > m { s } else { m });
        scores.iter_mut().for_each(|s| *s = exp::<false>(*s - max));
        let sum: f32 = scores.iter().sum();
        let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        sums[seen].iter_mut().zip(&scores).for_each(|(s, p)| *s += p * inverse);
    }
}

/// One more row of a streaming softmax. Rows that are not visible have a score of minus infinity.
fn add(score: f32, value: impl Iterator<Item = f32>, max: &mut f32, sum: &mut f32, out: &mut [f32]) {
    if score > *max {
        let shrink = exp::<false>(*max - score);
        *sum *= shrink;
        out.iter_mut().for_each(|o| *o *= shrink);
        *max = score;
    }
    if score != f32::NEG_INFINITY {
        let weight = exp::<false>(score - *max);
        *sum += weight;
        out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
    }
}

fn dot(a: &[f32], b: impl Iterator<Item = f32>) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl KvRows<'_> {
    /// Row `i` of `d` values as floats.
    fn row(&self, i: usize, d: usize) -> impl Iterator<Item = f32> {
        (i * d..(i + 1) * d).map(|j| match self {
            KvRows::F32(r) => r[j],
            KvRows::F16(r) => r[j].to_f32(),
            KvRows::Q8_0(r) => r[j / 32].d.to_f32() * f32::from(r[j / 32].q[j % 32]),
        })
    }
}
