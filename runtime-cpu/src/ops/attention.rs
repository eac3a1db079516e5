//! Streaming attention: the score matrix is never stored, only the scores of some queries and keys at a time.

use std::cell::RefCell;
use std::ops::Range;

use super::{Compute, Precision};
use crate::cache::{LayerCache, Staging};
use crate::kernels::{KvTiles, Partial, TILE_ROWS, Tile};

thread_local! {
    static TILE: RefCell<Tile> = RefCell::default();
    static KV_TILES: RefCell<KvTiles> = RefCell::default();
}

/// Which rows a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask<'a> {
    /// All rows: the patches of an image.
    None,
    /// Its own row and those before it; the queries belong to the last rows of each head.
    Causal,
    /// As `Causal`, but of those only rows less than so many positions before it.
    Window(usize),
    /// The rows of its own range: windows of an image. The ranges ascend and together are all rows.
    Within(&'a [Range<usize>]),
}

/// Attention of `n` queries over a staged layer. Query head j reads KV head `j / group`.
///
/// `q` is `[n][n_kv_heads * group * head_dim]`, `out` the same. With [`Mask::Causal`] and [`Mask::Window`], query `t`
/// stands at row `len - n + t` of each head. Softmax and accumulation in f32.
pub fn prefill(cx: &Compute, q: &[f32], n: usize, layer: &Staging, mask: Mask<'_>, scale: f32, out: &mut [f32]) {
    let queries = Queries::new(q, n, layer, mask, scale);
    let d = layer.head_dim();
    let on_tiles = cx.precision != Precision::Float && cx.dispatch.has_kv_tiles(n, d);
    let mut kv_tiles = KV_TILES.take();
    if on_tiles {
        let heads: Vec<_> =
            (0..layer.n_kv_heads()).map(|h| (layer.keys(h), layer.values(h, 0, layer.len(h)))).collect();
        cx.dispatch.split_kv(&heads, d, &cx.pool, &mut kv_tiles);
    }
    // The rows that the queries of a KV head write, in the order of `Queries::tile`.
    let mut rows: Vec<Vec<&mut [f32]>> =
        (0..layer.n_kv_heads()).map(|_| Vec::with_capacity(n * queries.group)).collect();
    for token in out.chunks_exact_mut(queries.width) {
        for (j, row) in token.chunks_exact_mut(d).enumerate() {
            rows[j / queries.group].push(row);
        }
    }
    let mut tasks: Vec<_> = rows
        .iter_mut()
        .enumerate()
        .flat_map(|(h, rows)| rows.chunks_mut(TILE_ROWS).enumerate().map(move |(i, rows)| (i, h, rows)))
        .collect();
    tasks.sort_by_key(|(i, h, _)| (std::cmp::Reverse(*i), *h)); // the last tiles see the most keys: start them first
    cx.pool.each(tasks, |(i, h, rows)| {
        let mut tile = TILE.take();
        queries.load(h, i, &mut tile);
        if on_tiles {
            cx.dispatch.attend_kv_tiles(&mut tile, &kv_tiles, h);
        } else {
            cx.dispatch.attend_tile(&mut tile, layer.keys(h), layer.values(h, 0, layer.len(h)));
        }
        rows.iter_mut().enumerate().for_each(|(r, row)| tile.store(r, row));
        TILE.set(tile);
    });
    KV_TILES.set(kv_tiles);
}

/// Stripes of tiles that sum their attention apart. Fixed, so that results do not depend on the number of threads.
const STRIPES: usize = 4;

/// Attention that each row received, summed over the queries and over the query heads of its group:
/// `[n_kv_heads][capacity]`. Arguments as of [`prefill`]. Computes the scores twice more.
pub fn column_sums(cx: &Compute, q: &[f32], n: usize, layer: &Staging, mask: Mask<'_>, scale: f32) -> Vec<f32> {
    let queries = Queries::new(q, n, layer, mask, scale);
    let (n_heads, capacity) = (layer.n_kv_heads(), layer.capacity());
    let mut stripes = vec![0.0; n_heads * STRIPES * capacity];
    cx.pool.chunks(&mut stripes, capacity, |i, sums| {
        let (h, stripe) = (i / STRIPES, i % STRIPES);
        let mut tile = TILE.take();
        for i in (stripe..queries.n_tiles()).step_by(STRIPES) {
            queries.load(h, i, &mut tile);
            cx.dispatch.tile_column_sums(&mut tile, layer.keys(h), &mut sums[..layer.len(h)]);
        }
        TILE.set(tile);
    });
    let mut out = vec![0.0; n_heads * capacity];
    for (out, stripes) in out.chunks_exact_mut(capacity).zip(stripes.chunks_exact(STRIPES * capacity)) {
        for stripe in stripes.chunks_exact(capacity) {
            out.iter_mut().zip(stripe).for_each(|(o, s)| *o += s);
        }
    }
    out
}

/// The queries of a layer, cut into tiles: those of one KV head follow each other by token, then by head of the group.
struct Queries<'a> {
    q: &'a [f32],
    n: usize,
    width: usize,
    group: usize,
    layer: &'a Staging,
    mask: Mask<'a>,
    scale: f32,
}

