//! Idefics3's and SmolVLM's projector.

use crate::Error;
use crate::gguf::GgufFile;
use crate::ops::{Compute, Linear};

/// Squares of `scale` x `scale` neighbouring features become one row, in row-major order, and go through one matrix.
pub struct PixelShuffle {
    matrix: Linear,
    scale: usize,
    /// Features along the side of the tower's square; a multiple of `scale`.
    side: usize,
}

impl PixelShuffle {
    /// `n_in` is the tower's width, `n_out` the language model's.
    pub fn load(file: &GgufFile, scale: usize, side: usize, n_in: usize, n_out: usize) -> Result<PixelShuffle, Error> {
        let name = "mm.model.fc.weight";
        let weight = file.require(name)?;
        if weight.n_rows() != n_out {
            let width = weight.n_rows();
            return Err(weight
                .error(format!("the projector gives embeddings of width {width}, the language model takes {n_out}")));
        }
        let n_wide = n_in.checked_mul(scale * scale).ok_or_else(|| weight.error(format!("scale {scale}")))?;
        Ok(PixelShuffle { matrix: Linear::load(file, name, None, n_wide, n_out)?, scale, side })
    }

    pub fn matrices(&mut self) -> [&mut Linear; 1] {
        [&mut self.matrix]
    }

    /// `x` `[side * side][n_in]` to `[(side / scale)^2][n_out]`.
    pub fn forward(&self, cx: &Compute, x: &[f32]) -> Vec<f32> {
        let (side, scale) = (self.side, self.scale);
        let n_in = x.len() / (side * side);
        let mut wide = Vec::with_capacity(x.len());
        for row in (0..side).step_by(scale) {
            for column in (0..side).step_by(scale) {
                for y in row..row + scale {
                    wide.extend_from_slice(&x[(y * side + column) * n_in..][..scale * n_in]);
                }
            }
        }
        let n = (side / scale) * (side / scale);
        let mut out = vec![0.0; n * self.matrix.n_out()];
        self.matrix.forward(cx, &wide, n, &mut out);
        out
    }
}
