//! Evicting while decoding. One step of every method is the same call, [`evict_layer`](crate::evict_layer), on a cache that
//! has grown past its budget; what a method remembers between steps is kept by the host and carried along by [`compact`]:
//!
//! | method | at every step | remembers |
//! |---|---|---|
//! | H2O, VATP | [`accumulate`] the attention of the new query, evict one | column sums (and positions, for sums per visible query) |
//! | TOVA | evict one by the attention of the new query | nothing |
//! | SnapKV and its kin, R-KV | every so many steps, evict by the attention of the last queries | those queries |
//! | RetentiveKV | evict one, with [`slots_in_use`](crate::Observation::slots_in_use); [`absorb`](crate::absorb) it with its [entropy](crate::entropy_layer) | the last queries, slots, the mean entropy |
//!
//! The last queries must belong to the last entries of every head, as [`Observation::queries`](crate::Observation::queries)
//! says, so as many recent entries have to be protected.

use crate::attention::summed;
use crate::evict::{Job, Kept};
use crate::kernels::{COLUMN_ROWS, Dispatch};
use crate::methods;
use crate::shape::heads;
use crate::workspace::{QUERY_BLOCK, columns_len};
use crate::{Error, LayerShape, LayerView, Workspace, WorkspaceLen};

/// Workspace of [`accumulate`]; `None` if the sizes overflow.
pub const fn accumulate_workspace_len(shape: LayerShape, rows: usize) -> Option<WorkspaceLen> {
    let (Some(logits), Some(tile)) = (rows.checked_mul(QUERY_BLOCK), shape.head_dim.checked_mul(COLUMN_ROWS)) else {
        return None;
    };
    let (Some(columns), Some(all)) = (columns_len(shape.head_dim), logits.checked_add(tile)) else { return None };
    let Some(all) = all.checked_add(columns) else { return None };
    match all.checked_add(rows) {
        Some(f32s) => Some(WorkspaceLen { f32s, u32s: 0 }),
        None => None,
    }
}

/// Adds the attention that every recorded query gives to every entry to running sums, `[rows]`, which then are the
/// [`Observation::column_sums`](crate::Observation::column_sums) of the next call: summed over the query heads of each
/// group, softmax over the entries that the query can see. New entries begin at 0. Rows that belong to no head are left
/// alone.
///
/// # Errors
/// [`Error::MissingObservation`] without queries; [`Error::LengthMismatch`], [`Error::HeadRange`] and
/// [`Error::WorkspaceTooSmall`]. Nothing was changed then.
pub fn accumulate(d: Dispatch, v: &LayerView<'_>, w: Workspace<'_>, sums: &mut [f32]) -> Result<(), Error> {
    let Some(any) = methods::ALL.first() else { return Ok(()) };
    let rows = v.check()?;
    if v.observation.n_queries == 0 {
        return Err(Error::MissingObservation("the last queries"));
    }
    if sums.len() != rows {
        return Err(Error::LengthMismatch { what: "column_sums", need: rows, got: sums.len() });
    }
    let need = accumulate_workspace_len(v.shape, rows).ok_or(Error::Overflow("workspace"))?.f32s;
    let short = Error::WorkspaceTooSmall { what: "f32s", need, got: w.f32s.len() };
    let tile = v.shape.head_dim.saturating_mul(COLUMN_ROWS);
    let (added, rest) = w.f32s.split_at_mut_checked(rows).ok_or(short)?;
    let (tile, rest) = rest.split_at_mut_checked(tile).ok_or(short)?;
    let columns = columns_len(v.shape.head_dim).ok_or(Error::Overflow("workspace"))?;
    let (columns, temp) = rest.split_at_mut_checked(columns).ok_or(short)?;
    if temp.len() < rows.saturating_mul(QUERY_BLOCK) {
        return Err(short);
    }
    // Nothing below can fail.
    let job = Job { d, policy: &any.policy, view: v, budget: u32::MAX, rows, recent: 0, fits: true, slots: 0 };
    for head in v.heads() {
        let added = head.of_mut(added);
        summed(&job, head, v.observation.n_queries, temp, tile, columns, &mut [], None, added);
        for (sum, x) in head.of_mut(sums).iter_mut().zip(added) {
            *sum += *x;
        }
    }
    Ok(())
}

/// Moves what belongs to the kept entries of every head to the front of the head's range: `data` is `[rows][row]`, anything
/// that a cache or a method remembers per entry. What follows the kept entries is left over. Afterwards the lengths of the
/// heads are the kept counts.
///
/// # Errors
/// [`Error::LengthMismatch`] and [`Error::HeadRange`]; nothing was moved then.
pub fn compact<T: Copy>(starts: &[u32], lens: &[u32], kept: Kept<'_>, row: usize, data: &mut [T]) -> Result<(), Error> {
    if starts.len() != lens.len() {
        return Err(Error::LengthMismatch { what: "lens", need: starts.len(), got: lens.len() });
    }
    let rows = data.len().checked_div(row).unwrap_or(0);
    if rows.saturating_mul(row) != data.len() {
        return Err(Error::LengthMismatch { what: "data", need: rows.saturating_mul(row), got: data.len() });
    }
    for (head, (&start, &len)) in (0u32..).zip(starts.iter().zip(lens)) {
        let end = u64::from(start).saturating_add(u64::from(len));
        if usize::try_from(end).map_or(true, |end| end > rows) {
            return Err(Error::HeadRange { head, start, len, rows });
        }
    }
    kept.check(starts, lens, rows)?;
    for head in heads(starts, lens) {
        for (to, &from) in kept.of(head).iter().enumerate().filter(|(to, from)| *to < **from as usize) {
            let at = |i: usize| head.start.saturating_add(i).saturating_mul(row);
            let (before, after) = data.split_at_mut_checked(at(from as usize)).unwrap_or_default();
            let target = before.get_mut(at(to)..).unwrap_or_default();
            target.iter_mut().zip(after.iter().take(row)).for_each(|(to, from)| *to = *from);
        }
    }
    Ok(())
}
