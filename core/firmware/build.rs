//! Hands the linker the memory map of the board, for the one program that is started on it.

use std::{env, fs, path::Path};

const MEMORY: &str = "/* The AN386 image of Arm's MPS2 board: a Cortex-M4 with two banks of static RAM. */
MEMORY {
    FLASH : ORIGIN = 0x00000000, LENGTH = 4M
    RAM   : ORIGIN = 0x20000000, LENGTH = 4M
}
";

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("TARGET").is_ok_and(|target| target.starts_with("thumb")) {
        let out = env::var("OUT_DIR").unwrap_or_default();
        fs::write(Path::new(&out).join("memory.x"), MEMORY)?;
        println!("cargo::rustc-link-search={out}");
        println!("cargo::rustc-link-arg-bin=run=-Tlink.x");
    }
    Ok(())
}
