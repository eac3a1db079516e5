//! Matrix products with weights that stay in the file.

use std::sync::Arc;

use super::{Compute, Precision};
use crate::Error;
use crate::gguf::{GgufFile, Tensor};
use crate::kernels::{FLOAT_TOKENS, Floats, PANEL_ROWS, Packed, Q8Rows, TileRows, TileWeights, WeightRows};
use crate::memory::Arena;
use crate::quant::GgmlType;

/// Tokens per task of a matrix product: enough to repay reading the weights, few enough to stay in the L2 cache.
const MAX_TOKENS: usize = 128;

/// `y = W x + b` with `W` `[n_out][n_in]` in any supported format.
#[derive(Clone)]
pub struct Linear {
    weight: Tensor,
    repacked: Option<Repacked>,
    bias: Option<Vec<f32>>,
    n_in: usize,
    n_out: usize,
}

#[derive(Clone)]
enum Repacked {
    Quants(Arc<Packed>),
    Floats(Arc<Floats>),
}

/// Activations in the form that the weights want: as they are, or quantised or split once for several matrices.
#[derive(Default)]
pub struct Input {
    q8: Q8Rows,
    tiles: TileRows,
}

impl Linear {
    /// Looks the weight (and the bias, which may be absent from the file) up and checks their shapes.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the weight is missing or a shape is wrong.
    pub fn load(file: &GgufFile, weight: &str, bias: Option<&str>, n_in: usize, n_out: usize) -> Result<Linear, Error> {
        let tensor = file.require(weight)?;
        let bias = bias.and_then(|name| file.tensor(name));
        if let Some(b) = &bias {
            b.expect_dims(&[n_out])?;
        }
        Linear::new(tensor, bias.map(|b| b.to_f32()), n_in, n_out)
    }

    /// From a tensor `[n_in, n_out]` (file order).
    ///
    /// # Errors
    /// [`Error::Tensor`] if the shape is wrong.
    pub fn new(weight: Tensor, bias: Option<Vec<f32>>, n_in: usize, n_out: usize) -> Result<Linear, Error> {
        if weight.n_cols() != n_in || weight.n_rows() != n_out {
            weight.expect_dims(&[n_in, n_out])?;
        }
        Ok(Linear { weight, repacked: None, bias, n_in, n_out })
    }

    /// From a tensor of any rank whose elements, in file order, are an `[n_out][n_in]` matrix: a convolution kernel
    /// `[width, height, channels, n_out]` (file order) applied at its own stride.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the number of elements is another, or if a row of the matrix would begin inside a block.
    pub fn flattened(weight: Tensor, bias: Option<Vec<f32>>, n_in: usize, n_out: usize) -> Result<Linear, Error> {
        let (rows, columns) = (weight.n_rows(), weight.n_cols());
        if rows.checked_mul(columns) != n_in.checked_mul(n_out) || !n_in.is_multiple_of(columns) {
            return Err(weight.error(format!("shape {:?} is no {n_out} x {n_in} matrix", weight.dims())));
        }
        Ok(Linear { weight, repacked: None, bias, n_in, n_out })
    }

    /// Repacks the weights for the vector kernels, where that pays, into `memory`, and lets go of the file's pages.
    pub(crate) fn repack(&mut self, cx: &Compute, memory: &mut Arena) {
        if self.repacked.is_some() || !cx.dispatch.packs() {
            return;
        }
        let ty = self.weight.ty();
        self.repacked = if self.wants_q8(cx) && Packed::pays(ty) {
            Some(Repacked::Quants(Arc::new(Packed::within(memory, self.rows(), &cx.pool))))
        } else if Floats::pays(ty) {
            Some(Repacked::Floats(Arc::new(Floats::within(memory, self.rows(), &cx.pool))))
        } else {
            return;
        };
        self.weight.release();
    }

    /// Values of an input vector.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Values of an output vector.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// `out[t] = W x[t] + b`: `x` `[n][n_in]`, `out` `[n][n_out]`.
    pub fn forward(&self, cx: &Compute, x: &[f32], n: usize, out: &mut [f32]) {
        let mut input = Input::default();
        input.prepare(cx, &[self], x, n);
        self.forward_with(cx, x, &input, n, out);
    }

