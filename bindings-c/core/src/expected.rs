//! Statistics of the queries to come, for the methods that expect them.

use ecokv_core::expected::{self, Pairing};

use crate::policy::bad;
use crate::status::*;
use crate::{ptr, ptr::run};

/// A rotary embedding turns the elements `i` and `i + pairs` together.
pub const ECOKV_PAIRING_HALVES: u32 = 0;
/// It turns `2 i` and `2 i + 1` together.
pub const ECOKV_PAIRING_NEIGHBOURS: u32 = 1;

/// Means of `cos(p f)` and `sin(p f)` over the positions `first .. first + n`, for each frequency `f` in radians per
/// position; all `[pairs]`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_expected_rotation(
    frequencies: *const f32,
    pairs: usize,
    first: u32,
    n: u32,
    cos: *mut f32,
    sin: *mut f32,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        // SAFETY: passed on.
        let (frequencies, cos, sin) = unsafe {
            (
                ptr::slice(frequencies, pairs, "frequencies")?,
                ptr::slice_mut(cos, pairs, "cos")?,
                ptr::slice_mut(sin, pairs, "sin")?,
            )
        };
        expected::mean_rotation(frequencies, first, n, cos, sin);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}

/// Turns one query head's statistics, taken before RoPE, into those of the queries to come: `mean` `[head_dim]`,
/// `covariance` `[head_dim][head_dim]` or null. `pairing` is one of `ECOKV_PAIRING_...`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_expected_rotate(
    pairing: u32,
    cos: *const f32,
    sin: *const f32,
    pairs: usize,
    mean: *mut f32,
    covariance: *mut f32,
    head_dim: usize,
    error: *mut ecokv_error_t,
) -> ecokv_status_t {
    let body = || {
        let pairing = match pairing {
            ECOKV_PAIRING_HALVES => Pairing::Halves,
            ECOKV_PAIRING_NEIGHBOURS => Pairing::Neighbours,
            other => return Err(bad("pairing", ECOKV_PAIRING_NEIGHBOURS, other)),
        };
        let square = head_dim.checked_mul(head_dim).ok_or(Failure::new(ECOKV_OVERFLOW, "covariance"))?;
        let square = if covariance.is_null() { 0 } else { square };
        // SAFETY: passed on.
        let (cos, sin, mean, covariance) = unsafe {
            (
                ptr::slice(cos, pairs, "cos")?,
                ptr::slice(sin, pairs, "sin")?,
                ptr::slice_mut(mean, head_dim, "mean")?,
                ptr::slice_mut(covariance, square, "covariance")?,
            )
        };
        expected::rotate(pairing, cos, sin, mean, covariance);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { run(error, body) }
}
