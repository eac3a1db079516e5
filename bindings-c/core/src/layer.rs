//! One layer: sizes, scores, eviction, redundancy.

use core::ffi::c_void;
use core::mem::{MaybeUninit, size_of};

use ecokv_core::{
    self as ecokv, Dispatch, Geometry, Keep, Kept, LayerShape, LayerView, Observation, Redundancy, Report, Rows,
    Workspace, WorkspaceLen,
};
use half::{bf16, f16};

use crate::policy::{bad, ecokv_policy_t, read_policy};
use crate::status::*;
use crate::{ptr, ptr::run};

/// Rows of `float`.
pub const ECOKV_ROWS_F32: u32 = 0;
/// Rows of IEEE half-precision numbers.
pub const ECOKV_ROWS_F16: u32 = 1;
/// Rows of the upper halves of `float`.
pub const ECOKV_ROWS_BF16: u32 = 2;
/// Rows of GGUF's 8-bit blocks, 34 bytes for 32 elements; `head_dim` must be a multiple of 32.
pub const ECOKV_ROWS_Q8_0: u32 = 3;

/// The entry is always kept. It counts against the budget.
pub const ECOKV_TAG_PROTECTED: u8 = 1;
/// The entry comes from an image.
pub const ECOKV_TAG_IMAGE: u8 = 2;

/// `1 - mean e / max e` over the distances `e` of a head's keys to their mean.
pub const ECOKV_REDUNDANCY_MEAN_OF_RANGE: u32 = 0;
/// `||mean key||^2 / mean ||key||^2`.
pub const ECOKV_REDUNDANCY_ENERGY: u32 = 1;
/// The mean squared distance of pairs against its bound.
pub const ECOKV_REDUNDANCY_PAIRS: u32 = 2;
/// `1 - mean e / (largest mean e of the layer's heads)`.
pub const ECOKV_REDUNDANCY_LAYER: u32 = 3;

/// One layer's cache, borrowed for the call. Head `h` owns the rows `starts[h] .. starts[h] + lens[h]`, oldest first; heads
/// may differ in length, may leave gaps between them, and must not overlap. Null stands for what was not recorded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_layer_t {
    /// `sizeof(ecokv_layer_t)`.
    pub struct_size: u32,
    /// KV heads.
    pub n_kv_heads: u32,
    /// Query heads per KV head.
    pub group: u32,
    /// Elements of a key row, and of a value row.
    pub head_dim: u32,
    /// Index of this layer.
    pub layer: u32,
    /// Layers of the model.
    pub n_layers: u32,
    /// Factor on the dot products before softmax; `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// Format of `keys`: one of `ECOKV_ROWS_...`.
    pub key_type: u32,
    /// Format of `values`.
    pub value_type: u32,
    /// Queries in `queries`, per query head.
    pub n_queries: u32,
    /// Rows of `keys`, gaps included.
    pub rows: usize,
    /// First row of each head, `[n_kv_heads]`, ascending.
    pub starts: *const u32,
    /// Rows in use per head, `[n_kv_heads]`.
    pub lens: *const u32,
    /// Keys as attention sees them (after RoPE), `[rows][head_dim]`.
    pub keys: *const c_void,
    /// Values, `[rows][head_dim]`, or null.
    pub values: *const c_void,
    /// The last queries as attention used them, `[n_kv_heads * group][n_queries][head_dim]`, or null.
    pub queries: *const f32,
    /// Attention each entry received from all queries so far and all query heads of its group, `[rows]`, or null.
    pub column_sums: *const f32,
    /// Mean of the queries to expect, `[n_kv_heads * group][head_dim]`, or null: see `ecokv_expected_rotate`.
    pub query_mean: *const f32,
    /// Their covariance, `[n_kv_heads * group][head_dim][head_dim]`, or null.
    pub query_covariance: *const f32,
    /// `||W_O v||_1` of every value, averaged over the query heads of its group, `[rows]`, or null.
    pub output_norms: *const f32,
    /// The host's own scores, `[rows]`, higher is kept, or null.
    pub given: *const f32,
    /// Weight of diversity in each head, `[n_kv_heads]`, or null.
    pub head_weights: *const f32,
    /// Entries each head keeps, `[n_kv_heads]`, or null.
    pub head_budgets: *const u32,
    /// A sum of `ECOKV_TAG_...` for each row, `[rows]`, or null.
    pub tags: *const u8,
}

