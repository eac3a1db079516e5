//! The towers of Qwen2-VL (Wang et al. 2024) and Qwen2.5-VL (Bai et al. 2025): pictures keep their shape, patches know
//! their row and column by rotation, and most layers of the later one see windows only.
//!
//! The patches of what will be one row of the language model stand together: blocks of `merge` x `merge`, row-major
//! inside the block.

use std::ops::Range;

use super::config::{Activation, VisionConfig};
use super::layers::{LayerNorm, add, linear, vector};
use crate::Error;
use crate::cache::Staging;
use crate::gguf::GgufFile;
use crate::image::Pixels;
use crate::model::rotation::turn;
use crate::ops::attention::{self, Mask};
use crate::ops::rope::Rope;
use crate::ops::{Compute, Linear, act, norm};

/// Side of an attention window in pixels, in files that do not say.
const WINDOW: u32 = 112;

/// Base of the rotary frequencies.
const THETA: f32 = 10_000.0;

/// Patch embedding and transformer layers.
pub struct Qwen {
    /// One for each of the two frames that the tower was trained on. A still picture is both.
    patch_embd: [Linear; 2],
    blocks: Vec<Block>,
    post_ln: Norm,
    rope: Rope,
    merge: usize,
    windows: Option<Windows>,
}

/// The attention of Qwen2.5-VL.
struct Windows {
    /// Side in merged blocks.
    side: usize,
    /// The last layer of every so many sees everything.
    full_every: usize,
}

impl Qwen {
    /// `windowed` is Qwen2.5-VL's kind.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a tensor is missing or has another shape than the configuration demands, [`Error::Metadata`]
    /// if the windows are missing or impossible.
    pub fn load(file: &GgufFile, config: &VisionConfig, merge: usize, windowed: bool) -> Result<Qwen, Error> {
        let head_dim = config.head_dim();
        if !head_dim.is_multiple_of(4) {
            let what = format!("{} heads of {head_dim} channels, expected a multiple of 4", config.n_heads);
            return Err(file.metadata().error("clip.vision.attention.head_count", what));
        }
        let kernel = |name: &str| {
            let side = config.patch_size as usize;
            let weight = file.require(name)?;
            weight.expect_dims(&[side, side, 3, config.n_embd])?;
            Linear::flattened(weight, None, 3 * side * side, config.n_embd)
        };
        Ok(Qwen {
            patch_embd: [kernel("v.patch_embd.weight")?, kernel("v.patch_embd.weight.1")?],
            blocks: (0..config.n_layers).map(|i| Block::load(file, i, config, windowed)).collect::<Result<_, _>>()?,
            post_ln: Norm::load(file, "v.post_ln", config, windowed)?,
            rope: Rope::rows_and_columns(head_dim, THETA),
            merge,
            windows: if windowed { Some(Windows::load(file, config, merge)?) } else { None },
        })
    }

    pub fn matrices(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.patch_embd.iter_mut().chain(self.blocks.iter_mut().flat_map(Block::matrices))
    }

    /// Merged rows and columns of a picture.
    pub fn grid(&self, config: &VisionConfig, pixels: &Pixels) -> [usize; 2] {
        [pixels.height, pixels.width].map(|length| length / (config.patch_size as usize * self.merge))
    }

    /// `[patches][n_embd]`, the patches of a block together and the blocks row-major.
    ///
    /// # Errors
    /// [`Error::Image`] if the sides of `pixels` are no multiples of a block's.
    pub fn features(&self, cx: &Compute, config: &VisionConfig, pixels: &Pixels) -> Result<Vec<f32>, Error> {
        let block = config.patch_size as usize * self.merge;
        let (w, h) = (pixels.width, pixels.height);
        if w == 0 || h == 0 || !w.is_multiple_of(block) || !h.is_multiple_of(block) || pixels.data.len() != 3 * w * h {
            let what = format!("{w}x{h} pixels with {} values, expected multiples of {block}", pixels.data.len());
            return Err(Error::Image { what });
        }
        let order = Order::new(self.grid(config, pixels), self.merge, self.windows.as_ref());
        let mut x = self.embed(cx, config, pixels, &order);
        let mut s = Scratch::new(config, &x);
        let angles = order.angles(&self.rope);
        for (l, layer) in self.blocks.iter().enumerate() {
            let full = self.windows.as_ref().is_none_or(|w| (l + 1).is_multiple_of(w.full_every));
            let mask = if full { Mask::None } else { Mask::Within(&order.windows) };
            layer.forward(cx, config, &mut x, &mut s, &Attention { rope: &self.rope, angles: &angles, mask });
        }
        self.post_ln.forward(cx, &x, &mut s.h);
        // Back from windows to rows of blocks.
        let (width, per_block) = (config.n_embd, self.merge * self.merge);
        for (rows, &to) in s.h.chunks_exact(per_block * width).zip(&order.blocks) {
            x[to * per_block * width..][..per_block * width].copy_from_slice(rows);
        }
        Ok(x)
    }

