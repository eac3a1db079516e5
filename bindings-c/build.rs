//! Gives the shared library its name: programs ask for the interface they were linked with.

use std::env;

/// `ECOKV_ABI_VERSION`; a test compares them.
const ABI: u32 = 2;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match env::var("CARGO_CFG_TARGET_OS").unwrap_or_default().as_str() {
        "linux" | "android" | "freebsd" => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libecokv.so.{ABI}"),
        "macos" => println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libecokv.{ABI}.dylib"),
        _ => {}
    }
}
