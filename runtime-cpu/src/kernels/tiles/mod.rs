//! Products of many tokens on matrix tiles of bytes, where a CPU has them.
//!
//! A token's activations and a row's weights are fixed-point numbers of 16 bits, in units of what makes the largest of
//! them fit, and so two signed bytes each. Of the four products three are added up, in integers, for all columns: that of
//! the two low bytes is below what 16 bits hold. Quantised weights of 16 rows and some hundred columns at a time become such
//! numbers when they are used, for all tokens of a task, so they stay as small in memory as they are.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
mod attention;

use std::ops::Range;

pub use attention::KvTiles;

use super::packed::{Line, PackedRows};
use super::{Dispatch, GROUP, Level, PANEL_ROWS, Packed, WeightRows};
use crate::threads::{Base, Pool};

/// Tokens side by side in a tile.
const TILE_TOKENS: usize = 16;

/// Columns of a tile.
const COLUMNS: usize = 64;

/// Most steps of 64 columns that weights are converted for at a time: beside a tile of tokens they stay in a core's first
/// cache. If there are no more than twice as many, adding up two halves costs more than that.
const MOST_STEPS: usize = 12;

/// Panels of a task: neighbours in the output that no other thread writes.
const PANELS: usize = 2;

/// As [`PANELS`] where every panel fetches the activations into the second cache again.
const PANELS_OF_MANY_COLUMNS: usize = 8;

/// Fewer tokens do not repay the conversion of the weights.
const MIN_TOKENS: usize = 24;

/// Bytes of activations that stay in a core's second cache beside the weights of a task.
const CACHED: usize = 1_600_000;

/// Activation vectors as fixed-point numbers, in tiles of 16 tokens.
#[derive(Clone, Debug, Default)]
pub struct TileRows {
    n: usize,
    n_cols: usize,
    /// `[n / 16]` tiles: for every 64 columns, filled up with zeros, the upper bytes of each token and then the lower
    /// ones; after all columns, 16 scales; then the [`Outliers`] of each token.
    lines: Vec<Line>,
}

/// Values of a token that are kept as they are. Where a channel stands out a thousandfold, as in the first tokens of many
/// models, a scale that fits it would leave nothing of the others.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Outliers {
    n: u32,
    /// Largest first.
    columns: [u32; MOST_OUTLIERS],
    values: [f32; MOST_OUTLIERS],
}

/// Outliers of a token.
const MOST_OUTLIERS: usize = 7;

/// How far above the mean magnitude an outlier is.
const OUTLYING: f32 = 24.0;

/// Lines of a tile.
const fn tile_lines(n_cols: usize) -> usize {
    n_cols.div_ceil(COLUMNS) * 2 * TILE_TOKENS + 1
}

impl TileRows {
    fn per_tile(&self) -> usize {
        tile_lines(self.n_cols) + TILE_TOKENS
    }

    /// Bytes of all tiles.
    fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }
}

/// Columns of the chunks that products are summed in.
fn chunk_columns(n_cols: usize) -> usize {
    let steps = n_cols.div_ceil(COLUMNS);
    let chunks = if steps > 2 * MOST_STEPS { steps.div_ceil(MOST_STEPS) } else { 1 };
    steps.div_ceil(chunks) * COLUMNS
}

impl Outliers {
    const NONE: Outliers = Outliers { n: 0, columns: [0; MOST_OUTLIERS], values: [0.0; MOST_OUTLIERS] };

    /// Adds a value; the smallest gives way when there are too many. Returns the magnitude of what has no place.
    fn add(&mut self, mut column: u32, mut value: f32) -> f32 {
        let n = self.n as usize;
        let place = (0..n).find(|&i| value.abs() > self.values[i].abs()).unwrap_or(n);
        for i in place..n {
            std::mem::swap(&mut column, &mut self.columns[i]);
            std::mem::swap(&mut value, &mut self.values[i]);
        }
        if n == MOST_OUTLIERS {
            return value.abs();
        }
        (self.columns[n], self.values[n], self.n) = (column, value, self.n + 1);
        0.0
    }
}

/// Quantised weights, repacked or as they lie in the file.
#[derive(Clone, Copy)]
pub enum TileWeights<'a> {
    /// Panels.
    Packed(&'a Packed),
    /// Blocks.
    Rows(WeightRows<'a>),
}

impl TileWeights<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            TileWeights::Packed(w) => (w.n_rows(), w.n_cols()),
            TileWeights::Rows(w) => (w.n_rows(), w.n_cols),
        }
    }
}

