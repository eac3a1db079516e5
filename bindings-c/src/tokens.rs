//! Text to tokens and back.

use std::ffi::c_char;

use ecokv_core_c::{self as core, ecokv_status_t, ptr};

use crate::call::{Refusal, borrow, run};
use crate::engine::ecokv_engine_t;

/// Put the begin and end tokens around the text that the model asks for.
pub const ECOKV_TOKENIZE_ADD_SPECIAL: u32 = 1;
/// Texts of control tokens (`<|im_end|>`) become those tokens; not for untrusted text.
pub const ECOKV_TOKENIZE_PARSE_SPECIAL: u32 = 2;

/// Token ids of a text, `[len]` bytes of UTF-8. With `capacity` 0, only `n_ids` is written; otherwise a buffer that is too
/// small is an error. `flags` is a sum of `ECOKV_TOKENIZE_...`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_tokenize(
    engine: *const ecokv_engine_t,
    text: *const c_char,
    len: usize,
    flags: u32,
    ids: *mut u32,
    capacity: usize,
    n_ids: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (e, text) = unsafe { (borrow(engine, "engine")?, ptr::slice(text.cast::<u8>(), len, "text")?) };
        let known = ECOKV_TOKENIZE_ADD_SPECIAL | ECOKV_TOKENIZE_PARSE_SPECIAL;
        if flags & !known != 0 {
            return Err(core::bad("flags", known, flags).into());
        }
        let set = |flag: u32| flags & flag != 0;
        let text = ptr::utf8(text, "text")?;
        let found =
            e.engine.tokenizer().encode(text, set(ECOKV_TOKENIZE_ADD_SPECIAL), set(ECOKV_TOKENIZE_PARSE_SPECIAL));
        // SAFETY: passed on.
        unsafe { copy_out(&found, ids, capacity, n_ids, "ids") }
    })
}

/// The bytes of one token; none for a control token. A character may be spread over several tokens. `capacity` as in
/// `ecokv_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_token_bytes(
    engine: *const ecokv_engine_t,
    id: u32,
    bytes: *mut c_char,
    capacity: usize,
    n_bytes: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let e = unsafe { borrow(engine, "engine") }?;
        let mut found = Vec::new();
        e.engine.tokenizer().decode_bytes(id, &mut found);
        // SAFETY: passed on.
        unsafe { copy_out(&found, bytes.cast(), capacity, n_bytes, "bytes") }
    })
}

/// Whether generation stops at this token: writes 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_token_is_end(
    engine: *const ecokv_engine_t,
    id: u32,
    is_end: *mut u32,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (e, out) = unsafe { (borrow(engine, "engine")?, ptr::out(is_end, "is_end")?) };
        out.write(e.engine.tokenizer().is_end_of_generation(id).into());
        Ok(())
    })
}

/// Hands out a list of a length that the caller may not know: with no capacity, the length alone.
///
/// # Safety
/// `to` is null or valid for writing `capacity` elements, `n` for one.
pub unsafe fn copy_out<T: Copy>(
    found: &[T],
    to: *mut T,
    capacity: usize,
    n: *mut usize,
    what: &'static str,
) -> Result<(), Refusal> {
    // SAFETY: passed on.
    let n = unsafe { ptr::out(n, "number of elements") }?;
    if capacity > 0 {
        if capacity < found.len() {
            let text = format!("{what}: {} elements are needed, there is room for {capacity}", found.len());
            return Err(Refusal::new(core::ECOKV_BUFFER_TOO_SMALL, text));
        }
        // SAFETY: passed on, and not longer than the buffer.
        let to = unsafe { ptr::slice_mut(to, found.len(), what) }?;
        to.copy_from_slice(found);
    }
    n.write(found.len());
    Ok(())
}
