//! Hyper-parameters of a vision tower.

use crate::Error;
use crate::gguf::{GgufFile, Metadata};
use crate::image::Normalize;

/// Hyper-parameters of a vision tower, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Side of the square the tower sees, in pixels; a multiple of `patch_size`.
    pub image_size: u32,
    /// Side of a patch in pixels.
    pub patch_size: u32,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Attention heads; divides `n_embd`.
    pub n_heads: usize,
    /// Layers to run, which may be fewer than the file has.
    pub n_layers: usize,
    /// Added to the variance by the layer norms.
    pub eps: f32,
    /// Pixel statistics of the training data.
    pub normalize: Normalize,
    /// Between the two matrices of a feed-forward block.
    pub activation: Activation,
    /// From the tower's features to the language model's embeddings.
    pub projector: ProjectorKind,
}

/// Activation of the feed-forward blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(1.702 x)`, OpenAI's CLIP.
    QuickGelu,
    /// GELU with the error function.
    Gelu,
    /// `x * sigmoid(x)`
    Silu,
}

/// The supported values of `clip.projector_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectorKind {
    /// `mlp`: two matrices with a GELU between, LLaVA-1.5.
    Mlp,
}

impl VisionConfig {
    /// Reads the `clip.*` keys of a projector file ("mmproj").
    ///
    /// Layers: `clip.vision.feature_layer` counts how many to run (0 = only the embeddings). Without that key all
    /// `clip.vision.block_count` layers run, as converters already leave out the layers behind the features.
    ///
    /// # Errors
    /// [`Error::Metadata`] naming the key if one is missing, out of range, contradicts another, or asks for
    /// something that is not supported.
    pub fn from_gguf(file: &GgufFile) -> Result<VisionConfig, Error> {
        let keys = Keys(file.metadata());
        keys.check_kind()?;
        let projector = keys.projector()?;
        let image_size = keys.positive("clip.vision.image_size")?;
        let patch_size = keys.positive("clip.vision.patch_size")?;
        if !image_size.is_multiple_of(patch_size) {
            let what = format!("{patch_size} does not divide the image size {image_size}");
            return Err(keys.error("clip.vision.patch_size", what));
        }
        let n_embd = keys.positive("clip.vision.embedding_length")?;
        let n_heads = keys.positive("clip.vision.attention.head_count")?;
        if !n_embd.is_multiple_of(n_heads) {
            let what = format!("{n_heads} heads do not divide the embedding length {n_embd}");
            return Err(keys.error("clip.vision.attention.head_count", what));
        }
        Ok(VisionConfig {
            image_size,
            patch_size,
            n_embd: n_embd as usize,
            n_heads: n_heads as usize,
            n_layers: keys.layers_to_run()?,
            eps: keys.eps()?,
            normalize: keys.normalize()?,
            activation: keys.activation()?,
            projector,
        })
    }

    /// Values per attention head.
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_heads
    }

    /// Patches per side of the square.
    pub fn patches_per_side(&self) -> usize {
        (self.image_size / self.patch_size) as usize
    }
}

struct Keys<'a>(&'a Metadata);

impl Keys<'_> {
    fn check_kind(&self) -> Result<(), Error> {
        let architecture = self.0.str("general.architecture")?;
        if architecture != "clip" {
            let what = format!("{architecture:?}, expected \"clip\": this is not a projector (mmproj) file");
            return Err(self.error("general.architecture", what));
        }
        if self.0.opt_bool("clip.has_vision_encoder")? == Some(false) {
            return Err(self.error("clip.has_vision_encoder", "false: the file has no vision tower".into()));
        }
        // Its presence means that pictures are cut into tiles whose features are packed together: LLaVA-NeXT.
        let pinpoints = "clip.vision.image_grid_pinpoints";
        if self.0.contains(pinpoints) {
            return Err(self.error(pinpoints, "pictures in tiles (LLaVA-NeXT) are not supported".into()));
        }
        Ok(())
    }

    fn projector(&self) -> Result<ProjectorKind, Error> {
        let key = "clip.projector_type";
        let name = match self.0.opt_str(key)? {
            Some(name) => name,
            None => match self.0.opt_str("clip.vision.projector_type")? {
                Some(name) => name,
                // The first LLaVA files knew one projector only and did not name it.
                None if self.0.opt_bool("clip.has_llava_projector")? == Some(true) => "mlp",
                None => return Err(self.error(key, "missing".into())),
            },
        };
        match name {
            "mlp" => Ok(ProjectorKind::Mlp),
            _ => Err(self.error(key, format!("projector {name:?} is not supported, only \"mlp\" is"))),
        }
    }

    fn layers_to_run(&self) -> Result<usize, Error> {
        let stored = self.positive("clip.vision.block_count")?;
        let key = "clip.vision.feature_layer";
        match self.0.opt_i32_array(key)?.as_deref() {
            None => Ok(stored as usize),
            Some(&[layer]) => match u32::try_from(layer) {
                Ok(layer) if layer <= stored => Ok(layer as usize),
                _ => Err(self.error(key, format!("layer {layer}, but the file has {stored}"))),
            },
            Some(layers) => Err(self.error(key, format!("{} feature layers, only one is supported", layers.len()))),
        }
    }

    fn eps(&self) -> Result<f32, Error> {
        let key = "clip.vision.attention.layer_norm_epsilon";
        let eps = self.0.f32(key)?;
        if eps.is_finite() && eps > 0.0 {
            Ok(eps)
        } else {
            Err(self.error(key, format!("{eps:?} is not a positive number")))
        }
    }

    fn normalize(&self) -> Result<Normalize, Error> {
        let channels = |key: &str| {
            let values = self.0.f32_array(key)?;
            <[f32; 3]>::try_from(values).map_err(|v| self.error(key, format!("{} values, expected 3", v.len())))
        };
        let mean = channels("clip.vision.image_mean")?;
        Normalize::new(mean, channels("clip.vision.image_std")?).map_err(|e| match e {
            Error::Image { what } => self.error("clip.vision.image_mean", what),
            other => other,
        })
    }

    fn activation(&self) -> Result<Activation, Error> {
        let gelu = self.0.opt_bool("clip.use_gelu")?.unwrap_or(false);
        let silu = self.0.opt_bool("clip.use_silu")?.unwrap_or(false);
        match (gelu, silu) {
            (false, false) => Ok(Activation::QuickGelu),
            (true, false) => Ok(Activation::Gelu),
            (false, true) => Ok(Activation::Silu),
            (true, true) => Err(self.error("clip.use_silu", "true, and so is clip.use_gelu".into())),
        }
    }

    fn positive(&self, key: &str) -> Result<u32, Error> {
        match self.0.u32(key)? {
            0 => Err(self.error(key, "0, expected at least 1".into())),
            n => Ok(n),
        }
    }

    fn error(&self, key: &str, what: String) -> Error {
        self.0.error(key, what)
    }
}