/// Elements of a workspace.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_workspace_size_t {
    /// Elements of `f32s`.
    pub n_f32s: usize,
    /// Elements of `u32s`.
    pub n_u32s: usize,
}

/// Scratch memory: initialised, contents irrelevant before and unspecified after the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_workspace_t {
    /// `[n_f32s]`.
    pub f32s: *mut f32,
    /// `[n_u32s]`.
    pub u32s: *mut u32,
    /// Elements that are there.
    pub n_f32s: usize,
    /// Elements that are there.
    pub n_u32s: usize,
}

/// The kept entries. Head `h`'s list begins at `indices[starts[h]]` and has `counts[h]` elements, ascending and relative to
/// the head's first row; the other elements of `indices` are left alone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_keep_t {
    /// `[n_indices]`, at least `[rows]`.
    pub indices: *mut u32,
    /// `[n_counts]`, at least `[n_kv_heads]`.
    pub counts: *mut u32,
    /// Elements that are there.
    pub n_indices: usize,
    /// Elements that are there.
    pub n_counts: usize,
}

/// What a call did besides its outputs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_report_t {
    /// Entries protected at the end of each head, after a window was shrunk to the budget.
    pub recent_kept: u32,
    /// Scores that were NaN and therefore ranked last.
    pub nan_scores: u32,
}

/// Workspace of `ecokv_evict_layer`, `ecokv_score_layer` and `ecokv_retain_layer` for a layer of this shape and number of
/// rows; no pointer of the layer is read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_workspace_size(
    policy: *const ecokv_policy_t,
    layer: *const ecokv_layer_t,
    size: *mut ecokv_workspace_size_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, layer, out) = unsafe { (read_policy(policy)?, read_layer(layer)?, ptr::out(size, "size")?) };
        out.write(sized(chosen.policy.workspace_len(shape(&layer), layer.rows))?);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Chooses the entries of one layer to keep: `budget` per KV head on average, protected ones included. A layer whose heads
/// all fit is kept whole. Equal scores keep the older entry; NaN ranks below every number. `report` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_evict_layer(
    policy: *const ecokv_policy_t,
    budget: u32,
    layer: *const ecokv_layer_t,
    workspace: *const ecokv_workspace_t,
    keep: *const ecokv_keep_t,
    report: *mut ecokv_report_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, layer) = unsafe { (read_policy(policy)?, read_layer(layer)?) };
        // SAFETY: passed on.
        let (view, workspace, keep) = unsafe { (view(&layer)?, read_workspace(workspace)?, ptr::read(keep, "keep")?) };
        // SAFETY: passed on.
        let keep = unsafe {
            Keep {
                indices: ptr::slice_mut(keep.indices, keep.n_indices, "indices")?,
                counts: ptr::slice_mut(keep.counts, keep.n_counts, "counts")?,
            }
        };
        // SAFETY: passed on.
        let report = unsafe { ptr::optional_out(report, "report") }?;
        let done = ecokv::evict_layer(Dispatch::detect(), &chosen.policy, budget, &view, workspace, keep)?;
        give(report, done);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Writes the scores `ecokv_evict_layer` would judge by, `[n_scores]`, at least `[rows]`: higher is kept, protected entries
