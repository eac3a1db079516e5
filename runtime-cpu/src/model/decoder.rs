//! The language model: a stack of decoder layers, read top to bottom.

use super::config::ModelConfig;
use super::families::GatedActivation;
use super::rotation::{Angles, HeadNorm, turn, turn_row};
use crate::Error;
use crate::cache::{KvCache, LayerCache, Staging};
use crate::gguf::GgufFile;
use crate::kernels::Dispatch;
use crate::memory::{Arena, WEIGHTS_BYTES};
use crate::ops::attention::{self, DecodeScratch};
use crate::ops::linear::{Input, forward_one};
use crate::ops::norm::rms_norm;
use crate::ops::rope::{Position, Rope, RopeScaling};
use crate::ops::{Compute, Linear};

/// Tokens per pass through the matrices of a layer: bounds the scratch of a prefill.
const BLOCK: usize = 512;

/// The weights of a language model. Matrices stay in the file until they are [repacked](Decoder::repack).
pub struct Decoder {
    config: ModelConfig,
    token_embd: Linear,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    output: Linear,
    rope: Rope,
    /// Of the layers with a window.
    window_rope: Rope,
}

struct Layer {
    attn_norm: Vec<f32>,
    q: Linear,
    k: Linear,
    v: Linear,
    q_norm: Option<HeadNorm>,
    k_norm: Option<HeadNorm>,
    o: Linear,
    /// `[n_embd]`
    attn_post_norm: Option<Vec<f32>>,
    ffn_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
    ffn_post_norm: Option<Vec<f32>>,
}

/// Which rows of a prompt get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// The last one.
    Last,
    /// All of them.
    All,
}

/// A layer whose prompt has been attended, before its rows enter the cache.
pub struct Staged<'a> {
    /// Index of the layer.
    pub layer: usize,
    /// All rows of the layer: those cached before, then the prompt's.
    pub rows: &'a mut Staging,
    /// The prompt's queries after RoPE, `[n][n_heads][head_dim]`.
    pub q: &'a [f32],
    /// Positions of the prompt's tokens, `[n]`.
    pub positions: &'a [Position],
    /// The layer's output projection.
    pub output: &'a Linear,
    /// Where the rows go.
    pub cache: &'a mut LayerCache,
}

/// Buffers of a decode step, kept between steps.
pub struct DecodeState {
    x: Vec<f32>,
    h: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attn: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    normed: Vec<f32>,
    angles: Angles,
    logits: Vec<f32>,
    input: Input,
    attention: DecodeScratch,
}

impl Decoder {
    /// Finds and checks every tensor of the model.
    ///
    /// # Errors
    /// [`Error::Model`], [`Error::Metadata`] or [`Error::Tensor`], naming what is missing, wrong or not supported.
    pub fn load(file: &GgufFile) -> Result<Decoder, Error> {
        let config = ModelConfig::from_gguf(file)?;
        let (n_embd, d, n_ff) = (config.n_embd, config.head_dim, config.n_ff);
        let (q_width, kv_width) = (config.n_heads * d, config.n_kv_heads * d);
        let vector = |name: String, n: usize| -> Result<Vec<f32>, Error> {
            let tensor = file.require(&name)?;
            tensor.expect_dims(&[n])?;
            Ok(tensor.to_f32())
        };
        let head_norm = |weight| HeadNorm { weight, eps: config.rms_eps };
        let layer = |l: usize| -> Result<Layer, Error> {
            let matrix = |name: &str, n_in: usize, n_out: usize| {
                let bias = format!("blk.{l}.{name}.bias");
                Linear::load(file, &format!("blk.{l}.{name}.weight"), Some(&bias), n_in, n_out)
            };
            let optional = |name: &str, wanted: bool, n: usize| -> Result<Option<Vec<f32>>, Error> {
                if wanted { vector(format!("blk.{l}.{name}.weight"), n).map(Some) } else { Ok(None) }
            };
            Ok(Layer {
                attn_norm: vector(format!("blk.{l}.attn_norm.weight"), n_embd)?,
                q: matrix("attn_q", n_embd, q_width)?,
                k: matrix("attn_k", n_embd, kv_width)?,
                v: matrix("attn_v", n_embd, kv_width)?,
                q_norm: optional("attn_q_norm", config.qk_norm, d)?.map(head_norm),
                k_norm: optional("attn_k_norm", config.qk_norm, d)?.map(head_norm),
                o: matrix("attn_output", q_width, n_embd)?,
                attn_post_norm: optional("post_attention_norm", config.post_norms, n_embd)?,
                ffn_norm: vector(format!("blk.{l}.ffn_norm.weight"), n_embd)?,
                gate: matrix("ffn_gate", n_embd, n_ff)?,
                up: matrix("ffn_up", n_embd, n_ff)?,
                down: matrix("ffn_down", n_ff, n_embd)?,
                ffn_post_norm: optional("post_ffw_norm", config.post_norms, n_embd)?,
            })
        };
        let token_embd = Linear::load(file, "token_embd.weight", None, n_embd, config.n_vocab)?;
        let output = match file.tensor("output.weight") {
            Some(t) => Linear::new(t, None, n_embd, config.n_vocab)?,
            None => token_embd.clone(),
        };
        let factors = match file.tensor("rope_freqs.weight") {
            Some(t) => {
                t.expect_dims(&[d / 2])?;
                Some(t.to_f32())
            }
            None => None,
        };
        let rope = Rope::new(config.rope_kind, d, config.rope_theta, config.rope_scaling, factors.as_deref());
        Ok(Decoder {
            layers: (0..config.n_layers).map(layer).collect::<Result<_, _>>()?,
            output_norm: vector("output_norm.weight".into(), n_embd)?,
            rope: match config.rope_sections {
                Some(sections) => rope.with_sections(sections),
                None => rope,
            },
            window_rope: Rope::new(config.rope_kind, d, config.window_rope_theta, RopeScaling::None, None),
            token_embd,
            output,
            config,
        })
    }

