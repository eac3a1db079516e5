//! Attention kernels. Few queries against cached rows ([`Dispatch::attend_rows`]) read each row once for all heads of a
//! group; many queries against a staged layer ([`Dispatch::attend_tile`]) take 48 queries at a time over all keys. Both are
//! written once over vector registers (`lanes.rs`), which each instruction set supplies; `scalar.rs` is their reference.

mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod rows;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tile;

use std::ops::Range;

use half::f16;

use super::packed::Line;
use super::{Dispatch, Level};

/// Queries of a [`Tile`].
pub const TILE_ROWS: usize = 48;

/// Keys whose scores a tile holds at a time: whole blocks of 6 and 8, whole registers of 16.
const TILE_BLOCK: usize = 48;

/// Rows of one head of the key or value cache: `[len][head_dim]`.
#[derive(Clone, Copy, Debug)]
pub enum KvRows<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// Blocks of 32 values; `head_dim` is a multiple of 32.
    Q8_0(&'a [Q8Block]),
}

/// 32 values as ggml stores them in Q8_0: `d * q[i]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Q8Block {
    /// Scale.
    pub d: f16,
    /// Quants.
    pub q: [i8; 32],
}

/// What a run of rows contributes to attention, for each query head of a group: softmax over the run is
/// `exp(score - max) / sum`, and `values` are not divided by `sum` yet.
pub struct Partial<'a> {
    /// `[group]`
    pub max: &'a mut [f32],
    /// `[group]`
    pub sum: &'a mut [f32],
    /// `[group][head_dim]`
    pub values: &'a mut [f32],
}

/// Up to [`TILE_ROWS`] queries that meet the same keys, a lane each, and the state of their softmax.
#[derive(Debug)]
pub struct Tile {
    pub(super) n: usize,
    /// `[head_dim]` Queries, scaled.
    pub(super) q: Vec<Across>,
    /// `[head_dim]` Weighted sums of values, not divided by `sum` yet.
    pub(super) out: Vec<Across>,
    /// `[TILE_BLOCK]`
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(dead_code, reason = "for the vector kernels")
    )]
    scores: Vec<Across>,
    /// The queries as fixed-point numbers, for kernels that have their own tiles.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AMX"))]
    pub(super) panels: Vec<Line>,
    pub(super) max: Across,
    pub(super) sum: Across,
    /// Rows `first..end` are seen by a query. Lanes without a query see what the last query sees.
    pub(super) first: [i32; TILE_ROWS],
    /// See `first`.
    pub(super) end: [i32; TILE_ROWS],
}

/// A number for each query of a tile.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Across(pub(super) [f32; TILE_ROWS]);

const ZERO: Across = Across([0.0; TILE_ROWS]);

/// Below every score, and finite: differences from it are no NaN.
const LOWEST: Across = Across([f32::MIN; TILE_ROWS]);

impl Default for Tile {
    fn default() -> Tile {
        let scores = vec![ZERO; TILE_BLOCK];
        let (first, end) = ([0; TILE_ROWS], [0; TILE_ROWS]);
        Tile { n: 0, q: Vec::new(), out: Vec::new(), scores, panels: Vec::new(), max: LOWEST, sum: ZERO, first, end }
    }
}

impl Tile {
    /// Takes queries of `head_dim` values, each with the rows that it sees, at most [`TILE_ROWS`] of them. The memory is
    /// used again.
    pub fn load<'q>(&mut self, head_dim: usize, scale: f32, queries: impl Iterator<Item = (&'q [f32], Range<usize>)>) {
        self.q.clear();
        self.q.resize(head_dim, ZERO);
        self.out.clear();
        self.out.resize(head_dim, ZERO);
        (self.n, self.max, self.sum) = (0, LOWEST, ZERO);
        for (r, (query, seen)) in queries.enumerate().take(TILE_ROWS) {
            self.q.iter_mut().zip(query).for_each(|(q, v)| q.0[r] = scale * v);
            self.first[r..].fill(seen.start as i32);
            self.end[r..].fill(seen.end as i32);
            self.n = r + 1;
        }
    }

    /// Queries.
    pub fn n(&self) -> usize {
        self.n
    }

    /// The attention of query `r`, `[head_dim]`.
    pub fn store(&self, r: usize, out: &mut [f32]) {
        let inverse = if self.sum.0[r] == 0.0 { 0.0 } else { 1.0 / self.sum.0[r] };
        out.iter_mut().zip(&self.out).for_each(|(o, v)| *o = v.0[r] * inverse);
    }

    /// Values of a query.
    pub fn head_dim(&self) -> usize {
        self.q.len()
    }

    pub(super) fn check(&self, n_values: usize, what: &str) {
        let rows = self.end.iter().fold(0, |a, &b| a.max(b)) as usize;
        assert!(n_values >= rows * self.q.len(), "{what}: {n_values} values for {rows} rows of {}", self.q.len());
    }
}

impl Q8Block {
    /// Quantises as ggml does: the largest magnitude becomes 127.
    pub fn quantize(x: &[f32; 32]) -> Q8Block {
        let max = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let d = max / 127.0;
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        // `f32::round` in a form that is compiled to vectors.
        let round = |v: f32| {
            let whole = v as i32;
            let rest = v - whole as f32;
            (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8
        };
        Q8Block { d: f16::from_f32(d), q: x.map(|v| round(v * inverse)) }
    }

    /// The values.
    pub fn dequantize(&self) -> [f32; 32] {
        let d = self.d.to_f32();
        self.q.map(|q| d * f32::from(q))
    }
}

impl KvRows<'_> {
    /// Rows `from..to` of `head_dim` values each.
    pub fn slice(&self, from: usize, to: usize, head_dim: usize) -> Self {
        match self {
            KvRows::F32(r) => KvRows::F32(&r[from * head_dim..to * head_dim]),
            KvRows::F16(r) => KvRows::F16(&r[from * head_dim..to * head_dim]),
            KvRows::Q8_0(r) => KvRows::Q8_0(&r[from * head_dim / 32..to * head_dim / 32]),
        }
    }

