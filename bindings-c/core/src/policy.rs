//! A policy is a method and what is changed about it.

use core::ffi::c_char;
use core::mem::size_of;

use ecokv_core::{Diversity, Evicted, HeadBudget, Importance, LayerBudget, Mix, Policy, Reference, methods};

use crate::status::*;
use crate::{ptr, ptr::run};

/// Bytes of a method's name, its NUL included.
pub const ECOKV_NAME_SIZE: usize = 32;

/// `window` replaces the method's: so many of the last queries are looked at, where the method looks at a window, and so
/// many of the last entries kept, fewer where the budget is small.
pub const ECOKV_SET_WINDOW: u32 = 1;
/// `keep_recent` entries at the end are kept exactly, whatever the window.
pub const ECOKV_SET_KEEP_RECENT: u32 = 2;
/// `sinks` entries at the start are kept.
pub const ECOKV_SET_SINKS: u32 = 4;
/// `head_budget` (and `floor`) replace how heads share the budget.
pub const ECOKV_SET_HEAD_BUDGET: u32 = 8;
/// `alpha` and `beta` weigh Euclidean and angular diversity; refused for a method that uses neither.
pub const ECOKV_SET_GEOMETRY: u32 = 16;
/// `layer_budget` (and `pyramid_beta`) replace how layers share the budget.
pub const ECOKV_SET_LAYER_BUDGET: u32 = 32;
/// `seed` of a random method; others have none.
pub const ECOKV_SET_SEED: u32 = 64;
/// Entries are scored by the host, in `given` of the layer; the method adds protection, budgets and fate.
pub const ECOKV_SET_GIVEN: u32 = 128;
/// `centroid` replaces what Euclidean diversity is measured from; refused for a method that does not use it.
pub const ECOKV_SET_CENTROID: u32 = 256;

/// Every head keeps the budget.
pub const ECOKV_HEADS_UNIFORM: u32 = 0;
/// The best entries of the layer, after every head took its best `floor` of the budget (AdaKV; published: 0.2).
pub const ECOKV_HEADS_ADAPTIVE: u32 = 1;
/// `head_budgets` of the layer.
pub const ECOKV_HEADS_TABLE: u32 = 2;

/// The same in every layer.
pub const ECOKV_LAYERS_UNIFORM: u32 = 0;
/// From many at the bottom to few at the top, exactly (PyramidKV); `pyramid_beta` is the steepness (published: 20).
pub const ECOKV_LAYERS_PYRAMID: u32 = 1;
/// As PyramidKV's authors compute it: up to 15 % more in all.
pub const ECOKV_LAYERS_PYRAMID_REFERENCE: u32 = 2;

/// The mean key of the head.
pub const ECOKV_CENTROID_HEAD: u32 = 0;
/// The mean key of the entries of the same kind: those tagged `ECOKV_TAG_IMAGE`, and the others.
pub const ECOKV_CENTROID_MODALITY: u32 = 1;

/// The rest is forgotten.
pub const ECOKV_FATE_DROP: u32 = 0;
/// The rest is summarised in slots: `ecokv_retain_layer`.
pub const ECOKV_FATE_RETAIN: u32 = 1;
/// The rest is merged into what is kept: `ecokv_merge_layer`.
pub const ECOKV_FATE_MERGE: u32 = 2;

/// `values` of the layer.
pub const ECOKV_READS_VALUES: u32 = 1;
/// `column_sums` of the layer.
pub const ECOKV_READS_COLUMN_SUMS: u32 = 2;
/// `query_mean` of the layer.
pub const ECOKV_READS_QUERY_MEAN: u32 = 4;
/// `query_covariance` of the layer.
pub const ECOKV_READS_QUERY_COVARIANCE: u32 = 8;
/// `output_norms` of the layer.
pub const ECOKV_READS_OUTPUT_NORMS: u32 = 16;
/// `given` of the layer.
pub const ECOKV_READS_GIVEN: u32 = 32;
/// `head_weights` of the layer.
pub const ECOKV_READS_HEAD_WEIGHTS: u32 = 64;
/// `head_budgets` of the layer.
pub const ECOKV_READS_HEAD_BUDGETS: u32 = 128;