/// are infinite. Scores even a layer that fits its budget. `report` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_score_layer(
    policy: *const ecokv_policy_t,
    budget: u32,
    layer: *const ecokv_layer_t,
    workspace: *const ecokv_workspace_t,
    scores: *mut f32,
    n_scores: usize,
    report: *mut ecokv_report_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, layer) = unsafe { (read_policy(policy)?, read_layer(layer)?) };
        // SAFETY: passed on.
        let (view, workspace, out) =
            unsafe { (view(&layer)?, read_workspace(workspace)?, ptr::slice_mut(scores, n_scores, "scores")?) };
        // SAFETY: passed on.
        let report = unsafe { ptr::optional_out(report, "report") }?;
        let done = ecokv::score_layer(Dispatch::detect(), &chosen.policy, budget, &view, workspace, out)?;
        give(report, done);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Workspace of `ecokv_redundancy_layer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_redundancy_workspace_size(
    layer: *const ecokv_layer_t,
    size: *mut ecokv_workspace_size_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (layer, out) = unsafe { (read_layer(layer)?, ptr::out(size, "size")?) };
        let policy = ecokv::redundancy_policy(Geometry::new(1.0, 1.0));
        out.write(sized(policy.workspace_len(shape(&layer), layer.rows))?);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Writes how much the keys of each head repeat each other, `[n_out]` = `[n_kv_heads]`, 0 (all differ) to 1 (all alike):
/// `alpha` times the redundancy by distance, `kind` being one of `ECOKV_REDUNDANCY_...`, plus `beta` times the mean cosine
/// over pairs of keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_redundancy_layer(
    alpha: f32,
    beta: f32,
    kind: u32,
    layer: *const ecokv_layer_t,
    workspace: *const ecokv_workspace_t,
    redundancies: *mut f32,
    n_out: usize,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        let redundancy = match kind {
            ECOKV_REDUNDANCY_MEAN_OF_RANGE => Redundancy::MeanOfRange,
            ECOKV_REDUNDANCY_ENERGY => Redundancy::Energy,
            ECOKV_REDUNDANCY_PAIRS => Redundancy::Pairs,
            ECOKV_REDUNDANCY_LAYER => Redundancy::Layer,
            other => return Err(bad("kind", ECOKV_REDUNDANCY_LAYER, other)),
        };
        let geometry = Geometry { redundancy, ..Geometry::new(alpha, beta) };
        // SAFETY: passed on.
        let layer = unsafe { read_layer(layer) }?;
        // SAFETY: passed on.
        let (view, workspace, out) = unsafe {
            (view(&layer)?, read_workspace(workspace)?, ptr::slice_mut(redundancies, n_out, "redundancies")?)
        };
        Ok(ecokv::redundancy_layer(Dispatch::detect(), geometry, &view, workspace, out)?)
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// The struct alone, none of its pointers.
///
/// # Safety
/// `p` is null or valid for reading the bytes its `struct_size` says.
pub unsafe fn read_layer(p: *const ecokv_layer_t) -> Result<ecokv_layer_t, Failure> {
    const FIRST: usize = size_of::<ecokv_layer_t>();
    // SAFETY: passed on; zeros are a layer.
    unsafe { ptr::versioned(p, FIRST, "layer") }
}

/// Head layout.
pub fn shape(c: &ecokv_layer_t) -> LayerShape {
    LayerShape { n_kv_heads: c.n_kv_heads as usize, group: c.group as usize, head_dim: c.head_dim as usize }
}

/// Borrows everything the layer points to.
///
/// # Safety
/// Every pointer of `c` is null or valid for reading as many elements as its comment says, for `'a`.
pub unsafe fn view<'a>(c: &ecokv_layer_t) -> Result<LayerView<'a>, Failure> {
    let LayerShape { n_kv_heads, group, head_dim } = shape(c);
    let overflow = |what| Failure::new(ECOKV_OVERFLOW, what);
    let n_heads = n_kv_heads.checked_mul(group).ok_or(overflow("number of heads"))?;
    let mean = n_heads.checked_mul(head_dim).ok_or(overflow("query_mean"))?;
    let covariance = mean.checked_mul(head_dim).ok_or(overflow("query_covariance"))?;
    let n_queries = if c.queries.is_null() { 0 } else { c.n_queries as usize };
    let queries = mean.checked_mul(n_queries).ok_or(overflow("queries"))?;
    // SAFETY: the numbers of elements are those of the comments; the rest is this function's condition.
    unsafe {
        Ok(LayerView {
            shape: shape(c),
            starts: ptr::slice(c.starts, n_kv_heads, "starts")?,
            lens: ptr::slice(c.lens, n_kv_heads, "lens")?,
            keys: rows(c.keys, c.key_type, c.rows, head_dim, "keys")?,
            values: match c.values.is_null() {
                true => None,
                false => Some(rows(c.values, c.value_type, c.rows, head_dim, "values")?),
            },
            #[allow(clippy::needless_update)] // further kinds may come
            observation: Observation {
                n_queries,
                queries: ptr::optional(c.queries, queries, "queries")?,
                column_sums: ptr::optional(c.column_sums, c.rows, "column_sums")?,
                query_mean: ptr::optional(c.query_mean, mean, "query_mean")?,
                query_covariance: ptr::optional(c.query_covariance, covariance, "query_covariance")?,
                output_norms: ptr::optional(c.output_norms, c.rows, "output_norms")?,
                given: ptr::optional(c.given, c.rows, "given")?,
                head_weights: ptr::optional(c.head_weights, n_kv_heads, "head_weights")?,
                head_budgets: ptr::optional(c.head_budgets, n_kv_heads, "head_budgets")?,
                tags: ptr::optional(c.tags, c.rows, "tags")?,
                ..Observation::default()
            },
            scale: c.scale,
            layer: c.layer,
            n_layers: c.n_layers,
        })
    }
}

