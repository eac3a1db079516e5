//! A prompt, put together from messages, text and images.

use std::ffi::c_char;
use std::sync::{Arc, Mutex};

use ecokv::image::{Limits, RgbImage};
use ecokv::template::{Message, Part};
use ecokv::{MEDIA_MARKER, Prompt};
use ecokv_core_c::{self as core, ecokv_status_t, ptr};

use crate::call::{Refusal, borrow, enter, free, give, run};
use crate::engine::ecokv_engine_t;
use crate::tokens::copy_out;

/// Messages under the model's chat template.
pub const ECOKV_PROMPT_CHAT: u32 = 0;
/// The text as it is, with the begin token if the model asks for one.
pub const ECOKV_PROMPT_RAW: u32 = 1;

/// Longest role.
const MAX_ROLE: usize = 256;

/// A prompt: one thread at a time.
pub struct ecokv_prompt_t(Mutex<Builder>);

pub(crate) struct Builder {
    engine: Arc<ecokv_engine_t>,
    raw: bool,
    messages: Vec<Message>,
    images: Vec<RgbImage>,
    /// A prompt of token ids has nothing else.
    ids: Vec<u32>,
    /// Tokenised and encoded; gone with the next change.
    built: Option<Prompt>,
}

/// What an image takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ecokv_image_cost_t {
    /// Positions in the prompt, the text around it not counted.
    pub n_tokens: u32,
    /// Squares that the vision tower encodes, an overview included.
    pub n_tiles: u32,
    /// Pixels along the longer side of what the model sees.
    pub longest_edge: u32,
}

/// An empty prompt for a model; `kind` is one of `ECOKV_PROMPT_...`. It is to be freed with `ecokv_prompt_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_new(
    engine: *const ecokv_engine_t,
    kind: u32,
    prompt: *mut *mut ecokv_prompt_t,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (engine, out) = unsafe { (borrow(engine, "engine")?, ptr::out(prompt, "prompt")?) };
        if kind > ECOKV_PROMPT_RAW {
            return Err(core::bad("kind", ECOKV_PROMPT_RAW, kind).into());
        }
        let raw = kind == ECOKV_PROMPT_RAW;
        let empty = Builder { engine, raw, messages: Vec::new(), images: Vec::new(), ids: Vec::new(), built: None };
        out.write(give(ecokv_prompt_t(Mutex::new(empty))));
        Ok(())
    })
}

/// Frees a prompt; null is nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_free(prompt: *mut ecokv_prompt_t) {
    // SAFETY: passed on.
    unsafe { free(prompt) };
}

/// Begins the next message of a chat: `role` is `system`, `user` or `assistant`, ending in NUL. Without it, text and images
/// belong to a user's message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_add_message(prompt: *mut ecokv_prompt_t, role: *const c_char) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (prompt, role) = unsafe { (borrow(prompt, "prompt")?, ptr::text(role, MAX_ROLE, "role")?) };
        let mut b = enter(&prompt.0, "prompt")?;
        if b.raw {
            return Err(Refusal::new(core::ECOKV_BAD_ORDER, "a raw prompt has no messages"));
        }
        b.messages.push(Message { role: role.into(), content: Vec::new() });
        b.built = None;
        Ok(())
    })
}

/// Adds text, `[len]` bytes of UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_add_text(
    prompt: *mut ecokv_prompt_t,
    text: *const c_char,
    len: usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (prompt, text) = unsafe { (borrow(prompt, "prompt")?, ptr::slice(text.cast::<u8>(), len, "text")?) };
        let text = ptr::utf8(text, "text")?;
        if text.contains(MEDIA_MARKER) {
            let what = format!("the text holds {MEDIA_MARKER}, which stands for an image");
            return Err(Refusal::new(core::ECOKV_PROMPT, what));
        }
        enter(&prompt.0, "prompt")?.add(Part::Text(text.into()))
    })
}

/// Adds an image, the bytes of a PNG or JPEG file, `[size]`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_add_image(
    prompt: *mut ecokv_prompt_t,
    bytes: *const u8,
    size: usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (prompt, bytes) = unsafe { (borrow(prompt, "prompt")?, ptr::slice(bytes, size, "bytes")?) };
        enter(&prompt.0, "prompt")?.add_image(RgbImage::from_encoded(bytes, &Limits::default())?)
    })
}

/// Adds an image, 8-bit samples `[height][width][3]`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_add_pixels(
    prompt: *mut ecokv_prompt_t,
    width: u32,
    height: u32,
    pixels: *const u8,
    size: usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (prompt, pixels) = unsafe { (borrow(prompt, "prompt")?, ptr::slice(pixels, size, "pixels")?) };
        enter(&prompt.0, "prompt")?.add_image(RgbImage::from_rgb(width, height, pixels.to_vec())?)
    })
}

