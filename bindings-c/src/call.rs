//! The boundary: panics stop here, errors become a number and a text, handles become references.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use ecokv::Error;
use ecokv_core_c::{self as core, Failure, ecokv_status_t};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What the last failed call on this thread had to say: one line with the file, key or tensor and the numbers. Empty if
/// none failed yet. Valid until the next call that fails on this thread. Functions of `ecokv_core.h` leave it alone.
#[unsafe(no_mangle)]
pub extern "C" fn ecokv_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Why a call is refused.
pub struct Refusal {
    /// The number to return.
    pub status: u32,
    /// One line.
    pub text: String,
}

impl Refusal {
    /// With a sentence of its own.
    pub fn new(status: u32, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }
}

/// Runs the body of a function.
pub fn run(body: impl FnOnce() -> Result<(), Refusal>) -> ecokv_status_t {
    let refusal = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return core::ECOKV_OK,
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Refusal::new(core::ECOKV_BUG, format!("a bug in the library: {}", text.unwrap_or("no message")))
        }
    };
    let text = CString::new(refusal.text.replace('\0', " ")).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = text); // a thread that is ending has nowhere to keep it
    refusal.status
}

/// Gives a value to C as a handle.
pub fn give<T>(value: T) -> *mut T {
    Arc::into_raw(Arc::new(value)).cast_mut()
}

/// A handle for the duration of a call, even if it is freed meanwhile.
///
/// # Safety
/// `handle` is null or came from [`give`] and was not freed.
pub unsafe fn borrow<T>(handle: *const T, what: &str) -> Result<Arc<T>, Refusal> {
    if handle.is_null() {
        return Err(Refusal::new(core::ECOKV_NULL_POINTER, format!("{what} is null")));
    }
    // SAFETY: it came from an `Arc` and is still counted, by this function's condition.
    unsafe {
        Arc::increment_strong_count(handle);
        Ok(Arc::from_raw(handle))
    }
}

/// Takes a handle back. Null is nothing.
///
/// # Safety
/// As [`borrow`].
pub unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the count that `give` left with C is taken back, by this function's condition for the only time.
        let value = unsafe { Arc::from_raw(handle.cast_const()) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
    }
}

/// What a handle guards, if nobody else is at it.
pub fn enter<'a, T>(guarded: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>, Refusal> {
    guarded.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => Refusal::new(core::ECOKV_BUSY, format!("{what} is in use by another call")),
        TryLockError::Poisoned(_) => {
            Refusal::new(core::ECOKV_BUG, format!("{what} was in use when a bug struck: it can only be freed"))
        }
    })
}

impl From<Failure> for Refusal {
    fn from(f: Failure) -> Refusal {
        let meaning = core::text(f.status).to_string_lossy();
        let numbers = match (f.need, f.got) {
            (0, 0) => String::new(),
            (need, got) => format!(" (expected {need}, got {got})"),
        };
        Refusal::new(f.status, format!("{}: {meaning}{numbers}", f.what))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let status = match &error {
            Error::Io { .. } => core::ECOKV_IO,
            Error::Gguf { .. } => core::ECOKV_GGUF,
            Error::Metadata { .. } => core::ECOKV_METADATA,
            Error::Tensor { .. } => core::ECOKV_TENSOR,
            Error::Image { .. } => core::ECOKV_IMAGE,
            Error::Threads { .. } => core::ECOKV_THREADS,
            Error::Model { .. } => core::ECOKV_MODEL,
            Error::Prompt { .. } => core::ECOKV_PROMPT,
            Error::ContextFull { .. } => core::ECOKV_CONTEXT_FULL,
            Error::Cancelled => core::ECOKV_CANCELLED,
            Error::Route(_) => core::ECOKV_ROUTE,
            Error::Evict(e) => Failure::from(*e).status,
            Error::Template { .. } => core::ECOKV_TEMPLATE,
            Error::Rewind { .. } => core::ECOKV_REWIND,
            Error::Dispatch { .. } => core::ECOKV_DISPATCH,
            Error::KvType { .. } => core::ECOKV_KV_TYPE,
            _ => core::ECOKV_RUNTIME_OTHER,
        };
        Refusal::new(status, error.to_string())
    }
}
