//! `ecokv bench`: how fast a model reads prompts and answers, in the manner of llama-bench.

use std::time::Instant;

use clap::ValueEnum;
use ecokv::gguf::GgufFile;
use ecokv::kernels::Dispatch;
use ecokv::{Engine, Prompt, Session, SessionOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::args::BenchArgs;
use super::choice::Choice;
use super::generate::open_session;
use super::memory::{forget_peak, peak_rss_bytes};
use super::output::{Failure, Progress, bytes, columns, print};

/// What is timed, once the context is as deep as asked for.
#[derive(Clone, Copy, Serialize)]
enum Kind {
    /// Reading a prompt, its eviction included.
    #[serde(rename = "pp")]
    Prompt,
    /// Generating tokens, one after the other.
    #[serde(rename = "tg")]
    Generate,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    results: &'a [Measured],
    model: &'a str,
    dispatch: &'a str,
    precision: String,
    kv_type: String,
    repack: bool,
    method: &'a str,
    budget: Option<u32>,
    repetitions: u32,
}

#[derive(Serialize)]
struct Measured {
    test: Kind,
    n: usize,
    depth: usize,
    threads: usize,
    tokens_per_s: f64,
    spread: f64,
    kv_bytes: usize,
    peak_rss_bytes: Option<u64>,
}

pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let choice = Choice::new(&args.method, 0)?;
    let dispatch = args.kernels.engine_options(1)?.dispatch.unwrap_or_else(Dispatch::detect);
    let prompts = args.prompts.iter().map(|&n| (Kind::Prompt, n as usize));
    let answers = args.n_predict.iter().map(|&n| (Kind::Generate, n as usize));
    let tests: Vec<(Kind, usize)> = prompts.chain(answers).filter(|&(_, n)| n > 0).collect();
    if tests.is_empty() {
        return Err(Failure::Mendable("-p 0 and -n 0 leave nothing to measure".into()));
    }
    let progress = Progress::new();
    let file = GgufFile::open(&args.model)?;
    let threads = if args.threads.is_empty() { &[0][..] } else { &args.threads[..] };
    let mut results = Vec::new();
    for &n_threads in threads {
        progress.stage("opening the model");
        let options = args.kernels.engine_options(n_threads as usize)?;
        let bench = Bench { engine: &Engine::new(&file, None, options)?, args, choice: &choice };
        bench.check_context(&tests)?;
        for &depth in &args.depths {
            for &(kind, n) in &tests {
                progress.stage(&format!("{} on {} threads", name(kind, n, depth as usize), bench.n_threads()));
                results.push(bench.measure(kind, n, depth as usize)?);
            }
        }
    }
    progress.clear();
    let report = Report {
        results: &results,
        model: &args.model.to_string_lossy(),
        dispatch: dispatch.name(),
        precision: value_name(args.kernels.precision),
        kv_type: value_name(args.kv_type),
        repack: !args.kernels.no_repack,
        method: choice.name,
        budget: choice.eviction.map(|e| e.budget),
        repetitions: args.repetitions,
    };
    if args.json {
        let json = serde_json::to_string(&report).expect("strings and numbers always serialise");
        return print(&format!("{json}\n"));
    }
    print(&table(&report))
}

fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |v| v.get_name().into())
}

/// One model on some threads.
struct Bench<'a> {
    engine: &'a Engine,
    args: &'a BenchArgs,
    choice: &'a Choice,
}

impl<'a> Bench<'a> {
    fn n_threads(&self) -> usize {
        self.engine.compute().pool.n_threads()
    }

    /// Before hours of measuring, not after.
    fn check_context(&self, tests: &[(Kind, usize)]) -> Result<(), Failure> {
        let context = self.engine.config().n_ctx_train;
        for &depth in &self.args.depths {
            for &(kind, n) in tests {
                if depth as usize + n > context {
                    let name = name(kind, n, depth as usize);
                    return Err(Failure::Mendable(format!("{name} does not fit the context of {context} tokens")));
                }
            }
        }
        Ok(())
    }