    fn embed(&self, cx: &Compute, config: &VisionConfig, pixels: &Pixels, order: &Order) -> Vec<f32> {
        let n = order.patches.len();
        let row_major = pixels.patches(config.patch_size as usize);
        let len = row_major.len() / n;
        let columns = pixels.width / config.patch_size as usize;
        let mut patches = Vec::with_capacity(row_major.len());
        for &[row, column] in &order.patches {
            patches.extend_from_slice(&row_major[(row * columns + column) * len..][..len]);
        }
        let mut x = vec![0.0; n * config.n_embd];
        let mut second = vec![0.0; n * config.n_embd];
        self.patch_embd[0].forward(cx, &patches, n, &mut x);
        self.patch_embd[1].forward(cx, &patches, n, &mut second);
        add(cx, &mut x, &second);
        x
    }
}

impl Windows {
    fn load(file: &GgufFile, config: &VisionConfig, merge: usize) -> Result<Windows, Error> {
        let meta = file.metadata();
        let every = "clip.vision.n_wa_pattern";
        let full_every = meta.u32(every)? as usize;
        if full_every == 0 {
            return Err(meta.error(every, "0, expected at least 1".into()));
        }
        let key = "clip.vision.window_size";
        let pixels = meta.opt_u32(key)?.unwrap_or(WINDOW);
        let side = pixels as usize / (config.patch_size as usize * merge);
        if side == 0 {
            let what = format!("{pixels} pixels are less than a block of {merge}x{merge} patches");
            return Err(meta.error(key, what));
        }
        Ok(Windows { side, full_every })
    }
}

/// In which order the patches of a picture stand, so that blocks and windows are contiguous.
struct Order {
    /// `[patches]` Row and column of each.
    patches: Vec<[usize; 2]>,
    /// `[blocks]` Row-major index of each.
    blocks: Vec<usize>,
    /// Ranges of patches that see each other.
    windows: Vec<Range<usize>>,
}

impl Order {
    fn new([rows, columns]: [usize; 2], merge: usize, windows: Option<&Windows>) -> Order {
        let side = windows.map_or(rows.max(columns), |w| w.side);
        let mut order = Order { patches: Vec::new(), blocks: Vec::new(), windows: Vec::new() };
        let corners = (0..rows).step_by(side).flat_map(|r| (0..columns).step_by(side).map(move |c| (r, c)));
        for (top, left) in corners {
            let first = order.patches.len();
            // Windows at the right and the bottom are cut off.
            for r in top..rows.min(top + side) {
                for c in left..columns.min(left + side) {
                    order.blocks.push(r * columns + c);
                    let inside = (0..merge * merge).map(|i| [r * merge + i / merge, c * merge + i % merge]);
                    order.patches.extend(inside);
                }
            }
            order.windows.push(first..order.patches.len());
        }
        order
    }

    /// Cosines and sines, `[patches][head_dim / 2]` each.
    fn angles(&self, rope: &Rope) -> (Vec<f32>, Vec<f32>) {
        let half = rope.frequencies().len();
        let mut angles = (vec![0.0; self.patches.len() * half], vec![0.0; self.patches.len() * half]);
        let rows = angles.0.chunks_exact_mut(half).zip(angles.1.chunks_exact_mut(half));
        for ((cos, sin), &[row, column]) in rows.zip(&self.patches) {
            rope.angles([0, row as u32, column as u32], cos, sin);
        }
        angles
    }
}

/// One transformer layer.
struct Block {
    ln1: Norm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    ln2: Norm,
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
}

/// Who sees whom, and from where.
struct Attention<'a> {
    rope: &'a Rope,
    angles: &'a (Vec<f32>, Vec<f32>),
    mask: Mask<'a>,
}

