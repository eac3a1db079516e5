//! Hyper-parameters of a vision tower.

use super::smart_resize::MAX_PIXELS;
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
    /// From a picture to squares.
    pub tiling: Tiling,
}

/// Activation of the feed-forward blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(1.702 x)`, OpenAI's CLIP.
    QuickGelu,
    /// GELU with the error function.
    Gelu,
    /// GELU by tanh, SigLIP.
    GeluTanh,
    /// `x * sigmoid(x)`
    Silu,
}

/// The supported values of `clip.projector_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectorKind {
    /// `mlp`: two matrices with a GELU between, LLaVA.
    Mlp,
    /// `qwen2vl_merger`, `qwen2.5vl_merger`: as `Mlp`, on blocks of `merge` x `merge` features.
    Merger {
        /// Side of the block.
        merge: usize,
        /// Whether it is the later one, most of whose layers see windows only.
        windowed: bool,
    },
    /// `idefics3`: `scale` x `scale` features become one row, then a matrix. `scale` divides the patches per side.
    PixelShuffle {
        /// Side of the square of features.
        scale: usize,
    },
}

/// How a picture becomes squares of the tower's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// It becomes one.
    One,
    /// An overview, and those of the one of these resolutions that suits it best: LLaVA-NeXT.
    AnyRes {
        /// `(width, height)` in pixels, multiples of the tower's size.
        resolutions: Vec<(u32, u32)>,
    },
    /// It keeps its shape and becomes no square: Qwen2-VL.
    Whole {
        /// Side of what becomes one row of the language model, in pixels.
        block: u32,
        /// Number of pixels that it is brought to, from and up to.
        pixels: std::ops::Range<u64>,
    },
    /// Those of the picture scaled to a longer side of so many pixels, and an overview: Idefics3.
    Split {
        /// In pixels, at least the tower's size.
        longest_edge: u32,
    },
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
        let image_size = keys.positive("clip.vision.image_size")?;
        let patch_size = keys.positive("clip.vision.patch_size")?;
        if !image_size.is_multiple_of(patch_size) {
            let what = format!("{patch_size} does not divide the image size {image_size}");
            return Err(keys.error("clip.vision.patch_size", what));
        }
        let projector = keys.projector(image_size / patch_size)?;
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
            activation: match (keys.activation()?, projector) {
                (Activation::Gelu, ProjectorKind::PixelShuffle { .. }) => Activation::GeluTanh,
                (activation, _) => activation,
            },
            projector,
            tiling: keys.tiling(projector, image_size, patch_size)?,
        })
    }

    /// Values per attention head.
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_heads
    }

    /// Rows of the language model that a square becomes.
    pub fn tokens_per_tile(&self) -> usize {
        match self.projector {
            ProjectorKind::Mlp => self.patches_per_side().pow(2),
            ProjectorKind::Merger { merge: scale, .. } | ProjectorKind::PixelShuffle { scale } => {
                (self.patches_per_side() / scale).pow(2)
            }
        }
    }

    /// Patches per side of the square.
    pub fn patches_per_side(&self) -> usize {
        (self.image_size / self.patch_size) as usize
    }
}

/// Longest side of what a picture is brought to, in pixels. Idefics3 has the same limit.
const MAX_EDGE: u32 = 4096;