impl Dispatch {
    /// Whether products of `n` tokens with quantised weights go through tiles at this level.
    pub fn has_tiles(self, n: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Level::Amx && n >= MIN_TOKENS;
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// Writes `x` `[n][n_cols]` as tiles of fixed-point numbers: 16 bits, of which the largest value of a token uses all.
    /// Up to seven values that stand out are not among them.
    ///
    /// # Panics
    /// Unless the level [has tiles](Self::has_tiles) and `n_cols` is a multiple of 32.
    pub fn split_tiles(self, x: &[f32], n_cols: usize, pool: &Pool, to: &mut TileRows) {
        assert!(n_cols.is_multiple_of(GROUP) && x.len().is_multiple_of(n_cols), "split_tiles shapes");
        (to.n, to.n_cols) = (x.len() / n_cols, n_cols);
        let per_tile = to.per_tile();
        to.lines.resize(to.n.div_ceil(TILE_TOKENS) * per_tile, Line([0; 64]));
        pool.chunks(&mut to.lines, per_tile, |i, tile| {
            let from = i * TILE_TOKENS * n_cols;
            self.split_tile(&x[from..x.len().min(from + TILE_TOKENS * n_cols)], n_cols, tile);
        });
    }

    /// `out[t][r] = w[r] . x[t]`; `out` is `[n][n_rows]`. Within 2e-5 of the norms' product. A token or row with a number
    /// that is not finite gives NaN.
    ///
    /// # Panics
    /// Unless the level [has tiles](Self::has_tiles) and the shapes agree.
    pub fn gemm_tiles(self, w: TileWeights<'_>, x: &TileRows, pool: &Pool, out: &mut [f32]) {
        let (n_rows, n_cols) = w.shape();
        assert!(out.len() == x.n * n_rows && x.n_cols == n_cols, "gemm_tiles shapes");
        if let TileWeights::Rows(w) = w {
            w.check();
        }
        // Tokens in equal parts of which the cache holds a chunk of columns; a task is some panels by one part.
        let per_chunk = x.bytes() * chunk_columns(n_cols) / n_cols;
        let per_part = x.n.div_ceil(per_chunk.div_ceil(CACHED)).next_multiple_of(TILE_TOKENS);
        let parts = x.n.div_ceil(per_part);
        let all_cached = x.bytes() / parts <= CACHED;
        let per_task = PANEL_ROWS * if all_cached { PANELS } else { PANELS_OF_MANY_COLUMNS };
        let blocks = n_rows.div_ceil(per_task);
        let out = Base(out.as_mut_ptr());
        pool.tasks(parts * blocks, |task| {
            let (part, block) = (task / blocks, task % blocks);
            let tokens = part * per_part..x.n.min((part + 1) * per_part);
            let rows = block * per_task..n_rows.min((block + 1) * per_task);
            // SAFETY: the rows and tokens exist, and no other task writes theirs.
            unsafe { self.tiles_task(w, rows, x, tokens, out.at(0), n_rows) };
        });
    }

    /// # Safety
    /// The rows are those of `w`, the tokens those of `x`; nobody else uses `out[tokens][rows]` of `[n][stride]`.
    unsafe fn tiles_task(
        self,
        w: TileWeights<'_>,
        rows: Range<usize>,
        x: &TileRows,
        tokens: Range<usize>,
        out: *mut f32,
        stride: usize,
    ) {
        // Taken out and put back: up to 50 KB.
        thread_local!(static CONVERTED: std::cell::RefCell<Vec<Line>> = const { std::cell::RefCell::new(Vec::new()) });
        let per_chunk = chunk_columns(x.n_cols);
        let mut converted = CONVERTED.take();
        converted.resize(tile_lines(per_chunk), Line([0; 64]));
        let mut panel = |w: PackedRows<'_>, from: usize, first: usize| {
            let columns = first..x.n_cols.min(first + per_chunk);
            // SAFETY: the caller's contract; there is room for a chunk of a panel.
            unsafe { self.panel_products(w, columns, &mut converted, x, tokens.clone(), out.add(from), stride) };
        };
        let chunks = (0..x.n_cols).step_by(per_chunk);
        match w {
            TileWeights::Packed(w) => chunks.for_each(|first| {
                for from in rows.clone().step_by(PANEL_ROWS) {
                    panel(w.rows(from, rows.end.min(from + PANEL_ROWS)), from, first);
                }
            }),
            TileWeights::Rows(w) => super::packed::unpacked(w.slice(rows.start, rows.end), |w, from| {
                chunks.clone().for_each(|first| panel(w, rows.start + from, first));
            }),
        }
        CONVERTED.set(converted);
    }

    fn split_tile(self, x: &[f32], n_cols: usize, to: &mut [Line]) {
        let (to, outliers) = to.split_at_mut(tile_lines(n_cols));
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; a tile has room for 16 tokens.
            Level::Amx => unsafe { amx::split_tile(x, n_cols, to, Some(outliers)) },
            _ => unreachable!("a level without tiles"),
        }
    }

    /// Adds the products of some columns, or writes those of the first.
    ///
    /// # Safety
    /// `w` is a panel with these columns, `converted` a tile of them, the tokens are those of `x`; nobody else uses the
    /// outputs.
    #[allow(clippy::too_many_arguments)] // a part of each of three matrices
    unsafe fn panel_products(
        self,
        w: PackedRows<'_>,
        columns: Range<usize>,
        converted: &mut [Line],
        x: &TileRows,
        tokens: Range<usize>,
        out: *mut f32,
        stride: usize,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; the rest is the caller's contract.
            Level::Amx => unsafe {
                amx::convert(w, columns.clone(), converted);
                amx::products(converted, w.n_rows, x, columns, tokens, out, stride);
            },
            _ => unreachable!("a level without tiles"),
        }
    }
}
