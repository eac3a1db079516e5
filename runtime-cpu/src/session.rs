//! One conversation: prefill, evict, decode. The only file that knows the whole order.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ecokv_core::{self as core, LayerBudget, Policy, RouteLayer};

use crate::Error;
use crate::cache::{KvCache, KvType, LayerCache};
use crate::engine::Engine;
use crate::evictor::{Evictor, Plan};
use crate::model::{DecodeState, Logits};
use crate::ops::rope::Position;
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
    /// Positions that the last eviction chose among.
    n_evicted: usize,
    /// Whether each position so far came from an image; generated tokens may be missing at the end.
    images: Vec<bool>,
    /// `[n_layers]`, or empty.
    route: Vec<RouteLayer>,
    /// `[n_layers][n_kv_heads]`, or empty.
    head_scores: Vec<f32>,
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
            n_evicted: 0,
            images: Vec::new(),
            route: Vec::new(),
            head_scores: Vec::new(),
            stats: Stats::default(),
        })
    }

    /// Gives every layer a method of its own, from the text of a route (see [`ecokv_core::parse_route`]). Layers for which
    /// the route names no budget get that of the eviction.
    ///
    /// # Errors
    /// [`Error::Route`], with the line.
    pub fn set_route(&mut self, text: &str) -> Result<(), Error> {
        let c = self.engine.config();
        let mut route = vec![RouteLayer { method: &core::methods::ALL[0], budget: None }; c.n_layers];
        core::parse_route(text, c.n_kv_heads as u32, &mut route)?;
        self.route = route;
        Ok(())
    }

    /// Scores of the heads, `[n_layers][n_kv_heads]`, for methods that share the budget by an offline profile (SparseMM).
    ///
    /// # Errors
    /// [`Error::Evict`] if there are not as many scores as heads.
    pub fn set_head_profile(&mut self, scores: Vec<f32>) -> Result<(), Error> {
        let need = self.engine.config().n_layers * self.engine.config().n_kv_heads;
        if scores.len() != need {
            return Err(core::Error::LengthMismatch { what: "head scores", need, got: scores.len() }.into());
        }
        self.head_scores = scores;
        Ok(())
    }

    /// Forgets everything but the options, the route and the profile.
    pub fn reset(&mut self) {
        let c = self.engine.config();
        self.cache = KvCache::new(c.n_layers, c.n_kv_heads, c.head_dim, self.options.kv_type);
        self.n_past = 0;
        self.n_evicted = 0;
        self.images.clear();
        self.stats = Stats::default();
    }

    /// Runs a prompt, evicts, and returns the logits after its last token, `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the prompt is empty, [`Error::ContextFull`]: the session is as before. [`Error::Evict`]: the
    /// session is empty, as after [`reset`](Self::reset).
    pub fn prefill(&mut self, prompt: &Prompt) -> Result<Vec<f32>, Error> {
        self.run_prompt(prompt, Logits::Last, &mut |_, _| ControlFlow::Continue(()))
    }

    /// As [`prefill`](Self::prefill), calling `on_layer` with the layers done and those there are; it may break off.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill); [`Error::Cancelled`] if `on_layer` broke off: the session is empty.
    pub fn prefill_with(
        &mut self,
        prompt: &Prompt,
        on_layer: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, Error> {
        self.run_prompt(prompt, Logits::Last, on_layer)
    }

    /// As [`prefill`](Self::prefill), but returns the logits after every token, `[n][n_vocab]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_all_logits(&mut self, prompt: &Prompt) -> Result<Vec<f32>, Error> {
        self.run_prompt(prompt, Logits::All, &mut |_, _| ControlFlow::Continue(()))
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
        let logits = decoder.decode(compute, id, Position::text(self.n_past as u32), &mut self.cache, &mut self.state);
        self.n_past += 1;
        self.stats.decode += start.elapsed();
        self.stats.decoded_tokens += 1;
        Ok(logits)
    }

    /// Goes back to the first `n_past` positions and forgets what came after them.
    ///
    /// # Errors
    /// [`Error::Rewind`] if there are fewer positions, if an eviction has already chosen among those to be forgotten, or if
    /// a layer's sliding window has already left rows behind.
    pub fn rewind(&mut self, n_past: usize) -> Result<(), Error> {
        let lost = self.engine.config().windows.iter().flatten().any(|&window| window <= self.n_past);
        let first = if lost { self.n_past } else { self.n_evicted };
        if !(first..=self.n_past).contains(&n_past) {
            return Err(Error::Rewind { to: n_past, first, last: self.n_past });
        }
        self.cache.truncate(n_past as u32);
        self.images.truncate(n_past);
        self.n_past = n_past;
        Ok(())
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Timings and sizes so far.
    pub fn stats(&self) -> Stats {
        Stats { kv_bytes: self.cache.bytes(), ..self.stats.clone() }
    }

    fn run_prompt(
        &mut self,
        prompt: &Prompt,
        logits: Logits,
        on_layer: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, Error> {
        let n = prompt.n_tokens();
        let (n_ctx, n_generate) = (self.options.n_ctx, self.options.n_generate);
        if n == 0 {
            return Err(Error::Prompt { what: "it is empty".into() });
        }
        if self.cache.layers().iter().any(LayerCache::has_slots) {
            let what = "it follows one whose evicted entries became slots, which later prompts cannot read yet";
            return Err(Error::Prompt { what: what.into() });
        }
        if self.n_past + n + n_generate.min(1) > n_ctx {
            return Err(Error::ContextFull { prompt: self.n_past + n, generate: n_generate, context: n_ctx });
        }
        let done = self.run_layers(prompt, logits, on_layer);
        if done.is_err() {
            self.reset(); // some layers have the prompt, others do not
        }
        done
    }

    fn run_layers(
        &mut self,
        prompt: &Prompt,
        logits: Logits,
        on_layer: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, Error> {
        let start = Instant::now();
        let c = self.engine.config();
        let n = prompt.n_tokens();
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
        let positions: Vec<Position> = (self.n_past..self.n_past + n).map(|p| Position::text(p as u32)).collect();
        self.images.resize(self.n_past, false);
        self.images.extend(prompt.chunks.iter().flat_map(|c| vec![matches!(c, Chunk::Image(_)); c.len()]));
        let plan = Plan { options: &self.options, route: &self.route, head_scores: &self.head_scores };
        let mut evictor = Evictor::new(self.engine, plan, &self.images)?;
        let Engine { decoder, compute, .. } = self.engine;
        let out = decoder.prefill(compute, &mut x, &positions, &mut self.cache, logits, |s| {
            let done = s.layer + 1;
            evictor.finish(s)?;
            if on_layer(done, c.n_layers).is_break() { Err(Error::Cancelled) } else { Ok(()) }
        })?;
        self.n_past += n;
        if self.options.eviction.is_some() {
            self.n_evicted = self.n_past;
        }
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
