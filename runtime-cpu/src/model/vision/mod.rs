//! The vision towers: a picture becomes rows of the language model's embedding space. A family of towers is a file here,
//! a projector one in `projector/`.

mod config;
mod layers;
mod vit;

pub use config::{Activation, ProjectorKind, VisionConfig};
pub(super) use layers::linear;

use super::projector::Projector;
use crate::Error;
use crate::gguf::GgufFile;
use crate::image::{Fit, Pixels, RgbImage, fixed_size};
use crate::ops::Compute;
use vit::Vit;

/// A vision tower and its projector. The large matrices stay in the file.
pub struct VisionTower {
    config: VisionConfig,
    tower: Vit,
    projector: Projector,
}

/// What a picture becomes in a prompt: these, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum ImagePart {
    /// Text that the model was trained to see around or between the parts of a picture, with special tokens.
    Text(String),
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
}

impl VisionTower {
    /// Loads the tower of a projector file ("mmproj") for a language model of width `n_embd_text`.
    ///
    /// # Errors
    /// [`Error::Metadata`] as from [`VisionConfig::from_gguf`]; [`Error::Tensor`] if a tensor is missing, has another
    /// shape than the configuration demands, or belongs to a variant that is not supported.
    pub fn load(file: &GgufFile, n_embd_text: usize) -> Result<VisionTower, Error> {
        let config = VisionConfig::from_gguf(file)?;
        Ok(VisionTower {
            tower: Vit::load(file, &config)?,
            projector: Projector::load(file, &config, n_embd_text)?,
            config,
        })
    }

    /// The tower's hyper-parameters.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// Encodes a picture of any size, padded to a square.
    ///
    /// # Errors
    /// [`Error::Image`] if the picture cannot be brought to the tower's size.
    pub fn encode(&self, cx: &Compute, image: &RgbImage) -> Result<Vec<ImagePart>, Error> {
        Ok(vec![ImagePart::Rows(self.encode_pixels(cx, &self.preprocess(image, Fit::Pad)?)?)])
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
        let n = features.len() / self.config.n_embd;
        let data = self.projector.forward(cx, &features, n);
        Ok(ImageEmbedding { n_tokens: n, data })
    }

    /// The tower's features, before the projector: `[patches][n_embd]`.
    ///
    /// # Errors
    /// [`Error::Image`] if `pixels` are not of the tower's size.
    pub fn features(&self, cx: &Compute, pixels: &Pixels) -> Result<Vec<f32>, Error> {
        self.tower.features(cx, &self.config, pixels)
    }
}
