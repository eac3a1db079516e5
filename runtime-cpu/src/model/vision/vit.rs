//! The plain vision transformer (Dosovitskiy et al. 2021) at a fixed size: CLIP (Radford et al. 2021) with a class token
//! and a norm in front, SigLIP (Zhai et al. 2023) with a norm at the end.

use super::config::{ProjectorKind, VisionConfig};
use super::layers::{Block, LayerNorm, Scratch, add, vector};
use crate::Error;
use crate::gguf::GgufFile;
use crate::image::Pixels;
use crate::ops::{Compute, Linear};

/// Patch embedding, learned positions, transformer layers. LLaVA takes the features of one of the last layers, without
/// the class token and without a final norm.
pub struct Vit {
    patch_embd: Linear,
    /// `[n_embd]`, the first row of the sequence if there is one.
    class_embd: Option<Vec<f32>>,
    /// `[class + patches][n_embd]`
    position_embd: Vec<f32>,
    pre_ln: Option<LayerNorm>,
    blocks: Vec<Block>,
    post_ln: Option<LayerNorm>,
}

impl Vit {
    /// # Errors
    /// [`Error::Tensor`] if a tensor is missing or has another shape than the configuration demands.
    pub fn load(file: &GgufFile, config: &VisionConfig) -> Result<Vit, Error> {
        let class_embd = match file.tensor("v.class_embd") {
            Some(_) => Some(vector(file, "v.class_embd", config.n_embd)?),
            None => None,
        };
        let position_embd = load_positions(file, config, class_embd.is_some())?;
        let pre_ln = match file.tensor("v.pre_ln.weight") {
            Some(_) => Some(LayerNorm::load(file, "v.pre_ln", config)?),
            None => None,
        };
        // LLaVA's features come from before it, should a file have it.
        let post_ln = match config.projector {
            ProjectorKind::Mlp | ProjectorKind::Merger { .. } => None,
            ProjectorKind::PixelShuffle { .. } => Some(LayerNorm::load(file, "v.post_ln", config)?),
        };
        Ok(Vit {
            patch_embd: load_patch_embedding(file, config)?,
            class_embd,
            position_embd,
            pre_ln,
            blocks: (0..config.n_layers).map(|i| Block::load(file, i, config)).collect::<Result<_, _>>()?,
            post_ln,
        })
    }

    pub fn matrices(&mut self) -> impl Iterator<Item = &mut Linear> {
        std::iter::once(&mut self.patch_embd).chain(self.blocks.iter_mut().flat_map(Block::matrices))
    }

    /// `[patches][n_embd]`
    ///
    /// # Errors
    /// [`Error::Image`] if `pixels` are not of the tower's size.
    pub fn features(&self, cx: &Compute, config: &VisionConfig, pixels: &Pixels) -> Result<Vec<f32>, Error> {
        let mut x = self.embed(cx, config, pixels)?;
        let mut scratch = Scratch::new(config, &x);
        for block in &self.blocks {
            block.forward(cx, config, &mut x, &mut scratch);
        }
        let class_len = self.class_embd.as_ref().map_or(0, Vec::len);
        x.drain(..class_len);
        Ok(match &self.post_ln {
            Some(post_ln) => post_ln.applied(cx, &x),
            None => x,
        })
    }

    /// Patches and class token with their positions: `[class + patches][n_embd]`.
    fn embed(&self, cx: &Compute, config: &VisionConfig, pixels: &Pixels) -> Result<Vec<f32>, Error> {
        let side = config.image_size as usize;
        if (pixels.width, pixels.height, pixels.data.len()) != (side, side, 3 * side * side) {
            let what = format!(
                "{}x{} pixels with {} values, the tower takes {side}x{side} with 3 each",
                pixels.width,
                pixels.height,
                pixels.data.len()
            );
            return Err(Error::Image { what });
        }
        let patches = pixels.patches(config.patch_size as usize);
        let mut x = vec![0.0; self.position_embd.len()];
        let class_len = self.class_embd.as_ref().map_or(0, Vec::len);
        let (class_row, patch_rows) = x.split_at_mut(class_len);
        if let Some(class_embd) = &self.class_embd {
            class_row.copy_from_slice(class_embd);
        }
        self.patch_embd.forward(cx, &patches, config.patches_per_side().pow(2), patch_rows);
        add(cx, &mut x, &self.position_embd);
        match &self.pre_ln {
            Some(pre_ln) => Ok(pre_ln.applied(cx, &x)),
            None => Ok(x),
        }
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