    /// The first repetition warms up and is not counted.
    fn measure(&self, kind: Kind, n: usize, depth: usize) -> Result<Measured, Failure> {
        forget_peak();
        let headroom = if matches!(kind, Kind::Generate) { n } else { 0 };
        let ids = self.token_ids(n, 1);
        let prompt = Prompt::tokens(self.engine, ids.clone())?;
        let mut session = self.at_depth(depth, headroom)?;
        let mut rates = Vec::new();
        for i in 0..=self.args.repetitions {
            if i > 0 {
                session = self.back_to_depth(session, depth, headroom)?;
            }
            let start = Instant::now();
            match kind {
                Kind::Prompt => drop(session.prefill(&prompt)?),
                Kind::Generate => {
                    for &id in &ids {
                        session.decode(id)?;
                    }
                }
            }
            rates.push(n as f64 / start.elapsed().as_secs_f64());
        }
        let mut rates = rates.split_off(1);
        rates.sort_by(f64::total_cmp);
        Ok(Measured {
            test: kind,
            n,
            depth,
            threads: self.n_threads(),
            tokens_per_s: quantile(&rates, 0.5),
            spread: (quantile(&rates, 0.75) - quantile(&rates, 0.25)) / 2.0,
            kv_bytes: session.stats().kv_bytes,
            peak_rss_bytes: peak_rss_bytes(),
        })
    }

    /// A session that has read `depth` tokens, and evicted.
    fn at_depth(&self, depth: usize, headroom: usize) -> Result<Session<'a>, Failure> {
        let kv_type = self.args.kv_type.into();
        let options = SessionOptions { n_ctx: 0, n_generate: headroom, kv_type, eviction: self.choice.eviction };
        let mut session = open_session(self.engine, options, &self.args.method)?;
        if depth > 0 {
            session.prefill(&Prompt::tokens(self.engine, self.token_ids(depth, 0))?)?;
        }
        Ok(session)
    }

    /// The same state as before. Only a prompt that was evicted costs a new session.
    fn back_to_depth(&self, mut session: Session<'a>, depth: usize, headroom: usize) -> Result<Session<'a>, Failure> {
        if session.rewind(depth).is_ok() {
            return Ok(session);
        }
        // Two of them at once would show in the peak.
        drop(session);
        self.at_depth(depth, headroom)
    }

    /// Any tokens take the same time.
    fn token_ids(&self, n: usize, seed: u64) -> Vec<u32> {
        let mut rng = StdRng::seed_from_u64(seed);
        let n_vocab = self.engine.config().n_vocab as u32;
        (0..n).map(|_| rng.random_range(0..n_vocab)).collect()
    }
}

/// Between the sorted values, linearly.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

fn name(kind: Kind, n: usize, depth: usize) -> String {
    let kind = match kind {
        Kind::Prompt => "pp",
        Kind::Generate => "tg",
    };
    if depth == 0 { format!("{kind}{n}") } else { format!("{kind}{n} @ d{depth}") }
}

fn table(report: &Report<'_>) -> String {
    let budget = report.budget.map_or(String::new(), |b| format!(", budget {b}"));
    let mut rows = vec![["test", "threads", "tokens/s", "spread", "KV cache", "memory"].map(String::from).to_vec()];
    rows.extend(report.results.iter().map(|m| {
        vec![
            name(m.test, m.n, m.depth),
            m.threads.to_string(),
            format!("{:.2}", m.tokens_per_s),
            format!("{:.2}", m.spread),
            bytes(m.kv_bytes as u64),
            m.peak_rss_bytes.map_or("unknown".into(), bytes),
        ]
    }));
    format!(
        "{}: {} kernels, {} activations, {} cache, method {}{budget}; medians of {}\n\n{}",
        report.model,
        report.dispatch,
        report.precision,
        report.kv_type,
        report.method,
        report.repetitions,
        columns(&rows)
    )
}
