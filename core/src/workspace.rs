//! Scratch memory: sizes known beforehand, slices given by the caller.

use crate::kernels::{COLUMN_ROWS, LANES, TILE_ROWS};
use crate::{
    Attention, Diversity, Error, Evicted, Importance, LayerShape, Mix, Mmr, Policy, Queries, Readout, Retain, Search,
};

/// Elements of the two workspace slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceLen {
    /// Elements of [`Workspace::f32s`].
    pub f32s: usize,
    /// Elements of [`Workspace::u32s`].
    pub u32s: usize,
}

/// Scratch for one call, contents irrelevant before and unspecified after.
#[derive(Debug)]
pub struct Workspace<'a> {
    /// At least [`WorkspaceLen::f32s`].
    pub f32s: &'a mut [f32],
    /// At least [`WorkspaceLen::u32s`].
    pub u32s: &'a mut [u32],
}

/// Queries whose logits are computed in one pass over the keys of a head that has all rows of the layer. Where the rows
/// are shared by several heads there is room for more.
pub(crate) const QUERY_BLOCK: usize = 8;

/// Elements of a tile's columns.
pub(crate) const fn columns_len(head_dim: usize) -> Option<usize> {
    match head_dim.checked_next_multiple_of(LANES) {
        Some(padded) => padded.checked_mul(COLUMN_ROWS),
        None => None,
    }
}

/// The parts begin at multiples of so many elements: cache lines, for processors whose vectors are as long.
const ALIGN: usize = if cfg!(target_arch = "x86_64") { 16 } else { 1 };

impl Policy {
    /// Workspace for a layer of `shape` with `rows` rows over all heads; `None` if the sizes overflow.
    pub const fn workspace_len(&self, shape: LayerShape, rows: usize) -> Option<WorkspaceLen> {
        match Parts::lens(self, shape, rows) {
            Some(lens) => Some(WorkspaceLen { f32s: lens.f32s, u32s: lens.u32s }),
            None => None,
        }
    }
}

/// The workspace, divided.
pub(crate) struct Parts<'a> {
    /// Final scores, `[rows]`.
    pub scores: &'a mut [f32],
    /// Attention received, `[rows]`; empty if the policy has none.
    pub signal: &'a mut [f32],
    /// Per-head scratch: `QUERY_BLOCK` rows of logits, or two metrics and a row of scratch.
    pub temp: &'a mut [f32],
    /// Widened rows, `[TILE_ROWS][head_dim]`, or `[COLUMN_ROWS][head_dim]` if the policy has attention.
    pub tile: &'a mut [f32],
    /// Covariance times a tile, or a tile's columns, `[head_dim rounded up][COLUMN_ROWS]`; empty if the policy has no attention.
    pub matrix: &'a mut [f32],
    /// `[head_dim]` each; empty if the policy compares keys with nothing.
    pub mean: &'a mut [f32],
    pub direction: &'a mut [f32],
    /// Lengths of the keys, `[rows]`, where [`gathers`](Parts::gathers); empty elsewhere.
    pub norms: &'a mut [f32],
    /// Attention of each query of the window, averaged over the group; head `h` has `[queries][lens[h]]` from
    /// `starts[h] * queries` on. Empty if the policy has no use for it.
    pub window: &'a mut [f32],
    /// Selection keys, `[rows]`.
    pub keys: &'a mut [u32],
    /// Bookkeeping of a choice one by one that does not look at every entry, `[rows]` each; empty elsewhere.
    pub order: &'a mut [u32],
    pub seen: &'a mut [u32],
}

struct Lens {
    rows: usize,
    signal: usize,
    temp: usize,
    tile: usize,
    matrix: usize,
    vector: usize,
    norms: usize,
    window: usize,
    lazy: usize,
    f32s: usize,
    u32s: usize,
}

