//! LLaVA's projector.

use crate::Error;
use crate::gguf::GgufFile;
use crate::model::vision::linear;
use crate::ops::{Compute, Linear, act};

/// `mm.2 gelu(mm.0 x)`, GELU with the error function.
pub struct MlpProjector {
    first: Linear,
    second: Linear,
    n_hidden: usize,
    n_out: usize,
}

impl MlpProjector {
    /// `n_in` is the tower's width, `n_out` the language model's. The width between comes from the tensors.
    pub fn load(file: &GgufFile, n_in: usize, n_out: usize) -> Result<MlpProjector, Error> {
        if let Some(extra) = file.tensor("mm.3.weight") {
            return Err(extra.error("a projector with layer norms (Yi-VL) is not supported".into()));
        }
        let n_hidden = file.require("mm.0.weight")?.n_rows();
        let last = file.require("mm.2.weight")?;
        if last.n_rows() != n_out {
            return Err(last.error(format!(
                "the projector gives embeddings of width {}, the language model takes {n_out}",
                last.n_rows()
            )));
        }
        Ok(MlpProjector {
            first: linear(file, "mm.0", n_in, n_hidden)?,
            second: linear(file, "mm.2", n_hidden, n_out)?,
            n_hidden,
            n_out,
        })
    }

    pub fn matrices(&mut self) -> [&mut Linear; 2] {
        [&mut self.first, &mut self.second]
    }

    /// `x` `[n][n_in]` to `[n][n_out]`.
    pub fn forward(&self, cx: &Compute, x: &[f32], n: usize) -> Vec<f32> {
        let mut hidden = vec![0.0; n * self.n_hidden];
        self.first.forward(cx, x, n, &mut hidden);
        act::gelu_erf(cx, &mut hidden);
        let mut out = vec![0.0; n * self.n_out];
        self.second.forward(cx, &hidden, n, &mut out);
        out
    }
}
