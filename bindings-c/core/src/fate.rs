//! What becomes of the entries that are not kept: slots and merging.

use ecokv_core::{
    self as ecokv, Dispatch, Evicted, Evictee, Kept, LayerMut, Merge, Policy, Reading, Retain, Slots,
    merge_workspace_len,
};

use crate::layer::*;
use crate::policy::{ecokv_policy_t, read_policy};
use crate::status::*;
use crate::{ptr, ptr::run};

/// Slots: entries that stand for many. Attention treats each as a key and a value whose logit has `ln(mass)` added; a slot of
/// mass 0 is empty.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_slots_t {
    /// `[n][head_dim]`.
    pub keys: *mut f32,
    /// `[n][head_dim]`.
    pub values: *mut f32,
    /// Entries a slot stands for, `[n]`.
    pub mass: *mut f32,
    /// Slots: those of one head, or of all heads one after the other.
    pub n: usize,
}

/// One entry evicted while decoding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_evictee_t {
    /// `[head_dim]`.
    pub key: *const f32,
    /// `[head_dim]`.
    pub value: *const f32,
    /// Elements of both.
    pub head_dim: u32,
    /// Entropy of its attention over the last queries, 0 to 1.
    pub entropy: f32,
    /// Mean entropy of the entries evicted so far.
    pub mean_entropy: f32,
    /// 0.
    pub reserved: u32,
}

/// Attention of one query as it stands after some entries: a softmax that can be continued. Before the first entry: minus
/// infinity, 0 and zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_reading_t {
    /// `sum_i exp(logit_i - max) v_i`, `[head_dim]`; divided by `sum` in the end, it is the output.
    pub out: *mut f32,
    /// Greatest logit so far.
    pub max: f32,
    /// `sum_i exp(logit_i - max)`.
    pub sum: f32,
}

