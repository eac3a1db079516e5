//! C ABI of `ecokv-core`. The header is `include/ecokv_core.h`, generated from this crate and committed.
//!
//! The conventions that C sees stand in `cbindgen.toml`, from where they go into the header. For those who change this
//! crate: a type has one name, the one C knows; `ptr.rs` has all that touches raw pointers; every other file turns a
//! plain struct into borrowed slices, calls `ecokv-core`, and maps its error. No function may panic: `.ci/bindings` looks
//! for the symbol that the panic handler below would need.

#![no_std]
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // the header's conventions are the section on safety of every function
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod expected;
mod fate;
mod layer;
mod policy;
pub mod ptr;
mod rows;
mod status;
mod versions;

pub use expected::*;
pub use fate::*;
pub use layer::*;
pub use policy::*;
pub use rows::*;
pub use status::*;
pub use versions::*;

/// Nothing calls this. If something did, the library would miss the symbol and could not be linked.
#[cfg(feature = "freestanding")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        fn ecokv_a_panic_is_reachable() -> !;
    }
    // SAFETY: never called: the symbol does not exist.
    unsafe { ecokv_a_panic_is_reachable() }
}
