//! C ABI of ecokv. The header is `include/ecokv.h`, generated from this crate and committed.
//!
//! Conventions, for every function there is and will be:
//!
//! - Names are `ecokv_<noun>_<verb>`, macros `ECOKV_...`, types end in `_t`.
//! - Whatever can fail returns an [`Status`] (`ecokv_status_t`), 0 being success. Results go through pointers at the
//!   end of the argument list and are written on success only.
//! - Status numbers are fixed for ever, in ranges by stage; a retired number is not used again. C may pass any number
//!   where a status is expected.
//! - Strings are UTF-8, end in NUL, and belong to the library.
//! - A caller compiled against another header asks [`ecokv_abi_version`] before anything else.
//!
//! The library has no state and starts no threads: any function may be called from any thread at any time.

mod status;

use std::ffi::{CStr, c_char};

pub use status::*;

/// Counts the incompatible changes of this interface. Compare it with what `ecokv_abi_version` returns.
pub const ECOKV_ABI_VERSION: u32 = 1;

/// Version of the library, for people: `major.minor.patch`. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The `ECOKV_ABI_VERSION` the library was built with.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_abi_version() -> u32 {
    ECOKV_ABI_VERSION
}

/// What a status means, in one line without a full stop. Never null, also for a number that is no status.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_status_text(status: Status) -> *const c_char {
    status.text().as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a package version holds no NUL"),
};
