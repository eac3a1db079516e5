//! Attention received: from the recorded window, from running sums, or expected of future queries.

use crate::axes::{Attention, Edge, Pool, Queries};
use crate::evict::Job;
use crate::kernels::{Ahead, COLUMN_ROWS, TILE_ROWS, Tile};
use crate::math::{copy, float, ratio};
use crate::shape::Head;
use crate::workspace::Parts;
use crate::{Error, expected, kernels};

/// Writes the attention received by the head's candidates, pooled, into `parts.signal`.
pub(crate) fn fill(job: &Job<'_>, head: Head, a: Attention, parts: &mut Parts<'_>) {
    let raw = head.of_mut(parts.scores);
    match a.queries {
        Queries::Last(w) => {
            let from = head.start.saturating_mul(job.policy.tile_queries());
            let window = parts.window.get_mut(from..).unwrap_or_default();
            let norms = head.of_mut(parts.norms);
            let middle = if norms.is_empty() { None } else { Some(Middle::new(norms, parts.mean, parts.direction)) };
            received(job, head, w as usize, parts.temp, parts.tile, parts.matrix, window, middle, raw);
        }
        Queries::Peak(w) => peaks(job, head, w as usize, parts.temp, parts.tile, raw),
        Queries::All { per_visible } => sums(job, head, per_visible, raw),
        Queries::Expected { covariance } => {
            expected::received(job, head, covariance, parts.temp, parts.tile, parts.matrix, raw);
        }
    }
    let m = job.candidates(head);
    let signal = head.of_mut(parts.signal);
    signal.get_mut(m..).unwrap_or_default().fill(0.0);
    pool(a.pool, raw.get(..m).unwrap_or_default(), signal.get_mut(..m).unwrap_or_default());
}

