//! One conversation: prefill, evict, decode, sample.

use std::ffi::{c_char, c_void};
use std::mem::size_of;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use ecokv::cache::KvType;
use ecokv::tokenizer::Utf8Stream;
use ecokv::{Eviction, Sampler, Sampling, Session, SessionOptions};
use ecokv_core_c::{self as core, ecokv_policy_t, ecokv_status_t, ptr};

use crate::call::{Refusal, borrow, enter, free, give, run};
use crate::engine::{ecokv_engine_t, write_sized};
use crate::prompt::ecokv_prompt_t;
use crate::tokens::copy_out;

/// What the library thinks best.
pub const ECOKV_KV_DEFAULT: u32 = 0;
/// 4 bytes a value, exact.
pub const ECOKV_KV_F32: u32 = 1;
/// 2 bytes a value.
pub const ECOKV_KV_F16: u32 = 2;

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
    /// 0.
    pub reserved: u32,
    /// How they are chosen; null, or the method `full`, keeps everything.
    pub policy: *const ecokv_policy_t,
    /// Another method in every layer: the text of a route, ending in NUL, or null. Needs a policy and a budget too, for the
    /// layers whose budget it leaves open.
    pub route: *const c_char,
    /// Scores of the heads, `[n_layers][n_kv_heads]`, for methods that share the budget by a profile, or null.
    pub head_scores: *const f32,
    /// Elements of `head_scores`.
    pub n_head_scores: usize,
}

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

/// Called after each layer of a prefill, with the layers done and those there are. Anything but 0 cancels: the session is
/// empty then. Must not throw or jump out.
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

/// What a session has done so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ecokv_stats_t {
    /// Nanoseconds in prefill, eviction excluded.
    pub prefill_ns: u64,
    /// Nanoseconds spent scoring, selecting and compacting.
    pub evict_ns: u64,
    /// Nanoseconds in decode steps.
    pub decode_ns: u64,
    /// Prompt positions processed.
    pub prompt_tokens: u64,
    /// Decode steps.
    pub decoded_tokens: u64,
    /// Bytes that the cache would take with every prompt entry kept.
    pub kv_bytes_full: u64,
    /// Bytes of the cache now.
    pub kv_bytes: u64,
    /// Scores that were NaN.
    pub nan_scores: u64,
}

/// What a session changes. The engine comes last: it is dropped after what borrows it.
pub(crate) struct State {
    pub session: Session<'static>,
    pub sampler: Sampler,
    /// After the last token that was run, `[n_vocab]`; empty before the first prompt.
    pub logits: Vec<f32>,
    /// A generated token that was not run yet.
    pub pending: Option<u32>,
    pub stream: Utf8Stream,
    pub n_past: usize,
    pub n_ctx: usize,
    pub engine: Arc<ecokv_engine_t>,
}

/// Handles may move between threads.
const _: fn() = || {
    fn movable<T: Send>() {}
    movable::<State>();
    fn shared<T: Send + Sync>() {}
    shared::<ecokv_engine_t>();
};

/// An empty session. It is to be freed with `ecokv_session_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_new(
    engine: *const ecokv_engine_t,
    params: *const ecokv_session_params_t,
    session: *mut *mut ecokv_session_t,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on; zeros are parameters.
        let (engine, p, out) = unsafe {
            (
                borrow(engine, "engine")?,
                ptr::versioned(params, size_of::<ecokv_session_params_t>(), "session params")?,
                ptr::out(session, "session")?,
            )
        };
        let kv_type = match p.kv_type {
            ECOKV_KV_DEFAULT => KvType::default(),
            ECOKV_KV_F32 => KvType::F32,
            ECOKV_KV_F16 => KvType::F16,
            other => return Err(core::bad("kv_type", ECOKV_KV_F16, other).into()),
        };
        // SAFETY: passed on.
        let eviction = unsafe { eviction(&p) }?;
        let n_ctx = match p.n_ctx as usize {
            0 => engine.engine.config().n_ctx_train,
            n => n,
        };
        let options = SessionOptions { n_ctx, n_generate: p.n_generate as usize, kv_type, eviction };
        // SAFETY: the session is kept beside the counted engine, and dropped before it.
        let borrowed: &'static ecokv::Engine = unsafe { &*std::ptr::from_ref(&engine.engine) };
        let mut session = Session::new(borrowed, options)?;
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

/// Timings and sizes so far: `size` is `sizeof(ecokv_stats_t)`, of which no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_stats(
    session: *mut ecokv_session_t,
    stats: *mut ecokv_stats_t,
    size: usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        let s = enter(&session.0, "session")?.session.stats();
        let ns = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let value = ecokv_stats_t {
            prefill_ns: ns(s.prefill),
            evict_ns: ns(s.evict),
            decode_ns: ns(s.decode),
            prompt_tokens: s.prompt_tokens as u64,
            decoded_tokens: s.decoded_tokens as u64,
            kv_bytes_full: s.kv_bytes_full as u64,
            kv_bytes: s.kv_bytes as u64,
            nan_scores: s.nan_scores.into(),
        };
        // SAFETY: passed on.
        unsafe { write_sized(value, stats, size, "stats") }
    })
}

/// Entries kept after the last prefill, `[n_layers][n_kv_heads]`. `capacity` as in `ecokv_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_session_kept(
    session: *mut ecokv_session_t,
    kept: *mut u32,
    capacity: usize,
    n_kept: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let session = unsafe { borrow(session, "session") }?;
        let stats = enter(&session.0, "session")?.session.stats();
        let all: Vec<u32> = stats.kept.iter().flatten().map(|&n| n as u32).collect();
        // SAFETY: passed on.
        unsafe { copy_out(&all, kept, capacity, n_kept, "kept") }
    })
}

impl State {
    /// Runs the token that was generated last.
    pub fn settle(&mut self) -> Result<(), Refusal> {
        match self.pending.take() {
            Some(id) if self.n_past < self.n_ctx => self.decode(id),
            other => {
                self.pending = other;
                match other {
                    None => Ok(()),
                    Some(_) => {
                        Err(Refusal::new(core::ECOKV_CONTEXT_FULL, format!("the context of {} is full", self.n_ctx)))
                    }
                }
            }
        }
    }

    pub fn sample(&mut self) -> Result<u32, Refusal> {
        self.ready()?;
        Ok(self.sampler.next(&self.logits))
    }

    fn decode(&mut self, id: u32) -> Result<(), Refusal> {
        self.ready()?;
        let logits = self.session.decode(id)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.n_past += 1;
        Ok(())
    }

    fn ready(&self) -> Result<(), Refusal> {
        match self.logits.is_empty() {
            true => Err(Refusal::new(core::ECOKV_BAD_ORDER, "the session has no prompt yet")),
            false => Ok(()),
        }
    }

    fn reset(&mut self) {
        self.session.reset();
        self.logits.clear();
        self.pending = None;
        self.stream = Utf8Stream::default();
        self.n_past = 0;
    }
}

/// # Safety
/// `policy` is null or valid for reading.
unsafe fn eviction(p: &ecokv_session_params_t) -> Result<Option<Eviction>, Refusal> {
    if p.policy.is_null() {
        let what = "a budget, a route or head scores, but no policy";
        let alone = p.budget == 0 && p.route.is_null() && p.head_scores.is_null();
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