    fn holds(&self, n_rows: usize, head_dim: usize) -> bool {
        match self {
            KvRows::F32(r) => r.len() >= n_rows * head_dim,
            KvRows::F16(r) => r.len() >= n_rows * head_dim,
            KvRows::Q8_0(r) => head_dim.is_multiple_of(32) && 32 * r.len() >= n_rows * head_dim,
        }
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn as_ptr(&self) -> *const u8 {
        match self {
            KvRows::F32(r) => r.as_ptr().cast(),
            KvRows::F16(r) => r.as_ptr().cast(),
            KvRows::Q8_0(r) => r.as_ptr().cast(),
        }
    }
}

impl Dispatch {
    /// `scores[g][i] = scale * q[g] . k[i]`: `q` `[group][head_dim]`, `k` `[len][head_dim]`, `scores` `[group][len]`.
    pub fn dot_rows(self, q: &[f32], k: KvRows<'_>, head_dim: usize, len: usize, scale: f32, scores: &mut [f32]) {
        assert!(k.holds(len, head_dim) && scores.len() * head_dim == q.len() * len, "dot_rows shapes");
        dispatch!(self, dot_rows(q, k, head_dim, scale, len, scores))
    }

    /// Attention of `q` `[group][head_dim]` over `len` rows of one KV head. `bias` is added to the scores of the first rows.
    #[allow(clippy::too_many_arguments)] // keys, values, and what they meet
    pub fn attend_rows(
        self,
        q: &[f32],
        k: KvRows<'_>,
        v: KvRows<'_>,
        head_dim: usize,
        len: usize,
        scale: f32,
        bias: &[f32],
        mut part: Partial<'_>,
    ) {
        let group = part.max.len();
        assert!(k.holds(len, head_dim) && v.holds(len, head_dim) && q.len() == group * head_dim, "attend_rows shapes");
        assert!(part.sum.len() == group && part.values.len() == q.len(), "attend_rows shapes");
        assert!(std::mem::discriminant(&k) == std::mem::discriminant(&v), "keys and values of one type");
        dispatch!(self, attend_rows(q, k, v, head_dim, len, scale, bias, &mut part))
    }

    /// Attention of the queries of a tile over the rows that each sees; `keys` and `values` are `[rows][head_dim]`.
    pub fn attend_tile(self, tile: &mut Tile, keys: &[f32], values: &[f32]) {
        tile.check(keys.len(), "keys");
        tile.check(values.len(), "values");
        dispatch!(self, attend_tile(tile, keys, values))
    }

    /// Adds to `sums` `[rows]` the attention that each row receives, summed over the queries of a tile.
    pub fn tile_column_sums(self, tile: &mut Tile, keys: &[f32], sums: &mut [f32]) {
        tile.check(keys.len(), "keys");
        tile.check(sums.len() * tile.q.len(), "sums");
        dispatch!(self, tile_column_sums(tile, keys, sums))
    }
}

/// Evaluates `$body` with `$e` standing for the element type of the rows.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! with_elem {
    ($rows:expr, $e:ident => $body:expr) => {
        match $rows {
            KvRows::F32(_) => {
                type $e = super::lanes::F32;
                $body
            }
            KvRows::F16(_) => {
                type $e = super::lanes::F16;
                $body
            }
            KvRows::Q8_0(_) => {
                type $e = super::lanes::Q8_0;
                $body
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use with_elem;

/// The kernels over one kind of register: `$r` x `$v` registers of sums in a tile, `$g` heads that share a converted row.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! kernels {
    ($features:literal, $lanes:ty, tile $r:literal x $v:literal, heads $g:literal) => {
        use super::{KvRows, Partial, Tile, rows, tile, with_elem};

        #[target_feature(enable = $features)]
        pub(super) unsafe fn attend_tile(t: &mut Tile, keys: &[f32], values: &[f32]) {
            // SAFETY: the features of this function; rows are checked by `Dispatch`.
            unsafe { tile::attend::<$lanes, $r, $v>(t, keys, values) }
        }

        #[target_feature(enable = $features)]
        pub(super) unsafe fn tile_column_sums(t: &mut Tile, keys: &[f32], sums: &mut [f32]) {
            // SAFETY: as above.
            unsafe { tile::column_sums::<$lanes, $r, $v>(t, keys, sums) }
        }

        #[target_feature(enable = $features)]
        pub(super) unsafe fn dot_rows(q: &[f32], k: KvRows<'_>, d: usize, scale: f32, len: usize, scores: &mut [f32]) {
            // SAFETY: as above.
            unsafe { with_elem!(k, E => rows::dot::<$lanes, E, $g>(q, k.as_ptr(), d, scale, len, scores)) }
        }

        #[target_feature(enable = $features)]
        #[allow(clippy::too_many_arguments)] // as `Dispatch::attend_rows`
        pub(super) unsafe fn attend_rows(
            q: &[f32],
            k: KvRows<'_>,
            v: KvRows<'_>,
            d: usize,
            len: usize,
            scale: f32,
            bias: &[f32],
            part: &mut Partial<'_>,
        ) {
            // SAFETY: as above.
            unsafe {
                with_elem!(k, E => rows::attend::<$lanes, E, $g>(q, k.as_ptr(), v.as_ptr(), d, len, scale, bias, part))
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use kernels;
