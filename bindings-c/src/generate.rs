//! The decode loop: tokens to text, handed out as it is made.

use std::ffi::{c_char, c_void};
use std::mem::size_of;

use ecokv_core_c::{ecokv_status_t, ptr};

use crate::call::{Refusal, borrow, enter, run};
use crate::session::{State, ecokv_session_t};

/// The model ended its answer.
pub const ECOKV_END_TOKEN: u32 = 0;
/// There are as many tokens as were asked for.
pub const ECOKV_END_LIMIT: u32 = 1;
/// The context is full.
pub const ECOKV_END_CONTEXT: u32 = 2;
/// The callback said so.
pub const ECOKV_END_STOPPED: u32 = 3;

/// No token: the `id` of a call that hands out what remained of an incomplete character.
pub const ECOKV_NO_TOKEN: u32 = u32::MAX;

/// Called for every token, with the text that it completes, `[len]` bytes of UTF-8 without NUL at the end, often none.
/// Anything but 0 stops after this token. Must not throw or jump out. May call any function; with the session itself, they
/// return `ECOKV_BUSY`.
pub type ecokv_on_token_t =
    Option<unsafe extern "C" fn(user: *mut c_void, id: u32, text: *const c_char, len: usize) -> i32>;

/// How much to generate, and who gets it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ecokv_generate_params_t {
    /// `sizeof(ecokv_generate_params_t)`.
    pub struct_size: u32,
    /// At most so many tokens; 0 means as many as the context holds.
    pub max_tokens: u32,
    /// Or null.
    pub on_token: ecokv_on_token_t,
    /// Handed to `on_token`.
    pub user: *mut c_void,
}

/// How an answer ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ecokv_generated_t {
    /// Tokens, the end token not counted.
    pub n_tokens: u32,
    /// One of `ECOKV_END_...`.
    pub end: u32,
}

/// Generates after a prefill, or goes on generating. `result` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_generate(
    session: *mut ecokv_session_t,
    params: *const ecokv_generate_params_t,
    result: *mut ecokv_generated_t,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on; zeros are parameters.
        let (session, p, out) = unsafe {
            (
                borrow(session, "session")?,
                ptr::versioned(params, size_of::<ecokv_generate_params_t>(), "generate params")?,
                ptr::optional_out(result, "result")?,
            )
        };
        let mut s = enter(&session.0, "session")?;
        let generated = s.generate(&p)?;
        if let Some(out) = out {
            out.write(generated);
        }
        Ok(())
    })
}

impl State {
    fn generate(&mut self, p: &ecokv_generate_params_t) -> Result<ecokv_generated_t, Refusal> {
        let wanted = |id: u32, text: &str| match p.on_token {
            // SAFETY: C's function, called as its type says.
            Some(f) => unsafe { f(p.user, id, text.as_ptr().cast(), text.len()) == 0 },
            None => true,
        };
        let limit = if p.max_tokens == 0 { u32::MAX } else { p.max_tokens };
        let mut n_tokens = 0;
        let mut bytes = Vec::new();
        let end = loop {
            if n_tokens >= limit {
                break ECOKV_END_LIMIT;
            }
            if self.n_past + usize::from(self.pending.is_some()) >= self.n_ctx {
                break ECOKV_END_CONTEXT;
            }
            self.settle()?;
            let id = self.sample()?;
            let engine = self.engine.clone();
            let tokenizer = engine.engine.tokenizer();
            if tokenizer.is_end_of_generation(id) {
                break ECOKV_END_TOKEN;
            }
            n_tokens += 1;
            self.pending = Some(id);
            bytes.clear();
            tokenizer.decode_bytes(id, &mut bytes);
            if !wanted(id, self.stream.push(&bytes)) {
                break ECOKV_END_STOPPED;
            }
        };
        // A limit may be raised by the next call, which then completes the character.
        if end == ECOKV_END_TOKEN || end == ECOKV_END_CONTEXT {
            let rest = self.stream.finish();
            if !rest.is_empty() {
                wanted(ECOKV_NO_TOKEN, rest);
            }
        }
        Ok(ecokv_generated_t { n_tokens, end })
    }
}