    /// Repacks all matrices for the vector kernels, where that pays; they no longer stay in the file then.
    pub fn repack(&mut self, cx: &Compute) {
        let memory = &mut Arena::new(WEIGHTS_BYTES);
        for l in &mut self.layers {
            for m in [&mut l.q, &mut l.k, &mut l.v, &mut l.o, &mut l.gate, &mut l.up, &mut l.down] {
                m.repack(cx, memory);
            }
        }
        self.output.repack(cx, memory);
    }

    /// Rotary embedding of a layer.
    pub fn rope(&self, layer: usize) -> &Rope {
        if self.config.windows[layer].is_some() { &self.window_rope } else { &self.rope }
    }

    /// Hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Embedding rows of `ids`: `out` `[ids.len()][n_embd]`. Ids are below `n_vocab`.
    pub fn embed(&self, ids: &[u32], out: &mut [f32]) {
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.config.n_embd)) {
            self.token_embd.row(id as usize, out);
            if self.config.embedding_scale != 1.0 {
                out.iter_mut().for_each(|v| *v *= self.config.embedding_scale);
            }
        }
    }

    /// Runs a prompt layer by layer. `x` is `[n][n_embd]`, row t at `positions[t]`; it is used up as scratch.
    ///
    /// After a layer's attention `finish` receives all its rows and the prompt's queries, and fills the layer's cache. So only one uncompressed layer exists at a time. Returns the logits, `[1 or n][n_vocab]`.
    ///
    /// # Errors
    /// Whatever `finish` returns; the cache is then incomplete.
    #[allow(clippy::too_many_arguments)] // the one pass over the model
    pub fn prefill(
        &self,
        cx: &Compute,
        x: &mut [f32],
        positions: &[Position],
        cache: &mut KvCache,
        logits: Logits,
        mut finish: impl FnMut(Staged<'_>) -> Result<(), Error>,
    ) -> Result<Vec<f32>, Error> {
        let c = &self.config;
        let (n, d) = (positions.len(), c.head_dim);
        let (q_width, kv_width) = (c.n_heads * d, c.n_kv_heads * d);
        let cached = cache.layers().iter().flat_map(|l| (0..c.n_kv_heads).map(|h| l.len(h))).max().unwrap_or(0);
        let mut staging = Staging::new(c.n_kv_heads, d, cached + n);
        let indices: Vec<u32> = positions.iter().map(|p| p.index).collect();
        let mut angles = Angles::default();
        let mut q = vec![0.0; n * q_width];
        let mut attn = vec![0.0; n * q_width];
        let mut s = Scratch::new(c, n.min(BLOCK));
        for (l, layer) in self.layers.iter().enumerate() {
            staging.clear();
            cache.layer(l).unload(&mut staging);
            angles.prepare(self, l, positions);
            for from in (0..n).step_by(BLOCK) {
                let to = n.min(from + BLOCK);
                let m = to - from;
                let h = &mut s.h[..m * c.n_embd];
                rms_norm(cx, &x[from * c.n_embd..to * c.n_embd], &layer.attn_norm, c.rms_eps, h);
                s.input.prepare(cx, &[&layer.q, &layer.k, &layer.v], h, m);
                let q = &mut q[from * q_width..to * q_width];
                let (k, v) = (&mut s.k[..m * kv_width], &mut s.v[..m * kv_width]);
                layer.q.forward_with(cx, h, &s.input, m, q);
                layer.k.forward_with(cx, h, &s.input, m, k);
                layer.v.forward_with(cx, h, &s.input, m, v);
                turn(cx, self.rope(l), layer.q_norm.as_ref(), q, q_width, angles.from(from));
                turn(cx, self.rope(l), layer.k_norm.as_ref(), k, kv_width, angles.from(from));
                staging.push(cx, k, v, &indices[from..to]);
            }
            // Nothing reads the last layer's other rows when only the last logits are wanted.
            let first = if logits == Logits::Last && l + 1 == self.layers.len() { n - 1 } else { 0 };
            let attn = &mut attn[first * q_width..];
            let seen = &q[first * q_width..];
            attention::prefill(cx, seen, n - first, &staging, c.mask(l), c.attention_scale, attn);
            let rows = cache.layer_mut(l);
            finish(Staged { layer: l, rows: &mut staging, q: &q, positions, output: &layer.o, cache: rows })?;
            for from in (first..n).step_by(BLOCK) {
                let to = n.min(from + BLOCK);
                let attn = &attn[(from - first) * q_width..(to - first) * q_width];
                layer.mix(cx, c, attn, &mut x[from * c.n_embd..to * c.n_embd], &mut s);
            }
        }
        let first = if logits == Logits::Last { n - 1 } else { 0 };
        let mut h = vec![0.0; (n - first) * c.n_embd];
        rms_norm(cx, &x[first * c.n_embd..], &self.output_norm, c.rms_eps, &mut h);
        let mut out = vec![0.0; (n - first) * c.n_vocab];
        self.output.forward(cx, &h, n - first, &mut out);
        Ok(out)
    }

    /// Buffers for [`decode`](Self::decode).
    pub fn decode_state(&self) -> DecodeState {
        let c = &self.config;
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        DecodeState {
            x: vec![0.0; c.n_embd],
            h: vec![0.0; c.n_embd],
            q: vec![0.0; q_width],
            k: vec![0.0; kv_width],
            v: vec![0.0; kv_width],
            attn: vec![0.0; q_width],
            gate: vec![0.0; c.n_ff],
            up: vec![0.0; c.n_ff],
            normed: vec![0.0; c.n_embd],
            angles: Angles::default(),
            logits: vec![0.0; c.n_vocab],
            input: Input::default(),
            attention: DecodeScratch::default(),
        }
    }

    /// Runs one token at `position` over the cache, to which its keys and values are appended; returns the logits
    /// `[n_vocab]`.
    pub fn decode<'s>(
        &self,
        cx: &Compute,
        id: u32,
        position: Position,
        cache: &mut KvCache,
        state: &'s mut DecodeState,
    ) -> &'s [f32] {
        self.step(cx, id, position, cache, state);
        &state.logits
    }

    fn step(&self, cx: &Compute, id: u32, position: Position, cache: &mut KvCache, s: &mut DecodeState) {
        let c = &self.config;
        let d = cx.dispatch;
        self.embed(&[id], &mut s.x);
        s.angles.clear();
        for (l, layer) in self.layers.iter().enumerate() {
            d.rms_norm(&s.x, &layer.attn_norm, c.rms_eps, &mut s.h);
            s.input.prepare(cx, &[&layer.q, &layer.k, &layer.v], &s.h, 1);
            let Layer { q, k, v, gate, up, .. } = layer;
            forward_one(cx, &s.h, &s.input, 0, [(q, &mut s.q), (k, &mut s.k), (v, &mut s.v)]);
            s.angles.prepare(self, l, &[position]);
            turn_row(d, self.rope(l), layer.q_norm.as_ref(), &mut s.q, s.angles.from(0));
            turn_row(d, self.rope(l), layer.k_norm.as_ref(), &mut s.k, s.angles.from(0));
            let rows = cache.layer_mut(l);
            rows.push(d, &s.k, &s.v, position.index);
            if let Some(window) = c.windows[l] {
                rows.forget(position.index, window);
            }
            attention::decode(cx, &s.q, rows, c.attention_scale, &mut s.attention, &mut s.attn);
            s.input.prepare(cx, &[&layer.o], &s.attn, 1);
            layer.o.forward_with(cx, &s.attn, &s.input, 1, &mut s.h);
            add_normed(d, &mut s.x, &s.h, layer.attn_post_norm.as_deref(), c.rms_eps, &mut s.normed);
            d.rms_norm(&s.x, &layer.ffn_norm, c.rms_eps, &mut s.h);
            s.input.prepare(cx, &[&layer.gate, &layer.up], &s.h, 1);
            forward_one(cx, &s.h, &s.input, 0, [(gate, &mut s.gate), (up, &mut s.up)]);
            gated(d, c.activation, &mut s.gate, &s.up);
            s.input.prepare(cx, &[&layer.down], &s.gate, 1);
            layer.down.forward_with(cx, &s.gate, &s.input, 1, &mut s.h);
            add_normed(d, &mut s.x, &s.h, layer.ffn_post_norm.as_deref(), c.rms_eps, &mut s.normed);
        }
        d.rms_norm(&s.x, &self.output_norm, c.rms_eps, &mut s.h);
        s.input.prepare(cx, &[&self.output], &s.h, 1);
        self.output.forward_with(cx, &s.h, &s.input, 1, &mut s.logits);
    }
}