    /// As [`forward`](Self::forward) with an input that was [prepared](Input::prepare) before.
    pub fn forward_with(&self, cx: &Compute, x: &[f32], input: &Input, n: usize, out: &mut [f32]) {
        assert!(x.len() == n * self.n_in && out.len() == n * self.n_out, "linear: shapes");
        if n < 4 {
            for (t, out) in out.chunks_exact_mut(self.n_out).enumerate() {
                forward_one(cx, &x[t * self.n_in..(t + 1) * self.n_in], input, t, [(self, out)]);
            }
            return;
        }
        if self.wants_q8(cx) && cx.dispatch.has_tiles(n) {
            let weights = match &self.repacked {
                Some(Repacked::Quants(w)) => TileWeights::Packed(w),
                _ => TileWeights::Rows(self.rows()),
            };
            cx.dispatch.gemm_tiles(weights, &input.tiles, &cx.pool, out);
            if let Some(bias) = &self.bias {
                cx.pool.chunks(out, self.n_out, |_, out| cx.dispatch.add(out, bias));
            }
            return;
        }
        // By shape alone: a float product of very few tokens rounds differently.
        let tokens = match &self.repacked {
            Some(Repacked::Floats(_)) => FLOAT_TOKENS * if n <= 96 { 2 } else { 4 },
            _ => n.div_ceil(8).next_multiple_of(8).min(MAX_TOKENS),
        };
        cx.pool.chunks(out, tokens * self.n_out, |i, out| {
            let (from, to) = (i * tokens, i * tokens + out.len() / self.n_out);
            let floats = &x[from * self.n_in..to * self.n_in];
            match (&self.repacked, self.wants_q8(cx)) {
                (Some(Repacked::Quants(w)), true) => {
                    cx.dispatch.gemm_packed(w.rows(0, self.n_out), &input.q8, from..to, out);
                }
                (_, true) => cx.dispatch.gemm_q8(self.rows(), &input.q8, from..to, out),
                (Some(Repacked::Floats(w)), false) => cx.dispatch.gemm_floats(w.rows(0, self.n_out), floats, out),
                (_, false) => cx.dispatch.gemm_f32(self.rows(), floats, out),
            }
            if let Some(bias) = &self.bias {
                out.chunks_exact_mut(self.n_out).for_each(|out| cx.dispatch.add(out, bias));
            }
        });
    }

    /// `out = W x + b` for rows `from..from + out.len()` and vector `t` of the input.
    fn forward_rows(&self, cx: &Compute, x: &[f32], input: &Input, t: usize, from: usize, out: &mut [f32]) {
        let to = from + out.len();
        match (&self.repacked, self.wants_q8(cx)) {
            (Some(Repacked::Quants(w)), true) => cx.dispatch.gemm_packed(w.rows(from, to), &input.q8, t..t + 1, out),
            (_, true) => cx.dispatch.gemv_q8(self.rows().slice(from, to), input.q8.row(t), out),
            (Some(Repacked::Floats(w)), false) => cx.dispatch.gemm_floats(w.rows(from, to), x, out),
            (_, false) => cx.dispatch.gemm_f32(self.rows().slice(from, to), x, out),
        }
        if let Some(bias) = &self.bias {
            cx.dispatch.add(out, &bias[from..to]);
        }
    }

    /// One row of the weight as f32: `out` `[n_in]`. For embedding tables.
    pub fn row(&self, r: usize, out: &mut [f32]) {
        crate::quant::dequantize_row(self.weight.ty(), self.weight.row(r), out);
    }

    /// Whether the product takes quantised activations.
    fn wants_q8(&self, cx: &Compute) -> bool {
        let float = matches!(self.weight.ty(), GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
        !float && cx.precision != Precision::Float
    }

    fn rows(&self) -> WeightRows<'_> {
        let data = self.weight.data();
        WeightRows { ty: self.weight.ty(), data, row_bytes: data.len() / self.n_out, n_cols: self.n_in }
    }
}

/// Products of vector `t` of an input, `x` `[n_in]`, with several matrices, in one parallel region over all rows.
pub fn forward_one<const M: usize>(
    cx: &Compute,
    x: &[f32],
    input: &Input,
    t: usize,
    parts: [(&Linear, &mut [f32]); M],
) {
    cx.pool.runs(parts.map(|(l, out)| (l, out, PANEL_ROWS)), |linear, panel, out| {
        linear.forward_rows(cx, x, input, t, panel * PANEL_ROWS, out);
    });
}

impl Input {
    /// Prepares `x` `[n][n_in]` for matrices that all read it. Reuses its memory.
    pub fn prepare(&mut self, cx: &Compute, readers: &[&Linear], x: &[f32], n: usize) {
        if readers.iter().any(|r| r.wants_q8(cx)) {
            self.quantize(cx, x, n, x.len() / n);
        }
    }

    fn quantize(&mut self, cx: &Compute, x: &[f32], n: usize, n_cols: usize) {
        let two_planes = cx.precision == Precision::Int16;
        if cx.dispatch.has_tiles(n) {
            return cx.dispatch.split_tiles(x, n_cols, &cx.pool, &mut self.tiles);
        }
        self.q8.resize(n, n_cols, two_planes);
        if n < 4 {
            // Nothing to share out, and nothing to allocate for it.
            return cx.dispatch.quantize_q8(x, self.q8.as_mut());
        }
        let rows = n.div_ceil(cx.pool.n_threads()).max(4);
        let parts: Vec<_> = self.q8.chunks_mut(rows).into_iter().zip(x.chunks(rows * n_cols)).collect();
        cx.pool.each(parts, |(to, x)| cx.dispatch.quantize_q8(x, to));
        if cx.dispatch.packs() {
            self.q8.tile(&cx.pool);
        }
    }
}
