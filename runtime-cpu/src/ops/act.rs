//! Activation functions, in place.

use super::Compute;

const CHUNK: usize = 1 << 14;

/// `x * sigmoid(1.702 x)`: CLIP's approximation of GELU.
pub fn quick_gelu(cx: &Compute, x: &mut [f32]) {
    cx.pool.chunks(x, CHUNK, |_, x| cx.dispatch.sigmoid_gate(x, 1.702));
}

/// `x * sigmoid(x)`
pub fn silu(cx: &Compute, x: &mut [f32]) {
    cx.pool.chunks(x, CHUNK, |_, x| cx.dispatch.sigmoid_gate(x, 1.0));
}

/// `x / 2 (1 + erf(x / sqrt 2))`: exact GELU.
pub fn gelu_erf(cx: &Compute, x: &mut [f32]) {
    cx.pool.chunks(x, CHUNK, |_, x| {
        x.iter_mut().for_each(|v| *v = 0.5 * *v * (1.0 + libm::erff(*v * std::f32::consts::FRAC_1_SQRT_2)));
    });
}

/// `x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`: GELU by tanh.
pub fn gelu_tanh(cx: &Compute, x: &mut [f32]) {
    cx.pool.chunks(x, CHUNK, |_, x| cx.dispatch.gelu_tanh(x));
}
