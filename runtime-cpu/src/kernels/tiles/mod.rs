//! Products of many tokens on matrix tiles of bf16 numbers, where a CPU has them.
//!
//! Weights and activations are written as sums of two bf16 numbers, 16 bits of mantissa. Of the four products three are
//! added up, in f32: that of the two low parts is below what 16 bits hold. Quantised weights of a few rows at a time
//! become such pairs when they are used, for all tokens of a task, so they stay as small in memory as they are.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;

use std::ops::Range;

use super::packed::{Line, PackedRows};
use super::{Dispatch, GROUP, Level, PANEL_ROWS, Packed, WeightRows};
use crate::threads::{Base, Pool};

/// Tokens side by side in a tile.
const TILE_TOKENS: usize = 16;

/// Rows of weights that are converted at a time: two panels.
const ROWS: usize = 2 * PANEL_ROWS;

/// Fewer tokens do not repay the conversion of the weights.
const MIN_TOKENS: usize = 24;

/// Bytes of activations that stay in a core's second cache beside the weights of a task.
const CACHED: usize = 1_250_000;

/// Activation vectors as bf16 numbers, one or two for each value, in tiles of 16 tokens and 32 columns.
#[derive(Clone, Debug, Default)]
pub struct TileRows {
    n: usize,
    n_cols: usize,
    planes: usize,
    /// `[n / 16][n_cols / 32][planes][16]` The 32 columns of a token.
    lines: Vec<Line>,
}

/// Quantised weights, repacked or as they lie in the file.
#[derive(Clone, Copy)]
pub enum TileWeights<'a> {
    /// Panels.
    Packed(&'a Packed),
    /// Blocks.
    Rows(WeightRows<'a>),
}

/// Some rows of weights as pairs of bf16 numbers: `[ROWS / 16][n_cols / 32][2][16]`, two columns of 16 rows in a line.
type Converted = Vec<Line>;

impl TileRows {
    fn tile_lines(&self) -> usize {
        self.n_cols / GROUP * self.planes * TILE_TOKENS
    }
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

    /// Writes `x` `[n][n_cols]` as tiles, each value as the sum of two bf16 numbers or, with one plane, as the nearest.
    ///
    /// # Panics
    /// Unless the level [has tiles](Self::has_tiles) and `n_cols` is a multiple of 32.
    pub fn split_tiles(self, x: &[f32], n_cols: usize, two_planes: bool, pool: &Pool, to: &mut TileRows) {
        assert!(n_cols.is_multiple_of(GROUP) && x.len().is_multiple_of(n_cols), "split_tiles shapes");
        (to.n, to.n_cols, to.planes) = (x.len() / n_cols, n_cols, if two_planes { 2 } else { 1 });
        let per_tile = to.tile_lines();
        to.lines.resize(to.n.div_ceil(TILE_TOKENS) * per_tile, Line([0; 64]));
        pool.chunks(&mut to.lines, per_tile, |i, tile| {
            let from = i * TILE_TOKENS * n_cols;
            self.split_tile(&x[from..x.len().min(from + TILE_TOKENS * n_cols)], n_cols, two_planes, tile);
        });
    }

    /// `out[t][r] = w[r] . x[t]`; `out` is `[n][n_rows]`. Within 2e-5 of the norms' product with two planes, 5e-3 with one.
    ///
    /// # Panics
    /// Unless the level [has tiles](Self::has_tiles) and the shapes agree.
    pub fn gemm_tiles(self, w: TileWeights<'_>, x: &TileRows, pool: &Pool, out: &mut [f32]) {
        let (n_rows, n_cols) = w.shape();
        assert!(out.len() == x.n * n_rows && x.n_cols == n_cols, "gemm_tiles shapes");
        if let TileWeights::Rows(w) = w {
            w.check();
        }
        // Tokens in equal parts that the cache holds, rows in blocks: a task is a block of one part.
        let bytes = x.lines.len() * size_of::<Line>();
        let per_part = x.n.div_ceil(bytes.div_ceil(CACHED)).next_multiple_of(2 * TILE_TOKENS);
        let blocks = n_rows.div_ceil(ROWS);
        let out = Base(out.as_mut_ptr());
        pool.tasks(x.n.div_ceil(per_part) * blocks, |task| {
            let (part, block) = (task / blocks, task % blocks);
            let tokens = part * per_part..x.n.min((part + 1) * per_part);
            let rows = block * ROWS..n_rows.min((block + 1) * ROWS);
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
        // Taken out and put back: 100 to 200 KB.
        thread_local!(static CONVERTED: std::cell::RefCell<Converted> = const { std::cell::RefCell::new(Vec::new()) });
        let mut to = CONVERTED.take();
        let per_panel = x.n_cols / GROUP * 2 * 16;
        to.resize(ROWS / PANEL_ROWS * per_panel, Line([0; 64]));
        match w {
            TileWeights::Packed(w) => self.convert(w.rows(rows.start, rows.end), &mut to),
            TileWeights::Rows(w) => super::packed::unpacked(w.slice(rows.start, rows.end), |panel, from| {
                self.convert(panel, &mut to[from / PANEL_ROWS * per_panel..]);
            }),
        }
        // SAFETY: the caller's contract.
        unsafe { self.tile_products(&to, rows, x, tokens, out, stride) };
        CONVERTED.set(to);
    }

    fn split_tile(self, x: &[f32], n_cols: usize, two_planes: bool, to: &mut [Line]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; a tile has room for 16 tokens.
            Level::Amx => unsafe { amx::split_tile(x, n_cols, two_planes, to) },
            _ => unreachable!("a level without tiles"),
        }
    }

    fn convert(self, w: PackedRows<'_>, to: &mut [Line]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; there is room for the panels.
            Level::Amx => unsafe { amx::convert(w, to) },
            _ => unreachable!("a level without tiles"),
        }
    }

    /// # Safety
    /// As of `tiles_task`; `w` holds the rows.
    unsafe fn tile_products(
        self,
        w: &[Line],
        rows: Range<usize>,
        x: &TileRows,
        tokens: Range<usize>,
        out: *mut f32,
        stride: usize,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Dispatch` holds this level only if the CPU has it; the rest is the caller's contract.
            Level::Amx => unsafe { amx::products(w, rows, x, tokens, out, stride) },
            _ => unreachable!("a level without tiles"),
        }
    }
}
