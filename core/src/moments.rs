//! Second moments of slots, and attention that reads them.

use crate::Error;
use crate::kernels::{self, Dispatch};
use crate::math::sqrt;
use crate::shape::part_mut;

/// How the entries of each slot scatter, weighted as they were written.
#[derive(Debug)]
pub struct Moments<'a> {
    /// Variance of every element of the keys, `[n_kv_heads][slots][head_dim]`.
    pub variance: &'a mut [f32],
    /// Covariance of the elements of values with those of keys, `[n_kv_heads][slots][head_dim of v][head_dim of k]`.
    pub covariance: &'a mut [f32],
    /// At least the largest distance of a key from the slot's, `[n_kv_heads][slots]`.
    pub radius: &'a mut [f32],
}

/// One slot with its moments, in the shapes of [`Slots`](crate::Slots) and [`Moments`].
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// `[head_dim]`.
    pub key: &'a [f32],
    /// `[head_dim]`.
    pub value: &'a [f32],
    /// Entries it stands for.
    pub mass: f32,
    /// `[head_dim]`.
    pub variance: &'a [f32],
    /// `[head_dim of v][head_dim of k]`.
    pub covariance: &'a [f32],
    /// Largest distance of a key.
    pub radius: f32,
}

/// The logit and the value with which a slot takes part in the attention of one query, beside the kept entries and in one
/// softmax with them: `s q.k + ln(mass) + min(s^2 q.(variance q) / 2, s |q| radius)` and `v + s covariance q`, `s` being
/// the factor on the dot products. For entries whose keys and values are jointly normal, with independent elements of the
/// keys, that is what attention over all of them gives. The logit of an empty slot is minus infinity.
///
/// `query` and `value` `[head_dim]`.
///
/// # Errors
/// [`Error::LengthMismatch`]; nothing was written then.
pub fn tilt(d: Dispatch, s: f32, query: &[f32], slot: Slot<'_>, value: &mut [f32]) -> Result<f32, Error> {
    let n = query.len();
    let square = n.checked_mul(n).ok_or(Error::Overflow("slots"))?;
    for (what, need, got) in [
        ("slot keys", n, slot.key.len()),
        ("slot values", n, slot.value.len()),
        ("slot variances", n, slot.variance.len()),
        ("slot covariances", square, slot.covariance.len()),
        ("value", n, value.len()),
    ] {
        if need != got {
            return Err(Error::LengthMismatch { what, need, got });
        }
    }
    value.fill(0.0);
    if slot.mass <= 0.0 {
        return Ok(f32::NEG_INFINITY);
    }
    kernels::dots(d, query, n, slot.covariance, value, n);
    kernels::scale(d, s, value);
    kernels::axpy(d, 1.0, slot.value, value);
    let (mut dot, mut length) = ([0.0], [0.0]);
    kernels::dots(d, query, n, slot.key, &mut dot, 1);
    kernels::sq_norms(d, query, n, &mut length);
    let ([dot], [length]) = (dot, length);
    let spread = query.iter().zip(slot.variance).fold(0.0, |sum, (q, x)| sum + q * q * x);
    let (gain, most) = (s * s * spread / 2.0, s.abs() * sqrt(length) * slot.radius);
    Ok(s * dot + libm::logf(slot.mass) + if gain < most { gain } else { most })
}

impl Moments<'_> {
    /// The moments of `n` slots, the `i`-th such group.
    pub(crate) fn part(&mut self, i: usize, n: usize, head_dim: usize) -> Moments<'_> {
        let row = n.saturating_mul(head_dim);
        Moments {
            variance: part_mut(self.variance, i, 1, row),
            covariance: part_mut(self.covariance, i, 1, row.saturating_mul(head_dim)),
            radius: part_mut(self.radius, i, 1, n),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.variance.fill(0.0);
        self.covariance.fill(0.0);
        self.radius.fill(0.0);
    }

    /// Of one slot: lets what was written decay and writes an entry, given relative to the slot's key and value.
    pub(crate) fn write(&mut self, d: Dispatch, decay: f32, key: &[f32], value: &[f32]) {
        let (keep, write) = (libm::expf(-decay), -libm::expm1f(-decay));
        for (x, k) in self.variance.iter_mut().zip(key) {
            *x = keep * *x + write * (k * k);
        }
        kernels::scale(d, keep, self.covariance);
        for (row, v) in self.covariance.chunks_exact_mut(key.len().max(1)).zip(value) {
            kernels::axpy(d, write * v, key, row);
        }
        let mut square = [0.0];
        kernels::sq_norms(d, key, key.len(), &mut square);
        let [square] = square;
        self.widen(sqrt(square));
    }

    /// Of one slot: adds a group of entries of weight `share`, everything before having the rest. `key` and `value` are the
    /// elements of the step from the slot's means to the group's, `radius` that of the group.
    pub(crate) fn join(&mut self, share: f32, radius: f32, key: impl Fn(usize) -> f32, value: impl Fn(usize) -> f32) {
        let (left, head_dim) = (1.0 - share, self.variance.len());
        if share <= 0.0 {
            return;
        }
        if left <= 0.0 {
            self.clear();
            self.widen(radius);
            return;
        }
        let mut square = 0.0;
        for (j, x) in self.variance.iter_mut().enumerate() {
            let step = key(j) * key(j);
            *x = left * (*x + share * step);
            square += step;
        }
        for (i, row) in self.covariance.chunks_exact_mut(head_dim.max(1)).enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                *x = left * (*x + share * (value(i) * key(j)));
            }
        }
        // The means move away from what was there, and stay short of what was added.
        let step = sqrt(square);
        self.radius.iter_mut().for_each(|r| *r += share * step);
        self.widen(radius + left * step);
    }

    fn widen(&mut self, least: f32) {
        for r in self.radius.iter_mut() {
            *r = if least > *r { least } else { *r };
        }
    }
}
