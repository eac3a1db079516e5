//! The status numbers, and what goes with them.

use core::ffi::{CStr, c_char};

use ecokv_core::Error;

/// Outcome of a call: 0 done, 1 to 99 misuse of the interface, 100 to 199 choosing cache entries, 200 to 299 running
/// models. Numbers are fixed for ever.
pub type ecokv_status_t = u32;

/// Done.
pub const ECOKV_OK: u32 = 0;
/// A pointer that is needed is null.
pub const ECOKV_NULL_POINTER: u32 = 1;
/// A pointer is not aligned for its type.
pub const ECOKV_MISALIGNED: u32 = 2;
/// `struct_size` is not that of a struct this library knows.
pub const ECOKV_STRUCT_SIZE: u32 = 3;
/// A number that stands for a choice is none of the choices.
pub const ECOKV_BAD_VALUE: u32 = 4;
/// A buffer is too small for the result.
pub const ECOKV_BUFFER_TOO_SMALL: u32 = 5;
/// A text is not UTF-8, or has no end.
pub const ECOKV_BAD_TEXT: u32 = 6;
/// There is no method of this name.
pub const ECOKV_UNKNOWN_METHOD: u32 = 7;
/// The handle is in use: by another thread, or by the call that called back.
pub const ECOKV_BUSY: u32 = 8;
/// A callback asked to stop.
pub const ECOKV_CANCELLED: u32 = 9;
/// What was asked for is not possible in this order.
pub const ECOKV_BAD_ORDER: u32 = 10;
/// A bug in the library, caught. Handles that took part can only be freed.
pub const ECOKV_BUG: u32 = 11;
/// A slice has the wrong number of elements.
pub const ECOKV_LENGTH_MISMATCH: u32 = 100;
/// The workspace is too small.
pub const ECOKV_WORKSPACE_TOO_SMALL: u32 = 101;
/// The protected entries do not fit the budget.
pub const ECOKV_BUDGET_TOO_SMALL: u32 = 102;
/// The policy reads something that was not recorded.
pub const ECOKV_MISSING_OBSERVATION: u32 = 103;
/// A head's rows lie outside the layer or overlap another head's.
pub const ECOKV_HEAD_RANGE: u32 = 104;
/// A parameter has a value that means nothing.
pub const ECOKV_CONFIG: u32 = 105;
/// A size or a count does not fit its type.
pub const ECOKV_OVERFLOW: u32 = 106;
/// An error of choosing entries that is newer than this interface.
pub const ECOKV_EVICT_OTHER: u32 = 199;
/// A file could not be opened, read or mapped.
pub const ECOKV_IO: u32 = 200;
/// A file is not a GGUF file that can be used.
pub const ECOKV_GGUF: u32 = 201;
/// A metadata key of a model is missing or wrong.
pub const ECOKV_METADATA: u32 = 202;
/// A tensor of a model is missing or wrong.
pub const ECOKV_TENSOR: u32 = 203;
/// A picture could not be decoded or is not usable.
pub const ECOKV_IMAGE: u32 = 204;
/// Worker threads could not be started.
pub const ECOKV_THREADS: u32 = 205;
/// A model needs something that is not supported.
pub const ECOKV_MODEL: u32 = 206;
/// A prompt cannot be run as it is.
pub const ECOKV_PROMPT: u32 = 207;
/// Prompt and answer do not fit the context.
pub const ECOKV_CONTEXT_FULL: u32 = 208;
/// A route is not usable.
pub const ECOKV_ROUTE: u32 = 209;
/// A conversation could not be turned into a prompt.
pub const ECOKV_TEMPLATE: u32 = 210;
/// A session cannot go back that far, or is not that far yet.
pub const ECOKV_REWIND: u32 = 211;
/// The CPU does not have the instruction set.
pub const ECOKV_DISPATCH: u32 = 212;
/// The element type of the cache cannot hold the model's heads.
pub const ECOKV_KV_TYPE: u32 = 213;
/// An error of running models that is newer than this interface.
pub const ECOKV_RUNTIME_OTHER: u32 = 299;

/// A text that lives as long as the library, or as the comment beside it says. It does not end in NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_text_t {
    /// UTF-8, `[len]`.
    pub data: *const c_char,
    /// Bytes.
    pub len: usize,
}

impl From<&'static str> for ecokv_text_t {
    fn from(s: &'static str) -> Self {
        Self { data: s.as_ptr().cast(), len: s.len() }
    }
}

/// Why a call of `ecokv_core.h` failed, for those who want more than the status. Written on failure only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_error_t {
    /// The status that was returned.
    pub status: ecokv_status_t,
    /// KV head, where one head is to blame (`ECOKV_HEAD_RANGE`).
    pub head: u32,
    /// What it is about: a field, an argument, or a sentence.
    pub what: ecokv_text_t,
    /// What would have been needed: elements, bytes or entries.
    pub need: u64,
    /// What was there instead.
    pub got: u64,
}

