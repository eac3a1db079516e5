//! One conversation: prefill, evict, decode. The only file that knows the whole order.

use std::time::{Duration, Instant};

use ecokv_core::{self as core, LayerBudget, LayerShape, LayerView, Policy, Rows};

use crate::Error;
use crate::cache::{Kept, KvCache, KvType};
use crate::engine::Engine;
use crate::model::{DecodeState, Logits, Staged};
use crate::observe::Observer;
use crate::prompt::{Chunk, Prompt};

/// What a session keeps in its cache.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Positions that prompt and generated tokens may take together; 0 means what the model was trained for.
    pub n_ctx: usize,
    /// Tokens that will be generated: room is reserved for them.
    pub n_generate: usize,
    /// Element type of the cache.
    pub kv_type: KvType,
    /// Eviction after the prompt, if any.
    pub eviction: Option<Eviction>,
}

/// What stays of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eviction {
    /// The choice inside a layer.
    pub policy: Policy,
    /// The choice between layers.
    pub layer_budget: LayerBudget,
    /// Entries kept per KV head, on average over heads and layers, protected ones included.
    pub budget: u32,
}

/// What a session has done so far.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Time in prefill, eviction excluded.
    pub prefill: Duration,
    /// Time spent scoring, selecting and compacting.
    pub evict: Duration,
    /// Time in decode steps.
    pub decode: Duration,
    /// Prompt positions processed.
    pub prompt_tokens: usize,
    /// Decode steps.
    pub decoded_tokens: usize,
    /// Bytes that the cache would take with every prompt entry kept.
    pub kv_bytes_full: usize,
    /// Bytes of the cache after the last eviction or step.
    pub kv_bytes: usize,
    /// Entries kept after the last prefill, `[n_layers][n_kv_heads]`.
    pub kept: Vec<Vec<usize>>,
    /// Last entries protected in each layer after the last prefill, `[n_layers]`: fewer than the policy's window where
    /// the budget is small. Empty without eviction.
    pub recent_kept: Vec<u32>,
    /// Scores that were NaN.
    pub nan_scores: u32,
}

/// One conversation with a model.
pub struct Session<'e> {
    engine: &'e Engine,
    options: SessionOptions,
    cache: KvCache,
    state: DecodeState,
    n_past: usize,
    stats: Stats,
}

impl<'e> Session<'e> {
    /// An empty session.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if the context is longer than what the model was trained for.
    pub fn new(engine: &'e Engine, mut options: SessionOptions) -> Result<Session<'e>, Error> {
        let c = engine.config();
        if options.n_ctx == 0 {
            options.n_ctx = c.n_ctx_train;
        }
        if options.n_ctx > c.n_ctx_train {
            let what = format!("a context of {} tokens: the model was trained for {}", options.n_ctx, c.n_ctx_train);
            return Err(Error::Prompt { what });
        }
        Ok(Session {
            cache: KvCache::new(c.n_layers, c.n_kv_heads, c.head_dim, options.kv_type),
            state: engine.decoder.decode_state(),
            engine,
            options,
            n_past: 0,
            stats: Stats::default(),
        })
    }

    /// Runs a prompt, evicts, and returns the logits after its last token, `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the prompt is empty, [`Error::ContextFull`], [`Error::Evict`].
    pub fn prefill(&mut self, prompt: &Prompt) -> Result<Vec<f32>, Error> {
        self.run_prompt(prompt, Logits::Last)
    }

    /// As [`prefill`](Self::prefill), but returns the logits after every token, `[n][n_vocab]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_all_logits(&mut self, prompt: &Prompt) -> Result<Vec<f32>, Error> {
        self.run_prompt(prompt, Logits::All)
    }

    /// Runs one token; returns the logits after it, `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::ContextFull`] at the end of the context, [`Error::Prompt`] for an id that is not in the vocabulary.
    pub fn decode(&mut self, id: u32) -> Result<&[f32], Error> {
        let n_vocab = self.engine.config().n_vocab;
        if id as usize >= n_vocab {
            return Err(Error::Prompt { what: format!("token {id} is not below the vocabulary of {n_vocab}") });
        }
        if self.n_past >= self.options.n_ctx {
            return Err(Error::ContextFull { prompt: self.n_past, generate: 1, context: self.options.n_ctx });
        }
        let start = Instant::now();
        let Engine { decoder, compute, .. } = self.engine;
        let logits = decoder.decode(compute, id, self.n_past as u32, &mut self.cache, &mut self.state);
        self.n_past += 1;
        self.stats.decode += start.elapsed();
        self.stats.decoded_tokens += 1;
        Ok(logits)
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Timings and sizes so far.
    pub fn stats(&self) -> Stats {
        Stats { kv_bytes: self.cache.bytes(), ..self.stats.clone() }
    }

    fn run_prompt(&mut self, prompt: &Prompt, logits: Logits) -> Result<Vec<f32>, Error> {
        let start = Instant::now();
        let c = self.engine.config();
        let n = prompt.n_tokens();
        let (n_ctx, n_generate) = (self.options.n_ctx, self.options.n_generate);
        if n == 0 {
            return Err(Error::Prompt { what: "it is empty".into() });
        }
        if self.n_past + n + n_generate.min(1) > n_ctx {
            return Err(Error::ContextFull { prompt: self.n_past + n, generate: n_generate, context: n_ctx });
        }
        let mut x = vec![0.0; n * c.n_embd];
        let mut rest = &mut x[..];
        for chunk in &prompt.chunks {
            let (rows, after) = rest.split_at_mut(chunk.len() * c.n_embd);
            match chunk {
                Chunk::Tokens(ids) => self.engine.decoder.embed(ids, rows),
                Chunk::Image(image) => rows.copy_from_slice(&image.data),
            }
            rest = after;
        }
        let positions: Vec<u32> = (self.n_past..self.n_past + n).map(|p| p as u32).collect();
        let mut evictor = Evictor::new(self.engine, &self.options, self.n_past + n)?;
        let Engine { decoder, compute, .. } = self.engine;
        let out = decoder.prefill(compute, &mut x, &positions, &mut self.cache, logits, |s| evictor.finish(s))?;
        self.n_past += n;
        let s = &mut self.stats;
        s.evict += evictor.elapsed;
        s.prefill += start.elapsed() - evictor.elapsed;
        s.prompt_tokens += n;
        s.kv_bytes_full = evictor.rows_full * (2 * c.head_dim * self.options.kv_type.bytes() + size_of::<u32>());
        s.kept = self.cache.layers().iter().map(|l| (0..c.n_kv_heads).map(|h| l.len(h)).collect()).collect();
        s.recent_kept = evictor.recent_kept;
        s.nan_scores += evictor.nan_scores;
        Ok(out)
    }
}

/// Applies the eviction to each layer as soon as its attention is done.
struct Evictor<'a> {
    engine: &'a Engine,
    headroom: usize,
    eviction: Option<Eviction>,
    /// `[n_layers]`
    budgets: Vec<u32>,
    observer: Observer,
    f32s: Vec<f32>,
    u32s: Vec<u32>,
    indices: Vec<u32>,
    counts: Vec<u32>,
    rows_full: usize,
    recent_kept: Vec<u32>,
    nan_scores: u32,
    elapsed: Duration,
}