/// Adds token ids, `[n]`, to a raw prompt that has nothing else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_add_tokens(
    prompt: *mut ecokv_prompt_t,
    ids: *const u32,
    n: usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (prompt, ids) = unsafe { (borrow(prompt, "prompt")?, ptr::slice(ids, n, "ids")?) };
        let mut b = enter(&prompt.0, "prompt")?;
        if !b.raw || !b.messages.is_empty() {
            return Err(Refusal::new(core::ECOKV_BAD_ORDER, "token ids make a raw prompt of nothing else"));
        }
        Prompt::tokens(&b.engine.engine, ids.to_vec())?; // refuses ids beyond the vocabulary
        b.ids.extend_from_slice(ids);
        b.built = None;
        Ok(())
    })
}

/// Positions that the prompt takes, and how many of them are images'. Encodes what was added; the next prefill need not.
/// `n_image_tokens` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_count(
    prompt: *mut ecokv_prompt_t,
    n_tokens: *mut usize,
    n_image_tokens: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let (prompt, tokens, images) = unsafe {
            (
                borrow(prompt, "prompt")?,
                ptr::out(n_tokens, "n_tokens")?,
                ptr::optional_out(n_image_tokens, "n_image_tokens")?,
            )
        };
        let mut b = enter(&prompt.0, "prompt")?;
        let built = b.build()?;
        tokens.write(built.n_tokens());
        if let Some(images) = images {
            images.write(built.n_image_tokens());
        }
        Ok(())
    })
}

/// What each image of a prompt takes, in order. Encodes what was added, as `ecokv_prompt_count`. `capacity` as in
/// `ecokv_tokenize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ecokv_prompt_image_costs(
    prompt: *mut ecokv_prompt_t,
    costs: *mut ecokv_image_cost_t,
    capacity: usize,
    n_costs: *mut usize,
) -> ecokv_status_t {
    run(|| {
        // SAFETY: passed on.
        let prompt = unsafe { borrow(prompt, "prompt") }?;
        let mut b = enter(&prompt.0, "prompt")?;
        let cost = |c: &ecokv::model::ImageCost| ecokv_image_cost_t {
            n_tokens: c.n_tokens as u32,
            n_tiles: c.n_tiles as u32,
            longest_edge: c.longest_edge,
        };
        let all: Vec<_> = b.build()?.image_costs().iter().map(cost).collect();
        // SAFETY: passed on.
        unsafe { copy_out(&all, costs, capacity, n_costs, "costs") }
    })
}

impl ecokv_prompt_t {
    pub(crate) fn builder(&self) -> Result<std::sync::MutexGuard<'_, Builder>, Refusal> {
        enter(&self.0, "prompt")
    }
}

impl Builder {
    /// The prompt, encoded once.
    pub fn build(&mut self) -> Result<&Prompt, Refusal> {
        if self.built.is_none() {
            let engine = &self.engine.engine;
            self.built = Some(if !self.ids.is_empty() {
                Prompt::tokens(engine, self.ids.clone())?
            } else if self.raw {
                Prompt::raw(engine, &self.raw_text(), &self.images)?
            } else {
                Prompt::messages(engine, &self.messages, &self.images)?
            });
        }
        self.built.as_ref().ok_or(Refusal::new(core::ECOKV_BUG, "no prompt was built"))
    }

    /// Whether the prompt was made for this engine.
    pub fn is_for(&self, engine: &Arc<ecokv_engine_t>) -> bool {
        Arc::ptr_eq(&self.engine, engine)
    }

    fn add(&mut self, part: Part) -> Result<(), Refusal> {
        if !self.ids.is_empty() {
            return Err(Refusal::new(core::ECOKV_BAD_ORDER, "a prompt of token ids has nothing else"));
        }
        self.built = None;
        match self.messages.last_mut() {
            Some(message) => message.content.push(part),
            None => self.messages.push(Message { role: "user".into(), content: vec![part] }),
        }
        Ok(())
    }

    fn add_image(&mut self, image: RgbImage) -> Result<(), Refusal> {
        self.add(Part::Image)?;
        self.images.push(image);
        Ok(())
    }

    fn raw_text(&self) -> String {
        let parts = self.messages.iter().flat_map(|m| &m.content);
        parts.map(|part| if let Part::Text(text) = part { text } else { MEDIA_MARKER }).collect()
    }
}