/// # Safety
/// `p` is null or points to a workspace whose slices are the call's alone for `'a`.
pub unsafe fn read_workspace<'a>(p: *const ecokv_workspace_t) -> Result<Workspace<'a>, Failure> {
    // SAFETY: passed on.
    unsafe {
        let w = ptr::read(p, "workspace")?;
        Ok(Workspace {
            f32s: ptr::slice_mut(w.f32s, w.n_f32s, "f32s")?,
            u32s: ptr::slice_mut(w.u32s, w.n_u32s, "u32s")?,
        })
    }
}

/// # Safety
/// `p` is null or points to lists that can be read for `'a`.
pub unsafe fn read_kept<'a>(p: *const ecokv_keep_t) -> Result<Kept<'a>, Failure> {
    // SAFETY: passed on.
    unsafe {
        let k = ptr::read(p, "kept")?;
        Ok(Kept {
            indices: ptr::slice(k.indices, k.n_indices, "indices")?,
            counts: ptr::slice(k.counts, k.n_counts, "counts")?,
        })
    }
}

/// A size that was asked for.
pub fn sized(len: Option<WorkspaceLen>) -> Result<ecokv_workspace_size_t, Failure> {
    let len = len.ok_or(Failure::new(ECOKV_OVERFLOW, "workspace"))?;
    Ok(ecokv_workspace_size_t { n_f32s: len.f32s, n_u32s: len.u32s })
}

/// # Safety
/// `p` is null or valid for reading `n` rows of `head_dim` elements of that format, for `'a`.
unsafe fn rows<'a>(
    p: *const c_void,
    format: u32,
    n: usize,
    head_dim: usize,
    what: &'static str,
) -> Result<Rows<'a>, Failure> {
    let elements = n.checked_mul(head_dim).ok_or(Failure::new(ECOKV_OVERFLOW, what))?;
    // SAFETY: passed on; a block of Q8_0 is 34 bytes for 32 elements.
    unsafe {
        Ok(match format {
            ECOKV_ROWS_F32 => Rows::F32(ptr::slice(p.cast(), elements, what)?),
            ECOKV_ROWS_F16 => Rows::F16(ptr::slice(p.cast::<f16>(), elements, what)?),
            ECOKV_ROWS_BF16 => Rows::BF16(ptr::slice(p.cast::<bf16>(), elements, what)?),
            ECOKV_ROWS_Q8_0 => {
                let bytes = (elements / 32).checked_mul(34).ok_or(Failure::new(ECOKV_OVERFLOW, what))?;
                Rows::Q8_0(ptr::slice(p.cast(), bytes, what)?)
            }
            other => return Err(bad(what, ECOKV_ROWS_Q8_0, other)),
        })
    }
}

fn give(to: Option<&mut MaybeUninit<ecokv_report_t>>, done: Report) {
    if let Some(to) = to {
        to.write(ecokv_report_t { recent_kept: done.recent_kept, nan_scores: done.nan_scores });
    }
}
