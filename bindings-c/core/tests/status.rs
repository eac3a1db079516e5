//! The functions, and the committed header against the constants.

use std::ffi::{CStr, c_char};

use ecokv_core::Error;
use ecokv_core_c::*;

const HEADER: &str = include_str!("../include/ecokv_core.h");

#[test]
fn versions() {
    assert_eq!(text(ecokv_version()), env!("CARGO_PKG_VERSION"));
    assert_eq!(ecokv_abi_version(), ECOKV_ABI_VERSION);
    assert_eq!([0, ECOKV_ABI_OLDEST, ECOKV_ABI_VERSION].map(|v| ecokv_abi_is_compatible(v)), [0, 1, 1]);
    assert_eq!(ecokv_abi_is_compatible(ECOKV_ABI_VERSION + 1), 0);
    assert_eq!(text(ecokv_dispatch_name()), ecokv_core::Dispatch::detect().name());
}

/// Numbers are a promise to compiled callers: this list only ever grows.
#[test]
fn numbers_are_fixed() {
    let expected = "\
        NULL_POINTER 1 MISALIGNED 2 STRUCT_SIZE 3 BAD_VALUE 4 BUFFER_TOO_SMALL 5 BAD_TEXT 6 UNKNOWN_METHOD 7 BUSY 8 \
        CANCELLED 9 BAD_ORDER 10 BUG 11 LENGTH_MISMATCH 100 WORKSPACE_TOO_SMALL 101 BUDGET_TOO_SMALL 102 \
        MISSING_OBSERVATION 103 HEAD_RANGE 104 CONFIG 105 OVERFLOW 106 EVICT_OTHER 199 IO 200 GGUF 201 METADATA 202 \
        TENSOR 203 IMAGE 204 THREADS 205 MODEL 206 PROMPT 207 CONTEXT_FULL 208 ROUTE 209 TEMPLATE 210 \
        REWIND 211 DISPATCH 212 KV_TYPE 213 RUNTIME_OTHER 299 PAIRING_HALVES 0 PAIRING_NEIGHBOURS 1 ROWS_F32 0 ROWS_F16 1 ROWS_BF16 2 ROWS_Q8_0 3 \
        TAG_PROTECTED 1 TAG_IMAGE 2 REDUNDANCY_MEAN_OF_RANGE 0 REDUNDANCY_ENERGY 1 REDUNDANCY_PAIRS 2 \
        REDUNDANCY_LAYER 3 NAME_SIZE 32 SET_WINDOW 1 SET_KEEP_RECENT 2 SET_SINKS 4 SET_HEAD_BUDGET 8 SET_GEOMETRY 16 \
        SET_LAYER_BUDGET 32 SET_SEED 64 SET_GIVEN 128 SET_CENTROID 256 HEADS_UNIFORM 0 HEADS_ADAPTIVE 1 HEADS_TABLE 2 LAYERS_UNIFORM 0 \
        LAYERS_PYRAMID 1 LAYERS_PYRAMID_REFERENCE 2 CENTROID_HEAD 0 CENTROID_MODALITY 1 FATE_DROP 0 FATE_RETAIN 1 FATE_MERGE 2 READS_VALUES 1 \
        READS_COLUMN_SUMS 2 READS_QUERY_MEAN 4 READS_QUERY_COVARIANCE 8 READS_OUTPUT_NORMS 16 READS_GIVEN 32 \
        READS_HEAD_WEIGHTS 64 READS_HEAD_BUDGETS 128 OK 0";
    let words: Vec<&str> = expected.split_whitespace().collect();
    let macros = macros();
    for pair in words.chunks_exact(2) {
        let name = format!("ECOKV_{}", pair[0]);
        let there: Vec<_> = macros.iter().filter(|(n, _)| *n == name).map(|(_, value)| value.as_str()).collect();
        assert_eq!(there, [pair[1]], "{name}");
    }
    assert_eq!(words.len() / 2 + 2, macros.len(), "the header has a number that this list lacks");
}

#[test]
fn errors_have_their_numbers() {
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
        assert_eq!(Failure::from(error).status, number, "{error}");
    }
}

#[test]
fn every_status_has_a_text() {
    let unknown = text(ecokv_status_text(u32::MAX));
    let statuses: Vec<u32> = (0..1000).filter(|&n| text(ecokv_status_text(n)) != unknown).collect();
    assert_eq!(statuses.len(), 12 + 8 + 15);
    let texts: std::collections::HashSet<_> = statuses.iter().map(|&n| text(ecokv_status_text(n))).collect();
    assert_eq!(texts.len(), statuses.len(), "two statuses say the same");
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
