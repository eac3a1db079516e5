//! Float weights repacked for the vector kernels: panels of 16 rows in the number format of the file, all rows of a column
//! side by side. What the quantised panels of `packed/` are to integers.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod product;

use super::packed::Line;
use super::{PANEL_ROWS, WeightRows};
use crate::memory::{Arena, Piece};
use crate::quant::GgmlType;

/// A whole float matrix, repacked.
#[derive(Debug)]
pub struct Floats {
    ty: GgmlType,
    n_rows: usize,
    n_cols: usize,
    lines: Piece<Line>,
}

/// Some panels of a float matrix.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))] // whose kernels alone read the panels
pub struct FloatRows<'a> {
    pub(super) ty: GgmlType,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    lines: &'a [Line],
}

impl Floats {
    /// Whether there are kernels for panels of `ty`: on x86.
    pub fn pays(ty: GgmlType) -> bool {
        cfg!(target_arch = "x86_64") && matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
    }

    /// Repacks all rows of a float type.
    pub fn new(w: WeightRows<'_>, pool: &crate::threads::Pool) -> Floats {
        Floats::within(&mut Arena::new(0), w, pool)
    }

    /// As [`new`](Floats::new), beside other matrices.
    pub(crate) fn within(memory: &mut Arena, w: WeightRows<'_>, pool: &crate::threads::Pool) -> Floats {
        w.check();
        let n_rows = w.n_rows();
        let per_panel = panel_lines(w.ty, w.n_cols);
        let mut lines = memory.take(n_rows.div_ceil(PANEL_ROWS) * per_panel);
        pool.chunks(&mut lines, per_panel, |i, panel| {
            let rows = w.slice(i * PANEL_ROWS, n_rows.min((i + 1) * PANEL_ROWS));
            match w.ty {
                GgmlType::F32 => pack::<4>(rows, panel),
                _ => pack::<2>(rows, panel),
            }
        });
        Floats { ty: w.ty, n_rows, n_cols: w.n_cols, lines }
    }

    /// Rows of the matrix.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Bytes in memory.
    pub fn n_bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }

    /// Rows `from..to`; `from` is a multiple of 16.
    pub fn rows(&self, from: usize, to: usize) -> FloatRows<'_> {
        let per_panel = panel_lines(self.ty, self.n_cols);
        assert!(from.is_multiple_of(PANEL_ROWS) && from <= to && to <= self.n_rows, "float rows {from}..{to}");
        let lines = &self.lines[from / PANEL_ROWS * per_panel..to.div_ceil(PANEL_ROWS) * per_panel];
        FloatRows { ty: self.ty, n_rows: to - from, n_cols: self.n_cols, lines }
    }
}

/// Cache lines of a panel.
fn panel_lines(ty: GgmlType, n_cols: usize) -> usize {
    (n_cols * PANEL_ROWS * ty.block_bytes()).div_ceil(64)
}

/// Up to 16 rows of numbers of `B` bytes.
fn pack<const B: usize>(rows: WeightRows<'_>, panel: &mut [Line]) {
    for (r, row) in rows.data.chunks_exact(rows.row_bytes).enumerate() {
        let columns = panel.iter_mut().flat_map(|line| line.0.chunks_exact_mut(B * PANEL_ROWS));
        for (column, value) in columns.zip(row.as_chunks::<B>().0) {
            column[B * r..B * (r + 1)].copy_from_slice(value);
        }
    }
}
