//! The `ecokv` command.
fn main() {}
