//! From the width of a vision tower to the width of the language model, one file for each kind.

mod mlp;

use super::vision::{ProjectorKind, VisionConfig};
use crate::Error;
use crate::gguf::GgufFile;
use crate::ops::Compute;
use mlp::MlpProjector;

/// A projector.
pub(super) enum Projector {
    Mlp(MlpProjector),
}

impl Projector {
    /// For a language model of width `n_out`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a tensor is missing or has another shape than the two widths demand.
    pub fn load(file: &GgufFile, config: &VisionConfig, n_out: usize) -> Result<Projector, Error> {
        match config.projector {
            ProjectorKind::Mlp => Ok(Projector::Mlp(MlpProjector::load(file, config.n_embd, n_out)?)),
        }
    }

    /// `x` `[n][n_embd]` to rows of the language model's width.
    pub fn forward(&self, cx: &Compute, x: &[f32], n: usize) -> Vec<f32> {
        match self {
            Projector::Mlp(p) => p.forward(cx, x, n),
        }
    }
}
