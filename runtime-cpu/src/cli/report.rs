//! What an answer took: the closing table, the JSON object, the notes.

use ecokv::model::{ImageCost, ImageLimits};
use ecokv::template::Source;
use ecokv::{Engine, Modalities, Modality};
use ecokv_core::Recent;
use serde::Serialize;

use super::args::RunArgs;
use super::choice::Choice;
use super::generate::{Answer, End, Prepared};
use super::memory::peak_rss_bytes;
use super::methods;
use super::output::{bytes, columns, note, plain};

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    text: &'a str,
    tokens: &'a [u32],
    prompt_tokens: usize,
    image_tokens: usize,
    image_tiles: usize,
    method: &'a str,
    budget: Option<u32>,
    /// `[n_layers][n_kv_heads]`
    kept: &'a [Vec<usize>],
    kv_bytes_full: usize,
    kv_bytes: usize,
    prefill_s: f64,
    evict_s: f64,
    decode_s: f64,
    prompt_tokens_per_s: Option<f64>,
    decode_tokens_per_s: Option<f64>,
    peak_rss_bytes: Option<u64>,
}

/// One line of JSON.
pub fn json(choice: &Choice, answer: &Answer) -> String {
    let s = &answer.stats;
    let report = Report {
        text: &answer.text,
        tokens: &answer.tokens,
        prompt_tokens: answer.prompt_tokens,
        image_tokens: answer.image_tokens,
        image_tiles: answer.image_tiles,
        method: choice.name,
        budget: choice.eviction.map(|e| e.budget),
        kept: &s.kept,
        kv_bytes_full: s.kv_bytes_full,
        kv_bytes: answer.kv_bytes,
        prefill_s: s.prefill.as_secs_f64(),
        evict_s: s.evict.as_secs_f64(),
        decode_s: s.decode.as_secs_f64(),
        prompt_tokens_per_s: rate(answer.prompt_tokens, s.prefill.as_secs_f64()),
        decode_tokens_per_s: decode_rate(answer),
        peak_rss_bytes: peak_rss_bytes(),
    };
    serde_json::to_string(&report).expect("strings and numbers always serialise")
}

/// The closing table.
pub fn table(engine: &Engine, args: &RunArgs, choice: &Choice, prepared: &Prepared, answer: &Answer) -> String {
    let s = &answer.stats;
    let seconds = |t: f64, n: usize| match rate(n, t) {
        Some(rate) => format!("{t:.3} s, {rate:.1} tokens/s"),
        None => format!("{t:.3} s"),
    };
    let mut rows = vec![
        ("prompt", format!("{}, {} of them from images", tokens(answer.prompt_tokens), answer.image_tokens)),
        ("answer", format!("{}, ended by {}", tokens(answer.tokens.len()), end(engine, answer.end))),
        ("sampling", sampling(args)),
        ("method", method(args, choice)),
        ("kept", kept(answer)),
        ("KV cache", kv_cache(answer)),
    ];
    if answer.image_tokens > 0 {
        rows.push(("images", images(args, prepared)));
    }
    rows.extend([
        ("prefill", seconds(s.prefill.as_secs_f64(), answer.prompt_tokens)),
        ("evict", seconds(s.evict.as_secs_f64(), 0)),
        ("decode", seconds(s.decode.as_secs_f64(), s.decoded_tokens)),
        ("memory", peak_rss_bytes().map_or("unknown".into(), |n| format!("{} at most", bytes(n)))),
    ]);
    columns(&rows.into_iter().map(|(name, value)| vec![name.into(), value]).collect::<Vec<_>>())
}

/// What is odd about the files but does not stop them.
pub fn file_notes(engine: &Engine, raw: bool) {
    for warning in engine.tokenizer().warnings() {
        note(&format!("tokenizer: {warning}"));
    }
    match engine.template() {
        Ok(template) if !raw && template.source() != Source::File => {
            note(&format!("the model file has no chat template, the one used is {}", template.source()));
        }
        _ => {}
    }
}

/// Where the answer was not made as asked.
pub fn answer_notes(args: &RunArgs, choice: &Choice, answer: &Answer) {
    if args.temp == 0.0 && (args.top_k != 0 || args.top_p != 1.0) {
        note("--temp 0 is greedy: --top-k and --top-p change nothing");
    }
    if let Some(text) = window_note(choice, answer) {
        note(&text);
    }
    if answer.stats.nan_scores > 0 {
        note(&format!("{} scores were not a number; their entries were evicted first", answer.stats.nan_scores));
    }
    if let End::Context(n_ctx) = answer.end {
        note(&format!("the answer was cut off at the end of the context of {n_ctx} tokens"));
    }
}

