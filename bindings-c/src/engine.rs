//! An opened model.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};
use std::path::Path;

use ecokv::gguf::GgufFile;
use ecokv::kernels::Dispatch;
use ecokv::model::ImageLimits;
use ecokv::ops::Precision;
use ecokv::{Engine, EngineOptions};
use ecokv_core_c::{self as core, ecokv_status_t, ecokv_text_t, ptr};

use crate::call::{Refusal, borrow, free, give, run};
use crate::generate::ECOKV_NO_TOKEN;
use crate::tokens::copy_out;

/// What the library thinks best.
pub const ECOKV_PRECISION_DEFAULT: u32 = 0;
/// Activations of 8 bits: fastest.
pub const ECOKV_PRECISION_INT8: u32 = 1;
/// Activations of 15 bits: a hundredth of the noise.
pub const ECOKV_PRECISION_INT16: u32 = 2;
/// Float arithmetic: slow, a reference.
pub const ECOKV_PRECISION_FLOAT: u32 = 3;

/// Leaves the weights in the file's map, which processes share, instead of repacking them as they are loaded: slower.
pub const ECOKV_ENGINE_NO_REPACK: u32 = 1;

/// Longest name of an instruction set.
const MAX_DISPATCH: usize = 64;

/// Longest path.
const MAX_PATH: usize = 1 << 16;

/// An opened model: immutable, shared by any number of sessions and threads.
pub struct ecokv_engine_t {
    pub(crate) engine: Engine,
}

/// Where a model is and how it computes. Either path or data is given for the model, and at most one for the projector.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_engine_params_t {
    /// `sizeof(ecokv_engine_params_t)`.
    pub struct_size: u32,
    /// Worker threads; 0 means one per core.
    pub n_threads: u32,
    /// One of `ECOKV_PRECISION_...`.
    pub precision: u32,
    /// A sum of `ECOKV_ENGINE_...`.
    pub flags: u32,
    /// GGUF file of the language model, or null.
    pub model_path: *const c_char,
    /// GGUF file of the vision tower ("mmproj"), or null.
    pub mmproj_path: *const c_char,
    /// The model's file in memory, `[model_size]`, or null. It must stay there unchanged until the engine and all that
    /// was made from it are freed.
    pub model_data: *const c_void,
    /// Bytes.
    pub model_size: usize,
    /// The vision tower's file in memory, `[mmproj_size]`, or null; as `model_data`.
    pub mmproj_data: *const c_void,
    /// Bytes.
    pub mmproj_size: usize,
    /// Instruction set of the model's kernels, ending in NUL: `scalar`, `avx2`, `avxvnni`, `avx512`, `amx`, `neon`,
    /// `dotprod` or `i8mm`; null means the best of this CPU.
    pub dispatch: *const c_char,
    /// Most positions that an image may take in a prompt, the text around it not counted; 0 means no limit. Of this limit
    /// and the next two, the largest size within them is used; an image that has none is refused (`ECOKV_IMAGE`).
    pub image_max_tokens: u32,
    /// Most squares into which an image may be cut, its overview included; 0 means no limit.
    pub image_max_tiles: u32,
    /// Most pixels along the longer side of what the model sees; 0 means no limit.
    pub image_longest_edge: u32,
    /// 0.
    pub reserved: u32,
}

/// What a model is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_engine_info_t {
    /// Decoder layers.
    pub n_layers: u32,
    /// Query heads.
    pub n_heads: u32,
    /// KV heads.
    pub n_kv_heads: u32,
    /// Elements of a key row.
    pub head_dim: u32,
    /// Width of a hidden state.
    pub n_embd: u32,
    /// Tokens that logits are computed for.
    pub n_vocab: u32,
    /// Positions the model was trained for.
    pub n_ctx_train: u32,
    /// 1 if it can see images.
    pub has_vision: u32,
    /// 1 if it has a chat template.
    pub has_template: u32,
    /// Worker threads.
    pub n_threads: u32,
    /// The token that begins a sequence, or `ECOKV_NO_TOKEN`.
    pub bos: u32,
    /// The token that ends a sequence, or `ECOKV_NO_TOKEN`. `ecokv_token_is_end` knows others too.
    pub eos: u32,
    /// 1 if prompts begin with `bos`.
    pub adds_bos: u32,
    /// One of `ECOKV_PRECISION_...`.
    pub precision: u32,
    /// Instruction set of the model's kernels.
    pub dispatch: ecokv_text_t,
    /// Architecture, as the file names it; lives as long as the engine.
    pub architecture: ecokv_text_t,
}

/// Opens a model. It is to be freed with `ecokv_engine_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_engine_open(
    params: *const ecokv_engine_params_t,
    engine: *mut *mut ecokv_engine_t,
) -> ecokv_status_t {
    const FIRST: usize = offset_of!(ecokv_engine_params_t, dispatch);
    run(|| {
        // SAFETY: passed on; zeros are parameters.
        let (p, out) = unsafe { (ptr::versioned(params, FIRST, "engine params")?, ptr::out(engine, "engine")?) };
        // SAFETY: passed on.
        let (options, model, mmproj) = unsafe {
            (
                options(&p)?,
                open("model", p.model_path, p.model_data, p.model_size)?,
                open("mmproj", p.mmproj_path, p.mmproj_data, p.mmproj_size)?,
            )
        };
        let model =
            model.ok_or(Refusal::new(core::ECOKV_NULL_POINTER, "neither model_path nor model_data is given"))?;
        let limits = ImageLimits {
            max_tokens: limit(p.image_max_tokens).map(|n| n as usize),
            max_tiles: limit(p.image_max_tiles).map(|n| n as usize),
            longest_edge: limit(p.image_longest_edge),
        };
        let engine = Engine::new(&model, mmproj.as_ref(), options)?.with_image_limits(limits);
        out.write(give(ecokv_engine_t { engine }));
        Ok(())
    })
}

