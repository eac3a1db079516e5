//! What a model expects after each token of a text, for comparisons with other programs: a line with the most likely next
//! token and the negative log-likelihood of the one that really comes.
//!
//! `cargo run --release --example next_tokens MODEL.gguf IDS.txt [int8|int16|float]`, the ids separated by white space.

use std::io::{BufWriter, Write};
use std::path::Path;

use ecokv::cache::KvType;
use ecokv::ops::Precision;
use ecokv::{Engine, EngineOptions, Prompt, Session, SessionOptions, argmax};

/// Tokens per prompt: bounds the logits held at once.
const PART: usize = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(ids)) = (args.next(), args.next()) else {
        return Err("MODEL.gguf IDS.txt [int8|int16|float]".into());
    };
    let precision = match args.next().as_deref() {
        Some("int8") => Precision::Int8,
        None | Some("int16") => Precision::Int16,
        Some("float") => Precision::Float,
        Some(other) => return Err(format!("no precision is called {other}").into()),
    };
    let ids = std::fs::read_to_string(ids)?.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let engine = Engine::open(Path::new(&model), None, EngineOptions { precision, ..EngineOptions::default() })?;
    let options = SessionOptions { n_ctx: ids.len() + 1, n_generate: 0, kv_type: KvType::F16, eviction: None };
    let mut session = Session::new(&engine, options)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut next = ids.iter().skip(1);
    for part in ids.chunks(PART) {
        let logits = session.prefill_all_logits(&Prompt::tokens(&engine, part.to_vec())?)?;
        for logits in logits.chunks(engine.config().n_vocab) {
            let Some(&id) = next.next() else { break };
            let top = argmax(logits);
            let max = f64::from(logits[top as usize]);
            let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
            let nll = sum.ln() + max - f64::from(logits[id as usize]);
            writeln!(out, "{top} {nll:.6}")?;
        }
        out.flush()?;
    }
    Ok(())
}
