//! A proof by the linker: the panic handler calls a function that does not exist, so this library links only if the
//! optimiser removed every path to it. All arguments come from outside, so that nothing is known at compile time.

#![no_std]

use ecokv_core::{
    Dispatch, Error, Evictee, Geometry, Keep, Kept, LayerBudget, LayerMut, LayerView, Merge, Policy, Reading, Recall,
    Report, Retain, RouteError, RouteLayer, Slot, Slots, Workspace, absorb, accumulate, compact, entropy_layer,
    evict_layer, expected, from_profile, from_rates, merge_layer, methods, owned, parse_route, per_kv_head, read_slots,
    recall, redundancy_layer, retain_layer, score_layer, tilt,
};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn a_panic_is_reachable() -> !;
    }
    // SAFETY: never called: the symbol does not exist.
    unsafe { a_panic_is_reachable() }
}

#[unsafe(no_mangle)]
pub fn evict(p: &Policy, budget: u32, v: &LayerView<'_>, w: Workspace<'_>, keep: Keep<'_>) -> Result<Report, Error> {
    evict_layer(Dispatch::detect(), p, budget, v, w, keep)
}

#[unsafe(no_mangle)]
pub fn evict_scalar(
    p: &Policy,
    budget: u32,
    v: &LayerView<'_>,
    w: Workspace<'_>,
    keep: Keep<'_>,
) -> Result<Report, Error> {
    evict_layer(Dispatch::scalar(), p, budget, v, w, keep)
}

#[unsafe(no_mangle)]
pub fn scores(p: &Policy, budget: u32, v: &LayerView<'_>, w: Workspace<'_>, out: &mut [f32]) -> Result<Report, Error> {
    score_layer(Dispatch::detect(), p, budget, v, w, out)
}

#[unsafe(no_mangle)]
pub fn redundancy(g: Geometry, v: &LayerView<'_>, w: Workspace<'_>, out: &mut [f32]) -> Result<(), Error> {
    redundancy_layer(Dispatch::detect(), g, v, w, out)
}

#[unsafe(no_mangle)]
pub fn read(query: &[f32], scale: f32, slots: (&[f32], &[f32], &[f32]), to: Reading<'_>) -> Result<(), Error> {
    read_slots(Dispatch::detect(), query, scale, slots, to)
}

#[unsafe(no_mangle)]
pub fn workspace(p: &Policy, v: &LayerView<'_>, rows: usize) -> Option<(usize, usize)> {
    p.workspace_len(v.shape, rows).map(|len| (len.f32s, len.u32s))
}

#[unsafe(no_mangle)]
pub fn allocate(b: &LayerBudget, budget: u32, window: u32, seq_len: u32, out: &mut [u32]) -> Result<(), Error> {
    b.allocate(budget, window, seq_len, out)
}

#[unsafe(no_mangle)]
pub fn expect(frequencies: &[f32], cos: &mut [f32], sin: &mut [f32], mean: &mut [f32], covariance: &mut [f32]) {
    expected::mean_rotation(frequencies, 7, 512, cos, sin);
    expected::rotate(expected::Pairing::Halves, cos, sin, mean, covariance);
    expected::rotate(expected::Pairing::Neighbours, cos, sin, mean, covariance);
}

#[unsafe(no_mangle)]
pub fn method(name: &str) -> Option<&'static methods::Method> {
    methods::by_name(name)
}

#[unsafe(no_mangle)]
pub fn retain(
    p: &Policy,
    budget: u32,
    v: &LayerView<'_>,
    w: Workspace<'_>,
    kept: Kept<'_>,
    out: Slots<'_>,
) -> Result<(), Error> {
    retain_layer(Dispatch::detect(), p, budget, v, w, kept, out)
}

#[unsafe(no_mangle)]
pub fn absorb_one(r: &Retain, stretch: u32, entry: Evictee<'_>, slots: Slots<'_>) -> Result<Option<usize>, Error> {
    absorb(r, stretch, entry, slots)
}

#[unsafe(no_mangle)]
pub fn entropies(p: &Policy, v: &LayerView<'_>, w: Workspace<'_>, out: &mut [f32]) -> Result<(), Error> {
    entropy_layer(Dispatch::detect(), p, v, w, out)
}

#[unsafe(no_mangle)]
pub fn read_tilted(s: f32, query: &[f32], slot: Slot<'_>, value: &mut [f32]) -> Result<f32, Error> {
    tilt(Dispatch::detect(), s, query, slot, value)
}

#[unsafe(no_mangle)]
pub fn recalled(
    rule: &Recall,
    (shares, streaks): (&[f32], &mut [u32]),
    queries: &[f32],
    archive: (&[f32], &[u32]),
    w: Workspace<'_>,
    out: &mut [u32],
) -> Result<usize, Error> {
    let Some(slot) = rule.due(shares, streaks) else { return Ok(0) };
    recall(Dispatch::detect(), queries, archive, slot as u32, w, out)
}

#[unsafe(no_mangle)]
pub fn add_up(v: &LayerView<'_>, w: Workspace<'_>, sums: &mut [f32]) -> Result<(), Error> {
    accumulate(Dispatch::detect(), v, w, sums)
}

#[unsafe(no_mangle)]
pub fn compacted(starts: &[u32], lens: &[u32], kept: Kept<'_>, row: usize, data: &mut [f32]) -> Result<(), Error> {
    compact(starts, lens, kept, row, data)
}

#[unsafe(no_mangle)]
pub fn rates(table: &[f32], group: usize, heads: &mut [f32], seq_len: u32, out: &mut [u32]) -> Result<(), Error> {
    per_kv_head(table, group, heads)?;
    from_rates(heads, seq_len, out)
}

#[unsafe(no_mangle)]
pub fn merge(rule: Merge, layer: LayerMut<'_>, kept: Kept<'_>, w: Workspace<'_>) -> Result<(), Error> {
    merge_layer(Dispatch::detect(), rule, layer, kept, w)
}

#[unsafe(no_mangle)]
pub fn profile(scores: &[f32], budget: u32, window: u32, even: f32, out: &mut [u32]) -> Result<(), Error> {
    from_profile(scores, budget, window, even, out)
}

#[unsafe(no_mangle)]
pub fn route(text: &str, n_kv_heads: u32, out: &mut [RouteLayer]) -> Result<(), RouteError> {
    parse_route(text, n_kv_heads, out)
}

#[unsafe(no_mangle)]
pub fn owners(p: &Policy, v: &LayerView<'_>, rows: usize, n: usize) -> Result<usize, Error> {
    let mut w = owned::WorkspaceBuffer::<512, 64>::new(p, v.shape, rows)?;
    let mut keep = owned::KeepBuffer::<64, 4>::new(rows, v.shape.n_kv_heads)?;
    evict_layer(Dispatch::detect(), p, 9, v, w.workspace(), keep.keep())?;
    let budgets = owned::layer_budgets::<32>(LayerBudget::Pyramid { beta: 20 }, n, 9, 1, 99)?;
    Ok(keep.head(n, rows).len() + budgets.len())
}

/// Shows that the proof can fail.
#[cfg(feature = "control")]
#[unsafe(no_mangle)]
pub fn control(x: &[u32], i: usize) -> u32 {
    x[i]
}
