//! The demo model and its 200 held-out questions.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use ecokv::cache::KvType;
use ecokv::image::{Limits, RgbImage};
use ecokv::ops::Precision;
use ecokv::{Engine, EngineOptions, Eviction, Prompt, Session, SessionOptions, argmax};
use serde::Deserialize;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A line of `testdata/tinyvlm/evalset.jsonl`.
#[derive(Deserialize)]
#[allow(dead_code)] // the example compares answers only
pub struct Question {
    pub image: String,
    pub question: String,
    pub answer: String,
    /// Answer of the model in PyTorch with the full cache.
    pub pytorch: String,
    /// Tokens behind the image.
    pub prompt_ids: Vec<u32>,
}

/// The 200 questions.
pub fn questions() -> Result<Vec<Question>> {
    let lines = fs::read_to_string(root().join("testdata/tinyvlm/evalset.jsonl"))?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// The model. Questions are answered side by side, each on one thread.
pub fn engine(precision: Precision) -> Result<Engine> {
    let models = root().join("examples/models");
    let options = EngineOptions { n_threads: 1, precision, ..EngineOptions::default() };
    let (model, mmproj) = (models.join("tinyvlm-q8_0.gguf"), models.join("mmproj-cls-f16.gguf"));
    Ok(Engine::open(&model, Some(&mmproj), options)?)
}

/// The prompts of `questions`, images encoded.
pub fn prompts(engine: &Engine, questions: &[Question]) -> Result<Vec<Prompt>> {
    each(questions, |q| {
        let page = fs::read(root().join("testdata/tinyvlm").join(&q.image))?;
        let page = RgbImage::from_encoded(&page, &Limits::default())?;
        Ok(Prompt::chat(engine, &q.question, &[page])?)
    })
}

/// The greedy answers to `prompts`.
pub fn answers(engine: &Engine, prompts: &[Prompt], eviction: Option<Eviction>) -> Result<Vec<String>> {
    each(prompts, |prompt| answer(engine, prompt, eviction))
}

/// How many answers are right, in percent.
pub fn exact_match(questions: &[Question], answers: &[String]) -> f64 {
    let right = questions.iter().zip(answers).filter(|(q, a)| q.answer == **a).count();
    100.0 * right as f64 / questions.len() as f64
}

/// At most 12 tokens: the longest right answer has 7.
fn answer(engine: &Engine, prompt: &Prompt, eviction: Option<Eviction>) -> Result<String> {
    let n_generate = 12;
    let options = SessionOptions { n_ctx: 0, n_generate, kv_type: KvType::F16, eviction };
    let mut session = Session::new(engine, options)?;
    let mut id = argmax(&session.prefill(prompt)?);
    let mut bytes = Vec::new();
    for _ in 0..n_generate {
        if engine.tokenizer().is_end_of_generation(id) {
            break;
        }
        engine.tokenizer().decode_bytes(id, &mut bytes);
        id = argmax(session.decode(id)?);
    }
    Ok(String::from_utf8(bytes)?)
}

/// `f` of every item, in order, on all cores.
fn each<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, R)>> {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return Ok(done) };
            done.push((i, f(item)?));
        }
    };
    let n_threads = thread::available_parallelism()?.get();
    let parts = thread::scope(|scope| {
        let workers: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|w| w.join().expect("a worker panicked")).collect::<Result<Vec<_>>>()
    });
    let mut all: Vec<_> = parts?.into_iter().flatten().collect();
    all.sort_by_key(|&(i, _)| i);
    Ok(all.into_iter().map(|(_, r)| r).collect())
}

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
