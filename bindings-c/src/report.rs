//! What a session did and kept.

use ecokv_core_c::{self as core, ecokv_status_t};

use crate::call::{borrow, enter, run};
use crate::engine::write_sized;
use crate::session::ecokv_session_t;
use crate::tokens::copy_out;

/// What a session has done so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ecokv_stats_t {
    /// Nanoseconds in prefill, eviction excluded.
    pub prefill_ns: u64,
    /// Nanoseconds spent scoring, selecting and compacting.
    pub evict_ns: u64,
    /// Nanoseconds in decode steps.
    pub decode_ns: u64,
    /// Prompt positions processed.
    pub prompt_tokens: u64,
    /// Decode steps.
    pub decoded_tokens: u64,
    /// Bytes that the cache would take with every prompt entry kept.
    pub kv_bytes_full: u64,
    /// Bytes of the cache now.
    pub kv_bytes: u64,
    /// Scores that were NaN.
    pub nan_scores: u64,
    /// Positions of the conversation so far: prompts and the tokens that were run.
    pub n_past: u64,
}

/// Timings and sizes so far: `size` is `sizeof(ecokv_stats_t)`, of which no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_stats(
    session: *mut ecokv_session_t,
    stats: *mut ecokv_stats_t,
    size: usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        let (s, n_past) = {
            let state = enter(&session.0, "session")?;
            (state.session.stats(), state.n_past)
        };
        let ns = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let value = ecokv_stats_t {
            prefill_ns: ns(s.prefill),
            evict_ns: ns(s.evict),
            decode_ns: ns(s.decode),
            prompt_tokens: s.prompt_tokens as u64,
            decoded_tokens: s.decoded_tokens as u64,
            kv_bytes_full: s.kv_bytes_full as u64,
            kv_bytes: s.kv_bytes as u64,
            nan_scores: s.nan_scores.into(),
            n_past: n_past as u64,
        };
        // SAFETY: passed on.
        unsafe { write_sized(value, stats, size, "stats") }
    })
}

/// Entries kept after the last prefill, `[n_layers][n_kv_heads]`. `capacity` as in `ecokv_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_kept(
    session: *mut ecokv_session_t,
    kept: *mut u32,
    capacity: usize,
    n_kept: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        let stats = enter(&session.0, "session")?.session.stats();
        let all: Vec<u32> = stats.kept.iter().flatten().map(|&n| n as u32).collect();
        // SAFETY: passed on.
        unsafe { copy_out(&all, kept, capacity, n_kept, "kept") }
    })
}

/// Positions in the conversation of the entries that a head holds now, ascending. Slots, which stand for many entries, are
/// left out. `capacity` as in `ecokv_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_positions(
    session: *mut ecokv_session_t,
    layer: u32,
    kv_head: u32,
    positions: *mut u32,
    capacity: usize,
    n_positions: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        let s = enter(&session.0, "session")?;
        let (layers, head) = (s.session.cache().layers(), kv_head as usize);
        let rows = layers.get(layer as usize).ok_or(core::bad("layer", layers.len() as u32 - 1, layer))?;
        if head >= rows.n_kv_heads() {
            return Err(core::bad("kv_head", rows.n_kv_heads() as u32 - 1, kv_head).into());
        }
        let entries = &rows.positions(head)[rows.slot_bias(head).len()..];
        // SAFETY: passed on.
        unsafe { copy_out(entries, positions, capacity, n_positions, "positions") }
    })
}