/// How a layer decides what it keeps: a named method, and what is changed about it. Zeros but for size and name are the
/// method as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_policy_t {
    /// `sizeof(ecokv_policy_t)`.
    pub struct_size: u32,
    /// Which of the fields below count: a sum of `ECOKV_SET_...`.
    pub set: u32,
    /// Name of the method, ending in NUL.
    pub method: [c_char; ECOKV_NAME_SIZE],
    /// `ECOKV_SET_SEED`.
    pub seed: u64,
    /// `ECOKV_SET_WINDOW`, entries.
    pub window: u32,
    /// `ECOKV_SET_KEEP_RECENT`, entries.
    pub keep_recent: u32,
    /// `ECOKV_SET_SINKS`, entries.
    pub sinks: u32,
    /// `ECOKV_SET_HEAD_BUDGET`: one of `ECOKV_HEADS_...`.
    pub head_budget: u32,
    /// Share of the budget every head is sure of, 0 to 1.
    pub floor: f32,
    /// `ECOKV_SET_GEOMETRY`.
    pub alpha: f32,
    /// `ECOKV_SET_GEOMETRY`.
    pub beta: f32,
    /// `ECOKV_SET_LAYER_BUDGET`: one of `ECOKV_LAYERS_...`.
    pub layer_budget: u32,
    /// Steepness of a pyramid, at least 1.
    pub pyramid_beta: u32,
    /// `ECOKV_SET_CENTROID`: one of `ECOKV_CENTROID_...`.
    pub centroid: u32,
}

/// What a policy reads besides the keys, and what it does with the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_needs_t {
    /// Last queries of every query head; 0 if none are read.
    pub window_queries: u32,
    /// A sum of `ECOKV_READS_...`.
    pub reads: u32,
    /// One of `ECOKV_FATE_...`.
    pub fate: u32,
    /// Slots per head, for `ECOKV_FATE_RETAIN`.
    pub slots: u32,
}

/// A named method.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_method_t {
    /// Name, ending in NUL.
    pub name: [c_char; ECOKV_NAME_SIZE],
    /// How it chooses, in a line.
    pub summary: ecokv_text_t,
    /// Paper and code it follows.
    pub source: ecokv_text_t,
    /// How it is checked.
    pub proof: ecokv_text_t,
}

/// Number of methods.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_method_count() -> usize {
    methods::ALL.len()
}

/// The method at `index`, below `ecokv_method_count()`. Names last; their order does not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_method_get(index: usize, method: *mut ecokv_method_t) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let out = unsafe { ptr::out(method, "method") }?;
        let n = methods::ALL.len() as u64;
        let m = methods::ALL.get(index).ok_or(Failure::sizes(ECOKV_BAD_VALUE, "index", n, index as u64))?;
        let mut name = [0; ECOKV_NAME_SIZE];
        for (to, from) in name.iter_mut().take(ECOKV_NAME_SIZE.saturating_sub(1)).zip(m.name.bytes()) {
            *to = from as c_char; // ASCII
        }
        out.write(ecokv_method_t { name, summary: m.summary.into(), source: m.source.into(), proof: m.proof.into() });
        Ok(())
    };
    // SAFETY: null.
    unsafe { run(core::ptr::null_mut(), body) }
}

/// What the host has to record for a policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_policy_needs(
    policy: *const ecokv_policy_t,
    needs: *mut ecokv_needs_t,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, out) = unsafe { (read_policy(policy)?, ptr::out(needs, "needs")?) };
        let n = chosen.policy.needs();
        let reads = [
            (n.values, ECOKV_READS_VALUES),
            (n.column_sums, ECOKV_READS_COLUMN_SUMS),
            (n.query_mean, ECOKV_READS_QUERY_MEAN),
            (n.query_covariance, ECOKV_READS_QUERY_COVARIANCE),
            (n.output_norms, ECOKV_READS_OUTPUT_NORMS),
            (n.given, ECOKV_READS_GIVEN),
            (n.head_weights, ECOKV_READS_HEAD_WEIGHTS),
            (n.head_budgets, ECOKV_READS_HEAD_BUDGETS),
        ];
        let (fate, slots) = match chosen.policy.evicted {
            Evicted::Drop => (ECOKV_FATE_DROP, 0),
            Evicted::Retain(r) => (ECOKV_FATE_RETAIN, r.slots),
            Evicted::Merge(_) => (ECOKV_FATE_MERGE, 0),
        };
        out.write(ecokv_needs_t {
            window_queries: u32::try_from(n.window_queries).unwrap_or(u32::MAX),
            reads: reads.iter().filter(|(read, _)| *read).fold(0, |all, (_, bit)| all | bit),
            fate,
            slots,
        });
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Writes the budget of every layer, `[n_layers]`, in entries per KV head, protected ones included: `budget` is the mean
/// over the layers, `seq_len` the entries a layer holds now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_layer_budgets(
    policy: *const ecokv_policy_t,
    budget: u32,
    seq_len: u32,
    n_layers: usize,
    budgets: *mut u32,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (chosen, out) = unsafe { (read_policy(policy)?, ptr::slice_mut(budgets, n_layers, "budgets")?) };
        let window = chosen.policy.protect.recent.entries();
        Ok(chosen.layer_budget.allocate(budget, window, seq_len, out)?)
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Turns a profile of head scores into entries per head (SparseMM): `scores` and `budgets` `[n_heads]`, any set of heads that
/// shares a budget. `budget` is the mean per head, `window` included; every head gets the window and `even` (0 to 1) of the
/// rest, what remains is divided in proportion to the scores. The total is exact.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_head_budgets(
    scores: *const f32,
    n_heads: usize,
    budget: u32,
    window: u32,
    even: f32,
    budgets: *mut u32,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (scores, out) =
            unsafe { (ptr::slice(scores, n_heads, "scores")?, ptr::slice_mut(budgets, n_heads, "budgets")?) };
        Ok(ecokv_core::from_profile(scores, budget, window, even, out)?)
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// A policy of C's, understood.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// Name of the method.
    pub method: &'static str,
    /// The choice inside a layer.
    pub policy: Policy,
    /// The choice between layers.
    pub layer_budget: LayerBudget,
}

