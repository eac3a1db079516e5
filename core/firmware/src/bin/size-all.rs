//! What firmware links to evict by any policy: nothing of the policy is known when it is compiled.

#![no_std]
#![no_main]

use ecokv_core::{Dispatch, Error, Keep, LayerView, Policy, Report, Workspace, evict_layer};

#[unsafe(no_mangle)]
pub fn _start(p: &Policy, budget: u32, v: &LayerView<'_>, w: Workspace<'_>, keep: Keep<'_>) -> Result<Report, Error> {
    evict_layer(Dispatch::scalar(), p, budget, v, w, keep)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
