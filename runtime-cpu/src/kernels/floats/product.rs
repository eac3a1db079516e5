//! The product of float panels with float vectors, written once for all instruction sets: cut so that what is read again
//! lies in the first cache.

use std::cell::RefCell;

use super::FloatRows;
use crate::kernels::formats_x86::Elem;
use crate::kernels::{FLOAT_TOKENS, PANEL_ROWS};

/// Columns that all rows and tokens are multiplied by before the next: 8 to 16 KB of a panel, 12 KB of a tile of tokens.
const COLUMNS: usize = 256;

/// One instruction set.
pub(super) trait Isa {
    /// Panels that are multiplied side by side.
    const PANELS: usize;

    /// Adds the columns of a step to its tile of the output; `WIDTH` tokens lie side by side in it.
    ///
    /// # Safety
    /// The CPU has the instruction set, and the step is what its fields say.
    unsafe fn tile<E: Elem, const WIDTH: usize>(s: &Step);
}

/// Some columns of up to `Isa::PANELS` panels and of a tile of tokens.
pub(super) struct Step {
    /// `[n_rows / 16][..][n_cols][16]`, the first column of the first panel.
    pub w: *const u8,
    /// From one panel to the next.
    pub panel_bytes: usize,
    pub n_cols: usize,
    /// `[n_cols][WIDTH]`
    pub x: *const f32,
    /// `[n_tokens][out_stride]`, of which `n_rows` are written.
    pub out: *mut f32,
    pub out_stride: usize,
    pub n_tokens: usize,
    pub n_rows: usize,
    /// Whether earlier columns are in the output already.
    pub add: bool,
}

/// `out[t * n_rows + r] = w[r] . x[t]`.
///
/// # Safety
/// The CPU has the instruction set; `x` is `[n][n_cols]`, `out` `[n][n_rows]`, and the panels hold elements of `E`.
#[inline(always)]
pub(super) unsafe fn product<I: Isa, E: Elem>(w: FloatRows<'_>, x: &[f32], out: &mut [f32]) {
    // Taken out and put back, as in the instruction-set files.
    thread_local!(static TILES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    let n_tokens = x.len() / w.n_cols;
    // One vector is read as it lies, and every panel from its beginning to its end.
    let (columns, mut tiles) = if n_tokens == 1 { (w.n_cols, Vec::new()) } else { (COLUMNS, TILES.take()) };
    let panel_bytes = 64 * super::panel_lines(w.ty, w.n_cols);
    for from in (0..w.n_cols).step_by(columns) {
        let n_cols = columns.min(w.n_cols - from);
        if n_tokens > 1 {
            arrange(x, w.n_cols, from, n_cols, &mut tiles);
        }
        for row in (0..w.n_rows).step_by(I::PANELS * PANEL_ROWS) {
            for first in (0..n_tokens).step_by(FLOAT_TOKENS) {
                // SAFETY: rows, columns and tokens are in bounds; `tiles` has the tokens in this order.
                unsafe {
                    let s = Step {
                        w: w.lines
                            .as_ptr()
                            .cast::<u8>()
                            .add(row / PANEL_ROWS * panel_bytes + from * PANEL_ROWS * E::BYTES),
                        panel_bytes,
                        n_cols,
                        x: if n_tokens == 1 { x.as_ptr() } else { tiles.as_ptr().add(first * n_cols) },
                        out: out.as_mut_ptr().add(first * w.n_rows + row),
                        out_stride: w.n_rows,
                        n_tokens: (n_tokens - first).min(FLOAT_TOKENS),
                        n_rows: (w.n_rows - row).min(I::PANELS * PANEL_ROWS),
                        add: from > 0,
                    };
                    match width(s.n_tokens) {
                        1 => I::tile::<E, 1>(&s),
                        4 => I::tile::<E, 4>(&s),
                        8 => I::tile::<E, 8>(&s),
                        _ => I::tile::<E, FLOAT_TOKENS>(&s),
                    }
                }
            }
        }
    }
    if n_tokens > 1 {
        TILES.set(tiles);
    }
}

/// Tokens that lie side by side in a tile with `n` of them.
fn width(n: usize) -> usize {
    match n {
        1 => 1,
        2..=4 => 4,
        5..=8 => 8,
        _ => FLOAT_TOKENS,
    }
}

/// Some columns of all tokens, tile by tile: `[tiles][n_cols][width]`. Rows of `x` may be a multiple of 4 KiB apart, which the
/// first cache cannot hold a dozen of.
fn arrange(x: &[f32], row_len: usize, from: usize, n_cols: usize, tiles: &mut Vec<f32>) {
    let n_tokens = x.len() / row_len;
    tiles.resize(n_tokens.next_multiple_of(FLOAT_TOKENS) * COLUMNS, 0.0);
    for (rows, tile) in x.chunks(FLOAT_TOKENS * row_len).zip(tiles.chunks_exact_mut(FLOAT_TOKENS * n_cols)) {
        let n = rows.len() / row_len;
        let width = width(n);
        for t in 0..width {
            // Lanes beyond the last token repeat it and are not stored.
            let row = &rows[t.min(n - 1) * row_len + from..][..n_cols];
            tile.iter_mut().skip(t).step_by(width).zip(row).for_each(|(to, &v)| *to = v);
        }
    }
}