/// Writes the entries that `kept` leaves out into slots, `[n_kv_heads][slots][head_dim]` with the policy's number of slots:
/// after `ecokv_evict_layer` with the same arguments, before the cache is compacted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_retain_layer(
    policy: *const ecokv_policy_t,
    budget: u32,
    layer: *const ecokv_layer_t,
    workspace: *const ecokv_workspace_t,
    kept: *const ecokv_keep_t,
    slots: *const ecokv_slots_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, layer) = unsafe { (read_policy(policy)?, read_layer(layer)?) };
        // SAFETY: passed on.
        let (view, workspace, kept, out) = unsafe {
            (view(&layer)?, read_workspace(workspace)?, read_kept(kept)?, read_slots(slots, view_dim(&layer))?)
        };
        Ok(ecokv::retain_layer(Dispatch::detect(), &chosen.policy, budget, &view, workspace, kept, out)?)
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Workspace of `ecokv_merge_layer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_merge_workspace_size(
    layer: *const ecokv_layer_t,
    size: *mut ecokv_workspace_size_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (layer, out) = unsafe { (read_layer(layer)?, ptr::out(size, "size")?) };
        out.write(sized(merge_workspace_len(shape(&layer), layer.rows))?);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Merges the rows that `kept` leaves out into kept rows, in place, as the policy says; compact afterwards. Of `layer` the
/// shape, `rows`, `starts` and `lens` are read. `keys` and `values` are `[rows][head_dim]`, `counts` is null or the entries
/// each row stands for, `[rows]`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_merge_layer(
    policy: *const ecokv_policy_t,
    layer: *const ecokv_layer_t,
    keys: *mut f32,
    values: *mut f32,
    counts: *mut f32,
    kept: *const ecokv_keep_t,
    workspace: *const ecokv_workspace_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, c) = unsafe { (read_policy(policy)?, read_layer(layer)?) };
        let shape = shape(&c);
        let rule = merge_of(&chosen.policy)?;
        let elements = c.rows.checked_mul(shape.head_dim).ok_or(Failure::new(ECOKV_OVERFLOW, "rows"))?;
        // SAFETY: passed on.
        let (kept, workspace): (Kept<'_>, _) = unsafe { (read_kept(kept)?, read_workspace(workspace)?) };
        // SAFETY: passed on.
        let layer = unsafe {
            LayerMut {
                shape,
                starts: ptr::slice(c.starts, shape.n_kv_heads, "starts")?,
                lens: ptr::slice(c.lens, shape.n_kv_heads, "lens")?,
                keys: ptr::slice_mut(keys, elements, "keys")?,
                values: ptr::slice_mut(values, elements, "values")?,
                counts: ptr::slice_mut(counts, if counts.is_null() { 0 } else { c.rows }, "counts")?,
                attention: &[],
            }
        };
        Ok(ecokv::merge_layer(Dispatch::detect(), rule, layer, kept, workspace)?)
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Writes one entry into the last of a head's slots, as the policy says. A slot that holds `stretch` entries is closed: the
/// two neighbours of the least mass become one, and the last slot is opened anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_slots_absorb(
    policy: *const ecokv_policy_t,
    stretch: u32,
    entry: *const ecokv_evictee_t,
    slots: *const ecokv_slots_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, e) = unsafe { (read_policy(policy)?, ptr::read(entry, "entry")?) };
        let retain = retain_of(&chosen.policy)?;
        let n = e.head_dim as usize;
        // SAFETY: passed on.
        let (key, value, out) =
            unsafe { (ptr::slice(e.key, n, "key")?, ptr::slice(e.value, n, "value")?, read_slots(slots, n)?) };
        let entry = Evictee { key, value, entropy: e.entropy, mean_entropy: e.mean_entropy };
        ecokv::absorb(&retain, stretch, entry, out)?;
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Adds the slots of one head to the attention of one query, `[head_dim]`. Kept rows and slots may come in either order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_slots_read(
    query: *const f32,
    head_dim: u32,
    scale: f32,
    slots: *const ecokv_slots_t,
    reading: *mut ecokv_reading_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        let n = head_dim as usize;
        // SAFETY: passed on.
        let (query, slots) = unsafe { (ptr::slice(query, n, "query")?, read_slots(slots, n)?) };
        // SAFETY: passed on.
        let (mut to, place) = unsafe { (ptr::read(reading, "reading")?, ptr::out(reading, "reading")?) };
        // SAFETY: passed on.
        let out = unsafe { ptr::slice_mut(to.out, n, "out") }?;
        let state = Reading { max: &mut to.max, sum: &mut to.sum, out };
        ecokv::read_slots(Dispatch::detect(), query, scale, (slots.keys, slots.values, slots.mass), state)?;
        place.write(to);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

fn view_dim(layer: &ecokv_layer_t) -> usize {
    layer.head_dim as usize
}

/// # Safety
/// `p` is null or points to slots that are the call's alone for `'a`.
unsafe fn read_slots<'a>(p: *const ecokv_slots_t, head_dim: usize) -> Result<Slots<'a>, Failure> {
    // SAFETY: passed on.
    unsafe {
        let s = ptr::read(p, "slots")?;
        let elements = s.n.checked_mul(head_dim).ok_or(Failure::new(ECOKV_OVERFLOW, "slots"))?;
        Ok(Slots {
            keys: ptr::slice_mut(s.keys, elements, "slot keys")?,
            values: ptr::slice_mut(s.values, elements, "slot values")?,
            mass: ptr::slice_mut(s.mass, s.n, "slot masses")?,
            members: &mut [],
            moments: None,
        })
    }
}

fn merge_of(policy: &Policy) -> Result<Merge, Failure> {
    match policy.evicted {
        Evicted::Merge(rule) => Ok(rule),
        _ => Err(Failure::new(ECOKV_CONFIG, "the policy merges nothing")),
    }
}

fn retain_of(policy: &Policy) -> Result<Retain, Failure> {
    match policy.evicted {
        Evicted::Retain(retain) => Ok(retain),
        _ => Err(Failure::new(ECOKV_CONFIG, "the policy has no slots")),
    }
}
