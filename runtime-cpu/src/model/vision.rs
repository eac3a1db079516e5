//! The vision tower: a picture becomes rows of the language model's embedding space.
//!
//! A CLIP ViT as in LLaVA-1.5 (Radford et al. 2021; Liu et al. 2023): the features of one of the last layers, without
//! the class token and without the final norm, go through the projector.

use super::projector::MlpProjector;
use super::vision_config::{Activation, VisionConfig};
use crate::Error;
use crate::cache::Staging;
use crate::gguf::GgufFile;
use crate::image::{Fit, Pixels, RgbImage, fixed_size};
use crate::ops::attention::{self, Mask};
use crate::ops::{Compute, Linear, act, norm};

/// A vision tower and its projector. The large matrices stay in the file.
pub struct VisionTower {
    config: VisionConfig,
    patch_embd: Linear,
    /// `[n_embd]`, the first row of the sequence if there is one.
    class_embd: Option<Vec<f32>>,
    /// `[class + patches][n_embd]`
    position_embd: Vec<f32>,
    pre_ln: Option<LayerNorm>,
    blocks: Vec<Block>,
    projector: MlpProjector,
}

/// What a picture becomes: one row for each token position it takes in the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageEmbedding {
    /// Rows.
    pub n_tokens: usize,
    /// `[n_tokens][n_embd_text]`
    pub data: Vec<f32>,
}

impl VisionTower {
    /// Loads the tower of a projector file ("mmproj") for a language model of width `n_embd_text`.
    ///
    /// # Errors
    /// [`Error::Metadata`] as from [`VisionConfig::from_gguf`]; [`Error::Tensor`] if a tensor is missing, has another
    /// shape than the configuration demands, or belongs to a variant that is not supported.
    pub fn load(file: &GgufFile, n_embd_text: usize) -> Result<VisionTower, Error> {
        let config = VisionConfig::from_gguf(file)?;
        let class_embd = match file.tensor("v.class_embd") {
            Some(_) => Some(vector(file, "v.class_embd", config.n_embd)?),
            None => None,
        };
        let position_embd = load_positions(file, &config, class_embd.is_some())?;
        let pre_ln = match file.tensor("v.pre_ln.weight") {
            Some(_) => Some(LayerNorm::load(file, "v.pre_ln", &config)?),
            None => None,
        };
        Ok(VisionTower {
            patch_embd: load_patch_embedding(file, &config)?,
            class_embd,
            position_embd,
            pre_ln,
            blocks: (0..config.n_layers).map(|i| Block::load(file, i, &config)).collect::<Result<_, _>>()?,
            projector: MlpProjector::load(file, config.n_embd, n_embd_text)?,
            config,
        })
    }

    /// The tower's hyper-parameters.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// Token positions that a picture takes.
    pub fn n_tokens(&self) -> usize {
        self.config.patches_per_side().pow(2)
    }

    /// Encodes a picture of any size, padded to a square.
    ///
    /// # Errors
    /// [`Error::Image`] if the picture cannot be brought to the tower's size.
    pub fn encode(&self, cx: &Compute, image: &RgbImage) -> Result<ImageEmbedding, Error> {
        self.encode_pixels(cx, &self.preprocess(image, Fit::Pad)?)
    }

    /// Brings a picture to the tower's size and pixel statistics.
    ///
    /// # Errors
    /// [`Error::Image`] if the tower's size is unreasonable.
    pub fn preprocess(&self, image: &RgbImage, fit: Fit) -> Result<Pixels, Error> {
        fixed_size(image, self.config.image_size, fit, &self.config.normalize)
    }

    /// Encodes preprocessed pixels.
    ///
    /// # Errors
    /// [`Error::Image`] if they are not of the tower's size.
    pub fn encode_pixels(&self, cx: &Compute, pixels: &Pixels) -> Result<ImageEmbedding, Error> {
        let features = self.features(cx, pixels)?;
        let n_tokens = self.n_tokens();
        Ok(ImageEmbedding { n_tokens, data: self.projector.forward(cx, &features, n_tokens) })
    }

    /// The tower's features, before the projector: `[n_tokens][n_embd]`.
    ///
    /// # Errors
    /// [`Error::Image`] if `pixels` are not of the tower's size.
    pub fn features(&self, cx: &Compute, pixels: &Pixels) -> Result<Vec<f32>, Error> {
        let mut x = self.embed(cx, pixels)?;
        let mut scratch = Scratch::new(&self.config, &x);
        for block in &self.blocks {
            block.forward(cx, &self.config, &mut x, &mut scratch);
        }
        let class_len = self.class_embd.as_ref().map_or(0, Vec::len);
        x.drain(..class_len);
        Ok(x)
    }

    /// Patches and class token with their positions: `[class + patches][n_embd]`.
    fn embed(&self, cx: &Compute, pixels: &Pixels) -> Result<Vec<f32>, Error> {
        let side = self.config.image_size as usize;
        if (pixels.width, pixels.height, pixels.data.len()) != (side, side, 3 * side * side) {
            let what = format!(
                "{}x{} pixels with {} values, the tower takes {side}x{side} with 3 each",
                pixels.width,
                pixels.height,
                pixels.data.len()
            );
            return Err(Error::Image { what });
        }
        let patches = pixels.patches(self.config.patch_size as usize);
        let mut x = vec![0.0; self.position_embd.len()];
        let class_len = self.class_embd.as_ref().map_or(0, Vec::len);
        let (class_row, patch_rows) = x.split_at_mut(class_len);
        if let Some(class_embd) = &self.class_embd {
            class_row.copy_from_slice(class_embd);
        }
        self.patch_embd.forward(cx, &patches, self.n_tokens(), patch_rows);
        add(&mut x, &self.position_embd);
        match &self.pre_ln {
            Some(pre_ln) => {
                let mut normed = vec![0.0; x.len()];
                pre_ln.forward(cx, &x, &mut normed);
                Ok(normed)
            }
            None => Ok(x),
        }
    }
}

