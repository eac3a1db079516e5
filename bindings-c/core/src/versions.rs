//! What was linked.

use core::ffi::{CStr, c_char};

use ecokv_core::Dispatch;

/// Counts the incompatible changes of this interface. Compare it with what `ecokv_abi_version` returns.
pub const ECOKV_ABI_VERSION: u32 = 2;

/// The oldest interface whose callers this library still serves.
pub const ECOKV_ABI_OLDEST: u32 = 2;

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

/// 1 if a program compiled with this `ECOKV_ABI_VERSION` may use the library, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_abi_is_compatible(version: u32) -> u32 {
    u32::from((ECOKV_ABI_OLDEST..=ECOKV_ABI_VERSION).contains(&version))
}

/// The instruction set that is used: `scalar`, `portable`, `avx2`, `avx512` or `neon`. Results do not depend on it.
/// Never null.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_dispatch_name() -> *const c_char {
    let name = match Dispatch::detect().name() {
        "scalar" => c"scalar",
        "portable" => c"portable",
        "avx2" => c"avx2",
        "avx512" => c"avx512",
        "neon" => c"neon",
        _ => c"other",
    };
    name.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"unknown",
};
