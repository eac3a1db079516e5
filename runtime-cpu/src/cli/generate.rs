//! Prompt in, text out: prefill, eviction and the decode loop, with what there is to say about them.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use ecokv::image::RgbImage;
use ecokv::tokenizer::Utf8Stream;
use ecokv::{Engine, Error, Prompt, Sampler, Session, SessionOptions, Stats};

use super::args::{MethodArgs, RunArgs};
use super::choice::Choice;
use super::output::{Failure, Progress};

/// A route or profile is not read beyond this.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// A prompt that is ready to run, any number of times.
pub struct Prepared {
    pub prompt: Prompt,
    /// Time to encode images and text.
    pub elapsed: Duration,
}

/// An answer and what it took.
pub struct Answer {
    pub text: String,
    /// Without the end token.
    pub tokens: Vec<u32>,
    pub end: End,
    pub prompt_tokens: usize,
    pub image_tokens: usize,
    /// Squares that the tower encoded.
    pub image_tiles: usize,
    pub stats: Stats,
    /// Bytes of the cache between eviction and answer.
    pub kv_bytes: usize,
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended it with this token.
    Token(u32),
    /// It has as many tokens as were asked for.
    Limit,
    /// The context of so many positions is full.
    Context(usize),
}

impl Prepared {
    pub fn new(engine: &Engine, text: &str, images: &[RgbImage], raw: bool) -> Result<Prepared, Failure> {
        let start = Instant::now();
        let prompt = match raw {
            true => Prompt::raw(engine, text, images)?,
            false => Prompt::chat(engine, text, images)?,
        };
        Ok(Prepared { prompt, elapsed: start.elapsed() })
    }
}

/// A session with the route and the profile that the flags name.
pub fn open_session<'e>(
    engine: &'e Engine,
    options: SessionOptions,
    args: &MethodArgs,
) -> Result<Session<'e>, Failure> {
    let mut session = Session::new(engine, options)?;
    if let Some(path) = &args.route {
        session.set_route(&read_text(path)?)?;
    }
    if let Some(path) = &args.head_profile {
        session.set_head_profile(read_numbers(path)?)?;
    }
    session.set_modalities(args.modalities())?;
    Ok(session)
}

/// Answers a prompt; `on_text` gets every piece of the text as soon as it is known.
pub fn generate(
    engine: &Engine,
    args: &RunArgs,
    choice: &Choice,
    prompt: &Prompt,
    progress: &Progress,
    mut on_text: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Answer, Failure> {
    let n_ctx = args.ctx.map_or(engine.config().n_ctx_train, |n| n as usize);
    let options =
        SessionOptions { n_ctx, n_generate: args.n_predict, kv_type: args.kv_type.into(), eviction: choice.eviction };
    let mut session = open_session(engine, options, &args.method)?;
    let mut sampler = Sampler::new(args.sampling());
    let n_prompt = prompt.n_tokens();
    progress.stage(&format!("reading {n_prompt} tokens"));
    let mut next = sampler.next(&session.prefill(prompt)?);
    let kv_bytes = session.stats().kv_bytes;
    progress.stage("answering");

    let tokenizer = engine.tokenizer();
    let room = n_ctx.saturating_sub(n_prompt);
    let mut stream = Utf8Stream::default();
    let (mut text, mut tokens, mut bytes) = (String::new(), Vec::new(), Vec::new());
    let end = loop {
        if tokens.len() >= args.n_predict {
            break End::Limit;
        }
        if tokenizer.is_end_of_generation(next) {
            break End::Token(next);
        }
        if tokens.len() >= room {
            break End::Context(n_ctx);
        }
        tokens.push(next);
        bytes.clear();
        tokenizer.decode_bytes(next, &mut bytes);
        let piece = stream.push(&bytes);
        text.push_str(piece);
        on_text(piece)?;
        // Nothing would be chosen from the logits after the last token.
        if tokens.len() < args.n_predict.min(room) {
            next = sampler.next(session.decode(next)?);
        }
    };
    let piece = stream.finish();
    text.push_str(piece);
    on_text(piece)?;
    Ok(Answer {
        text,
        tokens,
        end,
        prompt_tokens: n_prompt,
        image_tokens: prompt.n_image_tokens(),
        image_tiles: prompt.image_costs().iter().map(|c| c.n_tiles).sum(),
        stats: session.stats(),
        kv_bytes,
    })
}

/// A small text file.
fn read_text(path: &Path) -> Result<String, Failure> {
    let io = |source| Failure::from(Error::Io { path: path.into(), source });
    let mut text = String::new();
    File::open(path).map_err(io)?.take(MAX_TEXT_BYTES).read_to_string(&mut text).map_err(io)?;
    Ok(text)
}

fn read_numbers(path: &Path) -> Result<Vec<f32>, Failure> {
    let number = |word: &str| {
        word.parse().map_err(|_| Failure::Mendable(format!("{}: {word:?} is not a number", path.display())))
    };
    read_text(path)?.split_whitespace().map(number).collect()
}