/// `x += h`, or `x += norm(h)`: rows of `normed.len()`.
fn add_normed(d: Dispatch, x: &mut [f32], h: &[f32], norm: Option<&[f32]>, eps: f32, normed: &mut [f32]) {
    let Some(weight) = norm else { return d.add(x, h) };
    for (x, h) in x.chunks_exact_mut(normed.len()).zip(h.chunks_exact(normed.len())) {
        d.rms_norm(h, weight, eps, normed);
        d.add(x, normed);
    }
}

/// `gate = activation(gate) * up`
fn gated(d: Dispatch, activation: GatedActivation, gate: &mut [f32], up: &[f32]) {
    match activation {
        GatedActivation::Silu => d.silu_mul(gate, up),
        GatedActivation::Gelu => d.gelu_mul(gate, up),
    }
}

impl Layer {
    /// Everything after attention: output projection and feed-forward, added to `x` `[m][n_embd]`.
    fn mix(&self, cx: &Compute, c: &ModelConfig, attn: &[f32], x: &mut [f32], s: &mut Scratch) {
        let m = x.len() / c.n_embd;
        let h = &mut s.h[..m * c.n_embd];
        let (gate, up) = (&mut s.gate[..m * c.n_ff], &mut s.up[..m * c.n_ff]);
        let mut normed = vec![0.0; c.n_embd];
        self.o.forward(cx, attn, m, h);
        add_normed(cx.dispatch, x, h, self.attn_post_norm.as_deref(), c.rms_eps, &mut normed);
        rms_norm(cx, x, &self.ffn_norm, c.rms_eps, h);
        s.input.prepare(cx, &[&self.gate, &self.up], h, m);
        self.gate.forward_with(cx, h, &s.input, m, gate);
        self.up.forward_with(cx, h, &s.input, m, up);
        let rows = m.div_ceil(cx.pool.n_threads()) * c.n_ff;
        let parts: Vec<_> = gate.chunks_mut(rows).zip(up.chunks_mut(rows)).collect();
        cx.pool.each(parts, |(gate, up)| gated(cx.dispatch, c.activation, gate, up));
        self.down.forward(cx, gate, m, h);
        add_normed(cx.dispatch, x, h, self.ffn_post_norm.as_deref(), c.rms_eps, &mut normed);
    }
}

/// Buffers of a prefill block.
struct Scratch {
    h: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    input: Input,
}

impl Scratch {
    fn new(c: &ModelConfig, m: usize) -> Scratch {
        let kv_width = c.n_kv_heads * c.head_dim;
        Scratch {
            h: vec![0.0; m * c.n_embd],
            k: vec![0.0; m * kv_width],
            v: vec![0.0; m * kv_width],
            gate: vec![0.0; m * c.n_ff],
            up: vec![0.0; m * c.n_ff],
            input: Input::default(),
        }
    }
}
