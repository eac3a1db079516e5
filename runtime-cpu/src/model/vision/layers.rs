//! What the towers are made of.

use super::config::{Activation, VisionConfig};
use crate::Error;
use crate::cache::Staging;
use crate::gguf::GgufFile;
use crate::ops::attention::{self, Mask};
use crate::ops::linear::Input;
use crate::ops::{Compute, Linear, act, norm};

/// One transformer layer.
pub struct Block {
    ln1: LayerNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    ln2: LayerNorm,
    up: Linear,
    down: Linear,
    n_ff: usize,
}

/// Buffers that all layers share.
pub struct Scratch {
    /// `[n][n_embd]` each
    h: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[n][n_ff]`
    ff: Vec<f32>,
    /// What the three matrices of attention read, quantised once.
    input: Input,
    heads: Staging,
    /// Attention here knows no positions, but the staged rows have them: 0..n.
    positions: Vec<u32>,
}

impl Scratch {
    /// For a residual stream like `x` `[n][n_embd]`.
    pub fn new(config: &VisionConfig, x: &[f32]) -> Scratch {
        let n = x.len() / config.n_embd;
        let rows = || vec![0.0; x.len()];
        let heads = Staging::new(config.n_heads, config.head_dim(), n);
        Scratch {
            h: rows(),
            q: rows(),
            k: rows(),
            v: rows(),
            ff: Vec::new(),
            input: Input::default(),
            heads,
            positions: (0..n as u32).collect(),
        }
    }
}

impl Block {
    pub fn load(file: &GgufFile, i: usize, config: &VisionConfig) -> Result<Block, Error> {
        let n = config.n_embd;
        let square = |what: &str| linear(file, &format!("v.blk.{i}.{what}"), n, n);
        let (up, down) = feed_forward_names(file, i, n)?;
        let n_ff = file.require(&format!("{up}.weight"))?.n_rows();
        Ok(Block {
            ln1: LayerNorm::load(file, &format!("v.blk.{i}.ln1"), config)?,
            q: square("attn_q")?,
            k: square("attn_k")?,
            v: square("attn_v")?,
            out: square("attn_out")?,
            ln2: LayerNorm::load(file, &format!("v.blk.{i}.ln2"), config)?,
            up: linear(file, &up, n, n_ff)?,
            down: linear(file, &down, n_ff, n)?,
            n_ff,
        })
    }

    pub fn matrices(&mut self) -> [&mut Linear; 6] {
        [&mut self.q, &mut self.k, &mut self.v, &mut self.out, &mut self.up, &mut self.down]
    }

    /// Updates the residual stream `x` `[n][n_embd]`.
    pub fn forward(&self, cx: &Compute, config: &VisionConfig, x: &mut [f32], s: &mut Scratch) {
        let n = x.len() / config.n_embd;
        s.ff.resize(n * self.n_ff, 0.0);

        self.ln1.forward(cx, x, &mut s.h);
        s.input.prepare(cx, &[&self.q, &self.k, &self.v], &s.h, n);
        self.q.forward_with(cx, &s.h, &s.input, n, &mut s.q);
        self.k.forward_with(cx, &s.h, &s.input, n, &mut s.k);
        self.v.forward_with(cx, &s.h, &s.input, n, &mut s.v);
        s.heads.clear();
        s.heads.push(cx, &s.k, &s.v, &s.positions);
        let scale = 1.0 / (config.head_dim() as f32).sqrt();
        attention::prefill(cx, &s.q, n, &s.heads, Mask::None, scale, &mut s.h);
        self.out.forward(cx, &s.h, n, &mut s.q);
        add(cx, x, &s.q);

        self.ln2.forward(cx, x, &mut s.h);
        self.up.forward(cx, &s.h, n, &mut s.ff);
        match config.activation {
            Activation::QuickGelu => act::quick_gelu(cx, &mut s.ff),
            Activation::Gelu => act::gelu_erf(cx, &mut s.ff),
            Activation::GeluTanh => act::gelu_tanh(cx, &mut s.ff),
            Activation::Silu => act::silu(cx, &mut s.ff),
        }
        self.down.forward(cx, &s.ff, n, &mut s.h);
        add(cx, x, &s.h);
    }
}

pub struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

impl LayerNorm {
    pub fn load(file: &GgufFile, name: &str, config: &VisionConfig) -> Result<LayerNorm, Error> {
        Ok(LayerNorm {
            weight: vector(file, &format!("{name}.weight"), config.n_embd)?,
            bias: vector(file, &format!("{name}.bias"), config.n_embd)?,
            eps: config.eps,
        })
    }

    /// As [`forward`](Self::forward), to a new buffer.
    pub fn applied(&self, cx: &Compute, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        self.forward(cx, x, &mut out);
        out
    }

    pub fn forward(&self, cx: &Compute, x: &[f32], out: &mut [f32]) {
        norm::layer_norm(cx, x, &self.weight, &self.bias, self.eps, out);
    }
}

/// Names of the widening and the narrowing matrix. Old converters swapped them; the input width tells.
fn feed_forward_names(file: &GgufFile, i: usize, n_embd: usize) -> Result<(String, String), Error> {
    let (up, down) = (format!("v.blk.{i}.ffn_up"), format!("v.blk.{i}.ffn_down"));
    let width = |name: &str| file.require(&format!("{name}.weight")).map(|t| t.n_cols());
    let swapped = width(&down)? == n_embd && width(&up)? != n_embd;
    Ok(if swapped { (down, up) } else { (up, down) })
}

/// A matrix that must have a bias.
pub fn linear(file: &GgufFile, name: &str, n_in: usize, n_out: usize) -> Result<Linear, Error> {
    let bias = format!("{name}.bias");
    file.require(&bias)?;
    Linear::load(file, &format!("{name}.weight"), Some(&bias), n_in, n_out)
}

/// A tensor of `n` values.
pub fn vector(file: &GgufFile, name: &str, n: usize) -> Result<Vec<f32>, Error> {
    let tensor = file.require(name)?;
    tensor.expect_dims(&[n])?;
    Ok(tensor.to_f32())
}

/// `x += y`
pub fn add(cx: &Compute, x: &mut [f32], y: &[f32]) {
    let chunk = 1 << 14;
    cx.pool.chunks(x, chunk, |i, x| cx.dispatch.add(x, &y[i * chunk..][..x.len()]));
}