impl<'a> Queries<'a> {
    fn new(q: &'a [f32], n: usize, layer: &'a Staging, mask: Mask<'a>, scale: f32) -> Queries<'a> {
        let width = q.len() / n;
        let group = width / (layer.n_kv_heads() * layer.head_dim());
        Queries { q, n, width, group, layer, mask, scale }
    }

    fn n_tiles(&self) -> usize {
        (self.n * self.group).div_ceil(TILE_ROWS)
    }

    /// Tile `i` of KV head `h`.
    fn load(&self, h: usize, i: usize, tile: &mut Tile) {
        let d = self.layer.head_dim();
        let rows = i * TILE_ROWS..(self.n * self.group).min((i + 1) * TILE_ROWS);
        let query = |r: usize| {
            let (t, g) = (r / self.group, r % self.group);
            let q = &self.q[t * self.width + (h * self.group + g) * d..][..d];
            (q, self.mask.seen(self.layer, h, self.n, t))
        };
        tile.load(d, self.scale, rows.map(query));
    }
}

impl Mask<'_> {
    /// Rows of head `h` that query `t` of `n` sees.
    fn seen(self, layer: &Staging, h: usize, n: usize, t: usize) -> Range<usize> {
        let len = layer.len(h);
        match self {
            Mask::None => 0..len,
            Mask::Within(ranges) => ranges[ranges.partition_point(|range| range.end <= t)].clone(),
            Mask::Causal => 0..len - n + t + 1,
            Mask::Window(window) => {
                let positions = &layer.positions(h)[..len - n + t + 1];
                let own = positions[positions.len() - 1] as usize;
                positions.partition_point(|&p| p as usize + window <= own)..positions.len()
            }
        }
    }
}

/// Parts that a decode step is cut into, about: enough to occupy all cores, few enough that adding them up is nothing.
const PARTS: usize = 64;

/// Fewest rows of a part but the last of a head.
const MIN_ROWS: usize = 64;

/// Buffers of [`decode`], kept between steps.
#[derive(Default)]
pub struct DecodeScratch {
    /// Head, first row and end of each part.
    tasks: Vec<(usize, usize, usize)>,
    /// Of each part: `[group]` maxima, `[group]` sums, `[group][head_dim]` values.
    parts: Vec<f32>,
}

/// Attention of one query over the ragged rows of a layer. `q` and `out` are `[n_kv_heads * group * head_dim]`.
/// Allocates in the first call only.
pub fn decode(cx: &Compute, q: &[f32], layer: &LayerCache, scale: f32, scratch: &mut DecodeScratch, out: &mut [f32]) {
    let (n_heads, d) = (layer.n_kv_heads(), layer.head_dim());
    let group = q.len() / (n_heads * d);
    let part = group * (2 + d);
    // The cut depends on the rows alone, so that results do not depend on the number of threads.
    let total: usize = (0..n_heads).map(|h| layer.len(h)).sum();
    let rows = total.div_ceil(PARTS).next_multiple_of(MIN_ROWS);
    let most = PARTS + n_heads;
    let DecodeScratch { tasks, parts } = scratch;
    tasks.clear();
    tasks.reserve(most);
    for h in 0..n_heads {
        let len = layer.len(h);
        tasks.extend((0..len).step_by(rows).map(|from| (h, from, len.min(from + rows))));
    }
    parts.resize(most * part, 0.0);
    let (tasks, parts) = (&tasks[..], &mut parts[..tasks.len() * part]);
    // A thread takes neighbours, and asks for the rows behind its own.
    cx.pool.runs([((), parts, part)], |(), first, parts| {
        for (&(h, from, to), part) in tasks[first..].iter().zip(parts.chunks_exact_mut(part)) {
            let (max, rest) = part.split_at_mut(group);
            let (sum, values) = rest.split_at_mut(group);
            let (k, v) = layer.rows(h, from, to);
            let bias = layer.slot_bias(h).get(from..).unwrap_or_default();
            let q = &q[h * group * d..(h + 1) * group * d];
            cx.dispatch.attend_rows(q, k, v, d, to - from, scale, bias, Partial { max, sum, values });
        }
    });
    let mut first = 0;
    for (h, out) in out.chunks_exact_mut(group * d).enumerate() {
        let end = first + tasks[first..].iter().take_while(|task| task.0 == h).count();
        for (g, out) in out.chunks_exact_mut(d).enumerate() {
            add_up(&parts[first * part..end * part], part, group, g, out);
        }
        first = end;
    }
}

/// Attention of head `g` of a group from the parts of its rows.
fn add_up(parts: &[f32], part: usize, group: usize, g: usize, out: &mut [f32]) {
    let parts = || parts.chunks_exact(part);
    let max = parts().fold(f32::NEG_INFINITY, |m, p| m.max(p[g]));
    let mut sum = 0.0;
    out.fill(0.0);
    for p in parts() {
        let weight = if p[g] == max { 1.0 } else { (p[g] - max).exp() };
        sum += weight * p[group + g];
        let values = &p[2 * group + g * out.len()..];
        out.iter_mut().zip(values).for_each(|(o, v)| *o += weight * v);
    }
    let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
    out.iter_mut().for_each(|o| *o *= inverse);
}