/// Buffers that all layers share.
struct Scratch {
    /// `[n][n_embd]` each
    h: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[n][n_ff]` each
    gate: Vec<f32>,
    up: Vec<f32>,
    heads: Staging,
    /// Attention here knows no positions, but the staged rows have them: 0..n.
    positions: Vec<u32>,
}

impl Scratch {
    fn new(config: &VisionConfig, x: &[f32]) -> Scratch {
        let n = x.len() / config.n_embd;
        let rows = || vec![0.0; x.len()];
        Scratch {
            h: rows(),
            q: rows(),
            k: rows(),
            v: rows(),
            gate: Vec::new(),
            up: Vec::new(),
            heads: Staging::new(config.n_heads, config.head_dim(), n),
            positions: (0..n as u32).collect(),
        }
    }
}

impl Block {
    fn load(file: &GgufFile, i: usize, config: &VisionConfig, gated: bool) -> Result<Block, Error> {
        let n = config.n_embd;
        let name = |what: &str| format!("v.blk.{i}.{what}");
        let square = |what: &str| linear(file, &name(what), n, n);
        let n_ff = file.require(&name("ffn_up.weight"))?.n_rows();
        Ok(Block {
            ln1: Norm::load(file, &name("ln1"), config, gated)?,
            q: square("attn_q")?,
            k: square("attn_k")?,
            v: square("attn_v")?,
            out: square("attn_out")?,
            ln2: Norm::load(file, &name("ln2"), config, gated)?,
            gate: if gated { Some(linear(file, &name("ffn_gate"), n, n_ff)?) } else { None },
            up: linear(file, &name("ffn_up"), n, n_ff)?,
            down: linear(file, &name("ffn_down"), n_ff, n)?,
        })
    }

    fn matrices(&mut self) -> impl Iterator<Item = &mut Linear> {
        let square = [&mut self.q, &mut self.k, &mut self.v, &mut self.out];
        square.into_iter().chain(&mut self.gate).chain([&mut self.up, &mut self.down])
    }

    /// Updates the residual stream `x` `[n][n_embd]`.
    fn forward(&self, cx: &Compute, config: &VisionConfig, x: &mut [f32], s: &mut Scratch, a: &Attention<'_>) {
        let (width, n_ff) = (config.n_embd, self.up.n_out());
        let n = x.len() / width;
        self.ln1.forward(cx, x, &mut s.h);
        self.q.forward(cx, &s.h, n, &mut s.q);
        self.k.forward(cx, &s.h, n, &mut s.k);
        self.v.forward(cx, &s.h, n, &mut s.v);
        for x in [&mut s.q, &mut s.k] {
            turn(cx, a.rope, None, x, width, (&a.angles.0, &a.angles.1));
        }
        let scale = 1.0 / (config.head_dim() as f32).sqrt();
        s.heads.clear();
        s.heads.push(cx, &s.k, &s.v, &s.positions);
        attention::prefill(cx, &s.q, n, &s.heads, a.mask, scale, &mut s.h);
        self.out.forward(cx, &s.h, n, &mut s.q);
        add(cx, x, &s.q);

        self.ln2.forward(cx, x, &mut s.h);
        s.up.resize(n * n_ff, 0.0);
        self.up.forward(cx, &s.h, n, &mut s.up);
        let activate = |x: &mut [f32]| match config.activation {
            Activation::QuickGelu => act::quick_gelu(cx, x),
            Activation::Gelu => act::gelu_erf(cx, x),
            Activation::GeluTanh => act::gelu_tanh(cx, x),
            Activation::Silu => act::silu(cx, x),
        };
        match &self.gate {
            None => activate(&mut s.up),
            Some(gate) => {
                s.gate.resize(n * n_ff, 0.0);
                gate.forward(cx, &s.h, n, &mut s.gate);
                activate(&mut s.gate);
                s.up.iter_mut().zip(&s.gate).for_each(|(up, gate)| *up *= gate);
            }
        }
        self.down.forward(cx, &s.up, n, &mut s.h);
        add(cx, x, &s.h);
    }
}

/// Qwen2-VL's norms, and Qwen2.5-VL's.
enum Norm {
    Layer(LayerNorm),
    Rms { weight: Vec<f32>, eps: f32 },
}

impl Norm {
    fn load(file: &GgufFile, name: &str, config: &VisionConfig, rms: bool) -> Result<Norm, Error> {
        if rms {
            let weight = vector(file, &format!("{name}.weight"), config.n_embd)?;
            return Ok(Norm::Rms { weight, eps: config.eps });
        }
        LayerNorm::load(file, name, config).map(Norm::Layer)
    }

    fn forward(&self, cx: &Compute, x: &[f32], out: &mut [f32]) {
        match self {
            Norm::Layer(norm) => norm.forward(cx, x, out),
            Norm::Rms { weight, eps } => norm::rms_norm(cx, x, weight, *eps, out),
        }
    }
}