/// Understands a policy.
///
/// # Safety
/// `p` is null or valid for reading the bytes its `struct_size` says.
pub unsafe fn read_policy(p: *const ecokv_policy_t) -> Result<Chosen, Failure> {
    const FIRST: usize = size_of::<ecokv_policy_t>();
    // SAFETY: passed on; zeros are a policy.
    let c = unsafe { ptr::versioned(p, FIRST, "policy") }?;
    // SAFETY: an array of that many bytes.
    let name = unsafe { ptr::text(c.method.as_ptr(), ECOKV_NAME_SIZE, "method") }?;
    let method = methods::by_name(name).ok_or(Failure::new(ECOKV_UNKNOWN_METHOD, "method"))?;
    let known = (ECOKV_SET_CENTROID << 1).wrapping_sub(1);
    if c.set & !known != 0 {
        return Err(Failure::sizes(ECOKV_BAD_VALUE, "set", known.into(), c.set.into()));
    }
    let is_set = |bit: u32| c.set & bit != 0;
    let (mut policy, mut layer_budget) = (method.policy, method.layer_budget);
    if is_set(ECOKV_SET_GIVEN) {
        policy.importance = Importance::Given;
        policy.diversity = Diversity::None;
        policy.mix = Mix::Importance;
    }
    if is_set(ECOKV_SET_WINDOW) {
        policy = policy.with_window(c.window);
    }
    if is_set(ECOKV_SET_KEEP_RECENT) {
        policy = policy.with_keep_recent(c.keep_recent);
    }
    if is_set(ECOKV_SET_SINKS) {
        policy = policy.with_sinks(c.sinks);
    }
    if is_set(ECOKV_SET_SEED) {
        policy = policy.with_seed(c.seed);
    }
    if is_set(ECOKV_SET_GEOMETRY) {
        let unused = Failure::new(ECOKV_CONFIG, "alpha and beta: the method has no such diversity");
        policy = policy.with_geometry(c.alpha, c.beta).ok_or(unused)?;
    }
    if is_set(ECOKV_SET_CENTROID) {
        let reference = match c.centroid {
            ECOKV_CENTROID_HEAD => Reference::Mean,
            ECOKV_CENTROID_MODALITY => Reference::Modality,
            other => return Err(bad("centroid", ECOKV_CENTROID_MODALITY, other)),
        };
        let unused = Failure::new(ECOKV_CONFIG, "centroid: the method does not measure Euclidean distance");
        policy = policy.with_reference(reference).ok_or(unused)?;
    }
    if is_set(ECOKV_SET_HEAD_BUDGET) {
        policy = policy.with_head_budget(match c.head_budget {
            ECOKV_HEADS_UNIFORM => HeadBudget::Uniform,
            ECOKV_HEADS_ADAPTIVE => HeadBudget::Adaptive { floor: c.floor },
            ECOKV_HEADS_TABLE => HeadBudget::Table,
            other => return Err(bad("head_budget", ECOKV_HEADS_TABLE, other)),
        });
    }
    if is_set(ECOKV_SET_LAYER_BUDGET) {
        layer_budget = match c.layer_budget {
            ECOKV_LAYERS_UNIFORM => LayerBudget::Uniform,
            ECOKV_LAYERS_PYRAMID => LayerBudget::Pyramid { beta: c.pyramid_beta },
            ECOKV_LAYERS_PYRAMID_REFERENCE => LayerBudget::PyramidReference { beta: c.pyramid_beta },
            other => return Err(bad("layer_budget", ECOKV_LAYERS_PYRAMID_REFERENCE, other)),
        };
    }
    Ok(Chosen { method: method.name, policy, layer_budget })
}

/// A choice that does not exist; `last` is the greatest that does.
pub fn bad(what: &'static str, last: u32, got: u32) -> Failure {
    Failure::sizes(ECOKV_BAD_VALUE, what, last.into(), got.into())
}
