//! What mattered: fills the importance of one head's candidates.

use crate::evict::Job;
use crate::math::{copy, float, sqrt};
use crate::policy::{Attention, Edge, Pool, ValueNorm};
use crate::score::{min_max, to_mean};
use crate::shape::Head;
use crate::workspace::{Parts, QUERY_BLOCK};
use crate::{Error, Importance, kernels};

/// Writes importance into `parts.scores` and attention received into `parts.signal`.
pub(crate) fn fill(job: &Job<'_>, head: Head, parts: &mut Parts<'_>) {
    let scores = head.of_mut(parts.scores);
    match job.policy.importance {
        Importance::None => scores.fill(0.0),
        Importance::Recency => scores.iter_mut().enumerate().for_each(|(i, s)| *s = float(i)),
        Importance::Random { seed } => random(seed, job.view.layer, head.index, scores),
        Importance::KeyNorm => {
            norms(job, job.view.keys, head, head.len, parts.tile, scores);
            scores.iter_mut().for_each(|s| *s = -*s);
        }
        Importance::Given => copy(head.of(job.view.observation.given), scores),
        Importance::Attention(a) => attention(job, head, a, parts),
    }
}

impl Pool {
    pub(crate) fn check(self) -> Result<(), Error> {
        match self {
            Self::Mean { width, .. } | Self::Max { width } if width % 2 == 0 => {
                Err(Error::Config("a pool width must be odd"))
            }
            _ => Ok(()),
        }
    }
}

fn attention(job: &Job<'_>, head: Head, a: Attention, parts: &mut Parts<'_>) {
    let m = job.candidates(head);
    let scores = head.of_mut(parts.scores);
    received(job, head, a.window as usize, parts.temp, parts.tile, scores);
    let raw = scores.get(..m).unwrap_or_default();
    let signal = head.of_mut(parts.signal);
    signal.get_mut(m..).unwrap_or_default().fill(0.0);
    let signal = signal.get_mut(..m).unwrap_or_default();
    pool(a.pool, raw, signal);
    let scores = scores.get_mut(..m).unwrap_or_default();
    match (a.value_norm, job.view.values) {
        (ValueNorm::Add, Some(values)) => {
            norms(job, values, head, m, parts.tile, scores);
            let level = kernels::sum(job.d, signal) / float(m);
            min_max(job, scores);
            to_mean(job, level, scores);
            kernels::axpy(job.d, 1.0, signal, scores);
        }
        _ => copy(signal, scores),
    }
}

/// Mean attention each entry of the head receives from the window's queries that can see it, over all query heads of
/// the group: softmax over all keys of the head, causal inside the window.
fn received(job: &Job<'_>, head: Head, window: usize, temp: &mut [f32], tile: &mut [f32], out: &mut [f32]) {
    let (view, n) = (job.view, head.len);
    let d = view.shape.head_dim;
    let recorded = view.observation.n_queries;
    let w = window.min(recorded).min(n);
    out.fill(0.0);
    // Query `t` of the window is the recorded query `first + t`, and sees the entries up to `n - w + t`.
    let first = recorded.saturating_sub(w);
    for q in (0..view.shape.group).map(|g| head.index.saturating_mul(view.shape.group).saturating_add(g)) {
        let mut t = 0;
        while t < w {
            let block = QUERY_BLOCK.min(w.saturating_sub(t));
            let queries = view.queries(q, first.saturating_add(t), block);
            let logits = temp.get_mut(..block.saturating_mul(n)).unwrap_or_default();
            view.keys.for_tiles(job.d, d, head, n, tile, |i, rows| {
                kernels::dots(job.d, queries, d, rows, logits.get_mut(i..).unwrap_or_default(), n);
            });
            for (b, logits) in temp.chunks_exact_mut(n.max(1)).take(block).enumerate() {
                let hidden = w.saturating_sub(t).saturating_sub(b).saturating_sub(1);
                let logits = logits.get_mut(..n.saturating_sub(hidden)).unwrap_or_default();
                kernels::scale(job.d, view.scale, logits);
                let (_, max) = kernels::min_max(job.d, logits);
                let sum = kernels::exp_sum(job.d, max, logits);
                kernels::axpy(job.d, 1.0 / sum, logits, out);
            }
            t = t.saturating_add(block);
        }
    }
    for (i, out) in out.iter_mut().enumerate() {
        let seen_by = w.min(n.saturating_sub(i)).saturating_mul(view.shape.group);
        *out /= float(seen_by);
    }
}

fn pool(pool: Pool, x: &[f32], out: &mut [f32]) {
    let (width, edge) = match pool {
        Pool::None => return copy(x, out),
        Pool::Mean { width, edge } => (width as usize, Some(edge)),
        Pool::Max { width } => (width as usize, None),
    };
    let half = width / 2;
    for (i, out) in out.iter_mut().enumerate() {
        let around = i.saturating_sub(half)..i.saturating_add(half).saturating_add(1).min(x.len());
        let near = x.get(around).unwrap_or_default();
        *out = match edge {
            None => near.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m }),
            Some(Edge::Zero) => near.iter().sum::<f32>() / float(width),
            Some(Edge::Renormalise) => near.iter().sum::<f32>() / float(near.len()),
        };
    }
}

/// `out[i] = ||rows[i]||_2` for the first `n` rows of a head.
fn norms(job: &Job<'_>, rows: crate::Rows<'_>, head: Head, n: usize, tile: &mut [f32], out: &mut [f32]) {
    let d = job.view.shape.head_dim;
    rows.for_tiles(job.d, d, head, n, tile, |i, rows| {
        let take = rows.len().checked_div(d).unwrap_or(0);
        let out = out.get_mut(i..i.saturating_add(take)).unwrap_or_default();
        kernels::sq_norms(job.d, rows, d, out);
        out.iter_mut().for_each(|x| *x = sqrt(*x));
    });
}

/// Numbers in `[0, 1)` that depend on nothing but their coordinates.
#[allow(clippy::cast_precision_loss)]
fn random(seed: u64, layer: u32, head: usize, out: &mut [f32]) {
    let stream = mix(seed ^ mix(u64::from(layer) << 32 | head as u64 & 0xffff_ffff));
    for (i, out) in (0u64..).zip(out) {
        *out = (mix(stream ^ i) >> 40) as f32 * (1.0 / 16_777_216.0);
    }
}

/// The finaliser of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
