//! A proof by the linker: the panic handler calls a function that does not exist, so this library links only if the
//! optimiser removed every path to it. All arguments come from outside, so that nothing is known at compile time.

#![no_std]

use ecokv_core::{
    Dispatch, Error, Keep, LayerBudget, LayerView, Policy, Report, Workspace, evict_layer, expected, methods, score_layer,
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
pub fn evict_scalar(p: &Policy, budget: u32, v: &LayerView<'_>, w: Workspace<'_>, keep: Keep<'_>) -> Result<Report, Error> {
    evict_layer(Dispatch::scalar(), p, budget, v, w, keep)
}

#[unsafe(no_mangle)]
pub fn scores(p: &Policy, budget: u32, v: &LayerView<'_>, w: Workspace<'_>, out: &mut [f32]) -> Result<Report, Error> {
    score_layer(Dispatch::detect(), p, budget, v, w, out)
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

/// Shows that the proof can fail.
#[cfg(feature = "control")]
#[unsafe(no_mangle)]
pub fn control(x: &[u32], i: usize) -> u32 {
    x[i]
}
