//! The vision towers: a picture becomes rows of the language model's embedding space. A family of towers is a file here,
//! a projector one in `projector/`.

mod config;
mod idefics3;
mod layers;
mod limits;
mod llava_next;
mod qwen;
mod smart_resize;
mod vit;

pub use config::{Activation, ProjectorKind, Tiling, VisionConfig};
pub(super) use layers::linear;
pub use limits::{ImageCost, ImageLimits};

use super::projector::Projector;
use crate::Error;
use crate::gguf::GgufFile;
use crate::image::{Fit, Pixels, RgbImage, fixed_size};
use crate::memory::{Arena, WEIGHTS_BYTES};
use crate::ops::Compute;
use qwen::Qwen;
use vit::Vit;

/// A vision tower and its projector. Matrices stay in the file until they are [repacked](VisionTower::repack).
pub struct VisionTower {
    config: VisionConfig,
    tower: Tower,
    projector: Projector,
    /// Ends a line of features in LLaVA-NeXT, `[n_embd_text]`; otherwise empty.
    newline: Vec<f32>,
}

enum Tower {
    /// For squares of one size.
    Vit(Vit),
    /// For any size.
    Qwen(Qwen),
}

/// What a picture becomes in a prompt: these, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum ImagePart {
    /// Text that the model was trained to see between the parts of a picture.
    Text(String),
    /// The text of one special token, which the vocabulary must have.
    Special(String),
    /// Rows of the embedding space.
    Rows(ImageEmbedding),
}

/// Rows of the embedding space, one for each token position they take in the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageEmbedding {
    /// Rows.
    pub n_tokens: usize,
    /// `[n_tokens][n_embd_text]`
    pub data: Vec<f32>,
    /// Rows and columns, row-major, of a picture whose language model counts positions in both directions (M-RoPE).
    pub grid: Option<[usize; 2]>,
}

/// How one picture is seen.
enum Plan {
    One(ImageCost),
    Qwen(smart_resize::Plan),
    LlavaNext(llava_next::Plan),
    Idefics3(idefics3::Plan),
}

/// The largest ratio of a picture's sides. Beyond it there is hardly a pixel left in the shorter direction.
const MAX_ASPECT_RATIO: u32 = 200;

impl VisionTower {
    /// Loads the tower of a projector file ("mmproj") for a language model of width `n_embd_text`.
    ///
    /// # Errors
    /// [`Error::Metadata`] as from [`VisionConfig::from_gguf`]; [`Error::Tensor`] if a tensor is missing, has another
    /// shape than the configuration demands, or belongs to a variant that is not supported.
    pub fn load(file: &GgufFile, n_embd_text: usize) -> Result<VisionTower, Error> {
        let config = VisionConfig::from_gguf(file)?;
        let newline = match config.tiling {
            Tiling::AnyRes { .. } => {
                let names = ["model.image_newline", "v.image_newline"];
                let name = names.into_iter().find(|name| file.tensor(name).is_some()).unwrap_or(names[0]);
                layers::vector(file, name, n_embd_text)?
            }
            _ => Vec::new(),
        };
        Ok(VisionTower {
            tower: match config.projector {
                ProjectorKind::Merger { merge, windowed } => Tower::Qwen(Qwen::load(file, &config, merge, windowed)?),
                _ => Tower::Vit(Vit::load(file, &config)?),
            },
            projector: Projector::load(file, &config, n_embd_text)?,
            newline,
            config,
        })
    }

    /// Repacks all matrices for the vector kernels, where that pays; they no longer stay in the file then.
    pub fn repack(&mut self, cx: &Compute) {
        let memory = &mut Arena::new(WEIGHTS_BYTES);
        let (tower, projector) = (&mut self.tower, &mut self.projector);
        match tower {
            Tower::Vit(tower) => tower.matrices().chain(projector.matrices()).for_each(|m| m.repack(cx, memory)),
            Tower::Qwen(tower) => tower.matrices().chain(projector.matrices()).for_each(|m| m.repack(cx, memory)),
        }
    }

    /// The tower's hyper-parameters.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// What a picture of `width` x `height` pixels will cost, at most `limits`.
    ///
    /// # Errors
    /// [`Error::Image`] if the picture cannot be had within the limits, or one of its sides is zero or more than 200 times
    /// the other.
    pub fn cost(&self, width: u32, height: u32, limits: &ImageLimits) -> Result<ImageCost, Error> {
        Ok(self.plan((width, height), limits)?.cost())
    }

