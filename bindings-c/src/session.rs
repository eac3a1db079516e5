//! One conversation: prefill, evict, decode, sample.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};
use std::ops::ControlFlow;
use std::sync::Mutex;

use ecokv::cache::KvType;
use ecokv::tokenizer::Utf8Stream;
use ecokv::{Eviction, Modalities, Modality, Sampler, Sampling, Session, SessionOptions};
use ecokv_core_c::{self as core, ecokv_policy_t, ecokv_status_t, ptr};

use crate::call::{Refusal, borrow, enter, free, give, run};
use crate::engine::ecokv_engine_t;
use crate::prompt::ecokv_prompt_t;
use crate::state::State;
use crate::tokens::copy_out;

/// What the library thinks best.
pub const ECOKV_KV_DEFAULT: u32 = 0;
/// 4 bytes a value, exact.
pub const ECOKV_KV_F32: u32 = 1;
/// 2 bytes a value.
pub const ECOKV_KV_F16: u32 = 2;
/// Blocks of 32 values in 34 bytes, as ggml's Q8_0. Heads of another size than a multiple of 32 are refused.
pub const ECOKV_KV_Q8_0: u32 = 3;

/// Text and images stand or fall by the method.
pub const ECOKV_PROTECT_NONE: u32 = 0;
/// All text is kept. A budget that cannot hold it is an error.
pub const ECOKV_PROTECT_TEXT: u32 = 1;
/// All rows of images are kept. A budget that cannot hold them is an error.
pub const ECOKV_PROTECT_IMAGE: u32 = 2;

/// As `image_budget`: no entries from images.
pub const ECOKV_IMAGE_BUDGET_NONE: u32 = u32::MAX;

/// Longest text of a route.
const MAX_ROUTE: usize = 1 << 20;

/// A conversation with a model: one thread at a time, any number of them at the same time.
pub struct ecokv_session_t(pub(crate) Mutex<State>);

/// What a session keeps of its prompts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_session_params_t {
    /// `sizeof(ecokv_session_params_t)`.
    pub struct_size: u32,
    /// Positions that prompts and answers may take together; 0 means what the model was trained for.
    pub n_ctx: u32,
    /// Tokens that will be generated: room is reserved for them.
    pub n_generate: u32,
    /// Element type of the cache: one of `ECOKV_KV_...`.
    pub kv_type: u32,
    /// Entries kept per KV head, on average over heads and layers, protected ones included.
    pub budget: u32,
    /// What is kept whole, whatever the method says: one of `ECOKV_PROTECT_...`.
    pub protect: u32,
    /// How they are chosen; null, or the method `full`, keeps everything.
    pub policy: *const ecokv_policy_t,
    /// Another method in every layer: the text of a route, ending in NUL, or null. Needs a policy and a budget too, for the
    /// layers whose budget it leaves open.
    pub route: *const c_char,
    /// Scores of the heads, `[n_layers][n_kv_heads]`, for methods that share the budget by a profile, or null.
    pub head_scores: *const f32,
    /// Elements of `head_scores`.
    pub n_head_scores: usize,
    /// Of the budget, the entries that come from images; text gets the rest. In proportion where a head or layer keeps more
    /// or fewer; what one cannot fill goes to the other. 0 leaves the shares to the method, `ECOKV_IMAGE_BUDGET_NONE` means 0.
    pub image_budget: u32,
    /// 0.
    pub reserved: u32,
}

/// Called after each layer of a prefill, with the layers done and those there are. Anything but 0 cancels: the session is
/// empty then. Images are encoded before the first layer, or earlier by `ecokv_prompt_count`. Must not throw or jump out.
pub type ecokv_progress_t = Option<unsafe extern "C" fn(user: *mut c_void, done: u32, total: u32) -> i32>;

/// Who wants to know about a prefill.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ecokv_prefill_params_t {
    /// `sizeof(ecokv_prefill_params_t)`.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Or null.
    pub on_progress: ecokv_progress_t,
    /// Handed to `on_progress`.
    pub user: *mut c_void,
}

/// An empty session. It is to be freed with `ecokv_session_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_new(
    engine: *const ecokv_engine_t,
    params: *const ecokv_session_params_t,
    session: *mut *mut ecokv_session_t,
) -> ecokv_status_t {
    const FIRST: usize = offset_of!(ecokv_session_params_t, image_budget);
    run(|| {
        // SAFETY: passed on; zeros are parameters.
        let (engine, p, out) = unsafe {
            (borrow(engine, "engine")?, ptr::versioned(params, FIRST, "session params")?, ptr::out(session, "session")?)
        };
        let kv_type = match p.kv_type {
            ECOKV_KV_DEFAULT => KvType::default(),
            ECOKV_KV_F32 => KvType::F32,
            ECOKV_KV_F16 => KvType::F16,
            ECOKV_KV_Q8_0 => KvType::Q8_0,
            other => return Err(core::bad("kv_type", ECOKV_KV_Q8_0, other).into()),
        };
        // SAFETY: passed on.
        let eviction = unsafe { eviction(&p) }?;
        let modalities = modalities(&p)?;
        let n_ctx = match p.n_ctx as usize {
            0 => engine.engine.config().n_ctx_train,
            n => n,
        };
        let options = SessionOptions { n_ctx, n_generate: p.n_generate as usize, kv_type, eviction };
        // SAFETY: the session is kept beside the counted engine, and dropped before it.
        let borrowed: &'static ecokv::Engine = unsafe { &*std::ptr::from_ref(&engine.engine) };
        let mut session = Session::new(borrowed, options)?;
        session.set_modalities(modalities)?;
        if !p.route.is_null() {
            // SAFETY: passed on.
            session.set_route(unsafe { ptr::text(p.route, MAX_ROUTE, "route") }?)?;
        }
        if !p.head_scores.is_null() {
            // SAFETY: passed on.
            let scores = unsafe { ptr::slice(p.head_scores, p.n_head_scores, "head_scores") }?;
            session.set_head_profile(scores.to_vec())?;
        }
        out.write(give(ecokv_session_t(Mutex::new(State {
            session,
            sampler: Sampler::new(Sampling::default()),
            logits: Vec::new(),
            pending: None,
            stream: Utf8Stream::default(),
            n_past: 0,
            n_ctx,
            engine,
        }))));
        Ok(())
    })
}

