//! From the width of a vision tower to the width of the language model, one file for each kind.

mod mlp;
mod pixel_shuffle;

use super::vision::{ProjectorKind, VisionConfig};
use crate::Error;
use crate::gguf::GgufFile;
use crate::ops::{Compute, Linear};
use mlp::MlpProjector;
use pixel_shuffle::PixelShuffle;

/// A projector.
pub(super) enum Projector {
    Mlp(MlpProjector),
    /// The rows of `merge` x `merge` features, one after the other, become one.
    Merger {
        mlp: MlpProjector,
        merge: usize,
    },
    PixelShuffle(PixelShuffle),
}

impl Projector {
    /// For a language model of width `n_out`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a tensor is missing or has another shape than the two widths demand.
    pub fn load(file: &GgufFile, config: &VisionConfig, n_out: usize) -> Result<Projector, Error> {
        match config.projector {
            ProjectorKind::Mlp => Ok(Projector::Mlp(MlpProjector::load(file, config.n_embd, n_out)?)),
            ProjectorKind::Merger { merge, .. } => {
                let n_in = config.n_embd * merge * merge;
                Ok(Projector::Merger { mlp: MlpProjector::load(file, n_in, n_out)?, merge })
            }
            ProjectorKind::PixelShuffle { scale } => {
                let side = config.patches_per_side();
                PixelShuffle::load(file, scale, side, config.n_embd, n_out).map(Projector::PixelShuffle)
            }
        }
    }

    pub fn matrices(&mut self) -> impl Iterator<Item = &mut Linear> {
        let (mlp, shuffle) = match self {
            Projector::Mlp(mlp) | Projector::Merger { mlp, .. } => (Some(mlp.matrices()), None),
            Projector::PixelShuffle(p) => (None, Some(p.matrices())),
        };
        mlp.into_iter().flatten().chain(shuffle.into_iter().flatten())
    }

    /// The tower's features `x` `[n][n_embd]` of one square, in the tower's order, to rows of the language model's width.
    pub fn forward(&self, cx: &Compute, x: &[f32], n: usize) -> Vec<f32> {
        match self {
            Projector::Mlp(p) => p.forward(cx, x, n),
            Projector::Merger { mlp, merge } => mlp.forward(cx, x, n / (merge * merge)),
            Projector::PixelShuffle(p) => p.forward(cx, x),
        }
    }
}