impl<'a> Parts<'a> {
    pub fn carve(p: &Policy, shape: LayerShape, rows: usize, w: Workspace<'a>) -> Result<Self, Error> {
        let lens = Self::lens(p, shape, rows).ok_or(Error::Overflow("workspace"))?;
        let short = |what, need, got| Error::WorkspaceTooSmall { what, need, got };
        let got = w.f32s.len();
        if got < lens.f32s {
            return Err(short("f32s", lens.f32s, got));
        }
        const LINE: usize = size_of::<[f32; ALIGN]>();
        let skip = if ALIGN > 1 { w.f32s.as_ptr().align_offset(LINE).min(ALIGN - 1) } else { 0 };
        let mut rest = w.f32s.get_mut(skip..).unwrap_or_default();
        let mut take = |n: usize| -> Result<&'a mut [f32], Error> {
            let all = core::mem::take(&mut rest);
            let whole = n.div_ceil(ALIGN).saturating_mul(ALIGN);
            let (head, tail) = all.split_at_mut_checked(whole).ok_or(short("f32s", lens.f32s, got))?;
            rest = tail;
            Ok(head.get_mut(..n).unwrap_or_default())
        };
        let parts = (take(lens.rows)?, take(lens.signal)?, take(lens.temp)?, take(lens.tile)?);
        let matrix = take(lens.matrix)?;
        let vectors = (take(lens.vector)?, take(lens.vector)?);
        let (norms, window) = (take(lens.norms)?, take(lens.window)?);
        let got = w.u32s.len();
        let split = |x: &'a mut [u32], n| x.split_at_mut_checked(n).ok_or(short("u32s", lens.u32s, got));
        let (keys, rest) = split(w.u32s, rows)?;
        let (order, rest) = split(rest, lens.lazy)?;
        let (seen, _) = split(rest, lens.lazy)?;
        Ok(Self {
            scores: parts.0,
            signal: parts.1,
            temp: parts.2,
            tile: parts.3,
            matrix,
            mean: vectors.0,
            direction: vectors.1,
            norms,
            window,
            keys,
            order,
            seen,
        })
    }

    /// Whether the policy needs the two vectors.
    const fn compares(p: &Policy) -> bool {
        !matches!(p.diversity, Diversity::None)
            || matches!(p.importance, Importance::Lag { .. } | Importance::Leverage { .. })
            || matches!(p.evicted, Evicted::Retain(Retain { readout: Readout::Tilt, .. }))
    }

    /// Whether the pass of a window's attention over the keys also gathers what the geometry of the head starts from.
    const fn gathers(p: &Policy) -> bool {
        matches!(p.importance, Importance::Attention(Attention { queries: Queries::Last(_), share_heads: false, .. }))
            && matches!(p.diversity, Diversity::Geometry(_))
            && !matches!(p.mix, Mix::Importance)
    }

    const fn lens(p: &Policy, shape: LayerShape, rows: usize) -> Option<Lens> {
        let attention = matches!(p.importance, Importance::Attention(_));
        let vectors = Self::compares(p);
        let temps = if attention {
            QUERY_BLOCK
        } else if vectors {
            3
        } else {
            0
        };
        let tile_rows = if attention { COLUMN_ROWS } else { TILE_ROWS };
        let (Some(temp), Some(tile)) = (rows.checked_mul(temps), shape.head_dim.checked_mul(tile_rows)) else {
            return None;
        };
        let signal = if attention { rows } else { 0 };
        let vector = if vectors { shape.head_dim } else { 0 };
        let norms = if Self::gathers(p) { rows } else { 0 };
        let Some(columns) = columns_len(shape.head_dim) else { return None };
        let matrix = if attention { columns } else { 0 };
        let Some(window) = rows.checked_mul(p.tile_queries()) else { return None };
        let lazy = match p.diversity {
            Diversity::Mmr(Mmr { search: Search::Lazy | Search::Shortlist(_), .. }) => rows,
            _ => 0,
        };
        let Some(Some(u32s)) = (match lazy.checked_mul(2) {
            Some(lazy) => Some(lazy.checked_add(rows)),
            None => None,
        }) else {
            return None;
        };
        let mut f32s = ALIGN.saturating_sub(1);
        let mut i = 0;
        let parts = [rows, signal, temp, tile, matrix, vector, vector, norms, window];
        while i < parts.len() {
            #[allow(clippy::indexing_slicing)] // const fn: no iterators; `i` is bounded by the loop
            let part = parts[i];
            let Some(part) = part.checked_next_multiple_of(ALIGN) else { return None };
            f32s = match f32s.checked_add(part) {
                Some(sum) => sum,
                None => return None,
            };
            #[allow(clippy::arithmetic_side_effects)] // as above
            {
                i += 1;
            }
        }
        Some(Lens { rows, signal, temp, tile, matrix, vector, norms, window, lazy, f32s, u32s })
    }
}
