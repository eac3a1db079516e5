//! Attention of many queries on tiles: as [`Dispatch::attend_tile`], with keys, queries, weights and values as the
//! fixed-point numbers of this module and the softmax between the products in f32.

use super::super::packed::Line;
use super::super::{Dispatch, GROUP, Level, Tile};
use super::{COLUMNS, MIN_TOKENS, TILE_TOKENS, tile_lines};
use crate::threads::Pool;

/// Keys that are scored, and whose values are summed, at a time: the columns of a tile of values.
pub(super) const KEYS: usize = COLUMNS;

/// More values of a key could overflow a sum: `2 * 127 * 128` each.
const MAX_HEAD_DIM: usize = 65_536;

/// Keys and values of the heads of a layer.
#[derive(Debug, Default)]
pub struct KvTiles {
    head_dim: usize,
    /// `[n_kv_heads + 1]` Where the blocks of each head begin.
    first: Vec<usize>,
    /// `[n_kv_heads]` Rows.
    lens: Vec<usize>,
    /// Blocks of [`KEYS`] rows: four tiles of keys, a key for a token, and `[head_dim / 16]` tiles of values, a column for a
    /// token and a key for a column.
    lines: Vec<Line>,
}

/// Lines of a block.
const fn block_lines(head_dim: usize) -> usize {
    KEYS / TILE_TOKENS * tile_lines(head_dim) + head_dim / TILE_TOKENS * tile_lines(KEYS)
}

impl Dispatch {
    /// Whether attention of `n` queries of `head_dim` values can go through tiles at this level.
    pub fn has_kv_tiles(self, n: usize, head_dim: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Level::Amx && n >= MIN_TOKENS && head_dim.is_multiple_of(GROUP) && head_dim <= MAX_HEAD_DIM;
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// Writes keys and values of some heads, each `[rows][head_dim]`, as tiles: 16 bits, of which the largest number of a
    /// key uses all, and so does that of a column of the values of 64 rows.
    ///
    /// # Panics
    /// Unless the level [has tiles](Self::has_kv_tiles) for `head_dim` and a head has as many whole keys as values.
    pub fn split_kv(self, heads: &[(&[f32], &[f32])], head_dim: usize, pool: &Pool, to: &mut KvTiles) {
        assert!(head_dim > 0 && head_dim.is_multiple_of(GROUP), "split_kv: {head_dim} values a key");
        for (k, v) in heads {
            let whole = k.len().is_multiple_of(head_dim);
            assert!(whole && k.len() == v.len(), "split_kv: {} and {} values of {head_dim}", k.len(), v.len());
        }
        let per_block = KEYS * head_dim;
        to.head_dim = head_dim;
        to.first.clear();
        to.first.push(0);
        to.lens.clear();
        for (keys, _) in heads {
            to.lens.push(keys.len() / head_dim);
            to.first.push(to.first[to.first.len() - 1] + keys.len().div_ceil(per_block));
        }
        let (first, n_lines) = (&to.first, block_lines(head_dim));
        to.lines.resize(first[heads.len()] * n_lines, Line([0; 64]));
        pool.chunks(&mut to.lines, n_lines, |i, lines| {
            let h = first.partition_point(|&f| f <= i) - 1;
            let (keys, values) = heads[h];
            let from = (i - first[h]) * per_block;
            let part = from..keys.len().min(from + per_block);
            self.split_block(&keys[part.clone()], &values[part], head_dim, lines);
        });
    }

    /// Attention of the queries of a tile over the rows of head `h` that each sees.
    ///
    /// # Panics
    /// Unless the level [has tiles](Self::has_kv_tiles), the head has the rows, and rows and queries are of one length.
    pub fn attend_kv_tiles(self, tile: &mut Tile, kv: &KvTiles, h: usize) {
        let n_lines = block_lines(kv.head_dim);
        let blocks = &kv.lines[kv.first[h] * n_lines..kv.first[h + 1] * n_lines];
        tile.check(kv.lens[h] * kv.head_dim, "tiles");
        assert!(tile.head_dim() == kv.head_dim, "{} values a query for {} a key", tile.head_dim(), kv.head_dim);
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; the blocks hold the rows that are seen.
            Level::Amx => unsafe { super::amx::attention::attend(tile, blocks, n_lines) },
            _ => unreachable!("a level without tiles"),
        }
    }

    fn split_block(self, keys: &[f32], values: &[f32], head_dim: usize, to: &mut [Line]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; these are up to 64 rows for a block.
            Level::Amx => unsafe { super::amx::attention::split_block(keys, values, head_dim, to) },
            _ => unreachable!("a level without tiles"),
        }
    }
}