    /// Encodes a picture of any size as the model was trained to see it, within `limits`. (LLaVA-1.5: padded to a square.)
    ///
    /// # Errors
    /// As [`cost`](Self::cost).
    pub fn encode(&self, cx: &Compute, image: &RgbImage, limits: &ImageLimits) -> Result<Vec<ImagePart>, Error> {
        let encode = |tiles: Vec<RgbImage>| -> Result<Vec<ImageEmbedding>, Error> {
            tiles.iter().map(|tile| self.encode_pixels(cx, &Pixels::new(tile, &self.config.normalize))).collect()
        };
        Ok(match self.plan((image.width(), image.height()), limits)? {
            Plan::One(_) => vec![ImagePart::Rows(self.encode_pixels(cx, &self.preprocess(image, Fit::Pad)?)?)],
            Plan::Qwen(plan) => {
                let rows = self.encode_pixels(cx, &Pixels::new(&plan.resized(image)?, &self.config.normalize))?;
                let around = ["<|vision_start|>", "<|vision_end|>"].map(|token| ImagePart::Special(token.into()));
                let [start, end] = around;
                vec![start, ImagePart::Rows(rows), end]
            }
            Plan::LlavaNext(plan) => vec![ImagePart::Rows(plan.pack(&encode(plan.tiles(image)?)?, &self.newline))],
            Plan::Idefics3(plan) => plan.layout(encode(plan.tiles(image)?)?),
        })
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
        let data = self.projector.forward(cx, &features, features.len() / self.config.n_embd);
        Ok(match &self.tower {
            Tower::Vit(_) => ImageEmbedding { n_tokens: self.config.tokens_per_tile(), data, grid: None },
            Tower::Qwen(tower) => {
                let grid = tower.grid(&self.config, pixels);
                ImageEmbedding { n_tokens: grid[0] * grid[1], data, grid: Some(grid) }
            }
        })
    }

    /// The tower's features, before the projector: `[patches][n_embd]`.
    ///
    /// # Errors
    /// [`Error::Image`] if `pixels` are not of the tower's size.
    pub fn features(&self, cx: &Compute, pixels: &Pixels) -> Result<Vec<f32>, Error> {
        match &self.tower {
            Tower::Vit(tower) => tower.features(cx, &self.config, pixels),
            Tower::Qwen(tower) => tower.features(cx, &self.config, pixels),
        }
    }

    fn plan(&self, size: (u32, u32), limits: &ImageLimits) -> Result<Plan, Error> {
        let (width, height) = size;
        if width == 0 || height == 0 {
            return Err(Error::Image { what: format!("{width}x{height} pixels: a side is zero") });
        }
        if u64::from(width.max(height)) > u64::from(MAX_ASPECT_RATIO) * u64::from(width.min(height)) {
            let what = format!("{width}x{height} pixels: one side is more than {MAX_ASPECT_RATIO} times the other");
            return Err(Error::Image { what });
        }
        let (side, n_tokens) = (self.config.image_size, self.config.tokens_per_tile());
        match &self.config.tiling {
            Tiling::One => {
                let cost = ImageCost { n_tokens, n_tiles: 1, longest_edge: side };
                limits.check(&cost, size).map(|()| Plan::One(cost))
            }
            Tiling::Whole { block, pixels } => smart_resize::Plan::new(size, *block, pixels, limits).map(Plan::Qwen),
            Tiling::AnyRes { resolutions } => {
                let square = (side, self.config.patches_per_side());
                llava_next::Plan::new(size, square, resolutions, limits).map(Plan::LlavaNext)
            }
            Tiling::Split { longest_edge } => {
                idefics3::Plan::new(size, (side, n_tokens), *longest_edge, limits).map(Plan::Idefics3)
            }
        }
    }
}

impl Plan {
    fn cost(&self) -> ImageCost {
        match self {
            Plan::One(cost) => *cost,
            Plan::Qwen(plan) => plan.cost(),
            Plan::LlavaNext(plan) => plan.cost(),
            Plan::Idefics3(plan) => plan.cost(),
        }
    }
}