/// Replaces every head's attention by the mean over the heads, whose lengths are equal.
pub(crate) fn share(job: &Job<'_>, signal: &mut [f32]) {
    let mut heads = job.view.heads();
    let Some(first) = heads.next() else { return };
    for i in 0..first.len {
        let sum = job.view.heads().fold(0.0, |s, h| s + h.of(signal).get(i).copied().unwrap_or(0.0));
        for head in job.view.heads() {
            if let Some(x) = head.of_mut(signal).get_mut(i) {
                *x = sum / float(job.view.shape.n_kv_heads);
            }
        }
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

fn sums(job: &Job<'_>, head: Head, per_visible: bool, out: &mut [f32]) {
    let group = float(job.view.shape.group);
    let positions = head.of(job.view.observation.positions);
    for (i, (out, &sum)) in out.iter_mut().zip(head.of(job.view.observation.column_sums)).enumerate() {
        let seen_by = match (per_visible, positions.get(i), positions.last()) {
            (false, _, _) => 1.0,
            (true, Some(&own), Some(&last)) => float(last.saturating_sub(own) as usize) + 1.0,
            (true, _, _) => float(head.len.saturating_sub(i)),
        };
        *out = sum / (group * seen_by);
    }
}

/// Of the keys of a head: lengths, and the sums that [`geometry`](crate::geometry) starts from.
pub(crate) struct Middle<'a> {
    norms: &'a mut [f32],
    mean: &'a mut [f32],
    direction: &'a mut [f32],
}

impl<'a> Middle<'a> {
    pub fn new(norms: &'a mut [f32], mean: &'a mut [f32], direction: &'a mut [f32]) -> Self {
        mean.fill(0.0);
        direction.fill(0.0);
        Self { norms, mean, direction }
    }

    /// Adds consecutive rows, the `i`-th of the head and those after it; a tile at a time.
    pub fn add(&mut self, i: usize, rows: Tile<'_>, n: usize, ahead: Ahead) {
        let norms = self.norms.get_mut(i..i.saturating_add(n)).unwrap_or_default();
        rows.gather(norms, self.mean, self.direction, ahead);
    }
}

/// Mean of [`summed`] over the queries that can see the entry and over all query heads of the group.
#[allow(clippy::too_many_arguments)]
pub(crate) fn received(
    job: &Job<'_>,
    head: Head,
    window: usize,
    temp: &mut [f32],
    tile: &mut [f32],
    columns: &mut [f32],
    each: &mut [f32],
    middle: Option<Middle<'_>>,
    out: &mut [f32],
) {
    summed(job, head, window, temp, tile, columns, each, middle, out);
    let w = window.min(job.view.observation.n_queries).min(head.len);
    let group = job.view.shape.group;
    let seen_by_all = head.len.saturating_sub(w.saturating_sub(1));
    let (shared, own) = out.split_at_mut_checked(seen_by_all).unwrap_or_default();
    let seen_by = float(w.saturating_mul(group));
    shared.iter_mut().for_each(|x| *x /= seen_by);
    for (hidden, x) in (1usize..).zip(own) {
        *x /= float(w.saturating_sub(hidden).saturating_mul(group));
    }
}

/// Attention each entry of the head receives from the window's queries, summed over all query heads of the group: softmax
/// over all keys of the head, causal inside the window. `each` receives the mean over the group of every query,
/// `[queries][len]`, if it is not empty. `middle` is filled on the way, while the caches have the keys.
#[allow(clippy::too_many_arguments)]
pub(crate) fn summed(
    job: &Job<'_>,
    head: Head,
    window: usize,
    temp: &mut [f32],
    tile: &mut [f32],
    columns: &mut [f32],
    each: &mut [f32],
    middle: Option<Middle<'_>>,
    out: &mut [f32],
) {
    let (view, n) = (job.view, head.len);
    let d = view.shape.head_dim;
    let recorded = view.observation.n_queries;
    let w = window.min(recorded).min(n);
    out.fill(0.0);
    let each = each.get_mut(..w.saturating_mul(n)).unwrap_or_default();
    each.fill(0.0);
    // Query `t` of the window is the recorded query `first + t`, and sees the entries up to `n - w + t`.
    let first = recorded.saturating_sub(w);
    let seen_by_all = n.saturating_sub(w.saturating_sub(1));
    let total = view.shape.group.saturating_mul(w);
    // As many queries at once as there is room for: each pass reads all keys.
    let room = temp.len().checked_div(n).unwrap_or(0).clamp(1, MOST_QUERIES);
    let mut middle = middle;
    let mut done = 0;
    while done < total {
        let block = Block { from: done, until: total.min(done.saturating_add(room)), window: w };
        done = block.until;
        let logits = temp.get_mut(..block.len().saturating_mul(n)).unwrap_or_default();
        view.keys.for_steps(job.d, d, head, n, COLUMN_ROWS, tile, |i, rows, ahead| {
            let take = rows.len().checked_div(d).unwrap_or(0);
            let mut ahead = ahead;
            if let Some(middle) = &mut middle {
                let share = ahead.share(4);
                let tiles = rows.chunks(d.saturating_mul(TILE_ROWS).max(1));
                for (i, rows) in (i..).step_by(TILE_ROWS).zip(tiles) {
                    let n = rows.len().checked_div(d).unwrap_or(0);
                    middle.add(i, Tile::F32(job.d, rows), n, ahead.take(share));
                }
            }
            kernels::turn(job.d, rows, d, columns);
            let share = ahead.share(block.parts().count());
            for part in block.parts() {
                let q = head.index.saturating_mul(view.shape.group).saturating_add(part.member);
                let queries = view.queries(q, first.saturating_add(part.t), part.len);
                let logits = logits.get_mut(part.at.saturating_mul(n).saturating_add(i)..).unwrap_or_default();
                let ahead = ahead.take(share);
                kernels::dots_turned(job.d, queries, d, view.scale, columns, logits, n, take, ahead);
            }
        });
        middle = None;
        let mut weights = [0.0; MOST_QUERIES];
        for part in block.parts() {
            let logits = logits.chunks_exact_mut(n.max(1)).zip(&mut weights).skip(part.at).take(part.len);
            for (t, (logits, weight)) in (part.t..).zip(logits) {
                let logits = logits.get_mut(..seen_by_all.saturating_add(t)).unwrap_or_default();
                let (_, max) = kernels::min_max(job.d, logits);
                let sum = kernels::exp_sum(job.d, max, logits);
                *weight = 1.0 / sum;
                if let Some(each) = each.chunks_exact_mut(n.max(1)).nth(t) {
                    kernels::axpy(job.d, 1.0 / (sum * float(view.shape.group)), logits, each);
                }
            }
        }
        let (shared, own) = out.split_at_mut_checked(seen_by_all).unwrap_or_default();
        kernels::add_scaled(job.d, weights.get(..block.len()).unwrap_or_default(), logits, n, shared);
        for part in block.parts() {
            let logits = logits.chunks_exact(n.max(1)).zip(&weights).skip(part.at).take(part.len);
            for (t, (logits, &weight)) in (part.t..).zip(logits) {
                let logits = logits.get(seen_by_all..seen_by_all.saturating_add(t)).unwrap_or_default();
                kernels::axpy(job.d, weight, logits, own);
            }
        }
    }
}

/// Most queries in a pass. More would only make their logits outgrow the caches.
const MOST_QUERIES: usize = 32;

/// Queries `from .. until` of a group's, the windows of its members one after the other.
struct Block {
    from: usize,
    until: usize,
    window: usize,
}

/// Queries of a block that belong to one member of the group: `len` from the `t`-th of its window on, the first of which
/// is number `at` of the block.
struct Part {
    member: usize,
    t: usize,
    at: usize,
    len: usize,
}

impl Block {
    fn len(&self) -> usize {
        self.until.saturating_sub(self.from)
    }

    fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let Self { from, until, window } = *self;
        (from.checked_div(window).unwrap_or(0)..).map_while(move |member| {
            let begin = member.saturating_mul(window);
            let (start, end) = (begin.max(from), begin.saturating_add(window).min(until));
            let part = Part {
                member,
                t: start.saturating_sub(begin),
                at: start.saturating_sub(from),
                len: end.saturating_sub(start),
            };
            (start < end).then_some(part)
        })
    }
}