/// Frees a session; null is nothing. One that is in use lives until the call that uses it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_free(session: *mut ecokv_session_t) {
    // SAFETY: passed on.
    unsafe { free(session) };
}

/// Forgets the conversation, but not the parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_reset(session: *mut ecokv_session_t) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        enter(&session.0, "session")?.reset();
        Ok(())
    })
}

/// Goes back to the first `n_past` positions of the conversation (`ecokv_stats_t` has how many there are) and forgets what
/// came after them, a generated token that was not run yet included. `ECOKV_REWIND` if what would have to come back is gone:
/// an eviction has chosen among the positions to be forgotten, a sliding window has moved on, or a picture of a model that
/// counts it in rows and columns is among them. Go on with a prefill or a decode; there are no logits before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_rewind(session: *mut ecokv_session_t, n_past: u32) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        enter(&session.0, "session")?.rewind(n_past as usize)
    })
}

/// Runs a prompt and evicts. What was generated before is part of the conversation. `params` may be null. When this fails
/// while it runs (`ECOKV_CANCELLED`, or an eviction that is refused), the session is empty; the prompt is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_prefill(
    session: *mut ecokv_session_t,
    prompt: *mut ecokv_prompt_t,
    params: *const ecokv_prefill_params_t,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (session, prompt) = unsafe { (borrow(session, "session")?, borrow(prompt, "prompt")?) };
        let (callback, user) = match params.is_null() {
            true => (None, std::ptr::null_mut()),
            false => {
                // SAFETY: passed on; zeros are parameters.
                let p = unsafe { ptr::versioned(params, size_of::<ecokv_prefill_params_t>(), "prefill params") }?;
                if p.reserved != 0 {
                    return Err(core::bad("reserved", 0, p.reserved).into());
                }
                (p.on_progress, p.user)
            }
        };
        let mut on_layer = |done: usize, total: usize| match callback {
            // SAFETY: C's function, called as its type says.
            Some(f) if unsafe { f(user, done as u32, total as u32) } != 0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let mut s = enter(&session.0, "session")?;
        let mut builder = prompt.builder()?;
        if !builder.is_for(&s.engine) {
            return Err(Refusal::new(core::ECOKV_BAD_ORDER, "the prompt was made for another engine"));
        }
        let prompt = builder.build()?;
        s.settle()?;
        match s.session.prefill_with(prompt, &mut on_layer) {
            Ok(logits) => {
                s.logits = logits;
                s.n_past += prompt.n_tokens();
                Ok(())
            }
            Err(error @ (ecokv::Error::Prompt { .. } | ecokv::Error::ContextFull { .. })) => Err(error.into()),
            Err(error) => {
                s.reset();
                Err(error.into())
            }
        }
    })
}

/// Runs one token. After it, `ecokv_session_logits` and `ecokv_session_sample` speak of the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_decode(session: *mut ecokv_session_t, id: u32) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        let mut s = enter(&session.0, "session")?;
        s.settle()?;
        s.decode(id)
    })
}

/// Copies the logits of the next token, `[n_vocab]`. `capacity` as in `ecokv_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_logits(
    session: *mut ecokv_session_t,
    logits: *mut f32,
    capacity: usize,
    n_logits: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        let mut s = enter(&session.0, "session")?;
        s.settle()?;
        s.ready()?;
        // SAFETY: passed on.
        unsafe { copy_out(&s.logits, logits, capacity, n_logits, "logits") }
    })
}

/// # Safety
/// `policy` is null or valid for reading.
unsafe fn eviction(p: &ecokv_session_params_t) -> Result<Option<Eviction>, Refusal> {
    if p.policy.is_null() {
        let what = "a budget, a route, head scores or a rule for images, but no policy";
        let numbers = [p.budget, p.protect, p.image_budget];
        let alone = numbers == [0; 3] && p.route.is_null() && p.head_scores.is_null();
        return if alone { Ok(None) } else { Err(Refusal::new(core::ECOKV_NULL_POINTER, what)) };
    }
    // SAFETY: passed on.
    let chosen = unsafe { core::read_policy(p.policy) }?;
    if chosen.method == "full" {
        return Ok(None);
    }
    if p.budget == 0 {
        return Err(Refusal::new(core::ECOKV_BUDGET_TOO_SMALL, "a policy needs a budget of at least one entry"));
    }
    Ok(Some(Eviction { policy: chosen.policy, layer_budget: chosen.layer_budget, budget: p.budget }))
}

fn modalities(p: &ecokv_session_params_t) -> Result<Modalities, Refusal> {
    if p.reserved != 0 {
        return Err(core::bad("reserved", 0, p.reserved).into());
    }
    let protect = match p.protect {
        ECOKV_PROTECT_NONE => None,
        ECOKV_PROTECT_TEXT => Some(Modality::Text),
        ECOKV_PROTECT_IMAGE => Some(Modality::Image),
        other => return Err(core::bad("protect", ECOKV_PROTECT_IMAGE, other).into()),
    };
    let image_budget = match p.image_budget {
        0 => None,
        ECOKV_IMAGE_BUDGET_NONE => Some(0),
        n => Some(n),
    };
    Ok(Modalities { protect, image_budget })
}
