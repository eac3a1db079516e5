//! What firmware links to evict by ECOKV alone.

#![no_std]
#![no_main]

use ecokv_core::{Dispatch, Error, Keep, LayerView, Policy, Report, Workspace, evict_layer, methods};

const ECOKV: Policy = {
    let mut i = 0;
    while !matches!(methods::ALL[i].name.as_bytes(), b"ecokv") {
        i += 1;
    }
    methods::ALL[i].policy
};

#[unsafe(no_mangle)]
pub fn _start(budget: u32, v: &LayerView<'_>, w: Workspace<'_>, keep: Keep<'_>) -> Result<Report, Error> {
    evict_layer(Dispatch::scalar(), &ECOKV, budget, v, w, keep)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