/// How evenly each entry's attention is spread over the window's queries that can see it: 0 if it comes from one, 1 if
/// from all alike. `each` is what [`received`] wrote; the first `[len]` of `out` are written.
pub(crate) fn entropies(job: &Job<'_>, head: Head, each: &[f32], out: &mut [f32]) {
    let n = head.len;
    let w = job.policy.needs().window_queries.min(job.view.observation.n_queries).min(n);
    let most = libm::logf(float(w));
    for (i, out) in out.iter_mut().take(n).enumerate() {
        let column = || each.iter().skip(i).step_by(n.max(1)).take(w);
        let total = column().fold(0.0, |s, x| s + x);
        let sum = column().fold(0.0, |s, &x| {
            let p = ratio(x, total);
            if p > 0.0 { s - p * libm::logf(p) } else { s }
        });
        *out = ratio(sum, most);
    }
}

/// Mean over the window of softmax over the candidates of the largest logit in the group.
fn peaks(job: &Job<'_>, head: Head, window: usize, temp: &mut [f32], tile: &mut [f32], out: &mut [f32]) {
    let (view, n, m) = (job.view, head.len, job.candidates(head));
    let d = view.shape.head_dim;
    let recorded = view.observation.n_queries;
    let w = window.min(recorded).min(n);
    let (peaks, rest) = temp.split_at_mut_checked(n).unwrap_or_default();
    let logits = rest.get_mut(..n).unwrap_or_default();
    out.fill(0.0);
    for t in 0..w {
        peaks.fill(f32::NEG_INFINITY);
        for g in 0..view.shape.group {
            let q = head.index.saturating_mul(view.shape.group).saturating_add(g);
            let query = view.queries(q, recorded.saturating_sub(w).saturating_add(t), 1);
            view.keys.for_tiles(job.d, d, head, n, tile, |i, rows| {
                let logits = logits.get_mut(i..).unwrap_or_default();
                let stride = logits.len();
                kernels::dots(job.d, query, d, rows, logits, stride);
            });
            kernels::scale(job.d, view.scale, logits);
            for (peak, &x) in peaks.iter_mut().zip(&*logits) {
                *peak = if x < *peak { *peak } else { x };
            }
        }
        let visible = n.saturating_sub(w).saturating_add(t).saturating_add(1).min(m);
        let peaks = peaks.get_mut(..visible).unwrap_or_default();
        let (_, max) = kernels::min_max(job.d, peaks);
        let sum = kernels::exp_sum(job.d, max, peaks);
        kernels::axpy(job.d, 1.0 / (sum * float(w)), peaks, out);
    }
}

pub(crate) fn pool(pool: Pool, x: &[f32], out: &mut [f32]) {
    let (width, edge) = match pool {
        Pool::None => return copy(x, out),
        Pool::Mean { width, edge } => (width as usize, Some(edge)),
        Pool::Max { width } => (width as usize, None),
    };
    let half = width / 2;
    // One place of the window after the other, for all entries: loops that compilers turn into vectors.
    out.fill(if edge.is_none() { f32::NEG_INFINITY } else { 0.0 });
    for place in 0..width {
        let from = x.get(place.saturating_sub(half)..).unwrap_or_default();
        let to = out.get_mut(half.saturating_sub(place)..).unwrap_or_default();
        for (out, &x) in to.iter_mut().zip(from) {
            *out = match edge {
                None => {
                    if x > *out {
                        x
                    } else {
                        *out
                    }
                }
                Some(_) => *out + x,
            };
        }
    }
    match edge {
        None => {}
        Some(Edge::Zero) => out.iter_mut().for_each(|x| *x /= float(width)),
        Some(Edge::Renormalise) => {
            let n = x.len();
            for (i, out) in out.iter_mut().enumerate() {
                let around = i.saturating_add(half).saturating_add(1).min(n).saturating_sub(i.saturating_sub(half));
                *out /= float(around);
            }
        }
    }
}
