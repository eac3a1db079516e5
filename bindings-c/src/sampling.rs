//! The choice of the next token.

use std::mem::size_of;

use ecokv::{Sampler, Sampling};
use ecokv_core_c::{self as core, ecokv_status_t, ptr};

use crate::call::{Refusal, borrow, enter, run};
use crate::session::ecokv_session_t;

/// How the next token is chosen. Zeros: always the most likely one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_sampling_t {
    /// `sizeof(ecokv_sampling_t)`.
    pub struct_size: u32,
    /// Divides the logits; 0 means the most likely token, always.
    pub temperature: f32,
    /// Only the k most likely tokens; 0 means all.
    pub top_k: u32,
    /// Only the most likely tokens whose probabilities sum to this; 0 means all.
    pub top_p: f32,
    /// Seed of the random choice.
    pub seed: u64,
}

/// Sets how tokens are chosen from now on, and begins the random numbers anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_set_sampling(
    session: *mut ecokv_session_t,
    sampling: *const ecokv_sampling_t,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on; zeros are a way of sampling.
        let (session, c) = unsafe {
            (borrow(session, "session")?, ptr::versioned(sampling, size_of::<ecokv_sampling_t>(), "sampling")?)
        };
        if !(c.temperature >= 0.0 && (0.0..=1.0).contains(&c.top_p)) {
            let text = format!("temperature {} must not be negative, top_p {} lies in 0 to 1", c.temperature, c.top_p);
            return Err(Refusal::new(core::ECOKV_CONFIG, text));
        }
        let top_p = if c.top_p == 0.0 { 1.0 } else { c.top_p };
        let sampling = Sampling { temperature: c.temperature, top_k: c.top_k as usize, top_p, seed: c.seed };
        enter(&session.0, "session")?.sampler = Sampler::new(sampling);
        Ok(())
    })
}

/// Chooses the next token; it is not run yet: see `ecokv_session_decode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_sample(session: *mut ecokv_session_t, id: *mut u32) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (session, out) = unsafe { (borrow(session, "session")?, ptr::out(id, "id")?) };
        let mut s = enter(&session.0, "session")?;
        s.settle()?;
        out.write(s.sample()?);
        Ok(())
    })
}