/// One transformer layer.
struct Block {
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
struct Scratch {
    /// `[n][n_embd]` each
    h: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[n][n_ff]`
    ff: Vec<f32>,
    heads: Staging,
    /// Attention here knows no positions, but the staged rows have them: 0..n.
    positions: Vec<u32>,
}

impl Scratch {
    /// For a residual stream like `x` `[n][n_embd]`.
    fn new(config: &VisionConfig, x: &[f32]) -> Scratch {
        let n = x.len() / config.n_embd;
        let rows = || vec![0.0; x.len()];
        let heads = Staging::new(config.n_heads, config.head_dim(), n);
        Scratch {
            h: rows(),
            q: rows(),
            k: rows(),
            v: rows(),
            ff: Vec::new(),
            heads,
            positions: (0..n as u32).collect(),
        }
    }
}

impl Block {
    fn load(file: &GgufFile, i: usize, config: &VisionConfig) -> Result<Block, Error> {
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

    /// Updates the residual stream `x` `[n][n_embd]`.
    fn forward(&self, cx: &Compute, config: &VisionConfig, x: &mut [f32], s: &mut Scratch) {
        let n = x.len() / config.n_embd;
        s.ff.resize(n * self.n_ff, 0.0);

        self.ln1.forward(cx, x, &mut s.h);
        self.q.forward(cx, &s.h, n, &mut s.q);
        self.k.forward(cx, &s.h, n, &mut s.k);
        self.v.forward(cx, &s.h, n, &mut s.v);
        s.heads.clear();
        s.heads.push(cx, &s.k, &s.v, &s.positions);
        let scale = 1.0 / (config.head_dim() as f32).sqrt();
        attention::prefill(cx, &s.q, n, &s.heads, Mask::None, scale, &mut s.h);
        self.out.forward(cx, &s.h, n, &mut s.q);
        add(x, &s.q);

        self.ln2.forward(cx, x, &mut s.h);
        self.up.forward(cx, &s.h, n, &mut s.ff);
        match config.activation {
            Activation::QuickGelu => act::quick_gelu(cx, &mut s.ff),
            Activation::Gelu => act::gelu_erf(cx, &mut s.ff),
            Activation::Silu => act::silu(cx, &mut s.ff),
        }
        self.down.forward(cx, &s.ff, n, &mut s.h);
        add(x, &s.h);
    }
}

struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

impl LayerNorm {
    fn load(file: &GgufFile, name: &str, config: &VisionConfig) -> Result<LayerNorm, Error> {
        Ok(LayerNorm {
            weight: vector(file, &format!("{name}.weight"), config.n_embd)?,
            bias: vector(file, &format!("{name}.bias"), config.n_embd)?,
            eps: config.eps,
        })
    }

    fn forward(&self, cx: &Compute, x: &[f32], out: &mut [f32]) {
        norm::layer_norm(cx, x, &self.weight, &self.bias, self.eps, out);
    }
}

/// The convolution has its own stride as kernel size, so it is one matrix over patches flattened in (channel, row,
/// column) order, and that is how its weights lie in memory.
fn load_patch_embedding(file: &GgufFile, config: &VisionConfig) -> Result<Linear, Error> {
    let side = config.patch_size as usize;
    let weight = file.require("v.patch_embd.weight")?;
    weight.expect_dims(&[side, side, 3, config.n_embd])?;
    let bias = match file.tensor("v.patch_embd.bias") {
        Some(_) => Some(vector(file, "v.patch_embd.bias", config.n_embd)?),
        None => None,
    };
    Linear::flattened(weight, bias, 3 * side * side, config.n_embd)
}

/// One row for the class token, if there is one, then one for each patch.
fn load_positions(file: &GgufFile, config: &VisionConfig, has_class: bool) -> Result<Vec<f32>, Error> {
    let table = file.require("v.position_embd.weight")?;
    let per_side = config.patches_per_side() as u64;
    let rows = per_side * per_side + u64::from(has_class);
    if table.n_cols() != config.n_embd || table.n_rows() as u64 != rows {
        return Err(table.error(format!(
            "shape {:?}, but {per_side}x{per_side} patches {} class token of width {} need {rows} rows",
            table.dims(),
            if has_class { "and a" } else { "without" },
            config.n_embd
        )));
    }
    Ok(table.to_f32())
}

/// Names of the widening and the narrowing matrix. Old converters swapped them; the input width tells.
fn feed_forward_names(file: &GgufFile, i: usize, n_embd: usize) -> Result<(String, String), Error> {
    let (up, down) = (format!("v.blk.{i}.ffn_up"), format!("v.blk.{i}.ffn_down"));
    let width = |name: &str| file.require(&format!("{name}.weight")).map(|t| t.n_cols());
    let swapped = width(&down)? == n_embd && width(&up)? != n_embd;
    Ok(if swapped { (down, up) } else { (up, down) })
}

/// A matrix that must have a bias.
pub(super) fn linear(file: &GgufFile, name: &str, n_in: usize, n_out: usize) -> Result<Linear, Error> {
    let bias = format!("{name}.bias");
    file.require(&bias)?;
    Linear::load(file, &format!("{name}.weight"), Some(&bias), n_in, n_out)
}

fn vector(file: &GgufFile, name: &str, n: usize) -> Result<Vec<f32>, Error> {
    let tensor = file.require(name)?;
    tensor.expect_dims(&[n])?;
    Ok(tensor.to_f32())
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
