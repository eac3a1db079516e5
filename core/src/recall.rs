//! Slots whose entries come back (RetentiveKV): for hosts that archive what they evict.
//!
//! After every step, a host passes each slot's share of the attention, averaged over the query heads of its head, to
//! [`Recall::due`]. Once a slot is due, [`recall`] names the archived entries to restore. The host appends their rows to the
//! cache, takes as many from the slot's mass, marks them as no longer archived, and lets
//! [`evict_layer`](crate::evict_layer) bring the cache back to its budget. The bytes of the archive are the host's to report.

use crate::kernels::{self, Dispatch};
use crate::select::{Cut, rank};
use crate::{Error, Workspace};

/// When the entries of a slot come back, and how many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recall {
    /// Share of the attention that a slot must exceed; default 0.1.
    pub threshold: f32,
    /// In so many steps in a row; default 2.
    pub steps: u32,
    /// Entries that come back at a time.
    pub entries: u32,
}

impl Default for Recall {
    fn default() -> Self {
        Self { threshold: 0.1, steps: 2, entries: 16 }
    }
}

impl Recall {
    /// Counts for every slot of a head in how many steps in a row its share exceeded the threshold, and returns the slot of
    /// the greatest share among those due, whose count begins anew. `shares` and `streaks` are `[slots]`.
    pub fn due(&self, shares: &[f32], streaks: &mut [u32]) -> Option<usize> {
        let mut best = None;
        for (i, (&share, streak)) in shares.iter().zip(streaks.iter_mut()).enumerate() {
            *streak = if share > self.threshold { streak.saturating_add(1) } else { 0 };
            if *streak >= self.steps.max(1) && best.is_none_or(|(_, most)| share > most) {
                best = Some((i, share));
            }
        }
        let (slot, _) = best?;
        if let Some(streak) = streaks.get_mut(slot) {
            *streak = 0;
        }
        Some(slot)
    }
}

/// Writes the archived entries of one slot that the queries of a head look at most, ascending, and returns how many: at most
/// `out.len()`, fewer if the slot has no more. They are ranked by the sum of `q . k` over the queries, the older of equals
/// first.
///
/// `queries` `[group][head_dim]`, `keys` `[archived][head_dim]`, `members` `[archived]` as [`Slots::members`](crate::Slots)
/// has them. The workspace takes `2 archived` and `archived` elements.
///
/// # Errors
/// [`Error::LengthMismatch`] and [`Error::WorkspaceTooSmall`]; nothing was written then.
pub fn recall(
    d: Dispatch,
    queries: &[f32],
    (keys, members): (&[f32], &[u32]),
    slot: u32,
    w: Workspace<'_>,
    out: &mut [u32],
) -> Result<usize, Error> {
    let n = members.len();
    let size = keys.len().checked_div(n).unwrap_or(0);
    if size.checked_mul(n) != Some(keys.len()) {
        return Err(Error::LengthMismatch { what: "archived keys", need: size.saturating_mul(n), got: keys.len() });
    }
    if n == 0 || size == 0 {
        return Ok(0);
    }
    if !queries.len().is_multiple_of(size) {
        return Err(Error::LengthMismatch { what: "queries", need: size, got: queries.len() });
    }
    let f32s = n.checked_mul(2).ok_or(Error::Overflow("workspace"))?;
    for (what, need, got) in [("f32s", f32s, w.f32s.len()), ("u32s", n, w.u32s.len())] {
        if got < need {
            return Err(Error::WorkspaceTooSmall { what, need, got });
        }
    }
    let (sums, rest) = w.f32s.split_at_mut_checked(n).unwrap_or_default();
    let (products, ranks) = (rest.get_mut(..n).unwrap_or_default(), w.u32s.get_mut(..n).unwrap_or_default());
    sums.fill(0.0);
    for query in queries.chunks_exact(size) {
        kernels::dots(d, query, size, keys, products, n);
        kernels::axpy(d, 1.0, products, sums);
    }
    let archived = || members.iter().enumerate().filter(|(_, s)| **s == slot).map(|(i, _)| i);
    for (i, (r, &sum)) in ranks.iter_mut().zip(&*sums).enumerate() {
        *r = rank(sum, i);
    }
    let key = |i: usize| ranks.get(i).copied().unwrap_or(0);
    let count = archived().count().min(out.len());
    let mut cut = Cut::top(archived().map(key), count);
    let chosen = archived().filter(|&i| cut.take(key(i)));
    for (slot, i) in out.iter_mut().zip(chosen) {
        *slot = u32::try_from(i).unwrap_or(u32::MAX);
    }
    Ok(count)
}
