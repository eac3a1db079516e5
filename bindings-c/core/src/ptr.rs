//! Raw pointers to slices and structs. What can be checked is: null, alignment, sizes that overflow, struct sizes. What
//! cannot is the caller's word, given in the header: memory of that size is there, and outputs overlap nothing.

use core::ffi::c_char;
use core::mem::{MaybeUninit, align_of, size_of};

use crate::status::*;

/// Largest `struct_size` that is believed.
const MAX_STRUCT: u32 = 1 << 16;

/// Runs the body of a function: its failure goes to `error`, if there is one, and its status back to C.
///
/// # Safety
/// `error` is null or valid for a write.
pub unsafe fn run(error: *mut ecokv_error_t, body: impl FnOnce() -> Result<(), Failure>) -> ecokv_status_t {
    let Err(failure) = body() else { return ECOKV_OK };
    if !error.is_null() && error.is_aligned() {
        // SAFETY: neither null nor misaligned, and valid by this function's condition.
        unsafe { error.write(failure.into()) };
    }
    failure.status
}

/// A slice to read. Null is fine for an empty one.
///
/// # Safety
/// `p` is null or valid for reading `n` elements for `'a`.
pub unsafe fn slice<'a, T>(p: *const T, n: usize, what: &'static str) -> Result<&'a [T], Failure> {
    if n == 0 {
        return Ok(&[]);
    }
    check(p, n, what)?;
    // SAFETY: not null, aligned, of a size that fits; valid by this function's condition.
    Ok(unsafe { core::slice::from_raw_parts(p, n) })
}

/// A slice to write. Null is fine for an empty one.
///
/// # Safety
/// `p` is null or valid for reading and writing `n` initialised elements for `'a`, by nobody else.
pub unsafe fn slice_mut<'a, T>(p: *mut T, n: usize, what: &'static str) -> Result<&'a mut [T], Failure> {
    if n == 0 {
        return Ok(&mut []);
    }
    check(p, n, what)?;
    // SAFETY: not null, aligned, of a size that fits; valid and unshared by this function's condition.
    Ok(unsafe { core::slice::from_raw_parts_mut(p, n) })
}

/// A slice that may be missing: null gives an empty one.
///
/// # Safety
/// As [`slice()`].
pub unsafe fn optional<'a, T>(p: *const T, n: usize, what: &'static str) -> Result<&'a [T], Failure> {
    // SAFETY: passed on.
    if p.is_null() { Ok(&[]) } else { unsafe { slice(p, n, what) } }
}

/// Somewhere to write one result.
///
/// # Safety
/// `p` is null or valid for writing for `'a`, by nobody else.
pub unsafe fn out<'a, T>(p: *mut T, what: &'static str) -> Result<&'a mut MaybeUninit<T>, Failure> {
    check(p, 1, what)?;
    // SAFETY: not null and aligned; valid and unshared by this function's condition.
    Ok(unsafe { &mut *p.cast() })
}

/// Somewhere to write a result that nobody may want.
///
/// # Safety
/// As [`out`].
pub unsafe fn optional_out<'a, T>(p: *mut T, what: &'static str) -> Result<Option<&'a mut MaybeUninit<T>>, Failure> {
    // SAFETY: passed on.
    if p.is_null() { Ok(None) } else { unsafe { out(p, what) }.map(Some) }
}

/// A struct by value.
///
/// # Safety
/// `p` is null or valid for reading.
pub unsafe fn read<T: Copy>(p: *const T, what: &'static str) -> Result<T, Failure> {
    check(p, 1, what)?;
    // SAFETY: not null and aligned; valid by this function's condition.
    Ok(unsafe { p.read() })
}

/// A struct that begins with its size. One from an older header lacks the last fields, which become zeros; one from a newer
/// header may have more, as long as they are zeros. `first_size` is the size in the first version of the interface.
///
/// # Safety
/// `p` is null or valid for reading `struct_size` bytes; all-zero bytes are a valid `T`.
pub unsafe fn versioned<T: Copy>(p: *const T, first_size: usize, what: &'static str) -> Result<T, Failure> {
    check(p, 1, what)?;
    // SAFETY: not null and aligned; the first field of every such struct is its size.
    let size = unsafe { p.cast::<u32>().read() };
    let known = size_of::<T>();
    let refused = Failure::sizes(ECOKV_STRUCT_SIZE, what, known as u64, size.into());
    let bytes = size as usize;
    if bytes < first_size || size > MAX_STRUCT {
        return Err(refused);
    }
    // SAFETY: `struct_size` bytes can be read by this function's condition.
    let all = unsafe { core::slice::from_raw_parts(p.cast::<u8>(), bytes) };
    if all.get(known..).is_some_and(|rest| rest.iter().any(|&b| b != 0)) {
        return Err(refused);
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides have that many bytes and cannot overlap; zeros and the caller's bytes make a `T`.
    unsafe {
        core::ptr::copy_nonoverlapping(p.cast::<u8>(), value.as_mut_ptr().cast(), bytes.min(known));
        Ok(value.assume_init())
    }
}

/// A text that ends in NUL within `max` bytes.
///
/// # Safety
/// `p` is null or points to bytes that end in NUL or reach `max`, for `'a`.
pub unsafe fn text<'a>(p: *const c_char, max: usize, what: &'static str) -> Result<&'a str, Failure> {
    check(p, 1, what)?;
    let mut len = 0;
    // SAFETY: no byte so far was the NUL, so this one is still the caller's.
    while len < max && unsafe { p.add(len).read() } != 0 {
        len = len.saturating_add(1);
    }
    if len == max {
        return Err(Failure::new(ECOKV_BAD_TEXT, what));
    }
    // SAFETY: these bytes were just read.
    utf8(unsafe { core::slice::from_raw_parts(p.cast(), len) }, what)
}

/// Bytes as text.
pub fn utf8<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a str, Failure> {
    core::str::from_utf8(bytes)
        .map_err(|e| Failure::sizes(ECOKV_BAD_TEXT, what, bytes.len() as u64, e.valid_up_to() as u64))
}

fn check<T>(p: *const T, n: usize, what: &'static str) -> Result<(), Failure> {
    if p.is_null() {
        return Err(Failure::new(ECOKV_NULL_POINTER, what));
    }
    if !p.is_aligned() {
        return Err(Failure::sizes(ECOKV_MISALIGNED, what, align_of::<T>() as u64, 0));
    }
    if n.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::new(ECOKV_OVERFLOW, what));
    }
    Ok(())
}