impl<'a> Evictor<'a> {
    fn new(engine: &'a Engine, options: &SessionOptions, seq_len: usize) -> Result<Evictor<'a>, Error> {
        let mut budgets = vec![0; engine.config().n_layers];
        if let Some(e) = &options.eviction {
            let window = e.policy.protect.recent.entries();
            e.layer_budget.allocate(e.budget, window, seq_len as u32, &mut budgets)?;
        }
        Ok(Evictor {
            engine,
            headroom: options.n_generate.min(options.n_ctx.saturating_sub(seq_len)),
            eviction: options.eviction,
            budgets,
            observer: options
                .eviction
                .map_or_else(Observer::default, |e| Observer::new(e.policy.needs(), e.policy.protect.sinks as usize)),
            f32s: Vec::new(),
            u32s: Vec::new(),
            indices: Vec::new(),
            counts: vec![0; engine.config().n_kv_heads],
            rows_full: 0,
            recent_kept: Vec::new(),
            nan_scores: 0,
            elapsed: Duration::ZERO,
        })
    }

    fn finish(&mut self, s: Staged<'_>) -> Result<(), Error> {
        let start = Instant::now();
        let dispatch = self.engine.compute.dispatch;
        let heads = 0..s.rows.n_kv_heads();
        self.rows_full += heads.clone().map(|h| s.rows.len(h)).sum::<usize>();
        match self.eviction {
            None => s.cache.fill(dispatch, s.rows, |h| Kept::All(s.rows.len(h)), self.headroom),
            Some(e) => {
                self.select(&e, &s)?;
                let capacity = s.rows.capacity();
                let kept = |h: usize| {
                    let from = h * capacity;
                    Kept::Rows(self.indices[from..from + self.counts[h] as usize].to_vec())
                };
                s.cache.fill(dispatch, s.rows, kept, self.headroom);
            }
        }
        self.elapsed += start.elapsed();
        Ok(())
    }

    /// Fills `indices` and `counts` for one layer.
    fn select(&mut self, e: &Eviction, s: &Staged<'_>) -> Result<(), Error> {
        let c = self.engine.config();
        let rows = s.rows.capacity() * c.n_kv_heads;
        let shape = LayerShape { n_kv_heads: c.n_kv_heads, group: c.group(), head_dim: c.head_dim };
        let starts: Vec<u32> = (0..c.n_kv_heads).map(|h| (h * s.rows.capacity()) as u32).collect();
        let lens: Vec<u32> = (0..c.n_kv_heads).map(|h| s.rows.len(h) as u32).collect();
        let size = e.policy.workspace_len(shape, rows).ok_or(core::Error::Overflow("workspace"))?;
        self.f32s.resize(size.f32s, 0.0);
        self.u32s.resize(size.u32s, 0);
        self.indices.resize(rows, 0);
        self.observer.record(&self.engine.compute, c, self.engine.decoder.rope(), s);
        let view = LayerView {
            shape,
            starts: &starts,
            lens: &lens,
            keys: Rows::F32(s.rows.all_keys()),
            values: Some(Rows::F32(s.rows.all_values())),
            observation: self.observer.observation(),
            scale: c.attention_scale,
            layer: s.layer as u32,
            n_layers: c.n_layers as u32,
        };
        let workspace = core::Workspace { f32s: &mut self.f32s, u32s: &mut self.u32s };
        let keep = core::Keep { indices: &mut self.indices, counts: &mut self.counts };
        let dispatch = core::Dispatch::detect();
        let report = core::evict_layer(dispatch, &e.policy, self.budgets[s.layer], &view, workspace, keep)?;
        self.recent_kept.push(report.recent_kept);
        self.nan_scores += report.nan_scores;
        Ok(())
    }
}