/// Entries per head: the mean, or the range and the mean.
pub fn entries(answer: &Answer) -> String {
    let counts = || answer.stats.kept.iter().flatten().copied();
    let (min, max) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    if min == max {
        return min.to_string();
    }
    format!("{min} to {max}, mean {:.1}", counts().sum::<usize>() as f64 / counts().count() as f64)
}

/// Decode steps per second.
pub fn decode_rate(answer: &Answer) -> Option<f64> {
    rate(answer.stats.decoded_tokens, answer.stats.decode.as_secs_f64())
}

fn rate(n: usize, seconds: f64) -> Option<f64> {
    (n > 0 && seconds > 0.0).then(|| n as f64 / seconds)
}

/// Count, cost, limits and time.
fn images(args: &RunArgs, prepared: &Prepared) -> String {
    let costs = prepared.prompt.image_costs();
    let total = |of: fn(&ImageCost) -> usize| costs.iter().map(of).sum::<usize>();
    let (n_tokens, n_tiles) = (total(|c| c.n_tokens), total(|c| c.n_tiles));
    let longest = costs.iter().map(|c| c.longest_edge).max().unwrap_or(0);
    let limits = args.limits.limits();
    let limits = if limits == ImageLimits::default() { "none".into() } else { limits.to_string() };
    format!(
        "{} in {n_tiles} tiles, {}, longest edge {longest}; limits for each: {limits}; {:.3} s",
        costs.len(),
        tokens(n_tokens),
        prepared.elapsed.as_secs_f64()
    )
}

fn tokens(n: usize) -> String {
    if n == 1 { "1 token".into() } else { format!("{n} tokens") }
}

fn end(engine: &Engine, end: End) -> String {
    match end {
        End::Token(id) => plain(engine.tokenizer().token_text(id).unwrap_or("a token")).into_owned(),
        End::Limit => "the limit (-n)".into(),
        End::Context(n_ctx) => format!("the context of {n_ctx}"),
    }
}

fn sampling(args: &RunArgs) -> String {
    if args.temp == 0.0 {
        return "greedy (temperature 0)".into();
    }
    format!("temperature {}, top-k {}, top-p {}, seed {}", args.temp, args.top_k, args.top_p, args.seed)
}

fn method(args: &RunArgs, choice: &Choice) -> String {
    let Some(e) = choice.eviction else { return format!("{}, everything is kept", choice.name) };
    let (heads, layers) = (methods::head_budget(e.policy.head_budget), methods::layer_budget(e.layer_budget));
    let Modalities { protect, image_budget } = args.method.modalities();
    let whole = match protect {
        None => "",
        Some(Modality::Text) => ", all text",
        Some(Modality::Image) => ", all images",
    };
    let share = image_budget.map_or(String::new(), |n| format!("; {n} of the budget for images"));
    let protects = methods::protects(e.policy.protect) + whole + &share;
    format!("{}, budget {}; heads {heads}; layers {layers}; protects {protects}", choice.name, e.budget)
}

fn kept(answer: &Answer) -> String {
    format!("{} of {} entries per head", entries(answer), answer.prompt_tokens)
}

fn kv_cache(answer: &Answer) -> String {
    let (kept, full) = (answer.kv_bytes, answer.stats.kv_bytes_full);
    let percent = 100.0 * kept as f64 / full.max(1) as f64;
    format!("{} of {} ({percent:.1} %)", bytes(kept as u64), bytes(full as u64))
}

/// A window gives way to a budget that would leave nothing to choose.
fn window_note(choice: &Choice, answer: &Answer) -> Option<String> {
    let e = choice.eviction?;
    let Recent::Window(window) = e.policy.protect.recent else { return None };
    let least = answer.stats.recent_kept.iter().copied().min()?;
    if least as usize >= (window as usize).min(answer.prompt_tokens) {
        return None;
    }
    let (name, budget) = (choice.name, e.budget);
    Some(format!("{name}: of the window of {window} entries only {least} are kept, as the budget is {budget}"))
}
