//! Matrix products with weights that stay in the file.

use super::{Compute, Precision};
use crate::Error;
use crate::gguf::{GgufFile, Tensor};
use crate::kernels::{Q8Rows, WeightRows};
use crate::quant::GgmlType;

/// Tokens per task of a matrix product: enough to repay unpacking the weights, few enough to stay in the L2 cache.
const MAX_TOKENS: usize = 256;

/// `y = W x + b` with `W` `[n_out][n_in]` in any supported format.
#[derive(Clone)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Vec<f32>>,
    n_in: usize,
    n_out: usize,
}

/// Activations in the form that the weights want: as they are, or quantised once for several matrices.
#[derive(Default)]
pub struct Input {
    q8: Q8Rows,
    has_q8: bool,
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
        Ok(Linear { weight, bias, n_in, n_out })
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
        Ok(Linear { weight, bias, n_in, n_out })
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
        let w = self.rows();
        let q8 = self.wants_q8(cx);
        assert!(!q8 || input.has_q8, "linear: the input is not quantised");
        let threads = cx.pool.n_threads();
        if n < 4 {
            // Few tokens: split the rows of each product.
            for (t, out) in out.chunks_exact_mut(self.n_out).enumerate() {
                let rows = self.n_out.div_ceil(threads).next_multiple_of(16);
                cx.pool.chunks(out, rows, |i, out| {
                    let w = w.slice(i * rows, i * rows + out.len());
                    if q8 {
                        cx.dispatch.gemv_q8(w, input.q8.row(t), out);
                    } else {
                        cx.dispatch.gemm_f32(w, &x[t * self.n_in..(t + 1) * self.n_in], out);
                    }
                });
            }
        } else {
            let tokens = n.div_ceil(threads).min(MAX_TOKENS);
            cx.pool.chunks(out, tokens * self.n_out, |i, out| {
                let (from, to) = (i * tokens, i * tokens + out.len() / self.n_out);
                if q8 {
                    cx.dispatch.gemm_q8(w, &input.q8, from..to, out);
                } else {
                    cx.dispatch.gemm_f32(w, &x[from * self.n_in..to * self.n_in], out);
                }
            });
        }
        if let Some(bias) = &self.bias {
            cx.pool.chunks(out, self.n_out * n.div_ceil(threads), |_, out| {
                out.chunks_exact_mut(self.n_out).for_each(|out| cx.dispatch.add(out, bias));
            });
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

impl Input {
    /// Prepares `x` `[n][n_in]` for matrices that all read it. Reuses its memory.
    pub fn prepare(&mut self, cx: &Compute, readers: &[&Linear], x: &[f32], n: usize) {
        if readers.iter().any(|r| r.wants_q8(cx)) {
            self.quantize(cx, x, n, x.len() / n);
        }
    }

    fn quantize(&mut self, cx: &Compute, x: &[f32], n: usize, n_cols: usize) {
        self.q8.resize(n, n_cols, cx.precision == Precision::Int16);
        self.has_q8 = true;
        let rows = n.div_ceil(cx.pool.n_threads()).max(4);
        let parts: Vec<_> = self.q8.chunks_mut(rows).into_iter().zip(x.chunks(rows * n_cols)).collect();
        cx.pool.each(parts, |(to, x)| cx.dispatch.quantize_q8(x, to));
    }
}