/// What a status means, in one line without a full stop. Never null, also for a number that is no status.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_status_text(status: ecokv_status_t) -> *const c_char {
    text(status).as_ptr()
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The number to return.
    pub status: u32,
    /// KV head.
    pub head: u32,
    /// What it is about.
    pub what: &'static str,
    /// What would have been needed.
    pub need: u64,
    /// What was there.
    pub got: u64,
}

impl Failure {
    /// Without numbers.
    pub const fn new(status: u32, what: &'static str) -> Self {
        Self { status, head: 0, what, need: 0, got: 0 }
    }

    /// With the numbers that do not match.
    pub const fn sizes(status: u32, what: &'static str, need: u64, got: u64) -> Self {
        Self { status, head: 0, what, need, got }
    }
}

impl From<Failure> for ecokv_error_t {
    fn from(f: Failure) -> Self {
        Self { status: f.status, head: f.head, what: f.what.into(), need: f.need, got: f.got }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::LengthMismatch { what, need, got } => {
                Self::sizes(ECOKV_LENGTH_MISMATCH, what, need as u64, got as u64)
            }
            Error::WorkspaceTooSmall { what, need, got } => {
                Self::sizes(ECOKV_WORKSPACE_TOO_SMALL, what, need as u64, got as u64)
            }
            Error::BudgetTooSmall { protected, budget } => {
                Self::sizes(ECOKV_BUDGET_TOO_SMALL, "protected entries", protected.into(), budget.into())
            }
            Error::MissingObservation(what) => Self::new(ECOKV_MISSING_OBSERVATION, what),
            Error::HeadRange { head, start, len, rows } => {
                let end = u64::from(start).saturating_add(len.into());
                Self { head, ..Self::sizes(ECOKV_HEAD_RANGE, "rows of a head", end, rows as u64) }
            }
            Error::Config(what) => Self::new(ECOKV_CONFIG, what),
            Error::Overflow(what) => Self::new(ECOKV_OVERFLOW, what),
            _ => Self::new(ECOKV_EVICT_OTHER, "unknown"),
        }
    }
}

/// What a status means.
pub const fn text(status: u32) -> &'static CStr {
    match status {
        ECOKV_OK => c"done",
        ECOKV_NULL_POINTER => c"a pointer that is needed is null",
        ECOKV_MISALIGNED => c"a pointer is not aligned for its type",
        ECOKV_STRUCT_SIZE => c"struct_size is not that of a struct this library knows",
        ECOKV_BAD_VALUE => c"a number that stands for a choice is none of the choices",
        ECOKV_BUFFER_TOO_SMALL => c"a buffer is too small for the result",
        ECOKV_BAD_TEXT => c"a text is not UTF-8, or has no end",
        ECOKV_UNKNOWN_METHOD => c"there is no method of this name",
        ECOKV_BUSY => c"the handle is in use",
        ECOKV_CANCELLED => c"a callback asked to stop",
        ECOKV_BAD_ORDER => c"what was asked for is not possible in this order",
        ECOKV_BUG => c"a bug in the library",
        ECOKV_LENGTH_MISMATCH => c"a slice has the wrong number of elements",
        ECOKV_WORKSPACE_TOO_SMALL => c"the workspace is too small",
        ECOKV_BUDGET_TOO_SMALL => c"the protected entries do not fit the budget",
        ECOKV_MISSING_OBSERVATION => c"the policy reads something that was not recorded",
        ECOKV_HEAD_RANGE => c"a head's rows lie outside the layer or overlap another head's",
        ECOKV_CONFIG => c"a parameter has a value that means nothing",
        ECOKV_OVERFLOW => c"a size or a count does not fit its type",
        ECOKV_EVICT_OTHER => c"entries could not be chosen",
        ECOKV_IO => c"a file could not be opened, read or mapped",
        ECOKV_GGUF => c"a file is not a GGUF file that can be used",
        ECOKV_METADATA => c"a metadata key of a model is missing or wrong",
        ECOKV_TENSOR => c"a tensor of a model is missing or wrong",
        ECOKV_IMAGE => c"a picture could not be decoded or is not usable",
        ECOKV_THREADS => c"worker threads could not be started",
        ECOKV_MODEL => c"a model needs something that is not supported",
        ECOKV_PROMPT => c"a prompt cannot be run as it is",
        ECOKV_CONTEXT_FULL => c"prompt and answer do not fit the context",
        ECOKV_ROUTE => c"a route is not usable",
        ECOKV_TEMPLATE => c"a conversation could not be turned into a prompt",
        ECOKV_REWIND => c"a session cannot go back that far, or is not that far yet",
        ECOKV_DISPATCH => c"the CPU does not have the instruction set",
        ECOKV_KV_TYPE => c"the element type of the cache cannot hold the model's heads",
        ECOKV_RUNTIME_OTHER => c"the model could not be run",
        _ => c"not a status of this library",
    }
}
