//! C ABI of ecokv. The header is `include/ecokv.h`, generated from this crate and committed; it includes
//! `ecokv_core.h`, whose functions this library has too.
//!
//! The conventions that C sees stand in `cbindgen.toml`, from where they go into the header. For those who change this
//! crate: every exported function is one call of [`call::run`], which catches panics and keeps the error text; handles are
//! reference-counted, so that freeing one while a callback uses it is harmless; what a thread changes is behind a mutex that
//! nobody waits for. `ecokv_core_c::ptr` has all that touches raw pointers.

#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // the header's conventions are the section on safety of every function

pub mod call;
mod engine;
mod generate;
mod prompt;
mod report;
mod sampling;
mod session;
mod state;
mod tokens;

pub use call::ecokv_last_error;
pub use engine::*;
pub use generate::*;
pub use prompt::*;
pub use report::*;
pub use sampling::*;
pub use session::*;
pub use tokens::*;

// The functions of the scoring core are part of this library.
pub use ecokv_core_c as core;
