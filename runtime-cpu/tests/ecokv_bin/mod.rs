//! Runs the built command.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The command with arguments.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ecokv"));
    command.args(args);
    command
}

/// Runs it to the end.
pub fn ecokv(args: &[&str]) -> Output {
    command(args).output().expect("the command starts")
}

/// Standard output of a run that must succeed.
pub fn stdout(args: &[&str]) -> String {
    let output = ecokv(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A file of the repository.
pub fn repo(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    root.to_str().expect("UTF-8").to_owned()
}

/// A path for a test's own file. Names are unique over the tests of one program.
pub fn scratch(name: &str, bytes: &[u8]) -> String {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    std::fs::create_dir_all(&dir).expect("a folder for test files");
    let path = dir.join(name);
    std::fs::write(&path, bytes).expect("a test file");
    path.to_str().expect("UTF-8").to_owned()
}