const PINPOINTS: &str = "clip.vision.image_grid_pinpoints";

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
        Ok(())
    }

    fn projector(&self, per_side: u32) -> Result<ProjectorKind, Error> {
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
            "idefics3" => self.pixel_shuffle(per_side),
            "qwen2vl_merger" => self.merger(false),
            "qwen2.5vl_merger" => self.merger(true),
            _ => {
                let known = "mlp, idefics3, qwen2vl_merger and qwen2.5vl_merger";
                let what = format!("projector {name:?} is not supported; supported are {known}");
                Err(self.error(key, what))
            }
        }
    }

    fn pixel_shuffle(&self, per_side: u32) -> Result<ProjectorKind, Error> {
        let key = "clip.vision.projector.scale_factor";
        let scale = self.positive(key)?;
        if !per_side.is_multiple_of(scale) {
            let what = format!("{scale} does not divide the {per_side} patches along a side");
            return Err(self.error(key, what));
        }
        Ok(ProjectorKind::PixelShuffle { scale: scale as usize })
    }

    fn merger(&self, windowed: bool) -> Result<ProjectorKind, Error> {
        let key = "clip.vision.spatial_merge_size";
        match self.0.opt_u32(key)?.unwrap_or(2) {
            merge @ 1..=16 => Ok(ProjectorKind::Merger { merge: merge as usize, windowed }),
            merge => Err(self.error(key, format!("{merge}, expected 1 to 16"))),
        }
    }

    /// Without a word of the file: 4 to 1280 rows of the language model, as transformers has it.
    fn pixels(&self, patch: u32, merge: usize) -> Result<Tiling, Error> {
        let (least, most) = ("clip.vision.image_min_pixels", "clip.vision.image_max_pixels");
        let per_row = (u64::from(patch) * merge as u64).saturating_pow(2);
        let start = self.0.opt_u32(least)?.map_or(per_row.saturating_mul(4), u64::from);
        let end = self.0.opt_u32(most)?.map_or(per_row.saturating_mul(1280), u64::from);
        if start > end || end < per_row {
            return Err(self.error(most, format!("{end}, expected at least {} pixels", start.max(per_row))));
        }
        let block = patch.saturating_mul(merge as u32);
        Ok(Tiling::Whole { block, pixels: start..end.min(MAX_PIXELS.max(per_row)) })
    }

    fn tiling(&self, projector: ProjectorKind, side: u32, patch: u32) -> Result<Tiling, Error> {
        match projector {
            // The presence of resolutions is what distinguishes LLaVA-NeXT.
            ProjectorKind::Mlp if self.0.contains(PINPOINTS) => self.resolutions(side),
            ProjectorKind::Mlp => Ok(Tiling::One),
            ProjectorKind::Merger { merge, .. } => self.pixels(patch, merge),
            ProjectorKind::PixelShuffle { .. } => {
                let key = "clip.vision.preproc_image_size";
                // All published models have four squares along the longer side; files of old converters do not say so.
                let longest_edge = self.0.opt_u32(key)?.unwrap_or(side.saturating_mul(4));
                if !(side..=MAX_EDGE.max(side)).contains(&longest_edge) {
                    return Err(self.error(key, format!("{longest_edge}, expected {side} to {MAX_EDGE}")));
                }
                Ok(Tiling::Split { longest_edge })
            }
        }
    }

    fn resolutions(&self, side: u32) -> Result<Tiling, Error> {
        let key = "clip.vision.mm_patch_merge_type";
        match self.0.opt_str(key)? {
            None | Some("spatial_unpad") => {}
            Some(other) => {
                return Err(self.error(key, format!("{other:?} is not supported, only \"spatial_unpad\" is")));
            }
        }
        let values = self.0.opt_i32_array(PINPOINTS)?.unwrap_or_default();
        let (pairs, odd) = values.as_chunks::<2>();
        if pairs.is_empty() || !odd.is_empty() {
            return Err(self.error(PINPOINTS, format!("{} values, expected pairs of width and height", values.len())));
        }
        let length = |v: i32| u32::try_from(v).ok().filter(|v| (side..=MAX_EDGE.max(side)).contains(v));
        let pair = |&[width, height]: &[i32; 2]| match (length(width), length(height)) {
            (Some(w), Some(h)) if w.is_multiple_of(side) && h.is_multiple_of(side) => Ok((w, h)),
            _ => {
                let what = format!("{width}x{height}, expected multiples of {side} up to {MAX_EDGE}");
                Err(self.error(PINPOINTS, what))
            }
        };
        Ok(Tiling::AnyRes { resolutions: pairs.iter().map(pair).collect::<Result<_, _>>()? })
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
