//! Moving rows of any width: what is left to do when the kept entries are known.

use core::ffi::c_void;

use crate::layer::{ecokv_keep_t, read_kept};
use crate::status::*;
use crate::{ptr, ptr::run};

/// Moves the kept rows of every head to the front of the head, in place: afterwards head `h` owns the rows
/// `starts[h] .. starts[h] + counts[h]`. Call it for keys, values and whatever else has a row per entry; rows are
/// `[rows][row_bytes]`, of any content. `kept` is as `ecokv_evict_layer` wrote it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_compact(
    data: *mut c_void,
    row_bytes: usize,
    rows: usize,
    starts: *const u32,
    n_kv_heads: usize,
    kept: *const ecokv_keep_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        let bytes = rows.checked_mul(row_bytes).ok_or(Failure::new(ECOKV_OVERFLOW, "rows"))?;
        // SAFETY: passed on.
        let (data, lists) =
            unsafe { (ptr::slice_mut(data.cast::<u8>(), bytes, "data")?, Lists::new(starts, n_kv_heads, kept, rows)?) };
        let data = data.as_mut_ptr();
        for head in lists.heads() {
            for (to, &from) in (head.start..).zip(head.kept) {
                let from = head.start.saturating_add(from as usize);
                // SAFETY: `from` was checked to be below `rows`, and `to` is not above it: lists ascend from 0.
                unsafe { core::ptr::copy(row(data, from, row_bytes), row(data, to, row_bytes), row_bytes) };
            }
        }
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Copies the kept rows of all heads one after the other: `to` is `[sum of counts][row_bytes]`, of `to_bytes` bytes or more,
/// and must not overlap `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_gather(
    data: *const c_void,
    row_bytes: usize,
    rows: usize,
    starts: *const u32,
    n_kv_heads: usize,
    kept: *const ecokv_keep_t,
    to: *mut c_void,
    to_bytes: usize,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        let bytes = rows.checked_mul(row_bytes).ok_or(Failure::new(ECOKV_OVERFLOW, "rows"))?;
        // SAFETY: passed on.
        let (data, lists) =
            unsafe { (ptr::slice(data.cast::<u8>(), bytes, "data")?, Lists::new(starts, n_kv_heads, kept, rows)?) };
        let n = lists.heads().fold(0usize, |n, head| n.saturating_add(head.kept.len()));
        let need = n.checked_mul(row_bytes).ok_or(Failure::new(ECOKV_OVERFLOW, "kept rows"))?;
        if to_bytes < need {
            return Err(Failure::sizes(ECOKV_BUFFER_TOO_SMALL, "to", need as u64, to_bytes as u64));
        }
        // SAFETY: passed on.
        let to = unsafe { ptr::slice_mut(to.cast::<u8>(), need, "to") }?;
        let kept = lists.heads().flat_map(|head| head.kept.iter().map(move |&i| head.start.saturating_add(i as usize)));
        let (data, to) = (data.as_ptr().cast_mut(), to.as_mut_ptr());
        for (at, from) in kept.enumerate() {
            let (from, to) = (row(data, from, row_bytes), row(to, at, row_bytes));
            // SAFETY: `from` was checked to be below `rows`; `to` holds as many rows as there are kept entries.
            unsafe { core::ptr::copy_nonoverlapping(from, to, row_bytes) };
        }
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// The kept lists of all heads, checked: ascending, and inside `rows`.
struct Lists<'a> {
    starts: &'a [u32],
    counts: &'a [u32],
    indices: &'a [u32],
}

#[derive(Clone, Copy)]
struct List<'a> {
    start: usize,
    kept: &'a [u32],
}

impl<'a> Lists<'a> {
    /// # Safety
    /// The pointers are null or valid for reading for `'a`.
    unsafe fn new(
        starts: *const u32,
        n_kv_heads: usize,
        kept: *const ecokv_keep_t,
        rows: usize,
    ) -> Result<Self, Failure> {
        // SAFETY: passed on.
        let (starts, kept) = unsafe { (ptr::slice(starts, n_kv_heads, "starts")?, read_kept(kept)?) };
        let sizes =
            |what, need: usize, got: usize| Failure::sizes(ECOKV_LENGTH_MISMATCH, what, need as u64, got as u64);
        let short = Err(sizes("counts", n_kv_heads, kept.counts.len()));
        let Some(counts) = kept.counts.get(..n_kv_heads) else { return short };
        let lists = Self { starts, counts, indices: kept.indices };
        for (head, ((list, &start), &count)) in (0u32..).zip(lists.heads().zip(starts).zip(counts)) {
            let ascending = list.kept.iter().zip(list.kept.iter().skip(1)).all(|(a, b)| a < b);
            let end =
                list.kept.last().map_or(0, |&last| u64::from(start).saturating_add(last.into()).saturating_add(1));
            if list.kept.len() != count as usize || !ascending || end > rows as u64 {
                return Err(Failure { head, ..Failure::sizes(ECOKV_HEAD_RANGE, "kept entries", end, rows as u64) });
            }
        }
        Ok(lists)
    }

    /// A list that does not fit `indices` is empty.
    fn heads(&self) -> impl Iterator<Item = List<'a>> {
        let indices = self.indices;
        self.starts.iter().zip(self.counts).map(move |(&start, &count)| {
            let start = start as usize;
            List { start, kept: indices.get(start..start.saturating_add(count as usize)).unwrap_or_default() }
        })
    }
}

/// Where row `i` begins.
fn row(data: *mut u8, i: usize, row_bytes: usize) -> *mut u8 {
    data.wrapping_add(i.wrapping_mul(row_bytes))
}