/// Frees an engine; null is nothing. Sessions and prompts made from it may live on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_engine_free(engine: *mut ecokv_engine_t) {
    // SAFETY: passed on.
    unsafe { free(engine) };
}

/// Describes a model: `size` is `sizeof(ecokv_engine_info_t)`, of which no more is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_engine_info(
    engine: *const ecokv_engine_t,
    info: *mut ecokv_engine_info_t,
    size: usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let e = unsafe { borrow(engine, "engine") }?;
        let (c, compute, tokenizer) = (e.engine.config(), e.engine.compute(), e.engine.tokenizer());
        let value = ecokv_engine_info_t {
            n_layers: c.n_layers as u32,
            n_heads: c.n_heads as u32,
            n_kv_heads: c.n_kv_heads as u32,
            head_dim: c.head_dim as u32,
            n_embd: c.n_embd as u32,
            n_vocab: c.n_vocab as u32,
            n_ctx_train: c.n_ctx_train as u32,
            has_vision: e.engine.vision().is_some().into(),
            has_template: e.engine.template().is_ok().into(),
            n_threads: compute.pool.n_threads() as u32,
            bos: tokenizer.bos().unwrap_or(ECOKV_NO_TOKEN),
            eos: tokenizer.eos().unwrap_or(ECOKV_NO_TOKEN),
            adds_bos: tokenizer.add_bos().into(),
            precision: match compute.precision {
                Precision::Int8 => ECOKV_PRECISION_INT8,
                Precision::Int16 => ECOKV_PRECISION_INT16,
                Precision::Float => ECOKV_PRECISION_FLOAT,
            },
            dispatch: compute.dispatch.name().into(),
            architecture: ecokv_text_t { data: c.architecture.as_ptr().cast(), len: c.architecture.len() },
        };
        // SAFETY: passed on.
        unsafe { write_sized(value, info, size, "info") }
    })
}

/// What is odd about a model's file without making it unusable, one line each, without NUL at the end; none for most.
/// `capacity` as in `ecokv_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_engine_warnings(
    engine: *const ecokv_engine_t,
    text: *mut c_char,
    capacity: usize,
    n_bytes: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let e = unsafe { borrow(engine, "engine") }?;
        let all: String = e.engine.tokenizer().warnings().iter().map(|line| format!("{line}\n")).collect();
        // SAFETY: passed on.
        unsafe { copy_out(all.as_bytes(), text.cast(), capacity, n_bytes, "text") }
    })
}

/// Writes the part of an output struct that the caller's header knows.
///
/// # Safety
/// `to` is null or valid for writing `size` bytes.
pub unsafe fn write_sized<T: Copy>(value: T, to: *mut T, size: usize, what: &'static str) -> Result<(), Refusal> {
    // SAFETY: passed on.
    let to = unsafe { ptr::out(to, what) }?.as_mut_ptr().cast::<u8>();
    let bytes = size.min(size_of::<T>());
    // SAFETY: `value` has, and by this function's condition `to` has, that many bytes.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to, bytes) };
    Ok(())
}

/// How the engine computes.
///
/// # Safety
/// `p.dispatch` is null or ends in NUL.
unsafe fn options(p: &ecokv_engine_params_t) -> Result<EngineOptions, Refusal> {
    let precision = match p.precision {
        ECOKV_PRECISION_DEFAULT => Precision::default(),
        ECOKV_PRECISION_INT8 => Precision::Int8,
        ECOKV_PRECISION_INT16 => Precision::Int16,
        ECOKV_PRECISION_FLOAT => Precision::Float,
        other => return Err(core::bad("precision", ECOKV_PRECISION_FLOAT, other).into()),
    };
    if p.flags & !ECOKV_ENGINE_NO_REPACK != 0 {
        return Err(core::bad("flags", ECOKV_ENGINE_NO_REPACK, p.flags).into());
    }
    if p.reserved != 0 {
        return Err(core::bad("reserved", 0, p.reserved).into());
    }
    let dispatch = match p.dispatch.is_null() {
        true => None,
        // SAFETY: passed on.
        false => Some(Dispatch::by_name(unsafe { ptr::text(p.dispatch, MAX_DISPATCH, "dispatch") }?)?),
    };
    let repack = p.flags & ECOKV_ENGINE_NO_REPACK == 0;
    Ok(EngineOptions { n_threads: p.n_threads as usize, precision, dispatch, repack })
}

fn limit(n: u32) -> Option<u32> {
    (n != 0).then_some(n)
}

/// One of the two files, if it is given.
///
/// # Safety
/// The pointers are null or as the comments of the parameters say.
unsafe fn open(
    name: &'static str,
    path: *const c_char,
    data: *const c_void,
    size: usize,
) -> Result<Option<GgufFile>, Refusal> {
    match (path.is_null(), data.is_null()) {
        (true, true) => Ok(None),
        (false, true) => {
            // SAFETY: passed on.
            let path = unsafe { ptr::text(path, MAX_PATH, name) }?;
            Ok(Some(GgufFile::open(Path::new(path))?))
        }
        (true, false) => {
            // SAFETY: the bytes stay as long as anything that was made from them, which is all that 'static stands for
            // here: the file is only reachable through handles.
            let bytes: &'static [u8] = unsafe { ptr::slice(data.cast(), size, name) }?;
            Ok(Some(GgufFile::from_static(name, bytes)?))
        }
        (false, false) => Err(Refusal::new(core::ECOKV_BAD_VALUE, format!("{name}: both a path and data are given"))),
    }
}
