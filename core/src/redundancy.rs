//! How much the keys of each head repeat each other.

use crate::evict::Job;
use crate::policy::{Protect, Recent};
use crate::workspace::Parts;
use crate::{
    Dispatch, Diversity, Error, Evicted, Geometry, HeadBudget, Importance, LayerView, Mix, Policy, Workspace, geometry,
};

/// What [`redundancy_layer`] runs: its workspace is [`Policy::workspace_len`] of this.
pub const fn redundancy_policy(g: Geometry) -> Policy {
    Policy {
        importance: Importance::None,
        diversity: Diversity::Geometry(g),
        mix: Mix::HeadRedundancy,
        protect: Protect { sinks: 0, recent: Recent::Window(0), text_first: false },
        head_budget: HeadBudget::Uniform,
        evicted: Evicted::Drop,
    }
}

/// Writes the redundancy `rho` of every head, `[n_kv_heads]`, 0 (all keys differ) to 1 (all alike): the number by which
/// [`Mix::HeadRedundancy`] weighs diversity. A host can share its budget by it, or leave a head of high redundancy to a
/// smaller one. An empty head has 0.
///
/// # Errors
/// As [`evict_layer`](crate::evict_layer).
pub fn redundancy_layer(
    d: Dispatch,
    g: Geometry,
    v: &LayerView<'_>,
    w: Workspace<'_>,
    out: &mut [f32],
) -> Result<(), Error> {
    let policy = redundancy_policy(g);
    let job = Job::new(d, &policy, u32::MAX, v)?;
    if out.len() != v.shape.n_kv_heads {
        return Err(Error::LengthMismatch { what: "redundancies", need: v.shape.n_kv_heads, got: out.len() });
    }
    let mut parts = Parts::carve(&policy, v.shape, job.rows, w)?;
    // Nothing below can fail.
    let widest = geometry::widest(&job, &mut parts);
    for (head, rho) in v.heads().zip(out) {
        *rho = if head.len == 0 { 0.0 } else { geometry::fill(&job, head, g, widest, &mut parts) };
    }
    Ok(())
}
