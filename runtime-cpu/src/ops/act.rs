//! Activation functions, in place.

use super::Compute;
use crate::kernels::Dispatch;

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
    cx.pool.chunks(x, CHUNK, |_, x| {
        x.iter_mut().for_each(|v| *v = 0.5 * *v * (1.0 + (0.797_884_6 * (*v + 0.044_715 * *v * *v * *v)).tanh()));
    });
}

/// `gate[i] = gelu(gate[i]) * up[i]`, GELU by tanh; `up` is used up.
///
/// `(1 + tanh y) / 2` is `sigmoid(2 y)`, so with `z = 2 sqrt(2/pi) (x + 0.044715 x^3)` this is `z sigmoid(z) * up x / z`.
pub fn gelu_mul(dispatch: Dispatch, gate: &mut [f32], up: &mut [f32]) {
    for (x, up) in gate.iter_mut().zip(&mut *up) {
        let slope = 1.595_769 * (1.0 + 0.044_715 * *x * *x);
        *x *= slope;
        *up /= slope;
    }
    dispatch.silu_mul(gate, up);
}
