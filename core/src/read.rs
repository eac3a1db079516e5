//! Attention over slots, for hosts with an attention of their own.

use crate::Error;
use crate::kernels::{self, Dispatch};
use crate::shape::part;

/// Attention of one query as it stands after some of the entries: a softmax that can be continued.
#[derive(Debug)]
pub struct Reading<'a> {
    /// Greatest logit so far; minus infinity before the first entry.
    pub max: &'a mut f32,
    /// `sum_i exp(logit_i - max)`; 0 before the first entry.
    pub sum: &'a mut f32,
    /// `sum_i exp(logit_i - max) v_i`, `[head_dim]`. Divided by `sum` once all entries are in, it is the output.
    pub out: &'a mut [f32],
}

/// Adds the slots of one head to the attention of one query: each is an entry whose logit is
/// `scale q . k + ln(mass)`. Slots of mass 0 are empty and take no part. Kept rows and slots may come in either order.
///
/// `query` `[head_dim]`, `keys` and `values` `[slots][head_dim]`, `mass` `[slots]`.
///
/// # Errors
/// [`Error::LengthMismatch`]; nothing was changed then.
pub fn read_slots(
    d: Dispatch,
    query: &[f32],
    scale: f32,
    (keys, values, mass): (&[f32], &[f32], &[f32]),
    to: Reading<'_>,
) -> Result<(), Error> {
    let head_dim = query.len();
    let elements = mass.len().checked_mul(head_dim).ok_or(Error::Overflow("slots"))?;
    for (what, need, got) in [
        ("slot keys", elements, keys.len()),
        ("slot values", elements, values.len()),
        ("attention output", head_dim, to.out.len()),
    ] {
        if need != got {
            return Err(Error::LengthMismatch { what, need, got });
        }
    }
    for (i, &m) in mass.iter().enumerate().filter(|&(_, &m)| m > 0.0) {
        let mut dot = [0.0];
        kernels::dots(d, query, head_dim, part(keys, i, 1, head_dim), &mut dot, 1);
        let [dot] = dot;
        let logit = scale * dot + libm::logf(m);
        if logit > *to.max {
            let shrink = libm::expf(*to.max - logit);
            *to.max = logit;
            *to.sum *= shrink;
            kernels::scale(d, shrink, to.out);
        }
        let weight = libm::expf(logit - *to.max);
        *to.sum += weight;
        kernels::axpy(d, weight, part(values, i, 1, head_dim), to.out);
    }
    Ok(())
}
