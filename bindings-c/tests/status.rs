//! The functions, and the committed header against the constants.

use std::ffi::{CStr, c_char};

use ecokv_c::*;
use ecokv_core::Error;

const HEADER: &str = include_str!("../include/ecokv.h");

#[test]
fn versions() {
    assert_eq!(text(ecokv_version()), env!("CARGO_PKG_VERSION"));
    assert_eq!(ecokv_abi_version(), ECOKV_ABI_VERSION);
}

#[test]
fn header_macros_are_the_constants() {
    let expected = [
        ("ECOKV_ABI_VERSION", ECOKV_ABI_VERSION),
        ("ECOKV_OK", ECOKV_OK),
        ("ECOKV_LENGTH_MISMATCH", ECOKV_LENGTH_MISMATCH),
        ("ECOKV_WORKSPACE_TOO_SMALL", ECOKV_WORKSPACE_TOO_SMALL),
        ("ECOKV_BUDGET_TOO_SMALL", ECOKV_BUDGET_TOO_SMALL),
        ("ECOKV_MISSING_OBSERVATION", ECOKV_MISSING_OBSERVATION),
        ("ECOKV_HEAD_RANGE", ECOKV_HEAD_RANGE),
        ("ECOKV_CONFIG", ECOKV_CONFIG),
        ("ECOKV_OVERFLOW", ECOKV_OVERFLOW),
        ("ECOKV_EVICT_OTHER", ECOKV_EVICT_OTHER),
    ];
    assert_eq!(macros(), expected.map(|(name, value)| (name, value.to_string())));
}

/// Numbers are a promise to compiled callers: this list only ever grows.
#[test]
fn status_numbers_are_fixed() {
    let errors = [
        (Error::LengthMismatch { what: "keys", need: 2, got: 1 }, 100),
        (Error::WorkspaceTooSmall { what: "f32s", need: 2, got: 1 }, 101),
        (Error::BudgetTooSmall { protected: 2, budget: 1 }, 102),
        (Error::MissingObservation("values"), 103),
        (Error::HeadRange { head: 0, start: 1, len: 2, rows: 2 }, 104),
        (Error::Config("beta"), 105),
        (Error::Overflow("rows"), 106),
    ];
    for (error, number) in errors {
        assert_eq!(Status::from(error), Status(number), "{error}");
    }
}

#[test]
fn every_number_has_a_text() {
    let unknown = text(ecokv_status_text(Status(u32::MAX)));
    let mut seen = vec![unknown];
    for (name, value) in macros() {
        if name == "ECOKV_ABI_VERSION" {
            continue;
        }
        let text = text(ecokv_status_text(Status(value.parse().unwrap())));
        assert!(!seen.contains(&text), "{name}: {text}");
        seen.push(text);
    }
    for number in 0..1000 {
        assert!(!text(ecokv_status_text(Status(number))).is_empty());
    }
}

/// The numeric macros of the header, in its order.
fn macros() -> Vec<(&'static str, String)> {
    let define = |line: &'static str| line.strip_prefix("#define ")?.split_once(' ');
    HEADER.lines().filter_map(define).map(|(name, value)| (name, value.trim().to_owned())).collect()
}

fn text(s: *const c_char) -> &'static str {
    // SAFETY: the functions return strings of static lifetime that end in NUL.
    unsafe { CStr::from_ptr(s) }.to_str().unwrap()
}
