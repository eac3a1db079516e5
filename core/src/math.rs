//! The few numeric helpers shared by the steps.

/// Added to denominators that may be zero.
pub(crate) const EPS: f32 = 1e-8;

pub(crate) fn sqrt(x: f32) -> f32 {
    libm::sqrtf(x)
}

/// A count as f32 (exact below 2^24).
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(n: usize) -> f32 {
    n as f32
}

/// `numerator / denominator`, 0 when the denominator is 0.
pub(crate) fn ratio(numerator: f32, denominator: f32) -> f32 {
    if denominator == 0.0 { 0.0 } else { numerator / denominator }
}

/// `floor(n * share)` of a count, at most `n`; a negative or NaN share gives 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
pub(crate) fn share(n: u32, share: f32) -> u32 {
    // f32 on purpose: the product rounds to what the decimal share means (0.7 of 10 is 7).
    ((n as f32 * share) as u32).min(n)
}

/// Copies what fits; `copy_from_slice` can panic.
pub(crate) fn copy(from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}
