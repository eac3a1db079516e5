//! Streaming attention: the score matrix is never stored, only one tile of it per task.

use std::ops::Range;

use super::Compute;
use crate::cache::{LayerCache, Staging};
use crate::kernels::KvRows;

/// Keys per tile of a prefill task.
const KEYS: usize = 64;
/// Tokens per tile of a prefill task.
const TOKENS: usize = 32;
/// Cache rows per task of a decode step. Fixed, so that results do not depend on the number of threads.
const DECODE_ROWS: usize = 256;

/// Which rows a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All rows: the patches of an image.
    None,
    /// Its own row and those before it; the queries belong to the last rows of each head.
    Causal,
    /// As `Causal`, but of those only rows less than so many positions before it.
    Window(usize),
}

/// Attention of `n` queries over a staged layer. Query head j reads KV head `j / group`.
///
/// `q` is `[n][n_kv_heads * group * head_dim]`, `out` the same. Unless the mask is [`Mask::None`], query `t` stands at
/// row `len - n + t` of each head. Softmax and accumulation in f32.
pub fn prefill(cx: &Compute, q: &[f32], n: usize, layer: &Staging, mask: Mask, scale: f32, out: &mut [f32]) {
    let (n_heads, d) = (layer.n_kv_heads(), layer.head_dim());
    let width = q.len() / n;
    let group = width / (n_heads * d);
    // Each KV head writes a plane of its own, [n_kv_heads][n][group * head_dim], so that tasks own contiguous memory.
    let plane = n * group * d;
    let mut planes = vec![0.0; n_heads * plane];
    let tasks: Vec<_> = planes
        .chunks_mut(plane)
        .enumerate()
        .flat_map(|(h, p)| p.chunks_mut(TOKENS * group * d).enumerate().map(move |(b, o)| (h, b * TOKENS, o)))
        .rev() // the last blocks see the most keys: start them first
        .collect();
    cx.pool.each(tasks, |(h, first, out)| {
        let tokens = out.len() / (group * d);
        let mut tile = vec![0.0; tokens * group * d];
        for (t, rows) in tile.chunks_exact_mut(group * d).enumerate() {
            rows.copy_from_slice(&q[(first + t) * width + h * group * d..][..group * d]);
            rows.iter_mut().for_each(|v| *v *= scale);
        }
        let seen = |t: usize| mask.seen(layer, h, n, first + t);
        attend_tile(cx, &tile, group, layer, h, seen, out);
    });
    let rows = n.div_ceil(cx.pool.n_threads());
    cx.pool.chunks(out, rows * width, |i, out| {
        for (t, out) in out.chunks_exact_mut(width).enumerate() {
            for (h, out) in out.chunks_exact_mut(group * d).enumerate() {
                out.copy_from_slice(&planes[h * plane + (i * rows + t) * group * d..][..group * d]);
            }
        }
    });
}

impl Mask {
    /// Rows of head `h` that query `t` of `n` sees.
    fn seen(self, layer: &Staging, h: usize, n: usize, t: usize) -> Range<usize> {
        let len = layer.len(h);
        match self {
            Mask::None => 0..len,
            Mask::Causal => 0..len - n + t + 1,
            Mask::Window(window) => {
                let positions = &layer.positions(h)[..len - n + t + 1];
                let own = positions[positions.len() - 1] as usize;
                positions.partition_point(|&p| p as usize + window <= own)..positions.len()
            }
        }
    }
}

/// Online softmax over blocks of keys. `q` and `out` are `[tokens][group][head_dim]`; token t sees rows `seen(t)`.
fn attend_tile(
    cx: &Compute,
    q: &[f32],
    group: usize,
    layer: &Staging,
    h: usize,
    seen: impl Fn(usize) -> Range<usize>,
    out: &mut [f32],
) {
    let d = layer.head_dim();
    let padded = d.next_multiple_of(16);
    let rows = q.len() / d;
    let tokens = rows / group;
    let mut scores = vec![0.0; rows * KEYS];
    let mut acc = vec![0.0; rows * padded];
    let (mut max, mut sum) = (vec![f32::NEG_INFINITY; rows], vec![0.0; rows]);
    let mut wide = if padded == d { Vec::new() } else { vec![0.0; KEYS * padded] };
    for from in (seen(0).start / KEYS * KEYS..seen(tokens - 1).end).step_by(KEYS) {
        let keys = KEYS.min(layer.len(h) - from);
        for p in 0..keys.div_ceil(16) {
            let panel = layer.key_panel(h, from / 16 + p);
            cx.dispatch.panel_f32(panel, 16, q, d, d, &mut scores[16 * p..], KEYS, false);
        }
        for r in 0..rows {
            let scores = &mut scores[r * KEYS..(r + 1) * KEYS];
            let seen = seen(r / group);
            let [first, end] = [seen.start, seen.end].map(|row| row.saturating_sub(from).min(keys));
            if first >= end {
                scores.fill(0.0);
                continue;
            }
            scores[..first].fill(f32::NEG_INFINITY);
            scores[end..].fill(f32::NEG_INFINITY);
            let (m, s) = cx.dispatch.exp_max_sum(scores, max[r]);
            if m > max[r] {
                let shrink = (max[r] - m).exp();
                sum[r] *= shrink;
                acc[r * padded..(r + 1) * padded].iter_mut().for_each(|v| *v *= shrink);
                max[r] = m;
            }
            sum[r] += s;
        }
        let mut values = layer.values(h, from, from + keys);
        if padded != d {
            for (w, v) in wide.chunks_exact_mut(padded).zip(values.chunks_exact(d)) {
                w[..d].copy_from_slice(v);
            }
            values = &wide;
        }
        for c in (0..padded).step_by(16) {
            cx.dispatch.panel_f32(&values[c..], padded, &scores, KEYS, keys, &mut acc[c..], padded, true);
        }
    }
    for (r, out) in out.chunks_exact_mut(d).enumerate() {
        let inverse = if sum[r] > 0.0 { 1.0 / sum[r] } else { 0.0 };
        for (o, a) in out.iter_mut().zip(&acc[r * padded..]) {
            *o = a * inverse;
        }
    }
}

/// Stripes of queries that sum their attention apart. Fixed, so that results do not depend on the number of threads.
const STRIPES: usize = 4;

/// Attention that each row received, summed over the queries and over the query heads of its group:
/// `[n_kv_heads][capacity]`. Arguments as of [`prefill`]. Computes the scores once more.
pub fn column_sums(cx: &Compute, q: &[f32], n: usize, layer: &Staging, mask: Mask, scale: f32) -> Vec<f32> {
    let (n_heads, d, capacity) = (layer.n_kv_heads(), layer.head_dim(), layer.capacity());
    let width = q.len() / n;
    let group = width / (n_heads * d);
    let mut stripes = vec![0.0; n_heads * STRIPES * capacity];
    cx.pool.chunks(&mut stripes, capacity, |i, sums| {
        let (h, stripe) = (i / STRIPES, i % STRIPES);
        let mut scores = vec![0.0; capacity];
        for t in (stripe..n).step_by(STRIPES) {
            let seen = mask.seen(layer, h, n, t);
            let scores = &mut scores[seen.clone()];
            for q in q[t * width + h * group * d..][..group * d].chunks_exact(d) {
                let keys = KvRows::F32(&layer.all_keys()[(h * capacity + seen.start) * d..][..seen.len() * d]);
                cx.dispatch.dot_rows(q, keys, d, seen.len(), scale, scores);
                let (_, sum) = cx.dispatch.exp_max_sum(scores, f32::NEG_INFINITY);
                let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
                sums[seen.clone()].iter_mut().zip(&*scores).for_each(|(s, p)| *s += p * inverse);
            }
        }
    });
    let mut out = vec![0.0; n_heads * capacity];
    for (out, stripes) in out.chunks_exact_mut(capacity).zip(stripes.chunks_exact(STRIPES * capacity)) {
        for stripe in stripes.chunks_exact(capacity) {
            out.iter_mut().zip(stripe).for_each(|(o, s)| *o += s);
        }
    }
    out
}

/// Buffers of [`decode`], kept between steps.
#[derive(Default)]
pub struct DecodeScratch {
    tasks: Vec<(usize, usize, usize)>,
    parts: Vec<f32>,
}

/// Attention of one query over the ragged rows of a layer. `q` and `out` are `[n_kv_heads * group * head_dim]`.
pub fn decode(cx: &Compute, q: &[f32], layer: &LayerCache, scale: f32, scratch: &mut DecodeScratch, out: &mut [f32]) {
    let (n_heads, d) = (layer.n_kv_heads(), layer.head_dim());
    let group = q.len() / (n_heads * d);
    let DecodeScratch { tasks, parts } = scratch;
    tasks.clear();
    for h in 0..n_heads {
        let len = layer.len(h);
        for from in (0..len).step_by(DECODE_ROWS) {
            tasks.push((h, from, len.min(from + DECODE_ROWS)));
        }
    }
    // Part of a task: [group] maxima, [group] sums, [group][head_dim] values, [group][DECODE_ROWS] scores.
    let part = group * (2 + d + DECODE_ROWS);
    parts.resize(tasks.len() * part, 0.0);
    let tasks = &tasks[..];
    cx.pool.chunks(parts, part, |i, part| {
        let (h, from, to) = tasks[i];
        let len = to - from;
        let (stats, rest) = part.split_at_mut(2 * group);
        let (values, scores) = rest.split_at_mut(group * d);
        let scores = &mut scores[..group * len];
        let (keys, vals) = layer.rows(h, from, to);
        cx.dispatch.dot_rows(&q[h * group * d..(h + 1) * group * d], keys, d, len, scale, scores);
        if from < layer.slot_bias(h).len() {
            for scores in scores.chunks_exact_mut(len) {
                scores.iter_mut().zip(&layer.slot_bias(h)[from..]).for_each(|(s, b)| *s += b);
            }
        }
        for g in 0..group {
            let (m, s) = cx.dispatch.exp_max_sum(&mut scores[g * len..(g + 1) * len], f32::NEG_INFINITY);
            stats[g] = m;
            stats[group + g] = s;
        }
        cx.dispatch.weighted_rows(scores, vals, d, len, values);
    });
    for (j, out) in out.chunks_exact_mut(d).enumerate() {
        let (h, g) = (j / group, j % group);
        let of_head = || tasks.iter().zip(parts.chunks_exact(part)).filter(|(t, _)| t.0 == h).map(|(_, p)| p);
        let max = of_head().fold(f32::NEG_INFINITY, |m, p| m.max(p[g]));
        out.fill(0.0);
        let mut sum = 0.0;
        for p in of_head() {
            let weight = (p[g] - max).exp();
            sum += weight * p[group + g];
            let values = &p[2 * group + g * d..][..d];
            out.iter_mut().zip(values).for_each(|(o, v)| *o += weight * v);
        }
        let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        out.iter_mut().for_each(|o| *o *= inverse);
    }
}
